"""Operators that other converters are known to convert wrongly or to refuse, in the form in which users meet them."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn import functional

from .case import Case, flags, free, positive, program, real, unit, whole

Function = Callable[..., Any]
X = lambda: real(3, 4)  # noqa: E731
PICTURE = lambda: real(1, 4, 6, 6)  # noqa: E731
MINIMUM = torch.finfo(torch.float32).min

#: Name, function, inputs.
ROWS: list[tuple[str, Function, Callable[[], tuple]]] = [
    ("add_alpha", lambda x, y: torch.add(x, y, alpha=3), lambda: (X(), X())),
    ("sub_alpha", lambda x, y: torch.sub(x, y, alpha=0.5), lambda: (X(), X())),
    ("rsub_alpha", lambda x: torch.rsub(x, 2, alpha=3), lambda: (X(),)),
    ("diagonal", lambda x: x.diagonal(1), lambda: (real(4, 5),)),
    ("acosh", torch.acosh, lambda: (positive(3, 4, low=1, high=9),)),
    ("asinh", torch.asinh, lambda: (X(),)),
    ("argmax_of_all", lambda x: x.argmax(), lambda: (X(),)),
    ("argmin_of_all_kept", lambda x: x.argmin(keepdim=True), lambda: (X(),)),
    ("floor_divide", lambda x: x // 0.75, lambda: (real(3, 4, scale=5),)),
    ("floor_divide_negative", lambda n: n // -3, lambda: (whole(3, 4),)),
    ("relu_of_int", torch.relu, lambda: (whole(3, 4),)),
    ("relu_of_int32", torch.relu, lambda: (whole(3, 4, kind=torch.int32),)),
    ("pool_divisor", lambda x: functional.avg_pool2d(x, 3, divisor_override=5), lambda: (PICTURE(),)),
    ("pool_dilated", lambda x: functional.max_pool2d(x, 2, 1, 0, 2), lambda: (PICTURE(),)),
    ("pool_indices", lambda x: functional.max_pool2d(x, 2, return_indices=True), lambda: (torch.randperm(144).reshape(1, 4, 6, 6) / 8,)),
    ("pad_circular", lambda x: functional.pad(x, (1, 2, 2, 1), "circular"), lambda: (PICTURE(),)),
    ("pad_volume", lambda x: functional.pad(x, (1, 1, 1, 0, 0, 1), "replicate"), lambda: (real(1, 2, 3, 4, 5),)),
    ("pad_volume_circular", lambda x: functional.pad(x, (1, 1, 1, 0, 0, 1), "circular"), lambda: (real(1, 2, 3, 4, 5),)),
    ("transpose_output_padding", lambda x: functional.conv_transpose2d(x, torch.ones(4, 2, 3, 3), stride=3, padding=1, output_padding=(2, 1)), lambda: (PICTURE(),)),
    ("pixel_unshuffle", lambda x: functional.pixel_unshuffle(x, 3), lambda: (PICTURE(),)),
    ("topk_in_any_order", lambda x: x.topk(2, sorted=False)[0].sum(-1), lambda: (X(),)),
    ("batch_norm_volume", lambda x: functional.batch_norm(x, torch.tensor([0.5, -1.0]), torch.tensor([2.0, 0.5])), lambda: (real(2, 2, 3, 4, 2),)),
    ("rank_none", lambda x: x * 2 + 1, lambda: (real(),)),
    ("rank_none_made", lambda x: x.sum(), lambda: (X(),)),
    ("rank_six", lambda x: x.reshape(2, 2, 2, 2, 2, 2).permute(0, 3, 1, 4, 2, 5).reshape(8, 8) + 1, lambda: (real(8, 8),)),
    ("rank_six_sum", lambda x: x.reshape(2, 2, 2, 2, 2, 2).sum((1, 4)).flatten(), lambda: (real(8, 8),)),
    ("rank_six_product", lambda x: (x.reshape(2, 2, 2, 2, 2, 2) * torch.arange(2.0).reshape(2, 1, 1)).reshape(8, 8), lambda: (real(8, 8),)),
    ("rank_seven", lambda x: x.reshape(2, 1, 2, 2, 2, 2, 2).transpose(2, 5).flatten(), lambda: (real(8, 8),)),
    ("rank_eight", lambda x: x.view(1, 2, 2, 1, 2, 2, 1, 2).permute(0, 2, 5, 3, 6, 1, 4, 7).reshape(2, -1), lambda: (real(1, 4, 4, 2),)),
    ("no_inputs", lambda: torch.arange(4.0) * 2, lambda: ()),
    ("outputs_repeated", lambda x: (x + 1,) * 2, lambda: (X(),)),
    ("output_is_input", lambda x: (x, x * 2), lambda: (X(),)),
    ("output_is_view_of_input", lambda x: x.view(-1), lambda: (X(),)),
    ("output_is_constant", lambda x: (x + 1, torch.tensor([1.0, 2.0])), lambda: (X(),)),
    ("input_unused", lambda x, y: x + 1, lambda: (X(), X())),
    ("mask_inf", lambda x: (x + torch.full((4, 4), float("-inf")).triu(1)).softmax(-1), lambda: (real(4, 4),)),
    ("mask_minimum", lambda x: (x + torch.full((4, 4), MINIMUM).triu(1)).softmax(-1), lambda: (real(4, 4),)),
    ("mask_minimum_twice", lambda x: (x + MINIMUM + torch.zeros(4).masked_fill(torch.tensor([True, False, False, True]), MINIMUM)).clamp(min=MINIMUM).softmax(-1), lambda: (real(4, 4),)),
    ("mask_row_of_none", lambda x, m: x.masked_fill(~m, MINIMUM).softmax(-1), lambda: (real(3, 4), torch.tensor([[True] * 4, [False] * 4, [True, False] * 2]))),
    ("mask_by_product", lambda x, m: x + (1.0 - m) * MINIMUM, lambda: (real(4), torch.ones(4))),
    ("where_inf", lambda x: torch.where(x > 0, x, float("-inf")).amax(), lambda: (X(),)),
    ("tril_of_inf", lambda x: torch.full((4, 4), float("-inf")).triu(1) + x, lambda: (real(4, 4),)),
    ("log_of_small", lambda x: torch.log(x + 1e-10), lambda: (positive(3, 4),)),
    ("rsqrt_epsilon", lambda x: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-12), lambda: (X(),)),
    ("norm_of_large", lambda x: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6), lambda: (real(3, 4, scale=400),)),
    ("normalize_epsilon", lambda x: functional.normalize(x, dim=1, eps=1e-12), lambda: (X(),)),
    ("gelu_tanh", lambda x: functional.gelu(x, approximate="tanh"), lambda: (X(),)),
    ("gelu_by_parts", lambda x: 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x**3))), lambda: (X(),)),
    ("gelu_by_erf", lambda x: x * 0.5 * (1 + torch.erf(x / 2**0.5)), lambda: (X(),)),
    ("silu_by_parts", lambda x: x * torch.sigmoid(x), lambda: (X(),)),
    ("hardswish_by_parts", lambda x: x * functional.relu6(x + 3) / 6, lambda: (X(),)),
    ("layer_norm_by_parts", lambda x: (x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, keepdim=True, correction=0) + 1e-5), lambda: (X(),)),
    ("upsample_default", lambda x: functional.interpolate(x, scale_factor=2), lambda: (PICTURE(),)),
    ("index_negative", lambda x: x[torch.tensor([-1, -2])], lambda: (X(),)),
    ("gather_negative_dimension", lambda x: x.gather(-1, torch.zeros(3, 2, dtype=torch.int64)), lambda: (X(),)),
    ("remainder_negative", lambda x: x % -0.75, lambda: (real(3, 4, scale=5),)),
    ("remainder_int_negative", lambda n: n % -4, lambda: (whole(3, 4),)),
    ("round_half_to_even", torch.round, lambda: (torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5]),)),
    ("cast_of_negative", lambda x: x.to(torch.int32), lambda: (torch.tensor([-1.5, 1.5, -0.5]),)),
    ("bool_sum", lambda m: m.sum(), lambda: (flags(3, 4),)),
    ("bool_cumsum", lambda m: m.cumsum(1), lambda: (flags(3, 4),)),
    ("bool_product", lambda m, x: m * x, lambda: (flags(3, 4), X())),
    ("bool_difference", lambda m: m.int() - (~m).int(), lambda: (flags(3, 4),)),
    ("int_division", lambda n: n / 2, lambda: (whole(3, 4),)),
    ("int_mean", lambda n: n.float().mean(), lambda: (whole(3, 4),)),
    ("int_and_float", lambda n, x: n * x, lambda: (whole(3, 4), X())),
    ("large_int", lambda n: n + 2**30, lambda: (whole(3, 4),)),
    ("tokens_are_exact", lambda n: functional.embedding(n, torch.arange(6000.0).reshape(3000, 2) / 3000), lambda: (torch.tensor([2049, 2999, 1]),)),
    ("arange_is_exact", lambda x: (torch.arange(3000) % 7).float()[:4] + x, lambda: (X(),)),
    ("int8_program", lambda n: (n + 1).clamp(-5, 5), lambda: (whole(3, 4, kind=torch.int8),)),
    ("uint8_program", lambda n: n.float() / 255, lambda: (whole(3, 4, low=0, high=255, kind=torch.uint8),)),
    ("int16_program", lambda n: n * 2 - 3, lambda: (whole(3, 4, kind=torch.int16),)),
    ("bf16_program", lambda x: functional.gelu(x) + 1, lambda: (real(3, 4, kind=torch.bfloat16),)),
    ("fp64_program", lambda x: (x @ x.t()).sqrt(), lambda: (positive(3, 4, kind=torch.float64),)),
    ("fp16_program", lambda x: functional.silu(x) * 2, lambda: (real(3, 4, kind=torch.float16),)),
    ("negative_step_flip", lambda x: x.flip(-1)[:, ::2], lambda: (X(),)),
    ("stack_of_rank_none", lambda x: torch.stack([x.sum(), x.mean()]), lambda: (X(),)),
    ("cat_of_many", lambda x: torch.cat([x[:, index : index + 1] * index for index in range(4)], 1), lambda: (X(),)),
    ("split_unused", lambda x: x.split(1, 1)[2], lambda: (X(),)),
    ("var_of_one", lambda x: x.var(1, correction=0), lambda: (real(3, 1),)),
    ("std_unbiased", lambda x: x.std(1), lambda: (X(),)),
    ("erfinv", torch.erfinv, lambda: (unit(3, 4),)),
    ("logaddexp", torch.logaddexp, lambda: (X(), X())),
    ("histc", lambda x: torch.histc(x, 4, 0.0, 4.0), lambda: (positive(20, low=0.1, high=3.9),)),
    ("bucketize", lambda x: torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0])), lambda: (X(),)),
    ("kernel_extent_above_64", lambda x: functional.conv2d(x, torch.ones(1, 1, 1, 70) / 70), lambda: (real(1, 1, 2, 80),)),
    ("transpose_reduce_transpose", lambda x: x.permute(0, 2, 3, 1).sum(-1, keepdim=True).permute(0, 3, 1, 2), lambda: (PICTURE(),)),
    ("slice_then_reshape", lambda x: x[..., 1:3].reshape(-1), lambda: (real(2, 3, 4),)),
    ("conv_same_even", lambda x: functional.conv2d(x, torch.ones(2, 4, 4, 4), padding="same"), lambda: (PICTURE(),)),
    ("conv_channels_last", lambda x: functional.conv2d(x.to(memory_format=torch.channels_last), torch.ones(2, 4, 3, 3)), lambda: (PICTURE(),)),
    ("einsum_trace", lambda x: torch.einsum("ii", x), lambda: (real(4, 4),)),
    ("view_written", lambda x: x.clone().view(-1).mul_(2).view(3, 4), lambda: (X(),)),
    ("row_written", lambda x: torch.Tensor.copy_(x.clone()[0], x[1]) + x[0], lambda: (X(),)),
    ("bicubic_antialias", lambda x: functional.interpolate(x, size=(4, 9), mode="bicubic", antialias=True), lambda: (PICTURE(),)),
    ("tensor_split", lambda x: torch.tensor_split(x, 3, 1), lambda: (real(3, 8),)),
    ("tensor_split_at", lambda x: torch.tensor_split(x, (2, 5), 1), lambda: (real(3, 8),)),
    ("masked_scatter", lambda x, m, y: x.masked_scatter(m, y), lambda: (X(), flags(3, 4), real(12))),
    ("sort_stable", lambda n: torch.sort(n, dim=1, stable=True)[1], lambda: (torch.tensor([[2, 1, 2, 1, 0, 2], [5, 5, 5, 1, 1, 5]]),)),
    ("irfft_of_real", lambda x: torch.fft.irfft(x), lambda: (real(3, 5),)),
    ("triu_of_inf", lambda x: x + torch.triu(torch.full((4, 4), float("inf")), 1), lambda: (real(4, 4),)),
    ("power_of_two", lambda x: 2**x, lambda: (X(),)),
    ("power_of_two_whole", lambda n: 2**n, lambda: (whole(3, 4, low=0, high=9),)),
    ("atan2_of_quadrants", torch.atan2, lambda: (torch.tensor([1.0, 1, -1, -1, 0, 0, 2, -2]), torch.tensor([1.0, -1, 1, -1, 2, -2, 0, 0]))),
    ("reciprocal_of_small", torch.reciprocal, lambda: (torch.tensor([1e-3, -2e-3, 1e-4]),)),
    ("division_of_ints", lambda n, m: (n / m, n // m, torch.div(n, m, rounding_mode="trunc")), lambda: (whole(3, 4), whole(3, 4, low=1))),
    ("half_minimum", lambda x, m: x.masked_fill(~m, torch.finfo(torch.float16).min).softmax(-1), lambda: (real(3, 4, kind=torch.float16), torch.tensor([True, False, True, True]))),
    ("floor_divide_by_one", lambda n: torch.floor_divide(n, 1), lambda: (whole(3, 4),)),
    ("floor_divide_float_by_one", lambda x: torch.floor_divide(x, 1), lambda: (X(),)),
    ("einsum_ellipsis", lambda x, y: torch.einsum("...ij,...jk->...ik", x, y), lambda: (real(2, 3, 4, 5), real(3, 5, 2))),
    ("response_norm", lambda x: functional.local_response_norm(x, 3, 0.5), lambda: (real(2, 5, 4, 3),)),
    ("response_norm_volume", lambda x: functional.local_response_norm(x, 3, 0.5), lambda: (real(2, 5, 4, 3, 2),)),
    ("response_norm_line", lambda x: functional.local_response_norm(x, 2), lambda: (real(2, 5, 6),)),
    ("relu_in_place_of_view", lambda x: functional.relu((x * 2).view(-1), inplace=True), lambda: (X(),)),
]  # fmt: skip
#: Functions that are discontinuous between numbers that fp16 cannot distinguish, or that need numbers outside its
#: range.
NOT_HALF = {
    "floor_divide",
    "remainder_negative",
    "mask_by_product",
    "log_of_small",
    "erfinv",
    "bucketize",
    "where_inf",
    "large_int",
    "mask_minimum_twice",
    "reciprocal_of_small",
    "floor_divide_float_by_one",
}


def cases() -> Iterator[Case]:
    for name, function, inputs in ROWS:
        precisions = ("fp32",) if name in NOT_HALF else ("fp32", "fp16")
        yield program(f"aten.defect_{name}", function, *inputs(), precisions=precisions)
    for name, shape in (("rand", (3, 4)), ("randn", (3, 4))):
        yield program(
            f"aten.defect_{name}", lambda x, n=name, s=shape: getattr(torch, n)(*s) + 0 * x, real(3, 4), exact=False
        )
    yield program("aten.defect_flat", lambda x: x.reshape(-1, 2, 2), free(real, (4, 4), (8, 4)))
    for name, bounds in {"randint": (3, 9), "randint_low_alone": (9,)}.items():
        # Random numbers differ between runs, but all of them must be within the bounds.
        yield program(
            f"aten.defect_{name}",
            lambda x, b=bounds: (lambda n: ((n >= (b[0] if len(b) > 1 else 0)) & (n < b[-1])).float() + 0 * x)(
                torch.randint(*b, (3, 4))
            ),
            real(3, 4),
        )
    yield program(
        "aten.defect_unfold", lambda x: functional.unfold(x, (2, 3), 1, 1, 2), free(real, (1, 2, 6, 7), (1, 2, 9, 5), least=4)
    )
