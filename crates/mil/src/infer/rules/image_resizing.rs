//! Resizing, cropping and resampling of the last two dimensions, height and width.

use super::expect;
use crate::infer::{InferContext, InferError, InferredValue, Rule, Scalar, refuse};
use crate::ir::{Dim, Expr, Opset};

const SAMPLING_MODES: [&str; 5] =
    ["STRICT_ALIGN_CORNERS", "ALIGN_CORNERS", "UNALIGN_CORNERS", "DEFAULT", "OFFSET_CORNERS"];

const BOX_COORDINATE_MODES: [&str; 4] = [
    "CORNERS_HEIGHT_FIRST",
    "CORNERS_WIDTH_FIRST",
    "CENTER_SIZE_HEIGHT_FIRST",
    "CENTER_SIZE_WIDTH_FIRST",
];

pub(super) fn affine(site: &InferContext) -> Rule {
    let x = expect::ranked(site, "x", 4, 4)?;
    let matrix = expect::ranked(site, "transform_matrix", 2, 2)?;
    expect::choice_in_any_case(site, "sampling_mode", &["bilinear"])?;
    expect::choice_in_any_case(site, "coordinates_mode", &["normalized_minus_one_to_one"])?;
    expect::choice_in_any_case(site, "padding_mode", &["constant"])?;
    let padding = site.float("padding_value")?;
    if padding != 0.0 {
        return Err(InferError::new(format!("must be 0, got {padding}")).of("padding_value"));
    }
    expect::dimension(
        site,
        "transform_matrix",
        1,
        &Dim::Known(6),
        "the number of elements of a matrix",
    )?;
    if matrix.shape[0] != Dim::Known(1) {
        let why = "one matrix for each image of `x`, or one for all";
        expect::dimension(site, "transform_matrix", 0, &x.shape[0], why)?;
    }
    let mut shape = x.shape[..2].to_vec();
    shape.extend([expect::extent(site, "output_height")?, expect::extent(site, "output_width")?]);
    Ok(vec![InferredValue::tensor(x.dtype, shape)])
}

pub(super) fn crop(site: &InferContext) -> Rule {
    let x = expect::ranked(site, "x", 3, usize::MAX)?;
    let mut shape = x.shape.clone();
    for (name, from_end) in [("crop_height", 2), ("crop_width", 1)] {
        expect::ranked(site, name, 1, 1)?;
        let amounts = site.ints(name, 0)?;
        let [before, after] = amounts[..] else {
            let message = format!("must have two elements, got {}", amounts.len());
            return Err(InferError::new(message).of(name));
        };
        let dim = &mut shape[x.rank() - from_end];
        let left = before.checked_add(after).and_then(|both| dim.expr()?.sub(&Expr::from(both)));
        if let Some(found) = left.as_ref().and_then(Expr::constant)
            && found < 1
        {
            let message = format!(
                "crops {before} and {after} elements from {dim}, which leaves {found}; expected at least 1"
            );
            return Err(InferError::new(message).of(name));
        }
        *dim = site.dim(left);
    }
    Ok(vec![InferredValue::tensor(x.dtype, shape)])
}

pub(super) fn crop_resize(site: &InferContext) -> Rule {
    let x = expect::ranked(site, "x", 4, 4)?;
    site.choice("box_coordinate_mode", &BOX_COORDINATE_MODES)?;
    site.choice("sampling_mode", &SAMPLING_MODES)?;
    let target = [expect::extent(site, "target_height")?, expect::extent(site, "target_width")?];
    let mut shape = if site.since() < Opset::Ios17 {
        let regions = expect::ranked(site, "roi", 5, 5)?;
        let (one, coordinates) = (Dim::Known(1), &regions.shape[2]);
        let why = "since regions have shape [N, 1, 4 or 5, 1, 1]";
        for axis in [1, 3, 4] {
            expect::dimension(site, "roi", axis, &one, why)?;
        }
        if coordinates.known().is_some_and(|count| count != 4 && count != 5) {
            let message = format!("has size {coordinates} along axis 2; expected 4 or 5, {why}");
            return Err(InferError::new(message).of("roi"));
        }
        vec![regions.shape[0].clone(), x.shape[0].clone(), x.shape[1].clone()]
    } else {
        check_boxes(site, &x.shape[0])?;
        vec![site.tensor("boxes")?.shape[0].clone(), x.shape[1].clone()]
    };
    shape.extend(target);
    Ok(vec![InferredValue::tensor(x.dtype, shape)])
}

