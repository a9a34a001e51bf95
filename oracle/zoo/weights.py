"""Random weights that make a network's outputs tell right from wrong.

The initial weights of most libraries do not: layer scales of 1e-6 hide whole branches, zero biases and unit gains hide
a forgotten operand, narrow normal distributions make transformers return their input, and batch norms with statistics
of 0 and 1 let the signal die out over fifty layers. A network that was `enlivened` has none of these: all its
parameters vary, and the signal keeps its size from the first layer to the last. Nor does rounding grow on the way, as
it does in random networks that are chaotic: batch norms are shifted so that most of what they pass on is positive, and
the rectifiers behind them work in their linear range for the most part, as those of trained networks do.
"""

from collections.abc import Callable, Sequence

import torch
from torch import nn

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def enliven(
    module: nn.Module, calls: Sequence[tuple[torch.Tensor, ...]], damped: dict[str, float] | None = None
) -> None:
    """Draws every floating-point parameter anew from torch's generator, then lets batch norms measure the calls.

    `damped` has factors for parameters whose names end in its keys.
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
    """One parameter: a matrix or kernel by its fan-in, a gain around one, a bias around zero."""
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
        # What snake activations divide by.
        parameter.normal_(1, 0.2)
    elif parameter.dim() >= 2 and parameter.shape[0] == 1 and "weight" not in name:
        # What is added to every example: positions, tokens that stand for a class.
        parameter.normal_(0, 0.5)
    elif parameter.dim() >= 2 and not is_gain(parameter):
        parameter.normal_(0, (gain(part) / fan_in(part, parameter)) ** 0.5)
    elif "bias" in name or "beta" in name:
        parameter.normal_(0, 0.2)
    else:
        parameter.uniform_(0.5, 1.5)


def is_gain(parameter: torch.Tensor) -> bool:
    """Whether it is one factor for each channel, written with dimensions of size 1 to broadcast."""
    return sum(size > 1 for size in parameter.shape) <= 1


def gain(part: nn.Module) -> float:
    """2 after a rectifier, which most convolutions stand behind; 1 for what is added to a residual."""
    return 2.0 if isinstance(part, nn.modules.conv._ConvNd) else 1.0


def fan_in(part: nn.Module, parameter: torch.Tensor) -> int:
    """How many products make one result."""
    if isinstance(part, nn.modules.conv._ConvTransposeNd):
        # Every result meets the kernel at one in `stride` places of each dimension.
        strides = torch.tensor(part.stride).prod().item()
        return max(1, parameter.shape[0] * parameter[0, 0].numel() // (strides * part.groups))
    return parameter[0].numel()


def measure(module: nn.Module, calls: Sequence[tuple[torch.Tensor, ...]]) -> None:
    """Gives every batch norm the mean and variance of what reaches it."""
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
    """Takes the statistics of this one call: a network of the zoo is small enough to see all its calls at once."""
    (signal,) = given
    dimensions = [0, *range(2, signal.dim())]
    norm.running_mean.copy_(signal.mean(dimensions))
    variance = signal.var(dimensions, correction=0)
    # Channels that hardly vary, or not at all, would have their rounding errors magnified.
    norm.running_var.copy_(variance.clamp_min(0.1 * variance.mean().item() + 1e-6))
