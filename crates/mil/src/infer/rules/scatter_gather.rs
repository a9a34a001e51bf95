//! Reading and writing elements at indices that are computed at run time.

use crate::infer::rules::elements::{offset, rearranged, tabulated, tensor};
use crate::infer::rules::join::agreed;
use crate::infer::rules::slice::element_at;
use crate::infer::{InferContext, InferError, InferredValue, KnownElements, Rule, Scalar, refuse};
use crate::ir::{Dim, Opset, TensorType, Type};

const MODES: [&str; 7] = ["add", "div", "max", "min", "mul", "sub", "update"];

pub(super) fn gather(site: &InferContext) -> Rule {
    let (x, indices) = (site.tensor("x")?, site.tensor("indices")?);
    let axis = site.axis("axis", x.rank())?;
    let batch = batch_dims(site, x, indices)?;
    if axis < batch {
        let message = format!("must not be one of the {batch} batch axes, got {axis}");
        return Err(InferError::new(message).of("axis").hint("gather along a later axis"));
    }
    validate(site, |_| Some((&x.shape[axis], axis)))?;

    let mut shape = x.shape[..axis].to_vec();
    shape.extend_from_slice(&indices.shape[batch..]);
    shape.extend_from_slice(&x.shape[axis + 1..]);
    let rank = indices.rank() - batch;
    let value = match (site.value("x"), site.value("indices")) {
        (Some(x), Some(indices)) => {
            check_indices(indices, x.shape[axis], axis)?;
            rearranged(x, &shape, |index, at| {
                let (before, rest) = index.split_at(axis);
                let (within, after) = rest.split_at(rank);
                let mut place = before[..batch].to_vec();
                place.extend_from_slice(within);
                at[..axis].copy_from_slice(before);
                at[axis] = index_at(indices, &place, x.shape[axis])?;
                at[axis + 1..].copy_from_slice(after);
                Some(())
            })
        }
        _ => None,
    };
    Ok(vec![tensor(x.dtype, shape, value)])
}

pub(super) fn gather_along_axis(site: &InferContext) -> Rule {
    let (x, indices) = (site.tensor("x")?, site.tensor("indices")?);
    let axis = site.axis("axis", x.rank())?;
    let shape = beside_axis(x, "x", indices, axis)?;
    validate(site, |_| Some((&x.shape[axis], axis)))?;
    let value = match (site.value("x"), site.value("indices")) {
        (Some(x), Some(indices)) => {
            check_indices(indices, x.shape[axis], axis)?;
            rearranged(x, &shape, |index, at| {
                at.copy_from_slice(index);
                at[axis] = index_at(indices, index, x.shape[axis])?;
                Some(())
            })
        }
        _ => None,
    };
    Ok(vec![tensor(x.dtype, shape, value)])
}

pub(super) fn gather_nd(site: &InferContext) -> Rule {
    let (x, indices) = (site.tensor("x")?, site.tensor("indices")?);
    let depth = depth(indices)?;
    let batch = batch_dims(site, x, indices)?;
    if batch >= indices.rank() {
        let message = format!(
            "must be at most {}, the rank of `indices` minus 1, got {batch}",
            indices.rank() - 1
        );
        return Err(InferError::new(message).of("batch_dims"));
    }
    check_depth(x, "x", depth, batch)?;
    validate(site, |place| {
        let axis = batch + place % depth.max(1);
        Some((x.shape.get(axis)?, axis))
    })?;
    let outer = indices.rank() - 1;
    let mut shape = indices.shape[..outer].to_vec();
    shape.extend_from_slice(&x.shape[batch + depth..]);
    let value = site.value("x").zip(site.value("indices")).and_then(|(x, indices)| {
        rearranged(x, &shape, |index, at| {
            let (place, after) = index.split_at(outer);
            at[..batch].copy_from_slice(&place[..batch]);
            for step in 0..depth {
                let mut place = place.to_vec();
                place.push(step as u64);
                at[batch + step] = index_at(indices, &place, x.shape[batch + step])?;
            }
            at[batch + depth..].copy_from_slice(after);
            Some(())
        })
    });
    Ok(vec![tensor(x.dtype, shape, value)])
}

pub(super) fn scatter(site: &InferContext) -> Rule {
    let (data, indices) = (site.tensor("data")?, site.tensor("indices")?);
    let axis = site.axis("axis", data.rank())?;
    site.choice("mode", &MODES)?;
    let mut expected = data.shape[..axis].to_vec();
    expected.extend_from_slice(&indices.shape);
    expected.extend_from_slice(&data.shape[axis + 1..]);
    check_updates(site, data, expected)?;
    validate(site, |_| Some((&data.shape[axis], axis)))?;
    Ok(vec![InferredValue::tensor(data.dtype, data.shape.clone())])
}

pub(super) fn scatter_along_axis(site: &InferContext) -> Rule {
    let (data, indices) = (site.tensor("data")?, site.tensor("indices")?);
    let axis = site.axis("axis", data.rank())?;
    let mode = site.choice("mode", &MODES)?;
    check_updates(site, data, indices.shape.clone())?;
    let shape = beside_axis(data, "data", indices, axis)?;
    validate(site, |_| Some((&data.shape[axis], axis)))?;
    let fold = || {
        if &*mode != "update" {
            return None;
        }
        let (indices, updates) = (site.value("indices")?, site.value("updates")?);
        let mut written = KnownElements::clone(site.value("data")?);
        tabulated(updates.dtype, &shape, |index| {
            let mut at = index.to_vec();
            at[axis] = index_at(indices, index, written.shape[axis])?;
            let update = updates.elements.get(offset(&updates.shape, index)?)?.clone();
            *written.elements.get_mut(offset(&written.shape, &at)?)? = update;
            Some(Scalar::Unknown)
        })?;
        Some(written)
    };
    Ok(vec![tensor(data.dtype, data.shape.clone(), fold())])
}

