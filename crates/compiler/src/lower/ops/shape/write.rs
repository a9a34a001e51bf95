//! Writes to slices.

use crate::lower::high_rank::MAX_RANK;
use crate::lower::ops::index::written_along;
use crate::lower::ops::shape::slice::range_of;
use crate::lower::prelude::*;

pub(super) const ROWS: &[Row] =
    &[tensor("aten.slice_scatter", slice_scatter), tensor("aten.select_scatter", select_scatter)];

fn slice_scatter(call: &mut Call<'_, '_>) -> ValueResult {
    let (x, update) = both(call)?;
    let axis = call.axis("dim", call.rank(x))?;
    let range = range_of(call)?;
    let mut dims = call.dims(x)?;
    *dims.at_mut(axis)? = call.dim(update, axis)?;
    let update = call.expanded(update, &dims)?;
    call.replaced(x, update, axis, range)
}

fn select_scatter(call: &mut Call<'_, '_>) -> ValueResult {
    let (x, update) = both(call)?;
    let axis = call.axis("dim", call.rank(x))?;
    let index = call.int("index")?;
    let index = call.counted_from_begin(x, axis, index)?;
    let update = call.expand_dims(update, &[axis as i32])?;
    let end = call.add_ints(index, Int::Known(1))?;
    call.replaced(x, update, axis, Range::between(index, end))
}

/// `self`, and `src` cast to its type.
pub(super) fn both(call: &mut Call<'_, '_>) -> Result<(ValueId, ValueId)> {
    let x = call.tensor("self")?;
    let update = call.value("src")?;
    Ok((x.value, call.cast_to(update, x.dtype)?))
}

impl Builder {
    /// Replaces a range of an axis.
    pub(crate) fn replaced(
        &mut self,
        x: ValueId,
        update: ValueId,
        axis: usize,
        range: Range,
    ) -> ValueResult {
        let extent = self.shape(x).at(axis)?.clone();
        let count = self.dim(update, axis)?;
        if self.extents(update).contains(&Some(0)) {
            return Ok(x);
        }
        if range.step == 1 && self.is_extent(&extent, count) {
            return Ok(update);
        }
        if self.rank(x) > MAX_RANK {
            // Merges the axes before and after the written one.
            let dims = self.dims(x)?;
            let before = self.product(dims.part(..axis)?)?;
            let behind = self.product(dims.part(axis + 1..)?)?;
            let low = self.reshape(x, &[before, *dims.at(axis)?, behind])?;
            let update = self.reshape(update, &[before, count, behind])?;
            let y = self.replaced(low, update, 1, range)?;
            return self.with_sizes(y, &dims);
        }
        let begin = self.counted_from_begin(x, axis, range.begin)?;
        if let Some(row) = self.repeated.get(&update).copied()
            && let (Some(1), 1) = (self.shape(row).at(axis)?.known(), range.step)
        {
            return self.written_over(x, row, axis, begin, count);
        }
        if self.opset() >= Opset::Ios18 {
            // The end is computed from the size of the update, as the range may exceed the tensor.
            let steps = self.mul_ints(count, Int::Known(range.step))?;
            let end = self.add_ints(begin, steps)?;
            let end = self.add_ints(end, Int::Known(1 - range.step))?;
            let range = Range { begin, end: Some(end), step: range.step };
            let [begin, end, stride, end_mask] = self.slice_bounds(x, axis, range)?;
            return emit!(self, OpKind::SliceUpdate, x, update, begin, end, stride, end_mask);
        }
        if range.step == 1 && begin.known().is_some() {
            let mut parts = Vec::with_capacity(3);
            if begin != Int::Known(0) {
                parts.push(self.sliced(x, axis, Range::to(begin))?);
            }
            parts.push(update);
            let end = self.add_ints(begin, count)?;
            if !self.is_extent(&extent, end) {
                parts.push(self.sliced(x, axis, Range::from(end))?);
            }
            return self.concat(&parts, axis);
        }
        let steps = self.mul_ints(count, Int::Known(range.step))?;
        let end = self.add_ints(begin, steps)?;
        let (start, end) = (self.int_value(begin)?, self.int_value(end)?);
        let places = emit!(self, OpKind::Range1d, end, start, step = range.step as i32)?;
        written_along(self, x, places, update, axis, "update")
    }

    /// Fills `count` indices of an axis, starting at `begin`, with the same row. `count` may be zero.
    fn written_over(
        &mut self,
        x: ValueId,
        row: ValueId,
        axis: usize,
        begin: Int,
        count: Int,
    ) -> ValueResult {
        let end = self.add_ints(begin, count)?;
        let extent = self.dim(x, axis)?;
        let (begin, end) = (self.int_value(begin)?, self.int_value(end)?);
        let places = self.counting(extent)?;
        let reached = self.binary(OpKind::GreaterEqual, places, begin)?;
        let before = self.binary(OpKind::Less, places, end)?;
        let written = self.binary(OpKind::LogicalAnd, reached, before)?;
        let written = self.before(written, axis, self.rank(x))?;
        self.select(written, row, x)
    }
}
