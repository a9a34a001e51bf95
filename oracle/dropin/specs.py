"""Prints the compile specs of a backend by name: `python specs.py BACKEND ENUMERATIONS`."""

import importlib
import json
import sys
from typing import Any

NAMES = [
    "defaults", "all", "no target", "old", "cpu", "gpu", "compiled", "quantizer", "passes", "positional", "disabled",
    "shapes", "read",
]


def made(backend: str, enumerations: str) -> dict[str, Any]:
    """Returns the specs as keys and strings."""
    import torch

    compiler = importlib.import_module(f"{backend}.compiler.coreml_preprocess")
    ct = importlib.import_module(enumerations)
    CoreML, sharing = compiler.CoreMLBackend, compiler.MULTIMETHOD_WEIGHT_SHARING_STRATEGY

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> Any:
            return x.sum() + y + z

    size = torch.export.Dim.AUTO
    program = torch.export.export(
        Model(), (torch.randn(4, 6, 10), torch.randn(5, 11), torch.randn(5, 11)),
        dynamic_shapes=({0: size(min=1, max=4), 1: size(min=5)}, {0: size(min=3, max=5)}, {0: size(min=3, max=5)}),
    )
    shapes = {"x": [[1, 5, 10], [4, 6, 10]], "y": [[3, 11], [5, 11]], "z": [[3, 11], [5, 11]]}
    specs = {
        "defaults": CoreML.generate_compile_specs(),
        "all": CoreML.generate_compile_specs(
            ct.ComputeUnit.CPU_AND_NE, ct.target.macOS15, ct.precision.FLOAT32, CoreML.MODEL_TYPE.COMPILED_MODEL,
            {"mode": "linear_symmetric", "dtype": "int4"}, ["common::cast_optimization"],
        ),
        "no target": [CoreML.generate_minimum_deployment_target_compile_spec(None)],
        "old": [CoreML.generate_minimum_deployment_target_compile_spec(ct.target.iOS13)],
        "cpu": [CoreML.generate_compute_unit_compile_spec(ct.ComputeUnit.CPU_ONLY)],
        "gpu": [CoreML.generate_compute_unit_compile_spec(ct.ComputeUnit.CPU_AND_GPU)],
        "compiled": [CoreML.generate_model_type_compile_spec(CoreML.MODEL_TYPE.COMPILED_MODEL)],
        "quantizer": [CoreML.generate_op_linear_quantizer_config_compile_spec({"weight_threshold": 8, "x": [1, None]})],
        "passes": [CoreML.generate_pass_pipeline_compile_spec([])],
        "positional": [CoreML.generate_multimethod_weight_sharing_strategy_compile_spec(sharing.POSITIONAL)],
        "disabled": [CoreML.generate_multimethod_weight_sharing_strategy_compile_spec(sharing.DISABLED)],
        "shapes": [CoreML.generate_enumerated_shapes_compile_spec(program, shapes)],
    }
    found: dict[str, Any] = {name: [[one.key, one.value.decode()] for one in of] for name, of in specs.items()}
    given = specs["all"] + specs["disabled"] + specs["shapes"]
    found["read"] = [
        CoreML.model_type_from_compile_specs(given).name,
        CoreML.model_compute_precision_from_compile_specs(given).name,
        CoreML.min_deployment_target_from_compile_specs(given).name,
        CoreML.min_deployment_target_from_compile_specs([]) is None,
        CoreML.compute_unit_from_compile_specs(given).name,
        CoreML.compute_unit_from_compile_specs([]).name,
        CoreML.pass_pipeline_from_compile_specs(given).passes,
        CoreML.multimethod_weight_sharing_strategy_from_compile_specs(given).name,
        CoreML.enumerated_shapes_from_compile_specs(given).to_json(),
    ]
    return found


if __name__ == "__main__":
    print(json.dumps(made(sys.argv[1], sys.argv[2])))
