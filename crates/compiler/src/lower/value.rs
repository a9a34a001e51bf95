//! Lowered values of a graph.

use coremill_mil::ir::ValueId;
use coremill_pt2::{Argument, ScalarType};
use coremill_tensor::LazyTensor;

/// Lowered form of a graph value.
#[derive(Clone, Debug)]
pub(crate) enum LoweredValue {
    Tensor(Tensor),
    /// Real and imaginary part of a complex output.
    Pair([ValueId; 2]),
    Number(Number),
    /// No value: an undefined result or a token.
    Nothing,
    /// Result of a refused call. Dependent calls are skipped silently.
    Refused,
}

/// A lowered tensor with its type in torch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tensor {
    /// The Core ML value.
    pub(crate) value: ValueId,
    /// torch's element type. Core ML computes floats in `fp32` and integers in `int32`.
    pub(crate) dtype: ScalarType,
}

/// A constant, or a scalar computed at run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scalar<T> {
    Known(T),
    Computed(ValueId),
}

pub(crate) type Int = Scalar<i64>;
pub(crate) type Real = Scalar<f64>;
pub(crate) type Truth = Scalar<bool>;

/// A number of any type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Number {
    Bool(Truth),
    Int(Int),
    Float(Real),
}

/// Low-rank representation of a tensor of high rank.
#[derive(Clone, Debug)]
pub(crate) struct HighRank {
    /// The same elements with fewer axes.
    pub(crate) source: ValueId,
    /// The original dimensions.
    pub(crate) dims: Vec<Int>,
}

/// A weight in compressed form: codes and their meaning. All recipes have the rank of the weight.
#[derive(Clone)]
pub(crate) struct CompressedTensor {
    /// One integer per element.
    pub(crate) codes: LazyTensor,
    /// Smallest and largest possible code.
    pub(crate) range: (i64, i64),
    pub(crate) meaning: Meaning,
}

/// Decoding of codes. The sizes of the parameters are the numbers of blocks along each axis.
#[derive(Clone)]
pub(crate) enum Meaning {
    /// `element = scale · (code − offset)`.
    Scaled { scale: LazyTensor, offset: Option<LazyTensor> },
    /// `element = table[code]`. A table has two more axes than the weight; the last but one indexes the codes.
    Table { tables: LazyTensor },
}

impl<T> Scalar<T> {
    pub(crate) fn known(self) -> Option<T> {
        match self {
            Scalar::Known(value) => Some(value),
            Scalar::Computed(_) => None,
        }
    }
}

impl Number {
    pub(crate) const ZERO: Number = Number::Int(Int::Known(0));
    pub(crate) const ONE: Number = Number::Int(Int::Known(1));

    /// The number of a literal argument.
    pub(crate) fn stated(argument: &Argument) -> Option<Number> {
        match argument {
            Argument::Int(value) => Some(Number::Int(Int::Known(*value))),
            Argument::Float(value) => Some(Number::Float(Real::Known(*value))),
            Argument::Bool(value) => Some(Number::Bool(Truth::Known(*value))),
            _ => None,
        }
    }

    /// The constant value.
    pub(crate) fn known(self) -> Option<f64> {
        match self {
            Number::Bool(truth) => truth.known().map(|value| f64::from(u8::from(value))),
            Number::Int(int) => int.known().map(|value| value as f64),
            Number::Float(real) => real.known(),
        }
    }

    /// The number as an integer, if it is one.
    pub(crate) fn int(self) -> Option<Int> {
        match self {
            Number::Int(int) => Some(int),
            Number::Bool(truth) => truth.known().map(|value| Int::Known(i64::from(value))),
            Number::Float(_) => None,
        }
    }
}

impl LoweredValue {
    pub(crate) fn tensor(value: ValueId, dtype: ScalarType) -> LoweredValue {
        LoweredValue::Tensor(Tensor { value, dtype })
    }

    pub(crate) fn number(&self) -> Option<Number> {
        match self {
            LoweredValue::Number(number) => Some(*number),
            _ => None,
        }
    }
}

impl From<Int> for LoweredValue {
    fn from(int: Int) -> LoweredValue {
        LoweredValue::Number(Number::Int(int))
    }
}

impl From<Real> for LoweredValue {
    fn from(real: Real) -> LoweredValue {
        LoweredValue::Number(Number::Float(real))
    }
}

impl From<Truth> for LoweredValue {
    fn from(truth: Truth) -> LoweredValue {
        LoweredValue::Number(Number::Bool(truth))
    }
}
