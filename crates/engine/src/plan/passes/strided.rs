//! Strided views: results of operations that only move elements, without a copy.
//!
//! ```text
//! a = reshape(x = x)              x [1, 128, 1024]
//! b = transpose(x = a)            b [1, 16, 128, 64] is x with strides [131072, 64, 1024, 1]
//! ```

use coremill_mil::ops::OpKind;
use coremill_reference::error::fail;
use coremill_reference::geometry::strides as dense_strides;

use super::super::graph::{Graph, Node, NodeKind, Operand};
use super::Editor;
use super::parameters::parameters;
use crate::plan::FunctionContext;

/// A float tensor as a strided view of a dense tensor.
#[derive(Clone, Debug)]
pub(crate) struct StridedSlice {
    /// The dense tensor.
    pub(crate) operand: Operand,
    /// Offset of the first element.
    pub(crate) offset: usize,
    pub(crate) shape: Vec<usize>,
    /// Strides in elements.
    pub(crate) strides: Vec<usize>,
}

/// A strided view of a dense tensor whose axes may each combine several axes of the dense tensor.
/// An example is the merge of a repeated axis with another.
#[derive(Clone, Debug)]
pub(crate) struct StridedView {
    /// The dense tensor.
    operand: Operand,
    /// Offset of the first element.
    offset: usize,
    /// Sizes and strides of the parts of each axis, outermost first. Parts of size 1 are omitted.
    axes: Vec<Vec<(usize, usize)>>,
}

/// Maximum number of operations between a view and its tensor.
const MAX_DEPTH: usize = 12;

/// The view of an operand through all operations that only move elements. Without such operations,
/// the operand itself.
pub(crate) fn strided(
    source: &FunctionContext,
    graph: &Graph,
    editor: &Editor,
    operand: &Operand,
) -> Option<StridedSlice> {
    look(&ViewTracer { source, graph, editor, composite: false }, operand, MAX_DEPTH)?.plain()
}

/// Like [`strided`], with axes that combine several axes.
pub(crate) fn seen(
    source: &FunctionContext,
    graph: &Graph,
    editor: &Editor,
    operand: &Operand,
) -> Option<StridedView> {
    look(&ViewTracer { source, graph, editor, composite: true }, operand, MAX_DEPTH)
}

struct ViewTracer<'l> {
    source: &'l FunctionContext,
    graph: &'l Graph,
    editor: &'l Editor,
    /// Whether an axis may combine several axes.
    composite: bool,
}

fn look(look_with: &ViewTracer<'_>, operand: &Operand, depth: usize) -> Option<StridedView> {
    let ViewTracer { source, graph, editor, composite } = *look_with;
    let shape = graph.shape(operand)?;
    if !graph.dtype(operand).is_float() {
        return None;
    }
    let through = || {
        let (_, node) = editor.writer_of(operand)?;
        let from = match node.kind {
            NodeKind::Alias => node.inputs.first()?,
            _ => node.bound("x").first()?,
        };
        if depth == 0 || graph.dtype(from) != graph.dtype(operand) {
            return None;
        }
        let inner = || look(look_with, from, depth - 1);
        let seen = match node.kind {
            NodeKind::Alias => inner()?.reshaped(shape)?,
            _ => moved(source, graph, node, operand, graph.shape(from)?, &inner)?,
        };
        (composite || seen.axes.iter().all(|axis| axis.len() <= 1)).then_some(seen)
    };
    Some(through().unwrap_or_else(|| StridedView::whole(operand.clone(), shape)))
}

