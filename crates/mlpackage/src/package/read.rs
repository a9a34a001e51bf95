use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

use coremill_tensor::Buffer;

use super::decode::{self, ModelContent};
use super::directory::{read_one, read_whole};
use super::error::{Error, ErrorKind};
use super::manifest;
use super::tree::Source;
use super::weights::WeightFiles;
use crate::pipeline::Pipeline;
use coremill_mil::limits;
use coremill_mil::model::{Extra, ExtraFile, Model};

type Result<T> = std::result::Result<T, Error>;

/// Reads a model: a package, or a model file with its weights next to it. The stages of a pipeline are linked
/// into one model.
///
/// Weights stay in their files, which must not be truncated while the model is in memory.
pub fn read(path: &Path) -> Result<Model> {
    read_any(path)?.into_model()
}

/// Reads a pipeline: a package, or a model file with its weights next to it; `None` if the model is not a
/// pipeline.
pub fn read_pipeline(path: &Path) -> Result<Option<Pipeline>> {
    Ok(read_any(path)?.into_pipeline())
}

fn read_any(path: &Path) -> Result<ModelContent> {
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let message = format!("{}: no such file or directory", path.display());
            return Err(Error::new(ErrorKind::NotAModel, message));
        }
        Err(error) => return Err(Error::io(format!("examine {}", path.display()), error)),
    };
    if metadata.is_dir() {
        read_one(path, || read_package(&Source::Directory(path)))
    } else {
        read_model_file(path)
    }
}

/// Reads a model file in memory; its weights have locations but no elements.
pub fn from_bytes(bytes: &[u8]) -> Result<Model> {
    decode::model(bytes)
}

/// Reads a package whose files are in memory, or inside another file, by path.
pub fn from_tree(files: impl IntoIterator<Item = (String, Buffer)>) -> Result<Model> {
    read_package(&Source::in_memory(files)?)?.into_model()
}

fn read_model_file(path: &Path) -> Result<ModelContent> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or(manifest::MODEL_FILE);
    let within = |error: Error| error.in_file(name);
    let bytes = read_whole(path, limits::MODEL_BYTES).map_err(within)?;
    let mut decoded = decode::any(&bytes).map_err(within)?;
    drop(bytes);
    let weights = WeightFiles::in_directory(path.parent().unwrap_or(Path::new("")));
    load(&weights, &mut decoded)?;
    Ok(decoded)
}

fn load(weights: &WeightFiles, decoded: &mut ModelContent) -> Result<()> {
    decoded.programs_mut().into_iter().try_for_each(|program| weights.load(program))
}

fn read_package(source: &Source<'_>) -> Result<ModelContent> {
    let listing = source.list()?;
    if !listing.files.contains_key(manifest::FILE) {
        let message = format!("{} contains no `{}`", source.shown(), manifest::FILE);
        let hint = match listing.files.contains_key("coremldata.bin") {
            true => "this is a compiled model (.mlmodelc), not a package",
            false => "a package (.mlpackage) is a directory with a manifest in it",
        };
        return Err(Error::new(ErrorKind::NotAModel, message).with_hint(hint));
    }
    let bytes = source
        .read(manifest::FILE, limits::MANIFEST_BYTES)
        .map_err(|error| error.in_file(manifest::FILE))?;
    let manifest = manifest::parse(&bytes)?;
    // Files in memory do not include empty directories.
    let is_seen = matches!(source, Source::Directory(_));
    let items = manifest.items.iter().filter(|_| is_seen);
    for item in items.chain([&manifest.root]) {
        if !listing.contains(&format!("{}/{}", manifest::DATA, item.path)) {
            let message = format!(
                "the package has no file `{1}` for the item `{0}`",
                item.identifier, item.path
            );
            return Err(Error::new(ErrorKind::Manifest, message).in_file(manifest::FILE));
        }
    }

    let model_path = format!("{}/{}", manifest::DATA, manifest.root.path);
    if !listing.files.contains_key(&model_path) {
        let message = format!("the model `{}` is a directory", manifest.root.path);
        return Err(Error::new(ErrorKind::Manifest, message).in_file(manifest::FILE));
    }
    let within = |error: Error| error.in_file(&*model_path);
    let bytes = source.read(&model_path, limits::MODEL_BYTES).map_err(within)?;
    let mut decoded = decode::any(&bytes).map_err(within)?;
    drop(bytes);

    let directory = model_path.rsplit_once('/').map_or("", |(directory, _)| directory);
    let weights = source.weights(directory);
    load(&weights, &mut decoded)?;

    let mut known: BTreeSet<String> = [manifest::FILE.to_owned(), model_path.clone()].into();
    let opened = weights.opened();
    known.extend(opened.iter().map(|path| format!("{directory}/{path}")));
    let below_data = directory.strip_prefix(manifest::DATA).unwrap_or("").trim_start_matches('/');
    let mut ours = manifest::weight_items(opened.iter().map(String::as_str));
    // Converters list this directory even if it contains no weights.
    if !listing.files.keys().any(|file| file.starts_with(&format!("{directory}/weights/"))) {
        ours.push("weights");
    }
    let ours: BTreeSet<String> =
        ours.into_iter()
            .map(|name| {
                if below_data.is_empty() { name.to_owned() } else { format!("{below_data}/{name}") }
            })
            .collect();
    *decoded.extra_mut() = Extra {
        files: extra_files(source, listing.files, &known)?,
        items: manifest.items.into_iter().filter(|item| !ours.contains(&item.path)).collect(),
    };
    Ok(decoded)
}

/// The unknown files of a package; small ones are read, large ones are mapped.
fn extra_files(
    source: &Source<'_>,
    files: impl IntoIterator<Item = (String, u64)>,
    known: &BTreeSet<String>,
) -> Result<Vec<ExtraFile>> {
    let mut found = Vec::new();
    let mut large = 0;
    for (path, bytes) in files {
        if known.contains(&path) {
            continue;
        }
        let content = if bytes <= limits::SMALL_FILE_BYTES {
            let content = source.read(&path, limits::SMALL_FILE_BYTES);
            Buffer::from(content.map_err(|error| error.in_file(&*path))?)
        } else {
            large += 1;
            if large > limits::LARGE_EXTRA_FILES {
                let limit = limits::LARGE_EXTRA_FILES;
                let message = format!("the package contains more than {limit} large unknown files");
                return Err(Error::new(ErrorKind::Limit, message));
            }
            source.map(&path)?
        };
        found.push(ExtraFile { path, content });
    }
    Ok(found)
}
