"""`convert`."""

from __future__ import annotations

import os

from ._checks import (
    at_least,
    check_fp16_inputs,
    check_inputs,
    check_outputs,
    check_outputs_of,
    check_states,
    check_states_of_target,
    check_target,
)
from ._names import RESERVED, allowed_each, with_allowed_names
from ._types import ComputeUnit, dtype_name, numbers

# `typing` takes long to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .models.model import MLModel

_SOURCES = ("auto", "pytorch", "tensorflow", "milinternal")
_LAYOUTS = {"RGB": "rgb", "BGR": "bgr", "GRAYSCALE": "grayscale", "GRAYSCALE_FLOAT16": "grayscale_fp16"}
#: Keys of the metadata that coremltools writes.
_METADATA_DATE = "com.github.apple.coremltools.conversion_date"
_METADATA_SOURCE = "com.github.apple.coremltools.source"
_METADATA_DIALECT = "com.github.apple.coremltools.source_dialect"


def convert(
    model: Any,
    source: str = "auto",
    inputs: list | None = None,
    outputs: list | None = None,
    classifier_config: Any = None,
    minimum_deployment_target: Any = None,
    convert_to: str | None = None,
    compute_precision: Any = None,
    skip_model_load: bool = False,
    compute_units: Any = ComputeUnit.ALL,
    package_dir: str | None = None,
    debug: bool = False,
    pass_pipeline: Any = None,
    states: list | None = None,
) -> MLModel | Any:
    """Converts a torch model to an ML Program.

    Args:
        model: an exported program, a `.pt2` archive, a module, a traced or scripted module, or a program that this function
            returned.
        source: `"auto"`, `"pytorch"`, or `"milinternal"` for a program that this function returned.
        inputs: `TensorType` and `ImageType`, in the order of the model's inputs.
        outputs: `TensorType` and `ImageType`, in the order of the model's outputs.
        classifier_config: the labels of a classifier.
        minimum_deployment_target: the oldest release that must run the model; iOS 15, or the oldest that can, if left out.
        convert_to: `"mlprogram"`, or `"milinternal"` for a program to print, to read and to convert.
        compute_precision: `precision.FLOAT16`, `precision.FLOAT32` or `transform.FP16ComputePrecision`.
        skip_model_load: has no effect: models are loaded when they predict first.
        compute_units: noted in the model; predictions run on the CPU.
        package_dir: where the package is written, too.
        debug: has no effect.
        pass_pipeline: passes that are left out, and passes that compress weights.
        states: the states; buffers that the model writes to are states, whether they are listed or not.
    """
    from ._milinternal import ConvertedProgram
    from ._missing import unsupported

    if source.lower() not in _SOURCES:
        raise ValueError(f'Unrecognized value of argument "source": {source}. It must be one of {list(_SOURCES)}.')
    is_program = isinstance(model, ConvertedProgram)
    if source.lower() == "tensorflow" or (source.lower() == "milinternal" and not is_program):
        raise unsupported(f"the source {source!r}", "convert a torch model")
    release = _release(minimum_deployment_target)
    check_states_of_target(states, convert_to, release)
    check_target(convert_to, release, compute_precision)
    if package_dir is not None and not os.fspath(package_dir).endswith(".mlpackage"):
        raise ValueError("`package_dir` must have extension .mlpackage")
    arguments = {
        "inputs": inputs,
        "outputs": outputs,
        "classifier_config": classifier_config,
        "minimum_deployment_target": minimum_deployment_target,
        "compute_precision": compute_precision,
        "pass_pipeline": pass_pipeline,
        "states": states,
    }
    if is_program:
        found, arguments = model.to_model(arguments, compute_units, _model)
        model = model.source
    else:
        found = _model(model, **arguments, compute_units=compute_units)
    if convert_to == "milinternal":
        return ConvertedProgram(found, model, arguments)
    if package_dir is not None:
        found.save(os.fspath(package_dir))
    return found


