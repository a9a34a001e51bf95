"""Element types other than fp32, integers, booleans, complex numbers, Fourier transforms and sampling."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from .entry import Function, Row, Source


def whole(module: nn.Module, n: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Integer arithmetic."""
    return (
        n + 2, n * n, n // 3, n % 3, torch.div(n, 3, rounding_mode="trunc"), torch.fmod(n, 3), n.relu(), n.clamp(-2, 2), -n,
        n.abs(), n.sign(), n.sum(), n.cumsum(0), n.max(), n.argmax(), n << 1, n >> 1, n & 5, n | 2, n ^ 3, ~n, n / 4, n.abs().float().sqrt(),
        n.pow(2), torch.maximum(n, n.flip(0)), n.prod(), n.sort().values, n.to(torch.int32), n.unsqueeze(0).expand(2, -1),
    )  # fmt: skip


def truth(module: nn.Module, flags: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Boolean inputs and outputs."""
    return (
        ~flags, flags & (x > 0), flags | (x < 0), flags ^ (x > 1), flags.any(), flags.all(0), flags.sum(), flags.float() * x,
        torch.where(flags, x, -1.0), x.masked_fill(flags, 0.5), flags.logical_not(), flags == (x > 0), x * flags, flags.cumsum(1),
    )  # fmt: skip


def kinds(module: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Conversions among all types."""
    found = [x.to(kind).to(torch.float32) for kind in (torch.float16, torch.bfloat16, torch.float64)]
    small = [(x * 3).to(kind).to(torch.int32) for kind in (torch.int8, torch.int16, torch.int32, torch.int64)]
    return (
        *found,
        *small,
        (x.abs() * 3).to(torch.uint8).to(torch.int32),
        x.bool(),
        x.int() + 0.5,
        x.double() @ x.double().t(),
    )


def compared(module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Comparisons, extremes, orders."""
    return (
        x > y, x <= 0.5, x == x.round(), torch.minimum(x, y), x.max(1).values, x.max(1).indices, x.argmin(0), x.argmax(),
        x.topk(2).values, x.topk(2, largest=False).indices, x.sort(0, descending=True).values, x.argsort(1), x.kthvalue(2).values,
        x.median(), x.aminmax(dim=1).max, torch.isnan(x / 0), torch.isinf(x / 0), x.cummax(0).values, x.logcumsumexp(1),
        torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0])), torch.searchsorted(x.sort(1).values, y),
    )  # fmt: skip


def elementary(module: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Unary functions."""
    p = x.abs() + 0.1
    u = x.tanh() * 0.9
    return (
        x.exp(), x.expm1(), p.log(), p.log2(), p.log10(), p.log1p(), p.sqrt(), p.rsqrt(), p.reciprocal(), x.sin(), x.cos(), x.tan(),
        u.asin(), u.acos(), x.atan(), x.sinh(), x.cosh(), x.asinh(), (p + 1).acosh(), u.atanh(), u.erf(), x.erfc(), x.sigmoid(), x.floor(),
        x.ceil(), x.round(), x.trunc(), x.frac(), x.sign(), x.square(), x.exp2(), p.lgamma(), x.logit(1e-2), x.nan_to_num(), x.abs(),
        torch.atan2(x, p), torch.hypot(x, p), x.pow(3), p.pow(x), 2**x, x.lerp(p, 0.3), torch.addcmul(x, x, p, value=0.5),
        torch.addcdiv(x, x, p, value=2), x.fmod(0.7), x.remainder(0.7), torch.logaddexp(x, p), torch.copysign(p, x), u.erfinv(),
        torch.special.i0(x), torch.xlogy(x, p), x.deg2rad(), torch.heaviside(x, p), x.round(decimals=1), torch.sinc(x),
    )  # fmt: skip


def reduced(module: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Reductions."""
    return (
        x.sum(), x.sum((0, 2)), x.mean(-1, keepdim=True), x.var(1), x.std((1, 2), correction=0), x.prod(2), x.amax((0, 1)), x.norm(),
        torch.linalg.vector_norm(x, 1, 1), torch.linalg.vector_norm(x, float("inf"), (0, 2)), x.logsumexp(1), x.cumsum(1), x.cumprod(2),
        torch.var_mean(x, 1)[0], (x > 0).any(1), (x > -1).all(2), x.count_nonzero(1), x.mean(), x.amin(), torch.linalg.vector_norm(x, 3, 2),
        functional.normalize(x, dim=1), functional.cosine_similarity(x[0], x[1], dim=1), torch.cdist(x, x.flip(0)), x.diff(dim=2), torch.trapezoid(x, dim=1),
    )  # fmt: skip


def products(module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Matrix products in all their forms."""
    return (
        x @ y, torch.bmm(x, y), x[0] @ y[0], torch.addmm(x[0, :, :3], x[0], y[0][:, :3], beta=0.5, alpha=2), x[0, 0] @ y[0], torch.mv(x[0], y[0, :, 0]),
        torch.dot(x[0, 0], x[1, 0]), torch.outer(x[0, 0], y[0, 0]), torch.einsum("bij,bjk->bik", x, y), torch.einsum("bij,bij->b", x, x),
        torch.einsum("bij->bji", x), torch.baddbmm(x @ y, x, y, alpha=0.3), torch.kron(x[0, :2, :2], y[0, :2, :2]), torch.matmul(x[:, None], y[None]),
        torch.tensordot(x, y, dims=([2], [1])), torch.chain_matmul(x[0], y[0], x[0]), torch.linalg.multi_dot([x[0], y[0]]), torch.cross(x[0, :, :3], y[0, :4, :3], dim=1),
    )  # fmt: skip


def triangles(module: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Diagonals and triangles of matrices with infinities."""
    inf = torch.where(x > 1, float("inf"), x)
    return (
        x.tril(), x.triu(1), x.tril(-1), x.diagonal(), x.diagonal(1, -2, -1), torch.diag_embed(x[0]), torch.diag(x[0, 0]), inf.tril(-1).clamp(max=9),
        torch.eye(4) * x, torch.trace(x[0]), torch.tril_indices(3, 3).float() + x[0, 0, 0], torch.block_diag(x[0], x[1]),
    )  # fmt: skip


def made(module: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Created tensors."""
    return (
        x + torch.arange(5), x + torch.linspace(0, 1, 5), torch.zeros_like(x) + x, torch.full((4, 5), 2.5) * x, x.new_zeros(3) + x[0, :3],
        torch.ones(5, dtype=torch.int64) + x, torch.empty(4, 5).fill_(1) * x, torch.arange(10, 0, -2) * x, torch.logspace(0, 1, 5) + x,
        torch.meshgrid(x[0], x[:, 0], indexing="ij")[0], torch.cartesian_prod(x[0, :2], x[1, :2]), torch.vander(x[0, :3]), torch.full_like(x, 3) - x,
        torch.scalar_tensor(2.0) * x, torch.tensor([1, 2, 3, 4, 5]) * x, torch.hann_window(5) * x,
    )  # fmt: skip


def padded(module: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Padding in all modes and ranks, including negative amounts."""
    volume = x.unflatten(1, (2, 2))
    return (
        functional.pad(x, (1, 2)), functional.pad(x, (1, 0, 0, 2), value=-0.5), functional.pad(x, (-1, 1)), functional.pad(x, (1, 2, 2, 1), "reflect"),
        functional.pad(x, (1, 2, 2, 1), "replicate"), functional.pad(x, (2, 1, 1, 1), "circular"), functional.pad(volume, (1, 1, 1, 1, 1, 1), "replicate"),
        functional.pad(volume, (1, 1, 1, 1, 1, 1), "circular"), functional.pad(x[0], (1, 1), "reflect"), functional.pad(x, (0, 0, 0, 0, 1, 1)),
        functional.unfold(x, 2, stride=2), functional.fold(functional.unfold(x, 2, padding=1), (5, 5), 2, padding=1),
    )  # fmt: skip


def transformed(module: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Fourier transforms."""
    spectrum = torch.fft.rfft(x)
    return (
        spectrum.real, spectrum.imag, spectrum.abs(), torch.fft.irfft(spectrum * 0.5), torch.fft.fft(x).imag, torch.fft.fft2(x).real,
        torch.fft.ifft(torch.fft.fft(x)).real, torch.view_as_real(torch.fft.fftn(x[None])), torch.fft.rfft2(x).abs(), torch.fft.fftshift(x),
        torch.fft.rfft(x, norm="ortho").imag,
    )  # fmt: skip


def spectrogram(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """The magnitude of a short-time Fourier transform."""
    found = torch.stft(x, 16, 8, window=module.window, return_complex=True)
    return (found.abs() ** 2 + 1e-4).log()


def rotary(module: nn.Module, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Rotary embedding with complex numbers, as in the first Llama code."""
    turned = torch.polar(torch.ones_like(angles), angles)
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turned).flatten(-2)


def complexes(module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Complex arithmetic."""
    z = torch.complex(x, y)
    w = z * z.conj() + (1 + 2j) * z - z / (z + 3)
    return (
        w.real,
        w.imag,
        z.abs(),
        z.angle(),
        torch.view_as_real(z.exp()),
        (z @ z.mT).real,
        torch.view_as_real(z.sum(0)),
        z.mean().imag,
    )


def sampled(module: nn.Module, x: torch.Tensor, grid: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Images sampled at a grid."""
    sample = functional.grid_sample
    theta = torch.tensor([[[0.8, 0.2, 0.1], [-0.2, 0.9, 0.0]]])
    return (
        sample(x, grid, align_corners=False), sample(x, grid, align_corners=True), sample(x, grid, mode="nearest", align_corners=False),
        sample(x, grid, padding_mode="border", align_corners=False), sample(x, grid, padding_mode="reflection", align_corners=True),
        sample(x, functional.affine_grid(theta, [1, 2, 5, 5], align_corners=False), align_corners=False),
    )  # fmt: skip


class Half(nn.Module):
    """A network with weights and inputs of another element type."""

    def __init__(self, kind: torch.dtype) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(12, 24), nn.GELU(), nn.LayerNorm(24), nn.Linear(24, 6)).to(kind)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return self.body(value)


class Lookup(nn.Module):
    """Embeddings, embedding bags, and one-hot encoding."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 8, padding_idx=0)
        self.bags = nn.EmbeddingBag(20, 8, mode="mean")
        self.kinds = nn.Parameter(torch.randn(4, 3))

    def forward(self, tokens: torch.Tensor, kinds: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.words(tokens), self.bags(tokens), functional.one_hot(kinds, 4).float() @ self.kinds


def lookup() -> Source:
    """Token ids of type int64 and int32."""
    return Source(Lookup(), (torch.randint(0, 20, (3, 4)), torch.randint(0, 4, (5,), dtype=torch.int64)))


def pixels(module: nn.Module, picture: torch.Tensor) -> torch.Tensor:
    """Normalizes a byte image by mean and deviation."""
    scaled = picture.permute(0, 3, 1, 2).float() / 255
    return (scaled - module.mean[:, None, None]) / module.deviation[:, None, None]


def losses(module: nn.Module, x: torch.Tensor, y: torch.Tensor, classes: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Loss functions, which some networks return."""
    return (
        functional.mse_loss(x, y), functional.l1_loss(x, y), functional.cross_entropy(x, classes), functional.smooth_l1_loss(x, y), functional.huber_loss(x, y),
        functional.binary_cross_entropy_with_logits(x, y.sigmoid()), functional.kl_div(x.log_softmax(1), y.softmax(1), reduction="batchmean"),
        functional.nll_loss(x.log_softmax(1), classes),
    )  # fmt: skip


def sample(function: Callable[..., Any], *arguments: torch.Tensor, **state: torch.Tensor) -> Callable[[], Source]:
    """A function with example inputs and constants."""
    return lambda: Source(Function(function, **state), arguments, redrawn=False)


DICE = torch.Generator().manual_seed(11)


def even(*shape: int) -> torch.Tensor:
    """Random numbers that fp16 represents exactly: rounding moves none across a discontinuity."""
    return (torch.randn(*shape, generator=DICE) * 80).round() / 64


X, Y = even(4, 5), even(4, 5)
CUBE, OTHER = even(2, 4, 5), even(2, 5, 4)
SQUARES = even(2, 4, 4)
PICTURE = torch.randn(1, 4, 6, 6, generator=DICE)

ROWS = [
    Row("whole_numbers", "numbers", sample(whole, torch.tensor([5, -3, 0, 7, -8, 2])), "int64 in and out", everyday=True),
    Row("whole_numbers_32", "numbers", sample(whole, torch.tensor([5, -3, 0, 7, -8, 2], dtype=torch.int32)), "int32 in and out"),
    Row("truth_values", "numbers", sample(truth, X > 0.3, Y), "bool in and out", everyday=True),
    Row("kinds", "numbers", sample(kinds, X), "all types on the way"),
    Row("compared", "numbers", sample(compared, X, Y), dialects=True),
    Row("elementary", "numbers", sample(elementary, X), everyday=True),
    Row("reduced", "numbers", sample(reduced, CUBE), everyday=True),
    Row("products", "numbers", sample(products, CUBE, OTHER)),
    Row("triangles", "numbers", sample(triangles, SQUARES)),
    Row("made_tensors", "numbers", sample(made, X)),
    Row("padded", "numbers", sample(padded, PICTURE[:, :, :5, :5] + 0)),
    Row("fourier", "numbers", sample(transformed, torch.randn(4, 8, generator=DICE)), "complex on the way"),
    Row("spectrogram", "numbers", sample(spectrogram, torch.randn(2, 64, generator=DICE), window=torch.hann_window(16)), "complex on the way"),
    Row("rotary_complex", "numbers", sample(rotary, torch.randn(1, 3, 5, 8, generator=DICE), torch.rand(5, 4, generator=DICE) * 6), "complex on the way", everyday=True),
    Row("complex", "numbers", sample(complexes, SQUARES[0], SQUARES[1]), "complex on the way"),
    Row("grid_sample", "numbers", sample(sampled, torch.randn(1, 2, 7, 6, generator=DICE), torch.rand(1, 4, 5, 2, generator=DICE) * 2.4 - 1.2)),
    Row("half_network", "numbers", lambda: Source(Half(torch.float16), (torch.randn(3, 12).half(),)), "fp16 weights and inputs"),
    Row("brain_network", "numbers", lambda: Source(Half(torch.bfloat16), (torch.randn(3, 12).bfloat16(),)), "bf16 weights and inputs"),
    Row("double_network", "numbers", lambda: Source(Half(torch.float64), (torch.randn(3, 12).double(),)), "fp64 weights and inputs"),
    Row("lookup", "numbers", lookup, "int64 inputs"),
    Row("pixels", "numbers", sample(pixels, torch.randint(0, 256, (1, 6, 7, 3), dtype=torch.uint8, generator=DICE), mean=torch.tensor([0.4, 0.5, 0.6]), deviation=torch.tensor([0.2, 0.3, 0.25])), "a uint8 input"),
    Row("losses", "numbers", sample(losses, X, Y, torch.tensor([1, 0, 4, 2]))),
]  # fmt: skip
