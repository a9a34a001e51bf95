//! Operands that may be tensors or numbers, and conversions between torch's element types.

use crate::lower::prelude::*;
use crate::lower::value::Tensor;

/// A tensor or a number.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operand {
    Tensor(Tensor),
    Number(Number),
}

impl Operand {
    /// Computation type before promotion.
    pub(crate) fn core(self) -> Result<DType> {
        Ok(match self {
            Operand::Tensor(tensor) => core_dtype(tensor.dtype)?,
            Operand::Number(Number::Bool(_)) => DType::Bool,
            Operand::Number(Number::Int(_)) => DType::Int32,
            Operand::Number(Number::Float(_)) => DType::Fp32,
        })
    }

    /// The constant number, if it is one.
    pub(crate) fn known(self) -> Option<f64> {
        match self {
            Operand::Number(number) => number.known(),
            Operand::Tensor(_) => None,
        }
    }
}

/// The wider of two computation types.
pub(crate) fn wider(left: DType, right: DType) -> DType {
    let width = |dtype| match dtype {
        DType::Bool => 0,
        DType::Int32 => 1,
        _ => 2,
    };
    if width(left) >= width(right) { left } else { right }
}

impl Call<'_, '_> {
    /// An argument that is a tensor or a number.
    pub(crate) fn operand(&mut self, name: &str) -> Result<Operand> {
        let argument = self.argument(name)?;
        match self.lowered(argument)? {
            LoweredValue::Number(number) => Ok(Operand::Number(number)),
            LoweredValue::Tensor(tensor) => Ok(Operand::Tensor(tensor)),
            _ => refuse!("`{name}` is neither a tensor nor a number"),
        }
    }

    /// An optional argument that is a tensor or a number.
    pub(crate) fn optional_operand(&mut self, name: &str) -> Result<Option<Operand>> {
        if self.has(name) { self.operand(name).map(Some) } else { Ok(None) }
    }

    /// Two operands converted to a computation type.
    pub(crate) fn operands_in(&mut self, names: [&str; 2], dtype: DType) -> Result<[Arg; 2]> {
        let [x, y] = [self.operand(names[0])?, self.operand(names[1])?];
        Ok([self.operand_in(x, dtype)?, self.operand_in(y, dtype)?])
    }

    /// Two operands converted to the result type; booleans stay booleans.
    pub(crate) fn operands(&mut self, names: [&str; 2]) -> Result<[Arg; 2]> {
        let dtype = core_dtype(self.result_dtype()?)?;
        self.operands_in(names, dtype)
    }

    /// Computation type of the result, with integers instead of booleans.
    pub(crate) fn numeric_result(&self) -> Result<DType> {
        Ok(match core_dtype(self.result_dtype()?)? {
            DType::Bool => DType::Int32,
            dtype => dtype,
        })
    }

    /// A tensor argument as floats.
    pub(crate) fn float_tensor(&mut self, name: &str) -> ValueResult {
        let tensor = self.tensor(name)?;
        self.cast(tensor.value, DType::Fp32)
    }
}

/// A constant number as a scalar constant.
pub(crate) fn scalar(dtype: DType, number: Number) -> Result<Option<Constant>> {
    let Some(value) = number.known() else { return Ok(None) };
    let whole = number.int().and_then(Int::known).unwrap_or(value as i64);
    Ok(Some(match dtype {
        DType::Int32 => Constant::int32(saturated(whole)?),
        DType::Bool => Constant::bool(value != 0.0),
        _ => Constant::fp32(value as f32),
    }))
}

/// Converts to 32 bits. torch's programs use the largest and smallest 64-bit integers for "no bound".
fn saturated(value: i64) -> Result<i32> {
    match value {
        i64::MAX => Ok(i32::MAX),
        i64::MIN => Ok(i32::MIN),
        value => int32(value),
    }
}

