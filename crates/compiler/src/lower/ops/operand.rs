//! Operands that torch lets be tensors or numbers, and the conversions between its element types.

use coremill_mil::ir::{Binding, Constant, Dim, ValueId};
use coremill_mil::ops::OpKind;
use coremill_pt2::ScalarType;
use coremill_tensor::DType;

use crate::error::{Refusal, refuse};
use crate::lower::builder::{Arg, Builder, int32};
use crate::lower::call::Call;
use crate::lower::dtype::core_dtype;
use crate::lower::value::{Int, Lowered, Number, Real, Tensor, Truth};

/// A tensor or a number.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operand {
    Tensor(Tensor),
    Number(Number),
}

impl Operand {
    /// What Core ML computes it in if nothing widens it.
    pub(crate) fn core(self) -> Result<DType, Refusal> {
        Ok(match self {
            Operand::Tensor(tensor) => core_dtype(tensor.dtype)?,
            Operand::Number(Number::Bool(_)) => DType::Bool,
            Operand::Number(Number::Int(_)) => DType::Int32,
            Operand::Number(Number::Float(_)) => DType::Fp32,
        })
    }

    /// The number, if it is one that is known now.
    pub(crate) fn known(self) -> Option<f64> {
        match self {
            Operand::Number(number) => number.known(),
            Operand::Tensor(_) => None,
        }
    }
}

/// The wider of two of the types that lowerings compute in.
pub(crate) fn wider(left: DType, right: DType) -> DType {
    let width = |dtype| match dtype {
        DType::Bool => 0,
        DType::Int32 => 1,
        _ => 2,
    };
    if width(left) >= width(right) { left } else { right }
}

impl Call<'_, '_> {
    /// A tensor or a number.
    pub(crate) fn operand(&mut self, name: &str) -> Result<Operand, Refusal> {
        let argument = self.argument(name)?;
        if let Ok(number) = self.number(name) {
            return Ok(Operand::Number(number));
        }
        match self.lowered(argument)? {
            Lowered::Tensor(tensor) => Ok(Operand::Tensor(tensor)),
            _ => refuse!("`{name}` is neither a tensor nor a number"),
        }
    }

    /// A tensor or a number, if one is given.
    pub(crate) fn optional_operand(&mut self, name: &str) -> Result<Option<Operand>, Refusal> {
        if self.has(name) { self.operand(name).map(Some) } else { Ok(None) }
    }

    /// The tensor of that name as floats.
    pub(crate) fn float_tensor(&mut self, name: &str) -> Result<ValueId, Refusal> {
        let tensor = self.tensor(name)?;
        self.cast(tensor.value, DType::Fp32)
    }
}

/// A known number as a constant of one element.
pub(crate) fn scalar(dtype: DType, number: Number) -> Result<Option<Constant>, Refusal> {
    Ok(Some(match (dtype, number) {
        (DType::Int32, Number::Int(Int::Known(value))) => Constant::int32(saturated(value)?),
        (DType::Bool, number) => match number.known() {
            Some(value) => Constant::bool(value != 0.0),
            None => return Ok(None),
        },
        (DType::Int32, number) => match number.known() {
            Some(value) => Constant::int32(saturated(value as i64)?),
            None => return Ok(None),
        },
        (_, number) => match number.known() {
            Some(value) => Constant::fp32(value as f32),
            None => return Ok(None),
        },
    }))
}

/// An integer of 32 bits. The largest and the smallest of 64 bits stand for "no bound" in torch's programs.
fn saturated(value: i64) -> Result<i32, Refusal> {
    match value {
        i64::MAX => Ok(i32::MAX),
        i64::MIN => Ok(i32::MIN),
        value => int32(value),
    }
}

/// The smallest and the largest element of an integer type of fewer than 32 bits.
pub(crate) fn narrow_range(dtype: ScalarType) -> Option<(i32, i32)> {
    match dtype {
        ScalarType::UInt8 => Some((0, 255)),
        ScalarType::Int8 => Some((-128, 127)),
        ScalarType::Int16 => Some((-32768, 32767)),
        ScalarType::UInt16 => Some((0, 65535)),
        _ => None,
    }
}

