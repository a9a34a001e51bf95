"""Other model types, assets, pipelines, compute plans and weight files in `coremill.coremltools`."""

import math

import coremltools
import numpy
import pytest
import torch
from coremltools import libmilstoragepython
from coremltools.models.neural_network.quantization_utils import _get_kmeans_lookup_table_and_weight as their_clusters

import coremill
import coremill.coremltools as ct
from coremill.coremltools.libmilstoragepython import _BlobStorageReader, _BlobStorageWriter
from coremill.coremltools.models.compute_device import MLComputeDevice, MLCPUComputeDevice, MLNeuralEngineComputeDevice
from coremill.coremltools.models.compute_plan import MLComputePlan, MLModelStructure
from coremill.coremltools.models.model import MLModelAsset
from coremill.coremltools.models.neural_network.quantization_utils import _get_kmeans_lookup_table_and_weight as clusters
from coremill.coremltools.proto import Model_pb2


def regressor(coefficients, intercept, transform=0):
    """The specification of a linear regressor with a scalar input for each coefficient."""
    spec = Model_pb2.Model(specificationVersion=1)
    for at in range(len(coefficients)):
        spec.description.input.add(name=f"x{at}").type.doubleType.SetInParent()
    spec.description.output.add(name="y").type.doubleType.SetInParent()
    spec.description.predictedFeatureName = "y"
    spec.glmRegressor.offset.append(intercept)
    spec.glmRegressor.weights.add().value.extend(coefficients)
    spec.glmRegressor.postEvaluationTransform = transform
    return spec


@pytest.mark.parametrize("extension", [".mlmodel", ".mlpackage"])
def test_glm_regressor_matches_scikit_learn(tmp_path, extension):
    linear_model = pytest.importorskip("sklearn.linear_model")
    random = numpy.random.default_rng(0)
    x = random.normal(size=(50, 3))
    fitted = linear_model.LinearRegression().fit(x, x @ [1.5, -2.0, 0.25] + 3 + random.normal(size=50))
    model = ct.models.MLModel(regressor(fitted.coef_, fitted.intercept_))
    model.author = "Ada"
    model.input_description["x1"] = "a number"
    model.user_defined_metadata["note"] = "kept"
    path = str(tmp_path / f"Model{extension}")
    model.save(path)
    model.save(path)
    loaded = ct.models.MLModel(path)
    assert loaded.author == "Ada"
    assert loaded.input_description["x1"] == "a number"
    assert loaded.user_defined_metadata["note"] == "kept"
    assert loaded.get_spec().WhichOneof("Type") == "glmRegressor"
    assert loaded.is_package == (extension == ".mlpackage")
    rows = [{f"x{at}": value for at, value in enumerate(row)} for row in x]
    found = [one["y"] for one in loaded.predict(rows)]
    numpy.testing.assert_allclose(found, fitted.predict(x), rtol=1e-12)


@pytest.mark.parametrize(("transform", "reference"), [(1, torch.sigmoid), (2, torch.special.ndtr)])
def test_glm_regressor_applies_logit_and_probit(transform, reference):
    model = ct.models.MLModel(regressor([2.0], -1.0, transform))
    for value in (-400.0, -3.0, 0.5, 2.0, 400.0):
        expected = reference(torch.tensor(2 * value - 1, dtype=torch.float64)).item()
        assert math.isclose(model.predict({"x0": value})["y"], expected, rel_tol=1e-9, abs_tol=1e-300)


def test_neural_networks_load_and_save_but_reject_predict(tmp_path):
    spec = regressor([1.0], 0.0)
    layer = spec.neuralNetwork.layers.add(name="relu", input=["x0"], output=["y"])
    layer.activation.ReLU.SetInParent()
    model = ct.models.MLModel(spec, skip_model_load=True)
    model.short_description = "a network"
    model.save(str(tmp_path / "Network"))
    loaded = ct.models.MLModel(str(tmp_path / "Network.mlmodel"))
    assert loaded.short_description == "a network"
    assert loaded.get_spec().neuralNetwork.layers[0].name == "relu"
    with pytest.raises(NotImplementedError, match="predicting with a `neuralNetwork` is not supported"):
        loaded.predict({"x0": 1.0})
    with pytest.raises(NotImplementedError, match="compiling with a `neuralNetwork` is not supported"):
        loaded.get_compiled_model_path()
    with pytest.raises(TypeError, match="reshapeFrequency"):
        ct.models.MLModel(spec, optimization_hints={"reshapeFrequency": 12})


