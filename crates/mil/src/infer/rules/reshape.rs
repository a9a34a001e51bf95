//! Operations that change only the shape.

use crate::infer::rules::elements::{reshaped, tensor};
use crate::infer::{InferContext, InferError, KnownElements, Rule, Scalar, normalize_axis, refuse};
use crate::ir::{Dim, Expr, Opset, TensorType, Type};

/// In `shape`, 0 copies a dimension and other non-negative elements are sizes. An element that is -1 or
/// unknown is computed from the number of elements if the other sizes are known.
pub(super) fn reshape(site: &InferContext) -> Rule {
    let x = site.tensor("x")?;
    let shape = match target(site, "shape")? {
        Target::Elements(elements) => resolve(site, x, elements)?,
        Target::Length(length) => (0..length).map(|_| site.fresh()).collect(),
    };
    let value = site.value("x").and_then(|value| reshaped(value, &shape));
    Ok(vec![tensor(x.dtype, shape, value)])
}

/// A vector of sizes, at least partly known.
pub(super) enum Target {
    /// The elements; some may be unknown.
    Elements(Vec<Scalar>),
    /// Only the number of elements.
    Length(usize),
}

/// The sizes that a parameter lists. It must be a vector of known length, because the rank of a tensor must
/// be known.
pub(super) fn target(site: &InferContext, name: &str) -> Result<Target, InferError> {
    let ty = site.tensor(name)?;
    let [length] = ty.shape.as_slice() else {
        let message = format!("expects a vector of sizes, found `{ty}`");
        return Err(InferError::new(message).of(name));
    };
    if let Some(value) = site.value(name) {
        return Ok(Target::Elements(value.elements.clone()));
    }
    match length.known() {
        Some(length) if length <= MAX_RANK => Ok(Target::Length(length as usize)),
        Some(length) => {
            let message = format!("has {length} sizes; the maximum rank of a tensor is {MAX_RANK}");
            Err(InferError::new(message).of(name))
        }
        None => {
            let message = format!("is `{ty}`, so the rank of the result is unknown");
            let hint = "compute it with a number of elements that does not depend on the input";
            Err(InferError::new(message).of(name).hint(hint))
        }
    }
}

/// Maximum rank of a target shape, far above real ranks. A file could contain any rank.
const MAX_RANK: u64 = 4096;

fn resolve(
    site: &InferContext,
    x: &TensorType,
    mut target: Vec<Scalar>,
) -> Result<Vec<Dim>, InferError> {
    let refusal = |message: String| InferError::new(message).of("shape");
    inherit(site, x, &mut target)?;
    let inferred = target.iter().filter(|element| element.int() == Some(-1)).count();
    if inferred > 1 {
        return Err(refusal(format!(
            "has {inferred} elements that are -1; only one can be inferred from the others"
        )));
    }
    if let Some(negative) = target.iter().filter_map(Scalar::int).find(|&extent| extent < -1) {
        return Err(refusal(format!("must contain sizes of at least -1, got {negative}")));
    }

    let total = product(x.shape.iter().map(Dim::expr));
    let others = |at: usize| {
        let rest = target.iter().enumerate().filter(|(other, _)| *other != at);
        product(
            rest.map(|(_, element)| if element.int() == Some(-1) { None } else { element.expr() }),
        )
    };
    let wrong_count = |count: &Expr, found: &Expr| {
        let shape = target.iter().map(|element| match element {
            Scalar::Symbolic(expr) => expr.to_string(),
            _ => element.int().map_or_else(|| "?".to_owned(), |extent| extent.to_string()),
        });
        refusal(format!(
            "[{}] cannot hold the {count} elements of `{x}`: it requires {found}, or a multiple",
            shape.collect::<Vec<_>>().join(", ")
        ))
    };

    // If one product divides the other with a constant quotient, they are equal, or the tensor is empty.
    let whole =
        product(target.iter().map(|element| element.expr().filter(|_| element.int() != Some(-1))));
    let mut settled = false;
    if let (Some(total), Some(whole)) = (&total, &whole)
        && total.constant().is_none()
    {
        let multiple = total.exact_div(whole).or_else(|| whole.exact_div(total));
        match multiple.and_then(|multiple| multiple.constant()) {
            Some(1) => settled = true,
            Some(_) => return Err(wrong_count(total, whole)),
            None => {}
        }
    }

    let mut shape = Vec::with_capacity(target.len());
    for (at, element) in target.iter().enumerate() {
        if settled {
            shape.push(site.dim(element.expr()));
            continue;
        }
        let open = match element {
            Scalar::Unknown => true,
            Scalar::Symbolic(_) => false,
            _ if element.int() == Some(-1) => true,
            _ => {
                let extent = element.int().and_then(|extent| u64::try_from(extent).ok());
                shape.push(extent.map_or_else(|| site.fresh(), Dim::Known));
                continue;
            }
        };
        let (Some(total), Some(others)) = (&total, others(at)) else {
            shape.push(site.dim(element.expr().filter(|_| !open)));
            continue;
        };
        let left = match (total.constant(), others.constant()) {
            (Some(0), Some(0)) | (None, Some(0)) => None,
            (Some(count), Some(part)) if part == 0 || count % part != 0 => {
                return Err(wrong_count(total, &others));
            }
            _ => total.exact_div(&others),
        };
        let unproven = || if open { total.floor_div(&others) } else { element.expr() };
        shape.push(site.dim(left.or_else(unproven)));
    }

    let found = product(shape.iter().map(Dim::expr));
    if let (Some(total), Some(found)) = (total, found)
        && let (Some(count), Some(elements)) = (total.constant(), found.constant())
        && count != elements
    {
        return Err(refusal(format!(
            "results in `{}` with {elements} elements, but `x` is `{x}`, which has {count}",
            Type::Tensor(TensorType { dtype: x.dtype, shape })
        ))
        .hint("set one element to -1 to infer it"));
    }
    Ok(shape)
}