/// The result of a node that only moves elements of a tensor of shape `from`, viewed as `inner`.
fn moved(
    source: &FunctionContext,
    graph: &Graph,
    node: &Node,
    operand: &Operand,
    from: &[usize],
    inner: &dyn Fn() -> Option<StridedView>,
) -> Option<StridedView> {
    let shape = graph.shape(operand)?;
    match node.operation()? {
        OpKind::Transpose => {
            let order = parameters(source, graph, node, |call| call.axes("perm", from.len()))?;
            let inner = inner()?;
            let axes = order.iter().map(|&axis| inner.axes[axis].clone()).collect();
            Some(StridedView { axes, ..inner })
        }
        OpKind::Split => {
            let axis = parameters(source, graph, node, |call| call.axis("axis", from.len()))?;
            let (mut start, mut end) = (None, 0);
            for &output in &node.outputs {
                if Some(output) == operand.slot() {
                    start = Some(end);
                }
                end += graph.slot(output).shape.as_ref()?.get(axis)?;
            }
            // Unknown dimensions may contradict the sizes. The reference kernel reports that.
            let fits = end == from[axis]
                && shape.len() == from.len()
                && (0..from.len()).all(|at| at == axis || shape[at] == from[at]);
            let start = start.filter(|_| fits)?;
            inner()?.sliced(axis, start, shape[axis], 1)
        }
        OpKind::SliceByIndex => {
            let slices = slice_by_index(source, graph, node, from)?;
            let mut seen = inner()?;
            for (axis, slice) in slices.iter().enumerate() {
                let (extent, step) = slice.kept.unwrap_or((1, 1));
                seen = seen.sliced(axis, slice.start, extent, step)?;
            }
            let mut kept = slices.iter().map(|slice| slice.kept.is_some());
            seen.axes.retain(|_| kept.next() == Some(true));
            (seen.shape() == shape).then_some(seen)
        }
        OpKind::SliceBySize => {
            let begin = parameters(source, graph, node, |call| {
                known_ints(call.optional("begin").is_some_and(|begin| !begin.is_empty()))?;
                call.ints("begin", 0)
            })?;
            let mut seen = inner()?;
            for (axis, &begin) in begin.iter().enumerate() {
                let begin = if begin < 0 { begin + from[axis] as i32 } else { begin };
                let begin = usize::try_from(begin).ok()?;
                if begin + shape[axis] > from[axis] {
                    return None;
                }
                seen = seen.sliced(axis, begin, shape[axis], 1)?;
            }
            Some(seen)
        }
        OpKind::Tile => {
            let known = node.bound("reps").iter().all(|bound| bound.constant().is_some());
            let reps = parameters(source, graph, node, |call| {
                known_ints(known)?;
                call.ints("reps", 0)
            })?;
            let counts: Vec<usize> =
                reps.iter().map(|&count| usize::try_from(count).ok()).collect::<Option<_>>()?;
            let fits = counts.len() == from.len()
                && shape.len() == from.len()
                && (0..from.len())
                    .all(|axis| counts[axis].checked_mul(from[axis]) == Some(shape[axis]));
            let mut seen = inner().filter(|_| fits)?;
            for (axis, &count) in seen.axes.iter_mut().zip(&counts) {
                if count != 1 {
                    axis.insert(0, (count, 0));
                }
            }
            Some(seen)
        }
        _ => None,
    }
}

fn known_ints(known: bool) -> coremill_reference::error::Result<()> {
    if known { Ok(()) } else { fail!("is not a constant") }
}

/// The part of an axis that a slice selects.
struct AxisSlice {
    start: usize,
    /// Size and step, `None` if the axis is removed.
    kept: Option<(usize, usize)>,
}