def linear():
    """A linear layer and the converted model."""
    module = torch.nn.Linear(3, 4).eval()
    program = torch.export.export(module, (torch.rand(2, 3),))
    return module, ct.convert(program, outputs=[ct.TensorType(name="y")], compute_precision=ct.precision.FLOAT32)


def test_predicts_from_in_memory_model_assets():
    module, model = linear()
    x = torch.rand(2, 3)
    with open(f"{model.weights_dir}/weight.bin", "rb") as file:
        blobs = {"weights/weight.bin": file.read()}
    asset = MLModelAsset.from_memory(model.get_spec().SerializeToString(), blobs)
    for one in (asset, MLModelAsset.from_path(model.get_compiled_model_path())):
        found = ct.models.CompiledMLModel.from_asset(one).predict({"input": x})["y"]
        numpy.testing.assert_allclose(found, module(x).detach(), rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="weight paths must have the form"):
        MLModelAsset.from_memory(b"", {"weights/../../a": b""})


def two_stages():
    """Two linear layers, and the converted model of each."""
    layers, models = (torch.nn.Linear(3, 4).eval(), torch.nn.Linear(4, 2).eval()), []
    for module, size, names in zip(layers, (3, 4), (("x", "h"), ("h", "y")), strict=True):
        program = torch.export.export(module, (torch.rand(2, size),))
        kinds = [ct.TensorType(name=names[0])], [ct.TensorType(name=names[1])]
        models.append(ct.convert(program, inputs=kinds[0], outputs=kinds[1], compute_precision=ct.precision.FLOAT32))
    return layers, models


def test_pipelines_run_their_stages_in_order(tmp_path):
    (first, second), models = two_stages()
    made = ct.utils.make_pipeline(*models)
    made.save(str(tmp_path / "Pipeline.mlpackage"))
    spec = made.get_spec()
    assert [[feature.name for feature in part] for part in (spec.description.input, spec.description.output)] == [["x"], ["y"]]
    assert len(ct.utils.load_spec(str(tmp_path / "Pipeline.mlpackage")).pipeline.models) == 2
    x = torch.rand(2, 3)
    for model in (made, ct.models.MLModel(str(tmp_path / "Pipeline.mlpackage"))):
        numpy.testing.assert_allclose(model.predict({"x": x})["y"], second(first(x)).detach(), rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="at least two models"):
        ct.utils.make_pipeline(models[0])
    with pytest.raises(NotImplementedError, match="a pipeline with a `glmRegressor`"):
        ct.utils.make_pipeline(models[0], ct.models.MLModel(regressor([1.0], 0.0)))


class Detector(torch.nn.Module):
    """Returns the confidences of three classes and a box for each pixel of an image."""

    def forward(self, image):
        rows = image.flatten(2)[0].T
        return rows, torch.cat([rows[:, :2] * 4, rows[:, 1:] + 1], 1)


