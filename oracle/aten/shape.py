"""Operators that only move elements: views, permutations, joins, parts, repeats."""

from collections.abc import Iterator

import torch

from .case import ALL, Case, case, flags, free, of, program, real, whole

KINDS = (torch.float16, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool)


def views() -> Iterator[Case]:
    """Reshapes."""
    for name in ("view.default", "reshape.default", "_unsafe_view.default", "view_copy.default"):
        for shape, other in (
            ((3, 4), [12]),
            ((12,), [3, 4]),
            ((2, 3, 4), [6, -1]),
            ((2, 3, 4), [2, 1, 12]),
            ((1,), []),
            ((2, 3, 4), [4, 3, 2, 1, 1]),
        ):
            yield case(f"aten.{name}", real(*shape), other)
    for kind in ALL[1:]:
        yield case("aten.view.default", of(kind, 3, 4), [2, 6])
        yield case("aten.permute.default", of(kind, 2, 3, 4), [2, 0, 1])
    yield case("aten.reshape.default", real(), [1, 1])
    yield case("aten.view.default", free(real, (3, 4), (5, 4)), [-1, 2])
    yield case("aten.reshape.default", free(real, (2, 3, 4), (2, 6, 4)), [2, -1])
    yield case("aten.reshape_as.default", real(3, 4), real(2, 6))
    yield case("aten.view_as.default", real(3, 4), real(2, 6))
    for start, end in ((0, -1), (1, 2), (0, 1), (-2, -1), (1, 1)):
        yield case("aten.flatten.using_ints", real(2, 3, 4), start, end)
    yield case("aten.flatten.using_ints", real())
    yield case("aten.flatten.using_ints", free(real, (2, 3, 4), (5, 3, 4)), 1)
    for axis, sizes in ((1, [2, 3]), (-1, [-1, 2]), (0, [1, 2, 1])):
        yield case("aten.unflatten.int", real(2, 6, 4), axis, sizes)
    for axis in (0, 1, -1, -3, 2):
        yield case("aten.unsqueeze.default", real(3, 4), axis)
    yield case("aten.unsqueeze.default", real(), 0)
    yield case("aten.unsqueeze_.default", real(3, 4), 1)
    yield case("aten.squeeze.default", real(1, 3, 1, 2))
    for axis in (0, 1, -2):
        yield case("aten.squeeze.dim", real(1, 3, 1, 2), axis)
    yield case("aten.squeeze.dims", real(1, 3, 1, 2), [0, 2])
    yield case("aten.squeeze.dims", real(1, 3, 1, 2), [0, 1])
    yield case("aten.squeeze.default", real(1, 1))
    for shape in ((4,), (3, 4), (2, 3, 4), (2, 2, 2, 2, 3)):
        yield case("aten.ravel.default", real(*shape))
        yield case("aten.numpy_T.default", real(*shape))
    for name in ("view.dtype",):
        yield case(
            f"aten.{name}",
            whole(3, 4, kind=torch.int32),
            torch.float32,
            settings={"impossible": {"*": "reinterprets the bits"}},
        )
    yield case("aten.as_strided.default", real(3, 4), [2, 3], [4, 1])
    yield case("aten.as_strided.default", real(12), [3, 2], [2, 3], 1)
    yield case("aten.as_strided.default", real(3, 4), [4, 3], [1, 4])
    yield case("aten.as_strided.default", real(12), [5, 4], [2, 1])