fn slice_by_index(
    source: &FunctionContext,
    graph: &Graph,
    node: &Node,
    from: &[usize],
) -> Option<Vec<AxisSlice>> {
    let is_known = |name: &str| node.bound(name).iter().all(|bound| bound.constant().is_some());
    if !["begin", "end", "stride"].into_iter().all(is_known) {
        return None;
    }
    let rank = from.len();
    let (begin, end, stride, masks) = parameters(source, graph, node, |call| {
        let stride = call.optional_ints("stride")?.unwrap_or_else(|| vec![1; rank]);
        let masks = ["begin_mask", "end_mask", "squeeze_mask"].map(|name| call.bools(name, rank));
        Ok((call.ints("begin", 0)?, call.ints("end", 0)?, stride, masks))
    })?;
    let [begin_mask, end_mask, squeeze_mask] = masks;
    let (begin_mask, end_mask, squeeze_mask) =
        (begin_mask.ok()?, end_mask.ok()?, squeeze_mask.ok()?);
    let axis = |axis: usize| {
        let extent = i64::try_from(from[axis]).ok()?;
        let at = |index: &[i32]| {
            let index = i64::from(*index.get(axis)?);
            Some(if index < 0 { index + extent } else { index })
        };
        let step = usize::try_from(*stride.get(axis)?).ok().filter(|&step| step > 0)?;
        if *squeeze_mask.get(axis)? {
            let index = if *begin_mask.get(axis)? { 0 } else { at(&begin)? };
            let start = usize::try_from(index).ok().filter(|&at| at < from[axis])?;
            return Some(AxisSlice { start, kept: None });
        }
        let start = if *begin_mask.get(axis)? { 0 } else { at(&begin)?.clamp(0, extent) };
        let end = if *end_mask.get(axis)? { extent } else { at(&end)?.clamp(0, extent) };
        let length = usize::try_from(end - start).ok().filter(|&length| length > 0)?;
        let start = usize::try_from(start).ok()?;
        Some(AxisSlice { start, kept: Some((length.div_ceil(step), step)) })
    };
    (0..rank).map(axis).collect()
}

impl StridedSlice {
    /// Returns true if elements are contiguous and in order.
    pub(crate) fn is_dense(&self) -> bool {
        let mut expected = 1;
        self.shape.iter().zip(&self.strides).rev().all(|(&extent, &stride)| {
            let fits = extent == 1 || stride == expected;
            expected *= extent;
            fits
        })
    }

    /// The same elements under another shape, `None` if strides cannot express it.
    pub(crate) fn reshaped(self, shape: &[usize]) -> Option<StridedSlice> {
        let axis = |(&extent, &stride): (&usize, &usize)| part(extent, stride);
        let axes = self.shape.iter().zip(&self.strides).map(axis).collect();
        StridedView { operand: self.operand, offset: self.offset, axes }.reshaped(shape)?.plain()
    }

    /// Sets the strides of axes of size 1 as in a dense tensor.
    fn fill_units(&mut self) {
        let mut inner = 1;
        for (stride, &extent) in self.strides.iter_mut().zip(&self.shape).rev() {
            if extent == 1 {
                *stride = inner;
            }
            inner = *stride * extent;
        }
    }
}

/// An axis with one part.
fn part(extent: usize, stride: usize) -> Vec<(usize, usize)> {
    if extent == 1 { Vec::new() } else { vec![(extent, stride)] }
}

impl StridedView {
    fn whole(operand: Operand, shape: &[usize]) -> StridedView {
        let strides = dense_strides(shape);
        let axes = shape.iter().zip(strides).map(|(&extent, stride)| part(extent, stride));
        StridedView { operand, offset: 0, axes: axes.collect() }
    }

    pub(crate) fn shape(&self) -> Vec<usize> {
        let extent = |axis: &Vec<(usize, usize)>| axis.iter().map(|part| part.0).product();
        self.axes.iter().map(extent).collect()
    }

    /// Converts to a view with one stride per axis. `None` if an axis has several parts.
    pub(crate) fn plain(self) -> Option<StridedSlice> {
        let shape = self.shape();
        let mut strides = Vec::with_capacity(shape.len());
        for axis in &self.axes {
            strides.push(match axis[..] {
                [] => 0,
                [(_, stride)] => stride,
                _ => return None,
            });
        }
        let mut plain = StridedSlice { operand: self.operand, offset: self.offset, shape, strides };
        plain.fill_units();
        Some(plain)
    }

    /// Removes the innermost part of an axis if it only repeats elements. Also returns the number
    /// of repetitions.
    pub(crate) fn once(mut self, axis: usize) -> Option<(StridedSlice, usize)> {
        let times = match self.axes.get_mut(axis)?.pop_if(|part| part.1 == 0) {
            Some((times, _)) => times,
            None => 1,
        };
        Some((self.plain()?, times))
    }

