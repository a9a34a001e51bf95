//! A small model, and one with several layers.

use std::fs;
use std::path::{Path, PathBuf};

use coremill_llm::LanguageModel;
use serde_json::{Value, json};

/// Layers of the deep model.
pub(crate) const LAYERS: usize = 3;

pub(crate) fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../cli/tests/files/tiny")
}

/// The small model with copies of its layer. Their weights are scaled, so that an exchange of layers would be found.
pub(crate) fn deep(folder: &Path) -> LanguageModel {
    fs::create_dir_all(folder).expect("a folder");
    for entry in fs::read_dir(tiny()).expect("the model") {
        let entry = entry.expect("an entry");
        fs::copy(entry.path(), folder.join(entry.file_name())).expect("a copy");
    }
    let config = fs::read_to_string(folder.join("config.json")).expect("a text");
    let layers = format!("\"num_hidden_layers\": {LAYERS}");
    fs::write(folder.join("config.json"), config.replace("\"num_hidden_layers\": 1", &layers))
        .expect("written");
    let path = folder.join("model.safetensors");
    let bytes = fs::read(&path).expect("weights");
    let length = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")) as usize;
    let mut header: Value = serde_json::from_slice(&bytes[8..8 + length]).expect("JSON");
    let mut data = bytes[8 + length..].to_vec();
    for (name, tensor) in header.clone().as_object().expect("tensors") {
        let Some(rest) = name.strip_prefix("model.layers.0.") else { continue };
        let [start, end] =
            [0, 1].map(|at| tensor["data_offsets"][at].as_u64().expect("an offset") as usize);
        for layer in 1..LAYERS {
            let first = data.len();
            for pair in data[start..end].to_vec().as_chunks::<2>().0 {
                let value = half::f16::from_le_bytes(*pair).to_f32() * (1.0 + layer as f32 / 4.0);
                data.extend(half::f16::from_f32(value).to_le_bytes());
            }
            let mut copy = tensor.clone();
            copy["data_offsets"] = json!([first, data.len()]);
            header[format!("model.layers.{layer}.{rest}")] = copy;
        }
    }
    let header = header.to_string().into_bytes();
    let parts = [&(header.len() as u64).to_le_bytes()[..], &header, &data];
    fs::write(&path, parts.concat()).expect("written");
    LanguageModel::open(folder).expect("opens")
}
