//! Reference kernels of reshaping operations.

use coremill_mil::ir::Opset;

use crate::array::View;
use crate::call::{Call, Results, normalize_axis};
use crate::error::{Result, fail};

pub(super) fn expand_dims(call: &Call) -> Results {
    let x = call.tensor("x")?;
    let axes = call.ints("axes", 0)?;
    let rank = x.rank() + axes.len();
    let mut added = vec![false; rank];
    for axis in axes {
        added[normalize_axis(axis, rank)?] = true;
    }
    let mut old = x.shape.iter().copied();
    let shape = added.iter().map(|&added| if added { 1 } else { old.next().unwrap_or(1) });
    give(x, shape.collect())
}

pub(super) fn flatten2d(call: &Call) -> Results {
    let x = call.tensor("x")?;
    let axis = call.int("axis")?;
    let boundary = match usize::try_from(axis) {
        Ok(axis) if axis == x.rank() => axis,
        _ => normalize_axis(axis, x.rank())?,
    };
    let (before, after) = x.shape.split_at(boundary);
    give(x, vec![call.count(before)?, call.count(after)?])
}

/// Elements of `shape` other than 0 and -1 are sizes. See the inference rule.
pub(super) fn reshape(call: &Call) -> Results {
    let x = call.tensor("x")?;
    let mut target = call.ints("shape", 0)?;
    let length = target.len();
    if call.since() < Opset::Ios17 && length != x.rank() && target.contains(&0) {
        fail!(
            "`shape` {target:?} contains 0, which requires one size per axis of `x`, {}",
            x.rank()
        );
    }
    let mut shape = Vec::with_capacity(length);
    let mut inferred = None;
    for (at, element) in target.iter_mut().enumerate() {
        shape.push(match *element {
            // From iOS17 on, a 0 copies the size of the axis at the same index from the end, or is
            // 1 if there is none.
            0 => {
                let inherited = (at + x.rank()).checked_sub(length);
                inherited.and_then(|at| x.shape.get(at)).copied().unwrap_or(1)
            }
            -1 if inferred.replace(at).is_none() => 1,
            extent if extent > 0 => extent as usize,
            extent => {
                fail!("`shape` must hold positive sizes, 0, and -1 at most once, got {extent}")
            }
        });
    }
    if let Some(at) = inferred {
        let others = call.count(&shape)?;
        match x.len().checked_div(others) {
            Some(extent) => shape[at] = extent,
            None => fail!("`shape` {target:?} does not determine the size for -1"),
        }
    }
    give(x, shape)
}

pub(super) fn reshape_like(call: &Call) -> Results {
    let x = call.tensor("x")?;
    let one = |name: &str, at: usize| -> Result<i32> {
        match call.all(name).get(at).map(View::ints).transpose()? {
            Some([value]) => Ok(*value),
            _ => fail!("`{name}` expects one scalar for each of `ref_tensors`"),
        }
    };
    let mut shape = Vec::new();
    for (at, reference) in call.all("ref_tensors").iter().enumerate() {
        let rank = reference.rank();
        let begin = clamped(one("begins", at)?, rank);
        let end = match one("end_masks", at)? {
            0 => clamped(one("ends", at)?, rank),
            _ => rank,
        };
        shape.extend_from_slice(reference.shape.get(begin..end).unwrap_or_default());
    }
    give(x, shape)
}

/// Clamps a bound of a slice of axes, which may be negative or out of range.
fn clamped(bound: i32, rank: usize) -> usize {
    let from_start = i64::from(bound) + if bound < 0 { rank as i64 } else { 0 };
    usize::try_from(from_start).unwrap_or(0).min(rank)
}

/// Like PyTorch, keeps listed axes that have a size other than 1.
pub(super) fn squeeze(call: &Call) -> Results {
    let x = call.tensor("x")?;
    let axes = call.axes_or_all("axes", x.rank())?;
    let kept = (0..x.rank()).filter(|axis| x.shape[*axis] != 1 || !axes.contains(axis));
    let shape = kept.map(|axis| x.shape[axis]).collect();
    give(x, shape)
}

fn give(x: View, shape: Vec<usize>) -> Results {
    let count = shape.iter().try_fold(1usize, |count, &extent| count.checked_mul(extent));
    if count != Some(x.len()) {
        fail!("shape {shape:?} does not hold the {} elements of `x`, {:?}", x.len(), x.shape);
    }
    Ok(vec![x.reshaped(shape)])
}
