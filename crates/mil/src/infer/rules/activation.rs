//! Activation functions. The output has the type of `x`.
//!
//! These rules are stricter than coremltools, which accepts parameters of any shape where Core ML documents
//! one number, and axes outside the rank of `x`.

use super::elementwise::{error_function, of_float, unary};
use super::expect;
use crate::infer::fold::float;
use crate::infer::site::InferredValue;
use crate::infer::{InferContext, InferError, Rule, Scalar, refuse};
use crate::ir::TensorType;

pub(super) fn clamped_relu(site: &InferContext) -> Rule {
    with_alpha_and_beta(site, |x, alpha, beta| beta.min(if x >= 0.0 { x } else { alpha * x }))
}

pub(super) fn elu(site: &InferContext) -> Rule {
    with_alpha(site, |x, alpha| if x >= 0.0 { x } else { alpha * x.exp_m1() })
}

pub(super) fn gelu(site: &InferContext) -> Rule {
    let modes = ["EXACT", "TANH_APPROXIMATION", "SIGMOID_APPROXIMATION"];
    let mode = site.choice("mode", &modes)?;
    of_float(site, |x| match &*mode {
        "TANH_APPROXIMATION" => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
            0.5 * x * (1.0 + inner.tanh())
        }
        "SIGMOID_APPROXIMATION" => x * logistic(1.702 * x),
        _ => 0.5 * x * (1.0 + error_function(x * std::f64::consts::FRAC_1_SQRT_2)),
    })
}

pub(super) fn leaky_relu(site: &InferContext) -> Rule {
    with_alpha(site, |x, alpha| if x >= 0.0 { x } else { alpha * x })
}

pub(super) fn linear_activation(site: &InferContext) -> Rule {
    with_alpha_and_beta(site, |x, alpha, beta| alpha * x + beta)
}

pub(super) fn prelu(site: &InferContext) -> Rule {
    let x = expect::ranked(site, "x", 3, 5)?;
    one_for_each_channel(site, x, "alpha")?;
    if x.rank() != 4 {
        let alphas = site.value("alpha").map_or(&[][..], |alpha| &alpha.elements);
        let first = alphas.first().and_then(Scalar::float);
        let differs = |alpha: &Scalar| match (alpha.float(), first) {
            (Some(alpha), Some(first)) => (alpha - first).abs() > 1e-5,
            _ => false,
        };
        if alphas.iter().any(differs) {
            let message =
                format!("differs between channels, which requires `x` to have rank 4, got `{x}`");
            let hint = "reshape `x` to rank 4, or use one value for all channels";
            return Err(InferError::new(message).of("alpha").hint(hint));
        }
    }
    same(x)
}

pub(super) fn relu(site: &InferContext) -> Rule {
    of_float(site, |x| if x < 0.0 { 0.0 } else { x })
}

pub(super) fn relu6(site: &InferContext) -> Rule {
    of_float(site, |x| x.clamp(0.0, 6.0))
}

pub(super) fn scaled_tanh(site: &InferContext) -> Rule {
    with_alpha_and_beta(site, |x, alpha, beta| alpha * (x * beta).tanh())
}

pub(super) fn sigmoid(site: &InferContext) -> Rule {
    of_float(site, logistic)
}

pub(super) fn sigmoid_hard(site: &InferContext) -> Rule {
    with_alpha_and_beta(site, |x, alpha, beta| (alpha * x + beta).clamp(0.0, 1.0))
}

pub(super) fn silu(site: &InferContext) -> Rule {
    of_float(site, |x| x * logistic(x))
}

pub(super) fn softmax(site: &InferContext) -> Rule {
    let x = site.tensor("x")?;
    expect::one_element(site, "axis")?;
    site.axis("axis", x.rank())?;
    same(x)
}

pub(super) fn softplus(site: &InferContext) -> Rule {
    of_float(site, |x| (-x.abs()).exp().ln_1p() + x.max(0.0))
}

pub(super) fn softplus_parametric(site: &InferContext) -> Rule {
    let x = expect::ranked(site, "x", 3, usize::MAX)?;
    one_for_each_channel(site, x, "alpha")?;
    one_for_each_channel(site, x, "beta")?;
    same(x)
}

pub(super) fn softsign(site: &InferContext) -> Rule {
    of_float(site, |x| x / (1.0 + x.abs()))
}

pub(super) fn thresholded_relu(site: &InferContext) -> Rule {
    with_alpha(site, |x, alpha| if x < alpha { 0.0 } else { x })
}

fn same(x: &TensorType) -> Rule {
    Ok(vec![InferredValue::tensor(x.dtype, x.shape.clone())])
}

fn logistic(x: f64) -> f64 {
    (1.0 + (-x).exp()).recip()
}

fn with_alpha(site: &InferContext, f: impl Fn(f64, f64) -> f64) -> Rule {
    let alpha = expect::number(site, "alpha")?;
    unary(site, |dtype, element| match (element, alpha) {
        (Scalar::Float(x), Some(alpha)) => float(dtype, f(*x, alpha)),
        _ => Scalar::Unknown,
    })
}

fn with_alpha_and_beta(site: &InferContext, f: impl Fn(f64, f64, f64) -> f64) -> Rule {
    let (alpha, beta) = (expect::number(site, "alpha")?, expect::number(site, "beta")?);
    unary(site, |dtype, element| match (element, alpha, beta) {
        (Scalar::Float(x), Some(alpha), Some(beta)) => float(dtype, f(*x, alpha, beta)),
        _ => Scalar::Unknown,
    })
}

/// Checks that a parameter is a vector with one element for each channel of `x`.
fn one_for_each_channel(site: &InferContext, x: &TensorType, name: &str) -> Result<(), InferError> {
    let Some(channels) = x.shape[1].known() else {
        refuse!("`{}` needs a fixed number of channels, but `x` is `{x}`", site.name());
    };
    expect::shape(site, name, &[channels.into()], "one element for each channel of `x`")
}
