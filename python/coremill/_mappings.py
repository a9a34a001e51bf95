"""Dictionaries whose items belong to a model: assigning to one changes the model."""

from __future__ import annotations

# `typing` takes long to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn


class _Owned(dict):
    """A dictionary with a copy of a model's items; changes are applied to the model."""

    def __init__(self, owner: Any, content: dict) -> None:
        """`owner` is the model."""
        super().__init__(content)
        self._owner = owner

    def update(self, *others: Any, **named: Any) -> None:
        """Assigns several items."""
        for key, value in dict(*others, **named).items():
            self[key] = value

    def __ior__(self, other: Any) -> _Owned:
        self.update(other)
        return self

    def setdefault(self, key: str, default: Any = None) -> Any:
        """Assigns an item unless it exists."""
        if key not in self:
            self[key] = default
        return self[key]

    def __reduce__(self) -> tuple:
        return (dict, (dict(self),))


class States(_Owned):
    """The values that persist between predictions, by name: copies of the arrays. Assigning to a name sets the state.

    The arrays are read-only, because changes of a copy would be lost.
    """

    def __init__(self, owner: Any, content: dict) -> None:
        """`owner` has the method `set_state`."""
        for array in content.values():
            array.flags.writeable = False
        super().__init__(owner, content)

    def __setitem__(self, name: str, value: Any) -> None:
        self._owner.set_state(name, value)
        super().__setitem__(name, self._owner.states[name])

    def __delitem__(self, name: str) -> None:
        self._refuse()

    def pop(self, *_: Any) -> NoReturn:
        """States cannot be removed."""
        self._refuse()

    def popitem(self) -> NoReturn:
        """States cannot be removed."""
        self._refuse()

    def clear(self) -> None:
        """States cannot be removed."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        from coremill._errors import OptionError

        raise OptionError("states cannot be removed", hint="`reset()` sets them to their initial values")


class Metadata(_Owned):
    """Notes in a model's metadata, by key. Assigning to a key sets the note, deleting a key removes it."""

    def __setitem__(self, key: str, value: str) -> None:
        self._owner.metadata = {**self, key: value}
        super().__setitem__(key, value)

    def __delitem__(self, key: str) -> None:
        self._owner.metadata = {known: value for known, value in self.items() if known != key}
        super().__delitem__(key)

    def pop(self, key: str, *default: Any) -> Any:
        """Removes a note, and returns it."""
        if key not in self and default:
            return default[0]
        value = self[key]
        del self[key]
        return value

    def popitem(self) -> tuple:
        """Removes the last note, and returns key and note."""
        key = next(reversed(self))
        return key, self.pop(key)

    def clear(self) -> None:
        """Removes all notes."""
        self._owner.metadata = {}
        super().clear()
