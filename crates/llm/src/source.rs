//! Files of language models: GGUF, whole or split, and folders as transformers writes them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use coremill_graph::{Gguf, MetadataValue, Params};
use serde_json::Value;

use crate::arrange::{restore_axes, separate_pairs, stack_experts, transpose_matrices};
use crate::config::Config;
use crate::error::{Error, ErrorKind, Result, fail};
use crate::families::{Family, Pairs};

/// Most bytes of a file of settings. Vocabularies have some megabytes.
const MAX_TEXT_BYTES: u64 = 64 << 20;

/// Most files that a GGUF model is split into.
const MAX_PARTS: u64 = 1000;

/// Start of the files of whisper.cpp: `ggml` as a number in little-endian order.
const GGML: &[u8] = b"lmgg";

/// Source of a model's settings and vocabulary.
#[derive(Debug)]
pub(crate) enum Origin {
    /// Metadata of a GGUF file.
    Gguf(BTreeMap<String, MetadataValue>),
    /// A folder with `config.json`.
    Folder(PathBuf),
}

/// The files of a model.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) origin: Origin,
    pub(crate) config: Config,
    pub(crate) params: Params,
}

impl Source {
    pub(crate) fn open(path: &Path) -> Result<Source> {
        let is_safetensors = path.extension().is_some_and(|extension| extension == "safetensors");
        if path.is_dir() {
            return of_folder(path, None);
        }
        if is_safetensors {
            let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            return of_folder(folder.unwrap_or(Path::new(".")), Some(path));
        }
        refuse_ggml(path)?;
        of_gguf(path).map_err(|error| error.within(path))
    }
}

impl Origin {
    /// The model's name on the Hugging Face Hub, `OWNER/NAME`, if the files state it.
    pub(crate) fn hub_name(&self) -> Option<String> {
        match self {
            Origin::Gguf(metadata) => {
                let text = |key: &str| metadata.get(key).and_then(MetadataValue::as_str);
                let name = |key: &&str| text(key).and_then(of_address);
                HUB_ADDRESSES.iter().find_map(name)
            }
            Origin::Folder(folder) => {
                let config = read_json(&folder.join("config.json")).ok()?;
                let name = config["_name_or_path"].as_str()?;
                is_hub_name(name).then(|| name.to_owned())
            }
        }
    }
}

/// Keys of GGUF metadata with the address of the model on the Hugging Face Hub, or of the model that it was made of.
const HUB_ADDRESSES: [&str; 4] = [
    "general.source.huggingface.repository",
    "general.source.repo_url",
    "general.repo_url",
    "general.base_model.0.repo_url",
];

/// The name in an address on the Hugging Face Hub.
fn of_address(address: &str) -> Option<String> {
    let name = address.strip_prefix("https://huggingface.co/").unwrap_or(address);
    is_hub_name(name).then(|| name.to_owned())
}

/// Whether a text is `OWNER/NAME` rather than a path.
fn is_hub_name(text: &str) -> bool {
    let is_word = |word: &str| {
        !word.is_empty()
            && !word.starts_with('.')
            && word.chars().all(|it| it.is_ascii_alphanumeric() || "-_.".contains(it))
    };
    text.split_once('/').is_some_and(|(owner, name)| is_word(owner) && is_word(name))
}

/// Refuses files of whisper.cpp.
pub(crate) fn refuse_ggml(path: &Path) -> Result<()> {
    let mut magic = [0; 4];
    let file = fs::File::open(path).ok().filter(|_| path.is_file());
    let is_read = file.is_some_and(|mut file| file.read_exact(&mut magic).is_ok());
    if is_read && magic == GGML {
        let message =
            format!("{} is a whisper.cpp ggml file, which is not supported", path.display());
        let error = Error::of_kind(ErrorKind::Unsupported, message);
        return Err(error.with_hint(
            "pass the folder of the same model with `config.json` and safetensors, as saved by transformers",
        ));
    }
    Ok(())
}

/// Reads a file of settings or of a vocabulary, which must not be larger than such files are.
pub(crate) fn read_bytes(path: &Path) -> Result<Vec<u8>> {
    let file = fs::File::open(path).map_err(|error| Error::io("read", path, error))?;
    let mut bytes = Vec::new();
    let mut limited = file.take(MAX_TEXT_BYTES + 1);
    limited.read_to_end(&mut bytes).map_err(|error| Error::io("read", path, error))?;
    if bytes.len() as u64 > MAX_TEXT_BYTES {
        let path = path.display();
        fail!(Format, "{path} must have at most {MAX_TEXT_BYTES} bytes");
    }
    Ok(bytes)
}

/// Reads a file of text.
pub(crate) fn read_text(path: &Path) -> Result<String> {
    String::from_utf8(read_bytes(path)?).map_err(|error| {
        let message = format!("{} is not UTF-8 text", path.display());
        Error::of_kind(ErrorKind::Format, message).with_source(error)
    })
}

