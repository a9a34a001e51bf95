//! Reductions along axes. Programs use them to multiply and add dimensions, so sums, products, minima and
//! maxima support symbolic elements.

use coremill_tensor::DType;

use super::expect;
use crate::infer::fold::{as_expr, expression, float, integer, truncated};
use crate::infer::folded::{KnownElements, Scalar};
use crate::infer::shape::{fixed, marked_axes, reduced};
use crate::infer::site::InferredValue;
use crate::infer::{InferContext, MAX_FOLDED_ELEMENTS, Rule};
use crate::ir::Expr;

pub(super) fn reduce_argmax(site: &InferContext) -> Rule {
    position(site, |best, candidate| candidate > best)
}

pub(super) fn reduce_argmin(site: &InferContext) -> Rule {
    position(site, |best, candidate| candidate < best)
}

pub(super) fn reduce_l1_norm(site: &InferContext) -> Rule {
    of_numbers(site, |values| values.iter().map(|value| value.abs()).sum())
}

pub(super) fn reduce_l2_norm(site: &InferContext) -> Rule {
    of_numbers(site, |values| values.iter().map(|value| value * value).sum::<f64>().sqrt())
}

pub(super) fn reduce_log_sum(site: &InferContext) -> Rule {
    of_numbers(site, |values| values.iter().sum::<f64>().ln())
}

pub(super) fn reduce_log_sum_exp(site: &InferContext) -> Rule {
    of_numbers(site, |values| {
        let largest = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        values.iter().map(|value| (value - largest).exp()).sum::<f64>().ln() + largest
    })
}

pub(super) fn reduce_max(site: &InferContext) -> Rule {
    one_by_one(
        site,
        None,
        |x, y| {
            if x.is_nan() {
                x
            } else if y > x || y.is_nan() {
                y
            } else {
                x
            }
        },
        Expr::larger,
    )
}

pub(super) fn reduce_mean(site: &InferContext) -> Rule {
    of_numbers(site, |values| values.iter().sum::<f64>() / values.len() as f64)
}

pub(super) fn reduce_min(site: &InferContext) -> Rule {
    one_by_one(
        site,
        None,
        |x, y| {
            if x.is_nan() {
                x
            } else if y < x || y.is_nan() {
                y
            } else {
                x
            }
        },
        Expr::smaller,
    )
}

pub(super) fn reduce_prod(site: &InferContext) -> Rule {
    one_by_one(site, Some(1), |x, y| x * y, Expr::mul)
}

pub(super) fn reduce_sum(site: &InferContext) -> Rule {
    one_by_one(site, Some(0), |x, y| x + y, Expr::add)
}

pub(super) fn reduce_sum_square(site: &InferContext) -> Rule {
    of_numbers(site, |values| values.iter().map(|value| value * value).sum())
}

/// A reduction that computes all known numbers at once. An integer tensor truncates a fraction.
fn of_numbers(site: &InferContext, f: impl Fn(&[f64]) -> f64) -> Rule {
    reduce(site, |dtype, elements| {
        let Some(values) =
            elements.iter().map(|element| element.float()).collect::<Option<Vec<_>>>()
        else {
            return Scalar::Unknown;
        };
        let value = f(&values);
        if dtype.is_float() { float(dtype, value) } else { truncated(dtype, value) }
    })
}

