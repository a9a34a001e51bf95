"""Reports about models and programs, as data that prints as text."""

from __future__ import annotations

import os

from coremill import _native

# `typing` takes long to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Union

    Path = Union[str, "os.PathLike[str]"]


class Report(dict):
    """The `--json` output of a command. It prints as text, and as HTML in notebooks."""

    def __init__(self, content: dict, text: str = "") -> None:
        """`text` is the command's output for terminals."""
        super().__init__(content)
        self._text = text

    @property
    def ok(self) -> bool:
        """Whether Core ML would accept the model, for reports of `check`."""
        diagnostics = self.get("diagnostics", [])
        return not any(diagnostic.get("severity") == "error" for diagnostic in diagnostics)

    def __str__(self) -> str:
        """The report as text."""
        import json

        return self._text or json.dumps(self, indent=2, default=str)

    def _repr_html_(self) -> str:
        return f"<pre>{_escape(self._text)}</pre>" if self._text else _table(self)


def _aligned(rows: list) -> list:
    """Lines with columns of equal width; the last column has its own."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]) - 1)]
    return ["  ".join([*(cell.ljust(width) for cell, width in zip(row, widths)), row[-1]]).rstrip() for row in rows]


def _html_table(titles: tuple, rows: list) -> str:
    head = "".join(f"<th>{title}</th>" for title in titles)
    body = "".join("<tr>" + "".join(f"<td>{_escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


class Division(Report):
    """The partitions of methods: for each method its delegates, and the calls outside them with reasons."""

    def __str__(self) -> str:
        """A line for each method, and the calls outside delegates."""
        lines = []
        for name, method in self.items():
            count = len(method["delegates"])
            lines.append(f"{name}: {count} delegate{'' if count == 1 else 's'}, {len(method['outside'])} calls outside")
            lines.extend(str(call) for call in method["outside"])
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = [
            (name, call.operator, call.module or "", call.reason) for name, method in self.items() for call in method["outside"]
        ]
        counts = ", ".join(f"{_escape(name)}: {len(method['delegates'])}" for name, method in self.items())
        return f"<p>delegates: {counts}</p>" + (
            _html_table(("method", "outside", "module", "reason"), rows) if rows else ""
        )


class Comparison(Report):
    """The differences between the outputs of two models."""

    def __init__(self, content: dict, within: dict, bound: float, per_op: dict | None = None) -> None:
        """`within` contains whether each output is within the bound."""
        super().__init__(content)
        self.within = within
        #: Maximum difference of outputs relative to the largest element.
        self.bound = bound
        #: Comparison of every value that both compute, if requested: `PerOp`.
        self.per_op = None if per_op is None else PerOp(per_op)

    @property
    def ok(self) -> bool:
        """Whether all outputs are within the bound."""
        return all(self.within.values())

    def __str__(self) -> str:
        """A line for each output, and the start of the drift."""
        lines = [
            f"{name}: {'ok' if self.within[name] else 'off'}, largest distance {figures['max_absolute']:.3g} "
            f"({figures['max_relative']:.3g} of the largest element)"
            for name, figures in self.items()
        ]
        return "\n".join(lines) + ("" if self.per_op is None else f"\n\n{self.per_op}")

    def _repr_html_(self) -> str:
        rows = [
            (
                name, "ok" if self.within[name] else "off", f"{figures['max_absolute']:.3g}", f"{figures['max_relative']:.3g}",
                "" if figures["snr_db"] is None else format(figures["snr_db"], ".1f"),
            )
            for name, figures in self.items()
        ]  # fmt: skip
        return _html_table(("output", "", "max absolute", "max relative", "SNR dB"), rows) + ("" if self.per_op is None else self.per_op._repr_html_())


class PerOp(Report):
    """Two programs, value by value: `values` in the order of the second, and `drift_begins_at` as an index into them."""

    _TITLES = ("value", "op", "shape", "SNR", "")

    @property
    def drift(self) -> dict | None:
        """The first value below the threshold."""
        at = self["drift_begins_at"]
        return None if at is None else self["values"][at]

    def _cells(self) -> list:
        """A row for each value."""
        rows = []
        for at, value in enumerate(self["values"]):
            snr = value.get("snr_db")
            if "mismatch" in value:
                noise = value["mismatch"]
            elif snr is None:
                noise = "exact" if value["max_absolute"] == 0 else ""
            else:
                noise = f"{snr:.1f} dB"
            note = "← drift begins" if at == self["drift_begins_at"] else ""
            shape = "×".join(map(str, value["shape"]))
            rows.append((value["name"], value.get("op", ""), shape, noise, note))
        return rows

    def __str__(self) -> str:
        """A line for each value."""
        lines = _aligned([self._TITLES, *self._cells()])
        threshold, drift = self["threshold_db"], self.drift
        if drift is None:
            lines.append(f"no value is below {threshold:g} dB")
        else:
            lines.append(f"drift: `{drift['name']}` is the first value below {threshold:g} dB")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return _html_table(self._TITLES, self._cells())


class Choice(Report):
    """The result of `precision="auto"`: `cures`, and the agreement of the `outputs` with fp32."""

    def __init__(self, content: str) -> None:
        """`content` is JSON."""
        import json

        super().__init__(json.loads(content))

    def __str__(self) -> str:
        """A line for each cure and each output."""
        lines = [f"{self['samples']} sample{'' if self['samples'] == 1 else 's'}"]
        for cure in self["cures"]:
            place = f" in {cure['module']}" if cure.get("module") else ""
            lines.append(f"{cure['name']}{place}: {cure['reason']}; {cure['remedy']}; {cure['cost']}")
        for output in self["outputs"]:
            before, after = (_decibels(output[key]) for key in ("before", "after"))
            lines.append(f"output {output['name']}: {before} in fp16, {after} as written")
        return "\n".join(lines)


class Summary(Report):
    """The contents of a model or a program, with counts."""

    def __str__(self) -> str:
        """A line for each input, output, state, and kind of operation or kernel."""
        lines = []
        for method in self.get("methods", []):
            lines.append(f"method {method['name']}")
            for kind in ("inputs", "outputs"):
                lines.extend(f"  {kind[:-1]:6}  {_feature(one, str(at))}" for at, one in enumerate(method[kind]))
            lines.extend(f"  {one['backend']}  {one['model'] or ''}  {one['bytes']} bytes" for one in method["delegates"])
            lines.extend(f"  {call['operator']}  {call['count']}" for call in method["kernels"])
        for function in self.get("functions", []):
            lines.append(f"function {function['name']}  {function['opset']}")
            for kind in ("inputs", "outputs", "states"):
                lines.extend(f"  {kind[:-1]:6}  {_feature(one, one['name'])}" for one in function[kind])
            lines.append(f"  {function['operations']} operations and {function['constants']} constants")
            lines.extend(f"  {one['op']}  {one['count']}" for one in function["histogram"])
        if "weights" in self:
            lines.append(f"weights  {self['weights']['bytes']} bytes, {self['weights']['parameters']} parameters")
        metadata = self.get("metadata") or {}
        notes = [*metadata.items(), *(metadata.get("user_defined") or {}).items()]
        lines.extend(f"{key}: {value}" for key, value in notes if isinstance(value, str) and value)
        for model in self.get("models", []):
            lines.extend(["", f"model {model['name']}", str(Summary(model["summary"]))])
        return "\n".join(lines)


class Compression(Report):
    """The compressed form and the error of each weight."""

    def __str__(self) -> str:
        """A line for each weight."""
        rows = [("weight", "form", "bytes", "SNR")]
        for weight in self["weights"]:
            form = weight["form"] or "unchanged"
            size = f"{weight['bytes_before']} -> {weight['bytes_after']}"
            rows.append((weight["name"], str(form), size, "" if weight.get("snr") is None else f"{weight['snr']:.1f} dB"))
        return "\n".join([f"{self['bytes_before']} -> {self['bytes_after']} bytes", *_aligned(rows)])


class Quantization(Report):
    """The error of quantization: at the outputs (`model_db`), and for each of the `layers`, the largest first."""

    _TITLES = ("layer", "operation", "its output", "the model's", "")

    def _cells(self) -> list:
        """A row for each layer."""

        def decibels(value: float | None) -> str:
            return "" if value is None else f"{value:.1f} dB"

        return [
            (layer["name"], layer["op"], decibels(layer["layer_db"]), decibels(layer["model_db"]),
             "" if layer["kept"] is None else f"kept: {layer['kept']}")
            for layer in self["layers"]
        ]  # fmt: skip

    def _sum(self) -> str:
        layers = self["layers"]
        done = sum(layer["kept"] is None for layer in layers)
        text = f"{done} of {len(layers)} layers quantized, for {self['target']}, {self['samples']} samples"
        return text if self["model_db"] is None else f"{text}; {self['model_db']:.1f} dB at the outputs"

    def __str__(self) -> str:
        """A line for each layer."""
        return "\n".join([self._sum(), *_aligned([self._TITLES, *self._cells()])])

    def _repr_html_(self) -> str:
        return f"<p>{_escape(self._sum())}</p>{_html_table(self._TITLES, self._cells())}"


class Forecast(Report):
    """The `operations` with the devices that a cost model forecasts for them."""

    _TITLES = ("value", "op", "device", "cost", "")

    def _cells(self) -> list:
        """A row for each operation that runs somewhere."""
        return [
            (", ".join(one["outputs"]), one["operator"], one["preferred"], f"{one['cost'] or 0:.1%}", one.get("detail") or "")
            for one in self["operations"]
            if one["preferred"] is not None
        ]

    def _origin(self) -> str:
        return f"forecast for {self['forecast']['chip']}, not a record: {self['forecast']['accuracy']}"

    def __str__(self) -> str:
        """A line for each operation."""
        return "\n".join([self._origin(), *_aligned([self._TITLES, *self._cells()])])

    def _repr_html_(self) -> str:
        return f"<p>{_escape(self._origin())}</p>{_html_table(self._TITLES, self._cells())}"


def inspect(model: Any) -> Report:
    """Summarizes a model or a program as `coremill inspect --json` does."""
    import json

    return Summary(json.loads(_opened(model)._summary()))


def check(model: Any, *, device: str | None = None) -> Report:
    """Checks a model for errors that Core ML would report, and for slow or inaccurate operations.

    `device` is a chip or an iPhone, such as `"m4"`, `"a14"` or `"iphone17pro"`: only warnings that concern it are reported.
    By default, warnings are for every chip that the model's target allows. A warning about devices has the key `evidence`
    with chips, engines, systems, confidence and sources.
    """
    return check_on(model, device)


def check_on(model: Any, device: str | None) -> Report:
    """Like `check`, for the methods of models and programs."""
    import json

    model = _opened(model)
    if isinstance(model, _native.Program):
        models = {name: check_on(inner, device) for name, inner in model.models.items()}
        diagnostics = [one for report in models.values() for one in report.get("diagnostics", [])]
        text = "\n".join(str(report) for report in models.values())
        return Report({"format_version": 1, "models": models, "diagnostics": diagnostics}, text)
    content, text = model._check(device)
    return Report(json.loads(content), text)


def forecast(model: Any, device: str | None, neural_engine: bool) -> Forecast:
    """The forecast of a model's plan."""
    import json

    return Forecast(json.loads(model._forecast(device, neural_engine)))


