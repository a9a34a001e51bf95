use std::sync::Arc;

use coremill_tensor::{Buffer, DType, LazyTensor};

use super::types::{TensorType, Type};

/// A value that the program states: the `val` of a `const`, an attribute, or a literal argument.
#[derive(Clone, Debug, PartialEq)]
pub struct Constant {
    /// The type; its dimensions are fixed wherever the value is a tensor.
    pub ty: Type,
    /// The value.
    pub data: ConstantData,
}

/// The value of a [`Constant`].
#[derive(Clone, Debug, PartialEq)]
pub enum ConstantData {
    /// The elements of a tensor of any type but `string`, packed, little-endian, in row-major order,
    /// written inside the program.
    Bytes(Buffer),
    /// The elements of a tensor of strings.
    Strings(Vec<String>),
    /// The elements of a tensor that live in a weight file beside the program.
    Weight(Weight),
    /// The elements of a list or the parts of a tuple.
    Sequence(Vec<Constant>),
    /// The entries of a dictionary.
    Entries(Vec<(Constant, Constant)>),
}

/// Elements in a weight file: packed, little-endian, in row-major order.
#[derive(Clone, Debug)]
pub struct Weight {
    /// The elements; none if the program was read without its weight files.
    pub data: Option<Buffer>,
    /// Where they were read from; none for a weight that was made here and is yet to be laid out.
    pub place: Option<WeightPlace>,
}

/// A place in a weight file, as programs name it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WeightPlace {
    /// The file, `@model_path/weights/weight.bin` for instance.
    pub file: Arc<str>,
    /// The offset of the record that describes the elements.
    pub offset: u64,
}

impl PartialEq for Weight {
    /// Weights are equal if their elements are, wherever they lie; ones that were read without their
    /// files are equal if they lie in the same place.
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

    /// A tensor whose packed elements are written inside the program.
    pub fn bytes(dtype: DType, shape: &[u64], bytes: impl Into<Buffer>) -> Constant {
        Constant { ty: Type::tensor(dtype, shape), data: ConstantData::Bytes(bytes.into()) }
    }

    /// A tensor whose packed elements go to a weight file.
    pub fn weight(dtype: DType, shape: &[u64], data: impl Into<Buffer>) -> Constant {
        Constant {
            ty: Type::tensor(dtype, shape),
            data: ConstantData::Weight(Weight { data: Some(data.into()), place: None }),
        }
    }

    /// A tensor whose packed elements stand in the program if they are few, and else in a weight file. Of
    /// `bool` and `int32` weight files hold none.
    pub fn by_size(dtype: DType, shape: &[u64], data: impl Into<Buffer>) -> Constant {
        /// What coremltools writes into weight files.
        const MIN_FILE_ELEMENTS: u64 = 10;
        let few = shape.iter().product::<u64>() < MIN_FILE_ELEMENTS;
        if few || matches!(dtype, DType::Bool | DType::Int32) {
            Constant::bytes(dtype, shape, data)
        } else {
            Constant::weight(dtype, shape, data)
        }
    }

    /// A tensor whose elements are moved and computed when they are written.
    pub fn of_recipe(recipe: &LazyTensor) -> Constant {
        Constant::by_size(recipe.dtype(), recipe.shape(), recipe.to_buffer())
    }

    /// The elements of a tensor, to be moved and computed when they are written.
    pub fn recipe(&self) -> Option<LazyTensor> {
        let ty = self.tensor_type()?;
        LazyTensor::new(self.elements()?.clone(), ty.dtype, &ty.known_shape()?).ok()
    }

    /// The tensor type, if it is a tensor.
    pub fn tensor_type(&self) -> Option<&TensorType> {
        self.ty.as_tensor()
    }

    /// The packed elements of a tensor of any type but `string`, if they are at hand.
    pub fn elements(&self) -> Option<&Buffer> {
        match &self.data {
            ConstantData::Bytes(bytes) => Some(bytes),
            ConstantData::Weight(weight) => weight.data.as_ref(),
            ConstantData::Strings(_) | ConstantData::Sequence(_) | ConstantData::Entries(_) => None,
        }
    }

    /// The text of a scalar string.
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
