//! Tensors in an archive: strided views of a storage, which is a byte range of the file.

use std::borrow::Cow;

use coremill_tensor::Buffer;

use crate::error::Error;
use crate::limits::{MAX_EXPANDED_BYTES, MAX_RANK};
use crate::scalar::ScalarType;

/// Value of a parameter, a buffer or a constant in an archive.
#[derive(Clone, Debug)]
pub enum StoredValue {
    /// A tensor.
    Tensor(Tensor),
    /// A tensor without elements; the export contained only shapes.
    Missing {
        /// The element type.
        dtype: ScalarType,
        /// The sizes.
        sizes: Vec<u64>,
    },
    /// A Python or C++ object, or a tensor of a Python class, as pickled bytes, which are never executed.
    Object(Buffer),
}

/// A strided view of a storage.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// The element type.
    pub dtype: ScalarType,
    /// The size of each dimension.
    pub sizes: Vec<u64>,
    /// Stride of each dimension, in elements.
    pub strides: Vec<u64>,
    /// Offset of the first element in the storage, in elements.
    pub offset: u64,
    /// All bytes of the storage, little-endian. Tensors that share a storage have the same buffer.
    pub storage: Buffer,
    /// Name of the storage; equal for tensors that share it.
    pub storage_name: String,
    /// Whether it is a parameter.
    pub is_parameter: bool,
}

/// Unchecked description of a tensor from a file or another program.
#[derive(Clone, Debug)]
pub struct UncheckedTensor {
    /// The element type.
    pub dtype: ScalarType,
    /// The size of each dimension.
    pub sizes: Vec<i64>,
    /// Stride of each dimension, in elements.
    pub strides: Vec<i64>,
    /// Offset of the first element in the storage, in elements.
    pub offset: i64,
}

impl UncheckedTensor {
    /// Returns the tensor if the storage contains all of its elements.
    ///
    /// Tensors that share a storage must use the same name for it.
    pub fn check(
        self,
        storage: Buffer,
        storage_name: &str,
        is_parameter: bool,
    ) -> Result<StoredValue, Error> {
        let UncheckedTensor { dtype, sizes, strides, offset } = self;
        if sizes.len() != strides.len() || sizes.len() > MAX_RANK {
            return Err(Error::malformed(format!(
                "the tensor has {} sizes and {} strides; the numbers must be equal, and the maximum is {MAX_RANK}",
                sizes.len(),
                strides.len()
            )));
        }
        let unsigned = |values: Vec<i64>| {
            values.into_iter().map(u64::try_from).collect::<Result<Vec<_>, _>>().ok()
        };
        let claimed = unsigned(sizes).zip(unsigned(strides)).zip(u64::try_from(offset).ok());
        let Some(((sizes, strides), offset)) = claimed else {
            return Err(Error::malformed("the tensor has a negative size, stride or offset"));
        };
        let dimensions = || sizes.iter().zip(&strides);
        let elements = sizes.iter().try_fold(1u64, |product, &size| product.checked_mul(size));
        let last = dimensions().try_fold(offset, |last, (&size, &stride)| {
            last.checked_add(size.saturating_sub(1).checked_mul(stride)?)
        });
        let end = last.and_then(|last| last.checked_add(1)?.checked_mul(dtype.bytes()));
        let empty = sizes.contains(&0);
        if !empty {
            if storage.is_empty() {
                return Ok(StoredValue::Missing { dtype, sizes });
            }
            let held = storage.len() as u64;
            if elements.is_none() || end.is_none_or(|end| end > held) {
                return Err(Error::malformed(format!(
                    "a tensor of {dtype}, sizes {sizes:?}, strides {strides:?} and offset {offset} exceeds \
                     its storage of {held} bytes"
                )));
            }
        }
        let storage_name = storage_name.to_owned();
        Ok(StoredValue::Tensor(Tensor {
            dtype,
            sizes,
            strides,
            offset,
            storage,
            storage_name,
            is_parameter,
        }))
    }
}

impl Tensor {
    /// The number of elements.
    pub fn elements(&self) -> u64 {
        // The product did not overflow when the tensor was checked, unless a size is 0.
        if self.sizes.contains(&0) { 0 } else { self.sizes.iter().product() }
    }

    /// Whether the elements are dense in row-major order.
    pub fn is_contiguous(&self) -> bool {
        let mut wanted = 1u64;
        for (&size, &stride) in self.sizes.iter().zip(&self.strides).rev() {
            if size == 0 {
                return true;
            }
            if size != 1 && stride != wanted {
                return false;
            }
            wanted = wanted.saturating_mul(size);
        }
        true
    }

    /// The elements as a part of the storage, if they are contiguous in row-major order.
    pub fn contiguous(&self) -> Option<Buffer> {
        if !self.is_contiguous() {
            return None;
        }
        let width = self.dtype.bytes();
        let start = usize::try_from(self.offset.checked_mul(width)?).ok()?;
        let length = usize::try_from(self.elements().checked_mul(width)?).ok()?;
        if length == 0 {
            return Some(Buffer::from(Vec::new()));
        }
        self.storage.slice(start..start.checked_add(length)?)
    }

    /// The elements in row-major order, gathered if they are not contiguous.
    pub fn bytes(&self) -> Result<Cow<'_, [u8]>, Error> {
        let width = self.dtype.bytes();
        if self.elements() == 0 {
            return Ok(Cow::Borrowed(&[]));
        }
        if self.is_contiguous() {
            let start = (self.offset * width) as usize;
            let length = (self.elements() * width) as usize;
            return Ok(Cow::Borrowed(&self.storage.as_bytes()[start..start + length]));
        }
        // A stride of 0 repeats elements, so the result can be far larger than the file.
        let total = self.elements().checked_mul(width);
        let most = MAX_EXPANDED_BYTES.max(self.storage.len() as u64);
        let Some(total) = total.filter(|total| *total <= most) else {
            return Err(Error::limit(format!(
                "a tensor of sizes {:?} repeats its elements and would require more than {most} bytes",
                self.sizes
            )));
        };
        let mut gathered = Vec::with_capacity(total as usize);
        let storage = self.storage.as_bytes();
        let width = width as usize;
        let mut index = vec![0u64; self.sizes.len()];
        let mut at = self.offset;
        for _ in 0..self.elements() {
            let start = at as usize * width;
            gathered.extend_from_slice(&storage[start..start + width]);
            for dimension in (0..index.len()).rev() {
                index[dimension] += 1;
                at += self.strides[dimension];
                if index[dimension] < self.sizes[dimension] {
                    break;
                }
                at -= self.strides[dimension] * self.sizes[dimension];
                index[dimension] = 0;
            }
        }
        Ok(Cow::Owned(gathered))
    }
}
