//! Reference kernels of activations. All of them propagate NaN.

use super::broadcast::map_floats;
use super::elementwise::{error_function, larger, smaller};
use crate::array::View;
use crate::call::{Call, Results};
use crate::error::{Result, fail};

pub(super) fn clamped_relu(call: &Call) -> Results {
    let (alpha, beta) = (call.float("alpha")?, call.float("beta")?);
    map_floats(call, |x| smaller(if x < 0.0 { alpha * x } else { x }, beta))
}

pub(super) fn elu(call: &Call) -> Results {
    let alpha = call.float("alpha")?;
    map_floats(call, |x| if x < 0.0 { alpha * x.exp_m1() } else { x })
}

pub(super) fn gelu(call: &Call) -> Results {
    match call.text("mode")? {
        "EXACT" => map_floats(call, |x| {
            let wide = f64::from(x);
            (0.5 * wide * (1.0 + error_function(wide * std::f64::consts::FRAC_1_SQRT_2))) as f32
        }),
        "TANH_APPROXIMATION" => map_floats(call, |x| {
            let scale = (2.0 / std::f32::consts::PI).sqrt();
            0.5 * x * (1.0 + (scale * (x + 0.044715 * x * x * x)).tanh())
        }),
        "SIGMOID_APPROXIMATION" => map_floats(call, |x| x * logistic(1.702 * x)),
        mode => fail!(
            "`mode` must be `EXACT`, `TANH_APPROXIMATION` or `SIGMOID_APPROXIMATION`, got `{mode}`"
        ),
    }
}

pub(super) fn leaky_relu(call: &Call) -> Results {
    let alpha = call.float("alpha")?;
    map_floats(call, |x| if x < 0.0 { alpha * x } else { x })
}

pub(super) fn linear_activation(call: &Call) -> Results {
    let (alpha, beta) = (call.float("alpha")?, call.float("beta")?);
    map_floats(call, |x| alpha * x + beta)
}

pub(super) fn prelu(call: &Call) -> Results {
    let alpha = call.tensor("alpha")?.floats()?;
    by_channel(call, alpha.len(), |x, channel| if x < 0.0 { alpha[channel] * x } else { x })
}

pub(super) fn relu(call: &Call) -> Results {
    map_floats(call, |x| larger(x, 0.0))
}

pub(super) fn relu6(call: &Call) -> Results {
    map_floats(call, |x| smaller(larger(x, 0.0), 6.0))
}

pub(super) fn scaled_tanh(call: &Call) -> Results {
    let (alpha, beta) = (call.float("alpha")?, call.float("beta")?);
    map_floats(call, |x| alpha * (x * beta).tanh())
}

pub(super) fn sigmoid(call: &Call) -> Results {
    map_floats(call, logistic)
}

pub(super) fn sigmoid_hard(call: &Call) -> Results {
    let (alpha, beta) = (call.float("alpha")?, call.float("beta")?);
    map_floats(call, |x| smaller(larger(alpha * x + beta, 0.0), 1.0))
}

pub(super) fn silu(call: &Call) -> Results {
    map_floats(call, |x| x * logistic(x))
}

pub(super) fn softmax(call: &Call) -> Results {
    let x = call.tensor("x")?;
    let mut floats = x.floats()?.to_vec();
    let axis = call.axis("axis", x.rank())?;
    let (extent, inner) = (x.shape[axis], x.shape[axis + 1..].iter().product::<usize>());
    let dtype = x.dtype;
    if floats.is_empty() {
        return call.give_floats(x.shape, floats);
    }
    for block in floats.chunks_mut(extent * inner) {
        for first in 0..inner {
            let line = || (first..extent * inner).step_by(inner);
            let largest = line().map(|at| block[at]).fold(f32::NEG_INFINITY, larger);
            let mut sum = 0.0;
            for at in line() {
                block[at] = call.arithmetic.exp(dtype, block[at] - largest);
                sum += f64::from(block[at]);
            }
            for at in line() {
                block[at] = (f64::from(block[at]) / sum) as f32;
            }
        }
    }
    call.give_floats(x.shape, floats)
}

pub(super) fn softplus(call: &Call) -> Results {
    map_floats(call, log_one_plus_exp)
}

pub(super) fn softplus_parametric(call: &Call) -> Results {
    let (alpha, beta) = (call.tensor("alpha")?.floats()?, call.tensor("beta")?.floats()?);
    by_channel(call, alpha.len().min(beta.len()), |x, channel| {
        alpha[channel] * log_one_plus_exp(beta[channel] * x)
    })
}

pub(super) fn softsign(call: &Call) -> Results {
    map_floats(call, |x| x / (1.0 + x.abs()))
}

pub(super) fn thresholded_relu(call: &Call) -> Results {
    let alpha = call.float("alpha")?;
    map_floats(call, |x| if x < alpha { 0.0 } else { x })
}

fn logistic(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

fn log_one_plus_exp(x: f32) -> f32 {
    // `exp(x)` overflows for large `x`; this form adds nothing to them.
    (-x.abs()).exp().ln_1p() + larger(x, 0.0)
}

/// Applies a function of each element and its channel, the index along the second axis.
fn by_channel(call: &Call, parameters: usize, f: impl Fn(f32, usize) -> f32) -> Results {
    let x = call.tensor("x")?;
    let inner = inner_of_channels(&x, parameters)?;
    let floats = x.floats()?.chunks(inner.max(1)).enumerate();
    let mapped = floats.flat_map(|(row, chunk)| {
        let f = &f;
        chunk.iter().map(move |&x| f(x, row % parameters))
    });
    call.give_floats(x.shape, mapped.collect())
}

/// Number of elements per channel and sample. Fails if `x` has another number of channels.
pub(super) fn inner_of_channels(x: &View, channels: usize) -> Result<usize> {
    match x.shape.get(1) {
        Some(&extent) if extent == channels => Ok(x.shape[2..].iter().product()),
        _ => fail!("has parameters for {channels} channels, but `x` has the shape {:?}", x.shape),
    }
}
