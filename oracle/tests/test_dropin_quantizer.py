"""Our CoreMLQuantizer annotates the same nodes as ExecuTorch's."""

import json
import time

import pytest
import torch

from coremill.executorch import quantizer
from oracle.dropin import annotated
from oracle.dropin.annotated import CASES, GOLDEN, MARK, config, graph, marks

LIBRARIES = ("coremill.executorch.quantizer.config", "coremltools.optimize.torch.quantization")
THEIRS = json.loads(GOLDEN.read_text())


@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_annotations_match_executorch_quantizer(case: tuple[str, str]) -> None:
    """The annotated calls, arguments and observers are equal, for configs of both libraries."""
    model, name = case
    module = graph(model)
    for library in LIBRARIES:
        for node in module.graph.nodes:
            node.meta.pop(MARK, None)
        quantizer.CoreMLQuantizer(config(library, name)).annotate(module)
        assert json.loads(json.dumps(marks(module))) == THEIRS[" ".join(case)]


def test_recorded_cases_match_tested_cases() -> None:
    assert sorted(THEIRS) == sorted(map(" ".join, CASES))
    assert all(found for found in THEIRS.values())


def test_annotate_takes_under_half_second() -> None:
    """ExecuTorch's quantizer needs a minute of CPU time for any model, because it exports 405 patterns."""
    module = graph("mobilenet")
    start = time.process_time()
    quantizer.CoreMLQuantizer(config(LIBRARIES[0], "static")).annotate(module)
    assert time.process_time() - start < 0.5


@pytest.mark.parametrize("way", ["PTQ", "QAT"])
def test_torchao_prepares_and_converts_annotated_model(way: str) -> None:
    """torchao prepares and converts an annotated model, and the results stay close."""
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e, prepare_qat_pt2e

    torch.manual_seed(0)
    model = annotated.MODELS["residual"][0]().eval()
    inputs = (torch.randn(1, 3, 16, 16),)
    module = torch.export.export(model, inputs, strict=True).module()
    marked = quantizer.CoreMLQuantizer(config(LIBRARIES[0], "static"))
    prepared = (prepare_pt2e if way == "PTQ" else prepare_qat_pt2e)(module, marked)
    prepared(*inputs)
    converted = convert_pt2e(prepared)
    wanted, found = model(*inputs)[0], converted(*inputs)[0]
    assert (wanted - found).abs().max() < 0.1 * wanted.abs().max()


def test_rejects_invalid_quantizer_configs() -> None:
    """Configs that coremltools refuses are refused, with the supported types."""
    implementation = quantizer.coreml_quantizer
    ours = __import__(LIBRARIES[0], fromlist=["x"])
    with pytest.raises(ValueError, match="weight_dtype must be one of qint4"):
        ours.ModuleLinearQuantizerConfig(weight_dtype="int3")
    with pytest.raises(ValueError, match="quantization_scheme must be the same"):
        ours.LinearQuantizerConfig.from_dict(
            {"global_config": {}, "module_name_configs": {"a": {"quantization_scheme": "affine"}}}
        )
    with pytest.raises(ValueError, match="has no field 'weights'"):
        ours.LinearQuantizerConfig.from_dict({"global_config": {"weights": "qint8"}})
    config = ours.LinearQuantizerConfig.from_dict({"global_config": {"weight_observer": "ema_min_max"}})
    with pytest.raises(ValueError, match="Unsupported observer type: ema_min_max; expected one of"):
        implementation.CoreMLQuantizer(config).annotate(graph("tied"))
