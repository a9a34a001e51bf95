//! `.safetensors` files: 8 bytes with the length of the header, the header in JSON, the elements.

use coremill_tensor::{Buffer, DType};

use super::part;
use crate::params::Param;

/// Maximum length of the header, as in the format's own reader.
const MAX_HEADER_BYTES: u64 = 100 << 20;

pub(super) fn parse(file: &Buffer) -> Result<Vec<(String, Param)>, String> {
    let mut length = [0; 8];
    file.read_at(0, &mut length).map_err(|_| "is neither safetensors nor GGUF".to_owned())?;
    let length = u64::from_le_bytes(length);
    let header = part(file, 8, length).filter(|_| length <= MAX_HEADER_BYTES);
    let Some(header) = header else {
        return Err(format!(
            "is neither safetensors nor GGUF: a header of {length} bytes does not fit"
        ));
    };
    let mut text = vec![0; header.len()];
    header.read_at(0, &mut text).map_err(|error| error.to_string())?;
    let header: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(&text)
        .map_err(|error| {
            format!("is neither safetensors nor GGUF: its header is not valid JSON ({error})")
        })?;
    let mut tensors = Vec::with_capacity(header.len());
    for (name, entry) in &header {
        if name == "__metadata__" {
            continue;
        }
        let field =
            |key: &str| entry.get(key).ok_or_else(|| format!("tensor `{name}` has no `{key}`"));
        let numbers = |key: &str| -> Result<Vec<u64>, String> {
            let numbers =
                field(key)?.as_array().map(|all| all.iter().map(|n| n.as_u64()).collect());
            numbers
                .flatten()
                .ok_or_else(|| format!("`{key}` of tensor `{name}` is not a list of integers"))
        };
        let dtype = field("dtype")?.as_str().unwrap_or_default();
        let Some(element) = element_type(dtype) else {
            return Err(format!(
                "tensor `{name}` has element type `{dtype}`, which Core ML does not support"
            ));
        };
        let shape = numbers("shape")?;
        let &[start, end] = numbers("data_offsets")?.as_slice() else {
            return Err(format!("`data_offsets` of tensor `{name}` must be two numbers"));
        };
        let bytes = end
            .checked_sub(start)
            .and_then(|size| part(file, start.checked_add(length)?.checked_add(8)?, size));
        let Some(bytes) = bytes else {
            return Err(format!("tensor `{name}` extends beyond the end of the file"));
        };
        let param = Param::elements(element, shape, bytes);
        tensors.push((name.clone(), param.map_err(|error| format!("tensor `{name}`: {error}"))?));
    }
    Ok(tensors)
}

fn element_type(name: &str) -> Option<DType> {
    Some(match name {
        "BOOL" => DType::Bool,
        "U8" => DType::UInt8,
        "I8" => DType::Int8,
        "U16" => DType::UInt16,
        "I16" => DType::Int16,
        "U32" => DType::UInt32,
        "I32" => DType::Int32,
        "U64" => DType::UInt64,
        "I64" => DType::Int64,
        "F16" => DType::Fp16,
        "BF16" => DType::Bf16,
        "F32" => DType::Fp32,
        "F64" => DType::Fp64,
        "F8_E4M3" => DType::Fp8E4M3Fn,
        "F8_E5M2" => DType::Fp8E5M2,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: &str, data: &[u8]) -> Buffer {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.extend(data);
        Buffer::from(bytes)
    }

    #[test]
    fn reads_tensors_at_header_offsets() {
        let header =
            r#"{"__metadata__":{"a":"b"},"w":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}"#;
        let data: Vec<u8> = [9.0f32, 1.5, -2.0].iter().flat_map(|x| x.to_le_bytes()).collect();
        let tensors = parse(&file(header, &data)).expect("a valid file");
        assert_eq!(tensors[0].0, "w");
        assert_eq!(tensors[0].1.to_floats().expect("floats"), [1.5, -2.0]);
    }

    #[test]
    fn rejects_invalid_offsets_shapes_and_headers() {
        let beyond = r#"{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
        assert!(
            parse(&file(beyond, &[0; 4])).expect_err("truncated data").contains("beyond the end")
        );
        let mismatched = r#"{"w":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}"#;
        assert!(
            parse(&file(mismatched, &[0; 8])).expect_err("wrong shape").contains("do not fill")
        );
        let huge = r#"{"w":{"dtype":"F32","shape":[9223372036854775807,4],"data_offsets":[0,8]}}"#;
        assert!(parse(&file(huge, &[0; 8])).expect_err("huge shape").contains("do not fill"));
        assert!(parse(&Buffer::from(vec![255; 64])).expect_err("noise").contains("neither"));
        assert!(parse(&Buffer::from(vec![])).expect_err("empty").contains("neither"));
    }
}