    /// Splits the axes before `from` to one axis per part.
    pub(crate) fn apart(mut self, from: usize) -> Option<StridedSlice> {
        let rest = self.axes.split_off(from);
        self.axes = self.axes.into_iter().flatten().map(|part| vec![part]).chain(rest).collect();
        self.plain()
    }

    /// Selects part of an axis. An axis with several parts can only be selected as a whole.
    fn sliced(
        mut self,
        axis: usize,
        start: usize,
        extent: usize,
        step: usize,
    ) -> Option<StridedView> {
        match self.axes[axis][..] {
            [] if start == 0 && extent == 1 => {}
            [(_, stride)] => {
                self.offset += start * stride;
                self.axes[axis] = part(extent, stride * step);
            }
            ref parts => {
                let whole: usize = parts.iter().map(|part| part.0).product();
                if start != 0 || extent != whole || step != 1 {
                    return None;
                }
            }
        }
        Some(self)
    }

    /// The same elements under another shape.
    fn reshaped(self, shape: &[usize]) -> Option<StridedView> {
        let from = self.shape();
        if from.contains(&0) || from.iter().product::<usize>() != shape.iter().product::<usize>() {
            return None;
        }
        let mut parts: Vec<(usize, usize)> = self.axes.into_iter().flatten().collect();
        let mut axes = Vec::with_capacity(shape.len());
        for &extent in shape.iter().rev() {
            // Innermost parts first.
            let mut axis: Vec<(usize, usize)> = Vec::new();
            let mut left = extent;
            while left > 1 {
                let (extent, stride) = parts.pop()?;
                let taken = if left % extent == 0 {
                    extent
                } else if extent % left == 0 {
                    parts.push((extent / left, stride * left));
                    left
                } else {
                    return None;
                };
                left /= taken;
                match axis.last_mut() {
                    Some((inner, inner_stride)) if *inner_stride * *inner == stride => {
                        *inner *= taken;
                    }
                    _ => axis.push((taken, stride)),
                }
            }
            axis.reverse();
            axes.push(axis);
        }
        axes.reverse();
        Some(StridedView { operand: self.operand, offset: self.offset, axes })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use coremill_tensor::DType;

    use super::*;
    use crate::plan::ConstantTensor;
    use coremill_reference::array::Array;

    fn view(shape: &[usize], strides: &[usize]) -> StridedSlice {
        let known = ConstantTensor::new(Array::floats(DType::Fp32, [0], Vec::new()));
        StridedSlice {
            operand: Operand::Constant(Arc::new(known)),
            offset: 0,
            shape: shape.to_vec(),
            strides: strides.to_vec(),
        }
    }

    #[test]
    fn reshape_keeps_strides_unless_copy_needed() {
        let cases: [(&[usize], &[usize], &[usize], Option<&[usize]>); 6] = [
            (&[1, 128, 1024], &[131072, 1024, 1], &[1, 128, 16, 64], Some(&[131072, 1024, 64, 1])),
            (&[16, 128, 64], &[64, 1024, 1], &[1, 16, 128, 64], Some(&[131072, 64, 1024, 1])),
            (&[16, 128, 64], &[64, 1024, 1], &[16, 128 * 64], None),
            (&[8, 2, 5], &[10, 5, 1], &[16, 5], Some(&[5, 1])),
            (&[6, 4], &[1, 6], &[2, 3, 4], Some(&[3, 1, 6])),
            (&[6, 4], &[1, 6], &[24], None),
        ];
        for (shape, strides, to, expected) in cases {
            let found = view(shape, strides).reshaped(to);
            let found = found.map(|found| found.strides[..].to_vec());
            let first = found.as_ref().map(|found| &found[..]);
            let agree = match (first, expected) {
                (Some(found), Some(expected)) => found
                    .iter()
                    .zip(expected)
                    .zip(to)
                    .all(|((f, e), &extent)| extent == 1 || f == e),
                (None, None) => true,
                _ => false,
            };
            assert!(agree, "{shape:?} {strides:?} to {to:?}: {found:?}");
        }
    }
}
