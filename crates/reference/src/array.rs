//! Tensors at run time.

use std::sync::Arc;

use coremill_mil::ir::{Constant, ConstantData};
use coremill_tensor::{DType, packed};
use half::{bf16, f16};

use crate::error::{Error, Result};

/// A dense tensor in row-major order. Cloning is cheap.
///
/// Floats of every type are stored as `f32`, integers and bools as `i32`. These represent every
/// element of the type exactly, except that `fp64` elements are rounded.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    dtype: DType,
    shape: Vec<usize>,
    elements: Elements,
}

/// The elements of an [`Array`].
#[derive(Clone, Debug, PartialEq)]
pub enum Elements {
    /// Elements of any float type.
    Floats(Arc<Vec<f32>>),
    /// Elements of any integer type; bools are 0 or 1.
    Ints(Arc<Vec<i32>>),
    /// Strings.
    Texts(Arc<Vec<String>>),
}

/// A borrowed tensor.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The element type.
    pub dtype: DType,
    /// Size of each dimension, outermost first.
    pub shape: &'a [usize],
    /// As many elements as the shape requires.
    pub elements: ElementsView<'a>,
}

/// The elements of a [`View`].
#[derive(Clone, Copy, Debug)]
pub enum ElementsView<'a> {
    /// Elements of any float type.
    Floats(&'a [f32]),
    /// Elements of any integer type; bools are 0 or 1.
    Ints(&'a [i32]),
    /// Strings.
    Texts(&'a [String]),
}

/// Returns the smallest and the largest integer of a type, `None` for floats and strings. Types of
/// 32 bits and more have the range of `i32`, in which all integers are stored.
pub fn int_range(dtype: DType) -> Option<(i32, i32)> {
    Some(match dtype {
        DType::Bool | DType::UInt1 => (0, 1),
        DType::UInt2 => (0, 3),
        DType::UInt3 => (0, 7),
        DType::UInt4 => (0, 15),
        DType::UInt6 => (0, 63),
        DType::UInt8 => (0, 255),
        DType::UInt16 => (0, 65535),
        DType::UInt32 | DType::UInt64 => (0, i32::MAX),
        DType::Int4 => (-8, 7),
        DType::Int8 => (-128, 127),
        DType::Int16 => (-32768, 32767),
        DType::Int32 | DType::Int64 => (i32::MIN, i32::MAX),
        DType::String
        | DType::Fp16
        | DType::Fp32
        | DType::Fp64
        | DType::Bf16
        | DType::Fp8E4M3Fn
        | DType::Fp8E5M2 => return None,
    })
}

impl Array {
    /// Creates a float tensor.
    ///
    /// # Panics
    ///
    /// If `dtype` is not a float type, or the shape does not match the number of elements.
    pub fn floats(dtype: DType, shape: impl Into<Vec<usize>>, elements: Vec<f32>) -> Array {
        assert!(dtype.is_float(), "`{dtype}` is not a float type");
        Array::checked(dtype, shape.into(), elements.len(), Elements::Floats(Arc::new(elements)))
    }

    /// Creates an integer or bool tensor. The elements must be in the type's range.
    ///
    /// # Panics
    ///
    /// If `dtype` is not an integer type, or the shape does not match the number of elements.
    pub fn ints(dtype: DType, shape: impl Into<Vec<usize>>, elements: Vec<i32>) -> Array {
        assert!(int_range(dtype).is_some(), "`{dtype}` is not an integer type");
        Array::checked(dtype, shape.into(), elements.len(), Elements::Ints(Arc::new(elements)))
    }

    /// Creates a string tensor.
    ///
    /// # Panics
    ///
    /// If the shape does not match the number of elements.
    pub fn texts(shape: impl Into<Vec<usize>>, elements: Vec<String>) -> Array {
        let count = elements.len();
        Array::checked(DType::String, shape.into(), count, Elements::Texts(Arc::new(elements)))
    }

    /// Creates a tensor from elements in the storage of `dtype`.
    ///
    /// # Panics
    ///
    /// If the shape does not match the number of elements.
    pub fn from_elements(dtype: DType, shape: Vec<usize>, elements: Elements) -> Array {
        let count = match &elements {
            Elements::Floats(floats) => floats.len(),
            Elements::Ints(ints) => ints.len(),
            Elements::Texts(texts) => texts.len(),
        };
        Array::checked(dtype, shape, count, elements)
    }

    fn checked(dtype: DType, shape: Vec<usize>, count: usize, elements: Elements) -> Array {
        assert_eq!(
            shape.iter().product::<usize>(),
            count,
            "the number of elements must match shape {shape:?}"
        );
        Array { dtype, shape, elements }
    }

    /// The elements, still shared with the clones of this tensor.
    pub fn into_elements(self) -> Elements {
        self.elements
    }

    /// The shared storage of a float tensor.
    pub fn shared_floats(&self) -> Option<&Arc<Vec<f32>>> {
        match &self.elements {
            Elements::Floats(floats) => Some(floats),
            Elements::Ints(_) | Elements::Texts(_) => None,
        }
    }

    /// Decodes packed little-endian elements, the layout of weight files and `.npy` files. Returns
    /// `None` if they do not fit the shape, are invalid for the type, or exceed 32 bits.
    pub fn from_bytes(dtype: DType, shape: &[usize], bytes: &[u8]) -> Option<Array> {
        let count = shape.iter().try_fold(1usize, |count, &extent| count.checked_mul(extent))?;
        if dtype.storage_bytes(count as u64)? != bytes.len() as u64 {
            return None;
        }
        if dtype.is_float() {
            return Some(Array::floats(dtype, shape, decode_floats(dtype, bytes)?));
        }
        let ints: Vec<i32> = match dtype {
            DType::Bool => bytes.iter().map(|&byte| i32::from(byte != 0)).collect(),
            DType::Int8 => bytes.iter().map(|&byte| i32::from(byte as i8)).collect(),
            DType::UInt8 => bytes.iter().map(|&byte| i32::from(byte)).collect(),
            DType::Int16 => words(bytes).map(|word| i32::from(i16::from_le_bytes(word))).collect(),
            DType::UInt16 => words(bytes).map(|word| i32::from(u16::from_le_bytes(word))).collect(),
            DType::Int32 => words(bytes).map(i32::from_le_bytes).collect(),
            DType::UInt32 => words(bytes)
                .map(|word| u32::from_le_bytes(word).try_into().ok())
                .collect::<Option<_>>()?,
            DType::Int64 => words(bytes)
                .map(|word| i64::from_le_bytes(word).try_into().ok())
                .collect::<Option<_>>()?,
            DType::UInt64 => words(bytes)
                .map(|word| u64::from_le_bytes(word).try_into().ok())
                .collect::<Option<_>>()?,
            _ => packed::unpack(dtype, bytes, count)?.into_iter().map(i32::from).collect(),
        };
        Some(Array::ints(dtype, shape, ints))
    }

    /// Packed little-endian elements, `None` for strings.
    pub fn to_bytes(&self) -> Option<Vec<u8>> {
        let ints = match &self.elements {
            Elements::Floats(floats) => return encode_floats(self.dtype, floats),
            Elements::Ints(ints) => ints,
            Elements::Texts(_) => return None,
        };
        Some(match self.dtype {
            DType::Bool | DType::Int8 | DType::UInt8 => ints.iter().map(|&int| int as u8).collect(),
            DType::Int16 | DType::UInt16 => {
                ints.iter().flat_map(|&int| (int as u16).to_le_bytes()).collect()
            }
            DType::Int32 | DType::UInt32 => ints.iter().flat_map(|int| int.to_le_bytes()).collect(),
            DType::Int64 | DType::UInt64 => {
                ints.iter().flat_map(|&int| i64::from(int).to_le_bytes()).collect()
            }
            _ => {
                let narrow: Option<Vec<i16>> =
                    ints.iter().map(|&int| int.try_into().ok()).collect();
                packed::pack(self.dtype, &narrow?)?
            }
        })
    }

    /// Decodes a constant tensor.
    pub fn from_constant(constant: &Constant) -> Result<Array> {
        let Some(ty) = constant.tensor_type() else {
            return Err(Error::new(format!(
                "a constant of type `{}` is not a tensor",
                constant.ty
            )));
        };
        let shape = ty
            .known_shape()
            .ok_or_else(|| Error::new(format!("constant type `{ty}` has an unknown dimension")))?;
        let shape: Vec<usize> = shape.into_iter().map(|extent| extent as usize).collect();
        if let ConstantData::Strings(strings) = &constant.data {
            return Ok(Array::texts(shape, strings.clone()));
        }
        let Some(bytes) = constant.elements() else {
            return Err(Error::new("the weight file of the program is not available"));
        };
        Array::from_bytes(ty.dtype, &shape, bytes.as_bytes()).ok_or_else(|| {
            Error::new(format!("the elements of a constant do not match its type, `{ty}`"))
        })
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Size of each dimension, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The elements.
    pub fn elements(&self) -> &Elements {
        &self.elements
    }

    /// The elements of a float tensor.
    pub fn as_floats(&self) -> Option<&[f32]> {
        match &self.elements {
            Elements::Floats(floats) => Some(floats),
            Elements::Ints(_) | Elements::Texts(_) => None,
        }
    }

    /// The elements of an integer or bool tensor.
    pub fn as_ints(&self) -> Option<&[i32]> {
        match &self.elements {
            Elements::Ints(ints) => Some(ints),
            Elements::Floats(_) | Elements::Texts(_) => None,
        }
    }

    /// Mutable elements of a float tensor. Shared elements are copied first.
    pub fn floats_mut(&mut self) -> Option<&mut Vec<f32>> {
        match &mut self.elements {
            Elements::Floats(floats) => Some(Arc::make_mut(floats)),
            Elements::Ints(_) | Elements::Texts(_) => None,
        }
    }

    /// The same elements under another shape, `None` if the number of elements differs.
    pub fn reshaped(&self, shape: impl Into<Vec<usize>>) -> Option<Array> {
        let shape = shape.into();
        let count = shape.iter().try_fold(1usize, |count, &extent| count.checked_mul(extent))?;
        (count == self.view().len()).then(|| Array { shape, ..self.clone() })
    }

    /// The same elements under another type of the same storage.
    pub fn retyped(mut self, dtype: DType) -> Array {
        debug_assert_eq!(dtype.is_float(), self.dtype.is_float());
        self.dtype = dtype;
        self
    }

    /// A view of the whole tensor.
    pub fn view(&self) -> View<'_> {
        let elements = match &self.elements {
            Elements::Floats(floats) => ElementsView::Floats(floats),
            Elements::Ints(ints) => ElementsView::Ints(ints),
            Elements::Texts(texts) => ElementsView::Texts(texts),
        };
        View { dtype: self.dtype, shape: &self.shape, elements }
    }
}

impl<'a> View<'a> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self.elements {
            ElementsView::Floats(floats) => floats.len(),
            ElementsView::Ints(ints) => ints.len(),
            ElementsView::Texts(texts) => texts.len(),
        }
    }

    /// Returns true if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// Copies the elements to an owned tensor.
    pub fn to_array(self) -> Array {
        let elements = match self.elements {
            ElementsView::Floats(floats) => Elements::Floats(Arc::new(floats.to_vec())),
            ElementsView::Ints(ints) => Elements::Ints(Arc::new(ints.to_vec())),
            ElementsView::Texts(texts) => Elements::Texts(Arc::new(texts.to_vec())),
        };
        Array { dtype: self.dtype, shape: self.shape.to_vec(), elements }
    }
}