pub(crate) fn read_json(path: &Path) -> Result<Value> {
    serde_json::from_str(&read_text(path)?).map_err(|error| {
        let message = format!("{} is not valid JSON: {error}", path.display());
        Error::of_kind(ErrorKind::Format, message).with_source(error)
    })
}

fn of_folder(folder: &Path, weights: Option<&Path>) -> Result<Source> {
    let config_path = folder.join("config.json");
    if !config_path.is_file() {
        let message = format!("{} has no `config.json`", folder.display());
        let error = Error::of_kind(ErrorKind::File, message);
        return Err(error.with_hint("pass a `.gguf` file, or a folder saved by transformers"));
    }
    let root = read_json(&config_path)?;
    let family = Family::of_json(&root).map_err(|error| error.within(&config_path))?;
    let mut params = Params::new();
    for path in shards(folder, weights)? {
        params.load_as(&path, |name| family.name_of_folder(name))?;
    }
    stack_experts(&mut params)?;
    if family.transposed {
        transpose_matrices(&mut params)?;
    }
    let config = Config::of_json(&root, &params).map_err(|error| error.within(&config_path))?;
    if family.pairs == Pairs::Interleaved {
        separate_pairs(&config, &mut params)?;
    }
    Ok(Source { origin: Origin::Folder(folder.to_owned()), config, params })
}

/// The files of weights in a folder.
pub(crate) fn shards(folder: &Path, weights: Option<&Path>) -> Result<Vec<PathBuf>> {
    if let Some(path) = weights {
        return Ok(vec![path.to_owned()]);
    }
    let single = folder.join("model.safetensors");
    if single.is_file() {
        return Ok(vec![single]);
    }
    let index = folder.join("model.safetensors.index.json");
    if !index.is_file() {
        let message = format!("{} has no `model.safetensors`", folder.display());
        let error = Error::of_kind(ErrorKind::File, message);
        return Err(error.with_hint("weights of other formats must be saved as safetensors first"));
    }
    let read = read_json(&index)?;
    let Some(map) = read["weight_map"].as_object() else {
        fail!(Format, "{} has no `weight_map`", index.display());
    };
    let names: BTreeSet<&str> = map.values().filter_map(Value::as_str).collect();
    for name in &names {
        let is_plain = Path::new(name).file_name().is_some_and(|plain| plain == *name);
        if !is_plain {
            fail!(Format, "{} names `{name}`, which is not in its folder", index.display());
        }
    }
    Ok(names.into_iter().map(|name| folder.join(name)).collect())
}

/// The files of a split model, in order.
fn parts(path: &Path, first: &Gguf) -> Result<Vec<PathBuf>> {
    let count = first.metadata.get("split.count").and_then(MetadataValue::as_u64).unwrap_or(1);
    if count <= 1 {
        return Ok(Vec::new());
    }
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let Some(stem) = name.strip_suffix(&format!("-00001-of-{count:05}.gguf")) else {
        let error = Error::of_kind(
            ErrorKind::Argument,
            format!("the file is one of {count} parts of a model"),
        );
        return Err(error.with_hint(format!("pass the first part, `-00001-of-{count:05}.gguf`")));
    };
    if count > MAX_PARTS {
        fail!(Format, "a model must have at most {MAX_PARTS} parts, got {count}");
    }
    Ok((2..=count)
        .map(|part| path.with_file_name(format!("{stem}-{part:05}-of-{count:05}.gguf")))
        .collect())
}

fn of_gguf(path: &Path) -> Result<Source> {
    let first = Gguf::open(path)?;
    let rest = parts(path, &first)?;
    let others = rest.iter().map(Gguf::open).collect::<std::result::Result<Vec<_>, _>>()?;
    let family = Family::of_metadata(&first.metadata);
    let mut params = Params::new();
    let mut factors: [Vec<f64>; 3] = Default::default();
    let names = ["rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight"];
    for gguf in std::iter::once(&first).chain(&others) {
        for (name, param) in gguf.tensors() {
            if let Some(kind) = names.iter().position(|known| name.ends_with(known)) {
                factors[kind] = param.to_floats()?.into_iter().map(f64::from).collect();
            } else if let Some(name) = family.and_then(|family| family.name_of_gguf(name)) {
                params.set(name, param.clone());
            }
        }
        for (name, _) in &gguf.unsupported {
            let used = family.and_then(|family| family.name_of_gguf(name)).is_some();
            if let Some(refusal) = gguf.refusal(name).filter(|_| used) {
                fail!(Unsupported, "{refusal}");
            }
        }
    }
    if let Some(family) = family {
        stack_experts(&mut params)?;
        restore_axes(family, &mut params)?;
    }
    let config = match Config::of_gguf(&first.metadata, &params, factors) {
        Err(error) if family.is_none() => return Err(error),
        other => other?,
    };
    if config.family.pairs != Pairs::Split {
        separate_pairs(&config, &mut params)?;
    }
    Ok(Source { origin: Origin::Gguf(first.metadata), config, params })
}
