"""Selects the cases that run with every change; the others run on a schedule.

Every change runs a sample that contains each operator, scheme or module. With COREMILL_ALL_CASES=1, which the
scheduled workflow sets, everything runs.
"""

import os
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

Item = TypeVar("Item")

#: Whether everything runs.
ALL = bool(os.environ.get("COREMILL_ALL_CASES"))


def every(count: int) -> int:
    """The step of a sample of one in `count`."""
    return 1 if ALL else count


def sampled(items: Sequence[Item], count: int, key: Callable[[Item], Hashable]) -> list[Item]:
    """Every `count`-th item, followed by the first item of each key that is missing among them."""
    taken = list(items[:: every(count)])
    seen = {key(item) for item in taken}
    for item in items:
        if key(item) not in seen:
            seen.add(key(item))
            taken.append(item)
    return taken