def extract(program: Any, directory: Path) -> list:
    """Writes the Core ML models of an ExecuTorch program to a directory, and returns their paths."""
    return _opened(program).extract(os.fspath(directory))


def compare(
    reference: Any,
    other: Any,
    inputs: Any = None,
    *,
    bound: float = 1e-2,
    seed: int = 0,
    per_op: bool = False,
    numerics: Any = None,
    threshold: float = 40.0,
    precision: Any = None,
) -> Comparison:
    """Compares the outputs of two models on the same inputs, which are random by default.

    Each side is a model, a program, a `torch.export.ExportedProgram` (converted in fp32), the path of one of these, a
    dictionary of outputs by name, or a function that takes the inputs by name. Outputs are paired by name, or by order if
    the names differ. `numerics` is the arithmetic: `"fast"`, `"rounded"` to each type, `"ane"` as on the Neural Engine,
    `"coreml-cpu"` as Core ML computes on the CPU, or one of these for each side. `precision` is an older name.

    `per_op` also compares intermediate values. `threshold` is the signal-to-noise ratio, in decibels, below which a value
    is reported.
    """
    import json

    numerics = numerics or precision or "fast"
    precisions = (numerics, numerics) if isinstance(numerics, str) else tuple(numerics)
    if len(precisions) != 2:
        raise _error("OptionError", "`numerics` accepts one value for both sides, or two values")
    opened = [_comparable(side) for side in (reference, other)]
    sides = [_side(side, rounded) for side, rounded in zip(opened, precisions)]
    if inputs is None:
        model = next((side for side in opened if isinstance(side, _native.Model)), None)
        if model is None and not all(isinstance(side, dict) for side in sides):
            raise _error("OptionError", "`inputs` is required, because neither side is a model that describes them")
        inputs = {} if model is None else random_inputs(model, seed)
    results = []
    for side in sides:
        if isinstance(side, _native.Session):
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
        raise _error("OptionError", f"the first side has {len(left)} outputs, but the other has {len(right)}")
    content, within = {}, {}
    for name, one, two in pairs:
        figures, within[name] = _native.figures(one, two, bound)
        content[name] = json.loads(figures)
    values = json.loads(_native.per_op(*opened, inputs, precisions, threshold)) if per_op else None
    return Comparison(content, within, bound, values)