/// Checks the boxes of `crop_resize` and the indices of their images in the batch.
fn check_boxes(site: &InferContext, batch: &Dim) -> Result<(), InferError> {
    let boxes = expect::ranked(site, "boxes", 2, 2)?;
    expect::dimension(site, "boxes", 1, &Dim::Known(4), "the number of coordinates of a box")?;
    if site.bool("normalized_coordinates")? && !boxes.dtype.is_float() {
        let message = format!(
            "has element type `{}`, but `normalized_coordinates` is true; expected `fp16` or `fp32`",
            boxes.dtype
        );
        return Err(InferError::new(message).of("boxes"));
    }
    if !site.has("box_indices") {
        // Without indices, box `i` is cut from image `i`.
        return match (boxes.shape[0].known(), batch.known()) {
            (Some(boxes), Some(images)) if boxes <= images => Ok(()),
            _ => {
                let message = format!(
                    "is required, since it is not certain that the {} boxes are no more than the \
                     {batch} images of `x`",
                    boxes.shape[0]
                );
                Err(InferError::new(message).of("box_indices"))
            }
        };
    }
    expect::shape(site, "box_indices", &boxes.shape[..1], "one image for each box")?;
    let (Some(images), Some(indices)) = (batch.known(), site.value("box_indices")) else {
        return Ok(());
    };
    let outside = |index: &i64| u64::try_from(*index).map_or(true, |index| index >= images);
    match indices.elements.iter().filter_map(Scalar::int).find(outside) {
        Some(index) => {
            let message = format!("has image index {index}, but `x` has {images} images");
            Err(InferError::new(message).of("box_indices"))
        }
        None => Ok(()),
    }
}

pub(super) fn resample(site: &InferContext) -> Rule {
    let x = expect::ranked(site, "x", 4, 4)?;
    let coordinates = expect::ranked(site, "coordinates", 4, 4)?;
    expect::dimension(site, "coordinates", 0, &x.shape[0], "the batch size of `x`")?;
    expect::dimension(
        site,
        "coordinates",
        3,
        &Dim::Known(2),
        "the number of coordinates of a pixel",
    )?;
    expect::choice_in_any_case(site, "sampling_mode", &["bilinear", "nearest"])?;
    let paddings = ["constant", "border", "reflection", "symmetric"];
    expect::choice_in_any_case(site, "padding_mode", &paddings)?;
    let modes = ["unnormalized", "normalized_minus_one_to_one", "normalized_zero_to_one"];
    expect::choice_in_any_case(site, "coordinates_mode", &modes)?;
    let mut shape = x.shape[..2].to_vec();
    shape.extend_from_slice(&coordinates.shape[1..3]);
    Ok(vec![InferredValue::tensor(x.dtype, shape)])
}

