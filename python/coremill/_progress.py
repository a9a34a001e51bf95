"""Shows the current step if it takes more than half a second, at a terminal or in a notebook."""

from __future__ import annotations

import sys
from typing import Any


class Progress:
    """Shows nothing, outside terminals and notebooks."""

    def update(self, stage: str, seconds: float) -> None:
        """Shows the current step and its duration."""

    def finish(self) -> None:
        """Removes the line."""


class Terminal(Progress):
    """A line at a terminal that is written over."""

    def update(self, stage: str, seconds: float) -> None:
        """Writes the line."""
        sys.stderr.write(f"\r\x1b[K{stage} ({seconds:.0f} s)")
        sys.stderr.flush()

    def finish(self) -> None:
        """Clears the line."""
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()


class Notebook(Progress):
    """A line below a cell."""

    def __init__(self, display: Any) -> None:
        """`display` is `IPython.display`."""
        self.module = display
        self.handle: Any = None
        self.shown = ""

    def update(self, stage: str, seconds: float) -> None:
        """Shows the line, at most once a second."""
        text = f"{stage} ({seconds:.0f} s)"
        if text == self.shown:
            return
        self.shown = text
        content = {"text/plain": text}
        if self.handle is None:
            self.handle = self.module.display(content, raw=True, display_id=True)
        else:
            self.handle.update(content, raw=True)

    def finish(self) -> None:
        """Empties the line."""
        if self.handle is not None:
            self.handle.update({"text/plain": ""}, raw=True)


def start() -> Progress:
    """The progress display for the environment."""
    ipython = sys.modules.get("IPython")
    if ipython is not None and "ipykernel" in sys.modules:
        import IPython.display

        return Notebook(IPython.display)
    stderr = sys.stderr
    if stderr is not None and not stderr.closed and stderr.isatty():
        return Terminal()
    return Progress()