def permutations() -> Iterator[Case]:
    """Permutations of the axes."""
    for shape, order in (
        ((3, 4), [1, 0]),
        ((2, 3, 4), [2, 0, 1]),
        ((2, 3, 4), [0, -1, -2]),
        ((2, 3, 4, 2), [0, 2, 3, 1]),
        ((2, 1, 3, 2, 2), [4, 0, 2, 1, 3]),
    ):
        yield case("aten.permute.default", real(*shape), order)
        yield case("aten.permute_copy.default", real(*shape), order)
    yield case("aten.permute.default", free(real, (2, 3, 4), (2, 6, 4)), [2, 1, 0])
    for first, second in ((0, 1), (-1, 0), (1, 1), (-2, -1)):
        yield case("aten.transpose.int", real(2, 3, 4), first, second)
        yield case("aten.swapaxes.default", real(2, 3, 4), first, second)
        yield case("aten.swapdims.default", real(2, 3, 4), first, second)
    for name in ("t", "adjoint", "mT", "mH"):
        yield case(f"aten.{name}.default", real(3, 4))
    yield case("aten.t.default", real(3))
    yield case("aten.movedim.int", real(2, 3, 4), 0, -1)
    yield case("aten.movedim.intlist", real(2, 3, 4), [0, 1], [2, 0])
    yield case("aten.moveaxis.int", real(2, 3, 4), 2, 0)
    for dims in ([0], [1], [0, 1], [-1]):
        yield case("aten.flip.default", real(3, 4), dims)
        yield case("aten.flip.default", whole(3, 4), dims)
    yield case("aten.fliplr.default", real(3, 4))
    yield case("aten.flipud.default", real(3, 4))
    for shifts, dims in (([1], [0]), ([-2], [1]), ([1, 2], [0, 1]), ([3], []), ([5], [1]), ([0], [0])):
        yield case("aten.roll.default", real(3, 4), shifts, dims)
    yield case("aten.roll.default", free(real, (3, 4), (3, 7)), [1], [1])
    for turns in (0, 1, 2, 3, -1):
        yield case("aten.rot90.default", real(3, 4), turns)
    yield case("aten.channel_shuffle.default", real(1, 6, 2, 3), 3)
    for factor in (2, 3):
        yield case("aten.pixel_shuffle.default", real(2, factor * factor * 2, 3, 4), factor)
        yield case("aten.pixel_unshuffle.default", real(2, 2, 3 * factor, 4 * factor), factor)


def repeats() -> Iterator[Case]:
    """Repeated and expanded elements."""
    for shape, other in (((3, 1), [3, 4]), ((1, 4), [-1, 4]), ((4,), [2, 3, 4]), ((), [2, 3]), ((2, 1, 3), [2, 5, -1])):
        yield case("aten.expand.default", real(*shape), other)
        yield case("aten.expand_copy.default", real(*shape), other)
        if -1 not in other:
            yield case("aten.broadcast_to.default", real(*shape), other)
    for kind in KINDS:
        yield case("aten.expand.default", of(kind, 3, 1), [3, 4])
    yield case("aten.expand_as.default", real(3, 1), real(3, 4))
    for axes in (1, 2, 3):
        yield case(f"aten.atleast_{axes}d.Sequence", [real(), real(3), real(2, 3), real(2, 3, 2)])
    yield case("aten.broadcast_tensors.default", [real(3, 1), real(1, 4)])
    yield case("aten.broadcast_tensors.default", [real(3), real(2, 1), real()])
    yield case("aten.expand.default", free(lambda *s: real(*s), (3, 1), (5, 1)), [-1, 4])
    for shape, times in (((3,), [2]), ((3, 4), [2, 1]), ((3, 4), [2, 3, 1]), ((1, 2, 3), [2, 2, 2]), ((3, 4), [1, 1])):
        yield case("aten.repeat.default", real(*shape), times)
        yield case("aten.tile.default", real(*shape), times)
    yield case("aten.tile.default", real(2, 3, 4), [2])
    yield case("aten.repeat.default", whole(3, 4), [1, 2])
    yield case("aten.repeat.default", flags(3, 4), [1, 2])
    yield case("aten.repeat.default", free(real, (3, 4), (5, 4)), [2, 1])
    for axis in (0, 1, -1, None):
        yield case("aten.repeat_interleave.self_int", real(3, 4), 2, axis)
    yield case("aten.repeat_interleave.self_int", free(real, (2, 3, 4), (2, 5, 4)), 3, 1)
    yield program(
        "aten.repeat_interleave.self_Tensor", lambda x: x.repeat_interleave(torch.tensor([1, 3, 2]), 0), real(3, 4)
    )


