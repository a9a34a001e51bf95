use std::path::{Path, PathBuf};

use coremill_mlpackage::package::{self, TreeFile};
use coremill_pte::Program;
use coremill_pte::coreml::{COMPILED, PACKAGE};
use coremill_session::SaveOptions;

use super::{Use, models};
use crate::error::Error;

/// An extracted model.
#[derive(Clone, Debug)]
pub struct ExtractedModel {
    /// Path of the model.
    pub path: PathBuf,
    /// Delegates that use the model.
    pub uses: Vec<Use>,
    /// Total size of its files.
    pub bytes: u64,
}

/// Writes each Core ML model of a program to a directory, byte for byte, as `NAME.mlpackage` or
/// `NAME.mlmodelc`. The directory is created if needed. A model that several methods share is
/// written once.
///
/// An existing model at a path is replaced atomically.
pub fn extract(
    program: &Program,
    directory: impl AsRef<Path>,
    options: &SaveOptions,
) -> Result<Vec<ExtractedModel>, Error> {
    let directory = directory.as_ref();
    let models = models(program)?;
    let made = std::fs::create_dir_all(directory);
    made.map_err(|error| Error::io("create the directory", directory, error))?;
    let options = package::WriteOptions { durable: options.durable };
    let mut extracted = Vec::with_capacity(models.len());
    for model in models {
        let (root, extension) = match model.is_compiled()? {
            true => (COMPILED, "mlmodelc"),
            false => (PACKAGE, "mlpackage"),
        };
        let files: Vec<TreeFile> = model
            .payload
            .directory
            .below(root)
            .into_iter()
            .map(|(path, data)| TreeFile { path: path.to_owned(), parts: data.parts().to_vec() })
            .collect();
        let empty: Vec<String> =
            model.payload.directory.empty_below(root).into_iter().map(str::to_owned).collect();
        let path = directory.join(format!("{}.{extension}", model.name));
        package::write_files(&path, &files, &empty, &options)
            .map_err(|error| Error::of_package(&path, &error))?;
        let bytes = files.iter().flat_map(|file| &file.parts).map(|part| part.len() as u64).sum();
        extracted.push(ExtractedModel { path, uses: model.uses, bytes });
    }
    Ok(extracted)
}
