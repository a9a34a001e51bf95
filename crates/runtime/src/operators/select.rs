//! Selection and clamping of elements.

use coremill_pte::program::ScalarType;

use super::arguments::same_type;
use super::map::{copy, map, resize_to_broadcast};
use super::unary::fits;
use super::{Arguments, Kernel, kernel};
use crate::error::{Result, ensure, fail};
use crate::number::{Compute, Number, can_cast, compute, promote, promote_scalar};
use crate::view::{OutTensor, View, broadcast, broadcast_strides, walk_all};

pub(super) const TABLE: &[Kernel] = &[
    kernel("aten::clamp.Tensor_out", "Ttt>T", clamp_tensors),
    kernel("aten::clamp.out", "Tss>T", clamp),
    kernel("aten::masked_fill.Scalar_out", "TTS>T", masked_fill),
    kernel("aten::masked_scatter.out", "TTT>T", masked_scatter),
    kernel("aten::masked_select.out", "TT>T", masked_select),
    kernel("aten::nonzero.out", "T>T", nonzero),
    kernel("aten::where.self_out", "TTT>T", choose),
];

fn clamp(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let view = x.tensor(0)?;
    let bounds = [x.optional_scalar(1)?, x.optional_scalar(2)?];
    ensure!(bounds.iter().any(Option::is_some), "at least one of `min` and `max` is required");
    let common =
        bounds.iter().flatten().fold(view.dtype, |dtype, &bound| promote_scalar(dtype, bound));
    let dtype = out[0].dtype;
    ensure!(common == dtype, "the result has type `{common:?}`, but the output has `{dtype:?}`");
    for bound in bounds.into_iter().flatten() {
        ensure!(fits(bound, dtype), "the bound {} does not fit `{dtype:?}`", bound.as_f64());
    }
    resize_to_broadcast(&[view], &mut out[0])?;
    compute!(Compute::of(common)?, N => {
        let [low, high] = bounds.map(|bound| bound.map(N::of));
        map([view], &mut out[0], |[x]: [N; 1]| {
            let x = low.map_or(x, |low| x.greatest(low));
            high.map_or(x, |high| x.least(high))
        })
    })
}

fn clamp_tensors(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let view = x.tensor(0)?;
    let (low, high) = (x.optional_tensor(1)?, x.optional_tensor(2)?);
    ensure!(low.is_some() || high.is_some(), "at least one of `min` and `max` is required");
    let mut common = view.dtype;
    for bound in [low, high].into_iter().flatten() {
        common = promote(common, bound.dtype)?;
    }
    let dtype = out[0].dtype;
    ensure!(can_cast(common, dtype), "a result of `{common:?}` cannot be written as `{dtype:?}`");
    let (has_low, has_high) = (low.is_some(), high.is_some());
    let views = [view, low.unwrap_or(view), high.unwrap_or(view)];
    resize_to_broadcast(&views, &mut out[0])?;
    compute!(Compute::of(common)?, N => map(views, &mut out[0], |[x, low, high]: [N; 3]| {
        let x = if has_low { x.greatest(low) } else { x };
        if has_high { x.least(high) } else { x }
    }))
}

fn choose(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let views = [x.tensor(0)?, x.tensor(1)?, x.tensor(2)?];
    let condition = views[0].dtype;
    ensure!(
        matches!(condition, ScalarType::Bool | ScalarType::Byte),
        "the condition must be `Bool` or `Byte`, got `{condition:?}`"
    );
    let common = promote(views[1].dtype, views[2].dtype)?;
    let dtype = out[0].dtype;
    ensure!(common == dtype, "the result has type `{common:?}`, but the output has `{dtype:?}`");
    resize_to_broadcast(&views, &mut out[0])?;
    compute!(Compute::of(common)?, N => map(views, &mut out[0], |[condition, a, b]: [N; 3]| {
        if condition.is_true() { a } else { b }
    }))
}

fn mask(view: View) -> Result<View> {
    let dtype = view.dtype;
    ensure!(dtype == ScalarType::Bool, "the mask must be `Bool`, got `{dtype:?}`");
    Ok(view)
}

fn masked_fill(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let views = [x.tensor(0)?, mask(x.tensor(1)?)?];
    same_type(&views[0], &out[0])?;
    let value = x.scalar(2)?;
    resize_to_broadcast(&views, &mut out[0])?;
    compute!(Compute::of(views[0].dtype)?, N => {
        let value = N::of(value);
        map(views, &mut out[0], |[x, mask]: [N; 2]| if mask.is_true() { value } else { x })
    })
}

fn masked_scatter(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let (view, mask, source) = (x.tensor(0)?, mask(x.tensor(1)?)?, x.tensor(2)?);
    same_type(&view, &out[0])?;
    same_type(&source, &out[0])?;
    resize_to_broadcast(&[view, mask], &mut out[0])?;
    copy(view, &mut out[0])?;
    let sizes = out[0].sizes.clone();
    let (masks, own) = (broadcast_strides(&mask, &sizes)?, out[0].strides());
    let source = source.contiguous_bytes();
    let width = out[0].width();
    let mut elements = source.chunks_exact(width);
    let bytes = out[0].bytes();
    let mut missing = false;
    walk_all(&sizes, [&masks, &own], |[mask_place, place]| {
        if mask.bytes[mask_place] != 0 {
            match elements.next() {
                Some(element) => bytes[place * width..][..width].copy_from_slice(element),
                None => missing = true,
            }
        }
    });
    ensure!(!missing, "the mask selects more elements than the source has");
    Ok(())
}

fn masked_select(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let (view, mask) = (x.tensor(0)?, mask(x.tensor(1)?)?);
    same_type(&view, &out[0])?;
    let sizes = broadcast(view.sizes, mask.sizes)?;
    let (from, masks) = (broadcast_strides(&view, &sizes)?, broadcast_strides(&mask, &sizes)?);
    let width = view.width();
    let mut selected = Vec::new();
    walk_all(&sizes, [&from, &masks], |[place, mask_place]| {
        if mask.bytes[mask_place] != 0 {
            selected.extend_from_slice(&view.bytes[place * width..][..width]);
        }
    });
    out[0].resize(&[selected.len() / width])?;
    out[0].bytes().copy_from_slice(&selected);
    Ok(())
}

fn nonzero(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let view = x.tensor(0)?;
    let dtype = out[0].dtype;
    ensure!(dtype == ScalarType::Long, "the output must be `Long`, got `{dtype:?}`");
    let found: Vec<usize> = compute!(Compute::of(view.dtype)?, N => {
        let numbers = view.contiguous::<N>();
        numbers.iter().enumerate().filter(|(_, x)| x.is_true()).map(|(place, _)| place).collect()
    });
    if out[0].sizes.len() != 2 {
        fail!("the output must have rank 2, got {}", out[0].sizes.len());
    }
    out[0].resize(&[found.len(), view.rank()])?;
    let steps = crate::view::dense(view.sizes);
    let mut indices = Vec::with_capacity(out[0].count());
    for place in found {
        for (step, size) in steps.iter().zip(view.sizes) {
            indices.push((place / step % size) as i64);
        }
    }
    out[0].put_contiguous(&indices);
    Ok(())
}
