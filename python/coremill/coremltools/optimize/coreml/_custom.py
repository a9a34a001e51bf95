"""Palettization with a function of the caller: `OpPalettizerConfig(mode="custom", lut_function=...)`."""

from __future__ import annotations

from ._metadata import elements, weights

# `typing` takes long to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ...models.model import MLModel

#: coremltools writes smaller constants into the program.
_MIN_ELEMENTS = 10


def palettized(mlmodel: MLModel, rules: list, functions: list) -> Any:
    """The model whose weights are palettized by functions; `functions` has the configuration of each rule, or `None`."""
    from coremill import _native

    replaced = []
    for weight in weights(mlmodel):
        config = _config(weight, rules, functions)
        if config is not None:
            replaced.append(_tables(weight, elements(mlmodel, weight), config))
    return _native.with_indices(mlmodel._one_program(), replaced) if replaced else mlmodel._one_program()


def _config(weight: dict, rules: list, functions: list) -> Any:
    """The configuration of the first rule that selects a weight, if it has a function."""
    shape, users = weight["shape"], [user["op"] for user in weight["users"]]
    count = 1
    for size in shape:
        count *= size
    is_weight = len(shape) > 1 and weight["dtype"] in ("fp16", "fp32") and count >= _MIN_ELEMENTS and users
    if not is_weight or any(op.startswith("constexpr_") for op in users):
        return None
    for rule, config in zip(rules, functions):
        names = [weight["value"], weight["name"], *(user["name"] for user in weight["users"])]
        is_named = rule.get("name", weight["value"]) in names
        is_used = "op" not in rule or rule["op"] in users
        if is_named and is_used and count >= rule.get("min_elements", 0):
            return config
    return None


def _tables(weight: dict, values: Any, config: Any) -> tuple:
    """What `with_indices` takes for a weight: the tables and indices that the function returns for each group."""
    import numpy

    axis = _axis(weight, config)
    size = config.group_size if config.granularity == "per_grouped_channel" else 0
    size = size or values.shape[axis]
    if values.shape[axis] % size or size % config.cluster_dim:
        raise ValueError(f"group_size={size} does not divide the {values.shape[axis]} channels of {weight['value']}")
    swapped = numpy.swapaxes(values, 0, axis)
    tables, indices = [], []
    for group in numpy.split(swapped, swapped.shape[0] // size, axis=0):
        lut, places = config.lut_function(group)
        _check(lut, places, group, config.cluster_dim)
        tables.append(lut.reshape(-1, config.cluster_dim))
        indices.append(places.reshape(-1))
    most = max(len(lut) for lut in tables)
    bits = next((bits for bits in (1, 2, 3, 4, 6, 8) if 1 << bits >= most), None)
    if bits is None:
        raise ValueError(f"lut_function returned {most} entries for {weight['value']}; tables have at most 256")
    filled = numpy.zeros((len(tables), 1 << bits, config.cluster_dim), numpy.float32)
    for table, lut in zip(filled, tables):
        table[: len(lut)] = lut
    places = list(swapped.shape)
    places[0] //= config.cluster_dim
    order = numpy.swapaxes(numpy.concatenate(indices).reshape(places), 0, axis)
    shape = [1] * values.ndim
    shape[axis] = len(tables)
    shape += [1 << bits, config.cluster_dim]
    vector_axis = axis if config.cluster_dim > 1 else None
    content = numpy.ascontiguousarray(order).tobytes()
    return weight["function"], weight["value"], bits, shape, filled.reshape(-1).tolist(), content, vector_axis


def _axis(weight: dict, config: Any) -> int:
    """The axis of groups and vectors: that of the output channels unless it is given."""
    if config.channel_axis is not None:
        return config.channel_axis % len(weight["shape"])
    users = {user["op"] for user in weight["users"]}
    is_divided = config.granularity == "per_grouped_channel" or config.cluster_dim > 1
    if is_divided and "matmul" in users:
        raise ValueError(f"{weight['value']} is multiplied by `matmul`\nhint: pass `channel_axis`")
    return 1 if "conv_transpose" in users and is_divided else 0


def _check(lut: Any, indices: Any, values: Any, cluster_dim: int) -> None:
    import numpy

    if not isinstance(lut, numpy.ndarray) or not isinstance(indices, numpy.ndarray):
        raise ValueError("LUT and indices must be type of numpy array.")
    if indices.size * cluster_dim != values.size:
        raise ValueError(f"Indices size ({indices.size}) mismatched with the original weight({values.size}).")
    if len(indices.shape) != 1 or indices.dtype != numpy.uint8:
        raise ValueError(
            f"Indices must be a numpy vector of type uint8. Found shape {indices.shape} with type {indices.dtype}"
        )
    if lut.dtype != values.dtype:
        raise ValueError(f"Dtype mismatched between LUT ({lut.dtype}) and weight ({values.dtype})")
    if indices.size and int(indices.max()) * cluster_dim >= lut.size:
        raise ValueError(f"index {int(indices.max())} is not in the LUT, which has {lut.size // cluster_dim} entries")
