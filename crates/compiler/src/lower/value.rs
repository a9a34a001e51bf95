//! What torch's values are while a graph is lowered.

use coremill_mil::ir::ValueId;
use coremill_pt2::ScalarType;

/// What a value of the graph became.
#[derive(Clone, Debug)]
pub(crate) enum Lowered {
    /// A tensor.
    Tensor(Tensor),
    /// The real and the imaginary parts of what the program gives.
    Pair([ValueId; 2]),
    /// An integer.
    Int(Int),
    /// A float.
    Float(Real),
    /// True or false.
    Bool(Truth),
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

/// An integer that is known now, or a scalar that is computed when the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Int {
    Known(i64),
    Computed(ValueId),
}

/// A float that is known now, or a scalar that is computed when the program runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Real {
    Known(f64),
    Computed(ValueId),
}

/// A `bool` that is known now, or a scalar that is computed when the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Truth {
    Known(bool),
    Computed(ValueId),
}

/// A number where torch takes one of any type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Number {
    Bool(Truth),
    Int(Int),
    Float(Real),
}

impl Int {
    pub(crate) fn known(self) -> Option<i64> {
        match self {
            Int::Known(value) => Some(value),
            Int::Computed(_) => None,
        }
    }
}

impl Number {
    /// The value, if it is known.
    pub(crate) fn known(self) -> Option<f64> {
        match self {
            Number::Bool(Truth::Known(value)) => Some(f64::from(u8::from(value))),
            Number::Int(Int::Known(value)) => Some(value as f64),
            Number::Float(Real::Known(value)) => Some(value),
            _ => None,
        }
    }
}

impl Lowered {
    pub(crate) fn tensor(value: ValueId, dtype: ScalarType) -> Lowered {
        Lowered::Tensor(Tensor { value, dtype })
    }
}
