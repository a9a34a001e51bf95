"""Matrix products."""

import itertools
from collections.abc import Iterator

import torch

from .case import FLOATS, Case, Weight, case, free, of, program, real, whole

EQUATIONS = [
    ("ij,jk->ik", ((3, 4), (4, 5))), ("bij,bjk->bik", ((2, 3, 4), (2, 4, 5))), ("ij,kj->ik", ((3, 4), (5, 4))), ("ij->ji", ((3, 4),)),
    ("ij->j", ((3, 4),)), ("ii->i", ((4, 4),)), ("i,j->ij", ((3,), (4,))), ("ij,ij->", ((3, 4), (3, 4))), ("bhid,bhjd->bhij", ((1, 2, 3, 4), (1, 2, 5, 4))),
    ("bhij,bhjd->bhid", ((1, 2, 3, 5), (1, 2, 5, 4))), ("nchw,nwhu->nchu", ((1, 2, 3, 4), (1, 4, 3, 5))), ("bchw,bkhw->bck", ((2, 3, 4, 2), (2, 5, 4, 2))),
    ("bic,bc->bi", ((2, 3, 4), (2, 4))), ("...ij,jk->...ik", ((2, 3, 4), (4, 5))), ("bthd,hdk->btk", ((1, 3, 2, 4), (2, 4, 5))), ("i,i->", ((4,), (4,))),
    ("ij,jk,kl->il", ((3, 4), (4, 2), (2, 5))),
]  # fmt: skip