def detector(package, decoder, names):
    """A pipeline of a decoder and of non-maximum suppression, made with coremltools or coremill."""
    schema, models = package.proto.Model_pb2, package.models
    stage = schema.Model.FromString(decoder.get_spec().SerializeToString())
    spec = schema.Model(specificationVersion=stage.specificationVersion)
    for feature, name in zip(stage.description.output, names, strict=True):
        spec.description.input.add().CopyFrom(feature)
        output = spec.description.output.add(name=name)
        output.type.CopyFrom(feature.type)
        array = output.type.multiArrayType
        for low, high in ((0, -1), (array.shape[1], array.shape[1])):
            array.shapeRange.sizeRanges.add(lowerBound=low, upperBound=high)
        del array.shape[:]
    boxes = spec.nonMaximumSuppression
    boxes.confidenceInputFeatureName, boxes.coordinatesInputFeatureName = (one.name for one in spec.description.input)
    boxes.confidenceOutputFeatureName, boxes.coordinatesOutputFeatureName = names
    boxes.iouThresholdInputFeatureName, boxes.confidenceThresholdInputFeatureName = "iou", "threshold"
    boxes.iouThreshold, boxes.confidenceThreshold = 0.3, 0.5
    boxes.pickTop.perClass = True
    boxes.stringClassLabels.vector.extend(["ant", "bee", "cat"])
    types = models.datatypes
    made = models.pipeline.Pipeline(
        [("image", types.Array(3, 12, 16)), ("iou", types.Double()), ("threshold", float)], list(names)
    )
    made.add_model(stage)
    made.add_model(spec)
    made.spec.description.input[0].CopyFrom(stage.description.input[0])
    for at in range(2):
        made.spec.description.output[at].CopyFrom(spec.description.output[at])
    return made.spec


@pytest.mark.parametrize("overrides", [{}, {"iou": 0.05, "threshold": 0.9}, {"iou": 1.0}, {"threshold": 2.0}])
@pytest.mark.parametrize("is_per_class", [True, False])
def test_detector_nms_matches_torchvision(tmp_path, overrides, is_per_class):
    boxes_of = pytest.importorskip("torchvision.ops")
    image_module = pytest.importorskip("PIL.Image")
    module = Detector().eval()
    decoder = ct.convert(
        torch.jit.trace(module, torch.rand(1, 3, 12, 16)),
        inputs=[ct.ImageType(name="image", shape=(1, 3, 12, 16), scale=1 / 255)],
        compute_precision=ct.precision.FLOAT32,
    )
    spec = detector(ct, decoder, ("confidence", "coordinates"))
    assert spec.SerializeToString(deterministic=True) == detector(
        coremltools, decoder, ("confidence", "coordinates")
    ).SerializeToString(deterministic=True)
    spec.pipeline.models[1].nonMaximumSuppression.pickTop.perClass = is_per_class
    made = ct.models.MLModel(spec, weights_dir=decoder.weights_dir, skip_model_load=True)
    made.input_description["iou"] = "overlap"
    made.save(str(tmp_path / "Detector.mlpackage"))
    pixels = numpy.random.default_rng(0).integers(0, 256, (12, 16, 3), dtype=numpy.uint8)
    found = ct.models.MLModel(str(tmp_path / "Detector.mlpackage")).predict(
        {"image": image_module.fromarray(pixels), **overrides}
    )

    scores, boxes = module(torch.tensor(pixels.transpose(2, 0, 1)[None] / 255))
    best, classes = scores.max(1)
    likely = best >= overrides.get("threshold", 0.5)
    scores, boxes, best, classes = scores[likely], boxes[likely], best[likely], classes[likely]
    corners = torch.cat([boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2], 1)
    groups = classes if is_per_class else torch.zeros_like(classes)
    kept = boxes_of.batched_nms(corners, best, groups, overrides.get("iou", 0.3))
    assert (len(kept) < len(best)) == (overrides.get("iou") != 1.0 and overrides.get("threshold") != 2.0)
    for name, expected in (("confidence", scores), ("coordinates", boxes)):
        order = [0, 1, 2] if name == "confidence" else [0, 1, 2, 3]
        ours, theirs = (numpy.array(sorted(rows[:, order].tolist())) for rows in (found[name], expected[kept].numpy()))
        assert ours.shape == theirs.shape
        if len(ours):
            numpy.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    assert (numpy.diff(found["confidence"].max(1, initial=0)) <= 0).all()


