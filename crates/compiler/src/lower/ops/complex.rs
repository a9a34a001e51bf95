//! Complex numbers, as pairs of tensors.

use coremill_mil::ir::ValueId;
use coremill_mil::ops::OpKind;
use coremill_tensor::DType;

use super::operand::Operand;
use crate::error::{Refusal, refuse};
use crate::lower::builder::{Arg, Builder};
use crate::lower::call::{Call, Results};
use crate::lower::table::{Row, all};
use crate::lower::value::{Lowered, Number, Tensor};

pub(crate) const ROWS: &[Row] = &[
    all("aten.complex", |call| {
        let (real, imaginary) = (call.float_tensor("real")?, call.float_tensor("imag")?);
        let sum = call.broadcast_pair(real, imaginary)?;
        give(call, sum.0, sum.1)
    }),
    all("aten.polar", polar),
    all("aten.real", real),
    all("aten.imag", imaginary),
    all("aten.view_as_complex", pair_to_complex),
    all("aten.view_as_complex_copy", pair_to_complex),
    all("aten.view_as_real", complex_to_pair),
    all("aten.view_as_real_copy", complex_to_pair),
    all("aten.angle", angle),
    all("aten.conj", conjugate),
    all("aten._conj", conjugate),
    all("aten.conj_physical", conjugate),
    all("aten._conj_physical", conjugate),
    all("aten.resolve_conj", same),
    all("aten.resolve_neg", same),
];

/// A complex result of the type that torch says.
pub(crate) fn give(call: &Call<'_, '_>, real: ValueId, imaginary: ValueId) -> Results {
    let dtype = call.result_dtype()?;
    Ok(vec![Lowered::Tensor(Tensor { value: real, imaginary: Some(imaginary), dtype })])
}

impl Builder {
    /// The real and the imaginary part of an operand.
    pub(crate) fn parts(&mut self, operand: Operand) -> Result<(Arg, Arg), Refusal> {
        match operand {
            Operand::Tensor(Tensor { value, imaginary: Some(imaginary), .. }) => {
                Ok((value.into(), imaginary.into()))
            }
            Operand::Number(Number::Complex(real, imaginary)) => {
                Ok(((real as f32).into(), (imaginary as f32).into()))
            }
            real => Ok((self.operand_in(real, DType::Fp32)?, 0.0_f32.into())),
        }
    }

    /// Both tensors with the dimensions that they meet in.
    fn broadcast_pair(&mut self, x: ValueId, y: ValueId) -> Result<(ValueId, ValueId), Refusal> {
        if self.shape(x) == self.shape(y) {
            return Ok((x, y));
        }
        let no_x = self.binary(OpKind::Sub, x, x)?;
        let no_y = self.binary(OpKind::Sub, y, y)?;
        Ok((self.binary(OpKind::Add, x, no_y)?, self.binary(OpKind::Add, y, no_x)?))
    }

    /// The product of two complex numbers.
    pub(crate) fn complex_product(
        &mut self,
        x: (Arg, Arg),
        y: (Arg, Arg),
    ) -> Result<(ValueId, ValueId), Refusal> {
        let real = self.binary(OpKind::Mul, x.0.clone(), y.0.clone())?;
        let less = self.binary(OpKind::Mul, x.1.clone(), y.1.clone())?;
        let crossed = self.binary(OpKind::Mul, x.0, y.1)?;
        let other = self.binary(OpKind::Mul, x.1, y.0)?;
        let real = self.binary(OpKind::Sub, real, less)?;
        let imaginary = self.binary(OpKind::Add, crossed, other)?;
        Ok((real, imaginary))
    }
}

/// Whether an operand has an imaginary part that is not zero everywhere.
fn has_imaginary(operand: Operand) -> bool {
    operand.is_complex()
}

pub(crate) fn sum(
    call: &mut Call<'_, '_>,
    x: Operand,
    y: Operand,
    alpha: Number,
    kind: OpKind,
) -> Results {
    let mut y = call.parts(y)?;
    match alpha {
        Number::Complex(..) => {
            let alpha = call.parts(Operand::Number(alpha))?;
            let (real, imaginary) = call.complex_product(y, alpha)?;
            y = (real.into(), imaginary.into());
        }
        alpha if alpha.known() == Some(1.0) => {}
        alpha => {
            let alpha = call.operand_in(Operand::Number(alpha), DType::Fp32)?;
            y = (
                call.binary(OpKind::Mul, y.0, alpha.clone())?.into(),
                call.binary(OpKind::Mul, y.1, alpha)?.into(),
            );
        }
    }
    let x = call.parts(x)?;
    let real = call.binary(kind, x.0, y.0)?;
    let imaginary = call.binary(kind, x.1, y.1)?;
    let (real, imaginary) = call.broadcast_pair(real, imaginary)?;
    give(call, real, imaginary)
}

