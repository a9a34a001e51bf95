"""Attention, fused and decomposed."""

import itertools
from collections.abc import Iterator

import torch
from torch.nn import functional

from .case import FLOATS, Case, case, flags, free, of, program, real

INF = float("-inf")


def heads(*lead: int, length: int = 6, kind: torch.dtype = torch.float32) -> torch.Tensor:
    """Random queries, keys or values."""
    return of(kind, *lead, length, 8)


def allowed(*shape: int) -> torch.Tensor:
    """A mask that allows at least one position in each row."""
    mask = flags(*shape)
    mask[..., 0] = True
    return mask


def cases() -> Iterator[Case]:
    fused = "aten.scaled_dot_product_attention.default"
    for lead in ((), (2,), (2, 3), (2, 2, 3)):
        for mask, scale in itertools.product((None, "bool", "float", "causal"), (None, 0.25)):
            extra = {"bool": [allowed(6, 6)], "float": [real(6, 6)]}.get(mask or "", [])
            yield case(fused, heads(*lead), heads(*lead), heads(*lead), *extra, is_causal=mask == "causal", scale=scale)
    yield case(fused, heads(2, 3), heads(2, 3, length=9), heads(2, 3, length=9))
    yield case(fused, heads(2, 3), heads(2, 3, length=9), heads(2, 3, length=9), is_causal=True)
    yield case(fused, heads(2, 3), heads(2, 3), of(torch.float32, 2, 3, 6, 5))
    yield case(fused, heads(2, 4), heads(2, 2), heads(2, 2), enable_gqa=True)
    yield case(fused, heads(2, 4), heads(2, 1), heads(2, 1), allowed(6, 6), enable_gqa=True)
    yield case(fused, heads(2, 3), heads(2, 3), heads(2, 3), allowed(2, 1, 6, 6))
    yield case(fused, heads(2, 3), heads(2, 3), heads(2, 3), real(2, 3, 6, 6))
    yield case(fused, heads(2, 3), heads(2, 3), heads(2, 3), allowed(2, 1, 1, 6))
    blocked = real(6, 6).masked_fill(~allowed(6, 6), INF)
    yield case(fused, heads(2, 3), heads(2, 3), heads(2, 3), blocked)
    yield case(
        fused,
        heads(2, 3),
        heads(2, 3),
        heads(2, 3),
        real(6, 6).masked_fill(~allowed(6, 6), torch.finfo(torch.float32).min),
    )
    yield case(fused, free(lambda *s: real(*s), (2, 3, 6, 8), (2, 3, 9, 8)), heads(2, 3), heads(2, 3))
    length = torch.export.Dim("length", min=2, max=32)

    def grown(*shape: int) -> torch.Tensor:
        return real(*shape)

    shared = [free(grown, (2, 3, 6, 8), (2, 3, 9, 8)) for _ in range(3)]
    for one in shared:
        one.ranges[2] = length
    yield case(fused, *shared)
    yield case(fused, *shared, is_causal=True)
    for kind in FLOATS[1:]:
        yield case(fused, heads(2, 3, kind=kind), heads(2, 3, kind=kind), heads(2, 3, kind=kind))

    def parts(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, before: bool) -> torch.Tensor:
        scores = (q * scale) @ k.transpose(-1, -2) if before else (q @ k.transpose(-1, -2)) * scale
        return scores.softmax(-1) @ v

    for scale, before in itertools.product((0.25, 8**-0.5), (False, True)):
        yield program(
            "aten.softmax.int",
            lambda q, k, v, s=scale, b=before: parts(q, k, v, s, b),
            heads(2, 3),
            heads(2, 3),
            heads(2, 3),
        )
    yield program(
        "aten.softmax.int",
        lambda q, k, v: (q @ k.mT / 8**0.5 + torch.full((6, 6), INF).triu(1)).softmax(-1) @ v,
        heads(2, 3),
        heads(2, 3),
        heads(2, 3),
    )
    yield program(
        "aten.softmax.int",
        lambda q, k, v: (q @ k.mT).masked_fill(torch.ones(6, 6).triu(1).bool(), INF).softmax(-1) @ v,
        heads(2, 3),
        heads(2, 3),
        heads(2, 3),
    )
    yield program(
        "aten.softmax.int",
        lambda q, k, v: torch.baddbmm(torch.zeros(2, 6, 6), q, k.mT, beta=0, alpha=0.3).softmax(-1) @ v,
        heads(2),
        heads(2),
        heads(2),
    )
    yield program(
        fused,
        lambda x: (
            functional.scaled_dot_product_attention(*x.unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4).unbind(0))
            .transpose(1, 2)
            .flatten(2)
        ),
        real(2, 5, 24),
    )
    yield from grouped()
    for needed in (False, True):
        weights = [torch.randn(24, 8) * 0.3, torch.randn(24) * 0.1, torch.randn(8, 8) * 0.3, torch.randn(8) * 0.1]

        def attend(x: torch.Tensor, w: list[torch.Tensor] = weights, needed: bool = needed) -> tuple:
            found = functional.multi_head_attention_forward(
                x, x, x, 8, 2, w[0], w[1], None, None, False, 0.0, w[2], w[3], False, need_weights=needed
            )
            return tuple(one for one in found if one is not None)

        yield program(fused, attend, real(5, 2, 8))


def grouped() -> Iterator[Case]:
    """Grouped-query attention: keys and values repeated for the queries that share them, as models write it."""

    def interleaved(x: torch.Tensor) -> torch.Tensor:
        return x.repeat_interleave(2, dim=1)

    def expanded(x: torch.Tensor) -> torch.Tensor:
        sets, groups, length, size = x.shape
        return x[:, :, None].expand(sets, groups, 2, length, size).reshape(sets, groups * 2, length, size)

    def written(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return ((q @ k.mT) * 0.3 + mask).softmax(-1, dtype=torch.float32) @ v

    def capped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return ((q @ k.mT).tanh().mul(2) + mask).softmax(-1) @ v

    def fused(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    for repeat, how in itertools.product((interleaved, expanded), (written, capped, fused)):
        for length, mask in ((1, real(2, 1, 1, 5)), (3, real(2, 1, 3, 5)), (3, real(4, 3, 5)), (3, real(3, 5))):
            yield program(
                "aten.softmax.int" if how is not fused else "aten.scaled_dot_product_attention.default",
                lambda q, k, v, m, r=repeat, h=how: h(q, r(k), r(v), m),
                heads(2, 4, length=length),
                heads(2, 2, length=5),
                heads(2, 2, length=5),
                mask,
            )
