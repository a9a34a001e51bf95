//! Values of a graph's parameters: tensors by name, in memory or in files of weights.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use coremill_engine::Array;
use coremill_io::copied;
use coremill_tensor::{Buffer, DType, LazyTensor, Overflow};

use crate::error::{Result, fail};
use crate::scheme::Scheme;

/// Tensors by name.
///
/// Files are mapped, and read only when a package is written or a model runs.
#[derive(Clone, Debug, Default)]
pub struct Params {
    entries: BTreeMap<String, Param>,
}

/// A tensor.
#[derive(Clone, Debug)]
pub struct Param {
    shape: Vec<u64>,
    form: Form,
}

/// The bytes of a vector of floats.
struct OwnedFloats(Vec<f32>);

impl AsRef<[u8]> for OwnedFloats {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}

#[derive(Clone, Debug)]
enum Form {
    /// Packed little-endian elements.
    Elements(DType, Buffer),
    /// Blocks in a GGUF scheme.
    Blocks(Scheme, Buffer),
}

impl Param {
    /// Returns a float tensor. A vector is used without a copy; a slice is copied.
    pub fn floats<'e>(
        shape: impl Into<Vec<u64>>,
        elements: impl Into<Cow<'e, [f32]>>,
    ) -> Result<Param> {
        let (shape, elements) = (shape.into(), elements.into());
        let takes = shape.iter().try_fold(1u64, |count, &extent| count.checked_mul(extent));
        if takes != Some(elements.len() as u64) {
            let count = elements.len();
            fail!(Parameter, "{count} elements do not fill a parameter of shape {shape:?}");
        }
        let bytes = match elements {
            _ if cfg!(target_endian = "big") => {
                let bytes: Vec<u8> = elements.iter().flat_map(|one| one.to_le_bytes()).collect();
                Buffer::from(bytes)
            }
            Cow::Borrowed(elements) => Buffer::from(copied(bytemuck::cast_slice(elements))),
            Cow::Owned(elements) => Buffer::lent(Arc::new(OwnedFloats(elements))),
        };
        Param::elements(DType::Fp32, shape, bytes)
    }

    /// Returns a tensor of packed little-endian elements.
    pub fn elements(
        dtype: DType,
        shape: impl Into<Vec<u64>>,
        bytes: impl Into<Buffer>,
    ) -> Result<Param> {
        let (shape, bytes) = (shape.into(), bytes.into());
        let count = shape.iter().try_fold(1u64, |count, &extent| count.checked_mul(extent));
        if count.and_then(|count| dtype.storage_bytes(count)) != Some(bytes.len() as u64) {
            let length = bytes.len();
            fail!(Parameter, "{length} bytes do not fill a `{dtype}` tensor of shape {shape:?}");
        }
        Ok(Param { shape, form: Form::Elements(dtype, bytes) })
    }

    /// Returns a tensor of GGUF blocks, with the outermost dimension first.
    pub fn blocks(
        scheme: Scheme,
        shape: impl Into<Vec<u64>>,
        bytes: impl Into<Buffer>,
    ) -> Result<Param> {
        let (shape, bytes) = (shape.into(), bytes.into());
        if scheme.storage_bytes(&shape) != Some(bytes.len() as u64) {
            let length = bytes.len();
            fail!(Parameter, "{length} bytes do not fill a {scheme} tensor of shape {shape:?}");
        }
        Ok(Param { shape, form: Form::Blocks(scheme, bytes) })
    }

    /// The shape, outermost dimension first.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// The GGUF scheme in which it is stored; `None` for plain elements.
    pub fn scheme(&self) -> Option<Scheme> {
        match &self.form {
            Form::Elements(..) => None,
            Form::Blocks(scheme, _) => Some(*scheme),
        }
    }

    /// The stored bytes.
    pub fn bytes(&self) -> &Buffer {
        match &self.form {
            Form::Elements(_, bytes) | Form::Blocks(_, bytes) => bytes,
        }
    }

    /// The element type or scheme of the bytes.
    fn bytes_type(&self) -> (Option<DType>, Option<Scheme>) {
        match &self.form {
            Form::Elements(dtype, _) => (Some(*dtype), None),
            Form::Blocks(scheme, _) => (None, Some(*scheme)),
        }
    }

    /// The elements in their stored type if it is a 16- or 32-bit float, else as `fp32`.
    pub(crate) fn stored_floats(&self) -> Result<(Buffer, DType)> {
        match &self.form {
            Form::Elements(dtype @ (DType::Fp16 | DType::Bf16 | DType::Fp32), bytes) => {
                Ok((bytes.clone(), *dtype))
            }
            _ => Ok((self.to_fp32()?, DType::Fp32)),
        }
    }

    /// The elements as `fp32`, computed when they are read.
    pub fn to_fp32(&self) -> Result<Buffer> {
        match &self.form {
            Form::Elements(DType::Fp32, bytes) => Ok(bytes.clone()),
            Form::Elements(dtype, bytes) => {
                let recipe = LazyTensor::new(bytes.clone(), *dtype, &self.shape)
                    .and_then(|recipe| recipe.cast_with(DType::Fp32, Overflow::Refuse));
                match recipe {
                    Ok(recipe) => Ok(recipe.to_buffer()),
                    Err(error) => {
                        fail!(
                            Parameter,
                            "`{dtype}` elements cannot be converted to floats: {error}"
                        )
                    }
                }
            }
            Form::Blocks(scheme, bytes) => Ok(scheme.dequantized(bytes)),
        }
    }

    /// The elements as floats.
    pub fn to_floats(&self) -> Result<Vec<f32>> {
        let bytes = self.to_fp32()?;
        let mut elements = vec![0; bytes.len()];
        match bytes.read_at(0, &mut elements) {
            Ok(()) => {
                let (words, _) = elements.as_chunks::<4>();
                Ok(words.iter().map(|&word| f32::from_le_bytes(word)).collect())
            }
            Err(error) => fail!(File, "a parameter cannot be read: {error}"),
        }
    }

    /// Returns the same rows in another order: the first axis is split into `extents`, which are permuted by `order`. GGUF's Llama has the pairs of each head interleaved, for instance. Blocks are not decoded.
    pub fn with_permuted_rows(&self, extents: &[u64], order: &[usize]) -> Result<Param> {
        let rows = self.shape.first().copied().unwrap_or(0);
        let bytes = self.bytes();
        let count = extents.iter().try_fold(1u64, |all, &one| all.checked_mul(one));
        if rows == 0 || count != Some(rows) || !(bytes.len() as u64).is_multiple_of(rows) {
            fail!(Parameter, "{rows} rows cannot be split into sizes {extents:?}");
        }
        let shape = [extents, &[bytes.len() as u64 / rows]].concat();
        let order = [order, &[extents.len()]].concat();
        let recipe = LazyTensor::new(bytes.clone(), DType::UInt8, &shape)
            .and_then(|recipe| recipe.permute(&order));
        let bytes = match recipe {
            Ok(recipe) => recipe.to_buffer(),
            Err(error) => fail!(Parameter, "rows cannot be permuted: {error}"),
        };
        let form = match &self.form {
            Form::Elements(dtype, _) => Form::Elements(*dtype, bytes),
            Form::Blocks(scheme, _) => Form::Blocks(*scheme, bytes),
        };
        Ok(Param { shape: self.shape.clone(), form })
    }

    /// Returns the transpose of a matrix of plain elements, which is computed when it is read.
    pub fn transposed(&self) -> Result<Param> {
        let (&[rows, columns], Form::Elements(dtype, bytes)) = (&self.shape[..], &self.form) else {
            fail!(
                Parameter,
                "only matrices of uncompressed elements can be transposed, got shape {:?}",
                self.shape
            );
        };
        let recipe = LazyTensor::new(bytes.clone(), *dtype, &self.shape)
            .and_then(|recipe| recipe.permute(&[1, 0]));
        match recipe {
            Ok(recipe) => Param::elements(*dtype, [columns, rows], recipe.to_buffer()),
            Err(error) => fail!(Parameter, "a matrix cannot be transposed: {error}"),
        }
    }

    /// Returns a range of rows: of the first axis. Blocks are not decoded.
    ///
    /// ```
    /// let table = coremill_graph::Param::floats([3, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0][..])?;
    /// assert_eq!(table.rows(1..3)?.to_floats()?, [3.0, 4.0, 5.0, 6.0]);
    /// # Ok::<(), coremill_graph::Error>(())
    /// ```
    pub fn rows(&self, range: Range<u64>) -> Result<Param> {
        let rows = self.shape.first().copied().unwrap_or(0);
        let bytes = self.bytes();
        let length = bytes.len() as u64;
        let fits = range.start <= range.end && range.end <= rows;
        if !fits || rows == 0 || !length.is_multiple_of(rows) {
            fail!(
                Parameter,
                "a tensor of {rows} rows has no rows {} to {}",
                range.start,
                range.end
            );
        }
        let row = length / rows;
        let Some(part) = bytes.slice((range.start * row) as usize..(range.end * row) as usize)
        else {
            fail!(Parameter, "rows {} to {} cannot be read", range.start, range.end);
        };
        let mut shape = self.shape.clone();
        shape[0] = range.end - range.start;
        let form = match &self.form {
            Form::Elements(dtype, _) => Form::Elements(*dtype, part),
            Form::Blocks(scheme, _) => Form::Blocks(*scheme, part),
        };
        Ok(Param { shape, form })
    }

    /// Returns the same tensor as plain floats, which are computed when they are read.
    pub fn to_dense(&self) -> Result<Param> {
        match &self.form {
            Form::Elements(..) => Ok(self.clone()),
            Form::Blocks(..) => Param::elements(DType::Fp32, self.shape.clone(), self.to_fp32()?),
        }
    }

    /// Returns the same elements with another shape.
    pub fn reshaped(&self, shape: impl Into<Vec<u64>>) -> Result<Param> {
        let shape = shape.into();
        let count = |shape: &[u64]| shape.iter().try_fold(1u64, |all, &one| all.checked_mul(one));
        let same = count(&shape) == count(&self.shape);
        // Blocks of several elements lie in rows.
        let is_plain = match &self.form {
            Form::Elements(..) => true,
            Form::Blocks(scheme, _) => scheme.storage_bytes(&[1]).is_some(),
        };
        let rows = is_plain || shape.last() == self.shape.last();
        if !same || !rows {
            fail!(Parameter, "a tensor of shape {:?} cannot be reshaped to {shape:?}", self.shape);
        }
        Ok(Param { shape, form: self.form.clone() })
    }
}

