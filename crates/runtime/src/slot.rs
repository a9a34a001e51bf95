//! What the values of a method are while it runs.

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
    /// Integers, each a value of its own.
    Ints(Vec<usize>),
    Doubles(Vec<f64>),
    Bools(Vec<bool>),
    Tensor(TensorValue),
    Tensors(Vec<Option<usize>>),
}

/// A tensor at run time.
#[derive(Clone, Debug)]
pub(crate) struct TensorValue {
    pub(crate) dtype: ScalarType,
    pub(crate) sizes: Vec<usize>,
    pub(crate) order: Vec<u8>,
    pub(crate) dynamic: bool,
    /// The bytes that the sizes may need at most.
    pub(crate) capacity: usize,
    pub(crate) place: Place,
}

/// Where elements lie.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// Nowhere yet: the caller says where.
    Unset,
    /// In a space of the method.
    Space { space: usize, offset: usize },
    /// In the program, or with the caller; nobody writes there.
    Shared {
        buffer: Buffer,
        /// Where in the program; none if it lies with the caller.
        origin: Option<Origin>,
    },
}

/// What in a program or beside it holds the elements of a tensor.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Origin {
    /// A constant, by its number.
    Constant(u32),
    /// A tensor of another file, by its name.
    External(String),
}

impl TensorValue {
    /// The bytes of all elements.
    pub(crate) fn length(&self) -> usize {
        self.sizes.iter().product::<usize>() * size_of(self.dtype)
    }

    /// The tensor with these bytes.
    pub(crate) fn view<'v>(&'v self, bytes: &'v [u8]) -> View<'v> {
        View { dtype: self.dtype, sizes: &self.sizes, order: &self.order, bytes }
    }
}
