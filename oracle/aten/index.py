"""Slices, gathers, scatters, embeddings, diagonals, triangles."""

import itertools
from collections.abc import Iterator

import torch

from .case import Case, Weight, case, flags, free, of, positive, program, real, unit, whole

KINDS = (torch.float16, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool)
END = 2**63 - 1


def slices() -> Iterator[Case]:
    """Slices at constant indices."""
    for axis, start, end, step in (
        (0, 1, 3, 1),
        (1, 0, END, 1),
        (-1, -2, END, 1),
        (1, None, -1, 1),
        (0, 0, END, 2),
        (1, 1, 100, 3),
        (0, -3, -1, 1),
        (1, 3, 2, 1),
    ):
        settings = {"impossible": {"*": "without elements"}} if (start, end) == (3, 2) else {}
        yield case("aten.slice.Tensor", real(4, 6), axis, start, end, step, settings=settings)
    for kind in KINDS:
        yield case("aten.slice.Tensor", of(kind, 4, 6), 1, 1, 4)
    yield case("aten.slice.Tensor", free(real, (4, 6), (7, 6), least=3), 0, 1, END)
    yield case("aten.slice.Tensor", free(real, (4, 6), (7, 6), least=3), 1, 0, 2)
    yield case("aten.slice.Tensor", free(real, (4, 6), (7, 6), least=4), 0, -2, END)
    for axis, index in ((0, 0), (0, -1), (1, 2), (-1, 3), (2, 1)):
        yield case("aten.select.int", real(2, 3, 4), axis, index)
    yield case("aten.select.int", whole(5), 0, 2)
    yield case("aten.select.int", flags(3, 4), 1, -2)
    yield case("aten.select.int", free(real, (4, 6), (7, 6), least=3), 0, -1)
    for axis, start, length in ((0, 1, 2), (1, 0, 6), (-1, 3, 2)):
        yield case("aten.narrow.default", real(4, 6), axis, start, length)
    for axis, start, end, step in ((0, 1, 3, 1), (1, 0, 6, 2), (-1, -2, END, 1), (1, 0, 6, 1)):
        update = real(4, 6)[tuple([slice(None)] * (axis % 2) + [slice(start, end, step)])]
        yield case("aten.slice_scatter.default", real(4, 6), update * 2, axis, start, end, step)
    for start, end, step in ((1, 3, 1), (0, 4, 2)):
        through = lambda x, s=start, e=end, t=step: x.view(2, 2, 1, 4, 3, 2).slice_scatter(  # noqa: E731
            x.view(2, 2, 1, 4, 3, 2)[:, :, :, :2] * 2, 3, s, e, t
        )
        yield program("aten.slice_scatter.default", lambda x, f=through: f(x).flatten(1), real(4, 24))
    many = lambda x: x.view(2, 2, 1, 4, 3, 2)  # noqa: E731
    yield program(
        "aten.select_scatter.default",
        lambda x: many(x).select_scatter(many(x)[:, 1] * 2, 1, 0).flatten(1),
        real(4, 24),
    )
    for axis, index in ((0, 0), (1, -1), (1, 3)):
        yield case("aten.select_scatter.default", real(4, 6), real(6) if axis == 0 else real(4), axis, index)
    for offset in (0, 1, -1):
        yield case("aten.diagonal_scatter.default", real(4, 4), real(4 - abs(offset)), offset)