impl Params {
    /// Returns an empty set of tensors.
    pub fn new() -> Params {
        Params::default()
    }

    /// Sets a tensor.
    pub fn set(&mut self, name: impl Into<String>, param: Param) {
        self.entries.insert(name.into(), param);
    }

    /// Sets a float tensor. A vector is used without a copy; a slice is copied.
    pub fn set_floats<'e>(
        &mut self,
        name: impl Into<String>,
        shape: impl Into<Vec<u64>>,
        elements: impl Into<Cow<'e, [f32]>>,
    ) -> Result<()> {
        self.set(name, Param::floats(shape, elements)?);
        Ok(())
    }

    /// Stacks tensors of the same shape along a new first axis, for instance the experts of a layer, which
    /// transformers stores one by one. GGUF tensors keep their blocks.
    pub fn stack(&mut self, name: impl Into<String>, parts: &[impl AsRef<str>]) -> Result<()> {
        let mut all = Vec::with_capacity(parts.len());
        for part in parts {
            let part = part.as_ref();
            match self.entries.get(part) {
                Some(param) => all.push(param),
                None => fail!(Parameter, "no tensor `{part}` was loaded"),
            }
        }
        let Some(first) = all.first() else {
            fail!(Parameter, "expected at least one tensor to stack")
        };
        let (dtype, shape) = (first.bytes_type(), first.shape.clone());
        if all.iter().any(|param| param.bytes_type() != dtype || param.shape != shape) {
            fail!(Parameter, "tensors of different shapes or types cannot be stacked");
        }
        let recipes = all.iter().map(|param| {
            LazyTensor::new(param.bytes().clone(), DType::UInt8, &[param.bytes().len() as u64])
        });
        let recipe = recipes
            .collect::<std::result::Result<Vec<_>, _>>()
            .and_then(|recipes| LazyTensor::concat(recipes, 0));
        let bytes = match recipe {
            Ok(recipe) => recipe.to_buffer(),
            Err(error) => fail!(Parameter, "tensors cannot be stacked: {error}"),
        };
        let form = match &first.form {
            Form::Elements(dtype, _) => Form::Elements(*dtype, bytes),
            Form::Blocks(scheme, _) => Form::Blocks(*scheme, bytes),
        };
        let shape = [vec![all.len() as u64], shape].concat();
        self.entries.insert(name.into(), Param { shape, form });
        Ok(())
    }

    /// Returns the tensor with this name.
    pub fn get(&self, name: &str) -> Option<&Param> {
        self.entries.get(name)
    }

    /// Removes a tensor and returns it.
    pub fn remove(&mut self, name: &str) -> Option<Param> {
        self.entries.remove(name)
    }

    /// All tensors, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Param)> {
        self.entries.iter().map(|(name, param)| (name.as_str(), param))
    }

    /// Number of tensors.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no tensors.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

impl TryFrom<&Array> for Param {
    type Error = crate::Error;

    fn try_from(array: &Array) -> Result<Param> {
        let shape: Vec<u64> = array.shape().iter().map(|&extent| extent as u64).collect();
        match array.to_bytes() {
            Some(bytes) => Param::elements(array.dtype(), shape, Buffer::from(bytes)),
            None => fail!(Parameter, "an array of `{}` cannot be a parameter", array.dtype()),
        }
    }
}