def cases() -> Iterator[Case]:
    for shape, bias in itertools.product(((4,), (3, 4), (2, 3, 4), (2, 2, 3, 4)), (False, True)):
        extra = (Weight(real(5)),) if bias else ()
        yield case("aten.linear.default", real(*shape), Weight(real(5, 4)), *extra)
    yield case("aten.linear.default", real(3, 4), real(5, 4), real(5))
    yield case("aten.linear.default", free(real, (3, 4), (6, 4)), Weight(real(5, 4)), Weight(real(5)))
    yield case("aten.linear.default", free(real, (2, 3, 4), (2, 6, 4)), Weight(real(5, 4)))
    for kind in FLOATS[1:]:
        yield case("aten.linear.default", of(kind, 3, 4), Weight(of(kind, 5, 4)), Weight(of(kind, 5)))
        yield case("aten.mm.default", of(kind, 3, 4), of(kind, 4, 5))
    yield case("aten.mm.default", real(3, 4), real(4, 5))
    yield case("aten.mm.default", real(3, 4), Weight(real(4, 5)))
    yield case("aten.mm.default", Weight(real(3, 4)), real(4, 5))
    yield case("aten.mm.default", free(real, (3, 4), (6, 4)), real(4, 5))
    yield case("aten.mm.default", whole(3, 4), whole(4, 5))
    yield case("aten.bmm.default", real(2, 3, 4), real(2, 4, 5))
    yield case("aten.bmm.default", real(2, 3, 4), Weight(real(2, 4, 5)))
    yield case("aten.bmm.default", free(real, (2, 3, 4), (2, 6, 4)), real(2, 4, 5))
    yield case("aten.bmm.default", whole(2, 3, 4), whole(2, 4, 5))
    for beta, alpha in ((1, 1), (0.5, 2), (0, 1), (2, 0.25)):
        yield case("aten.addmm.default", real(5), real(3, 4), real(4, 5), beta=beta, alpha=alpha)
        yield case("aten.addmm.default", Weight(real(5)), real(3, 4), Weight(real(4, 5)), beta=beta, alpha=alpha)
        yield case("aten.addmm.default", real(3, 5), real(3, 4), real(4, 5), beta=beta, alpha=alpha)
        yield case("aten.baddbmm.default", real(2, 3, 5), real(2, 3, 4), real(2, 4, 5), beta=beta, alpha=alpha)
        yield case("aten.addbmm.default", real(3, 5), real(2, 3, 4), real(2, 4, 5), beta=beta, alpha=alpha)
        yield case("aten.addmv.default", real(3), real(3, 4), real(4), beta=beta, alpha=alpha)
        yield case("aten.addr.default", real(3, 4), real(3), real(4), beta=beta, alpha=alpha)
    yield case("aten.addmm.default", real(1), real(3, 4), real(4, 5))
    for left, right in (
        ((4,), (4,)),
        ((3, 4), (4,)),
        ((4,), (4, 5)),
        ((3, 4), (4, 5)),
        ((2, 3, 4), (4, 5)),
        ((2, 3, 4), (2, 4, 5)),
        ((3, 4), (2, 4, 5)),
        ((2, 1, 3, 4), (3, 4, 5)),
        ((2, 3, 4), (4,)),
        ((1, 2, 3, 4), (1, 2, 4, 5)),
        ((2, 1, 2, 3, 4), (2, 2, 4, 5)),
    ):
        yield case("aten.matmul.default", real(*left), real(*right))
        yield case("aten.matmul.default", real(*left), Weight(real(*right)))
    yield case("aten.matmul.default", whole(3, 4), whole(4, 5))
    yield case("aten.matmul.default", free(real, (2, 3, 4), (2, 6, 4)), real(4, 5))
    for left, right in (((3, 4), (4, 5)), ((2, 3, 4), (2, 4, 5))):
        for turn in (0, 1, 2, 3):

            def product(x: torch.Tensor, y: torch.Tensor, turn: int = turn) -> torch.Tensor:
                x = x.mT.contiguous().mT if turn & 1 else x
                return x @ (y.mT.contiguous().mT if turn & 2 else y)

            yield program("aten.matmul.default", product, real(*left), real(*right))
    for batch in ((), (2,), (2, 3), (2, 1, 3)):
        # Well-conditioned matrices, so that fp16 results are meaningful.
        matrices = torch.eye(3) * 2 + real(*batch, 3, 3) * 0.2
        yield case("aten.linalg_solve.default", matrices, real(*batch, 3, 2))
        yield case("aten.linalg_inv.default", matrices)
    yield program("aten.matmul.default", lambda x, y: x @ y.transpose(-1, -2), real(2, 3, 4), real(2, 5, 4))
    yield program("aten.matmul.default", lambda x, y: x.transpose(-1, -2) @ y, real(2, 4, 3), real(2, 4, 5))
    yield case("aten.mv.default", real(3, 4), real(4))
    yield case("aten.dot.default", real(4), real(4))
    yield case("aten.vdot.default", real(4), real(4))
    yield case("aten.inner.default", real(3, 4), real(5, 4))
    yield case("aten.outer.default", real(3), real(4))
    yield case("aten.ger.default", real(3), real(4))
    yield case("aten.kron.default", real(2, 3), real(3, 2))
    yield case("aten.tensordot.default", real(2, 3, 4), real(4, 3, 5), [1, 2], [1, 0])
    yield case("aten.linalg_multi_dot.default", [real(3, 4), real(4, 2), real(2, 5)])
    yield case("aten.chain_matmul.default", [real(3, 4), real(4, 2), real(2, 5)])
    for exponent in (0, 1, 2, 3):
        yield case("aten.matrix_power.default", real(3, 3), exponent)
    for equation, shapes in EQUATIONS:
        yield case("aten.einsum.default", equation, [real(*shape) for shape in shapes])
    yield case("aten.bilinear.default", real(3, 4), real(3, 5), Weight(real(2, 4, 5)), Weight(real(2)))
    for order in (1.0, 2.0, float("inf")):
        yield case("aten.cdist.default", real(2, 3, 4), real(2, 5, 4), order)
        yield case("aten._cdist_forward.default", real(3, 4), real(5, 4), order, None)
    yield case("aten._pdist_forward.default", real(4, 3))
