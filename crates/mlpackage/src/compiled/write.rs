use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;

use coremill_io::create_directories_below;
use coremill_tensor::Buffer;

use super::{Error, ErrorKind, analytics, build_info, container, file, metadata, names};
use crate::package::directory::{self, StagingDirectory};
use crate::package::tree::{Files, PendingPackage, VirtualDirectory};
use crate::package::weights::{Layout, WrittenFile};
use crate::package::{encode, manifest};
use coremill_mil::ir::Weight;
use coremill_mil::model::{Model, ModelDescription, shapes};
use coremill_mil::text::{self, AddedAttributes, PrintOptions};
use coremill_verify::Verified;

/// Options for writing a compiled model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriteOptions {
    /// Name of the model file without its extension. With `None`, the name of the file is `model`, as in
    /// packages, and the name of the generated class is the name of the directory.
    pub name: Option<String>,
    /// Whether to wait until all data is on the disk before the model is moved into place, so that a power
    /// failure cannot leave a partial model. A killed writer never does, with either setting.
    pub durable: bool,
}

/// Writes a compiled model. An existing model at the path is replaced in one step after everything is
/// written.
///
/// The same model and name always result in the same bytes.
pub fn write(path: &Path, verified: &Verified<'_>, options: &WriteOptions) -> Result<(), Error> {
    let names = Names::of(path, options);
    let PendingModel { files, layout } = prepare(verified, &names)?;
    put(path, options, |root| {
        for (name, content) in &files {
            create(root, options, name, content)?;
        }
        layout.write_and_hash(root, options.durable).map(|_| ())
    })
}

/// Writes a directory and moves it into place in one step.
pub(super) fn put(
    path: &Path,
    options: &WriteOptions,
    fill: impl FnOnce(&Path) -> Result<(), Error>,
) -> Result<(), Error> {
    let path = &directory::destination(path)?;
    check_target(path)?;
    let staging = StagingDirectory::new(path)?;
    fill(staging.path())?;
    if options.durable {
        let listing = directory::list(staging.path())?;
        for path in listing.directories.iter().map(String::as_str).chain([""]) {
            let synced = directory::sync_directory(Some(&staging.path().join(path)));
            synced.map_err(|error| Error::io("sync the model to disk", error))?;
        }
    }
    staging.commit(options.durable)
}

/// Names stored in the files of a compiled model.
pub(super) struct Names {
    /// Name of the model file without its extension.
    pub(super) file: String,
    /// Name of the class that tools generate for the model.
    pub(super) class: String,
}

impl Names {
    /// The names for a model that is written to a path.
    pub(super) fn of(path: &Path, options: &WriteOptions) -> Names {
        let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        let class = options.name.clone().or(stem).unwrap_or_default();
        let file = options.name.clone().unwrap_or_else(|| MODEL_FILE.to_owned());
        Names { file, class: class_name(&class) }
    }
}

/// Name of the model file in a package, without its extension.
const MODEL_FILE: &str = "model";

/// Returns the files that [`write`] would write, without copying weights.
pub fn to_tree(verified: &Verified<'_>, name: &str) -> Result<VirtualDirectory, Error> {
    unhashed(verified, name)?.tree()
}

/// Like [`to_tree`], but weights are not yet read to compute their hashes.
pub fn unhashed<'m>(verified: &Verified<'m>, name: &str) -> Result<PendingPackage<'m>, Error> {
    let names = Names { file: name.to_owned(), class: class_name(name) };
    let PendingModel { files: prepared, layout } = prepare(verified, &names)?;
    let prepared: Vec<(&str, Buffer)> =
        prepared.into_iter().map(|(name, content)| (name, content.into())).collect();
    let finish = move |written: &[WrittenFile], mut files: Files| {
        let content = manifest::content(prepared[0].1.as_bytes(), written);
        for (name, content) in &prepared {
            files.insert((*name).to_owned(), vec![content.clone()]);
        }
        Ok(files.into_tree(Vec::new(), *content.as_bytes()))
    };
    Ok(PendingPackage { layout, root: String::new(), finish: Box::new(finish) })
}

/// A compiled model that is ready to be written.
struct PendingModel<'m> {
    /// All files except weight files, `model.mil` first.
    files: Vec<(&'static str, Vec<u8>)>,
    layout: Layout<'m>,
}

fn prepare<'m>(verified: &Verified<'m>, names: &Names) -> Result<PendingModel<'m>, Error> {
    let model = verified.model();
    let layout = Layout::plan(&model.program)?;
    let model_file = encode::model(model, &|weight| layout.place(weight))?;
    let description = with_metadata(&model.description);
    let functions = model.program.functions.len();
    let files = vec![
        (file::TEXT, text(model, &layout)?),
        (file::DATA, container::write(model.specification_version, &description, functions)),
        (file::METADATA, metadata::write(model, &names.class).into_bytes()),
        (file::ANALYTICS, analytics::write(&model_file, &names.file)),
    ];
    Ok(PendingModel { files, layout })
}

/// The text of the program with the attributes that compilers add.
pub(super) fn text(model: &Model, layout: &Layout<'_>) -> Result<Vec<u8>, Error> {
    let unwritable =
        |detail: &dyn std::fmt::Display| Error::new(ErrorKind::Unwritable, detail.to_string());
    names::check(&model.program)?;
    let mut added = AddedAttributes::default();
    added.program.insert(build_info::ATTRIBUTE, build_info::with_ours(&model.program));
    for (function, value) in shapes::described(model).map_err(|detail| unwritable(&detail))? {
        added.functions.entry(function).or_default().insert(shapes::ATTRIBUTE, value);
    }
    let places = |weight: &Weight| layout.place(weight);
    let options = PrintOptions {
        places: Some(&places),
        added: Some(&added),
        sorted_inputs: true,
        ..PrintOptions::default()
    };
    let mut text = Vec::new();
    text::write(&mut text, &model.program, &options)
        .map_err(|error| Error::io("print the program", error).in_file(file::TEXT))?;
    Ok(text)
}

/// Encodes a description like Apple's compiler, which always writes the metadata field even if it is empty.
pub(super) fn with_metadata(description: &ModelDescription) -> Vec<u8> {
    let mut description = description.clone();
    description.metadata.get_or_insert_default();
    encode::description(&description)
}

/// Checks that an existing target is a compiled model, so that a mistyped path never replaces another
/// directory.
fn check_target(path: &Path) -> Result<(), Error> {
    let Ok(found) = fs::symlink_metadata(path) else { return Ok(()) };
    let is_model = path.join(file::DATA).is_file();
    let is_empty = || fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none());
    if found.is_dir() && (is_model || is_empty()) {
        return Ok(());
    }
    let message = format!("{} already exists and is not a compiled model", path.display());
    let hint = "remove it, or write to another path";
    Err(Error::new(ErrorKind::Unwritable, message).with_hint(hint))
}

/// Creates a file below a directory, including parent directories.
pub(super) fn create(
    root: &Path,
    options: &WriteOptions,
    name: &str,
    content: &[u8],
) -> Result<(), Error> {
    let path = root.join(name);
    let fill = || {
        if let Some(parent) = Path::new(name).parent() {
            create_directories_below(root, parent)?;
        }
        let mut file = File::create(&path)?;
        file.write_all(content)?;
        if options.durable { file.sync_all() } else { Ok(()) }
    };
    fill().map_err(|error| Error::io(format!("write {name}"), error).in_file(name))
}

/// The name of a class generated for the model; characters that are not allowed in it become `_`.
fn class_name(name: &str) -> String {
    let mut class: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    if !class.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
        class.insert(0, '_');
    }
    class
}
