//! Operations that move elements.

use crate::infer::rules::elements::{rearranged, tensor};
use crate::infer::rules::join::agreed;
use crate::infer::rules::reshape::{axis_list, no_axis_twice};
use crate::infer::rules::slice::not_negative;
use crate::infer::{InferContext, InferError, InferredValue, Rule, normalize_axis, refuse};
use crate::ir::{Dim, Expr, TensorType};

pub(super) fn transpose(site: &InferContext) -> Rule {
    let x = site.tensor("x")?;
    let given = axis_list(site, "perm")?;
    let refusal = |message: String| InferError::new(message).of("perm");
    if given.len() != x.rank() {
        let message =
            format!("has {} elements, but `x` is `{x}`, which has rank {}", given.len(), x.rank());
        return Err(refusal(message));
    }
    let perm: Result<Vec<_>, _> =
        given.iter().map(|&axis| normalize_axis(axis, x.rank())).collect();
    let perm = perm.map_err(|refusal| refusal.of("perm"))?;
    let mut sorted = perm.clone();
    sorted.sort_unstable();
    no_axis_twice(&sorted, "perm")?;
    let shape: Vec<Dim> = perm.iter().map(|&axis| x.shape[axis].clone()).collect();
    let value = site.value("x").and_then(|value| {
        rearranged(value, &shape, |index, at| {
            for (&axis, &place) in perm.iter().zip(index) {
                at[axis] = place;
            }
            Some(())
        })
    });
    Ok(vec![tensor(x.dtype, shape, value)])
}

pub(super) fn reverse(site: &InferContext) -> Rule {
    let x = site.tensor("x")?;
    let axes = match site.has("axes") {
        true => site.axes("axes", x.rank())?,
        false => (0..x.rank()).collect(),
    };
    let mut turned = vec![false; x.rank()];
    for axis in axes {
        // An axis that is listed twice is reversed back.
        turned[axis] = !turned[axis];
    }
    let value = site.value("x").and_then(|value| {
        rearranged(value, &x.shape, |index, at| {
            for (axis, (at, place)) in at.iter_mut().zip(index).enumerate() {
                *at = if turned[axis] { value.shape[axis] - 1 - place } else { *place };
            }
            Some(())
        })
    });
    Ok(vec![tensor(x.dtype, x.shape.clone(), value)])
}

pub(super) fn reverse_sequence(site: &InferContext) -> Rule {
    let x = site.tensor("x")?;
    site.axis("seq_axis", x.rank())?;
    let batch_axis = site.axis("batch_axis", x.rank())?;
    let lengths = site.tensor("lengths")?;
    if lengths.rank() != 1 || agreed(&lengths.shape[0], &x.shape[batch_axis]).is_none() {
        let message = format!(
            "must have one element for each of the {} elements of `x` along axis {batch_axis}, got \
             `{lengths}`",
            x.shape[batch_axis]
        );
        return Err(InferError::new(message).of("lengths"));
    }
    Ok(vec![InferredValue::tensor(x.dtype, x.shape.clone())])
}

pub(super) fn depth_to_space(site: &InferContext) -> Rule {
    let block = factor(site, "block_size")?;
    deepened(site, "block_size", block, false)
}

pub(super) fn pixel_shuffle(site: &InferContext) -> Rule {
    let block = factor(site, "upscale_factor")?;
    deepened(site, "upscale_factor", block, false)
}

pub(super) fn space_to_depth(site: &InferContext) -> Rule {
    let block = factor(site, "block_size")?;
    deepened(site, "block_size", block, true)
}

pub(super) fn pixel_unshuffle(site: &InferContext) -> Rule {
    let block = factor(site, "downscale_factor")?;
    deepened(site, "downscale_factor", block, true)
}

fn factor(site: &InferContext, name: &str) -> Result<i64, InferError> {
    let factor = site.int(name)?;
    if factor < 1 {
        return Err(InferError::new(format!("must be at least 1, got {factor}")).of(name));
    }
    Ok(factor)
}

/// Moves blocks of an image to channels (`deeper`), or back.
fn deepened(site: &InferContext, name: &str, block: i64, deeper: bool) -> Rule {
    let x = image(site)?;
    let area = block.checked_mul(block);
    let area = area.ok_or_else(|| InferError::new(format!("is too large: {block}")).of(name))?;
    let times = |dim: &Dim, factor: i64| {
        site.dim(dim.expr().and_then(|extent| extent.mul(&Expr::from(factor))))
    };
    let over = |axis: usize, divisor: i64| divided(site, x, axis, divisor);
    let [batch, channels, height, width] = [0, 1, 2, 3].map(|axis| &x.shape[axis]);
    let shape = if deeper {
        vec![batch.clone(), times(channels, area), over(2, block)?, over(3, block)?]
    } else {
        vec![batch.clone(), over(1, area)?, times(height, block), times(width, block)]
    };
    Ok(vec![InferredValue::tensor(x.dtype, shape)])
}

/// The tensor `x`, whose rank must be 4.
fn image<'a>(site: &'a InferContext) -> Result<&'a TensorType, InferError> {
    let x = site.tensor("x")?;
    if x.rank() == 4 {
        return Ok(x);
    }
    let message = format!("expects the shape [batch, channels, height, width], found `{x}`");
    Err(InferError::new(message).of("x"))
}