def _model(
    model: Any,
    inputs: list | None,
    outputs: list | None,
    classifier_config: Any,
    minimum_deployment_target: Any,
    compute_precision: Any,
    pass_pipeline: Any,
    states: list | None,
    compute_units: Any,
) -> MLModel:
    """The converted model. The arguments are those of `convert`."""
    from ._packed import without_packed_weights
    from ._passes import check_options
    from ._scopes import scopes_by_value
    from ._sources import source as exported
    from ._sources import output_names, with_local_writes, with_read_states
    from ._trained import check_release, notes
    from .models.model import MLModel

    release = _release(minimum_deployment_target)
    given = [] if inputs is None else _inputs(inputs, release)
    wanted = _outputs(outputs, release)
    if classifier_config is not None and type(classifier_config).__name__ != "ClassifierConfig":
        raise ValueError("`classifier_config` must be of type ClassifierConfig")
    options = _precision(compute_precision, pass_pipeline)
    if release is not None:
        options["target"] = release

    check_options(pass_pipeline)
    check_states(states, model)
    check_release(notes(model), release is None or at_least(release, 18))
    made = exported(model, inputs, release)
    if hasattr(made.program, "graph_signature"):
        made.program = without_packed_weights(made.program)
    check_outputs_of(made.program, wanted)
    check_fp16_inputs(made.program, given, release)
    if made.dialect == "TorchScript":
        listed = {state.name for state in states or ()}
        with_local_writes(made.program, listed)
        with_read_states(made.program, listed)
    made.rename_inputs(allowed_each(made.input_names))
    given, wanted = with_allowed_names(given, "input"), with_allowed_names(wanted, "output")
    scopes = scopes_by_value(made.program)
    made.program = _with_zero_states(made.program, states)
    options["input_names"] = made.input_names
    names = [one.name for one in wanted if one.name is not None] or output_names(made)
    if names:
        options["output_names"] = names
    if made.shapes:
        options["shapes"] = made.shapes
    options["metadata"] = _notes(made)
    chosen = options.pop("op_selector", None)
    edits = _edits(made, given, wanted, classifier_config)
    result = _with_allowed_states(_converted(made.program, options, edits, chosen, scopes))
    result = _with_ranges(result, made)
    result = _with_default_types(result, options, release, wanted, given)
    found = _compressed(MLModel._of(result, compute_units=compute_units), pass_pipeline)
    found._scopes = scopes
    return found


def _with_zero_states(program: Any, states: list | None) -> Any:
    """The program with states of zeros, with which Core ML starts, whatever the buffers hold now or when the model is saved."""
    signature = getattr(program, "graph_signature", None)
    if signature is None:
        return program
    names = {state.name for state in states or ()} | set(signature.buffers_to_mutate.values())
    kept = {"_state_dict": program.state_dict, "_constants": program.constants}
    zeros = {
        field: {name: value.new_zeros(value.shape) for name, value in tensors.items() if name in names}
        for field, tensors in kept.items()
    }
    if any(zeros.values()):
        import copy

        program = copy.copy(program)
        for field, tensors in kept.items():
            setattr(program, field, {**tensors, **zeros[field]})
    return program


def _compressed(model: MLModel, pipeline: Any) -> MLModel:
    """The model with its weights compressed by the passes of a pipeline, as their options say."""
    if not hasattr(pipeline, "compression"):
        return model
    from .optimize import coreml

    for name in pipeline.compression():
        options = pipeline.get_options(f"compression::{name}") or {}
        if options.get("config") is not None:
            model = getattr(coreml, name)(model, options["config"], bool(options.get("joint_compression")))
    return model


def _converted(program: Any, options: dict, edits: list, op_selector: Any, scopes: dict) -> Any:
    import json

    import coremill

    if op_selector is not None:
        from ._selector import fp32_values

        plain = {**options, "precision": "fp32"}
        options = {**options, "fp32_values": fp32_values(coremill.convert(program, **plain), op_selector, scopes)}
    return coremill.convert(program, edits=json.dumps(edits) if edits else None, **options)