/// Range of an integer type of fewer than 32 bits.
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
    /// Converts an operand to a computation type.
    pub(crate) fn operand_in(&mut self, operand: Operand, dtype: DType) -> Result<Arg> {
        let value = match operand {
            Operand::Tensor(tensor) => tensor.value,
            Operand::Number(number) => match scalar(dtype, number)? {
                Some(constant) => return Ok(constant.into()),
                None => self.number_value(number)?,
            },
        };
        Ok(self.truthful_cast(value, dtype)?.into())
    }

    /// An operand as a value.
    pub(crate) fn operand_value(&mut self, operand: Operand, dtype: DType) -> ValueResult {
        let operand = self.operand_in(operand, dtype)?;
        self.bound_value(operand)
    }

    /// A binding as a value.
    pub(crate) fn bound_value(&mut self, argument: Arg) -> ValueResult {
        match argument {
            Arg::One(Binding::Value(value)) => Ok(value),
            Arg::One(Binding::Literal(constant)) => Ok(self.constant(constant)),
            Arg::Absent | Arg::Many(_) => refuse!("an operand is not a value"),
        }
    }

    /// Converts booleans to integers.
    pub(crate) fn numeric(&mut self, x: ValueId) -> ValueResult {
        match self.dtype(x) {
            DType::Bool => self.cast(x, DType::Int32),
            _ => Ok(x),
        }
    }

    /// Multiplies by a number; a factor of 1 returns the tensor itself.
    pub(crate) fn scaled(&mut self, x: ValueId, factor: f64) -> ValueResult {
        if factor == 1.0 {
            return Ok(x);
        }
        let factor = self.scalar_like(x, factor)?;
        self.binary(OpKind::Mul, x, factor)
    }

    /// Casts to a type; every nonzero number becomes true.
    pub(crate) fn truthful_cast(&mut self, value: ValueId, dtype: DType) -> ValueResult {
        if dtype == DType::Bool && self.dtype(value) != DType::Bool {
            let zero = self.scalar_like(value, 0.0)?;
            return self.binary(OpKind::NotEqual, value, zero);
        }
        self.cast(value, dtype)
    }

    /// Converts from one torch type to another, with torch's semantics: fractions are truncated, narrow integers
    /// wrap.
    pub(crate) fn converted(
        &mut self,
        value: ValueId,
        from: ScalarType,
        to: ScalarType,
    ) -> ValueResult {
        let cast = self.truthful_cast(value, core_dtype(to)?)?;
        let fits = match (narrow_range(from), narrow_range(to)) {
            (_, None) => true,
            (Some((low, high)), Some((lowest, highest))) => lowest <= low && high <= highest,
            (None, Some(_)) => from == ScalarType::Bool,
        };
        if fits { Ok(cast) } else { self.wrapped(cast, to) }
    }

    /// Wraps 32-bit integers to a narrower type.
    pub(crate) fn wrapped(&mut self, value: ValueId, dtype: ScalarType) -> ValueResult {
        let Some((low, high)) = narrow_range(dtype) else { return Ok(value) };
        let count = high - low + 1;
        if low == 0 {
            return self.binary(OpKind::Mod, value, count);
        }
        calc!(self, "(value - low) % count + low", value, low, count)
    }

    /// `condition ? a : b`.
    pub(crate) fn select(
        &mut self,
        condition: ValueId,
        a: impl Into<Arg>,
        b: impl Into<Arg>,
    ) -> ValueResult {
        let (a, mut b) = (a.into(), b.into());
        if !self.choices_reach(condition, &a, &b) {
            b = self.spread_like(condition, b)?;
        }
        emit!(self, OpKind::Select, cond = condition, a, b)
    }

    /// Whether the operands of a selection cover the shape of the condition. coremltools infers the result's shape
    /// from the operands alone.
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

    /// Broadcasts an operand to at least the dimensions of another.
    fn spread_like(&mut self, like: ValueId, operand: Arg) -> Result<Arg> {
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
    pub(crate) fn reciprocal(&mut self, x: ValueId) -> ValueResult {
        // `inverse` adds an epsilon, which loses the sign of zero.
        self.binary(OpKind::RealDiv, 1.0_f32, x)
    }

    /// `1 / √(x + epsilon)`.
    pub(crate) fn reciprocal_root(&mut self, x: ValueId, epsilon: f64) -> ValueResult {
        emit!(self, OpKind::Rsqrt, x, epsilon = epsilon as f32)
    }

    /// The natural logarithm of `x + offset`.
    pub(crate) fn log(&mut self, x: ValueId, offset: f32) -> ValueResult {
        emit!(self, OpKind::Log, x, epsilon = offset)
    }

    /// Clamps `x`.
    pub(crate) fn clip(&mut self, x: ValueId, low: f32, high: f32) -> ValueResult {
        if low >= high {
            // `clip` requires ordered bounds; in torch the upper one takes precedence.
            return calc!(self, "min(max(x, low), high)", x, low, high);
        }
        emit!(self, OpKind::Clip, x, alpha = low, beta = high)
    }

    /// Truncates fractions.
    pub(crate) fn trunc(&mut self, x: ValueId) -> ValueResult {
        calc!(self, "floor(abs(x)) * sign(x)", x)
    }

    /// Whether the sign is negative, including negative zero.
    pub(crate) fn is_negative(&mut self, x: ValueId) -> ValueResult {
        if self.dtype(x) == DType::Int32 {
            return self.binary(OpKind::Less, x, 0);
        }
        calc!(self, "x < 0.0 | 1.0 / x < 0.0", x)
    }
}
