use std::fs::{self, File};
use std::io::{self, BufWriter, Write as _};
use std::path::Path;

use super::{Error, ErrorKind, analytics, build_info, container, file, metadata, names};
use crate::ir::Weight;
use crate::model::{Model, shapes};
use crate::package::directory::Staging;
use crate::package::encode;
use crate::package::weights::Layout;
use crate::text::{self, AddedAttributes, PrintOptions};

/// How to write a compiled model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriteOptions {
    /// What the model is called in its notes; none takes the name of the directory.
    pub name: Option<String>,
}

/// Writes a compiled model. What stood at the path is replaced in one step, when all is written.
///
/// The same model and name give the same bytes.
pub fn write(path: &Path, model: &Model, options: &WriteOptions) -> Result<(), Error> {
    let unwritable = |message: String| Error::new(ErrorKind::Unwritable, message);
    names::check(&model.program)?;
    let mut added = AddedAttributes::default();
    added.program.insert(build_info::ATTRIBUTE, build_info::with_ours(&model.program));
    for (function, value) in shapes::described(model).map_err(unwritable)? {
        added.functions.entry(function).or_default().insert(shapes::ATTRIBUTE, value);
    }
    let layout = Layout::plan(&model.program)?;
    let places = |weight: &Weight| layout.place(weight);
    let model_file = encode::model(model, &places)?;
    let mut description = model.description.clone();
    // Apple's compiler always writes the field, empty or not.
    description.metadata.get_or_insert_default();
    let description = encode::description(&description);
    let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    let name = options.name.clone().or(stem).unwrap_or_default();

    let staging = Staging::new(path)?;
    create(staging.path(), file::TEXT, |to| {
        let options =
            PrintOptions { places: Some(&places), added: Some(&added), ..PrintOptions::default() };
        text::write(to, &model.program, &options)
    })?;
    let functions = model.program.functions.len();
    let data = container::write(model.specification_version, &description, functions);
    create(staging.path(), file::DATA, |to| to.write_all(&data))?;
    let shown = metadata::write(model, &class_name(&name));
    create(staging.path(), file::METADATA, |to| to.write_all(shown.as_bytes()))?;
    let notes = analytics::write(&model_file, &name);
    create(staging.path(), file::ANALYTICS, |to| to.write_all(&notes))?;
    layout.write(staging.path())?;
    staging.commit(true)
}

/// Creates a file under a directory, and the directories between them.
fn create(
    root: &Path,
    name: &str,
    fill: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> Result<(), Error> {
    let path = root.join(name);
    let fill = || {
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        let mut to = BufWriter::new(File::create(&path)?);
        fill(&mut to)?;
        to.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()
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
