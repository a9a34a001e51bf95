//! What torch's values are while a graph is lowered.

use coremill_mil::ir::ValueId;
use coremill_pt2::{Argument, ScalarType};
use coremill_tensor::LazyTensor;

/// What a value of the graph became.
#[derive(Clone, Debug)]
pub(crate) enum LoweredValue {
    Tensor(Tensor),
    /// The real and the imaginary parts of what the program gives.
    Pair([ValueId; 2]),
    Number(Number),
    /// Nothing: an undefined result, a token.
    Nothing,
    /// A call before this one was refused; what depends on it is passed over in silence.
    Refused,
}

/// A tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tensor {
    /// The elements.
    pub(crate) value: ValueId,
    /// torch's element type. Core ML computes in its own: floats in `fp32`, integers in `int32`.
    pub(crate) dtype: ScalarType,
}

/// Something that is known now, or a scalar that is computed when the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scalar<T> {
    Known(T),
    Computed(ValueId),
}

pub(crate) type Int = Scalar<i64>;
pub(crate) type Real = Scalar<f64>;
pub(crate) type Truth = Scalar<bool>;

/// A number where torch takes one of any type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Number {
    Bool(Truth),
    Int(Int),
    Float(Real),
}

/// What a tensor of many axes stands for.
#[derive(Clone, Debug)]
pub(crate) struct HighRank {
    /// The same elements with fewer axes.
    pub(crate) source: ValueId,
    /// The many.
    pub(crate) dims: Vec<Int>,
}

/// A weight as codes and what they stand for. All recipes have the rank of the weight.
#[derive(Clone)]
pub(crate) struct CompressedTensor {
    /// An integer for each element.
    pub(crate) codes: LazyTensor,
    /// The smallest code that there may be, and the largest.
    pub(crate) range: (i64, i64),
    pub(crate) meaning: Meaning,
}

/// What codes stand for. The extents say into how many blocks the weight falls along each axis.
#[derive(Clone)]
pub(crate) enum Meaning {
    /// `element = scale · (code − offset)`.
    Scaled { scale: LazyTensor, offset: Option<LazyTensor> },
    /// `element = table[code]`: two axes more than the weight has, the last but one as long as there are codes.
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

    /// The number that an argument states.
    pub(crate) fn stated(argument: &Argument) -> Option<Number> {
        match argument {
            Argument::Int(value) => Some(Number::Int(Int::Known(*value))),
            Argument::Float(value) => Some(Number::Float(Real::Known(*value))),
            Argument::Bool(value) => Some(Number::Bool(Truth::Known(*value))),
            _ => None,
        }
    }

    /// The value, if it is known.
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