def joins() -> Iterator[Case]:
    """Concatenation and stacking."""
    for axis in (0, 1, -1):
        yield case("aten.cat.default", [real(3, 4), real(3, 4)], axis)
        yield case("aten.stack.default", [real(3, 4), real(3, 4), real(3, 4)], axis)
    yield case("aten.cat.default", [real(2, 4), real(1, 4), real(3, 4)])
    yield case("aten.cat.default", [real(3, 4)], 1)
    yield case("aten.concat.default", [real(3, 4), real(3, 2)], 1)
    yield case("aten.concatenate.default", [real(3, 4), real(3, 2)], 1)
    for kind in KINDS:
        yield case("aten.cat.default", [of(kind, 3, 4), of(kind, 3, 2)], 1)
        yield case("aten.stack.default", [of(kind, 3), of(kind, 3)])
    yield case("aten.cat.default", [real(3, 4), whole(3, 4)], 0)
    yield case("aten.cat.default", [real(3, 4, kind=torch.float16), real(3, 4)], 0)
    yield case("aten.cat.default", [torch.zeros(0), real(3)], 0, settings={"impossible": {"*": "without elements"}})
    yield case("aten.cat.default", [real(0, 4), real(3, 4)], 0, settings={"impossible": {"*": "without elements"}})
    yield case("aten.cat.default", [free(real, (3, 4), (5, 4)), real(2, 4)], 0)
    for name in ("hstack", "vstack", "dstack", "column_stack", "row_stack"):
        yield case(f"aten.{name}.default", [real(3, 4), real(3, 4)])
        yield case(f"aten.{name}.default", [real(3), real(3)])
    yield program("aten.cat.default", lambda x: torch.cat([x, x, x * 2], 1), real(2, 3))
    yield case("aten.block_diag.default", [real(2, 3), real(1, 2)])
    yield case("aten.cartesian_prod.default", [real(3), real(2)])


def parts() -> Iterator[Case]:
    """Splits."""
    for axis, size in ((0, 1), (1, 3), (-1, 2), (0, 2)):
        yield case("aten.split.Tensor", real(4, 6), size, axis)
        yield case("aten.unsafe_split.Tensor", real(4, 6), size, axis)
    yield case("aten.split.Tensor", real(5, 4), 2)
    for axis, sizes in ((0, [1, 3]), (1, [2, 3, 1]), (-1, [6])):
        yield case("aten.split_with_sizes.default", real(4, 6), sizes, axis)
        yield case("aten.split.sizes", real(4, 6), sizes, axis)
    for axis, count in ((0, 2), (1, 4), (-1, 3), (0, 9)):
        yield case("aten.chunk.default", real(4, 6), count, axis)
        yield case("aten.tensor_split.sections", real(4, 6), min(count, 4), axis)
    yield case("aten.tensor_split.indices", real(5, 6), [1, 3], 0)
    for axis in (0, 1, -1):
        yield case("aten.unbind.int", real(3, 2, 4), axis)
    yield case("aten.split.Tensor", free(real, (4, 6), (7, 6)), 3, 1)
    yield case("aten.unbind.int", whole(3, 2), 0)
    for name in ("hsplit", "vsplit"):
        yield case(f"aten.{name}.int", real(4, 6), 2)
    for axis, size, step in ((0, 2, 1), (1, 3, 2), (-1, 2, 2), (1, 6, 1)):
        yield case("aten.unfold.default", real(4, 6), axis, size, step)


def parts_by_tensor() -> Iterator[Case]:
    """Splits whose number or indices are in a tensor."""
    for axis, where in ((0, [1, 3]), (1, [2]), (-1, [0, 6]), (1, [2, 9])):
        yield case("aten.tensor_split.tensor_indices_or_sections", real(5, 6), torch.tensor(where), axis)
    for count in (1, 2, 4):
        yield program("aten.tensor_split.sections", lambda x, n=count: x.tensor_split(torch.tensor(n), 1), real(2, 6))
    yield program("aten.tensor_split.indices", lambda x: x.tensor_split(torch.tensor([1, 4]), 1), real(2, 6))
    yield program("aten.tensor_split.indices", lambda x: x.tensor_split(torch.tensor([2, -1])), whole(6))


def cases() -> Iterator[Case]:
    yield from views()
    yield from permutations()
    yield from repeats()
    yield from joins()
    yield from parts()
    yield from parts_by_tensor()