def gathers() -> Iterator[Case]:
    """Reads at indices that are computed or are inputs."""
    for shape, axis in (((4, 6), 0), ((4, 6), 1), ((4, 6), -1), ((3, 4, 5), 1)):
        index = whole(
            *[2 if at == axis % len(shape) else size for at, size in enumerate(shape)], low=0, high=shape[axis] - 1
        )
        for kind in (torch.float32, torch.int64, torch.float16, torch.bool):
            yield case("aten.gather.default", of(kind, *shape), axis, index)
            yield case("aten.take_along_dim.default", of(kind, *shape), index, axis)
        rows = whole(5, low=0, high=shape[axis] - 1)
        yield case("aten.index_select.default", real(*shape), axis, rows)
        yield case("aten.index_select.default", real(*shape), axis, rows.int())
        yield case("aten.index_select.default", whole(*shape), axis, Weight(rows.float()).tensor.long())
    yield case("aten.gather.default", free(real, (4, 6), (7, 6), least=4), 0, whole(2, 6, low=0, high=3))
    yield case("aten.index_select.default", free(real, (4, 6), (7, 6), least=4), 0, torch.tensor([3, 0]))
    yield case("aten.take.default", real(3, 4), torch.tensor([0, 11, 5]))
    first, second = whole(3, low=0, high=3), whole(3, low=0, high=5)
    yield case("aten.index.Tensor", real(4, 6), [first])
    yield case("aten.index.Tensor", real(4, 6), [None, second])
    yield case("aten.index.Tensor", real(4, 6), [first, second])
    yield case("aten.index.Tensor", real(4, 6), [first - 4])
    yield case("aten.index.Tensor", real(4, 6), [whole(2, 3, low=0, high=3)])
    yield case("aten.index.Tensor", real(4, 6), [whole(2, 1, low=0, high=3), whole(3, low=0, high=5)])
    yield case("aten.index.Tensor", real(4, 6, 2), [None, second, whole(3, low=0, high=1)])
    yield case("aten.index.Tensor", real(4, 6, 2), [first, None, whole(3, low=0, high=1)])
    yield case("aten.index.Tensor", real(2, 4, 6, 3), [None, first, second])
    yield case("aten.index.Tensor", real(4, 6), [flags(4)])
    yield case("aten.index.Tensor", real(4, 6), [flags(4, 6)])
    yield case("aten.index.Tensor", real(4, 6), [None, flags(6)])
    yield case("aten.index.Tensor", free(real, (4, 6), (7, 6), least=4), [first])
    for kind in KINDS:
        yield case("aten.index.Tensor", of(kind, 4, 6), [first])
    for index in ([0, 2], [-1, 0], [3]):
        yield program("aten.index.Tensor", lambda x, i=index: x[torch.tensor(i)], real(4, 6))
        yield program("aten.index.Tensor", lambda x, i=index: x[:, i], real(4, 6))
    yield case("aten.embedding.default", Weight(real(9, 4)), whole(2, 3, low=0, high=8))
    yield case("aten.embedding.default", Weight(real(9, 4)), whole(2, 3, low=0, high=8, kind=torch.int32), 0)
    yield case("aten.embedding.default", real(9, 4), whole(5, low=0, high=8))
    yield case("aten.embedding.default", Weight(real(9, 4)), whole(low=0, high=8))
    yield case("aten.embedding.default", Weight(real(9, 4, kind=torch.float16)), whole(2, 2, 2, low=0, high=8))
    yield case("aten.embedding.default", Weight(real(9, 4)), free(lambda *s: whole(*s, low=0, high=8), (2, 3), (2, 6)))
    for mode in (0, 1, 2):
        yield case(
            "aten.embedding_bag.default",
            Weight(real(9, 4)),
            whole(6, low=0, high=8),
            torch.tensor([0, 2, 5]),
            mode=mode,
            taken=slice(0, 1),
        )
        bags = (Weight(real(9, 4)), whole(6, low=0, high=8), torch.tensor([0, 2, 5]), False, mode, False, None, False)
        yield case("aten.embedding_bag.padding_idx", *bags, 3, taken=slice(0, 1))
        yield case("aten._embedding_bag.default", *bags, taken=slice(0, 1))
        yield case("aten._embedding_bag_forward_only.default", *bags, taken=slice(0, 1))
    yield case("aten.masked_select.default", real(3, 4), flags(3, 4))
    yield case("aten.nonzero.default", whole(3, 4, low=0, high=1))
    yield case("aten.nonzero.default", real(5) * (real(5) > 0))
    yield case("aten.argwhere.default", whole(3, 4, low=0, high=1))
    yield case("aten.nonzero_numpy.default", whole(3, 4, low=0, high=1))
    yield case("aten.one_hot.default", whole(2, 3, low=0, high=4), 5)
    yield case("aten.bucketize.Tensor", real(3, 4), Weight(torch.tensor([-1.0, 0.0, 1.0])))
    yield case(
        "aten.bucketize.Tensor", torch.tensor([-1.0, 0.0, 0.5]), Weight(torch.tensor([-1.0, 0.0, 1.0])), right=True
    )
    yield case("aten.searchsorted.Tensor", Weight(torch.tensor([-1.0, 0.0, 1.0])), real(3, 4))


