"""Records the annotations of ExecuTorch's CoreMLQuantizer, for models that contain all its patterns:

    python -m oracle.dropin.annotated

It takes minutes, because the quantizer exports every pattern again. The tests compare our quantizer with the result,
`annotations.json`.
"""

import importlib
import json
import operator
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

#: The metadata key under which torchao stores annotations.
MARK = "quantization_annotation"
GOLDEN = Path(__file__).parent / "annotations.json"
THEIRS = "executorch.backends.apple.coreml.quantizer"
OURS = "coremill.executorch.quantizer"


class Call(nn.Module):
    """A module of a function and the modules that it uses."""

    def __init__(self, function: Callable[..., Any], **modules: nn.Module) -> None:
        super().__init__()
        for name, module in modules.items():
            self.add_module(name, module)
        self.function = function

    def forward(self, *args: torch.Tensor) -> Any:
        return self.function(self, *args)


def activations() -> nn.Module:
    """A linear layer before each activation; some activations are in-place."""
    acts = [
        nn.ReLU(), nn.ReLU(inplace=True), nn.ReLU6(), nn.LeakyReLU(), nn.SiLU(inplace=True), nn.ELU(), nn.CELU(),
        nn.SELU(inplace=True), nn.Mish(), nn.Hardtanh(-2, 2), nn.Hardtanh(0, 6), nn.Hardswish(inplace=True),
        nn.Hardsigmoid(), nn.GELU(), nn.GELU(approximate="tanh"), nn.Sigmoid(), nn.LogSigmoid(), nn.Tanh(), nn.Softplus(),
        nn.Softmax(-1),
    ]
    return nn.Sequential(*(module for act in acts for module in (nn.Linear(6, 6), act)))


