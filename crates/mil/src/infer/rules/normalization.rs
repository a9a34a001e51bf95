//! Normalizations. The output has the type of `x`; its elements are not computed.
//!
//! coremltools checks little more than element types. These rules also check the ranks and parameter shapes
//! that it documents.

use super::expect;
use crate::infer::shape::marked_axes;
use crate::infer::site::InferredValue;
use crate::infer::{InferContext, InferError, Rule};
use crate::ir::{Dim, TensorType};

pub(super) fn batch_norm(site: &InferContext) -> Rule {
    let x = expect::ranked(site, "x", 3, 5)?;
    for name in ["mean", "variance", "gamma", "beta"] {
        one_for_each_channel(site, x, name)?;
    }
    expect::one_element(site, "epsilon")?;
    same(x)
}

pub(super) fn instance_norm(site: &InferContext) -> Rule {
    let x = expect::ranked(site, "x", 3, 4)?;
    for name in ["gamma", "beta"] {
        one_for_each_channel(site, x, name)?;
    }
    expect::one_element(site, "epsilon")?;
    same(x)
}

pub(super) fn l2_norm(site: &InferContext) -> Rule {
    let x = expect::ranked(site, "x", 3, usize::MAX)?;
    expect::one_element(site, "epsilon")?;
    same(x)
}

pub(super) fn layer_norm(site: &InferContext) -> Rule {
    let x = site.tensor("x")?;
    let axes = marked_axes(site, "axes", x.rank())?;
    // Parameters have the dimensions in the order of `x`, independent of the order of `axes`.
    let marked = x.shape.iter().zip(axes).filter(|(_, marked)| *marked);
    let normalized: Vec<Dim> = marked.map(|(dim, _)| dim.clone()).collect();
    for name in ["gamma", "beta"] {
        expect::shape(site, name, &normalized, "the dimensions of `x` that `axes` names")?;
    }
    expect::one_element(site, "epsilon")?;
    same(x)
}

pub(super) fn local_response_norm(site: &InferContext) -> Rule {
    // coremltools documents a maximum of 4, but its tests run tensors of rank 5 on a Mac.
    let x = expect::ranked(site, "x", 3, 5)?;
    for name in ["size", "alpha", "beta", "k"] {
        expect::one_element(site, name)?;
    }
    expect::extent(site, "size")?;
    same(x)
}

fn same(x: &TensorType) -> Rule {
    Ok(vec![InferredValue::tensor(x.dtype, x.shape.clone())])
}

/// Checks that a parameter is a vector with one element for each channel, if it is bound.
fn one_for_each_channel(site: &InferContext, x: &TensorType, name: &str) -> Result<(), InferError> {
    expect::shape(site, name, &x.shape[1..=1], "one element for each channel of `x`")
}