def test_nms_pads_output_to_fixed_rows():
    spec = Model_pb2.Model(specificationVersion=5)
    for name, size in (("a", 2), ("b", 4)):
        spec.description.input.add(name=name).type.multiArrayType.dataType = 65568
        output = spec.description.output.add(name=name.upper())
        output.type.multiArrayType.dataType = 65568
        output.type.multiArrayType.shape.extend([3, size])
    boxes = spec.nonMaximumSuppression
    boxes.confidenceInputFeatureName, boxes.coordinatesInputFeatureName = "a", "b"
    boxes.confidenceOutputFeatureName, boxes.coordinatesOutputFeatureName = "A", "B"
    boxes.iouThreshold, boxes.confidenceThreshold = 0.5, 0.1
    boxes.pickTop.SetInParent()
    model = ct.models.MLModel(spec)
    scores = numpy.array([[0.2, 0.3], [0.9, 0.0], [0.0, 0.8], [0.05, 0.01], [0.4, 0.6]], numpy.float32)
    boxes = numpy.array([[at * 2.0, 0, 1, 1] for at in range(5)], numpy.float32)
    found = model.predict({"a": scores, "b": boxes})
    assert found["A"].tolist() == scores[[1, 2, 4]].tolist() and found["B"].tolist() == boxes[[1, 2, 4]].tolist()
    found = model.predict({"a": scores[:2], "b": boxes[:2] * [0, 1, 1, 1]})
    assert found["A"].tolist() == [*scores[[1]].tolist(), [0, 0], [0, 0]] and found["B"].shape == (3, 4)
    with pytest.raises(RuntimeError, match="the input `b` is missing"):
        model.predict({"a": scores})
    with pytest.raises(RuntimeError, match=r"expected confidences of shape \(boxes, classes\)"):
        model.predict({"a": scores, "b": boxes[:3]})


@pytest.mark.parametrize("kind", ["classifier", "regressor"])
def test_pipeline_specs_match_coremltools(kind):
    def spec(package):
        types = package.models.datatypes
        features = [("a", types.Array(2, 3)), ("b", types.Int64()), ("c", types.Dictionary(str)), ("d", "Double")]
        pipeline = package.models.pipeline
        if kind == "classifier":
            return pipeline.PipelineClassifier(features, ["x", "y"]).spec
        return pipeline.PipelineRegressor(features, [("y", types.Double())]).spec

    assert spec(ct).SerializeToString(deterministic=True) == spec(coremltools).SerializeToString(deterministic=True)
    with pytest.raises(TypeError, match="is not a type of"):
        ct.models.pipeline.Pipeline([("a", 3)], ["y"])


def test_pipelines_on_disk_keep_their_stages(tmp_path):
    (first, second), models = two_stages()
    path = str(tmp_path / "Pipeline.mlpackage")
    ct.utils.make_pipeline(*models).save(path)
    model = ct.models.MLModel(path)
    spec = model.get_spec()
    assert spec.WhichOneof("Type") == "pipeline"
    assert [stage.description.output[0].name for stage in spec.pipeline.models] == ["h", "y"]
    # Changes of metadata and descriptions do not affect the stages.
    model.author = "Ada"
    model.input_description["x"] = "a vector"
    assert model.input_description["x"] == "a vector"
    copy = str(tmp_path / "Copy.mlpackage")
    model.save(copy)
    theirs = coremltools.models.MLModel(copy, skip_model_load=True)
    assert (theirs.author, theirs.input_description["x"]) == ("Ada", "a vector")
    assert len(theirs.get_spec().pipeline.models) == 2
    x = torch.rand(2, 3)
    expected = second(first(x)).detach()
    compiled = ct.models.CompiledMLModel(model.get_compiled_model_path())
    for one in (model, ct.models.MLModel(copy), compiled):
        numpy.testing.assert_allclose(one.predict({"x": x})["y"], expected, rtol=1e-5, atol=1e-6)
    # A renamed value between stages still connects them.
    for name, new in (("x", "given"), ("y", "scores")):
        ct.utils.rename_feature(spec, name, new)
    renamed = ct.models.MLModel(spec, weights_dir=model.weights_dir)
    assert renamed.get_spec().WhichOneof("Type") == "pipeline"
    numpy.testing.assert_allclose(renamed.predict({"given": x})["scores"], expected, rtol=1e-5, atol=1e-6)
    structure = MLModelStructure.load_from_path(path)
    assert [name for name, _ in structure.pipeline.sub_models] == list(spec.pipeline.names)
    stage = structure.pipeline.sub_models[1][1].program.functions["main"]
    assert [value.name for value in stage.inputs] == ["h"]
    # Weights are compressed in one program.
    config = ct.optimize.coreml.OptimizationConfig(ct.optimize.coreml.OpLinearQuantizerConfig(weight_threshold=1))
    small = ct.optimize.coreml.linear_quantize_weights(model, config)
    numpy.testing.assert_allclose(small.predict({"x": x})["y"], expected, rtol=0.05, atol=0.05)


