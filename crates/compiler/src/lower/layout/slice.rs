//! Slices of tensors.
//!
//! Slices are preferred to gathers, which keep a program off the Neural Engine.

use coremill_mil::ir::Dim;

use crate::lower::builder::int32;
use crate::lower::prelude::*;

/// Range along an axis: every `step`th index from `begin` to below `end`. Negative bounds count from the end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    pub(crate) begin: Int,
    /// `None` for the end of the axis.
    pub(crate) end: Option<Int>,
    pub(crate) step: i64,
}

impl Range {
    pub(crate) fn from(begin: Int) -> Range {
        Range { begin, end: None, step: 1 }
    }

    pub(crate) fn to(end: Int) -> Range {
        Range { begin: Int::Known(0), end: Some(end), step: 1 }
    }

    pub(crate) fn between(begin: Int, end: Int) -> Range {
        Range { begin, end: Some(end), step: 1 }
    }

    /// Clamps the bounds to a static size, like Python.
    fn within(self, extent: i64) -> Range {
        let bound = |bound: Int| match bound {
            Int::Known(bound) => {
                let from_start = if bound < 0 { bound.saturating_add(extent) } else { bound };
                Int::Known(from_start.clamp(0, extent))
            }
            computed => computed,
        };
        let end = self.end.map(bound).filter(|&end| end != Int::Known(extent));
        Range { begin: bound(self.begin), end, step: self.step }
    }
}

impl Builder {
    /// Slices along an axis with constant bounds; without `end`, to the last element.
    pub(crate) fn slice(
        &mut self,
        x: ValueId,
        axis: usize,
        begin: i64,
        end: Option<i64>,
    ) -> ValueResult {
        let range = Range { begin: Int::Known(begin), end: end.map(Int::Known), step: 1 };
        self.sliced(x, axis, range)
    }

    /// Slices along an axis.
    pub(crate) fn sliced(&mut self, x: ValueId, axis: usize, range: Range) -> ValueResult {
        let Some(extent) = self.shape(x).get(axis).cloned() else {
            refuse!("axis {axis} is out of range for rank {}", self.rank(x));
        };
        let mut range = match extent.known() {
            Some(extent) => range.within(extent as i64),
            None => range,
        };
        if range.end.is_some_and(|end| self.is_extent(&extent, end)) {
            range.end = None;
        }
        if range.begin == Int::Known(0) && range.end.is_none() && range.step == 1 {
            return Ok(x);
        }
        let extent = extent.known().map(|extent| Int::Known(extent as i64));
        if let (Int::Known(begin), Some(Int::Known(end))) = (range.begin, range.end.or(extent))
            && begin >= end
            && (begin < 0) == (end < 0)
        {
            let mut dims = self.dims(x)?;
            *dims.at_mut(axis)? = Int::Known(0);
            return self.empty(&dims, self.dtype(x));
        }
        let [begin, end, stride, end_mask] = self.slice_bounds(x, axis, range)?;
        emit!(self, OpKind::SliceByIndex, x, begin, end, stride, end_mask)
    }

    /// Selects one index along an axis and removes the axis.
    pub(crate) fn taken_at(&mut self, x: ValueId, axis: usize, index: Int) -> ValueResult {
        let Some(extent) = self.shape(x).get(axis).map(Dim::known) else {
            refuse!("axis {axis} is out of range for rank {}", self.rank(x));
        };
        let index = match (index, extent) {
            (Int::Known(index), Some(extent)) if index < 0 => Int::Known(index + extent as i64),
            (index, _) => index,
        };
        if extent == Some(1) && index == Int::Known(0) {
            return self.squeeze(x, &[axis as i32]);
        }
        let end = match index {
            Int::Known(-1) => None,
            index => Some(self.add_ints(index, Int::Known(1))?),
        };
        let range = Range { begin: index, end, step: 1 };
        let [begin, end, stride, end_mask] = self.slice_bounds(x, axis, range)?;
        let squeeze_mask = mask(self.rank(x), |at| at == axis);
        emit!(self, OpKind::SliceByIndex, x, begin, end, stride, end_mask, squeeze_mask)
    }

    /// Arguments `begin`, `end`, `stride` and `end_mask` of a slice along one axis.
    ///
    /// Bounds of other axes are stated if static and masked if dynamic, to use as few masks as possible.
    pub(crate) fn slice_bounds(
        &mut self,
        x: ValueId,
        axis: usize,
        range: Range,
    ) -> Result<[Arg; 4]> {
        let shape = self.shape(x).to_vec();
        let mut begin = vec![Int::Known(0); shape.len()];
        let fixed = |dim: &Dim| dim.known().and_then(|extent| i64::try_from(extent).ok());
        let mut end: Vec<_> = shape.iter().map(|dim| Int::Known(fixed(dim).unwrap_or(0))).collect();
        *begin.at_mut(axis)? = range.begin;
        if let Some(bound) = range.end {
            *end.at_mut(axis)? = bound;
        }
        let is_open = |at: usize| {
            (at != axis || range.end.is_none())
                && shape.get(at).is_some_and(|extent| extent.known().is_none())
        };
        let end_mask = (0..shape.len()).any(is_open).then(|| mask(shape.len(), is_open));
        let mut stride = vec![1; shape.len()];
        *stride.at_mut(axis)? = int32(range.step)?;
        let stride = (range.step != 1).then_some(stride.as_slice());
        Ok([self.ints(&begin)?, self.ints(&end)?, stride.into(), end_mask.into()])
    }

    /// Converts a bound that counts from the end to one from the start.
    pub(crate) fn counted_from_begin(
        &mut self,
        x: ValueId,
        axis: usize,
        bound: Int,
    ) -> Result<Int> {
        match bound {
            Int::Known(known) if known < 0 => {
                let extent = self.dim(x, axis)?;
                self.add_ints(extent, bound)
            }
            bound => Ok(bound),
        }
    }
}

fn mask(rank: usize, is_set: impl Fn(usize) -> bool) -> Arg {
    Arg::bools(&(0..rank).map(is_set).collect::<Vec<_>>())
}