def convolutions() -> nn.Module:
    """Convolutions in one and two dimensions, with and without normalization."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU6(inplace=True),
        nn.Conv2d(8, 8, 3, groups=8, padding="same"), nn.ReLU(),
        nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8, affine=False),
        nn.ConvTranspose2d(8, 8, 2), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 4, (1, 3), padding=(0, 1)), nn.MaxPool2d(2), nn.Conv2d(4, 4, 1), nn.AvgPool2d(2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 4),
        nn.BatchNorm1d(4),
    )


def lines_and_volumes() -> nn.Module:
    """Convolutions and pools in one and three dimensions."""
    def forward(self: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
        return F.adaptive_avg_pool1d(self.line(x), 2), torch.mean(self.volume(y), (2, 3))

    line = nn.Sequential(nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4), nn.SiLU(), nn.MaxPool1d(2), nn.Conv1d(4, 4, 1), nn.AvgPool1d(2))
    volume = nn.Sequential(nn.Conv3d(2, 3, 3), nn.ReLU(), nn.MaxPool3d(2), nn.Conv3d(3, 3, 1), nn.AdaptiveAvgPool3d(1), nn.AvgPool3d(1))
    return Call(forward, line=line, volume=volume)


def sums() -> nn.Module:
    """Sums and products of two tensors, of a tensor with itself and with a number, in place and out of place."""
    def forward(self: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
        a = F.relu(x + y)
        b = a + a
        c = b * 2.0
        d = torch.mul(c, y)
        e = operator.iadd(d * x, y)
        e = operator.imul(e, x)
        f = F.hardswish(torch.add(e, x, alpha=2))
        g = torch.sigmoid(torch.matmul(f, y.transpose(-1, -2)))
        h = torch.matmul(g, y)
        shared = x + h
        return F.relu_(shared + 1), torch.tanh(h * shared), F.gelu(2 + y), shared

    return Call(forward)


def residual() -> nn.Module:
    """Residual branches, a layer that is used twice, and a result with two users."""
    def forward(self: nn.Module, x: torch.Tensor) -> Any:
        stem = self.act(self.norm(self.conv(x)))
        branch = self.second(stem)
        joined = F.relu(stem + branch)
        again = self.second(joined)
        raw = self.third(again)
        return torch.relu(raw) + raw, torch.flatten(again, 1)

    return Call(
        forward, conv=nn.Conv2d(3, 6, 3, padding=1), norm=nn.BatchNorm2d(6), act=nn.ReLU(inplace=True),
        second=nn.Conv2d(6, 6, 1), third=nn.Conv2d(6, 6, 1),
    )


def tied() -> nn.Module:
    """Two linear layers that share a weight, and one without a bias."""
    first, second = nn.Linear(6, 6), nn.Linear(6, 6)
    second.weight = first.weight
    return nn.Sequential(first, nn.ReLU(), second, nn.GELU(), nn.Linear(6, 3, bias=False), nn.Sigmoid())


def attention() -> nn.Module:
    """A layer of a transformer."""
    return nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, activation="gelu")


def mobilenet() -> nn.Module:
    """A complete network."""
    import torchvision

    return torchvision.models.mobilenet_v2(weights=None, width_mult=0.25)


def resnet() -> nn.Module:
    """A complete network."""
    import torchvision

    return torchvision.models.resnet18(weights=None)


IMAGE = [(1, 3, 16, 16)]
#: Name, model, input shapes.
MODELS: dict[str, tuple[Callable[[], nn.Module], list[tuple[int, ...]]]] = {
    "activations": (activations, [(2, 6)]),
    "convolutions": (convolutions, IMAGE),
    "lines_and_volumes": (lines_and_volumes, [(1, 3, 16), (1, 2, 8, 8, 8)]),
    "sums": (sums, [(2, 4, 5), (2, 4, 5)]),
    "residual": (residual, IMAGE),
    "tied": (tied, [(2, 6)]),
    "attention": (attention, [(1, 4, 16)]),
    "mobilenet": (mobilenet, [(1, 3, 32, 32)]),
    "resnet": (resnet, [(1, 3, 32, 32)]),
}

STATIC = {"activation_dtype": "quint8", "weight_dtype": "qint8"}
WEIGHTS = {"activation_dtype": "float32", "weight_dtype": "qint8"}
#: Configs as dictionaries, which both libraries read.
CONFIGS: dict[str, dict[str, Any]] = {
    "static": {"global_config": STATIC},
    "weights": {"global_config": WEIGHTS},
    "affine": {
        "global_config": {
            "quantization_scheme": "affine", "weight_per_channel": False, "weight_dtype": "quint8",
            "weight_observer": "min_max", "activation_observer": "min_max",
        }
    },
    "none": {"global_config": {"weight_dtype": "float32"}},
    "by_type": {"global_config": STATIC, "module_type_configs": {"Linear": None, "Conv2d": WEIGHTS}},
    "by_name": {"global_config": STATIC, "module_name_configs": {"0": None, "3": WEIGHTS, "line": WEIGHTS, "conv": None}},
    "only_names": {"module_name_configs": {"0": STATIC, "second": STATIC}},
}
#: The models that are annotated with each config.
CASES = [
    *((model, config) for model in MODELS for config in ("static", "weights")),
    *((model, "affine") for model in ("activations", "convolutions", "sums")),
    ("residual", "none"),
    *((model, config) for model in ("convolutions", "lines_and_volumes", "residual", "tied") for config in ("by_type", "by_name")),
    ("tied", "only_names"),
    ("residual", "only_names"),
]


def graph(name: str) -> torch.fx.GraphModule:
    """The exported graph that the quantizer receives."""
    make, shapes = MODELS[name]
    torch.manual_seed(0)
    inputs = tuple(torch.randn(shape) for shape in shapes)
    return torch.export.export(make().eval(), inputs, strict=True).module()


def marks(module: torch.fx.GraphModule) -> dict[str, Any]:
    """The annotations of each call, as JSON values."""
    found = {}
    for node in module.graph.nodes:
        mark = node.meta.get(MARK)
        if mark is not None:
            inputs = {str(given): spec(one) for given, one in mark.input_qspec_map.items()}
            found[node.name] = {"inputs": inputs, "output": spec(mark.output_qspec), "is_marked": mark._annotated}
    return found


def spec(one: Any) -> Any:
    """A quantization spec, as a JSON value."""
    if one is None:
        return None
    if hasattr(one, "edge_or_node"):
        return f"as {one.edge_or_node}"
    made = one.observer_or_fake_quant_ctr.p
    options = [f"{name}={getattr(value, '__name__', value)}" for name, value in made.keywords.items()]
    words = [one.dtype, one.qscheme, one.quant_min, one.ch_axis, made.func.__name__, *options]
    return " ".join(map(str, words))


def config(library: str, name: str) -> Any:
    """A config in coremltools' or our class."""
    return importlib.import_module(library).LinearQuantizerConfig.from_dict(CONFIGS[name])


def main() -> None:
    """Writes the annotations of ExecuTorch's quantizer. The graphs of its patterns are exported once, not for each
    case."""
    import copy
    import functools

    sys.setrecursionlimit(10_000)
    utils = importlib.import_module(f"{THEIRS}._coreml_quantizer_utils")
    for name in ("get_conv_pattern", "get_conv_bn_pattern", "get_linear_pattern", "get_linear_bn_pattern", "get_binary_op_act_pattern"):
        cached = functools.cache(getattr(utils, name))
        setattr(utils, name, lambda *args, cached=cached, **kwargs: copy.deepcopy(cached(*args, **kwargs)))
    quantizer = importlib.import_module(THEIRS).CoreMLQuantizer
    golden: dict[str, Any] = {}
    for model, name in CASES:
        start = time.time()
        module = graph(model)
        quantizer(config("coremltools.optimize.torch.quantization", name)).annotate(module)
        golden[f"{model} {name}"] = marks(module)
        print(model, name, f"{time.time() - start:.1f} s", file=sys.stderr, flush=True)
    lines = [f"{json.dumps(case)}: {json.dumps(found)}" for case, found in golden.items()]
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
