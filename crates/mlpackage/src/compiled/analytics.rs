//! `analytics/coremldata.bin`: a file of named tables, which Core ML requires.
//!
//! All numbers are little-endian. A string is its length as `u64` followed by its bytes. A table is its name,
//! the number of its entries as `u64`, and a key and a value for each entry. `modelHash` is the SHA-256 hash
//! of the model file in base64, as in all available models of Apple's compiler.

use coremill_io::base64;
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
    let hash = base64::encode(&Sha256::digest(model_file));
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
