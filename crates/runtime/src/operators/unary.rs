//! Elementwise functions of one tensor.

use coremill_pte::program::ScalarType;

use super::arguments::{float_output, same_type};
use super::map::{map, resize_to_broadcast};
use super::{Arguments, Kernel, kernel};
use crate::error::{Result, ensure};
use crate::number::{Compute, Number, Scalar, compute, compute_float, is_complex, is_floating};
use crate::view::{OutTensor, View};

pub(super) const TABLE: &[Kernel] = &[
    kernel("aten::abs.out", "T>T", absolute),
    kernel("aten::acos.out", "T>T", |x, out| function(x, out, f32::acos, f64::acos)),
    kernel("aten::acosh.out", "T>T", |x, out| function(x, out, f32::acosh, f64::acosh)),
    kernel("aten::asin.out", "T>T", |x, out| function(x, out, f32::asin, f64::asin)),
    kernel("aten::asinh.out", "T>T", |x, out| function(x, out, f32::asinh, f64::asinh)),
    kernel("aten::atan.out", "T>T", |x, out| function(x, out, f32::atan, f64::atan)),
    kernel("aten::atanh.out", "T>T", |x, out| function(x, out, f32::atanh, f64::atanh)),
    kernel("aten::bitwise_not.out", "T>T", bitwise_not),
    kernel("aten::ceil.out", "T>T", |x, out| rounded(x, out, f32::ceil, f64::ceil)),
    kernel("aten::cos.out", "T>T", |x, out| function(x, out, f32::cos, f64::cos)),
    kernel("aten::cosh.out", "T>T", |x, out| function(x, out, f32::cosh, f64::cosh)),
    kernel("aten::elu.out", "TSSS>T", elu),
    kernel("aten::erf.out", "T>T", |x, out| function(x, out, libm::erff, libm::erf)),
    kernel("aten::exp.out", "T>T", |x, out| function(x, out, f32::exp, f64::exp)),
    kernel("aten::expm1.out", "T>T", |x, out| function(x, out, f32::exp_m1, f64::exp_m1)),
    kernel("aten::floor.out", "T>T", |x, out| rounded(x, out, f32::floor, f64::floor)),
    kernel("aten::gelu.out", "TC>T", gelu),
    kernel("aten::glu.out", "TI>T", glu),
    kernel("aten::hardtanh.out", "TSS>T", hardtanh),
    kernel("aten::isinf.out", "T>T", |x, out| test(x, out, f64::is_infinite)),
    kernel("aten::isnan.out", "T>T", |x, out| test(x, out, f64::is_nan)),
    kernel("aten::leaky_relu.out", "TS>T", leaky_relu),
    kernel("aten::log.out", "T>T", |x, out| function(x, out, f32::ln, f64::ln)),
    kernel("aten::log10.out", "T>T", |x, out| function(x, out, f32::log10, f64::log10)),
    kernel("aten::log1p.out", "T>T", |x, out| function(x, out, f32::ln_1p, f64::ln_1p)),
    kernel("aten::log2.out", "T>T", |x, out| function(x, out, f32::log2, f64::log2)),
    kernel("aten::logical_not.out", "T>T", logical_not),
    kernel("aten::logit.out", "Td>T", logit),
    kernel("aten::neg.out", "T>T", negative),
    kernel("aten::reciprocal.out", "T>T", |x, out| function(x, out, f32::recip, f64::recip)),
    kernel("aten::relu.out", "T>T", relu),
    kernel("aten::round.out", "T>T", |x, out| {
        rounded(x, out, f32::round_ties_even, f64::round_ties_even)
    }),
    kernel("aten::rsqrt.out", "T>T", |x, out| {
        function(x, out, |x| 1.0 / x.sqrt(), |x| 1.0 / x.sqrt())
    }),
    kernel("aten::sigmoid.out", "T>T", |x, out| {
        function(x, out, |x| 1.0 / (1.0 + (-x).exp()), |x| 1.0 / (1.0 + (-x).exp()))
    }),
    kernel("aten::sign.out", "T>T", sign),
    kernel("aten::sin.out", "T>T", |x, out| function(x, out, f32::sin, f64::sin)),
    kernel("aten::sinh.out", "T>T", |x, out| function(x, out, f32::sinh, f64::sinh)),
    kernel("aten::sqrt.out", "T>T", |x, out| function(x, out, f32::sqrt, f64::sqrt)),
    kernel("aten::tan.out", "T>T", |x, out| function(x, out, f32::tan, f64::tan)),
    kernel("aten::tanh.out", "T>T", |x, out| function(x, out, f32::tanh, f64::tanh)),
    kernel("aten::trunc.out", "T>T", |x, out| rounded(x, out, f32::trunc, f64::trunc)),
];

