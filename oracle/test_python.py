"""The Python package: programs handed over in memory, numbers on arrays, states, errors, Ctrl-C, threads, memory."""

import gc
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from executorch import exir
from torch import nn

import coremill
from oracle.test_pt2 import CASES, exported

TOLERANCE = {"rtol": 1e-3, "atol": 1e-3}
DOCUMENT = Path(__file__).parent.parent / "docs" / "python.md"


class Digits(nn.Module):
    """A small network with everything that a test needs: a convolution, a norm, a product."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.linear = nn.Linear(4 * 36, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(torch.relu(self.norm(self.conv(x))).flatten(1))


class Counter(nn.Module):
    """Adds up what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(2, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(x)
        return self.total * 2


class Refused(nn.Module):
    """Calls what Core ML does not have."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.svdvals(x) + torch.linalg.svdvals(x + 1)


def program(module: nn.Module, *inputs: torch.Tensor, **options: object) -> torch.export.ExportedProgram:
    torch.manual_seed(3)
    return torch.export.export(module.eval(), inputs, **options)


def digits() -> torch.export.ExportedProgram:
    torch.manual_seed(2)
    return program(Digits(), torch.rand(1, 1, 8, 8) - 0.3)


def files(path: Path) -> dict[str, bytes]:
    if path.is_file():
        return {"": path.read_bytes()}
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def made(source: object, path: Path, archive: Path) -> dict[str, bytes] | str:
    """What a program becomes, or why it does not."""
    try:
        coremill.convert(source).save(path)
    except coremill.Error as error:
        return str(error).replace(f"{archive}: ", "")
    return files(path)


@pytest.mark.parametrize("name", CASES)
def test_programs_in_memory_give_the_bytes_of_archives(name: str, tmp_path: Path) -> None:
    archive = tmp_path / "model.pt2"
    forms = [exported(name)]
    if name in ("mutating", "cond", "batch_dynamic"):
        forms.append(forms[0].run_decompositions())
    for form in forms:
        torch.export.save(form, archive)
        in_memory = made(form, tmp_path / "memory.mlpackage", archive)
        assert in_memory == made(archive, tmp_path / "archive.mlpackage", archive)


@pytest.mark.parametrize("name", ["mobilenet", "mutating", "batch_dynamic", "tied"])
def test_edge_programs_in_memory_give_the_bytes_of_archives(name: str, tmp_path: Path) -> None:
    edge = exir.to_edge(exported(name)).exported_program()
    archive = tmp_path / "edge.pt2"
    torch.export.save(edge, archive)
    in_memory = made(edge, tmp_path / "memory.mlpackage", archive)
    assert isinstance(in_memory, dict)
    assert in_memory == made(archive, tmp_path / "archive.mlpackage", archive)


def test_lowered_programs_in_memory_are_those_of_archives(tmp_path: Path) -> None:
    forms = digits()
    torch.export.save(forms, tmp_path / "model.pt2")
    coremill.lower(forms).save(tmp_path / "memory.pte")
    coremill.lower({"forward": tmp_path / "model.pt2"}).save(tmp_path / "archive.pte")
    assert files(tmp_path / "memory.pte") == files(tmp_path / "archive.pte")


def test_subclass_tensors_come_as_their_parts(tmp_path: Path) -> None:
    from torchao.quantization import IntxWeightOnlyConfig, PerAxis, quantize_

    torch.manual_seed(5)
    module = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 8))
    quantize_(module, IntxWeightOnlyConfig(weight_dtype=torch.int8, granularity=PerAxis(0)))
    x = torch.rand(2, 32) - 0.5
    form = program(module, x)
    torch.export.save(form, tmp_path / "model.pt2")
    in_memory = made(form, tmp_path / "memory.mlpackage", tmp_path / "model.pt2")
    assert isinstance(in_memory, dict)
    assert in_memory == made(tmp_path / "model.pt2", tmp_path / "archive.mlpackage", tmp_path / "model.pt2")
    found = coremill.convert(form, precision="fp32").predict({"input": x})
    torch.testing.assert_close(next(iter(found.values())), module(x), **TOLERANCE)


def test_predictions_are_those_of_torch() -> None:
    form = digits()
    model = coremill.convert(form, precision="fp32")
    x = torch.rand(1, 1, 8, 8) - 0.3
    expected = form.module()(x).detach()
    (found,) = model.predict({"x": x}).values()
    assert isinstance(found, torch.Tensor)
    torch.testing.assert_close(found, expected, **TOLERANCE)
    # Not contiguous, of another type, by keyword, and as a list.
    strided = np.asfortranarray(x.numpy().astype(np.float64))
    for given in (strided, x.numpy(), x.numpy().tolist()):
        (found,) = model.predict(x=given).values()
        assert isinstance(found, np.ndarray)
        np.testing.assert_allclose(found, expected.numpy(), **TOLERANCE)
    found[0, 0] = 7.0
    (again,) = model.predict(x=x.numpy()).values()
    assert again[0, 0] != 7.0


def test_saved_models_are_loaded_and_checked(tmp_path: Path) -> None:
    model = coremill.convert(digits(), author="somebody", metadata={"key": "value"}, verify=True)
    for name in ("Model.mlpackage", "Model.mlmodelc"):
        model.save(tmp_path / name)
        loaded = coremill.load(tmp_path / name)
        x = np.random.default_rng(1).random((1, 1, 8, 8), np.float32)
        one, two = model.predict(x=x), loaded.predict(x=x)
        assert all(np.array_equal(one[key], two[key]) for key in one)
        report = coremill.check(loaded)
        assert report.ok and "<pre>" in report._repr_html_()
    summary = model.inspect()
    assert summary["metadata"]["author"] == "somebody"
    assert summary["metadata"]["user_defined"]["key"] == "value"
    assert "coremill.Model" in repr(model) and "<table>" in model._repr_html_()
    comparison = coremill.compare(model, coremill.convert(digits(), precision="fp32"))
    assert comparison.ok and "SNR" in comparison._repr_html_()
    off = coremill.compare({"y": np.ones(3, np.float32)}, {"y": np.array([1, 2, 1], np.float32)})
    assert not off.ok


def test_states_persist_and_are_read_and_set(tmp_path: Path) -> None:
    form = program(Counter(), torch.ones(2, 3))
    model = coremill.convert(form, precision="fp32")
    x = np.arange(6, dtype=np.float32).reshape(2, 3) / 8
    model.predict(x=x)
    (second,) = model.predict(x=x).values()
    np.testing.assert_allclose(second, x * 4, **TOLERANCE)
    ((name, total),) = model.states.items()
    np.testing.assert_allclose(total, x * 2, **TOLERANCE)
    apart = model.session()
    (first,) = apart.predict(x=x).values()
    np.testing.assert_allclose(first, x * 2, **TOLERANCE)
    model.set_state(name, total * 0 + 1)
    (third,) = model.predict(x=x).values()
    np.testing.assert_allclose(third, (x + 1) * 2, **TOLERANCE)
    model.reset()
    assert not model.states[name].any()
    coremill.lower(form).save(tmp_path / "model.pte")
    method = coremill.load(tmp_path / "model.pte").method("forward")
    method(torch.from_numpy(x))
    found = method(torch.from_numpy(x))
    torch.testing.assert_close(found, torch.from_numpy(x * 4), rtol=1e-2, atol=1e-2)
    assert len(method.states) == 1
    method.reset()
    np.testing.assert_allclose(method(x), x * 2, rtol=1e-2, atol=1e-2)


def test_programs_are_divided_run_and_extracted(tmp_path: Path) -> None:
    form = digits()
    lowered = coremill.lower({"forward": form, "second": form}, constant_methods={"vocabulary": 32000}, target="ios18")
    assert sorted(lowered.methods) == ["forward", "second", "vocabulary"]
    x = torch.rand(1, 1, 8, 8) - 0.3
    torch.testing.assert_close(lowered.method("second")(x), form.module()(x).detach(), rtol=2e-2, atol=2e-2)
    assert lowered.method("vocabulary")() is not None
    (path,) = lowered.extract(tmp_path / "models")
    assert coremill.check(path).ok and coremill.check(lowered).ok
    divided = coremill.lower(form, skip_ops="aten.linear.default")
    outside = divided.report["forward"]["outside"]
    assert [call.operator for call in outside if call.kind == "asked"] == ["aten.linear.default"]
    assert "aten.linear" in str(divided.report) and "<table>" in divided.report._repr_html_()
    assert "forward" in repr(divided) and "<table>" in divided._repr_html_()


def test_weights_are_compressed(tmp_path: Path) -> None:
    torch.manual_seed(7)
    module = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32))
    x = torch.rand(3, 64) - 0.5
    form = program(module, x)
    model = coremill.convert(form)
    small, report = coremill.compress(model, linear="int8")
    assert report["bytes_after"] < report["bytes_before"] * 0.6
    (found,) = small.predict(input=x).values()
    torch.testing.assert_close(found, module(x).detach(), rtol=5e-2, atol=2e-2)
    assert all(weight["form"] for weight in report["weights"] if len(weight["shape"]) == 2)
    lowered, _ = coremill.compress(coremill.lower(form, target="ios18"), palettize=6, rules=[{"name": "*2*", "keep": True}])
    torch.testing.assert_close(lowered.method()(x), module(x).detach(), rtol=0.2, atol=5e-2)
    with pytest.raises(coremill.Error, match="int5"):
        coremill.compress(model, linear="int5")
    with pytest.raises(coremill.OptionError, match="unknown field"):
        coremill.compress(model, liner="int8")
    with pytest.raises(coremill.OptionError, match="nothing says"):
        coremill.compress(model)


def test_errors_say_what_where_and_what_to_do() -> None:
    with pytest.raises(coremill.ConversionError) as caught:
        coremill.convert(program(Refused(), torch.rand(3, 3)))
    error = caught.value
    assert error.operator and "svd" in error.operator
    assert error.reason and error.node
    assert error.source is not None and error.source[0] == __file__ and "svdvals" in (error.source[2] or "")
    assert len(error.refused) >= 2 and "cannot be lowered" in str(error) and __file__ in str(error)
    with pytest.raises(coremill.OptionError, match="(?s)`ios12`.*hint: releases are") as caught:
        coremill.convert(digits(), target="ios12")
    assert isinstance(caught.value, ValueError) and caught.value.hint


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda _: coremill.convert(Digits()), "export the module first"),
        (lambda _: coremill.convert(None), "NoneType"),
        (lambda _: coremill.convert("there/is/nothing.pt2"), "nothing"),
        (lambda form: coremill.convert(form, presicion="fp32"), "no option `presicion`"),
        (lambda form: coremill.convert(form, precision=16), "`precision` is 16"),
        (lambda form: coremill.convert(form, precision="int8"), "`int8`"),
        (lambda form: coremill.convert(form, shapes={"x": [10**30]}), "shapes"),
        (lambda form: coremill.convert(form, shapes={"y": [1, 1, 8, 8]}), "y"),
        (lambda form: coremill.convert(form, input_names=["a", "b"]), "2 names"),
        (lambda form: coremill.convert(form, verify="yes"), "verify"),
        (lambda form: coremill.convert(form, target=object()), "target"),
        (lambda form: coremill.lower({}), "no program"),
        (lambda form: coremill.lower(form, constant_methods={"n": 2**70}), "64 bits"),
        (lambda form: coremill.lower(form, compile_specs=[("no_key", b"1")]), "no_key"),
        (lambda form: coremill.lower(form, compile_specs=[3]), "key and value"),
        (lambda form: coremill.convert(form).save("no/directory/Model.mlpackage"), "no"),
        (lambda form: coremill.convert(form).save("model.zip"), "extension"),
        (lambda form: coremill.convert(form).predict({"x": np.ones((1, 1, 8))}), "x"),
        (lambda form: coremill.convert(form).predict({"y": np.ones((1, 1, 8, 8))}), "`y`"),
        (lambda form: coremill.convert(form).predict({3: 1}), "by name"),
        (lambda form: coremill.convert(form).predict({"x": object()}), "expected an array"),
        (lambda form: coremill.convert(form).predict({"x": np.ones((1, 1, 8, 8), np.complex64)}), "complex64"),
        (lambda form: coremill.convert(form).predict({}), "not given"),
        (lambda form: coremill.convert(form).session(precision="slow"), "slow"),
        (lambda form: coremill.lower(form).method("backward"), "backward"),
        (lambda form: coremill.lower(form).method()(1, 2, 3), "3 inputs"),
        (lambda _: coremill.load(__file__), ""),
    ],
)
def test_wrong_input_is_refused_by_name(call: object, message: str) -> None:
    with pytest.raises(coremill.Error, match=re.escape(message)) as caught:
        call(digits())
    assert not isinstance(caught.value, coremill.InternalError)


def test_altered_graphs_end_in_exceptions() -> None:
    """Whatever somebody did to a graph, no panic comes of it."""
    values = [None, 10**40, -1, "text", object(), float("nan"), [1, "a"], {"a": 1}, torch.float32, b"bytes", (1, (2,))]
    for at, value in enumerate(values * 3):
        form = digits()
        nodes = [node for node in form.graph.nodes if node.op == "call_function"]
        node = nodes[at % len(nodes)]
        if at % 3 == 0:
            node.args = (value, *node.args[1:])
        elif at % 3 == 1:
            node.meta["val"] = value
        else:
            node.kwargs = {"unknown": value}
        try:
            coremill.convert(form)
        except coremill.InternalError:
            raise
        except Exception as error:
            assert not type(error).__name__.startswith("Panic")


def test_weights_that_change_are_noticed(tmp_path: Path) -> None:
    module = Digits().eval()
    form = torch.export.export(module, (torch.rand(1, 1, 8, 8),))
    model = coremill.convert(form)
    with torch.no_grad():
        form.state_dict["linear.weight"].add_(1)
    with pytest.raises(coremill.Error, match="`linear.weight` was written to"):
        model.save(tmp_path / "Model.mlpackage")
    assert not (tmp_path / "Model.mlpackage").exists()
    coremill.convert(form).save(tmp_path / "Model.mlpackage")


def test_threads_share_a_model() -> None:
    form = digits()
    model = coremill.convert(form, precision="fp32")
    xs = [np.full((1, 1, 8, 8), index / 8, np.float32) for index in range(8)]
    expected = [next(iter(model.predict(x=x).values())) for x in xs]
    wrong = []

    def work(index: int) -> None:
        for _ in range(10):
            (found,) = model.predict(x=xs[index]).values()
            if not np.array_equal(found, expected[index]):
                wrong.append(index)
            coremill.convert(form)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_memory_stays_flat_over_conversions() -> None:
    form = digits()

    def resident() -> int:
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    if not Path("/proc/self/statm").exists():
        pytest.skip("the system does not tell in /proc how much memory a process has")
    for _ in range(20):
        coremill.convert(form)
    before = resident()
    for _ in range(200):
        coremill.convert(form)
    assert resident() - before < 16 << 20


SLOW = """
import os, signal, sys, threading, time
import torch, coremill
class Loop(torch.nn.Module):
    def forward(self, x):
        for _ in range(150):
            x = torch.sin(x @ x)
        return x
form = torch.export.export(Loop(), (torch.rand(64, 64),))
model = coremill.convert(form, precision="fp32")
session = model.session()
def interrupt():
    global at
    time.sleep(0.3)
    at = time.perf_counter()
    os.kill(os.getpid(), signal.SIGINT)
def work(what):
    while True:
        what()
for what in (lambda: session.predict(x=torch.rand(64, 64)), lambda: coremill.convert(form), lambda: model.save(sys.argv[1])):
    threading.Thread(target=interrupt).start()
    try:
        work(what)
    except KeyboardInterrupt:
        print(time.perf_counter() - at)
"""


def test_an_interrupt_ends_the_work(tmp_path: Path) -> None:
    script = [sys.executable, "-c", SLOW, str(tmp_path / "Model.mlpackage")]
    told = subprocess.run(script, capture_output=True, text=True, timeout=300, check=True)
    times = [float(line) for line in told.stdout.split()]
    # A tenth of a second, and what a busy machine adds.
    assert len(times) == 3 and max(times) < 0.3, times
    assert all(path.name == "Model.mlpackage" for path in tmp_path.iterdir())


def test_the_import_is_light() -> None:
    script = "import sys, time\nstart = time.perf_counter()\nimport coremill\nprint(time.perf_counter() - start)\n"
    script += "print([name for name in ('torch', 'executorch', 'coremltools', 'numpy', 'json') if name in sys.modules])"
    runs = [subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True) for _ in range(5)]
    outputs = [run.stdout.split("\n") for run in runs]
    assert {output[1] for output in outputs} == {"[]"}
    assert min(float(output[0]) for output in outputs) < 0.05


def test_progress_is_shown_at_terminals_and_in_notebooks(monkeypatch: pytest.MonkeyPatch) -> None:
    from coremill import _progress

    class Screen:
        closed = False
        written = ""

        def isatty(self) -> bool:
            return True

        def write(self, text: str) -> None:
            self.written += text

        def flush(self) -> None:
            pass

    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    shown = _progress.start()
    shown.update("converting", 1.2)
    shown.finish()
    assert "converting (1 s)" in screen.written and screen.written.endswith("\r\x1b[K")
    told = []

    class Display:
        @staticmethod
        def display(content: dict, **_: object) -> "Display":
            told.append(content["text/plain"])
            return Display()

        def update(self, content: dict, **_: object) -> None:
            told.append(content["text/plain"])

    notebook = _progress.Notebook(Display)
    notebook.update("running", 1.0)
    notebook.update("running", 1.1)
    notebook.update("running", 2.0)
    notebook.finish()
    assert told == ["running (1 s)", "running (2 s)", ""]


def test_an_interrupt_needs_no_handler_of_ours() -> None:
    """The package leaves the handling of signals as it was."""
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_types_are_those_of_the_module(tmp_path: Path) -> None:
    stubtest = [sys.executable, "-m", "mypy.stubtest", "coremill._native"]
    package = str(Path(coremill.__file__).parent.parent.absolute())
    environment = os.environ | {"MYPYPATH": package, "PYTHONPATH": package}
    told = subprocess.run(stubtest, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stdout + told.stderr


def test_the_snippets_of_the_guide_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snippets = re.findall(r"^```python\n(.*?)^```", DOCUMENT.read_text(), re.DOTALL | re.MULTILINE)
    assert len(snippets) >= 6
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for snippet in snippets:
        exec(compile(snippet, str(DOCUMENT), "exec"), names)
    assert (tmp_path / "Classifier.mlpackage" / "Manifest.json").is_file()
    assert (tmp_path / "classifier.pte").is_file()