/// Replaces zeros in the target shape by dimensions of `x`. Up to iOS16 the dimension at the same index is
/// used, so the ranks must be equal. Since iOS17 the dimension at the same distance from the end is used, or
/// 1 if there is none.
fn inherit(site: &InferContext, x: &TensorType, target: &mut [Scalar]) -> Result<(), InferError> {
    if !target.iter().any(|element| element.int() == Some(0)) {
        return Ok(());
    }
    let length = target.len();
    if site.since() < Opset::Ios17 && length != x.rank() {
        let message = format!(
            "contains 0, which copies the size of the same axis of `x`, but has {length} elements while \
             `x` has rank {}",
            x.rank()
        );
        return Err(InferError::new(message)
            .of("shape")
            .hint("use explicit sizes, or declare the function with opset `CoreML7` or later"));
    }
    for (at, element) in target.iter_mut().enumerate() {
        if element.int() == Some(0) {
            let inherited = (at + x.rank()).checked_sub(length).and_then(|at| x.shape.get(at));
            *element = inherited.map_or(Scalar::Int(1), Scalar::from_dim);
        }
    }
    Ok(())
}

fn product(mut factors: impl Iterator<Item = Option<Expr>>) -> Option<Expr> {
    factors.try_fold(Expr::from(1), |product, factor| product.mul(&factor?))
}

pub(super) fn reshape_like(site: &InferContext) -> Rule {
    let x = site.tensor("x")?;
    let references = site.all("ref_tensors");
    for name in ["begins", "ends", "end_masks"] {
        let count = site.all(name).len();
        if count != references.len() {
            let message = format!("has {count} values, but `ref_tensors` has {}", references.len());
            return Err(InferError::new(message).of(name));
        }
    }
    let mut shape = Vec::new();
    for (at, reference) in references.iter().enumerate() {
        let Some(tensor) = reference.ty.as_tensor() else {
            let message = format!("expects tensors, found `{}`", reference.ty);
            return Err(InferError::new(message).of("ref_tensors"));
        };
        let begin = bound(site, "begins", at)?;
        let masked = part(site, "end_masks", at, "bool", Scalar::bool)?;
        let end = bound(site, "ends", at)?;
        let begin = clamped(begin, tensor.rank());
        let end = if masked { tensor.rank() } else { clamped(end, tensor.rank()) };
        shape.extend(tensor.shape.get(begin..end).unwrap_or_default().iter().cloned());
    }
    if let Some(open) = shape.iter().find(|dim| dim.known().is_none()) {
        let message = format!(
            "have dimension {open}, which depends on the input; copied sizes must be fixed"
        );
        return Err(InferError::new(message)
            .of("ref_tensors")
            .hint("use `reshape` with a computed shape"));
    }
    let count = product(shape.iter().map(Dim::expr));
    let total = product(x.shape.iter().map(Dim::expr)).and_then(|total| total.constant());
    let count = count.and_then(|count| count.constant());
    if total.is_some() && total != count {
        refuse!(
            "`x` is `{x}`, but `{}` has a different number of elements",
            Type::Tensor(TensorType { dtype: x.dtype, shape })
        );
    }
    let value = site.value("x").and_then(|value| reshaped(value, &shape));
    Ok(vec![tensor(x.dtype, shape, value)])
}