/// The only input tensor, after resizing the output.
fn operand<'a>(x: &Arguments<'a>, out: &mut OutTensor) -> Result<View<'a>> {
    let view = x.tensor(0)?;
    resize_to_broadcast(&[view], out)?;
    Ok(view)
}

/// A floating-point function, computed in 64 bits for doubles and in 32 bits otherwise.
fn function(
    x: &Arguments,
    out: &mut [OutTensor],
    single: impl Fn(f32) -> f32,
    double: impl Fn(f64) -> f64,
) -> Result {
    let view = operand(x, &mut out[0])?;
    float_output(&out[0])?;
    Compute::of(view.dtype)?;
    match Compute::float_of(view.dtype) {
        Compute::F64 => map([view], &mut out[0], |[x]| double(x)),
        _ => map([view], &mut out[0], |[x]| single(x)),
    }
}

/// A function that rounds floats and does not change integers.
fn rounded(
    x: &Arguments,
    out: &mut [OutTensor],
    single: impl Fn(f32) -> f32,
    double: impl Fn(f64) -> f64,
) -> Result {
    let view = operand(x, &mut out[0])?;
    same_type(&view, &out[0])?;
    match Compute::of(view.dtype)? {
        Compute::I64 => map([view], &mut out[0], |[x]: [i64; 1]| x),
        Compute::F32 => map([view], &mut out[0], |[x]| single(x)),
        Compute::F64 => map([view], &mut out[0], |[x]| double(x)),
    }
}

/// A boolean property of floats.
fn test(x: &Arguments, out: &mut [OutTensor], property: impl Fn(f64) -> bool) -> Result {
    let view = operand(x, &mut out[0])?;
    let dtype = out[0].dtype;
    ensure!(dtype == ScalarType::Bool, "the output must be `Bool`, got `{dtype:?}`");
    Compute::of(view.dtype)?;
    map([view], &mut out[0], |[x]: [f64; 1]| f64::of_bool(property(x)))
}

fn absolute(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let view = operand(x, &mut out[0])?;
    if is_complex(view.dtype) {
        return super::complex::absolute(view, &mut out[0]);
    }
    same_type(&view, &out[0])?;
    compute!(Compute::of(view.dtype)?, N => {
        map([view], &mut out[0], |[x]: [N; 1]| if x < N::ZERO { N::ZERO.subtract(x) } else { x })
    })
}

fn negative(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let view = operand(x, &mut out[0])?;
    same_type(&view, &out[0])?;
    match Compute::of(view.dtype)? {
        Compute::I64 => map([view], &mut out[0], |[x]: [i64; 1]| x.wrapping_neg()),
        Compute::F32 => map([view], &mut out[0], |[x]: [f32; 1]| -x),
        Compute::F64 => map([view], &mut out[0], |[x]: [f64; 1]| -x),
    }
}

fn bitwise_not(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let view = operand(x, &mut out[0])?;
    same_type(&view, &out[0])?;
    let dtype = view.dtype;
    ensure!(
        !is_floating(dtype),
        "bitwise operations require integers or booleans, got `{dtype:?}`"
    );
    Compute::of(dtype)?;
    let is_bool = dtype == ScalarType::Bool;
    map([view], &mut out[0], |[x]: [i64; 1]| if is_bool { i64::from(x == 0) } else { !x })
}

fn logical_not(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let view = operand(x, &mut out[0])?;
    Compute::of(out[0].dtype)?;
    compute!(Compute::of(view.dtype)?, N => {
        map([view], &mut out[0], |[x]: [N; 1]| N::of_bool(!x.is_true()))
    })
}

fn relu(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let view = operand(x, &mut out[0])?;
    same_type(&view, &out[0])?;
    compute!(Compute::of(view.dtype)?, N => {
        map([view], &mut out[0], |[x]: [N; 1]| if x.is_nan() || x >= N::ZERO { x } else { N::ZERO })
    })
}

fn sign(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let view = operand(x, &mut out[0])?;
    same_type(&view, &out[0])?;
    compute!(Compute::of(view.dtype)?, N => map([view], &mut out[0], |[x]: [N; 1]| {
        if x.is_nan() || x == N::ZERO {
            x
        } else if x > N::ZERO {
            N::ONE
        } else {
            N::ZERO.subtract(N::ONE)
        }
    }))
}

fn hardtanh(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let view = operand(x, &mut out[0])?;
    same_type(&view, &out[0])?;
    let (low, high) = (x.scalar(1)?, x.scalar(2)?);
    compute!(Compute::of(view.dtype)?, N => {
        let (low, high) = (N::of(low), N::of(high));
        map([view], &mut out[0], |[x]: [N; 1]| x.greatest(low).least(high))
    })
}

