//! Tensors in borrowed memory.

use coremill_tensor::DType;

use crate::error::{Error, Result};

/// A tensor to read.
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'a> {
    pub(crate) layout: Layout<'a>,
    pub(crate) bytes: &'a [u8],
}

/// A tensor to write.
#[derive(Debug)]
pub struct TensorMut<'a> {
    pub(crate) layout: Layout<'a>,
    pub(crate) bytes: &'a mut [u8],
}

/// Type, shape and strides of elements.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Layout<'a> {
    pub(crate) dtype: DType,
    pub(crate) shape: &'a [usize],
    /// Strides in elements; `None` for a contiguous tensor.
    pub(crate) strides: Option<&'a [usize]>,
}

impl Copy for Layout<'_> {}

impl<'a> Tensor<'a> {
    /// A contiguous tensor.
    pub fn contiguous(dtype: DType, shape: &'a [usize], bytes: &'a [u8]) -> Result<Tensor<'a>> {
        let layout = Layout { dtype, shape, strides: None };
        layout.check(bytes.len())?;
        Ok(Tensor { layout, bytes })
    }

    /// A tensor with strides in elements.
    pub fn strided(
        dtype: DType,
        shape: &'a [usize],
        strides: &'a [usize],
        bytes: &'a [u8],
    ) -> Result<Tensor<'a>> {
        let layout = Layout { dtype, shape, strides: Some(strides) };
        layout.check(bytes.len())?;
        Ok(Tensor { layout, bytes })
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.layout.dtype
    }

    /// The shape.
    pub fn shape(&self) -> &'a [usize] {
        self.layout.shape
    }
}

impl<'a> TensorMut<'a> {
    /// A contiguous tensor.
    pub fn contiguous(
        dtype: DType,
        shape: &'a [usize],
        bytes: &'a mut [u8],
    ) -> Result<TensorMut<'a>> {
        let layout = Layout { dtype, shape, strides: None };
        layout.check(bytes.len())?;
        Ok(TensorMut { layout, bytes })
    }

    /// A tensor with strides in elements, which must not overlap.
    pub fn strided(
        dtype: DType,
        shape: &'a [usize],
        strides: &'a [usize],
        bytes: &'a mut [u8],
    ) -> Result<TensorMut<'a>> {
        let layout = Layout { dtype, shape, strides: Some(strides) };
        layout.check(bytes.len())?;
        Ok(TensorMut { layout, bytes })
    }
}

impl Layout<'_> {
    /// Size of an element in bytes. Types that arrays cannot have are an error.
    pub(crate) fn width(&self) -> Result<usize> {
        match self.dtype {
            DType::Bool | DType::Int8 | DType::UInt8 => Ok(1),
            DType::Fp16 | DType::Int16 | DType::UInt16 => Ok(2),
            DType::Fp32 | DType::Int32 => Ok(4),
            DType::Fp64 | DType::Int64 => Ok(8),
            other => Err(Error::input(format!("elements of type `{other}` are not supported"))
                .with_hint("convert them to fp16, fp32, int32 or another ExecuTorch type")),
        }
    }

    pub(crate) fn strides(&self) -> Vec<usize> {
        match self.strides {
            Some(strides) => strides.to_vec(),
            None => dense(self.shape),
        }
    }

    pub(crate) fn is_contiguous(&self) -> bool {
        let Some(strides) = self.strides else { return true };
        let dense = dense(self.shape);
        let mut axes = self.shape.iter().zip(strides).zip(&dense);
        axes.all(|((size, stride), dense)| *size <= 1 || stride == dense)
    }

    /// Checks that the memory is large enough.
    pub(crate) fn check(&self, bytes: usize) -> Result {
        let (shape, width) = (self.shape, self.width()?);
        let strides = self.strides();
        if strides.len() != shape.len() {
            let (rank, count) = (shape.len(), strides.len());
            let message = format!("the shape {shape:?} needs {rank} strides, got {count}");
            return Err(Error::input(message));
        }
        if shape.contains(&0) {
            let message = format!("the shape {shape:?} has no elements");
            return Err(Error::input(message)
                .with_hint("Core ML requires arrays of at least one element; skip the call"));
        }
        let last = shape.iter().zip(&strides).try_fold(0usize, |last, (size, stride)| {
            last.checked_add((size - 1).checked_mul(*stride)?)
        });
        let needed = last.and_then(|last| last.checked_add(1)?.checked_mul(width));
        match needed {
            Some(needed) if needed <= bytes => Ok(()),
            needed => {
                let needed = match needed {
                    Some(needed) => format!("{needed} bytes"),
                    None => "more bytes than are addressable".to_owned(),
                };
                let message = format!(
                    "`{}` {shape:?} with the strides {strides:?} needs {needed}, got {bytes}",
                    self.dtype
                );
                Err(Error::input(message))
            }
        }
    }
}

/// Strides of a contiguous tensor.
pub(crate) fn dense(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1usize; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis].saturating_mul(shape[axis]);
    }
    strides
}

/// Receiver of a result.
pub trait Output {
    /// Name of the output.
    fn name(&self) -> &str;

    /// Requested element type.
    fn dtype(&self) -> DType;

    /// Memory for a result of this shape. If it is contiguous and of the model's type, Core ML writes to it
    /// directly. Called before the prediction if the shape is known, otherwise afterwards.
    fn memory(&mut self, shape: &[usize]) -> std::result::Result<TensorMut<'_>, String>;
}

/// A result with its own memory, of any shape.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnedTensor {
    /// Name of the output or state.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Shape, set by a prediction.
    pub shape: Vec<usize>,
    /// Elements of the contiguous tensor.
    pub bytes: Vec<u8>,
}

impl OwnedTensor {
    /// An output without contents.
    pub fn new(name: impl Into<String>, dtype: DType) -> OwnedTensor {
        OwnedTensor { name: name.into(), dtype, shape: Vec::new(), bytes: Vec::new() }
    }

    /// Borrows the tensor, for example as an input.
    pub fn tensor(&self) -> Result<Tensor<'_>> {
        Tensor::contiguous(self.dtype, &self.shape, &self.bytes)
    }
}

impl Output for OwnedTensor {
    fn name(&self) -> &str {
        &self.name
    }

    fn dtype(&self) -> DType {
        self.dtype
    }

    fn memory(&mut self, shape: &[usize]) -> std::result::Result<TensorMut<'_>, String> {
        let width = Layout { dtype: self.dtype, shape, strides: None }.width();
        let width = width.map_err(|error| error.to_string())?;
        let bytes = shape.iter().try_fold(width, |bytes, size| bytes.checked_mul(*size));
        let bytes = bytes.ok_or_else(|| format!("the shape {shape:?} is too large"))?;
        self.shape = shape.to_vec();
        self.bytes.resize(bytes, 0);
        TensorMut::contiguous(self.dtype, &self.shape, &mut self.bytes)
            .map_err(|error| error.to_string())
    }
}
