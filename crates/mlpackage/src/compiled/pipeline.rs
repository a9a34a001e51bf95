//! Compiled pipelines: a directory for each stage, and the names of the stages.

use std::path::Path;

use super::read;
use super::write::{self, Names, WriteOptions};
use super::{Error, ErrorKind, analytics, container, file, metadata};
use crate::package::tree::Source;
use crate::package::weights::Layout;
use crate::package::{check_pipeline, directory, encode};
use crate::pipeline::{Pipeline, PipelineKind, Stage};

/// Reads a compiled pipeline; `None` if the model is not a pipeline.
pub fn read_pipeline(path: &Path) -> Result<Option<Pipeline>, Error> {
    directory::read_one(path, || {
        Ok(read::read_parts(&Source::Directory(path), true)?.into_pipeline())
    })
}

/// Writes a compiled pipeline, like [`write`](super::write()). Every stage must be valid.
///
/// Classifiers and regressors are not supported, because the format in which Apple's compiler writes them is
/// unknown.
pub fn write_pipeline(
    path: &Path,
    pipeline: &Pipeline,
    options: &WriteOptions,
) -> Result<(), Error> {
    if pipeline.kind != PipelineKind::Plain {
        let message = "the compiled format of classifier and regressor pipelines is unknown";
        return Err(Error::new(ErrorKind::Unwritable, message).with_hint("write a package"));
    }
    check_pipeline(pipeline)?;
    let names = Names::of(path, options);
    let whole = Layout::plan_all(pipeline.stages.iter().map(|stage| &stage.model.program))?;
    let model_file = encode::pipeline(pipeline, &|weight| whole.place(weight))?;
    let count = pipeline.stages.len();
    let versions: Vec<i32> =
        pipeline.stages.iter().map(|stage| stage.model.specification_version).collect();
    let description = write::with_metadata(&pipeline.description);
    let version = pipeline.specification_version;
    write::put(path, options, |root| {
        let create = |name: &str, content: &[u8]| write::create(root, options, name, content);
        create(file::DATA, &container::write_pipeline(version, &description, &versions))?;
        create(file::METADATA, metadata::write_pipeline(pipeline, &names.class).as_bytes())?;
        create(file::ANALYTICS, &analytics::of_pipeline(&model_file, &names.file, count))?;
        let names: Vec<&str> = pipeline.stages.iter().map(|stage| &*stage.name).collect();
        if names.iter().any(|name| !name.is_empty()) {
            create(file::NAMES, &container::write_names(&names))?;
        }
        for (index, Stage { model, .. }) in pipeline.stages.iter().enumerate() {
            let directory = format!("model{index}");
            let create =
                |name: &str, content: &[u8]| create(&format!("{directory}/{name}"), content);
            let layout = Layout::plan(&model.program)?;
            let functions = model.program.functions.len();
            let description = encode::description(&model.description);
            let data = container::write(model.specification_version, &description, functions);
            create(file::TEXT, &write::text(model, &layout)?)?;
            create(file::DATA, &data)?;
            create(file::ANALYTICS, &analytics::of_stage())?;
            layout.write_and_hash(&root.join(&directory), options.durable)?;
        }
        Ok(())
    })
}
