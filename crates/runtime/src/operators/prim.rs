//! Kernels that compute numbers such as sizes, and kernels that change a tensor's view or size.

use coremill_pte::program::ScalarType;

use super::arguments::same_type;
use super::{Arguments, Kernel, kernel, number_kernel};
use crate::error::{Result, ensure, fail};
use crate::number::{Compute, Number, Scalar, is_floating, long};
use crate::view::{OutTensor, wrap_dimension};

pub(super) const TABLE: &[Kernel] = &[
    number_kernel("aten::_local_scalar_dense", "T", local_scalar),
    number_kernel("aten::sym_numel", "T", |x| Ok(Scalar::Int(x.tensor(0)?.count() as i64))),
    number_kernel("aten::sym_size.int", "TI", |x| {
        let view = x.tensor(0)?;
        ensure!(view.rank() > 0, "a scalar has no dimensions");
        Ok(Scalar::Int(view.sizes[wrap_dimension(x.int(1)?, view.rank())?] as i64))
    }),
    number_kernel("executorch_prim::add.Scalar", "SS", |x| {
        arithmetic(x, i64::checked_add, |a, b| a + b)
    }),
    number_kernel("executorch_prim::ceil.Scalar", "S", |x| rounded(x, f64::ceil)),
    number_kernel("executorch_prim::eq.Scalar", "SS", |x| compare(x, |a, b| a == b)),
    kernel("executorch_prim::et_copy_index.tensor", "MTI>", copy_index),
    // The executor aliases the output to the input.
    kernel("executorch_prim::et_view.default", "TN>V", |_, _| Ok(())),
    number_kernel("executorch_prim::floordiv.Scalar", "SS", |x| {
        arithmetic(x, |a, b| divide(a, b, true), floor_divide)
    }),
    number_kernel("executorch_prim::floordiv.int", "II", |x| {
        arithmetic(x, |a, b| divide(a, b, true), floor_divide)
    }),
    number_kernel("executorch_prim::ge.Scalar", "SS", |x| compare(x, |a, b| a >= b)),
    number_kernel("executorch_prim::gt.Scalar", "SS", |x| compare(x, |a, b| a > b)),
    number_kernel("executorch_prim::le.Scalar", "SS", |x| compare(x, |a, b| a <= b)),
    number_kernel("executorch_prim::lt.Scalar", "SS", |x| compare(x, |a, b| a < b)),
    number_kernel("executorch_prim::mod.Scalar", "SS", modulo),
    number_kernel("executorch_prim::mod.int", "II", modulo),
    number_kernel("executorch_prim::mul.Scalar", "SS", |x| {
        arithmetic(x, i64::checked_mul, |a, b| a * b)
    }),
    number_kernel("executorch_prim::neg.Scalar", "S", |x| match x.scalar(0)? {
        Scalar::Int(value) => Ok(Scalar::Int(value.wrapping_neg())),
        Scalar::Double(value) => Ok(Scalar::Double(-value)),
        Scalar::Bool(_) => fail!("the operand is a boolean; expected a number"),
    }),
    number_kernel("executorch_prim::round.Scalar", "S", |x| rounded(x, f64::round_ties_even)),
    number_kernel("executorch_prim::sub.Scalar", "SS", |x| {
        arithmetic(x, i64::checked_sub, |a, b| a - b)
    }),
    number_kernel("executorch_prim::sym_float.Scalar", "S", |x| {
        Ok(Scalar::Double(x.scalar(0)?.as_f64()))
    }),
    number_kernel("executorch_prim::sym_int.Scalar", "S", |x| {
        Ok(Scalar::Int(x.scalar(0)?.as_i64()))
    }),
    number_kernel("executorch_prim::sym_ite.Scalar", "BSS", |x| {
        if x.bool(0)? { x.scalar(1) } else { x.scalar(2) }
    }),
    number_kernel("executorch_prim::sym_max.Scalar", "SS", |x| {
        arithmetic(x, |a, b| Some(a.max(b)), f64::greatest)
    }),
    number_kernel("executorch_prim::sym_min.Scalar", "SS", |x| {
        arithmetic(x, |a, b| Some(a.min(b)), f64::least)
    }),
    number_kernel("executorch_prim::sym_not.Scalar", "B", |x| Ok(Scalar::Bool(!x.bool(0)?))),
    number_kernel("executorch_prim::truediv.Scalar", "SS", |x| {
        let (a, b) = numbers(x)?;
        Ok(Scalar::Double(a.as_f64() / b.as_f64()))
    }),
    number_kernel("executorch_prim::trunc.Scalar", "S", |x| rounded(x, f64::trunc)),
];