pub(crate) fn product(call: &mut Call<'_, '_>, x: Operand, y: Operand) -> Results {
    let (real, imaginary) = if has_imaginary(x) && has_imaginary(y) {
        let (x, y) = (call.parts(x)?, call.parts(y)?);
        call.complex_product(x, y)?
    } else {
        let (complex, real) = if has_imaginary(x) { (x, y) } else { (y, x) };
        let (parts, factor) = (call.parts(complex)?, call.operand_in(real, DType::Fp32)?);
        (
            call.binary(OpKind::Mul, parts.0, factor.clone())?,
            call.binary(OpKind::Mul, parts.1, factor)?,
        )
    };
    give(call, real, imaginary)
}

pub(crate) fn quotient(call: &mut Call<'_, '_>, x: Operand, y: Operand) -> Results {
    let x = call.parts(x)?;
    if !has_imaginary(y) {
        let divisor = call.operand_in(y, DType::Fp32)?;
        let real = call.binary(OpKind::RealDiv, x.0, divisor.clone())?;
        let imaginary = call.binary(OpKind::RealDiv, x.1, divisor)?;
        let (real, imaginary) = call.broadcast_pair(real, imaginary)?;
        return give(call, real, imaginary);
    }
    let y = call.parts(y)?;
    let (real, imaginary) = inverse(call, y)?;
    let (real, imaginary) = call.complex_product(x, (real.into(), imaginary.into()))?;
    give(call, real, imaginary)
}

/// `1 / y`: the conjugate over the square of the magnitude.
fn inverse(builder: &mut Builder, y: (Arg, Arg)) -> Result<(ValueId, ValueId), Refusal> {
    let real = builder.emit(OpKind::Square, [("x", y.0.clone())])?;
    let imaginary = builder.emit(OpKind::Square, [("x", y.1.clone())])?;
    let square = builder.binary(OpKind::Add, real, imaginary)?;
    let negated = builder.binary(OpKind::Mul, square, -1.0_f32)?;
    let real = builder.binary(OpKind::RealDiv, y.0, square)?;
    let imaginary = builder.binary(OpKind::RealDiv, y.1, negated)?;
    Ok((real, imaginary))
}

pub(crate) fn reciprocal(call: &mut Call<'_, '_>, x: Tensor) -> Results {
    let parts = call.parts(Operand::Tensor(x))?;
    let (real, imaginary) = inverse(call, parts)?;
    give(call, real, imaginary)
}

/// Powers with small whole exponents as products, others by logarithm and exponential.
pub(crate) fn power(call: &mut Call<'_, '_>, x: Operand, y: Operand) -> Results {
    if let Some(exponent) = y.known()
        && exponent.fract() == 0.0
        && (1.0..=8.0).contains(&exponent)
        && x.is_complex()
    {
        let base = call.parts(x)?;
        let mut total = base.clone();
        for _ in 1..exponent as u32 {
            let (real, imaginary) = call.complex_product(total, base.clone())?;
            total = (real.into(), imaginary.into());
        }
        let zero = 0.0_f32;
        let real = call.binary(OpKind::Add, total.0, zero)?;
        let imaginary = call.binary(OpKind::Add, total.1, zero)?;
        return give(call, real, imaginary);
    }
    let (Operand::Tensor(x), false) = (x, !x.is_complex()) else {
        refuse!("a power of a real number with a complex exponent is not lowered");
    };
    let (magnitude, turn) = logarithm(call, x)?;
    let y = call.parts(y)?;
    let (real, imaginary) = call.complex_product((magnitude.into(), turn.into()), y)?;
    let (real, imaginary) = exponential(call, real, imaginary)?;
    give(call, real, imaginary)
}

fn logarithm(builder: &mut Builder, x: Tensor) -> Result<(ValueId, ValueId), Refusal> {
    let Some(imaginary) = x.imaginary else { refuse!("a complex tensor lacks a part") };
    let magnitude = builder.hypotenuse(x.value, imaginary)?;
    Ok((builder.log(magnitude, 0.0)?, builder.arctangent(imaginary, x.value)?))
}

