"""Names of inputs and outputs that Core ML takes, as coremltools makes them."""

from __future__ import annotations

# `typing` takes long to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Names that Core ML does not allow.
RESERVED = frozenset(
    "any bf16 bool dict false fp16 fp32 fp64 func int16 int32 int64 int8 list program state string tensor true tuple uint16 uint32 "
    "uint64 uint8".split()
)


def allowed(name: str) -> str:
    """The name without characters that Core ML does not take; `state` is `state_workaround`."""
    name = "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in name)
    if name[:1].isdigit():
        name = f"var_{name}"
    return f"{name}_workaround" if name in RESERVED else name


def allowed_each(names: list) -> dict:
    """The allowed name of each name. All differ."""
    found: dict = {}
    for name in names:
        made = allowed(name)
        while made != name and made in {*names, *found.values()}:
            made += "_0"
        found[name] = made
    return found


def name_of_weight(name: str, is_fp16: bool) -> str:
    """coremltools' name of a weight: it marks those that it rounds."""
    return f"{name}_to_fp16" if is_fp16 else name


def with_allowed_names(described: list, kind: str) -> list:
    """Descriptions of inputs or outputs with allowed names. Warns about those that differ."""
    names = allowed_each([one.name for one in described if one.name])
    return [_renamed(one, names[one.name], kind) if one.name and names[one.name] != one.name else one for one in described]


def _renamed(one: Any, name: str, kind: str) -> Any:
    import copy
    import warnings

    warnings.warn(f"the {kind} `{one.name}` is renamed to `{name}` in the model: Core ML does not accept the name", stacklevel=4)
    made = copy.copy(one)
    made.name = name
    return made
