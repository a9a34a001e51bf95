"""Compares conversions by `coremill.coremltools` with coremltools and torch: names, states, shape ranges, dates, op scopes."""

import datetime
from enum import Enum
from pathlib import Path

import coremltools
import numpy
import pytest
import torch

import coremill.coremltools as ct


class Counter(torch.nn.Module):
    """Adds its input to a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.tensor([1.0, 2.0, 3.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.state.add_(x)
        return self.state * 5


class Branches(torch.nn.Module):
    """Returns several outputs of nested modules."""

    def __init__(self) -> None:
        super().__init__()
        self.one = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU())
        self.two = torch.nn.Linear(3, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        y = self.one(x)
        return y, torch.softmax(y + self.two(x), -1), y.sum()


class Scope(Enum):
    """Members of coremltools' `ScopeSource`."""

    TORCHSCRIPT_MODULE_NAME = 1
    EXIR_STACK_TRACE = 3


@pytest.mark.parametrize("module", [torch.nn.ReLU(), torch.nn.Linear(3, 4), Branches(), torch.nn.Softmax(-1)])
def test_default_output_names_match_coremltools(module: torch.nn.Module) -> None:
    """Scripts read results by these names."""
    traced = torch.jit.trace(module.eval(), torch.rand(2, 3))
    names = []
    for package in (ct, coremltools):
        model = package.convert(traced, inputs=[package.TensorType(shape=(2, 3))], convert_to="mlprogram")
        names.append([output.name for output in model.get_spec().description.output])
    assert names[0] == names[1]


def test_traced_buffers_become_states_only_if_listed() -> None:
    """Otherwise, each prediction starts with the buffers' initial values, as in coremltools."""
    traced = torch.jit.trace(Counter(), torch.zeros(3))
    x = numpy.array([1.0, 1.0, 1.0], numpy.float32)
    inputs = [ct.TensorType(name="x", shape=(3,))]
    plain = ct.convert(traced, inputs=inputs, minimum_deployment_target=ct.target.iOS17)
    assert not plain._is_stateful()
    for _ in range(2):
        (found,) = plain.predict({"x": x}).values()
        numpy.testing.assert_array_equal(found, [10, 15, 20])
    states = [ct.StateType(ct.TensorType(shape=(3,)), name="state")]
    kept = ct.convert(traced, inputs=inputs, states=states, minimum_deployment_target=ct.target.iOS18)
    assert [state.name for state in kept.get_spec().description.state] == ["state_workaround"]
    state = kept.make_state()
    for count in (1, 2):
        (found,) = kept.predict({"x": x}, state=state).values()
        numpy.testing.assert_array_equal(found, [5 * count] * 3)
    for options in ({"minimum_deployment_target": ct.target.iOS17}, {"convert_to": "neuralnetwork"}):
        with pytest.raises(ValueError, match="State model is supported only >= iOS18"):
            ct.convert(traced, inputs=inputs, states=states, **options)


