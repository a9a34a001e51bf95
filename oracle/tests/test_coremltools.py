"""Compares `coremill.coremltools` with coremltools and torch: specifications, predictions, and labels of images."""

import itertools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import coremltools
import numpy
import pytest
import torch
from coremltools.optimize import _utils as their_utils
from PIL import Image

import coremill.coremltools as ct
from coremill.coremltools.optimize import _utils

LABELS = ["ant", "bee", "cat", "dog", "elk"]


class Network(torch.nn.Module):
    """Scores for five classes."""

    def __init__(self, channels: int = 3) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.features = torch.nn.Conv2d(channels, 8, 3, stride=2)
        self.head = torch.nn.Linear(8, 5)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.features(image)).mean((2, 3)))


class Filter(torch.nn.Module):
    """Inverts an image."""

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return 255 - image


class Cache(torch.nn.Module):
    """Accumulates its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(1, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(x)
        return self.total * 2


def picture(width: int, height: int, mode: str = "RGB") -> Image.Image:
    """A picture of random pixels."""
    random = numpy.random.default_rng(width * height)
    shape = (height, width, 3) if mode == "RGB" else (height, width)
    return Image.fromarray(random.integers(0, 256, shape, dtype=numpy.uint8))


def traced(module: torch.nn.Module, *shape: int) -> torch.jit.ScriptModule:
    """A traced module."""
    return torch.jit.trace(module.eval(), torch.rand(shape))


def description(model: object) -> str:
    """The description of a model without metadata, as text."""
    spec = coremltools.proto.Model_pb2.Model.FromString(model.get_spec().SerializeToString())
    spec.description.ClearField("metadata")
    return f"version {spec.specificationVersion}\n{spec.description}"


class Pyramid(torch.nn.Module):
    """Concatenates features of two scales, which requires even image sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Sequential(torch.nn.Conv2d(3, 3, 1), torch.nn.SiLU()) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Both scales in one tensor."""
        large, small = self.layers[0](x), self.layers[1](torch.nn.functional.max_pool2d(x, 2))
        return torch.cat([large, torch.nn.functional.interpolate(small, scale_factor=2.0)], 1)


CASES: dict[str, tuple[torch.nn.Module, tuple[int, ...], Callable[[object], dict]]] = {
    "rgb": (Network(), (1, 3, 32, 24), lambda p: {
        "inputs": [p.ImageType(name="image", shape=(1, 3, 32, 24), scale=1 / 255, bias=[-0.5, -0.25, 0])],
        "outputs": [p.TensorType(name="scores")],
    }),
    "classifier": (Network(), (1, 3, 32, 24), lambda p: {
        "inputs": [p.ImageType(name="image", shape=(1, 3, 32, 24), scale=1 / 127, color_layout=p.colorlayout.BGR)],
        "classifier_config": p.ClassifierConfig(LABELS),
    }),
    "integer labels": (Network(), (1, 3, 32, 24), lambda p: {
        "inputs": [p.TensorType(name="x", shape=(1, 3, 32, 24))],
        "classifier_config": p.ClassifierConfig([4, 3, 2, 1, 0], predicted_feature_name="class_id"),
        "minimum_deployment_target": p.target.iOS17,
    }),
    "grayscale": (Network(1), (1, 1, 32, 24), lambda p: {
        "inputs": [p.ImageType(name="image", shape=(1, 1, 32, 24), color_layout=p.colorlayout.GRAYSCALE, bias=-1.0)],
        "outputs": [p.TensorType(name="scores", dtype=numpy.float32)],
        "minimum_deployment_target": p.target.iOS16,
    }),
    "grayscale fp16": (Filter(), (1, 1, 32, 24), lambda p: {
        "inputs": [p.ImageType(name="image", shape=(1, 1, 32, 24), color_layout=p.colorlayout.GRAYSCALE_FLOAT16)],
        "outputs": [p.ImageType(name="negative", color_layout=p.colorlayout.GRAYSCALE_FLOAT16)],
        "minimum_deployment_target": p.target.iOS16,
    }),
    "image output": (Filter(), (1, 3, 8, 12), lambda p: {
        "inputs": [p.ImageType(name="image", shape=(1, 3, 8, 12))],
        "outputs": [p.ImageType(name="negative", color_layout=p.colorlayout.RGB)],
    }),
    "fp16 arrays": (Network(), (1, 3, 32, 24), lambda p: {
        "inputs": [p.TensorType(name="x", shape=(1, 3, 32, 24), dtype=numpy.float16)],
        "outputs": [p.TensorType(name="scores", dtype=numpy.float16)],
        "minimum_deployment_target": p.target.iOS16,
    }),
    "default types": (Network(), (1, 3, 32, 24), lambda p: {
        "inputs": [p.TensorType(name="x", shape=(1, 3, 32, 24))],
        "outputs": [p.TensorType(name="scores")],
        "minimum_deployment_target": p.target.iOS16,
    }),
    "fp32": (Network(), (1, 3, 32, 24), lambda p: {
        "inputs": [p.TensorType(name="x", shape=(1, 3, 32, 24))],
        "outputs": [p.TensorType(name="scores")],
        "compute_precision": p.precision.FLOAT32,
        "minimum_deployment_target": p.target.iOS16,
    }),
    "image range": (Network(), (1, 3, 32, 24), lambda p: {
        "inputs": [p.ImageType(name="image", shape=(1, 3, p.RangeDim(16, 64, default=32), p.RangeDim(16, 48, default=24)))],
        "outputs": [p.TensorType(name="scores")],
    }),
    "image sizes": (Network(), (1, 3, 32, 24), lambda p: {
        "inputs": [p.ImageType(name="image", shape=p.EnumeratedShapes([(1, 3, 32, 24), (1, 3, 64, 48)]))],
        "outputs": [p.TensorType(name="scores")],
    }),
    "default of image sizes": (Network(), (1, 3, 32, 24), lambda p: {
        "inputs": [p.ImageType(name="image", shape=p.EnumeratedShapes([(1, 3, 32, 24), (1, 3, 64, 48)], default=(1, 3, 64, 48)))],
        "outputs": [p.TensorType(name="scores")],
    }),
    "array range": (Network(), (1, 3, 32, 24), lambda p: {
        "inputs": [p.TensorType(name="x", shape=(1, 3, p.RangeDim(16, 64, default=32), 24))],
        "outputs": [p.TensorType(name="scores")],
    }),
    "bounds of related sizes": (Pyramid(), (1, 3, 32, 24), lambda p: {
        "inputs": [p.TensorType(name="x", shape=(1, 3, p.RangeDim(2, 64, default=32), p.RangeDim(2, 48, default=24)))],
        "outputs": [p.TensorType(name="y")],
    }),
    "sizes of one by default": (torch.nn.Linear(4, 5), (1, 7, 4), lambda p: {
        "inputs": [p.TensorType(name="x", shape=(1, p.RangeDim(1, 64), 4))], "outputs": [p.TensorType(name="y")],
    }),
    "shapes with sizes of one": (torch.nn.Linear(4, 5), (1, 7, 4), lambda p: {
        "inputs": [p.TensorType(name="x", shape=p.EnumeratedShapes([(1, 1, 4), (1, 7, 4), (2, 7, 4)], default=(1, 1, 4)))],
        "outputs": [p.TensorType(name="y")],
    }),
    "names of outputs": (Pyramid(), (1, 3, 32, 24), lambda p: {"inputs": [p.TensorType(name="x", shape=(1, 3, 32, 24))]}),
    "array shapes": (Network(), (1, 3, 32, 24), lambda p: {
        "inputs": [p.TensorType(name="x", shape=p.EnumeratedShapes([(1, 3, 32, 24), (1, 3, 64, 48)], default=(1, 3, 64, 48)))],
        "outputs": [p.TensorType(name="scores")],
    }),
}


@pytest.mark.parametrize("case", CASES)
def test_model_descriptions_match_coremltools(case: str) -> None:
    """Features, types, shapes, labels and versions are equal for traced modules."""
    module, shape, options = CASES[case]
    # Each conversion gets its own traced module, because both modify the graph.
    ours = ct.convert(traced(module, *shape), skip_model_load=True, convert_to="mlprogram", **options(ct))
    theirs = coremltools.convert(traced(module, *shape), skip_model_load=True, convert_to="mlprogram", **options(coremltools))
    assert description(ours) == description(theirs)


@pytest.mark.parametrize("source", ["traced", "exported", "module"])
def test_image_classifier_labels_match_torch(source: str, tmp_path: Path) -> None:
    """Checks the model in memory, the package and the compiled model."""
    module = Network().eval()
    example = torch.rand(1, 3, 32, 24)
    model = {
        "traced": lambda: torch.jit.trace(module, example),
        "exported": lambda: torch.export.export(module, (example,)),
        "module": lambda: module,
    }[source]()
    scale, bias = 1 / 127.5, [-1.0, -0.9, -1.1]
    converted = ct.convert(
        model,
        inputs=[ct.ImageType(name="image", shape=(1, 3, 32, 24), scale=scale, bias=bias)],
        classifier_config=ct.ClassifierConfig(LABELS),
        minimum_deployment_target=ct.target.iOS16,
    )
    converted.save(str(tmp_path / "Model.mlpackage"))
    models = [
        converted,
        ct.models.MLModel(str(tmp_path / "Model.mlpackage")),
        ct.models.CompiledMLModel(converted.get_compiled_model_path()),
    ]
    for seed in range(4):
        shown = picture(24, 32) if seed == 0 else picture(24, 32).rotate(90 * seed).resize((24, 32))
        pixels = torch.from_numpy(numpy.asarray(shown, dtype=numpy.float32)).permute(2, 0, 1)[None]
        with torch.no_grad():
            scores = module(pixels * scale + torch.tensor(bias)[:, None, None])[0]
        for one in models:
            found = one.predict({"image": shown})
            assert found["classLabel"] == LABELS[int(scores.argmax())]
            probabilities = torch.tensor([found["classLabel_probs"][label] for label in LABELS])
            torch.testing.assert_close(probabilities.float(), scores, rtol=2e-2, atol=2e-2)


def test_image_scale_and_bias_accept_arrays() -> None:
    """coremltools' guides compute scale and bias with numpy."""
    mean, deviation = numpy.array((0.485, 0.456, 0.406)), numpy.array((0.229, 0.224, 0.225))
    program = torch.export.export(Network().eval(), (torch.rand(1, 3, 32, 24),))
    found = []
    for bias in (-mean / deviation, torch.tensor(-mean / deviation), (-mean / deviation).tolist()):
        image = ct.ImageType(name="image", shape=(1, 3, 32, 24), scale=numpy.float64(1 / (0.226 * 255)), bias=bias)
        converted = ct.convert(program, inputs=[image])
        found.append(next(iter(converted.predict({"image": picture(24, 32)}).values())))
    assert all(numpy.array_equal(found[0], other) for other in found)
    with pytest.raises(ValueError, match="'bias' must be None or 0"):
        ct.convert(program, inputs=[ct.ImageType(shape=(1, 3, 32, 24))], outputs=[ct.ImageType(bias=numpy.ones(3))])


