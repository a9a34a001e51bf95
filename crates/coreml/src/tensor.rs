//! Elements where they lie.

use coremill_tensor::DType;

use crate::error::{Error, Result};

/// Elements that are read.
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'a> {
    pub(crate) layout: Layout<'a>,
    pub(crate) bytes: &'a [u8],
}

/// Elements that are written.
#[derive(Debug)]
pub struct TensorMut<'a> {
    pub(crate) layout: Layout<'a>,
    pub(crate) bytes: &'a mut [u8],
}

/// Of what type elements are, and where they lie.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Layout<'a> {
    pub(crate) dtype: DType,
    pub(crate) shape: &'a [usize],
    /// How many elements lie between neighbours along each dimension; none for contiguous ones.
    pub(crate) strides: Option<&'a [usize]>,
}

impl Copy for Layout<'_> {}

impl<'a> Tensor<'a> {
    /// Elements one after the other.
    pub fn contiguous(dtype: DType, shape: &'a [usize], bytes: &'a [u8]) -> Result<Tensor<'a>> {
        let layout = Layout { dtype, shape, strides: None };
        layout.check(bytes.len())?;
        Ok(Tensor { layout, bytes })
    }

    /// Elements with distances between neighbours along each dimension.
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

    /// The type of the elements.
    pub fn dtype(&self) -> DType {
        self.layout.dtype
    }

    /// The shape.
    pub fn shape(&self) -> &'a [usize] {
        self.layout.shape
    }
}

impl<'a> TensorMut<'a> {
    /// Elements one after the other.
    pub fn contiguous(
        dtype: DType,
        shape: &'a [usize],
        bytes: &'a mut [u8],
    ) -> Result<TensorMut<'a>> {
        let layout = Layout { dtype, shape, strides: None };
        layout.check(bytes.len())?;
        Ok(TensorMut { layout, bytes })
    }

    /// Elements with distances between neighbours along each dimension, which do not overlap.
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
    /// Bytes of an element, of types that arrays have.
    pub(crate) fn width(&self) -> Result<usize> {
        match self.dtype {
            DType::Bool | DType::Int8 | DType::UInt8 => Ok(1),
            DType::Fp16 | DType::Int16 | DType::UInt16 => Ok(2),
            DType::Fp32 | DType::Int32 => Ok(4),
            DType::Fp64 | DType::Int64 => Ok(8),
            other => Err(Error::input(format!("elements of type `{other}` cannot be given"))
                .with_hint("convert them to fp16, fp32, int32 or another type of ExecuTorch's")),
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

    /// Refuses memory that is too short.
    pub(crate) fn check(&self, bytes: usize) -> Result {
        let (shape, width) = (self.shape, self.width()?);
        let strides = self.strides();
        if strides.len() != shape.len() {
            let message = format!("{} strides are given for the shape {shape:?}", strides.len());
            return Err(Error::input(message));
        }
        if shape.contains(&0) {
            let message = format!("the shape {shape:?} has no elements");
            return Err(Error::input(message)
                .with_hint("Core ML takes arrays of at least one element; skip the call"));
        }
        let last = shape.iter().zip(&strides).try_fold(0usize, |last, (size, stride)| {
            last.checked_add((size - 1).checked_mul(*stride)?)
        });
        let needed = last.and_then(|last| last.checked_add(1)?.checked_mul(width));
        match needed {
            Some(needed) if needed <= bytes => Ok(()),
            needed => {
                let needed = needed.map_or("more than memory holds".to_owned(), |n| n.to_string());
                let message = format!(
                    "{bytes} bytes are given for `{}` {shape:?} with the strides {strides:?}; needed are {needed}",
                    self.dtype
                );
                Err(Error::input(message))
            }
        }
    }
}

/// The strides of contiguous elements.
pub(crate) fn dense(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1usize; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis].saturating_mul(shape[axis]);
    }
    strides
}

/// Where a result goes.
pub trait Output {
    /// The output's name.
    fn name(&self) -> &str;

    /// The type in which it is wanted.
    fn dtype(&self) -> DType;

    /// Memory for a result of this shape. Where it is contiguous and of the model's type, Core ML writes to it directly.
    /// It is asked for before the prediction if the shape is known, and after it otherwise.
    fn memory(&mut self, shape: &[usize]) -> std::result::Result<TensorMut<'_>, String>;
}

/// A result with memory of its own, of whatever shape it has.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnedTensor {
    /// The output's or state's name.
    pub name: String,
    /// The type of the elements.
    pub dtype: DType,
    /// The shape; known after a prediction.
    pub shape: Vec<usize>,
    /// The elements, one after the other.
    pub bytes: Vec<u8>,
}

impl OwnedTensor {
    /// An output that nothing was written to.
    pub fn new(name: impl Into<String>, dtype: DType) -> OwnedTensor {
        OwnedTensor { name: name.into(), dtype, shape: Vec::new(), bytes: Vec::new() }
    }

    /// The elements, to give them to a model.
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
