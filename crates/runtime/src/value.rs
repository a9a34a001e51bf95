use std::fmt;

use coremill_pte::program::ScalarType;
use coremill_tensor::Buffer;

use crate::error::{Result, ensure};
use crate::view::{View, check_order, length};

/// An input or output value of a method.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// No value.
    None,
    /// An integer.
    Int(i64),
    /// A boolean.
    Bool(bool),
    /// A float.
    Double(f64),
    /// A string.
    String(String),
    /// A tensor.
    Tensor(Tensor),
    /// Integers.
    Ints(Vec<i64>),
    /// Floats.
    Doubles(Vec<f64>),
    /// Booleans.
    Bools(Vec<bool>),
    /// Tensors, some of which may be missing.
    Tensors(Vec<Option<Tensor>>),
}

impl Value {
    /// The tensor, if it is one.
    pub fn as_tensor(&self) -> Option<&Tensor> {
        match self {
            Value::Tensor(tensor) => Some(tensor),
            _ => None,
        }
    }

    /// Description of the kind of value, for errors.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Value::None => "nothing",
            Value::Int(_) => "an integer",
            Value::Bool(_) => "a boolean",
            Value::Double(_) => "a float",
            Value::String(_) => "text",
            Value::Tensor(_) => "a tensor",
            Value::Ints(_) => "integers",
            Value::Doubles(_) => "floats",
            Value::Bools(_) => "booleans",
            Value::Tensors(_) => "tensors",
        }
    }
}

/// A tensor. Clones share the elements.
#[derive(Clone, PartialEq)]
pub struct Tensor {
    scalar_type: ScalarType,
    sizes: Vec<usize>,
    dim_order: Vec<u8>,
    data: Buffer,
}

impl Tensor {
    /// A contiguous tensor, with the elements in little-endian row-major order.
    pub fn new(scalar_type: ScalarType, sizes: Vec<usize>, data: Buffer) -> Result<Tensor> {
        let dim_order = (0..sizes.len()).map(|axis| axis as u8).collect();
        Tensor::with_order(scalar_type, sizes, dim_order, data)
    }

    /// A tensor with a dimension order in memory, outermost first.
    pub fn with_order(
        scalar_type: ScalarType,
        sizes: Vec<usize>,
        dim_order: Vec<u8>,
        data: Buffer,
    ) -> Result<Tensor> {
        check_order(&sizes, &dim_order)?;
        ensure!(
            length(scalar_type, &sizes) == Some(data.len()),
            "{} bytes do not match a `{scalar_type:?}` tensor of sizes {sizes:?}",
            data.len()
        );
        Ok(Tensor { scalar_type, sizes, dim_order, data })
    }

    /// A contiguous tensor of 32-bit floats.
    pub fn floats(sizes: Vec<usize>, elements: &[f32]) -> Result<Tensor> {
        let bytes: Vec<u8> = elements.iter().flat_map(|element| element.to_le_bytes()).collect();
        Tensor::new(ScalarType::Float, sizes, Buffer::from(bytes))
    }

    /// A contiguous tensor of 64-bit integers.
    pub fn integers(sizes: Vec<usize>, elements: &[i64]) -> Result<Tensor> {
        let bytes: Vec<u8> = elements.iter().flat_map(|element| element.to_le_bytes()).collect();
        Tensor::new(ScalarType::Long, sizes, Buffer::from(bytes))
    }

    /// Elements of a tensor of 32-bit floats, in dimension order.
    pub fn to_floats(&self) -> Result<Vec<f32>> {
        self.elements(ScalarType::Float, f32::from_le_bytes)
    }

    /// Elements of a tensor of 64-bit integers, in dimension order.
    pub fn to_integers(&self) -> Result<Vec<i64>> {
        self.elements(ScalarType::Long, i64::from_le_bytes)
    }

    fn elements<T, const N: usize>(
        &self,
        wanted: ScalarType,
        read: fn([u8; N]) -> T,
    ) -> Result<Vec<T>> {
        let found = self.scalar_type;
        ensure!(found == wanted, "the elements have type `{found:?}`, not `{wanted:?}`");
        let bytes = self.contiguous_bytes();
        Ok(bytes.as_chunks().0.iter().map(|element| read(*element)).collect())
    }

    /// Element type.
    pub fn scalar_type(&self) -> ScalarType {
        self.scalar_type
    }

    /// Sizes of the dimensions.
    pub fn sizes(&self) -> &[usize] {
        &self.sizes
    }

    /// Dimensions in memory order, outermost first.
    pub fn dim_order(&self) -> &[u8] {
        &self.dim_order
    }

    /// Bytes of the elements in memory order.
    pub fn data(&self) -> &Buffer {
        &self.data
    }

    /// Bytes of the elements in dimension order.
    pub fn contiguous_bytes(&self) -> std::borrow::Cow<'_, [u8]> {
        self.view().contiguous_bytes()
    }

    /// A view of the tensor.
    pub fn view(&self) -> View<'_> {
        View {
            dtype: self.scalar_type,
            sizes: &self.sizes,
            order: &self.dim_order,
            bytes: self.data.as_bytes(),
        }
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({:?} {:?}", self.scalar_type, self.sizes)?;
        if !self.dim_order.is_sorted() {
            write!(f, " ordered {:?}", self.dim_order)?;
        }
        write!(f, ")")
    }
}