fn leaky_relu(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let view = operand(x, &mut out[0])?;
    same_type(&view, &out[0])?;
    float_output(&out[0])?;
    let slope = x.scalar(1)?;
    compute_float!(Compute::of(view.dtype)?, N => {
        let slope = N::of(slope);
        map([view], &mut out[0], |[x]: [N; 1]| if x >= N::ZERO { x } else { x.multiply(slope) })
    })
}

fn elu(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let view = operand(x, &mut out[0])?;
    same_type(&view, &out[0])?;
    float_output(&out[0])?;
    let (alpha, scale, input_scale) = (x.scalar(1)?, x.scalar(2)?, x.scalar(3)?);
    compute_float!(Compute::of(view.dtype)?, N => {
        let (alpha, scale, input_scale) = (N::of(alpha), N::of(scale), N::of(input_scale));
        map([view], &mut out[0], |[x]: [N; 1]| {
            if x <= 0.0 { (x * input_scale).exp_m1() * (alpha * scale) } else { x * scale }
        })
    })
}

fn gelu(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let view = operand(x, &mut out[0])?;
    same_type(&view, &out[0])?;
    float_output(&out[0])?;
    let approximate = x.text(1)?;
    let compute = Compute::of(view.dtype)?;
    let limited = |x: f64, value: f64| match x {
        f64::NEG_INFINITY => 0.0,
        f64::INFINITY => x,
        _ => value,
    };
    match (approximate, compute) {
        ("none", Compute::F64) => map([view], &mut out[0], |[x]: [f64; 1]| {
            limited(x, 0.5 * x * (1.0 + libm::erf(x * std::f64::consts::FRAC_1_SQRT_2)))
        }),
        ("none", _) => map([view], &mut out[0], |[x]: [f32; 1]| match x {
            f32::NEG_INFINITY => 0.0,
            f32::INFINITY => x,
            _ => 0.5 * x * (1.0 + libm::erff(x * std::f32::consts::FRAC_1_SQRT_2)),
        }),
        ("tanh", _) => map([view], &mut out[0], |[x]: [f64; 1]| {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            limited(x, 0.5 * x * (1.0 + inner.tanh()))
        }),
        _ => {
            crate::error::fail!("`approximate` must be `none` or `tanh`, got `{approximate}`")
        }
    }
}

fn logit(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let view = operand(x, &mut out[0])?;
    float_output(&out[0])?;
    let epsilon = x.optional_double(1)?;
    Compute::of(view.dtype)?;
    compute_float!(Compute::float_of(out[0].dtype), N => map([view], &mut out[0], |[x]: [N; 1]| {
        let mut x = x;
        if let Some(epsilon) = epsilon {
            if x.to_f64() < epsilon {
                x = N::of_f64(epsilon);
            } else if x.to_f64() > 1.0 - epsilon {
                x = N::of_f64(1.0 - epsilon);
            }
        }
        (x / (1.0 - x)).ln()
    }))
}

/// The first half along a dimension times the sigmoid of the second.
fn glu(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let view = x.tensor(0)?;
    float_output(&out[0])?;
    let axis = view.dimension(x.int(1)?)?;
    let length = view.sizes.get(axis).copied().unwrap_or(1);
    ensure!(length % 2 == 0, "the size of dimension {axis} must be even, got {length}");
    ensure!(is_floating(view.dtype), "the tensor must have a float type, got `{:?}`", view.dtype);
    let mut sizes = view.sizes.to_vec();
    sizes[axis] = length / 2;
    out[0].resize(&sizes)?;
    let strides = view.strides();
    compute_float!(Compute::of(view.dtype)?, N => {
        let mut results = Vec::with_capacity(out[0].count());
        crate::view::walk(&sizes, &strides, |place| {
            let value = view.at::<N>(place);
            let gate = view.at::<N>(place + strides[axis] * (length / 2));
            results.push(value * (1.0 / (1.0 + (-gate).exp())));
        });
        out[0].put_contiguous(&results);
        Ok(())
    })
}

/// Whether a number is in the range of a type.
pub(super) fn fits(scalar: Scalar, dtype: ScalarType) -> bool {
    match dtype.dtype().and_then(|dtype| dtype.integer_range()) {
        Some(_) if dtype == ScalarType::Bool => true,
        Some((low, high)) => match scalar {
            Scalar::Double(value) => value >= low as f64 && value <= high as f64,
            scalar => (low..=high).contains(&i128::from(scalar.as_i64())),
        },
        None => true,
    }
}
