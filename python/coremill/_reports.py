"""What there is to know of models and programs, as data that prints itself."""

from __future__ import annotations

import os

from coremill import _native

# `typing` takes long to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Union

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
        import json

        return self._text or json.dumps(self, indent=2, default=str)

    def _repr_html_(self) -> str:
        return f"<pre>{_escape(self._text)}</pre>" if self._text else _table(self)


class Division(Report):
    """How methods were divided: by method its delegates, and the calls outside with the reasons."""

    def __str__(self) -> str:
        """A line for each method, and the calls outside."""
        lines = []
        for name, method in self.items():
            count = len(method["delegates"])
            lines.append(f"{name}: {count} delegate{'' if count == 1 else 's'}, {len(method['outside'])} calls outside")
            lines.extend(str(call) for call in method["outside"])
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = []
        for name, method in self.items():
            for call in method["outside"]:
                cells = (name, call.operator, call.module or "", call.reason)
                rows.append("".join(f"<td>{_escape(cell)}</td>" for cell in cells))
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        head = "<tr><th>method</th><th>outside</th><th>module</th><th>reason</th></tr>"
        counts = ", ".join(f"{_escape(name)}: {len(method['delegates'])}" for name, method in self.items())
        return f"<p>delegates: {counts}</p>" + (f"<table>{head}{body}</table>" if rows else "")


class Comparison(Report):
    """How far the outputs of two models lie apart, by output."""

    def __init__(self, content: dict, within: dict, bound: float) -> None:
        """`within` says of each output whether it is within the bound."""
        super().__init__(content)
        self.within = within
        #: How far outputs may lie apart, in parts of the largest element.
        self.bound = bound

    @property
    def ok(self) -> bool:
        """Whether all outputs are within the bound."""
        return all(self.within.values())

    def __str__(self) -> str:
        """A line for each output."""
        return "\n".join(
            f"{name}: {'ok' if self.within[name] else 'off'}, largest distance {figures['max_absolute']:.3g} "
            f"({figures['max_relative']:.3g} of the largest element)"
            for name, figures in self.items()
        )

    def _repr_html_(self) -> str:
        head = "<tr><th>output</th><th></th><th>max absolute</th><th>max relative</th><th>SNR dB</th></tr>"
        rows = "".join(
            f"<tr><td>{_escape(name)}</td><td>{'ok' if self.within[name] else 'off'}</td>"
            f"<td>{figures['max_absolute']:.3g}</td><td>{figures['max_relative']:.3g}</td>"
            f"<td>{'' if figures['snr_db'] is None else format(figures['snr_db'], '.1f')}</td></tr>"
            for name, figures in self.items()
        )
        return f"<table>{head}{rows}</table>"


def inspect(model: Any) -> Report:
    """What a model or a program holds, counted, as `coremill inspect --json` prints it."""
    import json

    return Report(json.loads(_opened(model)._summary()))


def check(model: Any) -> Report:
    """Everything that Core ML would refuse of a model, and what keeps it from running well."""
    import json

    model = _opened(model)
    if isinstance(model, _native.Program):
        models = {name: check(inner) for name, inner in model.models.items()}
        diagnostics = [one for report in models.values() for one in report.get("diagnostics", [])]
        text = "\n".join(str(report) for report in models.values())
        return Report({"format_version": 1, "models": models, "diagnostics": diagnostics}, text)
    content, text = model._check()
    return Report(json.loads(content), text)


def extract(program: Any, directory: Path) -> list:
    """Writes the Core ML models of an ExecuTorch program into a directory, and gives their paths."""
    return _opened(program).extract(os.fspath(directory))


def compare(reference: Any, other: Any, inputs: Any = None, *, bound: float = 1e-2, seed: int = 0) -> Comparison:
    """How far the outputs of two models lie apart on the same inputs, random ones if none are given.

    Each side is a model, a path, a dictionary of outputs by name, or a function that takes the inputs by name.
    Outputs are put side by side by their names, or in their order if their names differ.
    """
    import json

    sides = [_side(reference), _side(other)]
    if inputs is None:
        model = next((side for side in sides if isinstance(side, _native.Model)), None)
        if model is None and not all(isinstance(side, dict) for side in sides):
            raise _error("OptionError", "no inputs are given, and no side is a model that could tell of what kind they are")
        inputs = {} if model is None else random_inputs(model, seed)
    results = []
    for side in sides:
        if isinstance(side, _native.Model):
            results.append(side.predict(inputs))
        elif isinstance(side, dict):
            results.append(side)
        else:
            results.append(_named(side(**inputs)))
    left, right = results
    if left.keys() == right.keys():
        pairs = [(name, left[name], right[name]) for name in left]
    elif len(left) == len(right):
        pairs = [(name, one, two) for (name, one), two in zip(left.items(), right.values())]
    else:
        raise _error("OptionError", f"one side gives {len(left)} outputs, the other {len(right)}")
    content, within = {}, {}
    for name, one, two in pairs:
        figures, within[name] = _native.figures(one, two, bound)
        content[name] = json.loads(figures)
    return Comparison(content, within, bound)