def test_predicts_rgb_gray_and_fp16_gray_image_outputs() -> None:
    for layout, mode, channels in [("RGB", "RGB", 3), ("GRAYSCALE", "L", 1)]:
        model = ct.convert(
            traced(Filter(), 1, channels, 8, 12),
            inputs=[ct.ImageType(name="image", shape=(1, channels, 8, 12), color_layout=ct.colorlayout[layout])],
            outputs=[ct.ImageType(name="negative", color_layout=ct.colorlayout[layout])],
        )
        shown = picture(12, 8, mode)
        found = model.predict({"image": shown})["negative"]
        assert found.mode == mode
        assert (numpy.asarray(found) == 255 - numpy.asarray(shown)).all()
    model = ct.convert(
        traced(Filter(), 1, 1, 8, 12),
        inputs=[ct.ImageType(name="image", shape=(1, 1, 8, 12), color_layout=ct.colorlayout.GRAYSCALE_FLOAT16)],
        outputs=[ct.ImageType(name="negative", color_layout=ct.colorlayout.GRAYSCALE_FLOAT16)],
        minimum_deployment_target=ct.target.iOS16,
    )
    values = numpy.linspace(0, 1, 96, dtype=numpy.float32).reshape(8, 12)
    found = model.predict({"image": Image.fromarray(values)})["negative"]
    numpy.testing.assert_allclose(numpy.asarray(found), 255 - values, rtol=1e-3)