impl Builder {
    /// An operand in one of the types that lowerings compute in.
    pub(crate) fn operand_in(&mut self, operand: Operand, dtype: DType) -> Result<Arg, Refusal> {
        match operand {
            Operand::Tensor(tensor) => Ok(self.truthful_cast(tensor.value, dtype)?.into()),
            Operand::Number(number) => {
                if let Some(constant) = scalar(dtype, number)? {
                    return Ok(constant.into());
                }
                let value = match number {
                    Number::Int(Int::Computed(value))
                    | Number::Float(Real::Computed(value))
                    | Number::Bool(Truth::Computed(value)) => value,
                    _ => refuse!("a number is neither known nor computed"),
                };
                Ok(self.truthful_cast(value, dtype)?.into())
            }
        }
    }

    /// An operand as a value of its own.
    pub(crate) fn operand_value(
        &mut self,
        operand: Operand,
        dtype: DType,
    ) -> Result<ValueId, Refusal> {
        match operand {
            Operand::Tensor(tensor) => self.truthful_cast(tensor.value, dtype),
            Operand::Number(number) => match scalar(dtype, number)? {
                Some(constant) => Ok(self.constant(constant)),
                None => match self.operand_in(operand, dtype)? {
                    Arg::One(Binding::Value(value)) => Ok(value),
                    _ => refuse!("a number is neither known nor computed"),
                },
            },
        }
    }

    /// A cast in which everything but zero is true.
    pub(crate) fn truthful_cast(
        &mut self,
        value: ValueId,
        dtype: DType,
    ) -> Result<ValueId, Refusal> {
        if dtype == DType::Bool && self.dtype(value) != DType::Bool {
            let zero = self.scalar_like(value, 0.0)?;
            return self.binary(OpKind::NotEqual, value, zero);
        }
        self.cast(value, dtype)
    }

    /// A tensor of `from` as torch converts it to `to`: fractions cut off, narrow integers wrapped.
    pub(crate) fn converted(
        &mut self,
        value: ValueId,
        from: ScalarType,
        to: ScalarType,
    ) -> Result<ValueId, Refusal> {
        let cast = self.truthful_cast(value, core_dtype(to)?)?;
        let fits = match (narrow_range(from), narrow_range(to)) {
            (_, None) => true,
            (Some((low, high)), Some((lowest, highest))) => lowest <= low && high <= highest,
            (None, Some(_)) => from == ScalarType::Bool,
        };
        if fits { Ok(cast) } else { self.wrapped(cast, to) }
    }

    /// Integers of 32 bits as those of a narrower type, wrapped around as its arithmetic does.
    pub(crate) fn wrapped(
        &mut self,
        value: ValueId,
        dtype: ScalarType,
    ) -> Result<ValueId, Refusal> {
        let Some((low, high)) = narrow_range(dtype) else { return Ok(value) };
        let count = high - low + 1;
        if low == 0 {
            return self.binary(OpKind::Mod, value, count);
        }
        let shifted = self.binary(OpKind::Sub, value, low)?;
        let rest = self.binary(OpKind::Mod, shifted, count)?;
        self.binary(OpKind::Add, rest, low)
    }

    /// `condition ? a : b`.
    pub(crate) fn select(
        &mut self,
        condition: ValueId,
        a: impl Into<Arg>,
        b: impl Into<Arg>,
    ) -> Result<ValueId, Refusal> {
        let (a, mut b) = (a.into(), b.into());
        if !self.choices_reach(condition, &a, &b) {
            b = self.spread_like(condition, b)?;
        }
        self.emit(OpKind::Select, [("cond", condition.into()), ("a", a), ("b", b)])
    }

