"""Checks of `convert`'s arguments, with the errors that coremltools raises."""

from __future__ import annotations

from ._types import RangeDim, dtype_name, numbers

# `typing` takes long to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_OLD_TARGET = "the minimum deployment target must be at least iOS15/macOS12/watchOS8/tvOS15"


def at_least(release: str | None, number: int) -> bool:
    """Whether a release, `ios16` for instance, is that of a number or later."""
    return release is not None and int(release.removeprefix("ios")) >= number


def check_target(convert_to: str | None, release: str | None, precision: Any) -> None:
    """Only ML Programs are written, and these need iOS 15."""
    from ._missing import unsupported

    is_old = release is not None and release in ("ios13", "ios14")
    if convert_to not in (None, "mlprogram", "neuralnetwork", "milinternal"):
        raise NotImplementedError(f"Backend converter {convert_to} not implemented")
    if convert_to == "mlprogram" and is_old:
        raise ValueError(f"When 'convert_to' is mlprogram, {_OLD_TARGET}")
    if convert_to == "neuralnetwork" and release is not None and not is_old:
        raise ValueError(
            "If minimum deployment target is iOS15/macOS12/watchOS8/tvOS15 or higher, then 'convert_to' cannot be "
            "neuralnetwork. It must be 'mlprogram'"
        )
    if convert_to == "neuralnetwork" and precision is not None:
        raise ValueError(
            "compute_precision is only supported for mlprogram target and must be None if target=='neuralnetwork'. Note "
            "that target may be implicitly set depending on the minimum_deployment_target."
        )
    if convert_to == "neuralnetwork":
        raise unsupported(f"convert_to={convert_to!r}", 'pass `convert_to="mlprogram"`')
    if is_old:
        raise unsupported(f"the target {release}", "pass `minimum_deployment_target=ct.target.iOS15` or later")


def check_inputs(given: list, release: str | None) -> None:
    """Checks the descriptions of inputs."""
    names = [one.name for one in given if one.name is not None]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"Duplicated inputs: {twice}")
    enumerated = [one for one in given if type(one.shape).__name__ == "EnumeratedShapes"]
    for one in given:
        if type(one).__name__ == "StateType":
            raise ValueError("'inputs' cannot contain an instance of StateType.")
        _check_dtype(one, release, "inputs")
        if getattr(one, "grayscale_use_uint8", False) and not at_least(release, 17):
            raise ValueError("'grayscale_use_uint8' can only be True for deployment targets of iOS17 or later")
        shapes = one.shape.shapes if type(one.shape).__name__ == "EnumeratedShapes" else [one.shape]
        for shape in shapes:
            if shape is not None and any(getattr(size, "upper_bound", 1) < 0 for size in shape.shape):
                raise ValueError(
                    "For mlprogram, inputs with infinite upper_bound is not allowed. Please set upper_bound "
                    'to a positive value in "RangeDim()" for the "inputs" param in ct.convert().'
                )
            if shape is not None and type(one).__name__ == "ImageType":
                check_image_shape(one, shape.shape, one.name, "input")
    if len(enumerated) > 1:
        if release is not None and not at_least(release, 18):
            raise ValueError(
                "Expected a single enumerated shape input for deployment targets below iOS 18, "
                f"but found {len(enumerated)}. Please ensure only one input with EnumeratedShapes type is present."
            )
        if len({len(one.shape.shapes) for one in enumerated}) > 1:
            raise ValueError(
                "Enumerated shape input mismatch. All enumerated shape inputs must have the same number of shapes for "
                "deployment targets iOS 18 or above."
            )


def check_image_shape(one: Any, shape: Any, name: str | None, what: str) -> None:
    """An image is an array of shape `(1, channels, height, width)`."""
    if len(shape) != 4:
        raise ValueError(f"Image {what}, '{name}', must have rank 4. Instead it has rank {len(shape)}")
    is_gray = one.color_layout.name.startswith("GRAYSCALE")
    channels = 1 if is_gray else 3
    # A range has a lower bound, and any size within it is for the caller to choose.
    sizes = [size for size in shape[:2] if not hasattr(size, "lower_bound")]
    if one.channel_first is not False and len(sizes) == 2 and sizes != [1, channels]:
        kind = "Grayscale" if is_gray else "RGB/BGR"
        raise ValueError(
            f"Shape of the {kind} image {what}, '{name}', must be of kind (1, {channels}, H, W), i.e., first two dimensions "
            f"must be (1, {channels}), instead they are: {tuple(sizes)}"
        )


