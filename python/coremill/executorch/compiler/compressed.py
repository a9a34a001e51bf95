"""Which release keeps the compressed weights of a program compressed.

Older ones have no operations for them: there they would become floats again, and the file as large as it was.
"""

from typing import Any, List, NamedTuple, Optional, Tuple

from executorch.exir.backend.compile_spec_schema import CompileSpec
from torch.fx import Node

from ..enums import target

_KEY = "min_deployment_target"


class Need(NamedTuple):
    """A call that needs a release."""

    target: target
    node: Node


def needed(program: Any) -> Optional[Need]:
    """The call that needs the newest release, if one needs any."""
    needs = [Need(_needed_by(node), node) for node in program.graph.nodes if node.op == "call_function"]
    return max(needs, key=lambda need: need.target, default=None)


def _needed_by(node: Node) -> target:
    name = getattr(node.target, "__name__", "")
    if name.startswith("torchao.dequantize_affine"):
        weight, block_size = node.args[0], node.args[1]
        low = node.args[5] if len(node.args) > 5 else None
        sizes = list(weight.meta["val"].shape)
        is_by_row = list(block_size)[:1] == [1] and list(block_size)[1:] == sizes[1:]
        return target.iOS16 if is_by_row and low in (-128, 0, None) else target.iOS18
    if name.startswith("quantized_decomposed.quantize_per"):
        return target.iOS17
    if name.startswith("quantized_decomposed.dequantize_per"):
        return target.iOS16 if node.args[0].op == "placeholder" else target.iOS17
    return target.iOS15


def check(program: Any, asked: Optional[target]) -> None:
    """Refuse torchao's weights that a target has no operations for, as ExecuTorch's backend does."""
    need = needed(program)
    if asked is None or need is None or asked >= need.target or not _is_torchao(need.node):
        return
    raise ValueError(
        f"`{need.node.target.__name__}` ({need.node.name}) holds weights in 4 bits, or with a scale for each group, "
        f"which need {need.target.name}; this program targets {target(asked).name}\n"
        "hint: pass `compile_specs=CoreMLBackend.generate_compile_specs("
        f"minimum_deployment_target=ct.target.{need.target.name})` to CoreMLPartitioner"
    )


def _is_torchao(node: Node) -> bool:
    return getattr(node.target, "__name__", "").startswith("torchao.")


def native_specs(program: Any, specs: List[CompileSpec]) -> List[Tuple[str, bytes]]:
    """Compile specs for lowering, with the release that compressed weights need where no other is asked for."""
    pairs = [(spec.key, bytes(spec.value)) for spec in specs]
    need = needed(program)
    if need is not None and need.target > target.iOS15 and not dict(pairs).get(_KEY):
        pairs = [pair for pair in pairs if pair[0] != _KEY]
        pairs.append((_KEY, str(need.target.value).encode()))
    return pairs