def scatters() -> Iterator[Case]:
    """Writes at indices that are computed or are inputs."""
    for shape, axis in (((4, 6), 0), ((4, 6), 1), ((3, 4, 5), 1), ((5,), 0)):
        size = shape[axis]
        columns = [torch.randperm(size)[:2] for _ in range(torch.Size(shape).numel() // size)]
        index = (
            torch.stack(columns)
            .reshape(*[one for at, one in enumerate(shape) if at != axis], 2)
            .movedim(-1, axis)
            .contiguous()
        )
        yield case("aten.scatter.src", real(*shape), axis, index, real(*shape))
        yield case("aten.scatter.value", real(*shape), axis, index, 0.5)
        yield case("aten.scatter_.src", real(*shape), axis, index, real(*shape))
        yield case("aten.scatter_.value", real(*shape), axis, index, -0.5)
        yield case("aten.scatter.src", whole(*shape), axis, index, whole(*shape))
        again = whole(*index.shape, low=0, high=size - 1)
        yield case("aten.scatter_add.default", real(*shape), axis, again, real(*shape))
        yield case("aten.scatter_add_.default", real(*shape), axis, again, real(*shape))
        for how, itself in itertools.product(("sum", "amax", "amin", "prod", "mean"), (True, False)):
            yield case("aten.scatter_reduce.two", real(*shape), axis, again, real(*shape), how, include_self=itself)
        for how in ("add", "multiply"):
            yield case("aten.scatter.reduce", real(*shape), axis, index, real(*shape), reduce=how)
        rows = torch.randperm(size)[:2]
        update = real(*[2 if at == axis else one for at, one in enumerate(shape)])
        yield case("aten.index_copy.default", real(*shape), axis, rows, update)
        yield case("aten.index_copy_.default", real(*shape), axis, rows, update)
        yield case("aten.index_add.default", real(*shape), axis, torch.tensor([1, 1]), update, alpha=0.5)
        yield case("aten.index_fill.int_Scalar", real(*shape), axis, rows, -1.5)
        yield case("aten.index_fill_.int_Scalar", real(*shape), axis, rows, 2)
    rows, columns = torch.tensor([0, 3]), torch.tensor([5, 1])
    for accumulate in (False, True):
        yield case("aten.index_put.default", real(4, 6), [rows], real(2, 6), accumulate)
        yield case("aten.index_put.default", real(4, 6), [rows, columns], real(2), accumulate)
        yield case("aten.index_put.default", real(4, 6), [None, columns], real(4, 2), accumulate)
        yield case("aten.index_put_.default", real(4, 6), [rows], real(), accumulate)
    yield case("aten.index_put.default", real(4, 6), [torch.tensor([1, 1])], real(2, 6), True)
    yield case("aten.index_put.default", real(4, 6), [flags(4, 6)], real())
    yield case("aten.index_put.default", real(4, 6), [flags(4)], real(6))
    yield case("aten.masked_scatter.default", real(3, 4), flags(3, 4), real(3, 4))
    yield case("aten.put.default", real(3, 4), torch.tensor([0, 7]), real(2))
    yield case("aten.copy.default", real(3, 4), real(4))
    yield case("aten.copy_.default", real(3, 4), real(3, 4))
    yield case("aten.copy_.default", real(3, 4), whole(4))
    yield case("aten.fill.Scalar", real(3, 4), 2.5)
    yield case("aten.fill_.Scalar", real(3, 4), 2.5)
    yield case("aten.fill.Tensor", real(3, 4), real())


def triangles() -> Iterator[Case]:
    """Diagonals and triangles."""
    for name, offset in itertools.product(("tril", "triu"), (0, 1, -1, 2, -3)):
        yield case(f"aten.{name}.default", real(4, 5), offset)
        yield case(f"aten.{name}.default", real(2, 3, 3), offset)
    for name in ("tril", "triu"):
        yield case(f"aten.{name}.default", whole(4, 4))
        yield case(f"aten.{name}.default", flags(4, 4), 1)
        yield case(f"aten.{name}.default", torch.full((4, 4), float("-inf")), 1)
        yield case(f"aten.{name}_.default", real(4, 4), 1)
        yield case(f"aten.{name}.default", free(real, (4, 5), (7, 5)), 1)
        yield case(f"aten.{name}_indices.default", 3, 4, 1)
    for offset, (first, second) in itertools.product((0, 1, -2), ((0, 1), (-2, -1), (1, 0))):
        yield case("aten.diagonal.default", real(4, 5), offset, first, second)
    yield case("aten.diagonal.default", real(2, 3, 4), 0, 0, 2)
    yield case("aten.diagonal.default", real(2, 3, 4), 1, -2, -1)
    yield case("aten.diagonal_copy.default", real(4, 4), 1)
    for offset in (0, 1, -1):
        yield case("aten.diag.default", real(4, 4), offset)
        yield case("aten.diag.default", real(4), offset)
        yield case("aten.diag_embed.default", real(2, 3), offset)
    yield case(
        "aten.vander.default" if hasattr(torch.ops.aten, "vander") else "aten.linalg_vander.default", positive(4)
    )


def powers() -> Iterator[Case]:
    """Powers of each element."""
    for shape, count in (((4,), None), ((2, 3), None), ((2, 3), 6), ((2, 3), 2)):
        yield case("aten.linalg_vander.default", unit(*shape), N=count)
    yield case("aten.linalg_vander.default", whole(5, low=-3, high=3))
    yield case("aten.linalg_vander.default", whole(3, low=0, high=9, kind=torch.uint8), N=4)
    yield case("aten.linalg_vander.default", free(unit, (2, 3), (5, 3)))


def cases() -> Iterator[Case]:
    yield from slices()
    yield from gathers()
    yield from scatters()
    yield from triangles()
    yield from powers()
