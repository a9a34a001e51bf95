"""Models of other kinds, assets, devices and structures in `coremill.coremltools`."""

import math

import numpy
import pytest
import torch

import coremill.coremltools as ct
from coremill.coremltools.models.compute_device import MLComputeDevice, MLCPUComputeDevice
from coremill.coremltools.models.compute_plan import MLComputePlan, MLModelStructure
from coremill.coremltools.models.model import MLModelAsset
from coremill.coremltools.proto import Model_pb2


def regressor(coefficients, intercept, transform=0):
    """The specification of a linear regressor with a number for each coefficient."""
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
def test_regressors_predict_as_scikit_learn_does(tmp_path, extension):
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
def test_transforms_of_regressors(transform, reference):
    model = ct.models.MLModel(regressor([2.0], -1.0, transform))
    for value in (-400.0, -3.0, 0.5, 2.0, 400.0):
        expected = reference(torch.tensor(2 * value - 1, dtype=torch.float64)).item()
        assert math.isclose(model.predict({"x0": value})["y"], expected, rel_tol=1e-9, abs_tol=1e-300)


def test_models_that_cannot_predict_are_read_and_saved(tmp_path):
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
    """A converted layer and its module."""
    module = torch.nn.Linear(3, 4).eval()
    program = torch.export.export(module, (torch.rand(2, 3),))
    return module, ct.convert(program, outputs=[ct.TensorType(name="y")], compute_precision=ct.precision.FLOAT32)


def test_assets_in_memory_predict():
    module, model = linear()
    x = torch.rand(2, 3)
    with open(f"{model.weights_dir}/weight.bin", "rb") as file:
        blobs = {"weights/weight.bin": file.read()}
    asset = MLModelAsset.from_memory(model.get_spec().SerializeToString(), blobs)
    for one in (asset, MLModelAsset.from_path(model.get_compiled_model_path())):
        found = ct.models.CompiledMLModel.from_asset(one).predict({"input": x})["y"]
        numpy.testing.assert_allclose(found, module(x).detach(), rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="weights are files"):
        MLModelAsset.from_memory(b"", {"weights/../../a": b""})


def test_pipelines_run_their_stages_in_order(tmp_path):
    first, second = torch.nn.Linear(3, 4).eval(), torch.nn.Linear(4, 2).eval()
    models = []
    for module, size, names in ((first, 3, ("x", "h")), (second, 4, ("h", "y"))):
        program = torch.export.export(module, (torch.rand(2, size),))
        kinds = [ct.TensorType(name=names[0])], [ct.TensorType(name=names[1])]
        models.append(ct.convert(program, inputs=kinds[0], outputs=kinds[1], compute_precision=ct.precision.FLOAT32))
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


def test_structures_list_the_operations_of_the_program():
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
    with pytest.raises(NotImplementedError, match="coremill plan"):
        MLComputePlan.load_from_path(model.get_compiled_model_path())
