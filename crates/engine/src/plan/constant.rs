//! A constant tensor.

use std::fmt;
use std::sync::OnceLock;

use coremill_mil::ir::ValueId;
use coremill_tensor::DType;

use crate::array::Array;

/// A constant tensor. Weights stay where they are until [`ConstantTensor::array`] is called.
pub(crate) struct ConstantTensor {
    /// The element type.
    pub(crate) dtype: DType,
    /// The shape.
    pub(crate) shape: Vec<usize>,
    /// The value that it is; none for a literal and for what a pass made.
    pub(crate) value: Option<ValueId>,
    pub(super) array: OnceLock<Array>,
}

impl ConstantTensor {
    /// A constant whose elements are at hand.
    pub(crate) fn new(array: Array) -> ConstantTensor {
        let (dtype, shape) = (array.dtype(), array.shape().to_vec());
        ConstantTensor { dtype, shape, value: None, array: OnceLock::from(array) }
    }

    /// A constant of the program, whose elements are yet to be computed.
    pub(super) fn of_value(value: ValueId, dtype: DType, shape: Vec<usize>) -> ConstantTensor {
        ConstantTensor { dtype, shape, value: Some(value), array: OnceLock::new() }
    }

    /// The elements, if they have been computed.
    pub(crate) fn expanded(&self) -> Option<&Array> {
        self.array.get()
    }
}

impl fmt::Debug for ConstantTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.dtype, self.shape)
    }
}
