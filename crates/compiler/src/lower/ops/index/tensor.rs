//! `x[i, j]`: indexing several axes by tensors at once.

use super::mask::mask_places;
use super::{gathered, wrapped};
use crate::lower::prelude::*;

pub(super) const ROWS: &[Row] = &[
    tensor("aten.index", index).only(&["Tensor", "Tensor_hacked_twin"]),
    tensor("aten._unsafe_index", index),
];

/// Index tensors of some axes.
pub(super) struct Indices {
    /// Axis and its indices.
    pub(super) by_axis: Vec<(usize, ValueId)>,
}

impl Indices {
    /// Reads `indices`; a mask over several axes becomes one index tensor per axis.
    pub(super) fn of(call: &mut Call<'_, '_>) -> Result<Indices> {
        let mut by_axis = Vec::new();
        let mut axis = 0;
        for tensor in call.optional_tensors("indices")? {
            let Some(tensor) = tensor else {
                axis += 1;
                continue;
            };
            if call.dtype(tensor.value) == DType::Bool {
                let places = mask_places(call, tensor.value)?;
                by_axis.extend(places.into_iter().enumerate().map(|(at, it)| (axis + at, it)));
                axis += call.rank(tensor.value);
            } else {
                by_axis.push((axis, tensor.value));
                axis += 1;
            }
        }
        Ok(Indices { by_axis })
    }

    /// Axis order in which the indexed axes are adjacent, and the first of them. Axes that are not adjacent move to
    /// the front.
    fn order(&self, rank: usize) -> (Vec<usize>, usize) {
        let indexed: Vec<_> = self.by_axis.iter().map(|&(axis, _)| axis).collect();
        let first = indexed.first().copied().unwrap_or(0);
        if indexed.iter().zip(first..).all(|(&axis, at)| axis == at) {
            return ((0..rank).collect(), first);
        }
        let rest = (0..rank).filter(|axis| !indexed.contains(axis));
        (indexed.iter().copied().chain(rest).collect(), 0)
    }

    /// Merges the indexed axes to one, and computes the indices along it.
    pub(super) fn joined(&self, call: &mut Call<'_, '_>, x: ValueId) -> Result<MergedIndexAxes> {
        let rank = call.rank(x);
        if self.by_axis.iter().any(|&(axis, _)| axis >= rank) {
            refuse!("has indices for more than the {rank} axes of the tensor");
        }
        let (order, first) = self.order(rank);
        let x = call.transpose(x, &order)?;
        let dims = call.dims(x)?;
        let count = self.by_axis.len();
        let mut place: Option<ValueId> = None;
        for (at, &(_, indices)) in self.by_axis.iter().enumerate() {
            let extent = *dims.at(first + at)?;
            let indices = wrapped(call, indices, extent)?;
            place = Some(match place {
                None => indices,
                Some(before) => {
                    let extent = call.int_value(extent)?;
                    let line = call.binary(OpKind::Mul, before, extent)?;
                    call.binary(OpKind::Add, line, indices)?
                }
            });
        }
        let Some(place) = place else { refuse!("has no indices") };
        let mut sizes = dims.part(..first)?.to_vec();
        sizes.push(call.product(dims.part(first..first + count)?)?);
        sizes.extend(dims.part(first + count..)?);
        let x = call.with_sizes(x, &sizes)?;
        Ok(MergedIndexAxes { x, place, axis: first, dims, order })
    }
}

/// A tensor whose indexed axes are merged.
pub(super) struct MergedIndexAxes {
    pub(super) x: ValueId,
    /// Indices along the merged axis.
    pub(super) place: ValueId,
    pub(super) axis: usize,
    /// Sizes before merging, and the axis order.
    dims: Vec<Int>,
    order: Vec<usize>,
}

impl MergedIndexAxes {
    /// Restores the original axes.
    pub(super) fn apart(&self, builder: &mut Builder, y: ValueId) -> ValueResult {
        let y = builder.with_sizes(y, &self.dims)?;
        builder.transpose_back(y, &self.order)
    }
}

fn index(call: &mut Call<'_, '_>) -> ValueResult {
    let indices = Indices::of(call)?;
    let x = call.value("self")?;
    if indices.by_axis.is_empty() {
        return Ok(x);
    }
    let joined = indices.joined(call, x)?;
    gathered(call, joined.x, joined.place, joined.axis)
}
