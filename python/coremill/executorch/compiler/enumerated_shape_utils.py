"""Shapes that are enumerated for the inputs of a program, as a compile spec holds them."""

import json
from dataclasses import asdict, dataclass
from typing import Any, Dict, Iterator, List, Optional, Tuple, Union

import torch

#: Element types of inputs with enumerated shapes; Core ML converts other types to one of these.
_DTYPES = (torch.float16, torch.float32, torch.int32)


@dataclass(frozen=True, slots=True)
class _SymInt:
    """A size that varies, and its bounds; ``None`` where there is none."""

    key_name: str
    low: Optional[int]
    high: Optional[int]

    @classmethod
    def of(cls, size: torch.SymInt, constraints: Optional[Dict]) -> "_SymInt":
        name = _name(size)
        low = high = None
        for symbol, bounds in (constraints or {}).items():
            if _name(symbol) == name:
                low, high = _bound(bounds.lower), _bound(bounds.upper)
        return cls(name, low, high)


def _name(symbol: Any) -> str:
    text = str(symbol)
    return text[4:-1] if text.startswith("Sym(") and text.endswith(")") else text


def _bound(bound: Any) -> Optional[int]:
    text = str(bound).lstrip("-")
    return None if text in ("int_oo", "oo", "Infinity", "None") else int(bound)


@dataclass(frozen=True, slots=True)
class _SymbolicShape:
    """A shape of numbers and of sizes that vary."""

    shape: Tuple[Union[int, _SymInt], ...]

    @classmethod
    def from_shape_and_range_constraints(
        cls, shape: Any, range_constraints: Optional[Dict] = None
    ) -> "_SymbolicShape":
        sizes: List[Union[int, _SymInt]] = []
        for size in shape:
            if isinstance(size, torch.SymInt):
                sizes.append(_SymInt.of(size, range_constraints))
            elif isinstance(size, int):
                sizes.append(size)
            else:
                raise ValueError(f"Unexpected type found in shape: {type(size)}")
        return cls(tuple(sizes))

    def is_static_shape(self) -> bool:
        return not any(isinstance(size, _SymInt) for size in self.shape)

    def __len__(self) -> int:
        return len(self.shape)

    def __getitem__(self, key: int) -> Union[int, _SymInt]:
        return self.shape[key]

    def to_dict(self) -> Dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, d: Dict[str, Any]) -> "_SymbolicShape":
        if set(d) != {"shape"}:
            raise ValueError(f"expected the key `shape`, found the keys {sorted(d)}")
        sizes = (_SymInt(**size) if isinstance(size, dict) else size for size in d["shape"])
        return cls(tuple(sizes))


#: For each symbolic shape, its enumerated shapes and the inputs that have it.
_Map = Dict[_SymbolicShape, Tuple[List[List[int]], List[str]]]


class _SymbolicShapeToEnumeratedShapeMap:
    """The shapes that inputs of a symbolic shape may have."""

    def __init__(self, emap: _Map) -> None:
        self.emap = emap

    def to_json(self) -> str:
        return json.dumps([(shape.to_dict(), entry) for shape, entry in self.emap.items()])

    @classmethod
    def from_json(cls, s: str) -> "_SymbolicShapeToEnumeratedShapeMap":
        entries = ((_SymbolicShape.from_dict(shape), tuple(entry)) for shape, entry in json.loads(s))
        return cls(dict(entries))  # type: ignore[arg-type]

    @classmethod
    def from_exported_program(
        cls,
        ep: Any,
        enumerated_shapes: Dict[str, List[List[int]]],
        *,
        ignore_range_constraints: bool = False,
    ) -> "_SymbolicShapeToEnumeratedShapeMap":
        constraints = None if ignore_range_constraints else ep.range_constraints
        return cls(_enumerations(ep, enumerated_shapes, constraints))

    def __getitem__(self, key: _SymbolicShape) -> List[List[int]]:
        return self.emap[key][0]

    def __contains__(self, key: _SymbolicShape) -> bool:
        return key in self.emap

    def __repr__(self) -> str:
        return f"_SymbolicShapeToEnumeratedShapeMap(emap={self.emap})"


def _user_inputs(ep: Any) -> Iterator[Tuple[str, Any]]:
    names = set(ep.graph_signature.user_inputs)
    for node in ep.graph.nodes:
        if node.op == "placeholder" and node.name in names:
            yield node.name, node.meta["val"]


