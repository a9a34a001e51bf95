//! Creation of tensors, and copies.

use coremill_pte::program::ScalarType;
use coremill_tensor::SplitMix64;

use super::arguments::{float_output, same_type};
use super::map::{copy, resize_to_broadcast};
use super::unary::fits;
use super::{Arguments, Kernel, kernel};
use crate::error::{Result, ensure};
use crate::number::{Compute, Number, Scalar, compute, compute_float, is_complex};
use crate::view::{OutTensor, sizes_of};

pub(super) const TABLE: &[Kernel] = &[
    kernel("aten::_to_copy.out", "TBi>T", converted),
    kernel("aten::alias_copy.out", "T>T", same),
    kernel("aten::arange.out", "S>T", |x, out| {
        arange(Scalar::Int(0), x.scalar(0)?, Scalar::Int(1), &mut out[0])
    }),
    kernel("aten::arange.start_out", "SSS>T", |x, out| {
        arange(x.scalar(0)?, x.scalar(1)?, x.scalar(2)?, &mut out[0])
    }),
    kernel("aten::clone.out", "Ti>T", same),
    kernel("aten::copy.out", "TTB>T", copy_out),
    kernel("aten::copy_", "MTB>", copy_in_place),
    kernel("aten::detach_copy.out", "T>T", same),
    kernel("aten::empty.out", "Ni>T", |x, out| out[0].resize(&sizes_of(x.ints(0)?)?)),
    kernel("aten::fill.Scalar_out", "TS>T", |x, out| {
        same_type(&x.tensor(0)?, &out[0])?;
        out[0].resize(x.tensor(0)?.sizes)?;
        fill(x.scalar(1)?, &mut out[0])
    }),
    kernel("aten::fill.Tensor_out", "TT>T", fill_tensor),
    kernel("aten::full.out", "NS>T", |x, out| {
        out[0].resize(&sizes_of(x.ints(0)?)?)?;
        fill(x.scalar(1)?, &mut out[0])
    }),
    kernel("aten::full_like.out", "TSi>T", |x, out| {
        out[0].resize(x.tensor(0)?.sizes)?;
        fill(x.scalar(1)?, &mut out[0])
    }),
    kernel("aten::lift_fresh_copy.out", "T>T", same),
    kernel("aten::native_dropout.out", "TDb>TT", dropout),
    kernel("aten::ones.out", "N>T", |x, out| {
        out[0].resize(&sizes_of(x.ints(0)?)?)?;
        fill(Scalar::Int(1), &mut out[0])
    }),
    kernel("aten::rand.out", "N>T", |x, out| random(x, out, uniform)),
    kernel("aten::randn.out", "N>T", |x, out| random(x, out, normal)),
    kernel("aten::scalar_tensor.out", "S>T", |x, out| {
        out[0].resize(&[])?;
        fill(x.scalar(0)?, &mut out[0])
    }),
    kernel("aten::zeros.out", "N>T", |x, out| {
        out[0].resize(&sizes_of(x.ints(0)?)?)?;
        out[0].bytes().fill(0);
        Ok(())
    }),
    kernel("dim_order_ops::_clone_dim_order.out", "TBn>T", same),
    kernel("dim_order_ops::_empty_dim_order.out", "Nn>T", |x, out| {
        out[0].resize(&sizes_of(x.ints(0)?)?)
    }),
    kernel("dim_order_ops::_to_dim_order_copy.out", "TBn>T", converted),
    kernel("et_copy::_d2h_copy.out", "T>T", same),
    kernel("et_copy::_h2d_copy.out", "T>T", same),
];

/// A copy of the same type, in the output's dimension order.
fn same(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let view = x.tensor(0)?;
    same_type(&view, &out[0])?;
    out[0].resize(view.sizes)?;
    copy(view, &mut out[0])
}

/// A copy in the output's type.
fn converted(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let view = x.tensor(0)?;
    out[0].resize(view.sizes)?;
    if is_complex(view.dtype) != is_complex(out[0].dtype) {
        return super::complex::convert(view, &mut out[0]);
    }
    copy(view, &mut out[0])
}

