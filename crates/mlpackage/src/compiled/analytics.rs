//! `analytics/coremldata.bin`: a file of named tables, which Core ML requires.
//!
//! All numbers are little-endian. A string is its length as `u64` followed by its bytes. A table is its name,
//! the number of its entries as `u64`, and a key and a value for each entry. `modelHash` is the SHA-256 hash
//! of the model file in base64, as in all available models of Apple's compiler.

use sha2::{Digest, Sha256};

/// The tables of an ML Program. `name` is the name of the model file without its extension.
pub(super) fn write(model_file: &[u8], name: &str) -> Vec<u8> {
    let mut bytes = of_stage();
    specification(&mut bytes, model_file, name);
    bytes
}

/// The table of a stage in a pipeline.
pub(super) fn of_stage() -> Vec<u8> {
    let mut bytes = Vec::new();
    table(
        &mut bytes,
        "NeuralNetworkModelDetails",
        &[("containsCustomLayer", "0"), ("modelDimension", "0")],
    );
    bytes
}

/// The tables of a pipeline.
pub(super) fn of_pipeline(model_file: &[u8], name: &str, stages: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    table(&mut bytes, "PipelineModelDetails", &[("modelDimension", &stages.to_string())]);
    specification(&mut bytes, model_file, name);
    bytes
}

fn specification(bytes: &mut Vec<u8>, model_file: &[u8], name: &str) {
    let hash = base64(&Sha256::digest(model_file));
    table(bytes, "SpecificationDetails", &[("modelHash", &hash), ("modelName", name)]);
}

fn table(bytes: &mut Vec<u8>, name: &str, entries: &[(&str, &str)]) {
    text(bytes, name);
    bytes.extend((entries.len() as u64).to_le_bytes());
    for (key, value) in entries {
        text(bytes, key);
        text(bytes, value);
    }
}

fn text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(text.as_bytes());
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let byte = |index: usize| u32::from(group.get(index).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..4 {
            let index = bits >> (18 - 6 * digit) & 63;
            let padded = digit > group.len();
            text.push(if padded { '=' } else { char::from(DIGITS[index as usize]) });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::base64;

    #[test]
    fn base64_of_each_length() {
        for (bytes, text) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")]
        {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
    }
}