def compress(
    model: Any,
    *,
    rules: Any = (),
    target: str | None = None,
    decompress: bool = False,
    joint: bool = False,
    target_size: int | str | None = None,
    target_snr: float | None = None,
    **rule: Any,
) -> tuple[Any, Report]:
    """Compresses the weights of a model or a program. Returns the result and a report with the error of each weight.

    The fields of a rule are the options of `coremill compress`: `linear`, `per`, `block`, `mode`, `palettize`, `group`,
    `group_axis`, `algorithm`, `vector`, `channel_scale`, `lut`, `prune`, `prune_block`, `prune_dim`, `prune_least`,
    `name`, `op`, `dtype`, `min_elements`, `max_elements`, `keep`. `rules` are dictionaries of these fields; the first rule
    that selects a weight applies. Fields that are passed as keyword arguments form the last rule.

    `joint` compresses weights further that are compressed already: the elements that a pruned weight keeps become integers
    or indices, tables become integers, and quantized or palettized weights are pruned.

    `target_size`, in bytes or as `"12MB"`, chooses the bits of each weight so that all weights fit. `target_snr` chooses
    them so that each weight reaches a signal-to-noise ratio in decibels. Both use palettes, unless a rule has another form.
    """
    import json

    if target_size is not None and target_snr is not None:
        raise _error("OptionError", "`target_size` and `target_snr` are mutually exclusive; pass one of them")
    has_target = target_size is not None or target_snr is not None
    rules = [dict(one) for one in rules]
    if rule:
        if has_target and not {"linear", "palettize", "prune", "keep"} & set(rule):
            rule["palettize"] = 4
        rules.append(rule)
    elif has_target and not rules:
        rules.append({"palettize": 4})
    if not rules and not decompress:
        hint = "pass `linear`, `palettize`, `prune`, `target_size`, `target_snr`, `rules` or `decompress`"
        raise _error("OptionError", "no compression is selected", hint)
    try:
        text = json.dumps(rules)
    except (TypeError, ValueError) as failure:
        raise _error("OptionError", f"cannot convert a rule to JSON: {failure}") from None
    size = None if target_size is None else str(target_size)
    made, weights = _native.compress(_opened(model), text, target, decompress, size=size, snr=target_snr, joint=joint)
    weights = json.loads(weights)
    before = sum(weight["bytes_before"] for weight in weights)
    after = sum(weight["bytes_after"] for weight in weights)
    return made, Compression({"bytes_before": before, "bytes_after": after, "weights": weights})


