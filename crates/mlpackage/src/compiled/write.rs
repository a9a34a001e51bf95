use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;

use coremill_tensor::Buffer;

use super::{Error, ErrorKind, analytics, build_info, container, file, metadata, names};
use crate::package::directory::{self, StagingDirectory};
use crate::package::tree::{Files, PendingPackage, VirtualDirectory};
use crate::package::weights::{Layout, WrittenFile};
use crate::package::{encode, manifest};
use coremill_mil::ir::Weight;
use coremill_mil::model::{Model, ModelDescription, shapes};
use coremill_mil::text::{self, AddedAttributes, PrintOptions};
use coremill_mil::verify::Verified;

/// How to write a compiled model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriteOptions {
    /// The name of the model file without its extension. `None` takes `model`, as in packages, and the directory's name
    /// for the class that tools generate.
    pub name: Option<String>,
    /// Whether to wait until the model is on the disk before it is put in place, so that not even a
    /// loss of power can leave it there in part. A writer that is killed never does, either way.
    pub durable: bool,
}

/// Writes a compiled model. What stood at the path is replaced in one step, when all is written.
///
/// The same model and name give the same bytes.
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

/// Fills a directory and puts it in place, in one step.
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
            synced.map_err(|error| Error::io("bring the model to the disk", error))?;
        }
    }
    staging.commit(options.durable)
}

/// The names that files of a compiled model state.
pub(super) struct Names {
    /// The model file's, without its extension.
    pub(super) file: String,
    /// The class's that tools generate for the model.
    pub(super) class: String,
}

impl Names {
    /// The names of a model that is written to a path.
    pub(super) fn of(path: &Path, options: &WriteOptions) -> Names {
        let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        let class = options.name.clone().or(stem).unwrap_or_default();
        let file = options.name.clone().unwrap_or_else(|| MODEL_FILE.to_owned());
        Names { file, class: class_name(&class) }
    }
}

/// The name of the model file in a package.
const MODEL_FILE: &str = "model";

/// The files of a compiled model, of which weights are not copied. They are what [`write`] puts in a directory.
pub fn to_tree(verified: &Verified<'_>, name: &str) -> Result<VirtualDirectory, Error> {
    unhashed(verified, name)?.tree()
}

/// The same before weights are read for their hashes.
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

/// A compiled model that only has to be put somewhere.
struct PendingModel<'m> {
    /// All files but those of weights, the program's text first.
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

/// The program's text, with what compilers add to it.
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

/// A description encoded as Apple's compiler does: it always writes the field of the metadata, empty or not.
pub(super) fn with_metadata(description: &ModelDescription) -> Vec<u8> {
    let mut description = description.clone();
    description.metadata.get_or_insert_default();
    encode::description(&description)
}

/// Refuses to replace what is not a compiled model: a mistyped path must not cost anybody a directory.
fn check_target(path: &Path) -> Result<(), Error> {
    let Ok(found) = fs::symlink_metadata(path) else { return Ok(()) };
    let is_model = path.join(file::DATA).is_file();
    let is_empty = || fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none());
    if found.is_dir() && (is_model || is_empty()) {
        return Ok(());
    }
    let message = format!("{} is there already, and no compiled model", path.display());
    let hint = "remove it, or write to another path";
    Err(Error::new(ErrorKind::Unwritable, message).with_hint(hint))
}

/// Creates a file under a directory, and the directories between them.
pub(super) fn create(
    root: &Path,
    options: &WriteOptions,
    name: &str,
    content: &[u8],
) -> Result<(), Error> {
    let path = root.join(name);
    let fill = || {
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        let mut file = File::create(&path)?;
        file.write_all(content)?;
        if options.durable { file.sync_all() } else { Ok(()) }
    };
    fill().map_err(|error| Error::io(format!("write {name}"), error).in_file(name))
}

/// The name of a class generated for the model: what cannot stand in one becomes `_`.
fn class_name(name: &str) -> String {
    let mut class: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    if !class.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
        class.insert(0, '_');
    }
    class
}
