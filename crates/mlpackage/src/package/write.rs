use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use coremill_io::create_directories_below;
use coremill_tensor::Buffer;

use super::directory::{self, StagingDirectory, WriteOptions};
use super::error::{Error, ErrorKind};
use super::tree::{Files, PendingPackage, VirtualDirectory};
use super::weights::{self, Layout, WrittenFile};
use super::{encode, manifest};
use crate::pipeline::Pipeline;
use coremill_mil::model::{Extra, ExtraFile, Model};
use coremill_verify::Verified;

type Result<T> = std::result::Result<T, Error>;

/// Writes a package, replacing an existing one.
///
/// The package is written next to its target and moved there in one step, so that there is a complete
/// package, old or new, at any time. Its bytes depend only on the model.
pub fn write(path: &Path, verified: &Verified<'_>, options: &WriteOptions) -> Result<()> {
    let model = verified.model();
    let layout = Layout::plan(&model.program)?;
    put(path, &to_bytes(model, &layout)?, &layout, &model.extra, options)
}

/// Writes a package of a pipeline, like [`write`](write()). Every stage must be valid.
pub fn write_pipeline(path: &Path, pipeline: &Pipeline, options: &WriteOptions) -> Result<()> {
    check_pipeline(pipeline)?;
    let layout = Layout::plan_all(pipeline.stages.iter().map(|stage| &stage.model.program))?;
    let bytes = encode::pipeline(pipeline, &|weight| layout.place(weight))?;
    put(path, &bytes, &layout, &pipeline.extra, options)
}

/// Checks that Core ML can load a pipeline.
pub(crate) fn check_pipeline(pipeline: &Pipeline) -> Result<()> {
    let unwritable = |message: String| Error::new(ErrorKind::Unwritable, message);
    if pipeline.stages.is_empty() {
        return Err(unwritable("the pipeline has no stages".to_owned()));
    }
    match pipeline.verify() {
        Ok(_) => Ok(()),
        Err((index, report)) => {
            let name = pipeline.stage_name(index);
            Err(unwritable(format!("the stage `{name}` is invalid: {report}")))
        }
    }
}

fn put(
    path: &Path,
    bytes: &[u8],
    layout: &Layout<'_>,
    extra: &Extra,
    options: &WriteOptions,
) -> Result<()> {
    let path = &directory::destination(path)?;
    check_target(path)?;
    check_items(extra)?;

    let staging = StagingDirectory::new(path)?;
    let data = staging.path().join(manifest::DATA);
    let directory = data.join(manifest::MODEL_DIRECTORY);
    let relative = Path::new(manifest::DATA).join(manifest::MODEL_DIRECTORY);
    let made = create_directories_below(staging.path(), relative);
    made.map_err(|error| Error::io("create a directory for the model", error))?;
    let written = layout.write_and_hash(&directory, options.durable)?;
    write_file(&directory.join(manifest::MODEL_FILE), bytes, options)?;
    for extra in &extra.files {
        write_extra(staging.path(), extra, options)?;
    }

    let manifest = manifest::of(bytes, &written, &extra.items);
    for entry in &manifest.items {
        // An item without files was an empty directory.
        let item = data.join(&entry.path);
        if !item.exists() {
            let relative = Path::new(manifest::DATA).join(&entry.path);
            let made = create_directories_below(staging.path(), relative);
            made.map_err(|error| Error::io(format!("create {}", item.display()), error))?;
        }
    }
    write_file(&staging.path().join(manifest::FILE), &manifest::print(&manifest), options)?;
    if options.durable {
        let listing = directory::list(staging.path())?;
        for path in listing.directories.iter().map(String::as_str).chain([""]) {
            let synced = directory::sync_directory(Some(&staging.path().join(path)));
            synced.map_err(|error| Error::io("sync the package to disk", error))?;
        }
    }
    staging.commit(options.durable)
}

/// Returns the files that [`write`] would write, without copying weights.
pub fn to_tree(verified: &Verified<'_>) -> Result<VirtualDirectory> {
    unhashed(verified)?.tree()
}

