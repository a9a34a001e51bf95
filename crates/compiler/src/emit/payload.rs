//! What a delegate is given: a model and what ExecuTorch's backend wants to know of it, as a flattened directory.

use coremill_mil::model::Model;
use coremill_mil::package;
use coremill_mil::verify::verify;
use coremill_pte::Data;
use coremill_tensor::Buffer;
use serde_json::json;

use crate::error::{Error, Refusal};

/// The form of the model in the payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ModelType {
    /// A package, which the device compiles when it is loaded first.
    #[default]
    Model,
    /// A compiled model.
    CompiledModel,
}

/// A payload.
pub(crate) struct Payload {
    /// Derived from the content.
    pub(crate) identifier: String,
    pub(crate) data: Data,
}

/// The payload of a model. With several functions it is described by method.
pub(crate) fn payload(model: &Model, kind: ModelType, root: &str) -> Result<Payload, Error> {
    let verified = verify(model).map_err(|report| {
        let first = report.diagnostics.first();
        Error::Fault(first.map_or_else(String::new, |diagnostic| diagnostic.message.clone()))
    })?;
    let unwritable = |error: package::Error| Error::Program(Refusal::new(error.to_string()));
    let (name, files) = match kind {
        ModelType::Model => ("model.mlpackage", package::to_files(&verified).map_err(unwritable)?),
        ModelType::CompiledModel => {
            return Err(Error::Program(Refusal::new("compiled models are not written yet")));
        }
    };
    let mut content = blake3::Hasher::new();
    for (path, file) in &files {
        content.update(&(path.len() as u64).to_le_bytes());
        content.update(path.as_bytes());
        // The manifest stands for the weights, whose hashes it derives from.
        if file.is_deferred() {
            continue;
        }
        content.update(&(file.len() as u64).to_le_bytes());
        content.update(super::pool::hash(&Data::from(file.clone()))?.as_bytes());
    }
    let identifier = identifier(&content.finalize());
    let metadata = metadata(model, &identifier);
    let mut all = vec![("metadata.json".to_owned(), Buffer::from(metadata.into_bytes()))];
    all.extend(files.into_iter().map(|(path, file)| (format!("{name}/{path}"), file)));
    Ok(Payload { identifier, data: flatten(root, all) })
}

/// What a delegate is given whose payload is in the program's named data.
pub(crate) fn reference(key: &str, function: &str) -> Vec<u8> {
    let reference = json!({ "version": 1, "key": key, "functionName": function });
    let mut bytes = b"CMJR".to_vec();
    bytes.extend(reference.to_string().into_bytes());
    bytes
}

fn metadata(model: &Model, identifier: &str) -> String {
    let signatures = model.signatures();
    let names = |features: &[coremill_mil::model::FeatureDescription]| -> Vec<String> {
        features.iter().map(|feature| feature.name.clone()).collect()
    };
    let metadata = match signatures.as_slice() {
        [only] if model.description.functions.is_empty() => json!({
            "inputNames": names(only.inputs),
            "outputNames": names(only.outputs),
            "identifier": identifier,
        }),
        several => {
            let methods = several.iter().map(|signature| {
                let described = json!({
                    "inputNames": names(signature.inputs),
                    "outputNames": names(signature.outputs),
                });
                (signature.name.to_owned(), described)
            });
            let methods: serde_json::Map<_, _> = methods.collect();
            json!({ "identifier": identifier, "methods": methods })
        }
    };
    metadata.to_string()
}

/// A name in the form of ExecuTorch's, which devices keep compiled models by.
fn identifier(content: &blake3::Hash) -> String {
    let mut hasher = blake3::Hasher::new_derive_key("coremill delegate payload identifier");
    hasher.update(content.as_bytes());
    let mut bytes = [0; 16];
    hasher.finalize_xof().fill(&mut bytes);
    bytes[6] = bytes[6] & 0x0f | 0x80;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let part = |range: std::ops::Range<usize>| hex[range].concat();
    format!(
        "executorch_{}-{}-{}-{}-{}",
        part(0..4),
        part(4..6),
        part(6..8),
        part(8..10),
        part(10..16)
    )
}

/// Files one after the other, then where they lie, written backwards.
fn flatten(root: &str, files: Vec<(String, Buffer)>) -> Data {
    #[derive(Default)]
    struct Directory {
        entries: std::collections::BTreeMap<String, Entry>,
    }
    enum Entry {
        File(Buffer),
        Directory(Directory),
    }
    fn add(directory: &mut Directory, path: &str, file: Buffer) {
        match path.split_once('/') {
            None => {
                directory.entries.insert(path.to_owned(), Entry::File(file));
            }
            Some((first, rest)) => {
                let entry = directory
                    .entries
                    .entry(first.to_owned())
                    .or_insert_with(|| Entry::Directory(Directory::default()));
                if let Entry::Directory(inner) = entry {
                    add(inner, rest, file);
                }
            }
        }
    }
    fn list(
        name: &str,
        directory: Directory,
        nodes: &mut Vec<serde_json::Value>,
        data: &mut Data,
    ) -> usize {
        let mut children = serde_json::Map::new();
        for (child, entry) in directory.entries {
            let index = match entry {
                Entry::File(file) => {
                    let region = json!({ "offset": data.len(), "size": file.len() });
                    data.push(file);
                    nodes.push(json!({
                        "children": {}, "dataRegion": region, "kind": 0, "name": child,
                    }));
                    nodes.len() - 1
                }
                Entry::Directory(inner) => list(&child, inner, nodes, data),
            };
            children.insert(child, json!(index));
        }
        nodes.push(json!({
            "children": children, "dataRegion": { "offset": 0, "size": 0 }, "kind": 1, "name": name,
        }));
        nodes.len() - 1
    }
    let mut top = Directory::default();
    files.into_iter().for_each(|(path, file)| add(&mut top, &path, file));
    let (mut nodes, mut data) = (Vec::new(), Data::new());
    list(root, top, &mut nodes, &mut data);
    let mut listing = json!({ "nodes": nodes }).to_string().into_bytes();
    listing.reverse();
    data.push(listing);
    data
}
