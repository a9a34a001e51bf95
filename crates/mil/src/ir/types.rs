use std::fmt;

use coremill_tensor::DType;

use super::dim::Dim;

/// The type of a value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Type {
    /// A tensor; a scalar is a tensor of rank 0.
    Tensor(TensorType),
    /// A list of values of one type, with its length.
    List(Box<Type>, Dim),
    /// A fixed number of values with individual types.
    Tuple(Vec<Type>),
    /// A map from values of the first type to values of the second.
    Dictionary(Box<Type>, Box<Type>),
    /// A buffer that keeps its contents between predictions.
    State(Box<Type>),
}

/// The type of a tensor.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TensorType {
    /// The type of the elements.
    pub dtype: DType,
    /// The dimensions, outermost first.
    pub shape: Vec<Dim>,
}

impl Type {
    /// A tensor of fixed shape.
    pub fn tensor(dtype: DType, shape: &[u64]) -> Type {
        Type::Tensor(TensorType::fixed(dtype, shape))
    }

    /// A tensor of rank 0.
    pub fn scalar(dtype: DType) -> Type {
        Type::tensor(dtype, &[])
    }

    /// The tensor type, if it is one.
    pub fn as_tensor(&self) -> Option<&TensorType> {
        match self {
            Type::Tensor(tensor) => Some(tensor),
            Type::List(..) | Type::Tuple(_) | Type::Dictionary(..) | Type::State(_) => None,
        }
    }

    /// The type inside a state; any other type is returned unchanged.
    pub fn unwrap_state(&self) -> &Type {
        match self {
            Type::State(held) => held,
            Type::Tensor(_) | Type::List(..) | Type::Tuple(_) | Type::Dictionary(..) => self,
        }
    }

    /// Whether a value of one type could also have the other type: the types are equal except for dimensions
    /// that one of them does not know.
    pub fn is_compatible(&self, other: &Type) -> bool {
        match (self, other) {
            (Type::Tensor(left), Type::Tensor(right)) => {
                left.dtype == right.dtype
                    && left.shape.len() == right.shape.len()
                    && left.shape.iter().zip(&right.shape).all(|(l, r)| l.may_equal(r))
            }
            (Type::List(left, left_length), Type::List(right, right_length)) => {
                left.is_compatible(right) && left_length.may_equal(right_length)
            }
            (Type::Tuple(left), Type::Tuple(right)) => {
                left.len() == right.len() && left.iter().zip(right).all(|(l, r)| l.is_compatible(r))
            }
            (Type::Dictionary(left_key, left), Type::Dictionary(right_key, right)) => {
                left_key.is_compatible(right_key) && left.is_compatible(right)
            }
            (Type::State(left), Type::State(right)) => left.is_compatible(right),
            _ => false,
        }
    }

    /// The type in files, where every dimension that is not fixed is unknown.
    pub fn erased(&self) -> Type {
        let erase = |dim: &Dim| match dim {
            Dim::Known(extent) => Dim::Known(*extent),
            Dim::Unknown | Dim::Symbolic(_) => Dim::Unknown,
        };
        match self {
            Type::Tensor(tensor) => Type::Tensor(TensorType {
                dtype: tensor.dtype,
                shape: tensor.shape.iter().map(erase).collect(),
            }),
            Type::List(element, length) => Type::List(Box::new(element.erased()), erase(length)),
            Type::Tuple(parts) => Type::Tuple(parts.iter().map(Type::erased).collect()),
            Type::Dictionary(key, value) => {
                Type::Dictionary(Box::new(key.erased()), Box::new(value.erased()))
            }
            Type::State(held) => Type::State(Box::new(held.erased())),
        }
    }
}

impl TensorType {
    /// A tensor of fixed shape.
    pub fn fixed(dtype: DType, shape: &[u64]) -> TensorType {
        TensorType { dtype, shape: shape.iter().copied().map(Dim::Known).collect() }
    }

    /// The number of dimensions.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// The shape, if every dimension is fixed.
    pub fn known_shape(&self) -> Option<Vec<u64>> {
        self.shape.iter().map(Dim::known).collect()
    }

    /// The number of elements, if every dimension is fixed and the product fits.
    pub fn element_count(&self) -> Option<u64> {
        self.shape.iter().try_fold(1u64, |count, dim| count.checked_mul(dim.known()?))
    }

    /// Size of the packed elements in bytes; `None` if the size is unknown.
    pub fn storage_bytes(&self) -> Option<u64> {
        self.dtype.storage_bytes(self.element_count()?)
    }
}

/// Formats the type in the current dialect of MIL text: `tensor<fp16, [1, ?]>`, or `int32` for a scalar.
impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Type::Tensor(tensor) => write!(f, "{tensor}"),
            Type::List(element, length) => write!(f, "list<{element}, {length}>"),
            Type::Tuple(parts) => {
                f.write_str("tuple<")?;
                for (index, part) in parts.iter().enumerate() {
                    let separator = if index > 0 { ", " } else { "" };
                    write!(f, "{separator}{part}")?;
                }
                f.write_str(">")
            }
            Type::Dictionary(key, value) => write!(f, "dict<{key}, {value}>"),
            Type::State(held) => write!(f, "state<{held}>"),
        }
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.shape.is_empty() {
            return write!(f, "{}", self.dtype);
        }
        write!(f, "tensor<{}, [", self.dtype)?;
        for (index, dim) in self.shape.iter().enumerate() {
            let separator = if index > 0 { ", " } else { "" };
            write!(f, "{separator}{dim}")?;
        }
        f.write_str("]>")
    }
}