def test_randomize_weights_is_seeded_and_keeps_structure():
    program = torch.export.export(torch.nn.Linear(24, 16).eval(), (torch.rand(2, 24),))
    model = ct.convert(program, inputs=[ct.TensorType(name="x")], outputs=[ct.TensorType(name="y")])
    x = torch.rand(2, 24)
    optimize = ct.optimize.coreml
    palettes = optimize.OptimizationConfig(optimize.OpPalettizerConfig(nbits=2, weight_threshold=1))
    pruner = optimize.OpMagnitudePrunerConfig(target_sparsity=0.5, weight_threshold=1)
    pruned = optimize.prune_weights(model, optimize.OptimizationConfig(pruner))
    for kind, one in {"plain": model, "palettes": optimize.palettize_weights(model, palettes), "pruned": pruned}.items():
        numpy.random.seed(3)
        made = [ct.utils.randomize_weights(one).predict({"x": x})["y"] for _ in range(2)]
        numpy.random.seed(3)
        again = ct.utils.randomize_weights(one).predict({"x": x})["y"]
        assert (again == made[0]).all(), kind
        assert (made[0] != made[1]).any(), kind
        assert (made[0] != one.predict({"x": x})["y"]).any(), kind
        assert numpy.isfinite(made).all(), kind
        # The operations stay the same.
        kinds = [[op.op_type for op in each._mil_program.functions["main"].operations] for each in (one, ct.utils.randomize_weights(one))]
        assert kinds[0] == kinds[1]


def test_evaluation_helpers_compute_error_metrics():
    pandas = pytest.importorskip("pandas")
    model = ct.models.MLModel(regressor([2.0], 1.0))
    data = pandas.DataFrame({"x0": [0.0, 1.0, 2.0], "y": [1.0, 3.5, 4.0], "note": ["a", "b", "c"]})
    found = ct.utils.evaluate_regressor(model, data, target="y")
    theirs = {"samples": 3, "rmse": math.sqrt(1.25 / 3), "max_error": 1.0}
    assert found == pytest.approx(theirs)
    rows = [{"x0": value} for value in data["x0"]]
    references = [{"y": value} for value in data["y"]]
    assert ct.utils.evaluate_transformer(model, rows, references) == {"num_samples": 3, "num_errors": 2}
    labels = ["ant", "bee", "cat"]
    program = torch.export.export(torch.nn.Softmax(1), (torch.rand(1, 3),))
    classifier = ct.convert(
        program, inputs=[ct.TensorType(name="x")], outputs=[ct.TensorType(name="p")], classifier_config=ct.ClassifierConfig(labels)
    )
    x = [numpy.eye(3, dtype=numpy.float32)[[at]] for at in range(3)]
    data = pandas.DataFrame({"x": x, "classLabel": ["ant", "bee", "ant"]})
    assert ct.utils.evaluate_classifier(classifier, data, target="classLabel") == {"num_samples": 3, "num_errors": 1}
    softmax = [dict(zip(labels, torch.softmax(torch.from_numpy(one), 1)[0].tolist(), strict=True)) for one in x]
    data = pandas.DataFrame({"x": x, "classLabel_probs": [softmax[0], softmax[1], {"dog": 1.0}]})
    found = ct.utils.evaluate_classifier_with_probabilities(classifier, data, probabilities="classLabel_probs")
    assert found["num_key_mismatch"] == 1
    assert 0 <= found["max_probability_error"] < 1e-3