pub(super) fn scatter_nd(site: &InferContext) -> Rule {
    let (data, indices) = (site.tensor("data")?, site.tensor("indices")?);
    let depth = depth(indices)?;
    site.choice("mode", &MODES)?;
    check_depth(data, "data", depth, 0)?;
    let mut expected = indices.shape[..indices.rank() - 1].to_vec();
    expected.extend_from_slice(&data.shape[depth..]);
    check_updates(site, data, expected)?;
    validate(site, |place| {
        let axis = place % depth.max(1);
        Some((data.shape.get(axis)?, axis))
    })?;
    Ok(vec![InferredValue::tensor(data.dtype, data.shape.clone())])
}

/// Number of leading axes shared by `x` and `indices`; always 0 before iOS16.
fn batch_dims(
    site: &InferContext,
    x: &TensorType,
    indices: &TensorType,
) -> Result<usize, InferError> {
    if !site.row_has("batch_dims") {
        return Ok(0);
    }
    let given = site.int("batch_dims")?;
    let refusal = |message: String| InferError::new(message).of("batch_dims");
    let count = usize::try_from(given).ok();
    let Some(count) = count.filter(|&count| count < x.rank() && count <= indices.rank()) else {
        return Err(refusal(format!(
            "must be at least 0, less than the rank of `x`, {}, and at most that of `indices`, {}, \
             got {given}",
            x.rank(),
            indices.rank()
        )));
    };
    for axis in 0..count {
        if agreed(&x.shape[axis], &indices.shape[axis]).is_none() {
            return Err(refusal(format!(
                "is {count}, but axis {axis} differs: `x` is `{x}` and `indices` is `{indices}`"
            )));
        }
    }
    Ok(count)
}

/// The shape of indices into one axis of a tensor. The other axes must match the tensor.
fn beside_axis(
    x: &TensorType,
    name: &str,
    indices: &TensorType,
    axis: usize,
) -> Result<Vec<Dim>, InferError> {
    let mut shape = indices.shape.clone();
    let mut same = shape.len() == x.rank();
    for (at, (dim, extent)) in shape.iter_mut().zip(&x.shape).enumerate() {
        if at != axis {
            match agreed(dim, extent) {
                Some(better) => *dim = better,
                None => same = false,
            }
        }
    }
    if same {
        return Ok(shape);
    }
    let message = format!(
        "is `{indices}`, but `{name}` is `{x}`; both must have the same rank, and the same sizes \
         except along axis {axis}"
    );
    Err(InferError::new(message).of("indices"))
}

/// Number of indices that select an element: the size of the last axis.
fn depth(indices: &TensorType) -> Result<usize, InferError> {
    let depth = indices.shape.last().and_then(Dim::known);
    depth.and_then(|depth| usize::try_from(depth).ok()).ok_or_else(|| {
        let message = format!("must have a last axis of fixed size, got `{indices}`");
        InferError::new(message).of("indices").hint("the last axis holds one index for each axis")
    })
}

fn check_depth(x: &TensorType, name: &str, depth: usize, batch: usize) -> Result<(), InferError> {
    if x.rank().checked_sub(batch).is_some_and(|rank| depth <= rank) {
        return Ok(());
    }
    let message = format!(
        "selects elements by {depth} indices, but `{name}` is `{x}`, which has {} axes after the batch axes",
        x.rank().saturating_sub(batch)
    );
    Err(InferError::new(message).of("indices"))
}

fn check_updates(
    site: &InferContext,
    data: &TensorType,
    expected: Vec<Dim>,
) -> Result<(), InferError> {
    let updates = Type::Tensor(site.tensor("updates")?.clone());
    let expected = Type::Tensor(TensorType { dtype: data.dtype, shape: expected });
    if updates.is_compatible(&expected) {
        return Ok(());
    }
    let message = format!("is `{updates}`; expected `{expected}` from `data` and `indices`");
    Err(InferError::new(message).of("updates"))
}

/// Checks indices if `validate_indices` is set (since iOS17): negative indices and indices out of bounds are
/// errors. `extent` returns the size and the axis for the index at a position.
fn validate<'a>(
    site: &InferContext,
    extent: impl Fn(usize) -> Option<(&'a Dim, usize)>,
) -> Result<(), InferError> {
    if site.since() < Opset::Ios17 || !site.bool("validate_indices")? {
        return Ok(());
    }
    let Some(indices) = site.value("indices") else { return Ok(()) };
    for (place, element) in indices.elements.iter().enumerate() {
        let (Some(index), Some((extent, axis))) = (element.int(), extent(place)) else { continue };
        let beyond = |extent: u64| i128::from(index) >= i128::from(extent);
        if index < 0 || extent.known().is_some_and(beyond) {
            let message = format!(
                "contains {index}, but axis {axis} has {extent} elements, and `validate_indices` \
                 requires indices that are not negative and less than this size"
            );
            return Err(InferError::new(message).of("indices"));
        }
    }
    Ok(())
}

/// Checks that known indices are within an axis.
fn check_indices(indices: &KnownElements, extent: u64, axis: usize) -> Result<(), InferError> {
    let known = indices.elements.iter().filter_map(|element| element.int());
    match known.into_iter().find(|&index| element_at(index, extent).is_none()) {
        None => Ok(()),
        Some(index) => {
            refuse!("index {index} is outside axis {axis} of `x`, which has {extent} elements")
        }
    }
}

/// The index at a position, counted from the start of the axis.
fn index_at(indices: &KnownElements, place: &[u64], extent: u64) -> Option<u64> {
    let index = indices.elements.get(offset(&indices.shape, place)?)?.int()?;
    element_at(index, extent)
}
