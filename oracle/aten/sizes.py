"""Arithmetic on dynamic sizes, and operators whose shapes depend on it."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn import functional

from .case import Case, free, program, real, whole

Function = Callable[..., Any]

#: Functions of a matrix with a dynamic number of rows.
ROWS: dict[str, Function] = {
    "sym_add": lambda x: x.new_ones(x.shape[0] + 2), "sym_sub": lambda x: x.new_ones(x.shape[0] - 1), "sym_mul": lambda x: torch.arange(x.shape[0] * 2),
    "sym_product": lambda x: x.reshape(x.shape[0] * x.shape[1]), "sym_floordiv": lambda x: x.new_ones(x.shape[0] // 2 + 1), "sym_mod": lambda x: x + x.shape[0] % 3,
    "sym_ceil": lambda x: x.new_ones((x.shape[0] + 2) // 3), "sym_max": lambda x: x.new_ones(max(x.shape[0], 5)), "sym_min": lambda x: x * min(x.shape[0], 6),
    "sym_truediv": lambda x: x / x.shape[0], "sym_sqrt": lambda x: x / x.shape[0] ** 0.5, "sym_as_value": lambda x: x + x.shape[0], "sym_full": lambda x: torch.full((2, 3), x.shape[0]),
    "sym_where": lambda x: x * (1 if x.shape[0] > 0 else 2), "sym_tensor": lambda x: torch.tensor([1.0, 2.0, 3.0, 4.0]) * x * x.shape[0], "sym_scalar": lambda x: torch.scalar_tensor(x.shape[0]) + x,
    "slice_end": lambda x: x[: x.shape[0] - 1], "slice_start": lambda x: x[x.shape[0] - 2 :], "slice_middle": lambda x: x[1:-1], "slice_step": lambda x: x[::2], "narrow": lambda x: x.narrow(0, 1, x.shape[0] - 1),
    "view": lambda x: x.view(-1, 2), "view_more": lambda x: x.view(x.shape[0], 2, 2), "unflatten": lambda x: x.unflatten(1, (2, 2)), "flatten": lambda x: x[:, :, None].flatten(0, 1),
    "cat": lambda x: torch.cat([x, x[:1]]), "cat_ones": lambda x: torch.cat([x, torch.ones(1, 4)]), "stack": lambda x: torch.stack([x, x * 2], 1), "expand": lambda x: x[None].expand(2, -1, -1),
    "expand_to": lambda x: torch.ones(1, 4).expand(x.shape[0], 4) * x, "repeat": lambda x: x.repeat(2, 1), "pad": lambda x: functional.pad(x, (0, 0, 1, 2)), "flip": lambda x: x.flip(0),
    "roll": lambda x: x.roll(1, 0), "arange": lambda x: torch.arange(x.shape[0])[:, None] + x, "arange_float": lambda x: torch.arange(x.shape[0], dtype=torch.float32) / 2,
    "mask": lambda x: torch.ones(x.shape[0], x.shape[0]).tril(), "mask_inf": lambda x: torch.full((x.shape[0], x.shape[0]), float("-inf")).triu(1).softmax(-1), "eye": lambda x: torch.eye(x.shape[0]) @ x,
    "compare": lambda x: (torch.arange(x.shape[0])[:, None] <= torch.arange(x.shape[0])[None]).float() @ x, "matmul": lambda x: x @ x.t(), "matmul_other": lambda x: x.t() @ x, "softmax": lambda x: x.softmax(0),
    "mean": lambda x: x.mean(0), "sum": lambda x: x.sum(0, keepdim=True) + x, "cumsum": lambda x: x.cumsum(0), "max": lambda x: x.max(0).values, "argmax": lambda x: x.argmax(1), "topk": lambda x: x.topk(2, 0).values,
    "sort": lambda x: x.sort(0).values, "gather": lambda x: x.gather(0, torch.zeros(1, 4, dtype=torch.int64)), "index": lambda x: x[torch.tensor([1, 0])], "index_last": lambda x: x[-1], "select": lambda x: x.select(0, 1),
    "embedding": lambda x: functional.embedding(torch.arange(2), x), "unbind": lambda x: x.unbind(1), "split": lambda x: x.split(2, 1), "chunk": lambda x: x.chunk(2, 1), "norm": lambda x: functional.normalize(x, dim=0),
    "layer_norm": lambda x: functional.layer_norm(x, [4]), "linear": lambda x: functional.linear(x, torch.eye(4) * 2), "where": lambda x: torch.where(x > 0, x, torch.zeros_like(x)), "zeros": lambda x: torch.zeros_like(x) + x,
    "scatter": lambda x: x.scatter(0, torch.zeros(1, 4, dtype=torch.int64), 1.5), "index_put": lambda x: x.index_put((torch.tensor([0]),), torch.tensor(2.0)), "copy": lambda x: x.clone().copy_(x * 2), "diff": lambda x: x.diff(dim=0),
    "std": lambda x: x.std(0), "one_hot": lambda x: functional.one_hot(x.argmax(1), 4), "einsum": lambda x: torch.einsum("ij,kj->ik", x, x), "transpose": lambda x: x.t().contiguous(), "squeeze": lambda x: x.unsqueeze(1).squeeze(1),
    "linspace": lambda x: x[:, 0] * 0 + torch.linspace(0, 1, 4).sum(), "meshgrid": lambda x: torch.meshgrid(x[:, 0], x[0], indexing="ij")[0], "tril": lambda x: (x @ x.t()).tril(-1), "movedim": lambda x: x[None].movedim(0, -1),
    "unfold": lambda x: x.unfold(1, 2, 2), "repeat_interleave": lambda x: x.repeat_interleave(2, 0), "numel": lambda x: x.sum() / x.numel(), "slice_scatter": lambda x: x.slice_scatter(torch.ones(1, 4), 0, 0, 1),
    "fftn": lambda x: torch.fft.fftn(x[None], dim=(1, 2)).real, "ifft_ortho": lambda x: torch.fft.ifftn(x[None], dim=(1, 2), norm="ortho").imag, "rfft": lambda x: torch.view_as_real(torch.fft.rfft(x.t().contiguous())),
    "irfft": lambda x: torch.fft.irfft(torch.complex(x.t(), x.t() * 2)), "istft": lambda x: torch.istft(torch.complex(x[:, :3].t(), x[:, 1:].t()), 4, 2, window=torch.hann_window(4)),
    "istft_outer": lambda x: torch.istft(torch.complex(x[:, :3].t(), x[:, 1:].t()), 4, 2, window=torch.hamming_window(4), center=False),
}  # fmt: skip
#: Functions of an image of dynamic size.
PICTURES: dict[str, Function] = {
    "conv2d": lambda x: functional.conv2d(x, torch.ones(3, 2, 3, 3), stride=2, padding=1), "conv_transpose2d": lambda x: functional.conv_transpose2d(x, torch.ones(2, 3, 2, 2), stride=2),
    "max_pool2d": lambda x: functional.max_pool2d(x, 2), "avg_pool2d": lambda x: functional.avg_pool2d(x, 3, 1, 1), "adaptive_avg_pool2d": lambda x: functional.adaptive_avg_pool2d(x, 1),
    "upsample_nearest2d": lambda x: functional.interpolate(x, scale_factor=2), "upsample_bilinear2d": lambda x: functional.interpolate(x, scale_factor=2, mode="bilinear"),
    "upsample_to": lambda x: functional.interpolate(functional.max_pool2d(x, 2), size=x.shape[-2:], mode="nearest"), "upsample_bilinear_to": lambda x: functional.interpolate(functional.max_pool2d(x, 2), size=x.shape[-2:], mode="bilinear"),
    "upsample_aa_to": lambda x: functional.interpolate(functional.max_pool2d(x, 2), size=x.shape[-2:], mode="bilinear", antialias=True), "bicubic_aa_to": lambda x: functional.interpolate(x, size=(x.shape[-1], x.shape[-2] // 2), mode="bicubic", antialias=True),
    "flatten": lambda x: x.flatten(2).transpose(1, 2), "there_and_back": lambda x: x.flatten(2).view(x.shape), "pixel_shuffle": lambda x: functional.pixel_shuffle(torch.cat([x, x], 1), 2), "pixel_unshuffle": lambda x: functional.pixel_unshuffle(x, 2),
    "reflection_pad2d": lambda x: functional.pad(x, (1, 1, 1, 1), "reflect"), "replication_pad2d": lambda x: functional.pad(x, (1, 1, 1, 1), "replicate"), "batch_norm": lambda x: functional.batch_norm(x, torch.zeros(2), torch.ones(2)),
    "group_norm": lambda x: functional.group_norm(x, 2), "instance_norm": lambda x: functional.instance_norm(x), "windows": lambda x: x.view(1, 2, x.shape[2] // 2, 2, x.shape[3] // 2, 2).permute(0, 2, 4, 3, 5, 1).reshape(-1, 4, 2),
    "mean": lambda x: x.mean((2, 3)), "softmax": lambda x: x.flatten(2).softmax(-1), "grid": lambda x: functional.grid_sample(x, functional.affine_grid(torch.tensor([[[1.0, 0, 0], [0, 1.0, 0]]]), [1, 2, 4, 4], align_corners=False), align_corners=False),
}  # fmt: skip


#: Lower bounds of the range for functions that torch specializes on smaller sizes.
LATER = {"sym_ceil": 5, "slice_middle": 4}


def cases() -> Iterator[Case]:
    for name, function in ROWS.items():
        # The range starts above the sizes that torch would specialize.
        least = LATER.get(name, 3)
        yield program(f"aten.free_{name}", function, free(real, (5, 4), (8, 4), (6, 4), least=least))
    for name, function in PICTURES.items():
        height, width = 2 * torch.export.Dim("height", min=2, max=8), 2 * torch.export.Dim("width", min=2, max=8)
        given = free(real, (1, 2, 8, 6), (1, 2, 4, 12))
        given.ranges.update({2: height, 3: width})
        yield program(f"aten.free_picture_{name}", function, given)
    for name, function in {
        "embedding": lambda n: functional.embedding(n, torch.arange(40.0).reshape(10, 4)),
        "one_hot": lambda n: functional.one_hot(n, 10),
        "compare": lambda n: (n[:, None] == n[None]).float(),
    }.items():
        yield program(
            f"aten.free_tokens_{name}", function, free(lambda *s: whole(*s, low=0, high=9), (4,), (7,), least=2)
        )
    length = torch.export.Dim("length", min=2, max=32)
    pair = [free(real, (4, 3), (6, 3)), free(real, (4, 3), (6, 3))]
    for one in pair:
        one.ranges[0] = length
    for name, function in {
        "add": lambda x, y: x + y,
        "cat": lambda x, y: torch.cat([x, y], 1),
        "cat_rows": lambda x, y: torch.cat([x, y]),
        "matmul": lambda x, y: x @ y.t(),
        "where": lambda x, y: torch.where(x > y, x, y),
    }.items():
        yield program(f"aten.free_pair_{name}", function, *pair)