def _with_ranges(model: Any, made: Any) -> Any:
    """The model with bounds, and with default shapes, that differ from those of the conversion."""
    import json

    edits = []
    for feature in model.inspect()["functions"][0]["inputs"]:
        shapes = made.shapes.get(feature["name"])
        if feature["name"] in made.image_shapes:
            edits.append({
                "edit": "shapes", "name": feature["name"], "shapes": made.image_shapes[feature["name"]], "default": shapes[0],
            })
            continue
        if shapes is not None and len(shapes) > 1 and feature["kind"] == "multiArray" and feature["shape"] != shapes[0]:
            # The default was the shape of the example.
            edits.append({"edit": "shapes", "name": feature["name"], "shapes": shapes})
            continue
        known = (feature["accepts"] or {}).get("ranges")
        wanted = made.ranges.get(feature["name"])
        if known is None or wanted is None:
            continue
        # Some dimensions turn out to be fixed.
        found = [[one["min"], one["max"]] for one in known]
        wanted = [own if own[0] == own[1] else asked for own, asked in zip(found, wanted)]
        default = made.defaults.get(feature["name"]) or feature["shape"]
        if found == wanted and default == feature["shape"]:
            continue
        if all(low <= size and (high is None or size <= high) for size, (low, high) in zip(default, wanted)):
            edits.append({"edit": "ranges", "name": feature["name"], "ranges": wanted, "default": default})
    return model._edit(json.dumps(edits)) if edits else model


def _with_allowed_states(model: Any) -> Any:
    """The model with coremltools' names for states that Core ML does not allow. coremill appends `_value` to these names."""
    import json

    edits = []
    for feature in model.inspect()["functions"][0]["states"]:
        word, _, end = feature["name"].rpartition("_")
        if end == "value" and word in RESERVED:
            edits.append({"edit": "rename", "from": feature["name"], "to": f"{word}_workaround"})
    return model._edit(json.dumps(edits)) if edits else model


def _release(target: Any) -> str | None:
    """The name of a release, `ios16` for instance."""
    if target is None:
        return None
    name, value = getattr(target, "name", None), getattr(target, "value", None)
    if name is None or not isinstance(value, int):
        raise TypeError(
            f"Unrecognized value of argument 'minimum_deployment_target': {target}. It needs to be a member of "
            "'coremltools.target' enumeration. For example, coremltools.target.iOS13"
        )
    versions = {6: "ios15", 7: "ios16", 8: "ios17", 9: "ios18", 10: "ios26"}
    return versions.get(value, name.lower())


def _inputs(inputs: Any, release: str | None) -> list:
    from ._sources import flat

    if not isinstance(inputs, (list, tuple)):
        raise ValueError("`inputs` must be of type list")
    given = flat(inputs)
    check_inputs(given, release)
    return given


def _outputs(outputs: Any, release: str | None) -> list:
    if outputs is None:
        return []
    if not isinstance(outputs, list):
        raise ValueError('"outputs" must be of type list')
    if outputs and all(isinstance(one, str) for one in outputs):
        raise ValueError('"outputs" must be a list of type ct.TensorType or ct.ImageType for pytorch conversion')
    check_outputs(outputs, release)
    return outputs


def _precision(precision: Any, pipeline: Any) -> dict:
    """The options for a precision and a pipeline of passes."""
    options: dict = {"precision": "fp16"}
    selector = None
    if precision is not None:
        if hasattr(precision, "op_selector"):
            selector = precision.op_selector
        elif getattr(precision, "name", None) == "FLOAT32":
            options["precision"] = "fp32"
        elif getattr(precision, "name", None) != "FLOAT16":
            raise ValueError(
                "'compute_precision' must be either coremltools.precision.FLOAT32 or coremltools.precision.FLOAT16 or of "
                "type coremltools.transform.FP16ComputePrecision()"
            )
    if pipeline is not None and hasattr(pipeline, "is_fp32"):
        if pipeline.is_fp32:
            options["precision"] = "fp32"
        options["skip_passes"] = pipeline.skipped()
        found = pipeline.get_options("common::add_fp16_cast") or {}
        selector = found.get("op_selector", selector)
        if found.get("skip_ops_by_type"):
            options["fp32_ops"] = [name.strip() for name in found["skip_ops_by_type"].split(",")]
    if selector is not None and options["precision"] == "fp16":
        options["op_selector"] = selector
    return options


def _notes(made: Any) -> dict:
    notes = {_METADATA_DIALECT: made.dialect, _METADATA_DATE: _today()}
    if made.dialect == "TorchScript" or not isinstance(made.program, str):
        import torch

        notes[_METADATA_SOURCE] = f"torch=={torch.__version__}"
    return notes


def _today() -> str:
    """The date; that of `SOURCE_DATE_EPOCH` if set, for packages that are the same on every day."""
    import datetime

    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    if epoch.isdecimal():
        return str(datetime.datetime.fromtimestamp(int(epoch), datetime.timezone.utc).date())
    return str(datetime.date.today())


