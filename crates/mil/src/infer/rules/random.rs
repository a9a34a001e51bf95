//! Random tensors, whose shapes are the elements of other tensors.

use coremill_tensor::DType;

use super::expect;
use crate::infer::{InferContext, InferError, InferredValue, MAX_RANK, Rule};
use crate::ir::Dim;

pub(super) fn random_bernoulli(site: &InferContext) -> Rule {
    let dtype = site.optional_tensor("prob").map_or(DType::Fp32, |prob| prob.dtype);
    Ok(vec![InferredValue::tensor(dtype, stated_shape(site)?)])
}

pub(super) fn random_categorical(site: &InferContext) -> Rule {
    let x = expect::ranked(site, "x", 1, usize::MAX)?;
    site.choice("mode", &["logits", "probs"])?;
    let mut shape = x.shape[..x.rank() - 1].to_vec();
    shape.push(expect::extent(site, "size")?);
    Ok(vec![InferredValue::tensor(x.dtype, shape)])
}

pub(super) fn random_normal(site: &InferContext) -> Rule {
    distribution(site, "mean", "stddev")
}

pub(super) fn random_uniform(site: &InferContext) -> Rule {
    distribution(site, "low", "high")
}

/// A distribution with two parameters, which are fp32 by default.
fn distribution(site: &InferContext, first: &str, second: &str) -> Rule {
    let dtype = |name| site.optional_tensor(name).map_or(DType::Fp32, |bound| bound.dtype);
    let (left, right) = (dtype(first), dtype(second));
    if left != right {
        let (bound, absent) = if site.has(first) { (first, second) } else { (second, first) };
        let message = format!(
            "defaults to `fp32`, but `{bound}` has another type (`{left}`, `{right}`); both must have \
             the same type"
        );
        return Err(InferError::new(message).of(absent).hint("bind both"));
    }
    Ok(vec![InferredValue::tensor(left, stated_shape(site)?)])
}

/// The shape whose dimensions are the elements of `shape`.
fn stated_shape(site: &InferContext) -> Result<Vec<Dim>, InferError> {
    let shape = expect::ranked(site, "shape", 1, 1)?;
    let refusal = |message: String| InferError::new(message).of("shape");
    let Some(rank) = shape.shape[0].known() else {
        let message = format!("has {} elements; expected a fixed number", shape.shape[0]);
        return Err(refusal(message));
    };
    if rank > MAX_RANK as u64 {
        let message = format!("has {rank} elements; the maximum rank of a tensor is {MAX_RANK}");
        return Err(refusal(message));
    }
    let Some(value) = site.value("shape") else {
        return Ok((0..rank).map(|_| site.fresh()).collect());
    };
    let extents = value.exprs().into_iter().map(|extent| {
        match extent.as_ref().and_then(crate::ir::Expr::constant) {
            Some(known) if known < 1 => {
                Err(refusal(format!("must contain sizes of at least 1, got {known}")))
            }
            _ => Ok(site.dim(extent)),
        }
    });
    extents.collect()
}
