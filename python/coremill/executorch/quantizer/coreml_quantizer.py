"""The quantizer for PyTorch's ``prepare_pt2e`` and ``prepare_qat_pt2e``."""

from typing import Any, Callable, Iterable, NamedTuple, Optional

import torch
from torch.fx import GraphModule, Node
from torch.fx.passes.utils.source_matcher_utils import get_source_partitions
from torchao.quantization.pt2e.fake_quantize import FakeQuantize
from torchao.quantization.pt2e.observer import (
    MinMaxObserver,
    MovingAverageMinMaxObserver,
    MovingAveragePerChannelMinMaxObserver,
    PerChannelMinMaxObserver,
)
from torchao.quantization.pt2e.quantizer import (
    QuantizationAnnotation,
    QuantizationSpec,
    Quantizer,
    SharedQuantizationSpec,
)
from torchao.quantization.pt2e.quantizer.quantizer import Q_ANNOTATION_KEY
from torchao.quantization.pt2e.quantizer.utils import get_module_name_filter

from ._patterns import BINARY, SAME_RANGE, WEIGHTED, Calls, Match

_OBSERVERS = {
    ("min_max", False): MinMaxObserver,
    ("min_max", True): PerChannelMinMaxObserver,
    ("moving_average_min_max", False): MovingAverageMinMaxObserver,
    ("moving_average_min_max", True): MovingAveragePerChannelMinMaxObserver,
}
_SCHEMES = {
    ("symmetric", False): torch.per_tensor_symmetric,
    ("symmetric", True): torch.per_channel_symmetric,
    ("affine", False): torch.per_tensor_affine,
    ("affine", True): torch.per_channel_affine,
}
#: Element types of quantized tensors, and their types in exported programs.
_STORED = {torch.quint8: torch.uint8, torch.qint8: torch.int8}

_aten = torch.ops.aten
#: Ranges of activations: never negative, or around zero.
_SCHEME_OF_RESULT = {
    _aten.tanh.default: torch.per_tensor_symmetric,
    _aten.tanh_.default: torch.per_tensor_symmetric,
    _aten.sigmoid.default: torch.per_tensor_affine,
    _aten.sigmoid_.default: torch.per_tensor_affine,
    _aten.hardsigmoid.default: torch.per_tensor_affine,
    _aten.hardsigmoid_.default: torch.per_tensor_affine,
    _aten.relu.default: torch.per_tensor_affine,
    _aten.relu_.default: torch.per_tensor_affine,
    _aten.relu6.default: torch.per_tensor_affine,
    _aten.relu6_.default: torch.per_tensor_affine,
}
_CLAMPS = (_aten.hardtanh.default, _aten.hardtanh_.default)

_Filter = Callable[[Node], bool]


class _Specs(NamedTuple):
    """Quantization of tensors; ``None`` for tensors that are not quantized."""

    activation: Optional[QuantizationSpec] = None
    weight: Optional[QuantizationSpec] = None


class CoreMLQuantizer(Quantizer):
    """Marks the calls of a model that Core ML runs on quantized numbers.

    ``config`` is coremltools' ``LinearQuantizerConfig`` or the one of ``coremill.executorch.quantizer.config``.
    """

    def __init__(self, config: Any) -> None:
        self._config = config

    def annotate(self, model: GraphModule) -> GraphModule:
        """Annotates the calls: first those of modules that the config names, then those of its types, then all
        others."""
        model.graph.eliminate_dead_code()
        model.recompile()
        calls = Calls(model.graph)
        by_name, by_type = self._config.module_name_configs, self._config.module_type_configs
        named = [(get_module_name_filter(name), config) for name, config in by_name.items()]
        typed = [(_has_type(kind), config) for kind, config in by_type.items()]
        for accepts, config in named + typed:
            _annotate(model, calls, config, accepts)
        others = [accepts for accepts, _ in typed + named]
        _annotate(
            model,
            calls,
            self._config.global_config,
            lambda node: not any(accepts(node) for accepts in others),
        )
        return model

    def validate(self, model: GraphModule) -> None:
        """Accept every model."""


def _annotate(model: GraphModule, calls: Calls, config: Any, accepts: _Filter) -> None:
    for chains in WEIGHTED:
        specs = _specs(config)
        for chain in chains:
            for match in calls.matches(chain):
                _annotate_weighted(match, len(chain) > 1, specs, accepts)
    for chains in BINARY:
        specs = _specs(config)
        for chain in chains:
            for match in calls.matches(chain):
                _annotate_binary(match, len(chain) > 1, specs, accepts)
    specs = _specs(config)
    if specs.activation is not None:
        for sources in SAME_RANGE:
            _annotate_same_range(model, sources, accepts)