fn numbers(x: &Arguments) -> Result<(Scalar, Scalar)> {
    let pair = (x.scalar(0)?, x.scalar(1)?);
    ensure!(
        !pair.0.is_bool() && !pair.1.is_bool(),
        "the operands must be integers or floats, got {:?} and {:?}",
        pair.0,
        pair.1
    );
    Ok(pair)
}

fn arithmetic(
    x: &Arguments,
    integers: impl Fn(i64, i64) -> Option<i64>,
    floats: impl Fn(f64, f64) -> f64,
) -> Result<Scalar> {
    let (a, b) = numbers(x)?;
    match (a, b) {
        (Scalar::Int(a), Scalar::Int(b)) => match integers(a, b) {
            Some(result) => Ok(Scalar::Int(result)),
            None => fail!("the result for {a} and {b} is undefined or exceeds 64 bits"),
        },
        _ => Ok(Scalar::Double(floats(a.as_f64(), b.as_f64()))),
    }
}

fn divide(a: i64, b: i64, down: bool) -> Option<i64> {
    let (quotient, rest) = (a.checked_div(b)?, a.checked_rem(b)?);
    Some(if down && rest != 0 && (a < 0) != (b < 0) { quotient - 1 } else { quotient })
}

fn floor_divide(a: f64, b: f64) -> f64 {
    if b == 0.0 {
        return if a.is_sign_negative() { f64::NEG_INFINITY } else { f64::INFINITY };
    }
    let rest = a % b;
    let quotient = (a - rest) / b;
    if rest != 0.0 && b.is_sign_negative() != rest.is_sign_negative() {
        quotient - 1.0
    } else {
        quotient
    }
}

fn modulo(x: &Arguments) -> Result<Scalar> {
    let (Scalar::Int(a), Scalar::Int(b)) = numbers(x)? else {
        fail!("the operands of a modulus must be integers");
    };
    // Python's modulus, which the exporter used, has the sign of the divisor.
    let floor = divide(a, b, true).and_then(|quotient| a.checked_sub(quotient.checked_mul(b)?));
    match floor {
        Some(rest) => Ok(Scalar::Int(rest)),
        None => fail!("{a} modulo {b} is undefined or exceeds 64 bits"),
    }
}

fn compare(x: &Arguments, compare: impl Fn(f64, f64) -> bool) -> Result<Scalar> {
    let (a, b) = (x.scalar(0)?, x.scalar(1)?);
    if let (Scalar::Int(a), Scalar::Int(b)) = (a, b) {
        // Large integers may differ although their floats are equal.
        let order = a.cmp(&b) as i8;
        return Ok(Scalar::Bool(compare(f64::from(order), 0.0)));
    }
    Ok(Scalar::Bool(compare(a.as_f64(), b.as_f64())))
}

fn rounded(x: &Arguments, round: impl Fn(f64) -> f64) -> Result<Scalar> {
    match x.scalar(0)? {
        Scalar::Double(value) => Ok(Scalar::Int(long(round(value)))),
        other => fail!("the operand must be a float, got {other:?}"),
    }
}

fn local_scalar(x: &Arguments) -> Result<Scalar> {
    let view = x.tensor(0)?;
    ensure!(view.count() >= 1, "an empty tensor cannot be converted to a number");
    Compute::of(view.dtype)?;
    Ok(match view.dtype {
        ScalarType::Bool => Scalar::Bool(view.at::<i64>(0) != 0),
        dtype if is_floating(dtype) => Scalar::Double(view.at::<f64>(0)),
        _ => Scalar::Int(view.at::<i64>(0)),
    })
}

/// Appends a tensor to the output, which grows.
fn copy_index(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let view = x.tensor(1)?;
    let index = usize::try_from(x.int(2)?).ok().and_then(|index| index.checked_add(1));
    let Some(length) = index else { fail!("index {} is out of range", x.int(2)?) };
    let out = &mut out[0];
    same_type(&view, out)?;
    ensure!(
        out.sizes.get(1..) == Some(view.sizes) && out.is_contiguous(),
        "a tensor of sizes {:?} does not match a slice of the output, which has sizes {:?}",
        view.sizes,
        out.sizes
    );
    let mut sizes = out.sizes.clone();
    sizes[0] = length;
    out.resize(&sizes)?;
    let bytes = view.contiguous_bytes();
    out.bytes()[(length - 1) * bytes.len()..].copy_from_slice(&bytes);
    Ok(())
}
