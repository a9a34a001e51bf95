"""What there is to know of models and programs, as data that prints itself."""

from __future__ import annotations

import html
import json
import os
from typing import Any, Union

from coremill import _native

Path = Union[str, "os.PathLike[str]"]


class Report(dict):
    """What the commands print with `--json`; prints itself for people, in notebooks, too."""

    def __init__(self, content: dict, text: str = "") -> None:
        """`text` is what the command prints for people."""
        super().__init__(content)
        self._text = text

    @property
    def ok(self) -> bool:
        """Of a check: whether Core ML would take the model."""
        diagnostics = self.get("diagnostics", [])
        return not any(diagnostic.get("severity") == "error" for diagnostic in diagnostics)

    def __str__(self) -> str:
        """For people."""
        return self._text or json.dumps(self, indent=2)

    def _repr_html_(self) -> str:
        if self._text:
            return f"<pre>{html.escape(self._text)}</pre>"
        return table(self)


def table(value: Any) -> str:
    """Data as tables within tables."""
    if isinstance(value, dict):
        rows = "".join(
            f"<tr><th style='text-align:left'>{html.escape(str(key))}</th><td>{table(item)}</td></tr>"
            for key, item in value.items()
        )
        return f"<table>{rows}</table>"
    if isinstance(value, list):
        if all(not isinstance(item, (dict, list)) for item in value):
            return html.escape(", ".join(map(str, value)))
        return "".join(map(table, value))
    return html.escape("" if value is None else str(value))


def opened(model: Any) -> Any:
    """A model or a program, read from a path if it is one."""
    return model if isinstance(model, (_native.Model, _native.Program)) else _native.load(model)


def inspect(model: Any) -> Report:
    """What a model or a program holds, counted, as `coremill inspect --json` prints it."""
    return Report(json.loads(opened(model)._summary()))


def check(model: Any) -> Report:
    """Everything that Core ML would refuse of a model, and what keeps it from running well."""
    model = opened(model)
    if isinstance(model, _native.Program):
        models = {name: check(inner) for name, inner in model.models.items()}
        content = {"format_version": 1, "models": models}
        content["diagnostics"] = [one for report in models.values() for one in report.get("diagnostics", [])]
        return Report(content, "\n".join(str(report) for report in models.values()))
    content, text = model._check()
    return Report(json.loads(content), text)


def extract(program: Any, directory: Path) -> list:
    """Writes the Core ML models of an ExecuTorch program into a directory, and gives their paths."""
    return opened(program).extract(os.fspath(directory))