def test_model_structure_lists_program_operations():
    _, model = linear()
    structure = MLModelStructure.load_from_path(model.get_compiled_model_path())
    function = structure.program.functions["main"]
    spec = model.get_spec().mlProgram.functions["main"]
    block = spec.block_specializations[spec.opset]
    assert [value.name for value in function.inputs] == ["input"]
    assert [op.operator_name for op in function.block.operations] == [op.type for op in block.operations]
    last = function.block.operations[-1]
    assert last.operator_name == "linear"
    assert [value.name for value in last.outputs] == function.block.output_names == ["y"]
    assert [bound.name for bound in last.inputs["x"].bindings] == ["input"]
    assert isinstance(ct.models.MLModel.get_available_compute_devices()[0], MLCPUComputeDevice)
    assert len(MLComputeDevice.get_all_compute_devices()) == 1


def test_compute_plans_match_forecast():
    """Preferred devices equal those of `coremill.Model.forecast`, for a package and for a compiled model."""
    layers = [torch.nn.Conv2d(3, 64, 3), torch.nn.ReLU(), torch.nn.Conv2d(64, 64, 3), torch.nn.Flatten(), torch.nn.LogSoftmax(-1)]
    program = torch.export.export(torch.nn.Sequential(*layers).eval(), (torch.rand(1, 3, 64, 64),))
    model = ct.convert(program)
    forecast = coremill.convert(program).forecast()
    expected = [(one["operator"].partition(".")[2], one["preferred"]) for one in forecast["operations"]]
    assert {device for _, device in expected} == {"neural-engine", "cpu"}
    assert "forecast for M4, not a record" in str(forecast)
    for path in (model.get_compiled_model_path(), model.package_path):
        with pytest.warns(UserWarning, match="this plan is a forecast for M4"):
            plan = MLComputePlan.load_from_path(path, ct.ComputeUnit.CPU_AND_NE)
        found = []
        total = 0.0
        for op in plan.model_structure.program.functions["main"].block.operations:
            usage = plan.get_compute_device_usage_for_mlprogram_operation(op)
            cost = plan.get_estimated_cost_for_mlprogram_operation(op)
            assert (usage is None) == op.operator_name.startswith("const") == (cost is None)
            if usage is not None:
                assert type(usage.preferred_compute_device) in map(type, usage.supported_compute_devices)
                is_engine = isinstance(usage.preferred_compute_device, MLNeuralEngineComputeDevice)
                found.append((op.operator_name, "neural-engine" if is_engine else "cpu"))
                total += cost.weight
        assert found == expected
        assert total == pytest.approx(1.0)
    with pytest.warns(UserWarning, match="forecast"):
        plan = MLComputePlan.load_from_path(path, ct.ComputeUnit.CPU_ONLY)
    op = plan.model_structure.program.functions["main"].block.operations[-1]
    assert str(plan.get_compute_device_usage_for_mlprogram_operation(op).preferred_compute_device).startswith(
        "<coremltools.models.compute_device.MLCPUComputeDevice "
    )
    with pytest.raises(ValueError, match="not part of this plan's"):
        plan.get_estimated_cost_for_mlprogram_operation(op._replace())
    with pytest.raises(NotImplementedError, match="GPU times are not published"):
        MLComputePlan.load_from_path(path, ct.ComputeUnit.CPU_AND_GPU)
    with pytest.raises(coremill.OptionError, match="unknown chip or device `m0`"):
        coremill.convert(program).forecast(device="m0")