/// A reduction that combines one element after the other, starting with `neutral` if it is set. It supports
/// symbolic elements.
fn one_by_one(
    site: &InferContext,
    neutral: Option<i64>,
    of_floats: impl Fn(f64, f64) -> f64,
    of_exprs: impl Fn(&Expr, &Expr) -> Option<Expr>,
) -> Rule {
    reduce(site, |dtype, elements| {
        let begin = match (neutral, dtype.is_float()) {
            (None, _) => None,
            (Some(value), true) => Some(Scalar::Float(value as f64)),
            (Some(value), false) => Some(Scalar::Int(value)),
        };
        let step = |left: Scalar, right: &Scalar| match (&left, right) {
            (Scalar::Float(left), Scalar::Float(right)) => Scalar::Float(of_floats(*left, *right)),
            _ => {
                let both = as_expr(dtype, &left).zip(as_expr(dtype, right));
                expression(dtype, both.and_then(|(left, right)| of_exprs(&left, &right)))
            }
        };
        let mut elements = elements.iter().copied();
        let Some(first) = begin.or_else(|| elements.next().cloned()) else {
            return Scalar::Unknown;
        };
        match elements.fold(first, step) {
            Scalar::Float(value) => float(dtype, value),
            scalar => scalar,
        }
    })
}

fn reduce(site: &InferContext, f: impl Fn(DType, &[&Scalar]) -> Scalar) -> Rule {
    let x = site.tensor("x")?;
    let axes = marked_axes(site, "axes", x.rank())?;
    let shape = reduced(&x.shape, &axes, site.bool("keep_dims")?);
    let dtype = x.dtype;
    let value = || {
        let groups = groups(site.value("x")?, &axes)?;
        let elements = groups.iter().map(|group| f(dtype, group)).collect();
        KnownElements::new(dtype, fixed(&shape)?, elements)
    };
    let value = value();
    Ok(vec![InferredValue::tensor(dtype, shape).with(value)])
}

/// The index of the best element along one axis; the first one if several are equal.
fn position(site: &InferContext, better: impl Fn(f64, f64) -> bool) -> Rule {
    let x = site.tensor("x")?;
    expect::one_element(site, "axis")?;
    let axis = site.axis("axis", x.rank())?;
    let dtype = match site.parameter("output_dtype") {
        None => DType::Int32,
        Some(_) => match expect::choice_in_any_case(site, "output_dtype", &["int32", "uint16"])? {
            "uint16" => DType::UInt16,
            _ => DType::Int32,
        },
    };
    let mut axes = vec![false; x.rank()];
    axes[axis] = true;
    let shape = reduced(&x.shape, &axes, site.bool("keep_dims")?);
    let best = |group: &Vec<&Scalar>| {
        let values = group.iter().map(|element| element.float()).collect::<Option<Vec<_>>>();
        let Some(values) = values.filter(|values| !values.iter().any(|value| value.is_nan()))
        else {
            return Scalar::Unknown;
        };
        let best = (0..values.len()).reduce(|best, candidate| {
            if better(values[best], values[candidate]) { candidate } else { best }
        });
        integer(dtype, best.map(|best| best as i64))
    };
    let value = || {
        let groups = groups(site.value("x")?, &axes)?;
        KnownElements::new(dtype, fixed(&shape)?, groups.iter().map(best).collect())
    };
    let value = value();
    Ok(vec![InferredValue::tensor(dtype, shape).with(value)])
}

/// The elements of each reduced group, in row-major order of the results; `None` if there would be too many
/// results to fold.
fn groups<'f>(x: &'f KnownElements, marked: &[bool]) -> Option<Vec<Vec<&'f Scalar>>> {
    let axes: Vec<(u64, bool)> = x.shape.iter().copied().zip(marked.iter().copied()).collect();
    let kept = axes.iter().filter(|(_, reduced)| !reduced);
    let count = kept.map(|&(extent, _)| extent).try_fold(1u64, u64::checked_mul)?;
    if count > MAX_FOLDED_ELEMENTS {
        return None;
    }
    let mut groups = vec![Vec::new(); count as usize];
    for (index, element) in x.elements.iter().enumerate() {
        let (mut rest, mut group, mut stride) = (index as u64, 0, 1);
        for &(extent, reduced) in axes.iter().rev() {
            if !reduced {
                group += rest % extent * stride;
                stride *= extent;
            }
            rest /= extent;
        }
        groups[group as usize].push(element);
    }
    Some(groups)
}