def compress(
    model: Any, *, rules: Any = (), target: str | None = None, decompress: bool = False, **rule: Any
) -> tuple[Any, Report]:
    """Makes the weights of a model, or of the models in a program, smaller: the result, and what became of each weight.

    The words of a rule are those of `coremill compress`: `linear`, `per`, `block`, `mode`, `palettize`, `group`,
    `algorithm`, `vector`, `channel_scale`, `lut`, `prune`, `name`, `op`, `dtype`, `min_elements`, `max_elements`, `keep`.
    `rules` are dictionaries of these words, the first of which that selects a weight decides; the words that are given
    by themselves are the last rule.
    """
    import json

    rules = [dict(one) for one in rules]
    if rule:
        rules.append(rule)
    if not rules and not decompress:
        raise _error("OptionError", "nothing says what becomes of weights; pass `linear`, `palettize`, `prune` or `rules`")
    made, weights = _native.compress(_opened(model), json.dumps(rules), target, decompress)
    weights = json.loads(weights)
    before = sum(weight["bytes_before"] for weight in weights)
    after = sum(weight["bytes_after"] for weight in weights)
    return made, Report({"bytes_before": before, "bytes_after": after, "weights": weights})


def random_inputs(model: Any, seed: int = 0) -> dict:
    """Inputs that a model takes: floats in -1 to 1, integers 0 or 1."""
    import numpy

    random = numpy.random.default_rng(seed)
    function = inspect(model)["functions"][0]
    inputs = {}
    for feature in function["inputs"]:
        shape = feature["shape"] or []
        if not all(size.isdigit() for size in shape):
            raise _error("OptionError", f"input `{feature['name']}` has no fixed shape; pass `inputs`")
        sizes = [int(size) for size in shape]
        if (feature["dtype"] or "").startswith(("int", "uint", "bool")):
            inputs[feature["name"]] = random.integers(0, 2, sizes).astype(numpy.int32)
        else:
            inputs[feature["name"]] = random.uniform(-1, 1, sizes).astype(numpy.float32)
    return inputs


def describe(model: Any) -> str:
    """A model or a program in a line."""
    if isinstance(model, _native.Program):
        return f"<coremill.Program with the methods {', '.join(model.methods)}>"
    function = inspect(model)["functions"][0]
    names = [", ".join(feature["name"] for feature in function[key]) for key in ("inputs", "outputs")]
    return f"<coremill.Model ({names[0]}) -> ({names[1]}), {function['operations']} operations>"


def describe_html(model: Any) -> str:
    """A model or a program as a table."""
    summary = inspect(model)
    if isinstance(model, _native.Program):
        rows = "".join(
            f"<tr><td>{_escape(method['name'])}</td><td>{len(method['inputs'])}</td><td>{len(method['outputs'])}</td>"
            f"<td>{len(method['delegates'])}</td><td>{sum(call['count'] for call in method['kernels'])}</td></tr>"
            for method in summary["methods"]
        )
        head = "<tr><th>method</th><th>inputs</th><th>outputs</th><th>delegates</th><th>kernel calls</th></tr>"
        return f"<table>{head}{rows}</table>"
    rows = []
    for function in summary["functions"]:
        for kind in ("inputs", "outputs", "states"):
            for feature in function[kind]:
                shape = "×".join(feature["shape"] or [])
                cells = (function["name"], kind[:-1], feature["name"], feature["dtype"] or feature["kind"], shape)
                rows.append("<tr>" + "".join(f"<td>{_escape(cell)}</td>" for cell in cells) + "</tr>")
    counts = ", ".join(f"{function['operations']} operations" for function in summary["functions"])
    head = "<tr><th>function</th><th></th><th>name</th><th>type</th><th>shape</th></tr>"
    return f"<p>Core ML model, {counts}, {summary['weights']['bytes']} bytes of weights</p><table>{head}{''.join(rows)}</table>"


def _opened(model: Any) -> Any:
    """A model or a program, read from a path if it is one."""
    return model if isinstance(model, (_native.Model, _native.Program)) else _native.load(model)


def _side(side: Any) -> Any:
    """One of what is compared."""
    if isinstance(side, (dict, _native.Model)) or (callable(side) and not isinstance(side, _native.Program)):
        return side
    opened = _opened(side)
    return opened if isinstance(opened, _native.Model) else opened.method()


def _named(outputs: Any) -> dict:
    """What a function gives, by name."""
    if isinstance(outputs, dict):
        return outputs
    if not isinstance(outputs, (list, tuple)):
        outputs = [outputs]
    return {f"output_{index}": output for index, output in enumerate(outputs)}


def _error(name: str, message: str) -> Exception:
    from coremill import _errors

    return getattr(_errors, name)(message)


def _escape(text: Any) -> str:
    import html

    return html.escape(str(text))


def _table(value: Any) -> str:
    """Data as tables within tables."""
    if isinstance(value, dict):
        rows = "".join(
            f"<tr><th style='text-align:left'>{_escape(key)}</th><td>{_table(item)}</td></tr>"
            for key, item in value.items()
        )
        return f"<table>{rows}</table>"
    if isinstance(value, list):
        if all(not isinstance(item, (dict, list)) for item in value):
            return _escape(", ".join(map(str, value)))
        return "".join(map(_table, value))
    return _escape("" if value is None else value)