def _check_dtype(one: Any, release: str | None, what: str) -> None:
    is_half_image = type(one).__name__ == "ImageType" and one.color_layout.name == "GRAYSCALE_FLOAT16"
    if one.dtype is None and not is_half_image:
        return
    name = "fp16" if is_half_image else dtype_name(one.dtype)
    if name == "fp16" and not at_least(release, 16):
        raise TypeError(
            f"float16 dtype for {what} is only supported for deployment target >= iOS16/macOS13/watchOS9/tvOS16"
        )
    if name == "int8" and not at_least(release, 26):
        raise TypeError(f"int8 dtype for {what} is only supported for deployment target >= iOS26")


def check_outputs(outputs: list, release: str | None) -> None:
    """Checks the descriptions of outputs."""
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
            if any(number != 1.0 for number in numbers(one.scale)):
                raise ValueError("'scale' must be 1.0 for a output of ImageType")
            if one.bias is not None and any(numbers(one.bias)):
                raise ValueError("'bias' must be None or 0 for an output of ImageType")
            if one.grayscale_use_uint8:
                raise ValueError("'grayscale_use_uint8' can not be set on image output")
            if one.channel_first is not None:
                raise ValueError("'channel_first' must be None for an output of ImageType")
        _check_dtype(one, release, "outputs")
    names = [one.name for one in outputs]
    if any(name is None for name in names) and any(name is not None for name in names):
        raise ValueError('Either none or all the outputs must have the "name" argument specified')
    if names and names[0] is not None and len(set(names)) != len(names):
        raise ValueError("Duplicate names provided in 'outputs'")


def check_fp16_inputs(program: Any, given: list, release: str | None) -> None:
    """Inputs of fp16 need iOS 16, which must be asked for."""
    if release is not None or not hasattr(program, "graph_signature"):
        return
    names = list(program.graph_signature.user_inputs)
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    for at, name in enumerate(names):
        is_open = at >= len(given) or getattr(given[at], "dtype", None) is None and type(given[at]).__name__ == "TensorType"
        if is_open and str(getattr(values.get(name), "dtype", "")) == "torch.float16":
            raise ValueError(
                "To use fp16 input, please set minimum deployment target to iOS16+\n"
                f"hint: pass `minimum_deployment_target=ct.target.iOS16`, or `dtype=numpy.float32` for the input `{name}`"
            )


def check_outputs_of(program: Any, wanted: list) -> None:
    """The descriptions of outputs must fit the outputs of an exported program."""
    signature = getattr(program, "graph_signature", None)
    if not wanted or signature is None:
        return
    names = list(signature.user_outputs)
    if len(names) != len(wanted):
        raise ValueError(
            f"Number of outputs provided, {len(wanted)}, do not match the number of outputs detected in the model, "
            f"{len(names)}"
        )
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    for name, one in zip(names, wanted):
        shape = getattr(values.get(name), "shape", None)
        if type(one).__name__ == "ImageType" and shape is not None:
            sizes = [size if type(size) is int else RangeDim() for size in shape]
            check_image_shape(one, sizes, one.name or name, "output")


def check_states_of_target(states: list | None, convert_to: str | None, release: str | None) -> None:
    """States need iOS 18."""
    if not states:
        return
    if any(type(state).__name__ != "StateType" for state in states):
        raise ValueError("'states' must be a list of ct.StateType")
    if convert_to == "neuralnetwork" or (release is not None and not at_least(release, 18)):
        raise ValueError(
            "State model is supported only >= iOS18. Please update the minimum_deployment_target to at least "
            "coremltools.target.iOS18"
        )


def check_states(states: list | None, model: Any) -> None:
    """States are buffers, by their names. coremill finds them, so that they are only checked."""
    if not states or not hasattr(model, "named_buffers"):
        return
    buffers = dict(model.named_buffers())
    for state in states:
        if state.name not in buffers:
            raise ValueError(
                f"StateType named {state.name} not provided or not found in the source torch model. Please make sure the "
                "name in 'ct.StateType(name=..., wrapped_type=ct.TensorType(...))' match the 'named_buffers()' in the source "
                f"torch model: {list(buffers)}"
            )
        shape = tuple(buffers[state.name].shape)
        if state.shape is not None and not state.shape.has_symbolic and state.shape.default != shape:
            raise ValueError(f"StateType shape {state.shape.default} must match the torch buffer shape {shape}")