def test_bgr_images_swap_channels() -> None:
    """The first channel of the model's input is blue."""
    model = ct.convert(
        traced(torch.nn.Identity(), 1, 3, 8, 12),
        inputs=[ct.ImageType(name="image", shape=(1, 3, 8, 12), color_layout=ct.colorlayout.BGR)],
        outputs=[ct.TensorType(name="pixels")],
    )
    shown = picture(12, 8)
    found = model.predict({"image": shown})["pixels"]
    assert (found[0].transpose(1, 2, 0)[..., ::-1] == numpy.asarray(shown)).all()


def test_predict_casts_values_to_input_dtype() -> None:
    """`predict` casts floats to int32 inputs, and accepts lists and batches, as Core ML does."""
    class Pick(torch.nn.Module):
        def forward(self, table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
            return table[index.long()]

    module = torch.jit.trace(Pick(), (torch.rand(4, 2), torch.zeros(3, dtype=torch.int32)))
    model = ct.convert(
        module,
        inputs=[ct.TensorType(name="table", shape=(4, 2)), ct.TensorType(name="index", shape=(3,), dtype=numpy.int32)],
        outputs=[ct.TensorType(name="rows")],
        compute_precision=ct.precision.FLOAT32,
    )
    table = numpy.arange(8, dtype=numpy.float64).reshape(4, 2)
    data = {"table": table, "index": [2.0, 0.0, 3.0]}
    assert (model.predict(data)["rows"] == table[[2, 0, 3]]).all()
    batch = model.predict([data, {"table": torch.from_numpy(table), "index": numpy.array([1, 1, 1], dtype=numpy.int64)}])
    assert (batch[1]["rows"] == table[[1, 1, 1]]).all()
    with pytest.raises(KeyError, match="does not match any of the model input"):
        model.predict({"tables": table})


def test_make_state_returns_independent_states() -> None:
    """Each state object accumulates independently, and can be read and written."""
    program = torch.export.export(Cache(), (torch.ones(1, 4),))
    model = ct.convert(program, minimum_deployment_target=ct.target.iOS18, outputs=[ct.TensorType(name="y")])
    first, second = model.make_state(), model.make_state()
    ones = numpy.ones((1, 4), dtype=numpy.float32)
    assert model.predict({"x": ones}, state=first)["y"].tolist() == [[2, 2, 2, 2]]
    assert model.predict({"x": ones}, state=first)["y"].tolist() == [[4, 4, 4, 4]]
    assert model.predict({"x": ones}, state=second)["y"].tolist() == [[2, 2, 2, 2]]
    name = model.get_spec().description.state[0].name
    first.write_state(name, ones * 5)
    assert first.read_state(name).tolist() == [[5, 5, 5, 5]]


def test_op_selector_keeps_linear_ops_in_fp32() -> None:
    """The selector receives operations with coremltools' `op_type`."""
    module = traced(Network(), 1, 3, 32, 24)
    seen = []

    def selector(op: object) -> bool:
        seen.append(op.op_type)
        return op.op_type != "linear"

    model = ct.convert(
        module, inputs=[ct.TensorType(shape=(1, 3, 32, 24))], compute_precision=ct.transform.FP16ComputePrecision(selector)
    )
    assert {"conv", "linear"} <= set(seen)
    spec = model.get_spec()
    block = next(iter(spec.mlProgram.functions["main"].block_specializations.values()))
    types = {op.type: op.outputs[0].type.tensorType.dataType for op in block.operations}
    assert (types["conv"], types["linear"]) == (10, 11)


def test_protobuf_descriptors_match_coremltools() -> None:
    ours = ct.proto.Model_pb2.Model.DESCRIPTOR.file
    theirs = coremltools.proto.Model_pb2.Model.DESCRIPTOR.file
    assert ours.serialized_pb == theirs.serialized_pb
    assert ct.proto.MIL_pb2.Program.DESCRIPTOR.file.serialized_pb == coremltools.proto.MIL_pb2.Program.DESCRIPTOR.file.serialized_pb
    assert ct.proto.FeatureTypes_pb2.ArrayFeatureType.FLOAT16 == coremltools.proto.FeatureTypes_pb2.ArrayFeatureType.FLOAT16


def test_edited_specs_save_load_and_predict(tmp_path: Path) -> None:
    """A model with a renamed input is saved, loaded and run; metadata and descriptions are kept."""
    model = ct.convert(
        traced(Network(), 1, 3, 32, 24), inputs=[ct.TensorType(name="x", shape=(1, 3, 32, 24))], outputs=[ct.TensorType(name="y")]
    )
    model.author, model.short_description = "Ada", "Scores"
    model.input_description["x"] = "a picture"
    model.user_defined_metadata["trained"] = "yes"
    spec = model.get_spec()
    ct.utils.rename_feature(spec, "x", "image")
    renamed = ct.models.MLModel(spec, weights_dir=model.weights_dir)
    renamed.save(str(tmp_path / "Renamed.mlpackage"))
    found = coremltools.models.MLModel(str(tmp_path / "Renamed.mlpackage"), skip_model_load=True)
    assert found.author == "Ada" and found.user_defined_metadata["trained"] == "yes"
    assert found.input_description["image"] == "a picture"
    array = numpy.random.default_rng(0).random((1, 3, 32, 24), dtype=numpy.float32)
    assert (renamed.predict({"image": array})["y"] == model.predict({"x": array})["y"]).all()
    path = str(tmp_path / "Saved.mlpackage")
    ct.utils.save_spec(ct.utils.load_spec(str(tmp_path / "Renamed.mlpackage")), path, weights_dir=renamed.weights_dir)
    assert ct.models.MLModel(path).author == "Ada"
    half = ct.utils.change_input_output_tensor_type(
        ct.convert(traced(Network(), 1, 3, 32, 24), inputs=[ct.TensorType(name="x", shape=(1, 3, 32, 24))],
                   outputs=[ct.TensorType(name="y", dtype=numpy.float32)], minimum_deployment_target=ct.target.iOS16),
        ct.proto.FeatureTypes_pb2.ArrayFeatureType.FLOAT32,
        ct.proto.FeatureTypes_pb2.ArrayFeatureType.FLOAT16,
        input_names=["*"],
    )
    assert half.predict({"x": array})["y"].dtype == numpy.float16


def test_multifunction_models_share_equal_weights(tmp_path: Path) -> None:
    """Equal weights of several functions are stored once."""
    module = Network().eval()
    paths = []
    for name in ("one", "two"):
        program = torch.export.export(module, (torch.rand(1, 3, 32, 24),))
        model = ct.convert(program, outputs=[ct.TensorType(name=name)], minimum_deployment_target=ct.target.iOS18)
        paths.append(str(tmp_path / f"{name}.mlpackage"))
        model.save(paths[-1])
    descriptor = ct.utils.MultiFunctionDescriptor()
    descriptor.add_function(paths[0], src_function_name="main", target_function_name="first")
    descriptor.add_function(paths[1], src_function_name="main", target_function_name="second")
    descriptor.default_function_name = "second"
    merged = str(tmp_path / "merged.mlpackage")
    ct.utils.save_multifunction(descriptor, merged)
    array = numpy.random.default_rng(0).random((1, 3, 32, 24), dtype=numpy.float32)
    assert list(ct.models.MLModel(merged).predict({"image": array})) == ["two"]
    assert list(ct.models.MLModel(merged, function_name="first").predict({"image": array})) == ["one"]
    sizes = [Path(path, "Data/com.apple.CoreML/weights/weight.bin").stat().st_size for path in (merged, paths[0])]
    assert sizes[0] == sizes[1]
    assert coremltools.models.MLModel(merged, skip_model_load=True).get_spec().description.defaultFunctionName == "second"


def test_materializes_dynamic_shapes_as_functions(tmp_path: Path) -> None:
    """`materialize_dynamic_shape_mlmodel` writes one function for each fixed shape."""
    module = Network().eval()
    model = ct.convert(
        traced(module, 1, 3, 32, 24),
        inputs=[ct.TensorType(name="x", shape=(1, 3, ct.RangeDim(16, 64, default=32), 24))],
        outputs=[ct.TensorType(name="y")],
        minimum_deployment_target=ct.target.iOS18,
    )
    path = str(tmp_path / "Fixed.mlpackage")
    ct.utils.materialize_dynamic_shape_mlmodel(model, {"small": {"x": (1, 3, 16, 24)}, "large": {"x": (1, 3, 64, 24)}}, path)
    for name, height in (("small", 16), ("large", 64)):
        array = numpy.random.default_rng(0).random((1, 3, height, 24), dtype=numpy.float32)
        found = ct.models.MLModel(path, function_name=name).predict({"x": array})["y"]
        assert (found == model.predict({"x": array})["y"]).all()


COMPRESSIONS = {
    "int8": lambda o: o.linear_quantize_weights,
    "palettes": lambda o: o.palettize_weights,
    "pruned": lambda o: o.prune_weights,
}


@pytest.mark.parametrize("kind", COMPRESSIONS)
def test_weight_compression_matches_coremltools(kind: str) -> None:
    """Equal configurations compress weights to the same operations, and decompression removes these."""
    class Dense(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.one, self.two = torch.nn.Linear(64, 64), torch.nn.Linear(64, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.two(torch.relu(self.one(x)))

    def compressed(package: object) -> object:
        optimize = package.optimize.coreml
        config = {
            "int8": lambda: optimize.OpLinearQuantizerConfig(mode="linear_symmetric", weight_threshold=1000),
            "palettes": lambda: optimize.OpPalettizerConfig(mode="uniform", nbits=4, weight_threshold=1000),
            "pruned": lambda: optimize.OpMagnitudePrunerConfig(target_sparsity=0.75, weight_threshold=1000),
        }[kind]()
        model = package.convert(
            traced(Dense(), 1, 64), inputs=[package.TensorType(name="x", shape=(1, 64))],
            outputs=[package.TensorType(name="y")], minimum_deployment_target=package.target.iOS16,
            **({"skip_model_load": True}),
        )
        return COMPRESSIONS[kind](optimize)(model, optimize.OptimizationConfig(global_config=config))

    def forms(model: object) -> list[str]:
        spec = coremltools.proto.Model_pb2.Model.FromString(model.get_spec().SerializeToString())
        block = next(iter(spec.mlProgram.functions["main"].block_specializations.values()))
        return sorted(op.type for op in block.operations if op.type.startswith("constexpr"))

    ours, theirs = compressed(ct), compressed(coremltools)
    assert forms(ours) == forms(theirs) and len(forms(ours)) == 1
    x = numpy.random.default_rng(0).standard_normal((1, 64)).astype(numpy.float32)
    reread = ct.models.MLModel(theirs.get_spec(), weights_dir=theirs.weights_dir)
    numpy.testing.assert_allclose(ours.predict({"x": x})["y"], reread.predict({"x": x})["y"], rtol=2e-2, atol=2e-2)
    assert forms(ct.optimize.coreml.decompress_weights(ours)) == []


MISSING = {
    "ct.models.tree_ensemble": "converts torch models to ML Programs only",
    "ct.models.neural_network.NeuralNetworkBuilder.add_softmax": "describe the model in torch",
    "ct.converters.mil.Builder.program": "describe the model in torch",
    "ct.converters.mil.frontend.torch.ops.clamp.name": "lowers the operators of torch itself",
}


@pytest.mark.parametrize("name", MISSING)
def test_missing_attribute_errors_suggest_alternatives(name: str) -> None:
    with pytest.raises(AttributeError, match=MISSING[name]):
        eval(name, {"ct": ct})


def test_invalid_convert_arguments_raise_coremltools_errors() -> None:
    module = traced(Network(), 1, 3, 32, 24)
    x = ct.TensorType(name="x", shape=(1, 3, 32, 24))
    for error, options in [
        (ValueError, {}),
        (TypeError, {"inputs": [x], "minimum_deployment_target": "ios16"}),
        (ValueError, {"inputs": [x], "compute_precision": "fp16"}),
        (NotImplementedError, {"inputs": [x], "convert_to": "neuralnetwork"}),
        (ValueError, {"inputs": [ct.TensorType(shape=(1, 3, 32, ct.RangeDim()))]}),
        (TypeError, {"inputs": [ct.TensorType(shape=(1, 3, 32, 24), dtype=numpy.float16)]}),
        (ValueError, {"inputs": [x], "outputs": [ct.TensorType(name="a"), ct.TensorType(name="a")]}),
        (ValueError, {"inputs": [x, x]}),
    ]:
        with pytest.raises(error):
            ct.convert(module, **options)


SCRIPT = """
import coremltools as ct
from coremltools.models import MLModel
import coremltools.optimize.coreml as cto
import sys
assert ct.__name__ == "coremill.coremltools" and MLModel.__module__.startswith("coremill.")
try:
    import coremltools.converters.sklearn
except ModuleNotFoundError as error:
    assert "converts torch models to ML Programs only" in str(error), error
else:
    raise AssertionError
print("ok", len(sys.argv))
"""


#: Imports at the top of real scripts, which need most of the imported names for few models only.
IMPORTS = """
import sys
import warnings
import coremltools.proto.FeatureTypes_pb2 as feature_types
import coremltools.converters.mil.frontend.torch.ops as ops
import coremltools.models.neural_network as neural_network
from coremltools.converters.mil import Builder as mb, input_types, register_torch_op
from coremltools.converters.mil._deployment_compatibility import AvailableTarget
from coremltools.converters.mil.frontend.milproto.load import load as load_program
from coremltools.converters.mil.frontend.torch.ops import _get_inputs
from coremltools.converters.mil.frontend.torch.torch_op_registry import _TORCH_OPS_REGISTRY
from coremltools.converters.mil.mil import types
from coremltools.converters.mil.mil.passes.defs.quantization import FP16ComputePrecision
from coremltools.converters.mil.mil.passes.graph_pass import AbstractGraphPass
from coremltools.converters.mil.mil.passes.helper import block_context_manager
from coremltools.converters.mil.mil.passes.pass_pipeline import PassPipeline
from coremltools.converters.mil.mil.passes.pass_registry import register_pass
from coremltools.converters.mil.mil.scope import ScopeSource
from coremltools.converters.mil.mil.types.symbolic import any_symbolic
from coremltools.models.neural_network.quantization_utils import quantize_weights
from coremltools.models.utils import _is_macos, _macos_version
from coremltools.proto import NeuralNetwork_pb2

assert feature_types.ImageFeatureType.RGB == 20
assert NeuralNetwork_pb2.NeuralNetworkLayer(name="a").name == "a"
assert bool(_macos_version()) == _is_macos() == (sys.platform == "darwin")
if "baddbmm" in _TORCH_OPS_REGISTRY:
    del _TORCH_OPS_REGISTRY["baddbmm"]
del _TORCH_OPS_REGISTRY["add"]
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")

    @register_torch_op
    def baddbmm(context, node):
        return mb.matmul(*_get_inputs(context, node))

    @register_torch_op(torch_alias=["subtract"], override=True)
    def sub(context, node):
        return mb.sub(*_get_inputs(context, node))

assert ["`baddbmm` is not called" in str(caught[0].message), "`sub`, `subtract` is not" in str(caught[1].message)] == [True, True]
assert [warning.filename for warning in caught] == [__file__, __file__]
assert "subtract" in _TORCH_OPS_REGISTRY and _TORCH_OPS_REGISTRY["sub"] is sub
ops._cast = baddbmm

class Pass(AbstractGraphPass):
    def apply(self, program):
        return program

@block_context_manager
def rewrite(block):
    return block

for use, hint in (
    (lambda: load_program(None, 9, "weights"), "`split` and `merge` change them"),
    (lambda: register_pass(namespace="common")(Pass), "optimizes programs with its own passes"),
    (lambda: rewrite(None), "optimizes programs with its own passes"),
    (lambda: _get_inputs(None, None), "lowers the operators of torch"),
    (lambda: mb.TensorSpec((1,)), "describe the model in torch"),
    (lambda: quantize_weights(None, 8), "optimize.coreml.linear_quantize_weights"),
    (lambda: neural_network.NeuralNetworkBuilder(), "describe the model in torch"),
):
    try:
        use()
    except (AttributeError, NotImplementedError) as error:
        assert hint in str(error), error
    else:
        raise AssertionError(hint)
import coremltools as ct
assert ct.TensorType(shape=(1,), dtype=types.fp16).dtype is types.fp16
assert ct.TensorType is input_types.TensorType and ct.target is AvailableTarget and ct.PassPipeline is PassPipeline
assert ct.version.__version__ == ct.__version__
print("ok", len(sys.argv))
"""


@pytest.mark.parametrize("text", [SCRIPT, IMPORTS], ids=["parts", "imports"])
def test_scripts_import_coremill_as_coremltools(text: str, tmp_path: Path) -> None:
    """Runs the scripts with `python -m coremill.coremltools`."""
    script = tmp_path / "script.py"
    script.write_text(text)
    done = subprocess.run([sys.executable, "-m", "coremill.coremltools", script, "a"], capture_output=True, text=True, check=False)
    assert done.stdout == "ok 2\n", done.stderr


#: Compresses a trained module with coremltools' own `optimize.torch`, and converts it, as coremltools' guides do.
TRAINING = """
import coremltools as ct
import torch
from coremltools.optimize.torch.palettization import PostTrainingPalettizer, PostTrainingPalettizerConfig
from coremltools.utils import load_spec

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Conv2d(3, 32, 3), torch.nn.ReLU()).eval()
config = PostTrainingPalettizerConfig.from_dict({"global_config": {"n_bits": 4, "lut_dtype": torch.int8, "granularity": "per_tensor"}})
palettized = PostTrainingPalettizer(model, config).compress()
example = torch.rand(1, 3, 8, 8)
traced = torch.jit.trace(palettized, example)
converted = ct.convert(traced, inputs=[ct.TensorType(name="x", shape=example.shape)], minimum_deployment_target=ct.target.iOS18)
converted.save("Palettized.mlpackage")
assert load_spec("Palettized.mlpackage").description.input[0].name == "x"
assert ct.optimize.torch.__file__ and "coremill" in ct.optimize.coreml.experimental.__file__
found = torch.tensor(next(iter(converted.predict({"x": example.numpy()}).values()))).float()
torch.testing.assert_close(found, traced(example), rtol=0.02, atol=0.02)
print("constexpr_lut_to_dense" in str(converted.get_spec().mlProgram))
"""


def test_script_palettizes_with_coremltools_optimize_torch(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    command = [sys.executable, "-m", "coremill.coremltools", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (done.returncode, done.stdout.strip().splitlines()[-1:]) == (0, ["True"]), done.stderr


@pytest.mark.parametrize("mode", ["LINEAR", "LINEAR_SYMMETRIC"])
def test_compute_qparams_matches_coremltools(mode: str) -> None:
    """`optimize.torch` calls `compute_qparams` and `dequantize_by_scale_and_zp`."""
    random = numpy.random.default_rng(7)
    for bits, signed, blocks in itertools.product((4, 6, 8), (True, False), ([0, 0, 0], [1, 0, 0], [1, 2, 0])):
        if (bits, signed) == (6, True):
            continue
        weight = random.normal(0.3, 1.0, (4, 6, 3)).astype(numpy.float32)
        found = _utils.compute_qparams(weight, bits, signed, mode, None, blocks)
        expected = their_utils.compute_qparams(weight, bits, signed, mode, None, blocks)
        for one, other in zip(found, expected, strict=True):
            numpy.testing.assert_array_equal(one, other, strict=True)
        numpy.testing.assert_array_equal(
            _utils.dequantize_by_scale_and_zp(*found), their_utils.dequantize_by_scale_and_zp(*expected), strict=True
        )
    assert _utils.compute_qparams(weight, 4, True, mode, None, [0, 4, 0]) is None


@pytest.mark.alone
def test_import_is_fast_and_loads_no_heavy_modules() -> None:
    """The import takes less than 50 ms of CPU time, and loads neither torch nor numpy."""
    code = """
import sys, time
start = time.process_time()
import coremill.coremltools as ct
ct.convert, ct.ImageType, ct.target, ct.models.MLModel, ct.optimize.coreml
took = time.process_time() - start
print(took, [name for name in ("torch", "numpy", "coremltools", "google.protobuf") if name in sys.modules])
"""
    best = 1.0
    for _ in range(3):
        out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        took, loaded = out.split(" ", 1)
        assert loaded.strip() == "[]"
        best = min(best, float(took))
    assert best < 0.05


class Layers(torch.nn.Module):
    """Two layers of equal size."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(24, 24)
        self.second = torch.nn.Linear(24, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(self.second(torch.relu(self.first(x))))


@pytest.mark.parametrize("is_pipeline", [False, True])
def test_bisected_models_match_whole_model(tmp_path: Path, is_pipeline: bool) -> None:
    """The model is split into two packages, or into a pipeline."""
    x = torch.rand(2, 24)
    whole = tmp_path / "Whole.mlpackage"
    ct.convert(torch.export.export(Layers(), (x,)), compute_precision=ct.precision.FLOAT32).save(str(whole))
    ct.utils.bisect_model(str(whole), str(tmp_path), merge_chunks_to_pipeline=is_pipeline)
    expected = ct.models.MLModel(str(whole)).predict({"x": x})
    if is_pipeline:
        pipeline = ct.models.MLModel(str(tmp_path / "Whole_chunked_pipeline.mlpackage"))
        assert pipeline.get_spec().WhichOneof("Type") == "pipeline"
        found = pipeline.predict({"x": x})
    else:
        pieces = [ct.models.MLModel(str(tmp_path / f"Whole_chunk{at}.mlpackage")) for at in (1, 2)]
        assert [sum(op.type == "linear" for op in piece._spec.mlProgram.functions["main"].block_specializations.popitem()[1].operations) for piece in pieces] == [1, 1]
        found = pieces[1].predict(pieces[0].predict({"x": x}))
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        numpy.testing.assert_array_equal(found[name], value)


class Quantized(torch.nn.Module):
    """Quantizes and dequantizes tensors, per tensor and per channel."""

    def __init__(self) -> None:
        super().__init__()
        scales, zeros = torch.tensor([0.1, 0.2, 0.1, 0.3]), torch.tensor([1, 2, 3, 4])
        weight = torch.quantize_per_channel(torch.rand(5, 4) * 9, scales, zeros, 1, torch.quint8)
        self.weight = torch.nn.Parameter(weight, requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.dequantize(torch.quantize_per_tensor(x, torch.tensor([0.05]), torch.tensor([3]), torch.quint8))
        scales, zeros = torch.tensor([0.1, 0.2, 0.1, 0.3, 0.2]), torch.tensor([1, 2, 3, 4, 5])
        x = torch.dequantize(torch.quantize_per_channel(x, scales, zeros, 1, torch.qint8))
        return x @ torch.dequantize(self.weight)


def test_traced_quantized_tensors_match_torch() -> None:
    """The tolerance is much smaller than a quantization step, so all quantized integers equal torch's."""
    x = torch.rand(3, 5) * 20
    module = Quantized().eval()
    model = ct.convert(
        torch.jit.trace(module, x),
        inputs=[ct.TensorType(name="x", shape=x.shape)],
        compute_precision=ct.precision.FLOAT32,
        minimum_deployment_target=ct.target.iOS17,
    )
    (found,) = model.predict({"x": x}).values()
    numpy.testing.assert_allclose(found, module(x).numpy(), rtol=1e-5, atol=1e-5)


def test_rejects_qint32_quantization() -> None:
    """The error names the supported types."""

    class Wide(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.dequantize(torch.quantize_per_tensor(x, 0.1, 0, torch.qint32))

    traced = torch.jit.trace(Wide(), torch.rand(3))
    with pytest.raises(ValueError, match="must be int8 or uint8, got qint32\nhint: quantize to `torch.qint8`"):
        ct.convert(traced, inputs=[ct.TensorType(shape=(3,))])


class Trained(torch.nn.Module):
    """A pruned and palettized convolution and a pruned linear layer, with coremltools' compression metadata."""

    def __init__(self) -> None:
        super().__init__()
        self.features = torch.nn.Conv2d(8, 16, 2)
        self.head = torch.nn.Sequential(torch.nn.Linear(7, 8))
        with torch.no_grad():
            weight = torch.randint(0, 16, self.features.weight.shape) * 0.125
            self.features.weight.copy_(weight * (torch.rand(weight.shape) < 0.6))
            self.head[0].weight.copy_(torch.randint(0, 2, (8, 7)) * 0.25)
        self.features.register_buffer("_COREML_/weight/compression_type", torch.tensor([1, 2]))
        table = (torch.arange(16) * 0.125).repeat(2, 1)
        self.features.register_buffer("_COREML_/weight/lut", table.reshape(2, 1, 1, 1, 16, 1))
        self.head[0].register_buffer("_COREML_/weight/compression_type", torch.tensor([1]))
        self.register_buffer("_COREML_/metadata_version", torch.tensor(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.features(x)))


@pytest.mark.parametrize("is_traced", [True, False])
def test_training_metadata_compresses_weights_losslessly(is_traced: bool) -> None:
    """Weights are pruned and palettized without loss."""
    torch.manual_seed(5)
    x = torch.rand(1, 8, 8, 8)
    module = Trained().eval()
    source = torch.jit.trace(module, x) if is_traced else torch.export.export(module, (x,))
    options = {"inputs": [ct.TensorType(name="x", shape=x.shape)], "compute_precision": ct.precision.FLOAT32}
    model = ct.convert(source, minimum_deployment_target=ct.target.iOS18, **options)
    (block,) = model._spec.mlProgram.functions["main"].block_specializations.values()
    found = sorted(op.type for op in block.operations if op.type.startswith("constexpr"))
    assert found == ["constexpr_lut_to_sparse", "constexpr_sparse_to_dense", "constexpr_sparse_to_dense"]
    (y,) = model.predict({"x": x}).values()
    numpy.testing.assert_allclose(y, module(x).detach().numpy(), rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="only supported in iOS18"):
        ct.convert(source, minimum_deployment_target=ct.target.iOS16, **options)


def test_rejects_incomplete_compression_metadata() -> None:
    """The error names the parameter and the missing entry."""
    module = Trained().eval()
    module.head[0].register_buffer("_COREML_/bias/quantization_n_bits", torch.tensor(4))
    program = torch.export.export(module, (torch.rand(1, 8, 8, 8),))
    with pytest.raises(ValueError, match="for head.0.bias, but the 'compression_type' is not set"):
        ct.convert(program)