/// Rounds floats to the precision of `dtype`.
pub fn round_floats(dtype: DType, floats: &mut [f32]) {
    match dtype {
        DType::Fp16 => floats.iter_mut().for_each(|x| *x = f16::from_f32(*x).to_f32()),
        DType::Bf16 => floats.iter_mut().for_each(|x| *x = bf16::from_f32(*x).to_f32()),
        _ => {}
    }
}

fn words<const N: usize>(bytes: &[u8]) -> impl Iterator<Item = [u8; N]> {
    bytes.as_chunks::<N>().0.iter().copied()
}

fn decode_floats(dtype: DType, bytes: &[u8]) -> Option<Vec<f32>> {
    Some(match dtype {
        DType::Fp16 => words(bytes).map(|word| f16::from_le_bytes(word).to_f32()).collect(),
        DType::Bf16 => words(bytes).map(|word| bf16::from_le_bytes(word).to_f32()).collect(),
        DType::Fp32 => words(bytes).map(f32::from_le_bytes).collect(),
        DType::Fp64 => words(bytes).map(|word| f64::from_le_bytes(word) as f32).collect(),
        _ => return None,
    })
}

fn encode_floats(dtype: DType, floats: &[f32]) -> Option<Vec<u8>> {
    Some(match dtype {
        DType::Fp16 => floats.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect(),
        DType::Bf16 => floats.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect(),
        DType::Fp32 => floats.iter().flat_map(|x| x.to_le_bytes()).collect(),
        DType::Fp64 => floats.iter().flat_map(|&x| f64::from(x).to_le_bytes()).collect(),
        _ => return None,
    })
}