/// Like [`to_tree`], but weights are not yet read to compute identifiers.
pub fn unhashed<'m>(verified: &Verified<'m>) -> Result<PendingPackage<'m>> {
    let model = verified.model();
    check_items(&model.extra)?;
    let layout = Layout::plan(&model.program)?;
    let bytes: Buffer = to_bytes(model, &layout)?.into();
    let directory = format!("{}/{}/", manifest::DATA, manifest::MODEL_DIRECTORY);
    let root = directory.clone();
    let finish = move |written: &[WrittenFile], mut files: Files| {
        let manifest = manifest::of(bytes.as_bytes(), written, &model.extra.items);
        let content = manifest::content(bytes.as_bytes(), written);
        files.insert(format!("{directory}{}", manifest::MODEL_FILE), vec![bytes.clone()]);
        files.insert(manifest::FILE.to_owned(), vec![manifest::print(&manifest).into()]);
        for extra in &model.extra.files {
            check_extra(extra)?;
            if !files.insert(extra.path.clone(), vec![extra.content.clone()]) {
                return Err(in_the_way(extra));
            }
        }
        let items = manifest.items.iter().map(|item| format!("{}/{}", manifest::DATA, item.path));
        let empty = items.filter(|path| !files.contains(path)).collect();
        Ok(files.into_tree(empty, *content.as_bytes()))
    };
    Ok(PendingPackage { layout, root, finish: Box::new(finish) })
}

/// Encodes a model file with the weight locations of a layout.
pub fn to_bytes(model: &Model, layout: &Layout<'_>) -> Result<Vec<u8>> {
    encode::model(model, &|weight| layout.place(weight))
}

/// Checks that an existing target is a package, so that a mistyped path never replaces another directory.
fn check_target(path: &Path) -> Result<()> {
    let Ok(found) = fs::symlink_metadata(path) else { return Ok(()) };
    let is_package = path.join(manifest::FILE).is_file();
    let is_empty = || fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none());
    if found.is_dir() && (is_package || is_empty()) {
        return Ok(());
    }
    let message = format!("{} already exists and is not a package", path.display());
    let hint = "remove it, or write to another path";
    Err(Error::new(ErrorKind::Unwritable, message).with_hint(hint))
}

fn write_file(path: &Path, bytes: &[u8], options: &WriteOptions) -> Result<()> {
    let write = || {
        let mut file = File::create_new(path)?;
        file.write_all(bytes)?;
        if options.durable { file.sync_all() } else { Ok(()) }
    };
    write().map_err(|error| Error::io(format!("write {}", path.display()), error))
}

fn check_items(extra: &Extra) -> Result<()> {
    for item in &extra.items {
        if let Err(problem) = directory::check_path(&item.path) {
            let message = format!("the path `{}` of a manifest item {problem}", item.path);
            return Err(Error::new(ErrorKind::Unwritable, message));
        }
    }
    Ok(())
}

fn check_extra(extra: &ExtraFile) -> Result<()> {
    let fail = |message: String| Error::new(ErrorKind::Unwritable, message).in_file(&*extra.path);
    if let Err(problem) = directory::check_path(&extra.path) {
        return Err(fail(format!("the path of an extra file {problem}")));
    }
    // Some file systems ignore case.
    if extra.path.eq_ignore_ascii_case(manifest::FILE) {
        return Err(fail("an extra file would replace the manifest".to_owned()));
    }
    Ok(())
}

fn in_the_way(extra: &ExtraFile) -> Error {
    let message = "an extra file would replace a file of the model";
    Error::new(ErrorKind::Unwritable, message).in_file(&*extra.path)
}

fn write_extra(root: &Path, extra: &ExtraFile, options: &WriteOptions) -> Result<()> {
    check_extra(extra)?;
    let write = || {
        let path = root.join(&extra.path);
        if let Some(parent) = Path::new(&extra.path).parent() {
            create_directories_below(root, parent)?;
        }
        let file = File::create_new(path)?;
        weights::copy_file(&extra.content, &file)?;
        if options.durable { file.sync_all() } else { Ok(()) }
    };
    write().map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => in_the_way(extra),
        _ => Error::io(format!("write {}", extra.path), error),
    })
}
