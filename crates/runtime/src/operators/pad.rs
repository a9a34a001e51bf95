//! Padding.

use super::arguments::same_type;
use super::map::{NOWHERE, take_by_tables};
use super::{Arguments, Kernel, kernel};
use crate::error::{Result, ensure, fail};
use crate::number::{Compute, Number, compute};
use crate::view::{OutTensor, View};

pub(super) const TABLE: &[Kernel] = &[
    kernel("aten::constant_pad_nd.out", "TNS>T", constant),
    kernel("aten::reflection_pad1d.out", "TN>T", |x, out| mirror(x, out, 1, reflected)),
    kernel("aten::reflection_pad2d.out", "TN>T", |x, out| mirror(x, out, 2, reflected)),
    kernel("aten::reflection_pad3d.out", "TN>T", |x, out| mirror(x, out, 3, reflected)),
    kernel("aten::replication_pad1d.out", "TN>T", |x, out| mirror(x, out, 1, replicated)),
    kernel("aten::replication_pad2d.out", "TN>T", |x, out| mirror(x, out, 2, replicated)),
    kernel("aten::replication_pad3d.out", "TN>T", |x, out| mirror(x, out, 3, replicated)),
];

/// Source index of each element along each dimension of the padded tensor. Pads are given as pairs of leading and
/// trailing width, last dimension first.
fn tables(
    view: &View,
    padding: &[i64],
    source: impl Fn(i64, i64) -> Option<i64>,
) -> Result<Vec<Vec<usize>>> {
    let mut tables = Vec::with_capacity(view.rank());
    for (axis, &size) in view.sizes.iter().enumerate() {
        let from_last = 2 * (view.rank() - 1 - axis);
        let (before, after) = match padding.get(from_last..from_last + 2) {
            Some(pair) => (pair[0], pair[1]),
            None => (0, 0),
        };
        // Rejects sizes beyond memory before allocating tables.
        let most = 1 << 31;
        let is_small = |padding: i64| padding.unsigned_abs() < most;
        let length = (is_small(before) && is_small(after)).then(|| before + after + size as i64);
        let Some(length) = length.filter(|length| *length >= 0 && is_small(*length)) else {
            fail!("dimension {axis} of size {size} cannot be padded by {before} and {after}");
        };
        let place = |index: i64| {
            source(index - before, size as i64).map_or(NOWHERE, |source| source as usize)
        };
        tables.push((0..length).map(place).collect::<Vec<usize>>());
    }
    Ok(tables)
}

fn resize(tables: &[Vec<usize>], out: &mut OutTensor) -> Result {
    out.resize(&tables.iter().map(Vec::len).collect::<Vec<usize>>())
}

fn constant(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let view = x.tensor(0)?;
    same_type(&view, &out[0])?;
    let (padding, value) = (x.ints(1)?, x.scalar(2)?);
    ensure!(
        padding.len() % 2 == 0 && padding.len() <= 2 * view.rank(),
        "the padding {padding:?} does not match rank {}",
        view.rank()
    );
    let inside = |index: i64, size: i64| (0..size).contains(&index).then_some(index);
    let tables = tables(&view, padding, inside)?;
    resize(&tables, &mut out[0])?;
    compute!(Compute::of(view.dtype)?, N => {
        let all = vec![N::of(value); out[0].count()];
        out[0].put_all(&all);
    });
    take_by_tables(view, &tables, &mut out[0]);
    Ok(())
}

fn reflected(index: i64, size: i64) -> Option<i64> {
    let index = if index < 0 { -index } else { index };
    let index = if index >= size { 2 * (size - 1) - index } else { index };
    (0..size).contains(&index).then_some(index)
}

fn replicated(index: i64, size: i64) -> Option<i64> {
    (size > 0).then(|| index.clamp(0, size - 1))
}

fn mirror(
    x: &Arguments,
    out: &mut [OutTensor],
    dimensions: usize,
    source: fn(i64, i64) -> Option<i64>,
) -> Result {
    let view = x.tensor(0)?;
    same_type(&view, &out[0])?;
    let padding = x.ints(1)?;
    let rank = view.rank();
    ensure!(
        padding.len() == 2 * dimensions && (rank == dimensions + 1 || rank == dimensions + 2),
        "{dimensions}-D padding requires {} numbers and rank {} or {}, got {padding:?} and rank {rank}",
        2 * dimensions,
        dimensions + 1,
        dimensions + 2
    );
    let tables = tables(&view, padding, source)?;
    let known = tables.iter().flatten().all(|index| *index != NOWHERE);
    ensure!(known, "the padding {padding:?} is too large for a tensor of sizes {:?}", view.sizes);
    resize(&tables, &mut out[0])?;
    take_by_tables(view, &tables, &mut out[0]);
    Ok(())
}
