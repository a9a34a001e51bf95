"""Random weights with which a network's outputs tell right from wrong.

The initial weights of most libraries do not: layer scales of 1e-6 hide entire branches, zero biases and unit gains
hide a forgotten operand, narrow normal distributions make transformers return their input, and batch norms with
statistics of 0 and 1 let the signal vanish over fifty layers. After `enliven`, a network has none of these problems:
all parameters vary, and the signal keeps its magnitude from the first layer to the last. Rounding errors do not grow
either, as they do in chaotic random networks: batch norms are shifted so that most of their outputs are positive, and
the following rectifiers work mostly in their linear range, as in trained networks.
"""

from collections.abc import Callable, Sequence

import torch
from torch import nn

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def enliven(
    module: nn.Module, calls: Sequence[tuple[torch.Tensor, ...]], damped: dict[str, float] | None = None
) -> None:
    """Draws new values of every floating-point parameter from torch's generator, then measures the statistics of
    batch norms.

    `damped` maps ends of parameter names to factors.
    """
    with torch.no_grad():
        for part in module.modules():
            for name, parameter in part.named_parameters(recurse=False):
                if parameter.is_floating_point():
                    redraw(part, name, parameter)
        for name, parameter in module.named_parameters():
            for ending, factor in (damped or {}).items():
                if name.endswith(ending):
                    parameter.mul_(factor)
    measure(module, calls)


def redraw(part: nn.Module, name: str, parameter: torch.Tensor) -> None:
    """Draws one parameter: a matrix or kernel by its fan-in, a gain around one, a bias around zero."""
    if isinstance(part, nn.Embedding):
        parameter.normal_()
    elif isinstance(part, BATCH_NORMS):
        if name == "weight":
            parameter.uniform_(0.3, 0.8)
        else:
            parameter.normal_(0.5, 0.2)
    elif isinstance(part, nn.RNNBase):
        # Twice torch's own bound, so that the gates leave their linear range.
        bound = 2 / part.hidden_size**0.5
        parameter.uniform_(-bound, bound)
    elif isinstance(part, nn.PReLU):
        parameter.uniform_(0.05, 0.5)
    elif name == "alpha":
        # The divisor in snake activations.
        parameter.normal_(1, 0.2)
    elif parameter.dim() >= 2 and parameter.shape[0] == 1 and "weight" not in name:
        # Added to every example: position embeddings and class tokens.
        parameter.normal_(0, 0.5)
    elif parameter.dim() >= 2 and not is_gain(parameter):
        parameter.normal_(0, (gain(part) / fan_in(part, parameter)) ** 0.5)
    elif "bias" in name or "beta" in name:
        parameter.normal_(0, 0.2)
    else:
        parameter.uniform_(0.5, 1.5)


def is_gain(parameter: torch.Tensor) -> bool:
    """Whether it is a factor per channel, with dimensions of size 1 for broadcasting."""
    return sum(size > 1 for size in parameter.shape) <= 1


def gain(part: nn.Module) -> float:
    """2 for convolutions, since most precede a rectifier; 1 for layers that add to a residual."""
    return 2.0 if isinstance(part, nn.modules.conv._ConvNd) else 1.0


def fan_in(part: nn.Module, parameter: torch.Tensor) -> int:
    """Number of products per result."""
    if isinstance(part, nn.modules.conv._ConvTransposeNd):
        # A result uses the kernel at one of `stride` indices in each dimension.
        strides = torch.tensor(part.stride).prod().item()
        return max(1, parameter.shape[0] * parameter[0, 0].numel() // (strides * part.groups))
    return parameter[0].numel()


def measure(module: nn.Module, calls: Sequence[tuple[torch.Tensor, ...]]) -> None:
    """Sets the statistics of every batch norm to the mean and variance of its inputs."""
    norms = [part for part in module.modules() if isinstance(part, BATCH_NORMS)]
    if not norms:
        return
    module.eval()
    hooks: list[Callable[[], None]] = []
    for norm in norms:
        hooks.append(norm.register_forward_pre_hook(settle).remove)
    with torch.no_grad():
        module(*(torch.cat(column) for column in zip(*calls, strict=True)))
    for remove in hooks:
        remove()


def settle(norm: nn.Module, given: tuple[torch.Tensor, ...]) -> None:
    """Uses the statistics of a single call: a network of the zoo is small enough to process all examples at once."""
    (signal,) = given
    dimensions = [0, *range(2, signal.dim())]
    norm.running_mean.copy_(signal.mean(dimensions))
    variance = signal.var(dimensions, correction=0)
    # Scaling channels that hardly vary would magnify their rounding errors.
    norm.running_var.copy_(variance.clamp_min(0.1 * variance.mean().item() + 1e-6))
