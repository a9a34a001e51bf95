"""Loss functions, which some models return."""

import itertools
from collections.abc import Iterator

import torch

from .case import Case, case, positive, real, whole

#: Reductions of a loss: none, mean, sum.
HOW = (0, 1, 2)


def cases() -> Iterator[Case]:
    for name, how in itertools.product(
        ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss"), HOW
    ):
        target = real(3, 4).sign() if name == "soft_margin_loss" else real(3, 4)
        yield case(f"aten.{name}.default", real(3, 4), target, how)
    for how in HOW:
        yield case("aten.smooth_l1_loss.default", real(3, 4), real(3, 4), how, 0.5)
        yield case("aten.huber_loss.default", real(3, 4), real(3, 4), how, 0.75)
        yield case("aten.kl_div.default", real(3, 4), positive(3, 4), how)
        yield case("aten.kl_div.default", real(3, 4), real(3, 4), how, log_target=True)
        yield case(
            "aten.binary_cross_entropy_with_logits.default", real(3, 4), positive(3, 4, low=0, high=1), reduction=how
        )
        yield case(
            "aten.binary_cross_entropy_with_logits.default",
            real(3, 4),
            positive(3, 4, low=0, high=1),
            positive(4),
            positive(4),
            how,
        )
        yield case(
            "aten.binary_cross_entropy.default",
            positive(3, 4, low=0.125, high=0.875),
            positive(3, 4, low=0, high=1),
            reduction=how,
        )
        yield case("aten.cross_entropy_loss.default", real(3, 5), whole(3, low=0, high=4), reduction=how)
        yield case(
            "aten.cross_entropy_loss.default",
            real(3, 5),
            whole(3, low=0, high=4),
            positive(5),
            how,
            label_smoothing=0.25,
        )
        yield case("aten.cross_entropy_loss.default", real(3, 5), torch.softmax(real(3, 5), 1), reduction=how)
        yield case("aten.cross_entropy_loss.default", real(2, 5, 3), whole(2, 3, low=0, high=4), reduction=how)
        yield case("aten.nll_loss_nd.default", real(3, 5), whole(3, low=0, high=4), reduction=how)
        yield case("aten.nll_loss.default", real(3, 5), whole(3, low=0, high=4), reduction=how)
        yield case(
            "aten.nll_loss_forward.default", real(3, 5), whole(3, low=0, high=4), None, how, -100, taken=slice(0, 1)
        )
    yield case("aten.cross_entropy_loss.default", real(4, 5), torch.tensor([0, 2, -100, 4]))
    yield case("aten.cosine_embedding_loss.default", real(3, 4), real(3, 4), torch.tensor([1, -1, 1]))
    yield case("aten.margin_ranking_loss.default", real(5), real(5), real(5).sign())
    yield case("aten.hinge_embedding_loss.default", real(5), real(5).sign())
    yield case("aten.triplet_margin_loss.default", real(3, 4), real(3, 4), real(3, 4))
