//! Parameters, buffers and constants of the archive as Core ML's constants.

use coremill_mil::ir::Constant;
use coremill_pt2::{ScalarType, Stored, Tensor};
use coremill_tensor::Buffer;
use half::{bf16, f16};

use super::dtype::core_dtype;
use crate::error::{Refusal, refuse};

/// The constant for a stored tensor.
pub(crate) fn constant(name: &str, stored: &Stored) -> Result<Constant, Refusal> {
    let tensor = match stored {
        Stored::Tensor(tensor) => tensor,
        Stored::Missing { .. } => {
            return Err(Refusal::new(format!("the archive has no elements for `{name}`"))
                .hint("export the model with real weights, not under a fake or meta device"));
        }
        Stored::Object(_) => {
            return Err(Refusal::new(format!(
                "`{name}` is a Python object or a tensor of a Python class, not a plain tensor"
            )));
        }
    };
    if tensor.dtype.is_complex() {
        refuse!("`{name}` is complex");
    }
    let dtype = core_dtype(tensor.dtype)?;
    let bytes = elements(name, tensor)?;
    Ok(Constant::by_size(dtype, &tensor.sizes, bytes))
}

fn elements(name: &str, tensor: &Tensor) -> Result<Buffer, Refusal> {
    use ScalarType::*;
    if matches!(tensor.dtype, Float32 | Int32 | Bool)
        && let Some(bytes) = tensor.contiguous()
    {
        return Ok(bytes);
    }
    let bytes = tensor.bytes().map_err(|error| Refusal::new(format!("`{name}`: {error}")))?;
    let bytes = bytes.as_ref();
    Ok(Buffer::from(match tensor.dtype {
        Float32 | Int32 | UInt32 | Bool => bytes.to_vec(),
        Float64 => floats(bytes, |raw: [u8; 8]| f64::from_le_bytes(raw) as f32),
        Float16 => floats(bytes, |raw| f16::from_le_bytes(raw).to_f32()),
        BFloat16 => floats(bytes, |raw| bf16::from_le_bytes(raw).to_f32()),
        UInt8 => ints(name, bytes, |raw: [u8; 1]| i64::from(raw[0]))?,
        Int8 => ints(name, bytes, |raw: [u8; 1]| i64::from(raw[0] as i8))?,
        Int16 => ints(name, bytes, |raw| i64::from(i16::from_le_bytes(raw)))?,
        UInt16 => ints(name, bytes, |raw| i64::from(u16::from_le_bytes(raw)))?,
        Int64 | UInt64 => ints(name, bytes, i64::from_le_bytes)?,
        other => refuse!("`{name}` has element type `{other}`, which Core ML has no constants of"),
    }))
}

fn floats<const N: usize>(bytes: &[u8], read: impl Fn([u8; N]) -> f32) -> Vec<u8> {
    let (elements, _) = bytes.as_chunks::<N>();
    elements.iter().flat_map(|&raw| read(raw).to_le_bytes()).collect()
}

fn ints<const N: usize>(
    name: &str,
    bytes: &[u8],
    read: impl Fn([u8; N]) -> i64,
) -> Result<Vec<u8>, Refusal> {
    let (elements, _) = bytes.as_chunks::<N>();
    let mut converted = Vec::with_capacity(elements.len() * 4);
    for &raw in elements {
        let value = read(raw);
        // The largest and the smallest of 64 bits stand for "no bound" in torch's programs.
        let narrowed = match value {
            i64::MAX => i32::MAX,
            i64::MIN => i32::MIN,
            value => i32::try_from(value).map_err(|_| {
                Refusal::new(format!(
                    "`{name}` holds {value}, which does not fit the 32 bits that Core ML's integers have"
                ))
            })?,
        };
        converted.extend(narrowed.to_le_bytes());
    }
    Ok(converted)
}
