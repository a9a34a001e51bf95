"""Data about the weights of a model: their elements, and the operations that use them."""

from __future__ import annotations

# `typing` takes long to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ...models.model import MLModel

#: Types of numpy by the names of element types.
_DTYPES = {"fp16": "float16", "fp32": "float32", "bool": "bool", "int8": "int8", "uint8": "uint8",
           "int16": "int16", "uint16": "uint16", "int32": "int32", "uint32": "uint32"}  # fmt: skip


class CoreMLOpMetaData:
    """An operation that uses a weight."""

    def __init__(self, op_type: str, name: str, params_name_mapping: dict) -> None:
        """`params_name_mapping` are the names of weights by parameter."""
        self.op_type = op_type
        self.name = name
        self.params_name_mapping = params_name_mapping

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    __hash__ = None

    def __repr__(self) -> str:
        parameters = "".join(f", {key}={value}" for key, value in self.params_name_mapping.items())
        return f"{self.op_type}(name={self.name}{parameters}, ...)"


class CoreMLWeightMetaData:
    """The elements of a weight, the share of zeros, the number of distinct elements, and the operations that use it."""

    def __init__(
        self, val: Any, sparsity: float | None = None, unique_values: int | None = None, child_ops: list | None = None
    ) -> None:
        """Counts zeros and distinct elements unless their numbers are given."""
        import numpy

        if not isinstance(val, numpy.ndarray):
            raise TypeError(f"`val` must be an array, got {type(val).__name__}")
        self.val = val
        self.sparsity = float(numpy.mean(numpy.abs(val) <= 1e-12)) if sparsity is None else sparsity
        self.unique_values = len(numpy.unique(val)) if unique_values is None else unique_values
        self.child_ops = child_ops

    def __repr__(self) -> str:
        lines = [
            f"val: np.ndarray(shape={self.val.shape}, dtype={self.val.dtype})",
            f"sparsity: {self.sparsity}",
            f"unique_values: {self.unique_values}",
        ]
        if self.child_ops is not None:
            lines += ["child_ops: [", *(f"  {op}" for op in self.child_ops), "]"]
        return "\n".join(["[", *(f"  {line}" for line in lines), "]"])


class _MetaDataDict(dict):
    def __str__(self) -> str:
        return "\n".join(f"{name}\n{data}" for name, data in self.items())


def get_weights_metadata(mlmodel: MLModel, weight_threshold: int = 2048) -> dict:
    """The weights of a model with at least this number of elements, by name."""
    found = weights(mlmodel)
    large = {weight["name"] for weight in found if _count(weight) >= weight_threshold}
    data = _MetaDataDict()
    for weight in found:
        if weight["name"] not in large or weight["dtype"] not in _DTYPES:
            continue
        users = [
            CoreMLOpMetaData(
                user["op"], user["name"], {key: name for key, name in user["parameters"].items() if name in large}
            )
            for user in weight["users"]
        ]
        data[weight["name"]] = CoreMLWeightMetaData(elements(mlmodel, weight), child_ops=users)
    return data


def weights(mlmodel: MLModel) -> list:
    """The constants of a model: name, type, shape and users."""
    import json

    from coremill import _native

    return json.loads(_native.weights(mlmodel._one_program()))


def elements(mlmodel: MLModel, weight: dict) -> Any:
    """The elements of a constant."""
    import numpy

    from coremill import _native

    content = _native.weight(mlmodel._one_program(), weight["function"], weight["value"])
    return numpy.frombuffer(content, _DTYPES[weight["dtype"]]).reshape(weight["shape"])


def _count(weight: dict) -> int:
    count = 1
    for size in weight["shape"]:
        count *= size
    return count if weight["shape"] else 0