def random_inputs(model: Any, seed: int = 0) -> dict:
    """Random inputs of a model: floats in -1 to 1, integers 0 or 1."""
    import numpy

    random = numpy.random.default_rng(seed)
    function = inspect(model)["functions"][0]
    inputs = {}
    for feature in function["inputs"]:
        sizes = feature["shape"] or []
        if not all(isinstance(size, int) for size in sizes):
            raise _error("OptionError", f"input `{feature['name']}` has no fixed shape; pass `inputs`")
        if (feature["dtype"] or "").startswith(("int", "uint", "bool")):
            inputs[feature["name"]] = random.integers(0, 2, sizes).astype(numpy.int32)
        else:
            inputs[feature["name"]] = random.uniform(-1, 1, sizes).astype(numpy.float32)
    return inputs


def describe(model: Any) -> str:
    """A line about a model or a program."""
    if isinstance(model, _native.Program):
        return f"<coremill.Program with the methods {', '.join(model.methods)}>"
    function = inspect(model)["functions"][0]
    names = [", ".join(feature["name"] for feature in function[key]) for key in ("inputs", "outputs")]
    return f"<coremill.Model ({names[0]}) -> ({names[1]}), {function['operations']} operations>"


def describe_html(model: Any) -> str:
    """A table about a model or a program."""
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
                shape = "×".join("?" if isinstance(size, dict) else str(size) for size in feature["shape"] or [])
                cells = (function["name"], kind[:-1], feature["name"], feature["dtype"] or feature["kind"], shape)
                rows.append("<tr>" + "".join(f"<td>{_escape(cell)}</td>" for cell in cells) + "</tr>")
    counts = ", ".join(f"{function['operations']} operations" for function in summary["functions"])
    head = "<tr><th>function</th><th></th><th>name</th><th>type</th><th>shape</th></tr>"
    return f"<p>Core ML model, {counts}, {summary['weights']['bytes']} bytes of weights</p><table>{head}{''.join(rows)}</table>"


