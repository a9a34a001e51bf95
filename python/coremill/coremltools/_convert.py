"""`convert`."""

from __future__ import annotations

import os

from ._types import ComputeUnit, dtype_name

# `typing` takes long to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .models.model import MLModel

_SOURCES = ("auto", "pytorch", "tensorflow", "milinternal")
_LAYOUTS = {"RGB": "rgb", "BGR": "bgr", "GRAYSCALE": "grayscale", "GRAYSCALE_FLOAT16": "grayscale_fp16"}
#: Keys of the metadata that coremltools writes.
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
) -> MLModel:
    """Converts a torch model to an ML Program.

    Args:
        model: an exported program, a `.pt2` archive, a module, or a traced or scripted module.
        source: `"auto"` or `"pytorch"`.
        inputs: `TensorType` and `ImageType`, in the order of the model's inputs.
        outputs: `TensorType` and `ImageType`, in the order of the model's outputs.
        classifier_config: the labels of a classifier.
        minimum_deployment_target: the oldest release that must run the model; iOS 15, or the oldest that can, if left out.
        convert_to: `"mlprogram"`.
        compute_precision: `precision.FLOAT16`, `precision.FLOAT32` or `transform.FP16ComputePrecision`.
        skip_model_load: has no effect: models are loaded when they predict first.
        compute_units: noted in the model; predictions run on the CPU.
        package_dir: where the package is written, too.
        debug: has no effect.
        pass_pipeline: passes that are left out.
        states: the states; buffers that the model writes to are states, whether they are listed or not.
    """
    from ._missing import unsupported
    from ._sources import flat
    from ._sources import source as exported
    from .models.model import MLModel

    if source.lower() not in _SOURCES:
        raise ValueError(f'Unrecognized value of argument "source": {source}. It must be one of {list(_SOURCES)}.')
    if source.lower() in ("tensorflow", "milinternal"):
        raise unsupported(f"the source {source!r}", "convert a torch model")
    release = _release(minimum_deployment_target)
    _check_target(convert_to, release)
    if package_dir is not None and not os.fspath(package_dir).endswith(".mlpackage"):
        raise ValueError("`package_dir` must have extension .mlpackage")
    given = [] if inputs is None else _inputs(inputs, flat, release)
    wanted = _outputs(outputs, release)
    if classifier_config is not None and type(classifier_config).__name__ != "ClassifierConfig":
        raise ValueError("`classifier_config` must be of type ClassifierConfig")
    options = _precision(compute_precision, pass_pipeline)
    if release is not None:
        options["target"] = release

    made = exported(model, inputs)
    options["input_names"] = made.input_names
    names = [one.name for one in wanted if one.name is not None]
    if names:
        options["output_names"] = names
    if made.shapes:
        options["shapes"] = made.shapes
    options["metadata"] = _notes(made)
    _refuse_renamed_states(states)
    chosen = options.pop("op_selector", None)
    edits = _edits(made.input_names, given, wanted, classifier_config)
    result = _converted(made.program, options, edits, chosen)
    result = _with_default_types(result, options, release, wanted, given)
    found = MLModel._of(result, compute_units=compute_units)
    if package_dir is not None:
        found.save(os.fspath(package_dir))
    return found


def _converted(program: Any, options: dict, edits: list, op_selector: Any) -> Any:
    import json

    import coremill

    if op_selector is not None:
        from ._selector import fp32_values

        plain = {**options, "precision": "fp32"}
        options = {**options, "fp32_values": fp32_values(coremill.convert(program, **plain), op_selector)}
    return coremill.convert(program, edits=json.dumps(edits) if edits else None, **options)


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


def _check_target(convert_to: str | None, release: str | None) -> None:
    from ._missing import unsupported

    is_old = release is not None and release in ("ios13", "ios14")
    if convert_to not in (None, "mlprogram", "neuralnetwork", "milinternal"):
        raise NotImplementedError(f"Backend converter {convert_to} not implemented")
    if convert_to == "mlprogram" and is_old:
        raise ValueError(
            "When 'convert_to' is mlprogram, the minimum deployment target must be at least iOS15/macOS12/watchOS8/tvOS15"
        )
    if convert_to in ("neuralnetwork", "milinternal"):
        raise unsupported(f"convert_to={convert_to!r}", 'pass `convert_to="mlprogram"`')
    if is_old:
        raise unsupported(f"the target {release}", "pass `minimum_deployment_target=ct.target.iOS15` or later")


def _at_least(release: str | None, number: int) -> bool:
    return release is not None and int(release.removeprefix("ios")) >= number


