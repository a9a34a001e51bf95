mod lanes;

pub use lanes::activate;
pub(crate) use lanes::activate_pointers;

/// An elementwise function that kernels apply to their results.
///
/// The result for NaN is NaN.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Activation {
    /// The element itself.
    #[default]
    None,
    /// `max(x, 0)`
    Relu,
    /// `min(max(x, low), high)`
    Clamp {
        /// Lower bound of the result.
        low: f32,
        /// Upper bound of the result.
        high: f32,
    },
    /// `x` if it is not negative, else `alpha * x`
    LeakyRelu {
        /// Slope for negative elements.
        alpha: f32,
    },
    /// `x` if it is above `alpha`, else 0
    ThresholdedRelu {
        /// The threshold.
        alpha: f32,
    },
    /// `x` if it is not negative, else `alpha * (exp(x) - 1)`
    Elu {
        /// The result approaches `-alpha`.
        alpha: f32,
    },
    /// `1 / (1 + exp(-x))`
    Sigmoid,
    /// `min(max(alpha * x + beta, 0), 1)`
    HardSigmoid {
        /// The slope.
        alpha: f32,
        /// The offset.
        beta: f32,
    },
    /// `x * min(max(alpha * x + beta, 0), 1)`; hard swish has 1/6 and 1/2
    HardSwish {
        /// The slope.
        alpha: f32,
        /// The offset.
        beta: f32,
    },
    /// `x * sigmoid(x)`
    Silu,
    /// `tanh(x)`
    Tanh,
    /// `alpha * tanh(beta * x)`
    ScaledTanh {
        /// Factor of the result.
        alpha: f32,
        /// Factor of the argument.
        beta: f32,
    },
    /// `x / 2 * (1 + erf(x / sqrt(2)))`
    GeluExact,
    /// `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))`
    GeluTanh,
    /// `x * sigmoid(1.702 * x)`
    GeluSigmoid,
    /// `log(1 + exp(x))`
    Softplus,
    /// `alpha * log(1 + exp(beta * x))`
    ScaledSoftplus {
        /// Factor of the result.
        alpha: f32,
        /// Factor of the argument.
        beta: f32,
    },
    /// `x / (1 + abs(x))`
    Softsign,
    /// `alpha * x + beta`
    Linear {
        /// The slope.
        alpha: f32,
        /// The offset.
        beta: f32,
    },
}

impl Activation {
    /// Applies the function to one element.
    pub fn apply(self, x: f32) -> f32 {
        match self {
            Activation::None => x,
            Activation::Relu => clamp(x, 0.0, f32::INFINITY),
            Activation::Clamp { low, high } => clamp(x, low, high),
            Activation::LeakyRelu { alpha } => {
                if x < 0.0 {
                    alpha * x
                } else {
                    x
                }
            }
            Activation::ThresholdedRelu { alpha } => {
                if x <= alpha {
                    0.0
                } else {
                    x
                }
            }
            Activation::Elu { alpha } => {
                if x < 0.0 {
                    alpha * x.exp_m1()
                } else {
                    x
                }
            }
            Activation::Sigmoid => sigmoid(x),
            Activation::HardSigmoid { alpha, beta } => clamp(alpha * x + beta, 0.0, 1.0),
            Activation::HardSwish { alpha, beta } => x * clamp(alpha * x + beta, 0.0, 1.0),
            Activation::Silu => x * sigmoid(x),
            Activation::Tanh => x.tanh(),
            Activation::ScaledTanh { alpha, beta } => alpha * (beta * x).tanh(),
            Activation::GeluExact => x / 2.0 * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2)),
            Activation::GeluTanh => {
                let inner = (2.0 / std::f32::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
                x / 2.0 * (1.0 + inner.tanh())
            }
            Activation::GeluSigmoid => x * sigmoid(1.702 * x),
            Activation::Softplus => softplus(x),
            Activation::ScaledSoftplus { alpha, beta } => alpha * softplus(beta * x),
            Activation::Softsign => x / (1.0 + x.abs()),
            Activation::Linear { alpha, beta } => alpha * x + beta,
        }
    }
}

