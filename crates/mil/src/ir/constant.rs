use std::sync::Arc;

use coremill_tensor::{Buffer, DType, LazyTensor};

use super::types::{TensorType, Type};

/// A constant in a program: the `val` of a `const`, an attribute, or a literal argument.
#[derive(Clone, Debug, PartialEq)]
pub struct Constant {
    /// The type. A tensor type has fixed dimensions.
    pub ty: Type,
    /// The value.
    pub data: ConstantData,
}

/// The value of a [`Constant`].
#[derive(Clone, Debug, PartialEq)]
pub enum ConstantData {
    /// Elements of a tensor of any type but `string`, stored in the program: packed, little-endian, in
    /// row-major order.
    Bytes(Buffer),
    /// Elements of a string tensor.
    Strings(Vec<String>),
    /// Elements of a tensor, stored in a weight file.
    Weight(Weight),
    /// Elements of a list or parts of a tuple.
    Sequence(Vec<Constant>),
    /// Entries of a dictionary.
    Entries(Vec<(Constant, Constant)>),
}

/// Elements stored in a weight file: packed, little-endian, in row-major order.
#[derive(Clone, Debug)]
pub struct Weight {
    /// The elements; `None` if the program was read without its weight files.
    pub data: Option<Buffer>,
    /// The location from which they were read; `None` for a new weight that has not been written yet.
    pub place: Option<WeightPlace>,
}

/// Location in a weight file, as written in the program.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WeightPlace {
    /// The file, for instance `@model_path/weights/weight.bin`.
    pub file: Arc<str>,
    /// Offset of the metadata record of the elements.
    pub offset: u64,
}

impl PartialEq for Weight {
    /// Weights are equal if their elements are equal. If both were read without their files, they are equal
    /// if they have the same location.
    fn eq(&self, other: &Weight) -> bool {
        match (&self.data, &other.data) {
            (Some(left), Some(right)) => left == right,
            (None, None) => self.place == other.place,
            _ => false,
        }
    }
}

impl Constant {
    /// A scalar string.
    pub fn string(text: impl Into<String>) -> Constant {
        Constant { ty: Type::scalar(DType::String), data: ConstantData::Strings(vec![text.into()]) }
    }

    /// A scalar `bool`.
    pub fn bool(value: bool) -> Constant {
        Constant::bytes(DType::Bool, &[], vec![u8::from(value)])
    }

    /// A scalar `int32`.
    pub fn int32(value: i32) -> Constant {
        Constant::bytes(DType::Int32, &[], value.to_le_bytes().to_vec())
    }

    /// A vector of `int32`.
    pub fn int32s(values: &[i32]) -> Constant {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Constant::bytes(DType::Int32, &[values.len() as u64], bytes)
    }

    /// A scalar `fp32`.
    pub fn fp32(value: f32) -> Constant {
        Constant::bytes(DType::Fp32, &[], value.to_le_bytes().to_vec())
    }

    /// A scalar `fp16`.
    pub fn fp16(value: half::f16) -> Constant {
        Constant::bytes(DType::Fp16, &[], value.to_le_bytes().to_vec())
    }

    /// A tensor whose packed elements are stored in the program.
    pub fn bytes(dtype: DType, shape: &[u64], bytes: impl Into<Buffer>) -> Constant {
        Constant { ty: Type::tensor(dtype, shape), data: ConstantData::Bytes(bytes.into()) }
    }

    /// A tensor whose packed elements are stored in a weight file.
    pub fn weight(dtype: DType, shape: &[u64], data: impl Into<Buffer>) -> Constant {
        Constant {
            ty: Type::tensor(dtype, shape),
            data: ConstantData::Weight(Weight { data: Some(data.into()), place: None }),
        }
    }

    /// A tensor whose packed elements are stored in the program if they are few, else in a weight file.
    /// `bool` and `int32` tensors are always stored in the program, because weight files do not support them.
    pub fn by_size(dtype: DType, shape: &[u64], data: impl Into<Buffer>) -> Constant {
        /// Minimum number of elements for a weight file, as in coremltools.
        const MIN_FILE_ELEMENTS: u64 = 10;
        let few = shape.iter().product::<u64>() < MIN_FILE_ELEMENTS;
        if few || matches!(dtype, DType::Bool | DType::Int32) {
            Constant::bytes(dtype, shape, data)
        } else {
            Constant::weight(dtype, shape, data)
        }
    }

    /// A tensor whose elements are computed only when it is written.
    pub fn of_recipe(recipe: &LazyTensor) -> Constant {
        Constant::by_size(recipe.dtype(), recipe.shape(), recipe.to_buffer())
    }

    /// The tensor as a lazy tensor, whose elements are computed only when it is written.
    pub fn recipe(&self) -> Option<LazyTensor> {
        let ty = self.tensor_type()?;
        LazyTensor::new(self.elements()?.clone(), ty.dtype, &ty.known_shape()?).ok()
    }

    /// The type, if it is a tensor type.
    pub fn tensor_type(&self) -> Option<&TensorType> {
        self.ty.as_tensor()
    }

    /// The packed elements of a tensor of any type but `string`; `None` if they were not read.
    pub fn elements(&self) -> Option<&Buffer> {
        match &self.data {
            ConstantData::Bytes(bytes) => Some(bytes),
            ConstantData::Weight(weight) => weight.data.as_ref(),
            ConstantData::Strings(_) | ConstantData::Sequence(_) | ConstantData::Entries(_) => None,
        }
    }

    /// The value of a scalar string.
    pub fn as_str(&self) -> Option<&str> {
        match &self.data {
            ConstantData::Strings(strings) => match strings.as_slice() {
                [text] if self.tensor_type()?.rank() == 0 => Some(text),
                _ => None,
            },
            _ => None,
        }
    }

    /// The value of a scalar `bool`.
    pub fn as_bool(&self) -> Option<bool> {
        let tensor = self.tensor_type()?;
        if tensor.dtype != DType::Bool || tensor.rank() != 0 {
            return None;
        }
        self.elements()?.as_bytes().first().map(|&byte| byte != 0)
    }
}
