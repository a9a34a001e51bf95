"""Writes to values of a graph of `torch.fx`."""

from __future__ import annotations

from operator import getitem

# `typing` takes long to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def is_written(node: Any) -> bool:
    """Whether a call writes to a value or to a view of it."""
    for user in node.users:
        if user.target is getitem and is_written(user):
            return True
        schema = getattr(user.target, "_schema", None)
        if schema is None:
            continue
        known = {argument.name: value for argument, value in zip(schema.arguments, user.args)} | user.kwargs
        trains = known.get("training", known.get("use_input_stats", False)) is True
        for argument in schema.arguments:
            if known.get(argument.name) is not node:
                continue
            # The schemas of normalizations do not say that they update these.
            if trains and argument.name in ("running_mean", "running_var"):
                return True
            alias = argument.alias_info
            if alias is not None and (alias.is_write or is_written(user)):
                return True
    return False
