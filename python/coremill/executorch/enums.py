"""coremltools' enumerations for users without coremltools.

The backend also accepts coremltools' members of the same name: members are compared by name and value, not by class.
coremltools is never imported from here.
"""

import sys
from enum import Enum, IntEnum


class target(IntEnum):
    """The oldest system that must run a model; the values are specification versions."""

    iOS13 = 4
    iOS14 = 5
    iOS15 = 6
    iOS16 = 7
    iOS17 = 8
    iOS18 = 9
    iOS26 = 10

    macOS10_15 = 4
    macOS10_16 = 5
    macOS11 = 5
    macOS12 = 6
    macOS13 = 7
    macOS14 = 8
    macOS15 = 9
    macOS26 = 10

    watchOS6 = 4
    watchOS7 = 5
    watchOS8 = 6
    watchOS9 = 7
    watchOS10 = 8
    watchOS11 = 9
    watchOS26 = 10

    tvOS13 = 4
    tvOS14 = 5
    tvOS15 = 6
    tvOS16 = 7
    tvOS17 = 8
    tvOS18 = 9
    tvOS26 = 10

    def __str__(self) -> str:
        # Messages contain a target as users write it, from either library.
        return f"coremltools.target.{self.name}"


class precision(Enum):
    """The precision of a model."""

    FLOAT16 = "float16"
    FLOAT32 = "float32"


class ComputeUnit(Enum):
    """The processors that a model may run on."""

    ALL = 1
    CPU_AND_GPU = 2
    CPU_ONLY = 3
    CPU_AND_NE = 4


_CLASSES = {
    "target": (target, "AvailableTarget"),
    "precision": (precision, "ComputePrecision"),
    "ComputeUnit": (ComputeUnit, "ComputeUnit"),
}


def is_member(value: object, kind: str) -> bool:
    """Whether ``value`` is a member of our enumeration ``kind``, or of coremltools'."""
    ours, theirs = _CLASSES[kind]
    if isinstance(value, ours):
        return True
    return (
        isinstance(value, Enum)
        and type(value).__module__.partition(".")[0] == "coremltools"
        and type(value).__name__ == theirs
    )


def member(value: object, kind: str) -> Enum:
    """Return ``value``, which has to be a member of the enumeration ``kind``."""
    if not is_member(value, kind):
        names = ", ".join(f"{kind}.{name}" for name in _CLASSES[kind][0].__members__)
        raise TypeError(
            f"found {value!r} for `{kind}`; expected one of {names} of "
            "`coremltools` or of `coremill.executorch`"
        )
    return value  # type: ignore[return-value]


def as_user_knows_it(value: Enum, kind: str) -> Enum:
    """Return coremltools' member for one of ours if the user has imported coremltools, else ours."""
    theirs = getattr(sys.modules.get("coremltools"), kind, None)
    return theirs[value.name] if theirs is not None else value