def _opened(model: Any) -> Any:
    """A model or a program, read from a path if it is one."""
    return model if isinstance(model, (_native.Model, _native.Program)) else _native.load(model)


def _comparable(side: Any) -> Any:
    """One side of a comparison; a `torch.export.ExportedProgram` becomes an fp32 model."""
    is_path = isinstance(side, (str, os.PathLike))
    if hasattr(side, "graph_signature") or (is_path and os.fspath(side).endswith(".pt2")):
        return _native.convert(side, precision="fp32")
    return _opened(side) if is_path else side


def _side(side: Any, numerics: str) -> Any:
    """One side of a comparison, ready to run."""
    if isinstance(side, _native.Model):
        return side.session(numerics=numerics)
    if isinstance(side, _native.Program):
        return side.method(numerics=numerics)
    if isinstance(side, (dict, _native.Session)) or callable(side):
        return side
    raise _error("OptionError", f"a {type(side).__name__} cannot be compared", "pass a model, a program, or the path of one")


def _named(outputs: Any) -> dict:
    """The outputs of a function, by name."""
    if isinstance(outputs, dict):
        return outputs
    if not isinstance(outputs, (list, tuple)):
        outputs = [outputs]
    return {f"output_{index}": output for index, output in enumerate(outputs)}


def _error(name: str, message: str, hint: str | None = None) -> Exception:
    from coremill import _errors

    return getattr(_errors, name)(message, hint=hint)


def _decibels(value: float | None) -> str:
    return "exact" if value is None else f"{value:.1f} dB"


def _feature(feature: dict, name: str) -> str:
    """A line about an input, output or state."""
    shape = feature.get("accepts") or feature.get("shape") or []
    parts = (name, feature.get("dtype") or feature["kind"], " × ".join(map(str, shape)))
    return "  ".join(part for part in parts if part)


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