    /// Whether what is chosen from has all elements of the condition. coremltools takes the shape of a
    /// choice from there alone.
    fn choices_reach(&self, condition: ValueId, a: &Arg, b: &Arg) -> bool {
        let (a, b) = (self.bound_shape(a), self.bound_shape(b));
        let from_end = |shape: &[Dim], at: usize| {
            let index = shape.len().checked_sub(at + 1)?;
            shape.get(index).filter(|dim| dim.known() != Some(1)).cloned()
        };
        let condition = self.shape(condition);
        condition.len() <= a.len().max(b.len())
            && (0..condition.len()).all(|at| {
                from_end(condition, at).is_none()
                    || from_end(&a, at).is_some()
                    || from_end(&b, at).is_some()
            })
    }

    fn bound_shape(&self, argument: &Arg) -> Vec<Dim> {
        match argument {
            Arg::One(Binding::Value(value)) => self.shape(*value).to_vec(),
            Arg::One(Binding::Literal(constant)) => {
                constant.tensor_type().map(|ty| ty.shape.to_vec()).unwrap_or_default()
            }
            Arg::Absent | Arg::Many(_) => Vec::new(),
        }
    }

    /// An operand with at least the dimensions of another.
    fn spread_like(&mut self, like: ValueId, operand: Arg) -> Result<Arg, Refusal> {
        match operand {
            Arg::One(Binding::Literal(constant))
                if constant.tensor_type().is_some_and(|ty| ty.rank() == 0) =>
            {
                Ok(self.filled_like(like, constant)?.into())
            }
            Arg::One(Binding::Value(value)) => {
                let (zero, kind) = match self.dtype(value) {
                    DType::Bool => (Constant::bool(false), OpKind::LogicalOr),
                    DType::Int32 => (Constant::int32(0), OpKind::Add),
                    _ => (Constant::fp32(0.0), OpKind::Add),
                };
                let zeros = self.filled_like(like, zero)?;
                Ok(self.binary(kind, value, zeros)?.into())
            }
            other => Ok(other),
        }
    }

    /// `1 / x`.
    pub(crate) fn reciprocal(&mut self, x: ValueId) -> Result<ValueId, Refusal> {
        // `inverse` adds an epsilon, which takes the sign off a zero.
        self.binary(OpKind::RealDiv, 1.0_f32, x)
    }

    /// The natural logarithm of `x + offset`.
    pub(crate) fn log(&mut self, x: ValueId, offset: f32) -> Result<ValueId, Refusal> {
        self.emit(OpKind::Log, [("x", x.into()), ("epsilon", offset.into())])
    }

    /// `x` between two bounds.
    pub(crate) fn clip(&mut self, x: ValueId, low: f32, high: f32) -> Result<ValueId, Refusal> {
        if low >= high {
            // `clip` wants them in order; the upper one wins.
            let x = self.binary(OpKind::Maximum, x, low)?;
            return self.binary(OpKind::Minimum, x, high);
        }
        self.emit(OpKind::Clip, [("x", x.into()), ("alpha", low.into()), ("beta", high.into())])
    }

    /// `x` without its fraction.
    pub(crate) fn trunc(&mut self, x: ValueId) -> Result<ValueId, Refusal> {
        let magnitude = self.unary(OpKind::Abs, x)?;
        let whole = self.unary(OpKind::Floor, magnitude)?;
        let sign = self.unary(OpKind::Sign, x)?;
        self.binary(OpKind::Mul, whole, sign)
    }

    /// Whether the sign is minus, that of zero too.
    pub(crate) fn is_negative(&mut self, x: ValueId) -> Result<ValueId, Refusal> {
        if self.dtype(x) == DType::Int32 {
            return self.binary(OpKind::Less, x, 0);
        }
        let below = self.binary(OpKind::Less, x, 0.0_f32)?;
        let inverse = self.binary(OpKind::RealDiv, 1.0_f32, x)?;
        let minus = self.binary(OpKind::Less, inverse, 0.0_f32)?;
        self.binary(OpKind::LogicalOr, below, minus)
    }
}