pub(super) fn resize(site: &InferContext) -> Rule {
    let x = site.tensor("x")?;
    let stated = expect::ranked(site, "shape", 1, 1)?;
    site.choice("interpolation_mode", &["LINEAR", "NEAREST_NEIGHBOR"])?;
    site.choice("sampling_mode", &SAMPLING_MODES)?;
    let size = stated.shape[0].known();
    if let Some(size) = size.filter(|&size| size > x.rank() as u64) {
        let message = format!("has {size} elements, but `x` has only rank {}", x.rank());
        return Err(InferError::new(message).of("shape"));
    }
    let most = size.map_or(x.rank(), |size| x.rank().min(size as usize));
    let resized = match usize::try_from(site.int("resized_dims")?) {
        Ok(resized) if resized <= most => resized,
        _ => {
            let message = format!(
                "must be from 0 to {most}, limited by the length of `shape` and the rank of `x`, got {}",
                site.int("resized_dims")?
            );
            return Err(InferError::new(message).of("resized_dims"));
        }
    };
    let mut shape = x.shape.clone();
    let targets = site.value("shape").map(|value| value.exprs());
    for from_end in 1..=resized {
        let at = x.rank() - from_end;
        let target = targets.as_ref().and_then(|targets| {
            let index = targets.len().checked_sub(from_end)?;
            targets.get(index)?.clone()
        });
        match target.as_ref().and_then(Expr::constant) {
            // The dimension is unchanged.
            Some(0) => {}
            Some(negative) if negative < 0 => {
                let message = format!(
                    "must hold 0, which keeps a dimension, or positive sizes, got {negative}"
                );
                return Err(InferError::new(message).of("shape"));
            }
            _ => shape[at] = site.dim(target),
        }
    }
    Ok(vec![InferredValue::tensor(x.dtype, shape)])
}

pub(super) fn resize_bilinear(site: &InferContext) -> Rule {
    site.choice("sampling_mode", &SAMPLING_MODES)?;
    resize_to_target(site)
}

pub(super) fn resize_nearest_neighbor(site: &InferContext) -> Rule {
    resize_to_target(site)
}

fn resize_to_target(site: &InferContext) -> Rule {
    let x = expect::ranked(site, "x", 3, usize::MAX)?;
    let mut shape = x.shape[..x.rank() - 2].to_vec();
    for name in ["target_size_height", "target_size_width"] {
        shape.push(expect::extent(site, name)?);
    }
    Ok(vec![InferredValue::tensor(x.dtype, shape)])
}

pub(super) fn upsample_bilinear(site: &InferContext) -> Rule {
    upsample(site)
}

pub(super) fn upsample_nearest_neighbor(site: &InferContext) -> Rule {
    upsample(site)
}

fn upsample(site: &InferContext) -> Rule {
    let x = expect::ranked(site, "x", 3, usize::MAX)?;
    let mut shape = x.shape.clone();
    for (name, from_end) in [("scale_factor_height", 2), ("scale_factor_width", 1)] {
        let factor = site.float(name)?;
        if !(factor.is_finite() && factor > 0.0) {
            let message = format!("must be positive, got {factor}");
            return Err(InferError::new(message).of(name));
        }
        let dim = &mut shape[x.rank() - from_end];
        *dim = scaled(site, dim, factor)?;
    }
    Ok(vec![InferredValue::tensor(x.dtype, shape)])
}

/// `floor(dim · factor)`, computed in fp32 as in Core ML.
fn scaled(site: &InferContext, dim: &Dim, factor: f64) -> Result<Dim, InferError> {
    // f64 represents every integral fp32 number exactly, so this conversion is exact.
    let whole = (factor.fract() == 0.0 && factor < f64::from(i32::MAX)).then_some(factor as i64);
    match (dim.known(), whole) {
        (_, Some(whole)) => {
            Ok(site.dim(dim.expr().and_then(|extent| extent.mul(&Expr::from(whole)))))
        }
        (None, None) => Ok(site.fresh()),
        (Some(extent), None) => {
            let product = (extent as f32 * factor as f32).floor();
            if !(1.0..=i32::MAX as f32).contains(&product) {
                let factor = factor as f32;
                refuse!(
                    "scaling {extent} by {factor} results in {product} elements; expected 1 to {}",
                    i32::MAX
                );
            }
            Ok(Dim::Known(product as u64))
        }
    }
}