def _enumerations(
    ep: Any, enumerated_shapes: Dict[str, List[List[int]]], constraints: Optional[Dict]
) -> _Map:
    _require(len(enumerated_shapes) > 0, "No enumerated shapes provided")
    count = len(next(iter(enumerated_shapes.values())))
    for name, shapes in enumerated_shapes.items():
        _require(
            len(shapes) > 1,
            f"Input {name} only has {len(shapes)} enumerated shapes provided.  "
            "You should not specify enumerated shapes for inputs with only 1 input.",
        )
        _require(
            len(shapes) == count,
            f"Input {name} has {len(shapes)} enumerated shape provided, "
            f"but other inputs have {count} enumerated shapes",
        )
    inputs = list(_user_inputs(ep))
    unknown = sorted(set(enumerated_shapes) - {name for name, _ in inputs})
    _require(
        not unknown,
        f"Shapes are enumerated for {', '.join(unknown)}, which are not inputs of the program; "
        f"its inputs are {', '.join(name for name, _ in inputs)}",
    )
    found: _Map = {}
    for name, value in inputs:
        if not isinstance(value, torch.Tensor):
            continue
        symbolic = _SymbolicShape.from_shape_and_range_constraints(value.shape, constraints)
        if symbolic.is_static_shape():
            continue
        if name not in enumerated_shapes:
            raise ValueError(
                f"The input {name} has a symbolic shape, but you did not provide an enumeration for it"
            )
        shapes = enumerated_shapes[name]
        for shape in shapes:
            _check(name, value.shape, symbolic, shape)
        known, names = found.setdefault(symbolic, (shapes, []))
        _require(
            known == shapes,
            f"The symbolic shape {value.shape}, has multiple enumerations defined.  "
            f"A new enumeration is defined for input {name}, but the existing inputs {names} "
            "have a different one defined.  If these inputs have different enumerations, "
            "they should be exported with different symbolic shapes.",
        )
        names.append(name)
    return found


def _check(name: str, exported: Any, symbolic: _SymbolicShape, shape: List[int]) -> None:
    """Check that an input can have a shape."""
    _require(
        len(symbolic) == len(shape),
        f"In {name}, the rank of the enumeration is {len(shape)}, "
        f"but the symbolic shape has rank {len(symbolic)}",
    )
    for at, (size, wanted) in enumerate(zip(shape, symbolic.shape)):
        _require(isinstance(size, int), f"Enumerated shapes must be ints, but got {type(size)}.")
        _require(size >= 1, "Each enumerated shape dimension must be >= 1")
        if isinstance(wanted, int):
            _require(
                wanted == size,
                f"In {name}, the shape enumeration {shape} does not match {exported} "
                f"on the non-symbolic value at index {at}",
            )
            continue
        # torch uses 2 as the minimum size if the caller specified 1.
        is_low = wanted.low is not None and size < wanted.low and (size, wanted.low) != (1, 2)
        is_high = wanted.high is not None and size > wanted.high
        _require(
            not is_low and not is_high,
            f"In {name}, the shape enumeration {shape} violates the {'lower' if is_low else 'upper'} "
            f"range-constraint on the symbolic shape {exported} at index {at}",
        )


def check_inputs(ep: Any, emap: _SymbolicShapeToEnumeratedShapeMap, allows_several: bool) -> None:
    """Check that a program's inputs can have the shapes of a compile spec."""
    enumerated = 0
    for name, value in _user_inputs(ep):
        _require(
            value.dtype in _DTYPES,
            "When using enumerated shapes, all inputs must have one of the following dtypes "
            f"{list(_DTYPES)}, but {name} has dtype {value.dtype}",
        )
        shape = _SymbolicShape.from_shape_and_range_constraints(value.shape, ep.range_constraints)
        if shape.is_static_shape():
            continue
        _require(
            shape in emap,
            f"The shape of input {name} ({shape}) is not in the compile spec, which has {emap}",
        )
        enumerated += 1
    if enumerated > 1 and not allows_several:
        raise ValueError(
            f"Your program has {enumerated} enumerated inputs. "
            "Multiple enumerated inputs requires iOS18 or later: "
            "set minimum_deployment_target in the compile specs."
        )


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise AssertionError(message)
