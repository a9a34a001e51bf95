//! Merges a slice of a slice.
//!
//! ```text
//! a = slice_by_index(x = x, stride = [2, 1], …);    becomes    b = slice_by_index(x = x, stride = [2, 2], …);
//! b = slice_by_index(x = a, stride = [1, 2], …);
//! ```
//!
//! The first slice is removed if all its users are such slices.

use coremill_tensor::DType;

use super::Editor;
use coremill_mil::ir::{Binding, Constant, Op, OpId};
use coremill_mil::ops::OpKind;

/// Runs the pass and returns the number of changed operations.
pub(super) fn merge_slices(editor: &mut Editor<'_>) -> usize {
    let mut changed = 0;
    for id in editor.ops() {
        if editor.op_of(id, OpKind::SliceByIndex).is_some() {
            changed += usize::from(merge(editor, id).is_some());
        }
    }
    changed
}

/// Range of a slice along an axis.
#[derive(Clone, Copy)]
enum SliceRange {
    /// The whole axis.
    All,
    /// `count` elements from `begin` on in steps of `stride`.
    Some { begin: i64, count: i64, stride: i64 },
    /// A single index; the axis is removed.
    One(i64),
}

fn merge(editor: &mut Editor<'_>, id: OpId) -> Option<()> {
    let inner = editor.produced_by(editor.argument(id, "x")?, OpKind::SliceByIndex)?;
    let part = editor.op(inner)?.outputs[0];
    let users = &editor.uses(part).ops;
    let goes = !editor.is_output(part)
        && users.iter().all(|&user| editor.op_of(user, OpKind::SliceByIndex).is_some());
    if !goes {
        return None;
    }
    let x = editor.argument(inner, "x")?;
    let (first, second) = (taken(editor, inner)?, taken(editor, id)?);
    let mut second = second.into_iter();
    let both = first.into_iter().map(|first| match (first, second_of(first, &mut second)?) {
        (SliceRange::One(at), _) => Some(SliceRange::One(at)),
        (SliceRange::All, second) => Some(second),
        (first, SliceRange::All) => Some(first),
        (SliceRange::Some { begin, stride, .. }, SliceRange::One(at)) => {
            Some(SliceRange::One(at.checked_mul(stride)?.checked_add(begin)?))
        }
        (
            SliceRange::Some { begin, stride, .. },
            SliceRange::Some { begin: at, count, stride: by },
        ) => {
            let begin = at.checked_mul(stride)?.checked_add(begin)?;
            Some(SliceRange::Some { begin, count, stride: stride.checked_mul(by)? })
        }
    });
    let both = both.collect::<Option<Vec<_>>>()?;
    let op = slice(Binding::Value(x), &both)?;
    editor.rewrite(id, op).ok()
}

/// Range of the second slice along an axis that the first one keeps.
fn second_of(
    first: SliceRange,
    second: &mut impl Iterator<Item = SliceRange>,
) -> Option<SliceRange> {
    match first {
        SliceRange::One(_) => Some(SliceRange::All),
        SliceRange::All | SliceRange::Some { .. } => second.next(),
    }
}

/// Range of a slice along each axis, if it is constant with positive strides.
fn taken(editor: &Editor<'_>, id: OpId) -> Option<Vec<SliceRange>> {
    let shape = editor.shape(editor.argument(id, "x")?);
    let rank = shape.len();
    let (begins, ends) = (editor.ints(id, "begin")?, editor.ints(id, "end")?);
    let has = |name: &str| editor.function().op(id).binding(name).is_some();
    let strides = if has("stride") { editor.ints(id, "stride")? } else { vec![1; rank] };
    let flags = |name: &str| match has(name) {
        true => Some(editor.ints(id, name)?.into_iter().map(|flag| flag != 0).collect()),
        false => Some(vec![false; rank]),
    };
    let (from_start, to_end): (Vec<bool>, Vec<bool>) = (flags("begin_mask")?, flags("end_mask")?);
    let squeezed: Vec<bool> = flags("squeeze_mask")?;
    let lengths = [begins.len(), ends.len(), strides.len(), from_start.len(), to_end.len()];
    if lengths != [rank; 5] || squeezed.len() != rank {
        return None;
    }
    let along = |axis: usize| {
        let stride = Some(strides[axis]).filter(|&stride| stride > 0)?;
        if from_start[axis] && to_end[axis] && stride == 1 && !squeezed[axis] {
            return Some(SliceRange::All);
        }
        let extent = i64::try_from(shape[axis].known()?).ok()?;
        let place = |at: i64| if at < 0 { at + extent } else { at };
        let begin = if from_start[axis] { 0 } else { place(begins[axis]) };
        if squeezed[axis] {
            return (0..extent).contains(&begin).then_some(SliceRange::One(begin));
        }
        let end = if to_end[axis] { extent } else { place(ends[axis]).min(extent) };
        if begin < 0 || end <= begin {
            return None;
        }
        let count = (end - begin + stride - 1) / stride;
        let all = begin == 0 && count == extent;
        Some(if all { SliceRange::All } else { SliceRange::Some { begin, count, stride } })
    };
    (0..rank).map(along).collect()
}

fn slice(x: Binding, taken: &[SliceRange]) -> Option<Op> {
    let mut bounds = [const { Vec::new() }; 3];
    let mut masks = [const { Vec::new() }; 2];
    for &taken in taken {
        let (begin, end, stride) = match taken {
            SliceRange::All => (0, 0, 1),
            SliceRange::One(at) => (at, at.checked_add(1)?, 1),
            SliceRange::Some { begin, count, stride } => {
                let last = (count - 1).checked_mul(stride)?.checked_add(begin)?;
                (begin, last.checked_add(1)?, stride)
            }
        };
        for (bounds, bound) in bounds.iter_mut().zip([begin, end, stride]) {
            bounds.push(i32::try_from(bound).ok()?);
        }
        masks[0].push(u8::from(matches!(taken, SliceRange::All)));
        masks[1].push(u8::from(matches!(taken, SliceRange::One(_))));
    }
    let [begin, end, stride] = bounds.map(|all| Binding::Literal(Constant::int32s(&all)));
    let rank = taken.len() as u64;
    let mask =
        |flags: &Vec<u8>| Binding::Literal(Constant::bytes(DType::Bool, &[rank], flags.clone()));
    let mut op = Op::new(OpKind::SliceByIndex).with("x", x).with("begin", begin).with("end", end);
    if taken.iter().any(|taken| matches!(taken, SliceRange::Some { stride, .. } if *stride != 1)) {
        op = op.with("stride", stride);
    }
    if masks[0].contains(&1) {
        op = op.with("begin_mask", mask(&masks[0])).with("end_mask", mask(&masks[0]));
    }
    if masks[1].contains(&1) {
        op = op.with("squeeze_mask", mask(&masks[1]));
    }
    Some(op)
}
