#![expect(
    unsafe_code,
    reason = "in-place and out-of-place variants share code that takes pointers"
)]

use super::Activation;
use coremill_simd::Isa;
use coremill_simd::math::{lanes, load, store};
use coremill_simd::vector::{Kernel, Vector, dispatch};

/// Applies the activation to each element in place. The error is bounded as in [`math`](coremill_simd::math).
pub fn activate(isa: Isa, activation: Activation, elements: &mut [f32]) {
    if activation == Activation::None {
        return;
    }
    let target = elements.as_mut_ptr();
    // SAFETY: the slice has this many elements.
    unsafe {
        activate_pointers(isa, activation, target, target, elements.len());
    }
}

/// Like [`activate`], for `length` elements behind pointers.
///
/// # Safety
/// `length` elements must be readable at `source` and writable at `target`. The two must be equal or must not
/// overlap.
pub(crate) unsafe fn activate_pointers(
    isa: Isa,
    activation: Activation,
    source: *const f32,
    target: *mut f32,
    length: usize,
) {
    dispatch(isa, Activate { activation, source, target, length });
}

struct Activate {
    activation: Activation,
    source: *const f32,
    target: *mut f32,
    length: usize,
}

impl Kernel for Activate {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let mut at = 0;
        while at < self.length {
            let count = V::LANES.min(self.length - at);
            // SAFETY: the caller of `activate_pointers` guarantees `length` elements.
            unsafe {
                let x = load::<V>(self.source.add(at), count);
                store(activate_vector(self.activation, x), self.target.add(at), count);
            }
            at += count;
        }
    }
}

/// Applies the activation to each lane. The branch on the activation is cheap, because it is always
/// predicted.
#[inline(always)]
fn activate_vector<V: Vector>(activation: Activation, x: V) -> V {
    match activation {
        Activation::None => x,
        Activation::Relu => lanes::relu(x),
        Activation::Clamp { low, high } => clamp(x, low, high),
        Activation::LeakyRelu { alpha } => V::select(x.less(V::zero()), x.mul(V::splat(alpha)), x),
        Activation::ThresholdedRelu { alpha } => {
            V::select(x.less_equal(V::splat(alpha)), V::zero(), x)
        }
        Activation::Elu { alpha } => lanes::elu(x, V::splat(alpha)),
        Activation::Sigmoid => lanes::sigmoid(x),
        Activation::HardSigmoid { alpha, beta } => {
            clamp(x.mul_add(V::splat(alpha), V::splat(beta)), 0.0, 1.0)
        }
        Activation::HardSwish { alpha, beta } => {
            x.mul(clamp(x.mul_add(V::splat(alpha), V::splat(beta)), 0.0, 1.0))
        }
        Activation::Silu => lanes::silu(x),
        Activation::Tanh => lanes::tanh(x),
        Activation::ScaledTanh { alpha, beta } => {
            lanes::tanh(x.mul(V::splat(beta))).mul(V::splat(alpha))
        }
        Activation::GeluExact => lanes::gelu(x),
        Activation::GeluTanh => lanes::gelu_tanh(x),
        Activation::GeluSigmoid => lanes::gelu_sigmoid(x),
        Activation::Softplus => lanes::softplus(x),
        Activation::ScaledSoftplus { alpha, beta } => {
            lanes::softplus(x.mul(V::splat(beta))).mul(V::splat(alpha))
        }
        Activation::Softsign => lanes::softsign(x),
        Activation::Linear { alpha, beta } => x.mul_add(V::splat(alpha), V::splat(beta)),
    }
}

/// The upper bound wins if the bounds cross; NaN is preserved.
#[inline(always)]
fn clamp<V: Vector>(x: V, low: f32, high: f32) -> V {
    V::splat(high).min(V::splat(low).max(x))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vector_activations_match_scalar() {
        let activations = [
            Activation::None,
            Activation::Relu,
            Activation::Clamp { low: -1.0, high: 6.0 },
            Activation::Clamp { low: 2.0, high: 1.0 },
            Activation::LeakyRelu { alpha: 0.1 },
            Activation::ThresholdedRelu { alpha: 1.0 },
            Activation::Elu { alpha: 1.5 },
            Activation::Sigmoid,
            Activation::HardSigmoid { alpha: 0.2, beta: 0.5 },
            Activation::HardSwish { alpha: 1.0 / 6.0, beta: 0.5 },
            Activation::Silu,
            Activation::Tanh,
            Activation::ScaledTanh { alpha: 2.0, beta: 0.5 },
            Activation::GeluExact,
            Activation::GeluTanh,
            Activation::GeluSigmoid,
            Activation::Softplus,
            Activation::ScaledSoftplus { alpha: 2.0, beta: 0.5 },
            Activation::Softsign,
            Activation::Linear { alpha: 2.0, beta: 1.0 },
        ];
        let elements: Vec<f32> = (-50..=50)
            .map(|step| step as f32 * 0.21)
            .chain([f32::NAN, -0.0, 1e-40, 200.0, -200.0, 1e30])
            .collect();
        for isa in Isa::available() {
            for activation in activations {
                let mut results = elements.clone();
                activate(isa, activation, &mut results);
                for (&x, &result) in elements.iter().zip(&results) {
                    let expected = activation.apply(x);
                    assert!(
                        (result - expected).abs() <= 1e-6 * expected.abs().max(1.0)
                            || result == expected
                            || result.is_nan() && expected.is_nan(),
                        "{isa} {activation:?} of {x} is {result}, not {expected}"
                    );
                }
            }
        }
    }
}