/// Size of an axis of `x` divided by `divisor`; it must be a multiple.
fn divided(
    site: &InferContext,
    x: &TensorType,
    axis: usize,
    divisor: i64,
) -> Result<Dim, InferError> {
    let extent = &x.shape[axis];
    check_multiple(extent, axis, divisor)?;
    Ok(site.dim(extent.expr().and_then(|extent| extent.floor_div(&Expr::from(divisor)))))
}

fn check_multiple(extent: &Dim, axis: usize, divisor: i64) -> Result<(), InferError> {
    let remainder = extent.known().and_then(|extent| extent.checked_rem(divisor.unsigned_abs()));
    if remainder.is_some_and(|remainder| remainder != 0) {
        refuse!("`x` has size {extent} along axis {axis}; expected a multiple of {divisor}");
    }
    Ok(())
}

pub(super) fn space_to_batch(site: &InferContext) -> Rule {
    let x = image(site)?;
    let block = block_shape(site)?;
    let paddings = margins(site, "paddings")?;
    let mut shape = x.shape.clone();
    let area = area_of(&block)?;
    shape[0] = site.dim(x.shape[0].expr().and_then(|batch| batch.mul(&Expr::from(area))));
    for axis in [2, 3] {
        let at = axis - 2;
        let padding = paddings[2 * at].checked_add(paddings[2 * at + 1]);
        let padded = x.shape[axis].expr().zip(padding);
        let padded = padded.and_then(|(extent, padding)| extent.add(&Expr::from(padding)));
        let padded = site.dim(padded);
        check_multiple(&padded, axis, block[at])
            .map_err(|refusal| refusal.hint("this size includes `paddings`"))?;
        shape[axis] = site.dim(padded.expr().and_then(|e| e.floor_div(&Expr::from(block[at]))));
    }
    Ok(vec![InferredValue::tensor(x.dtype, shape)])
}

pub(super) fn batch_to_space(site: &InferContext) -> Rule {
    let x = image(site)?;
    let block = block_shape(site)?;
    let crops = margins(site, "crops")?;
    let mut shape = x.shape.clone();
    shape[0] = divided(site, x, 0, area_of(&block)?)?;
    for axis in [2, 3] {
        let at = axis - 2;
        let cropped = || {
            let extent = x.shape[axis].expr()?.mul(&Expr::from(block[at]))?;
            let crop = crops[2 * at].checked_add(crops[2 * at + 1])?;
            extent.sub(&Expr::from(crop))
        };
        let cropped = cropped();
        if cropped.as_ref().and_then(Expr::constant).is_some_and(|extent| extent < 0) {
            let message = format!(
                "remove more elements than axis {axis} of `x` has: {} blocks of {}",
                x.shape[axis], block[at]
            );
            return Err(InferError::new(message).of("crops"));
        }
        shape[axis] = site.dim(cropped.and_then(not_negative));
    }
    Ok(vec![InferredValue::tensor(x.dtype, shape)])
}

fn block_shape(site: &InferContext) -> Result<Vec<i64>, InferError> {
    let block = site.ints("block_shape", 0)?;
    if site.tensor("block_shape")?.rank() == 1 && block.len() == 2 && block.iter().all(|&b| b > 0) {
        return Ok(block);
    }
    let message = format!("must be two sizes of at least 1, height and width, got {block:?}");
    Err(InferError::new(message).of("block_shape"))
}

fn area_of(block: &[i64]) -> Result<i64, InferError> {
    let area = block.iter().try_fold(1i64, |area, &extent| area.checked_mul(extent));
    area.ok_or_else(|| InferError::new(format!("is too large: {block:?}")).of("block_shape"))
}

/// The padding or cropping of each side of both spatial axes.
fn margins(site: &InferContext, name: &str) -> Result<Vec<i64>, InferError> {
    let margins = site.ints(name, 0)?;
    let ty = site.tensor(name)?;
    if ty.shape == [Dim::Known(2), Dim::Known(2)] && margins.iter().all(|&margin| margin >= 0) {
        return Ok(margins);
    }
    let message = format!(
        "must have shape [2, 2], before and after each spatial axis, and no negative values, got \
         {margins:?} as `{ty}`"
    );
    Err(InferError::new(message).of(name))
}

pub(super) fn sliding_windows(site: &InferContext) -> Rule {
    let x = site.tensor("x")?;
    let axis = site.axis("axis", x.rank())?;
    let (size, stride) = (factor(site, "size")?, factor(site, "stride")?);
    let extent = &x.shape[axis];
    if extent.known().is_some_and(|extent| size.unsigned_abs() > extent) {
        let message = format!("is {size}, but `x` has only {extent} elements along axis {axis}");
        return Err(InferError::new(message).of("size"));
    }
    let windows = || {
        let last = extent.expr()?.sub(&Expr::from(size))?;
        not_negative(last.floor_div(&Expr::from(stride))?.add(&Expr::from(1))?)
    };
    let mut shape = x.shape.clone();
    shape[axis] = site.dim(windows());
    shape.insert(axis + 1, Dim::Known(size.unsigned_abs()));
    Ok(vec![InferredValue::tensor(x.dtype, shape)])
}
