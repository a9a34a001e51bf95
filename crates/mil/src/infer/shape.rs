//! Shape computations used by many rules.

use super::{InferContext, InferError};
use crate::ir::Dim;

/// Broadcasts two shapes. The shapes are aligned at the last dimension, and dimensions must be equal or 1. If
/// one dimension is unknown and the other is fixed and not 1, the unknown one must be equal to it or 1, so
/// the result is the fixed one. Two different unknown dimensions result in a new unknown dimension.
pub(crate) fn broadcast(
    site: &InferContext,
    left: &[Dim],
    right: &[Dim],
) -> Result<Vec<Dim>, InferError> {
    let rank = left.len().max(right.len());
    let one = Dim::Known(1);
    let at = |shape: &[Dim], axis: usize| -> Dim {
        let missing = rank - shape.len();
        axis.checked_sub(missing).map_or(one.clone(), |axis| shape[axis].clone())
    };
    let mut result = Vec::with_capacity(rank);
    for axis in 0..rank {
        let (left_dim, right_dim) = (at(left, axis), at(right, axis));
        result.push(match (left_dim.known(), right_dim.known()) {
            _ if left_dim == right_dim => left_dim,
            (Some(1), _) => right_dim,
            (_, Some(1)) => left_dim,
            (Some(_), Some(_)) => {
                let message = format!(
                    "shapes {} and {} do not broadcast: {left_dim} against {right_dim}",
                    written(left),
                    written(right)
                );
                let hint =
                    "aligned at the last dimension, dimensions must be equal or one of them 1";
                return Err(InferError::new(message).hint(hint));
            }
            (Some(extent), None) if extent > 1 => left_dim,
            (None, Some(extent)) if extent > 1 => right_dim,
            _ => site.fresh(),
        });
    }
    Ok(result)
}

/// The shape with the marked axes reduced to size 1 (`keep`) or removed.
pub(crate) fn reduced(shape: &[Dim], marked: &[bool], keep: bool) -> Vec<Dim> {
    let dims = shape.iter().zip(marked);
    dims.filter_map(|(dim, reduced)| match (reduced, keep) {
        (false, _) => Some(dim.clone()),
        (true, true) => Some(Dim::Known(1)),
        (true, false) => None,
    })
    .collect()
}

/// Marks the axes that a parameter lists; all axes if the parameter is unbound.
pub(crate) fn marked_axes(
    site: &InferContext,
    name: &str,
    rank: usize,
) -> Result<Vec<bool>, InferError> {
    let mut marked = vec![false; rank];
    match site.optional_tensor(name) {
        None => marked.fill(true),
        Some(axes) if axes.rank() != 1 => return Err(site.expected(name, "a vector of axes")),
        Some(_) => {
            for axis in site.axes(name, rank)? {
                if std::mem::replace(&mut marked[axis], true) {
                    let message = format!("must name each axis once, got axis {axis} twice");
                    return Err(InferError::new(message).of(name));
                }
            }
        }
    }
    Ok(marked)
}

/// The shape as written in messages.
pub(crate) fn written(shape: &[Dim]) -> String {
    let dims: Vec<_> = shape.iter().map(Dim::to_string).collect();
    format!("[{}]", dims.join(", "))
}

/// The shape, if every dimension is fixed.
pub(crate) fn fixed(shape: &[Dim]) -> Option<Vec<u64>> {
    shape.iter().map(Dim::known).collect()
}