class Writer(torch.nn.Module):
    """Writes to a column of its first input, and returns the input."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x[:, 1] = 0.0
        return y.unsqueeze(0), x


def test_mutated_inputs_are_outputs_only_if_returned() -> None:
    """Regression: an input that the module mutates became an output in addition to the returned outputs."""
    traced = torch.jit.trace(Writer(), (torch.rand(2, 4), torch.rand(2, 3)))
    shapes = ((2, 4), (2, 3))
    models = []
    for package in (ct, coremltools):
        inputs = [package.TensorType(name=name, shape=shape) for name, shape in zip("xy", shapes, strict=True)]
        models.append(package.convert(traced, inputs=inputs, convert_to="mlprogram"))
    names = [[output.name for output in model.get_spec().description.output] for model in models]
    assert len(names[0]) == len(names[1])
    generator = numpy.random.default_rng(0)
    x, y = (generator.random(shape, numpy.float32) for shape in shapes)
    found = models[0].predict({"x": x, "y": y})
    expected = Writer()(torch.tensor(x), torch.tensor(y))
    for name, value in zip(names[0], expected, strict=True):
        numpy.testing.assert_allclose(found[name], value.numpy(), rtol=1e-3)


def test_non_buffer_batch_norm_statistics_are_constants() -> None:
    """Each prediction starts with the same statistics. Regression: they became states."""
    mean, variance = torch.tensor([0.5, -1.0]), torch.tensor([2.0, 0.5])

    class Normalization(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.batch_norm(x, mean, variance, training=True)

    torch.manual_seed(0)
    x = torch.randn(3, 2, 4)
    model = ct.convert(
        torch.jit.trace(Normalization(), x),
        inputs=[ct.TensorType(name="x", shape=tuple(x.shape))],
        outputs=[ct.TensorType(name="y")],
        minimum_deployment_target=ct.target.iOS18,
        compute_precision=ct.precision.FLOAT32,
    )
    assert not model._is_stateful()
    numpy.testing.assert_allclose(model.predict({"x": x})["y"], Normalization()(x), rtol=1e-4, atol=1e-5)


class Window(torch.nn.Module):
    """Writes a value to a slice of its input; the bounds of the slice are inputs."""

    def forward(self, x: torch.Tensor, begin: torch.Tensor, end: torch.Tensor) -> torch.Tensor:
        x[:, begin:end] = torch.tensor([2.0]).view(1, 1)
        x[:, 0] = 1.0
        return x


def test_traced_slice_writes_keep_dynamic_dimensions() -> None:
    """Tracing records the sizes of the written slice as constants, which must not fix dynamic dimensions."""
    torch.manual_seed(0)
    bounds = [torch.tensor([bound], dtype=torch.int32) for bound in (1, 3)]
    traced = torch.jit.trace(Window(), (torch.rand(2, 5), *bounds))
    model = ct.convert(
        traced,
        inputs=[
            ct.TensorType(name="x", shape=(ct.RangeDim(1, 8), ct.RangeDim(4, 8))),
            *(ct.TensorType(name=name, shape=(1,), dtype=numpy.int32) for name in ("begin", "end")),
        ],
        outputs=[ct.TensorType(name="y")],
        compute_precision=ct.precision.FLOAT32,
    )
    for shape, begin, end in [((2, 5), 1, 3), ((1, 8), 2, 7), ((8, 4), 0, 4)]:
        x, begin, end = torch.rand(*shape), *(torch.tensor([bound], dtype=torch.int32) for bound in (begin, end))
        found = model.predict({"x": x, "begin": begin, "end": end})["y"]
        numpy.testing.assert_array_equal(found, Window()(x.clone(), begin, end))


class Reader(torch.nn.Module):
    """Reads a buffer that is listed as a state, which the app writes to, and a buffer that is not listed."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(2, 3, dtype=torch.float16))
        self.register_buffer("offset", torch.full((3,), 0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.cache.to(x.dtype) * 2 + x + self.offset


def test_read_only_states_are_supported(tmp_path: Path) -> None:
    """Only the app writes to these states. They are initially zero, even if the buffer changes before the model is saved."""
    traced = torch.jit.trace(Reader(), torch.ones(3))

    def converted(package: object) -> object:
        return package.convert(
            traced,
            inputs=[package.TensorType(name="x", shape=(3,))],
            outputs=[package.TensorType(name="y", dtype=numpy.float32)],
            states=[package.StateType(package.TensorType(shape=(2, 3), dtype=numpy.float16), name="cache")],
            minimum_deployment_target=package.target.iOS18,
            skip_model_load=True,
        )

    ours, theirs = converted(ct), converted(coremltools)
    assert str(ours.get_spec().description.state) == str(theirs.get_spec().description.state)
    block = next(iter(ours.get_spec().mlProgram.functions["main"].block_specializations.values()))
    kinds = [op.type for op in block.operations]
    assert kinds.count("read_state") == 1 and "write_state" not in kinds
    with torch.no_grad():
        traced.cache.add_(1)
    ours.save(str(tmp_path / "Reader.mlpackage"))
    state, x = ours.make_state(), numpy.array([1.0, 2.0, 3.0], numpy.float32)
    for value in (None, 4, -1):
        if value is not None:
            state.write_state("cache", numpy.full((2, 3), value, numpy.float16))
        for _ in range(2):
            found = ours.predict({"x": x}, state=state)["y"]
            numpy.testing.assert_allclose(found, numpy.tile(x + 0.5 + 2 * (value or 0), (2, 1)), rtol=1e-3)


class Resized(torch.nn.Module):
    """Resizes a constant and an image to sizes that the traced graph computes with tensors."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        options = {"scale_factor": (3.6, 0.7), "mode": "bilinear", "align_corners": True, "recompute_scale_factor": True}
        return tuple(torch.nn.functional.interpolate(one, **options) for one in (torch.ones_like(x), x * 2))


@pytest.mark.parametrize("is_open", [False, True])
def test_traced_interpolate_avoids_fp32_size_rounding(is_open: bool) -> None:
    """Sizes equal torch's. The fp32 value of 3.6 is less than 3.6, so a product in fp32 could floor to a smaller size."""
    torch.manual_seed(0)
    traced = torch.jit.trace(Resized(), torch.rand(1, 3, 9, 22))
    sizes = (ct.RangeDim(4, 30, default=9), ct.RangeDim(4, 30, default=22)) if is_open else (9, 22)
    model = ct.convert(
        traced,
        inputs=[ct.TensorType(name="x", shape=(1, 3, *sizes))],
        outputs=[ct.TensorType(name="ones"), ct.TensorType(name="y")],
        compute_precision=ct.precision.FLOAT32,
    )
    for shape in [(9, 22), (10, 10), (5, 4), (30, 20)] if is_open else [(9, 22)]:
        x = torch.rand(1, 3, *shape)
        found = model.predict({"x": x})
        for name, expected in zip(("ones", "y"), Resized()(x), strict=True):
            numpy.testing.assert_allclose(found[name], expected, rtol=1e-5, atol=1e-5)


class Masked(torch.nn.Module):
    """Selects elements with constant masks, and writes to masked elements."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows = torch.tensor([[True, False, True], [False, True, False]])
        y = x * 2
        y[rows] = 0.5
        return x[[True, True], :, [False, True, False, True]], y


def test_traced_constant_boolean_masks_match_torch() -> None:
    """torch treats the number of elements that a mask selects as data-dependent, even if the mask is constant."""
    torch.manual_seed(0)
    x = torch.rand(2, 3, 4)
    model = ct.convert(
        torch.jit.trace(Masked(), x),
        inputs=[ct.TensorType(name="x", shape=(2, 3, 4))],
        outputs=[ct.TensorType(name="selected"), ct.TensorType(name="written")],
        compute_precision=ct.precision.FLOAT32,
    )
    found = model.predict({"x": x})
    for name, expected in zip(("selected", "written"), Masked()(x), strict=True):
        numpy.testing.assert_array_equal(found[name], expected)


class Recurrent(torch.nn.Module):
    """A recurrent layer over a sequence in the last dimension."""

    def __init__(self, kind: type, **options: object) -> None:
        super().__init__()
        self.layer = kind(4, 5, batch_first=True, **options)
        self.head = torch.nn.Conv1d(10 if options.get("bidirectional") else 5, 2, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y, states = self.layer(x.transpose(1, 2))
        return self.head(y.transpose(1, 2)), states[0] if isinstance(states, tuple) else states


@pytest.mark.parametrize("is_traced", [True, False])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (torch.nn.LSTM, {"bidirectional": True, "num_layers": 2}),
        (torch.nn.LSTM, {}),
        (torch.nn.GRU, {}),
        (torch.nn.RNN, {"nonlinearity": "tanh"}),
        (torch.nn.RNN, {"nonlinearity": "relu"}),
    ],
)
def test_recurrent_layers_take_sequences_of_any_length(kind: type, options: dict, is_traced: bool) -> None:
    """Traced and plain modules convert, although `torch.export` rejects a dynamic length for these layers."""
    torch.manual_seed(0)
    module = Recurrent(kind, **options).eval()
    model = ct.convert(
        torch.jit.trace(module, torch.rand(1, 4, 6)) if is_traced else module,
        inputs=[ct.TensorType(name="x", shape=(1, 4, ct.RangeDim(1, 40)))],
        outputs=[ct.TensorType(name="y"), ct.TensorType(name="last")],
        compute_precision=ct.precision.FLOAT32,
    )
    array = model.get_spec().description.input[0].type.multiArrayType
    assert list(array.shape) == [1, 4, 1] and array.shapeRange.sizeRanges[2].upperBound == 40
    for length in (1, 6, 40):
        x = torch.rand(1, 4, length)
        for found, expected in zip(model.predict({"x": x}).values(), module(x), strict=True):
            numpy.testing.assert_allclose(found, expected.detach(), rtol=1e-4, atol=1e-5)
    with pytest.raises(torch._dynamo.exc.UserError):
        torch.export.export(module, (torch.rand(1, 4, 6),), dynamic_shapes=({2: torch.export.Dim("n")},))


class Fixed(torch.nn.Module):
    """Converts the size of its input to a Python number."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(-1) * torch.arange(float(int(x.shape[0]) * 3))


def test_warns_when_torch_specializes_dynamic_dimension() -> None:
    """The fixed size is the default size. Another size is an error: `test_error_names_dynamic_dimension_fixed_by_layer`."""
    traced = torch.jit.trace(Fixed(), torch.rand(4, 3))
    with pytest.warns(UserWarning, match="torch fixes dimension 0 of `x` at 4"):
        model = ct.convert(traced, inputs=[ct.TensorType(name="x", shape=(ct.RangeDim(2, 9, default=4), 3))])
    assert not model.get_spec().description.input[0].type.multiArrayType.HasField("shapeRange")
    x = torch.rand(4, 3)
    numpy.testing.assert_allclose(*model.predict({"x": x}).values(), Fixed()(x), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("is_loaded", [False, True])
def test_converts_traced_fp16_modules(is_loaded: bool, tmp_path: Path) -> None:
    """Traced with fp16 weights and inputs, as language models are."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 3)).half().eval()
    traced = torch.jit.trace(module, torch.rand(2, 4, dtype=torch.float16))
    if is_loaded:
        traced.save(str(tmp_path / "module.pt"))
        traced = str(tmp_path / "module.pt")
    model = ct.convert(
        traced,
        inputs=[ct.TensorType(name="x", shape=(2, 4), dtype=numpy.float16)],
        outputs=[ct.TensorType(name="y", dtype=numpy.float16)],
        minimum_deployment_target=ct.target.iOS16,
    )
    x = torch.rand(2, 4, dtype=torch.float16)
    found = model.predict({"x": x.numpy()})["y"]
    assert found.dtype == numpy.float16
    numpy.testing.assert_allclose(found, module(x).detach(), rtol=2e-2, atol=2e-3)


class Halves(torch.nn.Module):
    """Two inputs, two outputs."""

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return first * 2, second + 1


@pytest.mark.parametrize("is_exported", [False, True])
@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        (("a.b", "c"), ("logits/0", "1x")),
        (("state", "x-y"), ("list", "fp16")),
        (("a.b", "a_b"), ("p q", "p_q")),
    ],
)
def test_invalid_names_are_sanitized_as_in_coremltools(inputs: tuple, outputs: tuple, is_exported: bool) -> None:
    example = torch.rand(3), torch.rand(4)

    def converted(package: object) -> object:
        module = Halves().eval()
        model = torch.export.export(module, example) if is_exported else torch.jit.trace(module, example)
        return package.convert(
            model,
            inputs=[package.TensorType(name=name, shape=tuple(x.shape)) for name, x in zip(inputs, example, strict=True)],
            outputs=[package.TensorType(name=name) for name in outputs],
            skip_model_load=True,
        )

    with pytest.warns(UserWarning, match="Core ML does not accept the name"):
        ours = converted(ct)
    description = ours.get_spec().description
    names = [[feature.name for feature in part] for part in (description.input, description.output)]
    # coremltools cannot convert inputs whose sanitized names are equal.
    if not is_exported and "a_b" not in inputs:
        theirs = converted(coremltools).get_spec().description
        assert names == [[feature.name for feature in part] for part in (theirs.input, theirs.output)]
    found = ours.predict(dict(zip(names[0], example, strict=True)))
    for name, expected in zip(names[1], Halves()(*example), strict=True):
        numpy.testing.assert_allclose(found[name], expected, rtol=2e-3, atol=2e-3)


def test_writes_through_views_update_buffer() -> None:
    """The module writes to a view of a buffer, and reads the buffer afterwards."""

    class Table(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("rows", torch.arange(6.0).reshape(2, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            before = self.rows * 1
            self.rows[1].mul_(x)
            return self.rows + before

    x = torch.tensor([2.0, 3.0, 4.0])
    expected = Table()(x)
    traced = torch.jit.trace(Table(), torch.ones(3), check_trace=False)
    traced.rows.copy_(torch.arange(6.0).reshape(2, 3))
    model = ct.convert(traced, inputs=[ct.TensorType(name="x", shape=(3,))])
    for _ in range(2):
        (found,) = model.predict({"x": x}).values()
        numpy.testing.assert_array_equal(found, expected)


def test_shape_ranges_come_from_program_or_inputs() -> None:
    """Unbounded dimensions get the same upper bound as in coremltools: 2**31 - 1."""
    module = torch.nn.Linear(3, 5).eval()
    limits = {}
    cases = {
        "open": (torch.export.Dim("n"), None),
        "bounded": (torch.export.Dim("n", min=2, max=9), None),
        "given": (torch.export.Dim("n"), [ct.TensorType(shape=(ct.RangeDim(2, 7, default=2), 3))]),
        "fixed": (torch.export.Dim("n"), [ct.TensorType(shape=(4, 3))]),
    }
    for name, (dim, inputs) in cases.items():
        program = torch.export.export(module, (torch.rand(2, 3),), dynamic_shapes={"input": {0: dim}})
        model = ct.convert(program, inputs=inputs)
        array = model.get_spec().description.input[0].type.multiArrayType
        limits[name] = [(one.lowerBound, one.upperBound) for one in array.shapeRange.sizeRanges]
        x = torch.rand(4, 3)
        (found,) = model.predict({"input": x}).values()
        numpy.testing.assert_allclose(found, module(x).detach(), rtol=1e-2, atol=2e-3)
    assert limits == {
        "open": [(0, 2**31 - 1), (3, 3)],
        "bounded": [(2, 9), (3, 3)],
        "given": [(2, 7), (3, 3)],
        "fixed": [],
    }
    program = torch.export.export(module, (torch.rand(2, 3),), dynamic_shapes={"input": {0: torch.export.Dim("n")}})
    model = ct.convert(program, inputs=cases["given"][1])
    with pytest.raises(RuntimeError, match=r"Size \(8\) of dimension \(0\)"):
        model.predict({"input": torch.rand(8, 3)})


def test_exported_programs_accept_scalar_and_fp16_inputs() -> None:
    """A scalar input becomes an array of one element, and its name gets a suffix, as in coremltools."""

    class Next(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    model = ct.convert(torch.export.export(Next(), (torch.tensor(2.0),)))
    (found,) = model.predict({"x_wrapped_as_tensor_for_coreml": numpy.array([4.0])}).values()
    assert found == 5
    half = torch.export.export(Next(), (torch.rand(2).half(),))
    with pytest.raises(ValueError, match=r"please set minimum deployment target to iOS16\+"):
        ct.convert(half)
    for options in ({"minimum_deployment_target": ct.target.iOS16}, {"inputs": [ct.TensorType(dtype=numpy.float32)]}):
        (found,) = ct.convert(half, **options).predict({"x": numpy.array([1.0, 2.0])}).values()
        numpy.testing.assert_array_equal(found, [2, 3])


def test_conversion_date_honors_source_date_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """With `SOURCE_DATE_EPOCH`, packages do not depend on the current date."""
    key = "com.github.apple.coremltools.conversion_date"
    program = torch.export.export(torch.nn.ReLU(), (torch.rand(2),))
    assert ct.convert(program).user_defined_metadata[key] in {
        str(datetime.date.today() - datetime.timedelta(days)) for days in (0, 1)
    }
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    assert ct.convert(program).user_defined_metadata[key] == "1970-01-02"


def test_op_scopes_hold_module_names_and_source_lines() -> None:
    """Checks `op.scopes` in the program of a model and in `op_selector`."""
    program = torch.export.export(Branches().eval(), (torch.rand(2, 3),))
    function = ct.convert(program)._mil_program.functions["main"]
    (linear, *_) = function.find_ops(op_type="linear")
    assert linear.scopes[Scope.TORCHSCRIPT_MODULE_NAME][:2] == ["one", "one.0"]
    assert linear.scopes[Scope.EXIR_STACK_TRACE][0].splitlines()[-1].strip() == "y = self.one(x)"
    (softmax,) = function.find_ops(op_type="softmax")
    assert softmax.scopes[Scope.EXIR_STACK_TRACE][0].splitlines()[-1].strip() == "return y, torch.softmax(y + self.two(x), -1), y.sum()"
    assert list(function.inputs) == ["x"]

    def selector(op: object) -> bool:
        return "two" not in op.scopes[Scope.TORCHSCRIPT_MODULE_NAME]

    precision = ct.transform.FP16ComputePrecision(op_selector=selector)
    block = ct.convert(program, compute_precision=precision)._mil_program.functions["main"]
    spec = ct.convert(program, compute_precision=precision).get_spec().mlProgram.functions["main"]
    types = {op.outputs[0].name: op.outputs[0].type.tensorType.dataType for op in spec.block_specializations[spec.opset].operations}
    found = {op.scopes[Scope.TORCHSCRIPT_MODULE_NAME][0]: types[op.name] for op in block.find_ops(op_type="linear")}
    assert found == {"one": 10, "two": 11}


def test_validates_pass_pipeline_options() -> None:
    """Invalid options cause the same errors as in coremltools."""
    program = torch.export.export(torch.nn.ReLU(), (torch.rand(2),))
    pipeline = ct.PassPipeline()
    pipeline.set_options("common::fuse_conv_batchnorm", {"skip_ops_by_type": "conv"})
    with pytest.raises(NotImplementedError, match="`fuse_conv_batchnorm` doesn't support option `skip_ops_by_type`"):
        ct.convert(program, pass_pipeline=pipeline)
    pipeline = ct.PassPipeline()
    pipeline.set_options("common::const_elimination", {"skip_const_by_size": "some"})
    with pytest.raises(ValueError, match="Expected to get float threshold, but got `some`"):
        ct.convert(program, pass_pipeline=pipeline)
    pipeline.set_options("common::const_elimination", {"skip_const_by_size": "1e8"})
    ct.convert(program, pass_pipeline=pipeline)
    with pytest.raises(ValueError, match="already has associated options"):
        pipeline.set_options("common::const_elimination", {}, override=False)


@pytest.mark.parametrize("name", ["DEFAULT", "DEFAULT_PRUNING", "DEFAULT_PALETTIZATION"])
def test_pass_pipelines_compress_weights_like_coremltools(name: str) -> None:
    """Sparse weights and weights with few distinct values are compressed as by coremltools, and the results are exact."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)).eval()
    with torch.no_grad():
        module[0].weight.copy_(torch.where(torch.rand(64, 64) < 0.8, 0.0, module[0].weight))
        # 11 distinct values, because coremltools rejects its own lookup tables of 8 elements.
        module[1].weight.copy_((module[1].weight * 40).round() / 8)
    x = torch.rand(1, 64)
    traced = torch.jit.trace(module, x)
    kinds = []
    for package in (ct, coremltools):
        model = package.convert(
            traced,
            inputs=[package.TensorType(name="x", shape=(1, 64))],
            pass_pipeline=getattr(package.PassPipeline, name),
            minimum_deployment_target=package.target.iOS16,
            compute_precision=package.precision.FLOAT32,
            convert_to="mlprogram",
            skip_model_load=package is coremltools,
        )
        function = model.get_spec().mlProgram.functions["main"]
        types = [op.type for op in function.block_specializations[function.opset].operations]
        kinds.append(sorted(kind for kind in types if kind.startswith("constexpr")))
        if package is ct:
            (result,) = model.predict({"x": x.numpy()}).values()
            assert numpy.abs(result - module(x).detach().numpy()).max() < 1e-5
    assert kinds[0] == kinds[1]
    assert bool(kinds[0]) is (name != "DEFAULT")


@pytest.mark.parametrize(("least", "pruned"), [(0.0, True), (0.1, True), (0.4, False)])
def test_threshold_pruning_honors_minimum_sparsity(least: float, pruned: bool) -> None:
    """A weight stays dense if its share of elements below the threshold is less than the minimum, as in coremltools."""
    torch.manual_seed(0)
    module = torch.nn.Linear(64, 64, bias=False).eval()
    with torch.no_grad():
        module.weight.copy_(torch.where(torch.rand(64, 64) < 0.2, 0.0, module.weight))
    program = torch.export.export(module, (torch.rand(1, 64),))
    model = ct.convert(program, minimum_deployment_target=ct.target.iOS16)
    config = ct.optimize.coreml.OpThresholdPrunerConfig(threshold=1e-12, minimum_sparsity_percentile=least)
    made = ct.optimize.coreml.prune_weights(model, ct.optimize.coreml.OptimizationConfig(global_config=config))
    function = made.get_spec().mlProgram.functions["main"]
    types = [op.type for op in function.block_specializations[function.opset].operations]
    assert ("constexpr_sparse_to_dense" in types) is pruned


def test_pipeline_passes_match_coremltools_and_are_editable() -> None:
    """Pipelines list the same passes as in coremltools. Compression passes can be added, and run in the listed order."""
    for name in ("DEFAULT", "DEFAULT_PRUNING", "DEFAULT_PALETTIZATION", "CLEANUP", "EMPTY"):
        assert getattr(ct.PassPipeline, name).passes == getattr(coremltools.PassPipeline, name).passes
    torch.manual_seed(0)
    module = torch.nn.Linear(64, 64).eval()
    pipeline = ct.PassPipeline.DEFAULT_PRUNING
    pipeline.insert_pass(pipeline.passes.index("compression::prune_weights") + 1, "compression::palettize_weights")
    palettizer = ct.optimize.coreml.OpPalettizerConfig(mode="kmeans", nbits=4)
    config = ct.optimize.coreml.OptimizationConfig(global_config=palettizer)
    pipeline.set_options("compression::palettize_weights", {"config": config})
    program = torch.export.export(module, (torch.rand(1, 64),))
    model = ct.convert(program, pass_pipeline=pipeline, minimum_deployment_target=ct.target.iOS16)
    function = model.get_spec().mlProgram.functions["main"]
    types = [op.type for op in function.block_specializations[function.opset].operations]
    assert "constexpr_lut_to_dense" in types
    with pytest.raises(NotImplementedError, match="the pass 'common::unknown' is not supported"):
        pipeline.append_pass("common::unknown")
    pipeline = ct.PassPipeline.EMPTY
    assert pipeline.is_fp32
    assert "fuse_affine" in pipeline.skipped()


class Scaled(torch.nn.Module):
    """Computes sizes in floats when it is traced."""

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        options = {"mode": "bilinear", "align_corners": True, "recompute_scale_factor": True}
        return torch.nn.functional.interpolate(image, scale_factor=(4.1, 5.3), **options)


def test_traced_float_interpolate_sizes_match_torch() -> None:
    """Size arithmetic in floats is folded before torch's converter, which would treat it as model data."""
    torch.manual_seed(0)
    image = torch.rand(1, 3, 8, 22)
    inputs = [ct.TensorType(name="image", shape=image.shape)]
    model = ct.convert(torch.jit.trace(Scaled(), image), inputs=inputs, compute_precision=ct.precision.FLOAT32)
    (result,) = model.predict({"image": image.numpy()}).values()
    numpy.testing.assert_allclose(result, Scaled()(image.double()).numpy(), atol=1e-5)


def test_error_names_dynamic_dimension_fixed_by_layer() -> None:
    """The example input has the traced size, not the default size of 1, so that the error names the dimension."""
    traced = torch.jit.trace(torch.nn.Linear(10, 4).eval(), torch.rand(6, 10))
    shape = (ct.RangeDim(1, 6), ct.RangeDim(1, 10))
    with pytest.raises(ValueError, match="torch fixes dimension 1 of `x` at 10"):
        ct.convert(traced, inputs=[ct.TensorType(name="x", shape=shape)])


class Returned(torch.nn.Module):
    """Returns its argument, too."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x + 1, x


class Unnamed(torch.nn.Module):
    """Arguments without names."""

    def forward(self, *values: torch.Tensor) -> torch.Tensor:
        return torch.atan2(*values)


def test_returned_inputs_get_distinct_output_names() -> None:
    """Covers programs that return an input, and traced modules whose arguments have no names."""
    x = torch.rand(2, 3)
    for program in (torch.jit.trace(Returned(), x), torch.export.export(Returned(), (x,))):
        model = ct.convert(program, inputs=[ct.TensorType(name="x", shape=(2, 3))], compute_precision=ct.precision.FLOAT32)
        one, other = model.predict({"x": x.numpy()}).values()
        assert "x" not in model.output_description
        numpy.testing.assert_array_equal(one, (x + 1).numpy())
        numpy.testing.assert_array_equal(other, x.numpy())
    traced = torch.jit.trace(Unnamed(), (x, x[0]))
    names = []
    for package, options in ((ct, {}), (coremltools, {"convert_to": "mlprogram", "skip_model_load": True})):
        inputs = [package.TensorType(shape=(2, 3)), package.TensorType(shape=(3,))]
        spec = package.convert(traced, inputs=inputs, **options).get_spec()
        names.append([feature.name for feature in (*spec.description.input, *spec.description.output)])
    assert names[0] == names[1]


def test_traced_linear_quantizer_modules_match_torch() -> None:
    """Covers scales and zero points that modules of `coremltools.optimize.torch` store, and their integer weights."""
    from coremltools.optimize.torch.quantization import LinearQuantizer

    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 1), torch.nn.Conv2d(8, 8, 3), torch.nn.Linear(14, 12))
    x = torch.rand(1, 3, 16, 16)
    quantizer = LinearQuantizer(module)
    prepared = quantizer.prepare(example_inputs=(x,), inplace=True)
    prepared(x)
    quantizer.step()
    final = quantizer.finalize(inplace=True).eval()
    model = ct.convert(
        torch.jit.trace(final, x),
        inputs=[ct.TensorType(name="x", shape=x.shape)],
        minimum_deployment_target=ct.target.iOS17,
        compute_precision=ct.precision.FLOAT32,
    )
    (result,) = model.predict({"x": x.numpy()}).values()
    expected = final(x).detach().numpy()
    assert numpy.abs(result - expected).max() < 1e-4 * numpy.abs(expected).max()


def test_grayscale_use_uint8_round_trips_and_needs_ios17() -> None:
    """The image is unchanged, and the option needs iOS 17, as in coremltools."""
    from PIL import Image

    picture = numpy.random.default_rng(0).integers(0, 255, (6, 4), dtype=numpy.uint8)
    traced = torch.jit.trace(torch.nn.Identity(), torch.rand(1, 1, 6, 4))
    image = ct.ImageType(name="x", shape=(1, 1, 6, 4), color_layout=ct.colorlayout.GRAYSCALE, grayscale_use_uint8=True)
    outputs = [ct.ImageType(name="y", color_layout=ct.colorlayout.GRAYSCALE)]
    model = ct.convert(traced, inputs=[image], outputs=outputs, minimum_deployment_target=ct.target.iOS17)
    numpy.testing.assert_array_equal(numpy.asarray(model.predict({"x": Image.fromarray(picture)})["y"]), picture)
    with pytest.raises(ValueError, match="'grayscale_use_uint8'"):
        ct.convert(traced, inputs=[image], outputs=outputs)


def test_rejects_dynamic_quantization() -> None:
    """The error is the same as in coremltools."""
    torch.backends.quantized.engine = "qnnpack"
    module = torch.ao.quantization.quantize_dynamic(torch.nn.Sequential(torch.nn.Linear(3, 2)), {torch.nn.Linear})
    traced = torch.jit.trace(module.eval(), torch.rand(4, 3))
    with pytest.raises(RuntimeError, match="op 'linear_dynamic' not implemented"):
        ct.convert(traced, inputs=[ct.TensorType(shape=(4, 3))])


class QuantizedBranches(torch.nn.Module):
    """Two convolutions of the same quantized input, each dequantized after both."""

    def __init__(self) -> None:
        super().__init__()
        self.quant = torch.ao.quantization.QuantStub()
        self.one = torch.nn.Conv2d(3, 4, 3)
        self.two = torch.nn.Conv2d(3, 4, 3)
        self.dequant = torch.ao.quantization.DeQuantStub()

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.quant(x)
        one, two = self.one(x), self.two(x)
        return self.dequant(one), self.dequant(two)


@pytest.mark.parametrize("qconfig", ["qnnpack", "x86"])
@pytest.mark.parametrize("target", [ct.target.iOS15, ct.target.iOS16, ct.target.iOS17, None])
def test_quantized_layers_stay_quantized_if_target_allows(target: ct.target | None, qconfig: str) -> None:
    """Weights stay quantized from iOS 16 on, activations from iOS 17 on. Regression: the second branch was returned twice."""
    torch.manual_seed(0)
    torch.backends.quantized.engine = "qnnpack"
    x = torch.randn(2, 3, 8, 8)
    module = QuantizedBranches().eval()
    module.qconfig = torch.ao.quantization.get_default_qconfig(qconfig)
    prepared = torch.ao.quantization.prepare(module)
    prepared(x)
    quantized = torch.ao.quantization.convert(prepared)
    model = ct.convert(
        torch.jit.trace(quantized, x),
        inputs=[ct.TensorType(name="x", shape=tuple(x.shape))],
        outputs=[ct.TensorType(name="one"), ct.TensorType(name="two")],
        minimum_deployment_target=target,
    )
    found = model.predict({"x": x})
    expected = quantized(x)
    step = max(float(layer.scale) for layer in (quantized.one, quantized.two))
    for name, value in zip(("one", "two"), expected, strict=True):
        # A value between two integers may be rounded to either.
        numpy.testing.assert_allclose(found[name], value, atol=1.5 * step)
        assert numpy.mean(numpy.abs(found[name] - value.numpy()) > step / 4) < 0.05
    types = [op.op_type for op in model._mil_program.functions["main"].operations]
    has_weights = target != ct.target.iOS15
    has_activations = target in (ct.target.iOS17, None)
    kinds = {"constexpr_affine_dequantize": 2 * has_weights, "quantize": 3 * has_activations, "dequantize": 3 * has_activations}
    assert {kind: types.count(kind) for kind in kinds} == kinds


def test_quantized_constants_become_compressed_weights() -> None:
    """torch folds the quantization of a weight into the traced module."""
    torch.manual_seed(0)
    weight = torch.rand(5, 3, 2, 4)

    class Convolution(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            quantized = torch.quantize_per_tensor(weight, 0.004, 3, torch.quint8)
            return torch.nn.functional.conv2d(x, quantized.dequantize())

    x = torch.rand(1, 3, 8, 8)
    model = ct.convert(
        torch.jit.trace(Convolution(), x),
        inputs=[ct.TensorType(name="x", shape=(1, 3, 8, 8))],
        outputs=[ct.TensorType(name="y")],
        minimum_deployment_target=ct.target.iOS17,
    )
    numpy.testing.assert_allclose(model.predict({"x": x})["y"], Convolution()(x), rtol=2e-2, atol=2e-2)
    types = [op.op_type for op in model._mil_program.functions["main"].operations]
    assert "constexpr_affine_dequantize" in types


class Packed(torch.nn.Module):
    """A matrix product with 4-bit weights in torch's packed format for CPUs."""

    def __init__(self, group: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.group = group
        self.register_buffer("codes", torch.randint(0, 256, (48, 32), dtype=torch.uint8))
        scales = torch.rand(64 // group, 48, 1) * 0.1 + 0.01
        self.register_buffer("scales", torch.cat([scales, torch.randn(64 // group, 48, 1) * 0.1], 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch._weight_int4pack_mm_for_cpu(x, self.codes, self.group, self.scales.to(torch.float32))


@pytest.mark.parametrize("frontend", ["traced", "exported"])
@pytest.mark.parametrize("group", [32, 64])
def test_int4_packed_weights_stay_quantized(frontend: str, group: int) -> None:
    """The reference is torch's product with the packed weights. The conversion does not modify the exported program."""
    module, x = Packed(group).eval(), torch.rand(3, 64)
    program = torch.jit.trace(module, x) if frontend == "traced" else torch.export.export(module, (x,))
    before = None if frontend == "traced" else str(program.graph)
    model = ct.convert(
        program,
        inputs=[ct.TensorType(name="x", shape=(3, 64))],
        outputs=[ct.TensorType(name="y", dtype=numpy.float32)],
        compute_precision=ct.precision.FLOAT32,
        minimum_deployment_target=ct.target.iOS18,
    )
    kinds = [op.op_type for op in model._mil_program.functions["main"].operations]
    assert "constexpr_blockwise_shift_scale" in kinds
    numpy.testing.assert_allclose(model.predict({"x": x})["y"], module(x), rtol=1e-4, atol=1e-4)
    assert before is None or str(program.graph) == before


class Lookup(torch.nn.Module):
    """Adds an embedding and an array."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(10, 4)

    def forward(self, ids: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.table(ids) + x)


def interface(model) -> tuple:
    """The version, the names and the types of a model's inputs and outputs."""
    spec = model.get_spec()
    features = [*spec.description.input, *spec.description.output]
    return spec.specificationVersion, [(one.name, one.type.multiArrayType.dataType) for one in features]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_index_inputs_may_be_declared_float(dtype: torch.dtype) -> None:
    """The inputs are cast, as in coremltools. `ml-stable-diffusion` declares the tokens of its text encoder as floats."""
    module = Lookup().eval()
    ids, x = torch.tensor([[3, 9, 0, 7]], dtype=dtype), torch.rand(1, 4, 4)
    for declared, target in ((numpy.float32, None), (None, None), (numpy.float16, "iOS16"), (None, "iOS18"), (numpy.int32, None)):
        found = []
        for package in (ct, coremltools):
            traced = torch.jit.trace(module, (ids, x))
            model = package.convert(
                traced,
                inputs=[package.TensorType("ids", (1, 4), declared), package.TensorType("x", (1, 4, 4))],
                minimum_deployment_target=target and package.target[target],
                convert_to="mlprogram",
            )
            found.append(interface(model))
            if package is ct:
                outputs = model.predict({"ids": ids.float().numpy(), "x": x.numpy()})
                numpy.testing.assert_allclose(next(iter(outputs.values())), module(ids, x).detach().numpy(), atol=1e-2)
        assert found[0] == found[1]
    with pytest.raises(RuntimeError, match="torch cannot convert the traced module"):
        ct.convert(traced, inputs=[ct.TensorType("ids", (1, 4)), ct.TensorType("x", (1, 7, 4))])


@pytest.mark.parametrize("precision", [None, "FLOAT32"])
@pytest.mark.parametrize(("target", "later"), [(None, None), (None, "iOS18"), ("iOS16", None), ("iOS16", "iOS17"), ("iOS18", "iOS18")])
def test_milinternal_programs_convert_like_coremltools(precision: str | None, target: str | None, later: str | None) -> None:
    """`convert_to="milinternal"` returns a program, which a second call converts to a model with the same operations."""
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).eval()
    x = torch.rand(2, 4)

    def converted(package, again: str | None) -> tuple:
        program = package.convert(
            torch.jit.trace(module, x),
            inputs=[package.TensorType("x", (2, 4))],
            outputs=[package.TensorType("y")],
            convert_to="milinternal",
            compute_precision=precision and package.precision[precision],
            minimum_deployment_target=target and package.target[target],
        )
        before = kinds(program)
        model = package.convert(
            program,
            convert_to="mlprogram",
            compute_precision=again and package.precision[again],
            minimum_deployment_target=later and package.target[later],
        )
        return program, before, kinds(model._mil_program), model

    def kinds(program) -> list:
        return [op.op_type for op in program.functions["main"].operations if op.op_type != "const"]

    for again in (None, "FLOAT32"):
        program, *ours, model = converted(ct, again)
        _, *theirs, their_model = converted(coremltools, again)
        assert ours == theirs
        assert "relu(x = " in str(program)
        assert program.functions["main"].outputs[0].name == "y"
        version, features = interface(model)
        # coremltools does not keep the deployment target of the program, so its version is not compared.
        assert features == interface(their_model)[1]
        assert version == {None: 6, "iOS16": 7, "iOS17": 8, "iOS18": 9}[later or target]
        numpy.testing.assert_allclose(model.predict({"x": x.numpy()})["y"], module(x).detach().numpy(), atol=1e-2)


def test_editing_models_leaves_milinternal_program_intact(tmp_path: Path) -> None:
    traced = torch.jit.trace(torch.nn.ReLU(), torch.rand(3))
    program = ct.convert(traced, inputs=[ct.TensorType("x", (3,))], outputs=[ct.TensorType("y")], convert_to="milinternal")
    text = str(program)
    first = ct.convert(program, source="milinternal", package_dir=str(tmp_path / "First.mlpackage"))
    first.short_description = "the first"
    ct.utils.rename_feature(first.get_spec(), "x", "image")
    second = ct.convert(program, outputs=[ct.TensorType("z")])
    assert (second.short_description, list(second.output_description)) == ("", ["z"])
    assert str(program) == text
    assert ct.models.MLModel(str(tmp_path / "First.mlpackage")).predict({"x": numpy.array([-1, 2, 3.0])})["y"].tolist() == [0, 2, 3]
    with pytest.raises(NotImplementedError, match="source 'milinternal'"):
        ct.convert(traced, source="milinternal", inputs=[ct.TensorType("x", (3,))])


def test_reconverting_traced_module_keeps_names() -> None:
    """torch's converter modifies the graph of the module, which must not affect the second conversion."""
    traced = torch.jit.trace(Lookup().eval(), (torch.tensor([1]), torch.rand(1, 4)))
    inputs = [ct.TensorType("ids", (1,), numpy.int32), ct.TensorType("x", (1, 4))]
    assert interface(ct.convert(traced, inputs=inputs)) == interface(ct.convert(traced, inputs=inputs))