impl Activation {
    /// The bounds, if the activation only clamps.
    pub(crate) fn bounds(self) -> Option<(f32, f32)> {
        match self {
            Activation::None => Some((f32::NEG_INFINITY, f32::INFINITY)),
            Activation::Relu => Some((0.0, f32::INFINITY)),
            Activation::Clamp { low, high } => Some((low, high)),
            _ => None,
        }
    }
}

/// Unlike `f32::clamp`, supports crossing bounds; the upper one wins.
fn clamp(x: f32, low: f32, high: f32) -> f32 {
    let x = if x < low { low } else { x };
    if x > high { high } else { x }
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

fn softplus(x: f32) -> f32 {
    // `exp` of a large positive element would overflow; use the exponential of `-|x|` instead.
    clamp(x, 0.0, f32::INFINITY) + (-x.abs()).exp().ln_1p()
}

/// The error function, computed by its series around zero.
fn erf(x: f32) -> f32 {
    let x = f64::from(x);
    if x.abs() > 4.0 {
        return x.signum() as f32;
    }
    // erf x = 2/sqrt(pi) * sum of (-1)^n x^(2n+1) / (n! (2n+1))
    let (mut power, mut sum, mut n) = (x, x, 0.0);
    while power.abs() > 1e-12 {
        n += 1.0;
        power *= -x * x / n;
        sum += power / (2.0 * n + 1.0);
    }
    (sum * std::f64::consts::FRAC_2_SQRT_PI) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values from published tables.
    #[test]
    fn activations_match_published_values() {
        let cases = [
            (Activation::None, -1.5, -1.5),
            (Activation::Relu, -1.5, 0.0),
            (Activation::Clamp { low: 0.0, high: 6.0 }, 7.0, 6.0),
            (Activation::LeakyRelu { alpha: 0.1 }, -2.0, -0.2),
            (Activation::ThresholdedRelu { alpha: 1.0 }, 1.0, 0.0),
            (Activation::ThresholdedRelu { alpha: 1.0 }, 1.5, 1.5),
            (Activation::Elu { alpha: 2.0 }, -1.0, -1.264_241_1),
            (Activation::Sigmoid, 1.0, 0.731_058_6),
            (Activation::HardSigmoid { alpha: 0.2, beta: 0.5 }, 1.0, 0.7),
            (Activation::HardSwish { alpha: 1.0 / 6.0, beta: 0.5 }, 1.0, 0.666_666_7),
            (Activation::Silu, 1.0, 0.731_058_6),
            (Activation::Tanh, 1.0, 0.761_594_2),
            (Activation::ScaledTanh { alpha: 2.0, beta: 0.5 }, 2.0, 1.523_188_3),
            (Activation::GeluExact, 1.0, 0.841_344_7),
            (Activation::GeluExact, -3.0, -0.004_049_694),
            (Activation::GeluTanh, 1.0, 0.841_191_9),
            (Activation::GeluSigmoid, 1.0, 0.845_795_8),
            (Activation::Softplus, 0.0, std::f32::consts::LN_2),
            (Activation::Softplus, 100.0, 100.0),
            (
                Activation::ScaledSoftplus { alpha: 2.0, beta: 0.5 },
                0.0,
                2.0 * std::f32::consts::LN_2,
            ),
            (Activation::Softsign, -3.0, -0.75),
            (Activation::Linear { alpha: 2.0, beta: 1.0 }, 3.0, 7.0),
        ];
        for (activation, x, expected) in cases {
            let result = activation.apply(x);
            assert!((result - expected).abs() < 2e-6, "{activation:?} of {x} is {result}");
        }
    }

    #[test]
    fn nan_stays_nan() {
        for activation in [
            Activation::Relu,
            Activation::Clamp { low: 0.0, high: 6.0 },
            Activation::LeakyRelu { alpha: 0.1 },
            Activation::ThresholdedRelu { alpha: 1.0 },
            Activation::Elu { alpha: 1.0 },
            Activation::HardSigmoid { alpha: 0.2, beta: 0.5 },
            Activation::GeluExact,
            Activation::Softplus,
        ] {
            assert!(activation.apply(f32::NAN).is_nan(), "{activation:?}");
        }
    }
}