fn copy_out(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let (view, source) = (x.tensor(0)?, x.tensor(1)?);
    same_type(&view, &out[0])?;
    out[0].resize(view.sizes)?;
    copy(source, &mut out[0])
}

fn copy_in_place(x: &Arguments, out: &mut [OutTensor]) -> Result {
    copy(x.tensor(1)?, &mut out[0])
}

fn fill(value: Scalar, out: &mut OutTensor) -> Result {
    let dtype = out.dtype;
    ensure!(fits(value, dtype), "{} does not fit `{dtype:?}`", value.as_f64());
    compute!(Compute::of(dtype)?, N => {
        let numbers = vec![N::of(value); out.count()];
        out.put_all(&numbers);
        Ok(())
    })
}

fn fill_tensor(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let (view, value) = (x.tensor(0)?, x.tensor(1)?);
    same_type(&view, &out[0])?;
    ensure!(value.count() == 1, "the value must have one element, got {}", value.count());
    out[0].resize(view.sizes)?;
    compute!(Compute::of(value.dtype)?, N => {
        let numbers = vec![value.at::<N>(0); out[0].count()];
        out[0].put_all(&numbers);
        Ok(())
    })
}

fn arange(start: Scalar, end: Scalar, step: Scalar, out: &mut OutTensor) -> Result {
    let [start, end, step] = [start, end, step].map(Scalar::as_f64);
    let count = ((end - start) / step).ceil();
    ensure!(
        step != 0.0 && (0.0..=9e15).contains(&count),
        "a range from {start} to {end} cannot have step {step}"
    );
    out.resize(&[count as usize])?;
    compute!(Compute::of(out.dtype)?, N => {
        let number = |index: usize| N::of_f64(start + index as f64 * step);
        let numbers: Vec<N> = (0..out.count()).map(number).collect();
        out.put_all(&numbers);
        Ok(())
    })
}

/// A uniform random number from 0 to below 1.
fn uniform(random: &mut SplitMix64) -> f64 {
    (random.next_u64() >> 40) as f64 / (1u64 << 24) as f64
}

/// A random number from the standard normal distribution.
fn normal(random: &mut SplitMix64) -> f64 {
    let radius = (-2.0 * (1.0 - uniform(random)).ln()).sqrt();
    radius * (std::f64::consts::TAU * uniform(random)).cos()
}

fn random(x: &Arguments, out: &mut [OutTensor], next: impl Fn(&mut SplitMix64) -> f64) -> Result {
    out[0].resize(&sizes_of(x.ints(0)?)?)?;
    float_output(&out[0])?;
    let mut random = SplitMix64::new(x.seed);
    let numbers: Vec<f64> = (0..out[0].count()).map(|_| next(&mut random)).collect();
    out[0].put_all(&numbers);
    Ok(())
}

/// Dropped elements become 0. As in ExecuTorch, the others are not rescaled.
fn dropout(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let view = x.tensor(0)?;
    let probability = x.double(1)?;
    let trains = x.optional_bool(2)?.unwrap_or(true);
    same_type(&view, &out[0])?;
    let mask = out[1].dtype;
    ensure!(mask == ScalarType::Bool, "the mask must have type `Bool`, got `{mask:?}`");
    ensure!(
        (0.0..=1.0).contains(&probability),
        "the probability must be from 0 to 1, got {probability}"
    );
    float_output(&out[0])?;
    resize_to_broadcast(&[view], &mut out[0])?;
    resize_to_broadcast(&[view], &mut out[1])?;
    let mut random = SplitMix64::new(x.seed);
    let drops = trains && probability != 0.0;
    let kept: Vec<bool> =
        (0..view.count()).map(|_| !drops || uniform(&mut random) >= probability).collect();
    let mask: Vec<i64> = kept.iter().map(|kept| i64::from(*kept)).collect();
    out[1].put_contiguous(&mask);
    compute_float!(Compute::of(view.dtype)?, N => {
        let numbers = view.contiguous::<N>();
        let chosen = numbers.iter().zip(&kept).map(|(x, kept)| if *kept { *x } else { N::ZERO });
        out[0].put_contiguous(&chosen.collect::<Vec<N>>());
        Ok(())
    })
}