@pytest.mark.parametrize(("shape", "dtype"), [((40, 300), "float16"), ((40, 300), "float32"), ((3, 5), "float32"), ((2, 3), "float16")])
def test_kmeans_lookup_tables_are_as_good_as_coremltools(shape: tuple, dtype: str) -> None:
    """Scripts that choose the bits of each layer call this helper."""
    weight = numpy.random.default_rng(0).standard_normal(shape).astype(dtype)
    for bits in (1, 2, 4, 6):
        table, indices = clusters(bits, weight)
        expected, theirs = their_clusters(bits, weight)
        assert table.shape == expected.shape
        assert indices.shape == theirs.shape
        errors = [numpy.square(one[at].reshape(shape) - weight.astype(float)).sum() for one, at in ((table, indices), (expected, theirs))]
        # Both run k-means; for large fp16 weights, coremltools uses an algorithm that finds the optimum.
        assert errors[0] <= errors[1] * 1.005 + 1e-6
    with pytest.raises(NotImplementedError, match="palettize_weights"):
        clusters(2, weight, cluster_dim=2)


#: The smallest and the largest value of each integer type in weight files.
LIMITS = {
    **{f"uint{bits}": (0, 2**bits - 1) for bits in (1, 2, 3, 4, 6, 8, 16, 32)},
    **{f"int{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (4, 8, 16, 32)},
}


def test_blob_storage_matches_coremltools(tmp_path):
    """Files, offsets and elements are equal for random weights of each type and of many lengths."""
    random = numpy.random.default_rng(0)
    weights = [(kind, random.integers(low, high, size, endpoint=True)) for size in range(1, 70) for kind, (low, high) in LIMITS.items()]
    weights += [("float", random.standard_normal(size).astype(numpy.float32)) for size in range(1, 9)]
    weights += [("fp16", random.standard_normal(size).astype(numpy.float16).view(numpy.uint16)) for size in range(1, 9)]
    paths = [tmp_path / "ours.bin", tmp_path / "theirs.bin"]
    offsets = []
    for package, path in zip((_BlobStorageWriter, libmilstoragepython._BlobStorageWriter), paths, strict=True):
        found = []
        for part, is_new in ((weights[:1], True), (weights[1:], False)):
            writer = package(str(path), truncate_file=is_new)
            found += [getattr(writer, f"write_{kind}_data")(values) for kind, values in part]
            del writer
        offsets.append(found)
    assert offsets[0] == offsets[1]
    assert paths[0].read_bytes() == paths[1].read_bytes()
    ours, theirs = _BlobStorageReader(str(paths[0])), libmilstoragepython._BlobStorageReader(str(paths[1]))
    for (kind, values), offset in zip(weights, offsets[0], strict=True):
        read, expected = (getattr(reader, f"read_{kind}_data")(offset) for reader in (ours, theirs))
        assert read.dtype == expected.dtype
        numpy.testing.assert_array_equal(read, expected)
        numpy.testing.assert_array_equal(read, values)
    for reader in (ours, theirs):
        with pytest.raises(RuntimeError, match="does not match requested type"):
            reader.read_fp16_data(offsets[0][0])
        with pytest.raises(RuntimeError, match="Invalid sentinel"):
            reader.read_float_data(32)
        with pytest.raises(ValueError, match="index out of bounds"):
            reader.read_float_data(10**9)
    for package in (_BlobStorageWriter, libmilstoragepython._BlobStorageWriter):
        with pytest.raises(ValueError, match=r"Value -9 is outside allowed subbyte datatype range \[-8, 7\]"):
            package(str(tmp_path / "bad.bin")).write_int4_data(numpy.array([1, -9]))


def test_blob_reader_reads_package_weights():
    """The offset comes from the model's specification."""
    module = torch.nn.Linear(40, 30)
    model = ct.convert(torch.export.export(module, (torch.rand(1, 40),)), compute_precision=ct.precision.FLOAT32)
    operations = model.get_spec().mlProgram.functions["main"].block_specializations["CoreML5"].operations
    [blob] = [op.attributes["val"].blobFileValue for op in operations if op.attributes["val"].HasField("blobFileValue")]
    path = blob.fileName.replace("@model_path/weights", model.weights_dir)
    weight = _BlobStorageReader(path).read_float_data(blob.offset)
    numpy.testing.assert_array_equal(weight.reshape(30, 40), module.weight.detach().numpy())
