//! Tensors read through strides: what operations that only move elements give, without moving them.
//!
//! ```text
//! a = reshape(x = x)              x [1, 128, 1024]
//! b = transpose(x = a)            b [1, 16, 128, 64] is x with strides [131072, 64, 1024, 1]
//! ```

use coremill_mil::ops::OpKind;

use super::super::graph::{Graph, Node, NodeKind, Operand};
use super::super::known::Source;
use super::Editor;
use super::parameters::parameters;
use crate::error::fail;
use crate::geometry::strides as dense_strides;

/// A tensor of floats as part of another, dense one.
#[derive(Clone, Debug)]
pub(crate) struct Strided {
    /// The other one.
    pub(crate) operand: Operand,
    /// Where the first element is.
    pub(crate) offset: usize,
    /// The extents.
    pub(crate) shape: Vec<usize>,
    /// The elements from one to the next along each axis.
    pub(crate) strides: Vec<usize>,
}

/// How many operations are looked through.
const MAX_DEPTH: usize = 12;

/// What an operand is part of, as far as operations that only move elements lead; at least itself.
pub(crate) fn strided(
    source: &Source,
    graph: &Graph,
    editor: &Editor,
    operand: &Operand,
) -> Option<Strided> {
    look(source, graph, editor, operand, MAX_DEPTH)
}

fn look(
    source: &Source,
    graph: &Graph,
    editor: &Editor,
    operand: &Operand,
    depth: usize,
) -> Option<Strided> {
    let shape = graph.shape(operand)?.to_vec();
    if !graph.dtype(operand).is_float() {
        return None;
    }
    let itself = || Strided {
        operand: operand.clone(),
        offset: 0,
        strides: dense_strides(&shape),
        shape: shape.clone(),
    };
    let through = || {
        let (_, node) = editor.writer_of(operand)?;
        let from = match node.kind {
            NodeKind::Alias => node.inputs.first()?,
            _ => node.bound("x").first()?,
        };
        if depth == 0 || graph.dtype(from) != graph.dtype(operand) {
            return None;
        }
        let inner = || look(source, graph, editor, from, depth - 1);
        if let NodeKind::Alias = node.kind {
            return inner()?.reshaped(&shape);
        }
        moved(source, graph, node, operand, graph.shape(from)?, &inner)
    };
    Some(through().unwrap_or_else(itself))
}

/// What a node that only moves elements gives, of a tensor of shape `from` that `inner` sees.
fn moved(
    source: &Source,
    graph: &Graph,
    node: &Node,
    operand: &Operand,
    from: &[usize],
    inner: &dyn Fn() -> Option<Strided>,
) -> Option<Strided> {
    let shape = graph.shape(operand)?;
    match node.operation()? {
        OpKind::Transpose => {
            let order = parameters(source, graph, node, |call| call.axes("perm", from.len()))?;
            let inner = inner()?;
            let strides = order.iter().map(|&axis| inner.strides[axis]).collect();
            Some(Strided { shape: shape.to_vec(), strides, ..inner })
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
            // An extent that was open may contradict the sizes: the reference kernel says so.
            let fits = end == from[axis]
                && shape.len() == from.len()
                && (0..from.len()).all(|at| at == axis || shape[at] == from[at]);
            let start = start.filter(|_| fits)?;
            let inner = inner()?;
            let offset = inner.offset + start * inner.strides[axis];
            Some(Strided { offset, shape: shape.to_vec(), ..inner })
        }
        OpKind::SliceByIndex => {
            let axes = slice_by_index(source, graph, node, from)?;
            let inner = inner()?;
            let mut offset = inner.offset;
            let (mut extents, mut strides) = (Vec::new(), Vec::new());
            for (axis, slice) in axes.iter().enumerate() {
                offset += slice.start * inner.strides[axis];
                if let Some((extent, step)) = slice.kept {
                    extents.push(extent);
                    strides.push(inner.strides[axis] * step);
                }
            }
            (extents == shape).then_some(Strided { offset, shape: extents, strides, ..inner })
        }
        OpKind::SliceBySize => {
            let begin = parameters(source, graph, node, |call| {
                known_ints(call.optional("begin").is_some_and(|begin| !begin.is_empty()))?;
                call.ints("begin", 0)
            })?;
            let inner = inner()?;
            let mut offset = inner.offset;
            for (axis, &begin) in begin.iter().enumerate() {
                let begin = if begin < 0 { begin + from[axis] as i32 } else { begin };
                let begin = usize::try_from(begin).ok()?;
                if begin + shape[axis] > from[axis] {
                    return None;
                }
                offset += begin * inner.strides[axis];
            }
            Some(Strided { offset, shape: shape.to_vec(), ..inner })
        }
        _ => None,
    }
}

fn known_ints(known: bool) -> crate::error::Result<()> {
    if known { Ok(()) } else { fail!("is computed") }
}

/// What a slice takes of one axis.
struct AxisSlice {
    start: usize,
    /// The extent and the step; none for an axis that vanishes.
    kept: Option<(usize, usize)>,
}

fn slice_by_index(
    source: &Source,
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

impl Strided {
    /// Whether elements lie side by side in order.
    pub(crate) fn is_dense(&self) -> bool {
        let mut expected = 1;
        self.shape.iter().zip(&self.strides).rev().all(|(&extent, &stride)| {
            let fits = extent == 1 || stride == expected;
            expected *= extent;
            fits
        })
    }

    /// The same elements in order under another shape, if strides can say so.
    pub(crate) fn reshaped(self, shape: &[usize]) -> Option<Strided> {
        if self.shape.contains(&0)
            || self.shape.iter().product::<usize>() != shape.iter().product::<usize>()
        {
            return None;
        }
        // Axes of extent 1 have any stride.
        let from: Vec<(usize, usize)> = (self.shape.iter().copied())
            .zip(self.strides.iter().copied())
            .filter(|axis| axis.0 != 1)
            .collect();
        let mut strides = vec![0; shape.len()];
        let mut from = from.into_iter().rev();
        // What is left of the axis of the old shape at hand, and its stride.
        let (mut left, mut stride) = (1, 1);
        for (axis, &extent) in shape.iter().enumerate().rev() {
            if extent == 1 {
                continue;
            }
            if left == 1 {
                (left, stride) = from.next()?;
            }
            // An axis that spans several old ones needs them to follow each other.
            while left < extent {
                let (outer, outer_stride) = from.next()?;
                if outer_stride != stride * left {
                    return None;
                }
                left *= outer;
            }
            if left % extent != 0 {
                return None;
            }
            strides[axis] = stride;
            left /= extent;
            stride *= extent;
        }
        let mut reshaped = Strided { shape: shape.to_vec(), strides, ..self };
        reshaped.fill_units();
        Some(reshaped)
    }

    /// Gives axes of extent 1 the stride that dense ones would have.
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use coremill_tensor::DType;

    use super::super::super::known::Known;
    use super::*;
    use crate::array::Array;

    fn view(shape: &[usize], strides: &[usize]) -> Strided {
        let known = Known::new(Array::floats(DType::Fp32, [0], Vec::new()));
        Strided {
            operand: Operand::Constant(Arc::new(known)),
            offset: 0,
            shape: shape.to_vec(),
            strides: strides.to_vec(),
        }
    }

    #[test]
    fn reshapes_keep_strides_where_they_can() {
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
