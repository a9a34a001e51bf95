use std::fmt;
use std::sync::OnceLock;

use coremill_mil::ir::ValueId;
use coremill_tensor::DType;

use coremill_reference::array::Array;

/// A constant tensor. Its elements stay in the program or in its weight file until
/// [`ConstantTensor::array`] decodes them.
pub(crate) struct ConstantTensor {
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<usize>,
    /// The program's value. `None` for literals and for constants created by passes.
    pub(crate) value: Option<ValueId>,
    pub(super) array: OnceLock<Array>,
}

impl ConstantTensor {
    /// Creates a constant from its elements.
    pub(crate) fn new(array: Array) -> ConstantTensor {
        let (dtype, shape) = (array.dtype(), array.shape().to_vec());
        ConstantTensor { dtype, shape, value: None, array: OnceLock::from(array) }
    }

    /// Creates a constant of the program whose elements are computed later.
    pub(super) fn of_value(value: ValueId, dtype: DType, shape: Vec<usize>) -> ConstantTensor {
        ConstantTensor { dtype, shape, value: Some(value), array: OnceLock::new() }
    }

    /// The elements, `None` before they are computed.
    pub(crate) fn expanded(&self) -> Option<&Array> {
        self.array.get()
    }
}

impl fmt::Debug for ConstantTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.dtype, self.shape)
    }
}