def _edits(made: Any, given: list, wanted: list, classifier: Any) -> list:
    """What becomes of inputs and outputs after the conversion."""
    edits = []
    for name, one in zip(made.input_names, given):
        is_index = name in made.float_inputs
        name = one.name or name
        if type(one).__name__ == "ImageType":
            edits.append(_image(name, one))
            continue
        if one.dtype is not None and dtype_name(one.dtype) != "bool":
            edits.append({"edit": "retype", "name": name, "dtype": dtype_name(one.dtype)})
        elif one.dtype is None and is_index:
            edits.append({"edit": "retype", "name": name, "dtype": "fp32"})
        if getattr(one, "default_value", None) is not None:
            default = float(one.default_value.flatten()[0])
            edits.append({"edit": "optional", "name": name, "default": default})
    for at, one in enumerate(wanted):
        if type(one).__name__ == "ImageType":
            edits.append({**_image(one.name, one), "scale": [], "bias": [], "at": at})
        elif one.dtype is not None and dtype_name(one.dtype) != "bool":
            edits.append({"edit": "retype", "name": one.name, "dtype": dtype_name(one.dtype), "at": at})
    if any(edit.get("name") is None for edit in edits if "at" in edit):
        edits = [edit for edit in edits if edit.get("name") is not None or "at" not in edit]
    if classifier is not None:
        edits.append(_classify(classifier))
    return [{key: value for key, value in edit.items() if key != "at"} for edit in edits]


def _image(name: str | None, one: Any) -> dict:
    if getattr(one, "channel_first", None) is False:
        raise ValueError(f"Image input, '{name}', must be in the channel_first format")
    layout = _LAYOUTS[one.color_layout.name]
    bias = numbers(0.0 if one.bias is None else one.bias)
    return {"edit": "image", "name": name, "layout": layout, "scale": numbers(one.scale), "bias": bias}


def _classify(classifier: Any) -> dict:
    labels = classifier.class_labels
    if isinstance(labels, str):
        if not os.path.isfile(labels):
            raise ValueError(f"Path to class labels ({labels}) does not exist.")
        with open(labels, encoding="utf-8") as file:
            labels = file.read().splitlines()
    elif not isinstance(labels, list):
        raise ValueError("Class labels must be a list of integers / strings or a file path")
    is_kind = all(isinstance(label, int) for label in labels) or all(isinstance(label, str) for label in labels)
    if not labels or not is_kind:
        raise ValueError("Class labels must be a list of integers / strings or a file path")
    return {
        "edit": "classify",
        "labels": labels,
        "output": classifier.predicted_probabilities_output or None,
        "name": classifier.predicted_feature_name or None,
    }


def _with_default_types(result: Any, options: dict, release: str | None, wanted: list, given: list) -> Any:
    """Images and types of outputs without names, and fp16 for floats of no type where coremltools has it: from iOS 16 on."""
    function = result.inspect()["functions"][0]
    arrays = [feature for feature in function["outputs"] if feature["kind"] in ("multiArray", "image")]
    is_fp16 = options["precision"] == "fp16" and at_least(release, 16)
    edits = []
    for at, feature in enumerate(arrays):
        one = wanted[at] if at < len(wanted) and len(arrays) == len(wanted) else None
        if one is not None and one.name is None:
            if type(one).__name__ == "ImageType":
                edits.append({**_image(feature["name"], one), "scale": [], "bias": []})
                continue
            if one.dtype is not None and dtype_name(one.dtype) != "bool":
                edits.append({"edit": "retype", "name": feature["name"], "dtype": dtype_name(one.dtype)})
                continue
        is_open = one is None or (one.dtype is None and type(one).__name__ != "ImageType")
        if is_open and is_fp16 and feature["kind"] == "multiArray" and feature["dtype"] == "fp32":
            edits.append({"edit": "retype", "name": feature["name"], "dtype": "fp16"})
    for feature, one in zip(function["inputs"], given):
        is_open = type(one).__name__ == "TensorType" and one.dtype is None
        if is_open and is_fp16 and feature["kind"] == "multiArray" and feature["dtype"] == "fp32":
            edits.append({"edit": "retype", "name": feature["name"], "dtype": "fp16"})
    if not edits:
        return result
    import json

    return result._edit(json.dumps(edits))
