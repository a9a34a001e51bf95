"""Exceptions. Every exception of this package is an `Error`."""

from __future__ import annotations


class RefusedCall:
    """A call that cannot be lowered, or that runs outside the delegates."""

    def __init__(
        self,
        *,
        node: str = "",
        operator: str = "",
        reason: str = "",
        hint: str | None = None,
        module: str | None = None,
        source: tuple[str, int, str | None] | None = None,
        kind: str = "refused",
    ) -> None:
        """Keeps what is known."""
        #: torch's name of the call.
        self.node = node
        #: The operator, `aten.histc.default` for instance.
        self.operator = operator
        #: Reason.
        self.reason = reason
        #: Suggested fix.
        self.hint = hint
        #: The path of the module that made the call.
        self.module = module
        #: The file, line and code of the model that made the call.
        self.source = source
        #: For a call outside delegates: `asked`, `refused` or `too_small`.
        self.kind = kind

    def __repr__(self) -> str:
        return f"<RefusedCall {self.operator} ({self.node}): {self.reason}>"

    def __str__(self) -> str:
        """The text that the command prints."""
        lines = [f"`{self.operator}` ({self.node}): {self.reason}"]
        if self.module:
            lines.append(f"  in module `{self.module}`")
        if self.source:
            file, line, code = self.source
            lines.append(f"  at {file}:{line}" + (f": {code}" if code else ""))
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return "\n".join(lines)


class Error(Exception):
    """Base class of coremill's exceptions, with a `hint` where one is known."""

    def __init__(
        self,
        message: str = "",
        *,
        hint: str | None = None,
        operator: str | None = None,
        reason: str | None = None,
        node: str | None = None,
        module: str | None = None,
        source: tuple[str, int, str | None] | None = None,
        refused: list[RefusedCall] | None = None,
        first_hint: str | None = None,
    ) -> None:
        """Keeps what is known."""
        super().__init__(message)
        #: Description of the fault.
        self.message = message
        #: The operator at fault.
        self.operator = operator
        #: Reason of the fault.
        self.reason = reason or message
        #: torch's name of the call at fault.
        self.node = node
        #: The path of the module that made the call.
        self.module = module
        #: The file, line and code of the model that made the call.
        self.source = source
        #: All calls at fault; the other attributes describe the first one.
        self.refused = refused or []
        #: Suggested fix.
        self.hint = hint or first_hint
        self._told = hint

    def __str__(self) -> str:
        """The text that the command prints."""
        return f"{self.message}\nhint: {self._told}" if self._told else self.message


class ConversionError(Error):
    """Calls of the program cannot be converted; `refused` lists them."""


class FormatError(Error):
    """A file or program is damaged, violates its format, or has an unsupported version."""


class OptionError(Error, ValueError):
    """An option or an argument is invalid."""


class InvalidModelError(Error):
    """Core ML would refuse the model; the message is the report of `check`."""


class VerificationError(Error):
    """The results of the model differ from those of the fp32 program."""


class RunError(Error, RuntimeError):
    """A run failed, or its inputs are invalid."""


class InternalError(Error, RuntimeError):
    """A bug in coremill. Please report it."""