def _specs(config: Any) -> _Specs:
    if config is None or config.weight_dtype == torch.float32:
        return _Specs()
    scheme = config.quantization_scheme
    weight = _spec(
        config.weight_dtype, config.weight_observer, scheme, bool(config.weight_per_channel)
    )
    if config.activation_dtype == torch.float32:
        return _Specs(weight=weight)
    activation = _spec(config.activation_dtype, config.activation_observer, scheme, False)
    return _Specs(activation, weight)


def _spec(dtype: torch.dtype, observer: Any, scheme: Any, is_per_channel: bool) -> QuantizationSpec:
    made = _OBSERVERS.get((observer.value, is_per_channel))
    if made is None:
        accepted = sorted({name for name, _ in _OBSERVERS})
        raise ValueError(
            f"Unsupported observer type: {observer.value}; expected one of {', '.join(accepted)}"
        )
    dtype = _STORED.get(dtype, dtype)
    qscheme = _SCHEMES[scheme.value, is_per_channel]
    return QuantizationSpec(
        observer_or_fake_quant_ctr=FakeQuantize.with_args(
            observer=made, dtype=dtype, qscheme=qscheme
        ),
        dtype=dtype,
        qscheme=qscheme,
    )


def _annotate_weighted(match: Match, has_more: bool, specs: _Specs, accepts: _Filter) -> None:
    given, weight, bias = match.tensors
    group = [match.first, weight] + ([bias] if bias is not None else [])
    if any(map(_is_annotated, group)) or not all(map(accepts, group)):
        return
    # An argument that another call already quantizes is unchanged.
    of_input = specs.activation
    if _is_annotated(given):
        of_input = given.meta[Q_ANNOTATION_KEY].output_qspec
    inputs = {given: of_input, weight: specs.weight}
    if bias is not None:
        inputs[bias] = None
    if has_more:
        _mark(match.first, inputs)
        if not _is_annotated(match.last):
            _mark(match.last, output=_of_result(match.last, specs.activation))
    else:
        _mark(match.first, inputs, specs.activation)
    for node in group:
        node.meta.setdefault(Q_ANNOTATION_KEY, QuantizationAnnotation())._annotated = True


def _annotate_binary(match: Match, has_more: bool, specs: _Specs, accepts: _Filter) -> None:
    group = [match.last, match.first] if has_more else [match.first]
    if any(map(_is_annotated, group)) or not all(map(accepts, group)):
        return
    inputs = {given: specs.activation for given in match.tensors if isinstance(given, Node)}
    if has_more:
        _mark(match.first, inputs)
        _mark(match.last, output=_of_result(match.last, specs.activation))
    else:
        _mark(match.first, inputs, specs.activation)


def _annotate_same_range(
    model: GraphModule, sources: Iterable[Callable], accepts: _Filter
) -> None:
    for parts in get_source_partitions(model.graph, list(sources), accepts).values():
        for part in parts:
            if not part.output_nodes:
                continue
            call, result = part.nodes[0], part.output_nodes[0]
            if _is_annotated(call) or _is_annotated(result):
                continue
            given = call.args[0]
            if not _is_annotated(given) or given.meta[Q_ANNOTATION_KEY].output_qspec is None:
                continue
            shared = SharedQuantizationSpec(given)
            _mark(call, {given: shared})
            # For a pool of a single call, both are the same node, and the later annotation applies.
            _mark(result, output=shared)


def _of_result(node: Node, spec: Optional[QuantizationSpec]) -> Optional[QuantizationSpec]:
    """Quantization of an activation's result."""
    if spec is None:
        return None
    qscheme = _SCHEME_OF_RESULT.get(node.target)
    if node.target in _CLAMPS and node.args[1:3] == (0, 6):
        qscheme = torch.per_tensor_affine
    if qscheme is None:
        return spec
    return QuantizationSpec(
        observer_or_fake_quant_ctr=spec.observer_or_fake_quant_ctr,
        dtype=spec.dtype,
        qscheme=qscheme,
    )


def _mark(
    node: Node, inputs: Optional[dict] = None, output: Optional[QuantizationSpec] = None
) -> None:
    node.meta[Q_ANNOTATION_KEY] = QuantizationAnnotation(
        input_qspec_map=inputs or {}, output_qspec=output, _annotated=True
    )


def _is_annotated(node: Node) -> bool:
    annotation = node.meta.get(Q_ANNOTATION_KEY)
    return annotation is not None and annotation._annotated


def _has_type(kind: Callable) -> _Filter:
    """Whether a call was made in a module of this type, or by this function."""

    def accepts(node: Node) -> bool:
        types = [entry for _, entry in node.meta.get("nn_module_stack", {}).values()]
        types += [entry for _, entry in node.meta.get("source_fn_stack", ())]
        return kind in types

    return accepts