fn bound(site: &InferContext, name: &str, at: usize) -> Result<i64, InferError> {
    part(site, name, at, "int32", |element| match element {
        Scalar::Int(value) => Some(*value),
        _ => None,
    })
}

/// An element of a list of values, which must be a constant scalar.
fn part<T>(
    site: &InferContext,
    name: &str,
    at: usize,
    dtype: &str,
    read: impl Fn(&Scalar) -> Option<T>,
) -> Result<T, InferError> {
    let operand = &site.all(name)[at];
    let scalar = |folded: &KnownElements| {
        let fits = folded.shape.is_empty() && folded.dtype.to_string() == dtype;
        fits.then(|| folded.only().and_then(&read)).flatten()
    };
    operand.value.as_deref().and_then(scalar).ok_or_else(|| {
        let message =
            format!("expects constant `{dtype}` scalars, found `{}` at index {at}", operand.ty);
        InferError::new(message).of(name).hint("bind it to a `const`")
    })
}

/// Clamps a bound of a slice of axes to `0..=rank`. Negative bounds count from the end.
fn clamped(bound: i64, rank: usize) -> usize {
    let from_start = if bound < 0 { bound.saturating_add(rank as i64) } else { bound };
    usize::try_from(from_start).unwrap_or(0).min(rank)
}

pub(super) fn expand_dims(site: &InferContext) -> Rule {
    let x = site.tensor("x")?;
    let axes = axis_list(site, "axes")?;
    let rank = x.rank() + axes.len();
    let mut axes: Vec<usize> = axes
        .into_iter()
        .map(|axis| normalize_axis(axis, rank))
        .collect::<Result<_, _>>()
        .map_err(|refusal| refusal.of("axes").hint("axes refer to the expanded tensor"))?;
    axes.sort_unstable();
    no_axis_twice(&axes, "axes")?;
    let mut old = x.shape.iter().cloned();
    let shape: Vec<Dim> = (0..rank)
        .map(|at| match axes.binary_search(&at) {
            Ok(_) => Dim::Known(1),
            Err(_) => old.next().unwrap_or(Dim::Known(1)),
        })
        .collect();
    let value = site.value("x").and_then(|value| reshaped(value, &shape));
    Ok(vec![tensor(x.dtype, shape, value)])
}

/// Removes axes of size 1. As in PyTorch, listed axes of another size are kept. Unknown sizes are assumed not
/// to be 1, because the rank must be known.
pub(super) fn squeeze(site: &InferContext) -> Rule {
    let x = site.tensor("x")?;
    let listed = match site.has("axes") {
        false => None,
        true => {
            let axes = axis_list(site, "axes")?.into_iter();
            let axes: Result<Vec<_>, _> = axes.map(|axis| normalize_axis(axis, x.rank())).collect();
            let mut axes = axes.map_err(|refusal| refusal.of("axes"))?;
            axes.sort_unstable();
            no_axis_twice(&axes, "axes")?;
            Some(axes)
        }
    };
    let goes = |at: usize| listed.as_ref().is_none_or(|axes| axes.binary_search(&at).is_ok());
    let kept = x.shape.iter().enumerate();
    let kept = kept.filter(|(at, dim)| **dim != Dim::Known(1) || !goes(*at));
    let shape: Vec<Dim> = kept.map(|(_, dim)| dim.clone()).collect();
    let value = site.value("x").and_then(|value| reshaped(value, &shape));
    Ok(vec![tensor(x.dtype, shape, value)])
}

/// The integers of a parameter that must be a vector.
pub(super) fn axis_list(site: &InferContext, name: &str) -> Result<Vec<i64>, InferError> {
    if site.tensor(name)?.rank() != 1 {
        return Err(site.expected(name, "a vector of axes"));
    }
    site.ints(name, 0)
}

/// Checks that sorted axes are distinct.
pub(super) fn no_axis_twice(sorted: &[usize], name: &str) -> Result<(), InferError> {
    match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        None => Ok(()),
        Some(pair) => Err(InferError::new(format!("names axis {} twice", pair[0])).of(name)),
    }
}

pub(super) fn flatten2d(site: &InferContext) -> Rule {
    let x = site.tensor("x")?;
    let rank = x.rank();
    let axis = site.int("axis")?;
    let boundary = if axis == rank as i64 {
        rank
    } else {
        normalize_axis(axis, rank).map_err(|refusal| refusal.of("axis"))?
    };
    let extent = |dims: &[Dim]| site.dim(product(dims.iter().map(Dim::expr)));
    let shape = vec![extent(&x.shape[..boundary]), extent(&x.shape[boundary..])];
    let value = site.value("x").and_then(|value| reshaped(value, &shape));
    Ok(vec![tensor(x.dtype, shape, value)])
}
