//! Values of a running method.

use coremill_pte::program::ScalarType;
use coremill_tensor::Buffer;

use crate::number::{Scalar, size_of};
use crate::view::View;

/// A value at run time.
#[derive(Clone, Debug)]
pub(crate) enum EValue {
    Null,
    Scalar(Scalar),
    Text(String),
    /// Integers, each of which is a value by index.
    Ints(Vec<usize>),
    Doubles(Vec<f64>),
    Bools(Vec<bool>),
    Tensor(TensorValue),
    Tensors(Vec<Option<usize>>),
}

#[derive(Clone, Debug)]
pub(crate) struct TensorValue {
    pub(crate) dtype: ScalarType,
    pub(crate) sizes: Vec<usize>,
    pub(crate) order: Vec<u8>,
    pub(crate) dynamic: bool,
    /// Maximum size in bytes.
    pub(crate) capacity: usize,
    pub(crate) place: Place,
}

/// Location of a tensor's elements.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// Not set yet: supplied by the caller.
    Unset,
    /// In an arena of the method.
    Space { space: usize, offset: usize },
    /// In the program or in the caller's memory; read-only.
    Shared {
        buffer: Buffer,
        /// Location in the program; `None` for the caller's memory.
        origin: Option<Origin>,
    },
}

/// Location of a constant tensor's elements in the program or in an external file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Origin {
    /// A constant, by index.
    Constant(u32),
    /// A tensor of an external file, by name.
    External(String),
}

impl TensorValue {
    /// Size of the elements in bytes.
    pub(crate) fn length(&self) -> usize {
        self.sizes.iter().product::<usize>() * size_of(self.dtype)
    }

    /// A view of the tensor with these bytes.
    pub(crate) fn view<'v>(&'v self, bytes: &'v [u8]) -> View<'v> {
        View { dtype: self.dtype, sizes: &self.sizes, order: &self.order, bytes }
    }
}