def _inputs(inputs: Any, flat: Any, release: str | None) -> list:
    if not isinstance(inputs, (list, tuple)):
        raise ValueError("`inputs` must be of type list")
    given = flat(inputs)
    names = [one.name for one in given if one.name is not None]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"Duplicated inputs: {twice}")
    enumerated = [one for one in given if type(one.shape).__name__ == "EnumeratedShapes"]
    for one in given:
        if type(one).__name__ == "StateType":
            raise ValueError("'inputs' cannot contain an instance of StateType.")
        _check_dtype(one, release, "inputs")
        shapes = one.shape.shapes if type(one.shape).__name__ == "EnumeratedShapes" else [one.shape]
        for shape in shapes:
            if shape is not None and any(getattr(size, "upper_bound", 1) < 0 for size in shape.shape):
                raise ValueError(
                    "For mlprogram, inputs with infinite upper_bound is not allowed. Please set upper_bound "
                    'to a positive value in "RangeDim()" for the "inputs" param in ct.convert().'
                )
    if len(enumerated) > 1:
        if release is not None and not _at_least(release, 18):
            raise ValueError(
                "Expected a single enumerated shape input for deployment targets below iOS 18, "
                f"but found {len(enumerated)}. Please ensure only one input with EnumeratedShapes type is present."
            )
        if len({len(one.shape.shapes) for one in enumerated}) > 1:
            raise ValueError(
                "Enumerated shape input mismatch. All enumerated shape inputs must have the same number of shapes for "
                "deployment targets iOS 18 or above."
            )
    return given


def _check_dtype(one: Any, release: str | None, what: str) -> None:
    if one.dtype is None:
        return
    name = dtype_name(one.dtype)
    if name == "fp16" and not _at_least(release, 16):
        raise TypeError(
            f"float16 dtype for {what} is only supported for deployment target >= iOS16/macOS13/watchOS9/tvOS16"
        )
    if name == "int8" and not _at_least(release, 26):
        raise TypeError(f"int8 dtype for {what} is only supported for deployment target >= iOS26")


def _outputs(outputs: Any, release: str | None) -> list:
    if outputs is None:
        return []
    if not isinstance(outputs, list):
        raise ValueError('"outputs" must be of type list')
    if all(isinstance(one, str) for one in outputs):
        from ._types import TensorType

        if outputs:
            raise ValueError('"outputs" must be a list of type ct.TensorType or ct.ImageType for pytorch conversion')
        return [TensorType(name=one) for one in outputs]
    for one in outputs:
        if not hasattr(one, "can_be_output") or not one.can_be_output():
            raise ValueError('Elements in "outputs" must be ct.TensorType or ct.ImageType or str')
        if one.shape is not None:
            raise ValueError(
                "The 'shape' argument must not be specified for the outputs, since it is automatically inferred from the "
                "input shapes and the ops in the model"
            )
        if getattr(one, "default_value", None) is not None:
            raise ValueError("The 'default_value' argument must not be specified for the outputs")
        if type(one).__name__ == "ImageType":
            if one.scale != 1.0:
                raise ValueError("'scale' must be 1.0 for a output of ImageType")
            if one.bias not in (None, 0.0, [0.0, 0.0, 0.0]):
                raise ValueError("'bias' must be None or 0 for an output of ImageType")
            if one.channel_first is not None:
                raise ValueError("'channel_first' must be None for an output of ImageType")
        _check_dtype(one, release, "outputs")
    names = [one.name for one in outputs]
    if any(name is None for name in names) and any(name is not None for name in names):
        raise ValueError('Either none or all the outputs must have the "name" argument specified')
    if names and names[0] is not None and len(set(names)) != len(names):
        raise ValueError("Duplicate names provided in 'outputs'")
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
    notes = {_METADATA_DIALECT: made.dialect}
    if made.dialect == "TorchScript" or not isinstance(made.program, str):
        import torch

        notes[_METADATA_SOURCE] = f"torch=={torch.__version__}"
    return notes


def _refuse_renamed_states(states: list | None) -> None:
    for state in states or []:
        if type(state).__name__ != "StateType":
            raise ValueError("'states' must be a list of ct.StateType")


def _edits(names: list, given: list, wanted: list, classifier: Any) -> list:
    """What becomes of inputs and outputs after the conversion."""
    edits = []
    for name, one in zip(names, given):
        name = one.name or name
        if type(one).__name__ == "ImageType":
            edits.append(_image(name, one))
            continue
        if one.dtype is not None and dtype_name(one.dtype) != "bool":
            edits.append({"edit": "retype", "name": name, "dtype": dtype_name(one.dtype)})
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
    def numbers(value: Any) -> list:
        if hasattr(value, "tolist"):
            value = value.tolist()
        return [float(number) for number in value] if isinstance(value, (list, tuple)) else [float(value)]

    if getattr(one, "channel_first", None) is False:
        raise ValueError(f"Image input, '{name}', must be in the channel_first format")
    if getattr(one, "grayscale_use_uint8", False):
        from ._missing import unsupported

        raise unsupported("`grayscale_use_uint8`", "pass `color_layout=ct.colorlayout.GRAYSCALE` alone")
    layout = _LAYOUTS[one.color_layout.name]
    return {"edit": "image", "name": name, "layout": layout, "scale": numbers(one.scale), "bias": numbers(one.bias or 0.0)}


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
    is_fp16 = options["precision"] == "fp16" and _at_least(release, 16)
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