fn exponential(
    builder: &mut Builder,
    real: ValueId,
    imaginary: ValueId,
) -> Result<(ValueId, ValueId), Refusal> {
    let magnitude = builder.unary(OpKind::Exp, real)?;
    from_polar(builder, magnitude, imaginary)
}

fn from_polar(
    builder: &mut Builder,
    magnitude: ValueId,
    angle: ValueId,
) -> Result<(ValueId, ValueId), Refusal> {
    let cosine = builder.unary(OpKind::Cos, angle)?;
    let sine = builder.unary(OpKind::Sin, angle)?;
    Ok((
        builder.binary(OpKind::Mul, magnitude, cosine)?,
        builder.binary(OpKind::Mul, magnitude, sine)?,
    ))
}

pub(crate) fn exp(call: &mut Call<'_, '_>) -> Results {
    let Tensor { value, imaginary: Some(imaginary), .. } = call.any_tensor("self")? else {
        refuse!("`self` is real");
    };
    let (real, imaginary) = exponential(call, value, imaginary)?;
    give(call, real, imaginary)
}

/// The sine or the cosine.
pub(crate) fn wave(call: &mut Call<'_, '_>, kind: OpKind) -> Results {
    let Tensor { value, imaginary: Some(imaginary), .. } = call.any_tensor("self")? else {
        refuse!("`self` is real");
    };
    let (sine, cosine) = (call.unary(OpKind::Sin, value)?, call.unary(OpKind::Cos, value)?);
    let grown = call.unary(OpKind::Cosh, imaginary)?;
    let tilted = call.unary(OpKind::Sinh, imaginary)?;
    if kind == OpKind::Sin {
        let real = call.binary(OpKind::Mul, sine, grown)?;
        let imaginary = call.binary(OpKind::Mul, cosine, tilted)?;
        return give(call, real, imaginary);
    }
    let real = call.binary(OpKind::Mul, cosine, grown)?;
    let imaginary = call.binary(OpKind::Mul, sine, tilted)?;
    let imaginary = call.times(imaginary, -1.0)?;
    give(call, real, imaginary)
}

/// tanh(a + bi) = (sinh 2a + i sin 2b) / (cosh 2a + cos 2b).
pub(crate) fn tanh(call: &mut Call<'_, '_>) -> Results {
    let x = call.any_tensor("self")?;
    let Some(imaginary) = x.imaginary else { refuse!("`self` has no imaginary part") };
    let twice_real = call.binary(OpKind::Mul, x.value, 2.0f32)?;
    let twice_imaginary = call.binary(OpKind::Mul, imaginary, 2.0f32)?;
    let sinh = call.unary(OpKind::Sinh, twice_real)?;
    let cosh = call.unary(OpKind::Cosh, twice_real)?;
    let sin = call.unary(OpKind::Sin, twice_imaginary)?;
    let cos = call.unary(OpKind::Cos, twice_imaginary)?;
    let below = call.binary(OpKind::Add, cosh, cos)?;
    let real = call.binary(OpKind::RealDiv, sinh, below)?;
    let imaginary = call.binary(OpKind::RealDiv, sin, below)?;
    give(call, real, imaginary)
}

/// The root on the right half of the plane.
pub(crate) fn sqrt(call: &mut Call<'_, '_>) -> Results {
    let Tensor { value, imaginary: Some(imaginary), .. } = call.any_tensor("self")? else {
        refuse!("`self` is real");
    };
    let magnitude = call.hypotenuse(value, imaginary)?;
    let mut halves = Vec::new();
    for kind in [OpKind::Add, OpKind::Sub] {
        let double = call.binary(kind, magnitude, value)?;
        let half = call.times(double, 0.5)?;
        // Rounding could leave less than nothing.
        let half = call.unary(OpKind::Relu, half)?;
        halves.push(call.unary(OpKind::Sqrt, half)?);
    }
    let below = call.is_negative(imaginary)?;
    let minus = call.times(halves[1], -1.0)?;
    let imaginary = call.select(below, minus, halves[1])?;
    give(call, halves[0], imaginary)
}

pub(crate) fn log(call: &mut Call<'_, '_>) -> Results {
    let x = call.any_tensor("self")?;
    let (real, imaginary) = logarithm(call, x)?;
    give(call, real, imaginary)
}

/// The same function of both parts.
pub(crate) fn each_part(
    call: &mut Call<'_, '_>,
    x: Tensor,
    f: impl Fn(&mut Builder, ValueId) -> Result<ValueId, Refusal>,
) -> Results {
    let value = f(call, x.value)?;
    let imaginary = match x.imaginary {
        Some(imaginary) => Some(f(call, imaginary)?),
        None => None,
    };
    let dtype = call.result_dtype()?;
    Ok(vec![Lowered::Tensor(Tensor { value, imaginary, dtype })])
}

/// `x / |x|`, zero where `x` is.
pub(crate) fn direction(call: &mut Call<'_, '_>, x: Tensor) -> Results {
    let Some(imaginary) = x.imaginary else { refuse!("a complex tensor lacks a part") };
    let magnitude = call.hypotenuse(x.value, imaginary)?;
    let zero = call.binary(OpKind::Equal, magnitude, 0.0_f32)?;
    let divisor = call.select(zero, 1.0_f32, magnitude)?;
    each_part(call, x, |builder, part| builder.binary(OpKind::RealDiv, part, divisor))
}

fn polar(call: &mut Call<'_, '_>) -> Results {
    let (magnitude, angle) = (call.float_tensor("abs")?, call.float_tensor("angle")?);
    let (real, imaginary) = from_polar(call, magnitude, angle)?;
    give(call, real, imaginary)
}

fn real(call: &mut Call<'_, '_>) -> Results {
    let x = call.any_tensor("self")?;
    call.give(x.value)
}

fn imaginary(call: &mut Call<'_, '_>) -> Results {
    match call.any_tensor("self")?.imaginary {
        Some(imaginary) => call.give(imaginary),
        None => refuse!("a real tensor has no imaginary part"),
    }
}

fn pair_to_complex(call: &mut Call<'_, '_>) -> Results {
    let x = call.float_tensor("self")?;
    let rank = call.rank(x);
    if rank == 0 {
        refuse!("`self` has no axis whose two elements are the parts of a number");
    }
    let mut parts = Vec::new();
    for part in 0..2 {
        let mut begin = vec![0; rank];
        let mut end = vec![0; rank];
        (begin[rank - 1], end[rank - 1]) = (part, part + 1);
        let whole: Vec<_> = (1..=rank).map(|axis| axis != rank).collect();
        let last: Vec<_> = (1..=rank).map(|axis| axis == rank).collect();
        parts.push(call.emit(
            OpKind::SliceByIndex,
            [
                ("x", x.into()),
                ("begin", begin.as_slice().into()),
                ("end", end.as_slice().into()),
                ("begin_mask", Arg::bools(&whole)),
                ("end_mask", Arg::bools(&whole)),
                ("squeeze_mask", Arg::bools(&last)),
            ],
        )?);
    }
    give(call, parts[0], parts[1])
}

fn complex_to_pair(call: &mut Call<'_, '_>) -> Results {
    let Tensor { value, imaginary: Some(imaginary), .. } = call.any_tensor("self")? else {
        refuse!("`self` is real");
    };
    let values = [value, imaginary];
    let pair =
        call.emit(OpKind::Stack, [("values", values.as_slice().into()), ("axis", (-1).into())])?;
    call.give(pair)
}

fn angle(call: &mut Call<'_, '_>) -> Results {
    let x = call.any_tensor("self")?;
    if let Some(imaginary) = x.imaginary {
        let angle = call.arctangent(imaginary, x.value)?;
        return call.give(angle);
    }
    let value = call.cast(x.value, DType::Fp32)?;
    let left = call.binary(OpKind::Less, value, 0.0_f32)?;
    let angle = call.select(left, std::f32::consts::PI, 0.0_f32)?;
    let number = call.binary(OpKind::Equal, value, value)?;
    let angle = call.select(number, angle, value)?;
    call.give(angle)
}

fn conjugate(call: &mut Call<'_, '_>) -> Results {
    let x = call.any_tensor("self")?;
    let imaginary = match x.imaginary {
        Some(imaginary) => Some(call.times(imaginary, -1.0)?),
        None => None,
    };
    Ok(vec![Lowered::Tensor(Tensor { imaginary, ..x })])
}

fn same(call: &mut Call<'_, '_>) -> Results {
    let x = call.any_tensor("self")?;
    Ok(vec![Lowered::Tensor(x)])
}
