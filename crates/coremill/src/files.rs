//! Reading and writing models in any format.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use coremill_io::{AtomicDirectory, is_stream, uninterrupted};
use coremill_mil::ir::Program;
use coremill_mil::model::{self, Model};
use coremill_mil::text::{self, Dialect, Listing, PrintOptions};
use coremill_mlpackage::package::weights::{Layout, WeightFiles};
use coremill_mlpackage::pipeline::Pipeline;
use coremill_mlpackage::{compiled, package};
use coremill_session::arrays::replace_file;
use coremill_session::{FileKind, SaveOptions};
use coremill_verify::{RenderOptions, Report, Verified};

use crate::error::Error;

/// A model, with the source text if it has one; see [`open_with_source`].
#[derive(Clone, Debug)]
pub struct OpenedModel {
    /// The model.
    pub model: Model,
    /// Source text of the program. `None` for packages and model files, which contain no text.
    pub source: Option<Source>,
    path: PathBuf,
}

/// Source text of a program, see [`open_with_source`].
#[derive(Clone, Debug)]
pub struct Source {
    /// The file.
    pub path: PathBuf,
    /// The text, with the positions of the program's parts.
    pub listing: Listing,
}

/// Maximum length of a program's text. The largest known texts have tens of megabytes.
const MAX_TEXT_BYTES: u64 = 1 << 30;

/// Opens a model in any format. Weights stay mapped from their files. If a weight file of a text is
/// missing, its weights have no elements and the verifier reports them. The stages of a pipeline
/// become one model; [`open_pipeline`] keeps them separate.
///
/// ```
/// # let directory = tempfile::tempdir().unwrap();
/// # let path = directory.path().join("twice.mil");
/// let text = "program(1.3) {
///     func main<ios17>(tensor<fp32, [2]> x) {
///         tensor<fp32, [2]> y = add(x = x, y = x);
///     } -> (y);
/// }";
/// std::fs::write(&path, text).unwrap();
/// let model = coremill::open(&path)?;
/// assert_eq!(model.program.functions[0].name, "main");
/// # Ok::<(), coremill::Error>(())
/// ```
pub fn open(path: impl AsRef<Path>) -> Result<Model, Error> {
    let path = path.as_ref();
    let of_package = |error: package::Error| Error::of_package(path, &error);
    match FileKind::detect(path)? {
        FileKind::Package | FileKind::ModelFile => package::read(path).map_err(of_package),
        FileKind::CompiledModel => compiled::read(path).map_err(of_package),
        FileKind::MilText => open_text(path).map(|(model, _)| model),
        other => Err(other.instead_of(path, "a Core ML model").into()),
    }
}

/// Opens a pipeline with separate stages, from a package, a model file or a compiled model. Returns
/// `None` for other models.
///
/// ```
/// # let directory = tempfile::tempdir().unwrap();
/// # let path = directory.path().join("twice.mil");
/// let text = "program(1.3) {
///     func main<ios17>(tensor<fp32, [2]> x) {
///         tensor<fp32, [2]> y = add(x = x, y = x);
///     } -> (y);
/// }";
/// std::fs::write(&path, text).unwrap();
/// assert_eq!(coremill::open_pipeline(&path)?, None);
/// # Ok::<(), coremill::Error>(())
/// ```
pub fn open_pipeline(path: impl AsRef<Path>) -> Result<Option<Pipeline>, Error> {
    let path = path.as_ref();
    let read = match FileKind::detect(path)? {
        FileKind::Package | FileKind::ModelFile => package::read_pipeline(path),
        FileKind::CompiledModel => compiled::read_pipeline(path),
        FileKind::MilText => Ok(None),
        other => return Err(other.instead_of(path, "a Core ML model").into()),
    };
    read.map_err(|error| Error::of_package(path, &error))
}

/// Saves a pipeline in the format of the path's extension, like [`save`].
///
/// ```
/// use coremill::mil::pipeline::{Pipeline, Stage};
///
/// # let directory = tempfile::tempdir().unwrap();
/// # let path = directory.path().join("Both.mlpackage");
/// let stage = |input: &str, output: &str| -> Result<Stage, coremill::Error> {
///     let text = format!("program(1.3) {{ func main<ios17>(tensor<fp32, [2]> {input}) {{
///         tensor<fp32, [2]> {output} = relu(x = {input}); }} -> ({output}); }}");
///     let model = coremill::read_text(&mut text.as_bytes(), "text", ".")?.model;
///     Ok(Stage { name: output.to_owned(), model })
/// };
/// let stages = vec![stage("x", "y")?, stage("y", "z")?];
/// let mut pipeline = Pipeline { specification_version: 8, ..Pipeline::default() };
/// pipeline.description.inputs = stages[0].model.description.inputs.clone();
/// pipeline.description.outputs = stages[1].model.description.outputs.clone();
/// pipeline.stages = stages;
/// coremill::save_pipeline(&path, &pipeline, &coremill::SaveOptions::default())?;
/// assert_eq!(coremill::open_pipeline(&path)?, Some(pipeline));
/// assert_eq!(coremill::open(&path)?.program.functions[0].op_count(), 2);
/// # Ok::<(), coremill::Error>(())
/// ```
pub fn save_pipeline(
    path: impl AsRef<Path>,
    pipeline: &Pipeline,
    options: &SaveOptions,
) -> Result<(), Error> {
    let path = path.as_ref();
    let durable = options.durable;
    let written = match FileKind::of_extension(path)? {
        FileKind::CompiledModel => {
            let options = compiled::WriteOptions { durable, name: None };
            compiled::write_pipeline(path, pipeline, &options)
        }
        _ => package::write_pipeline(path, pipeline, &package::WriteOptions { durable }),
    };
    written.map_err(|error| Error::of_package(path, &error))
}

/// Opens a model in any format and keeps the text of its program, if there is one.
/// [`OpenedModel::render`] can then show lines of the file.
///
/// ```
/// # let directory = tempfile::tempdir().unwrap();
/// # let path = directory.path().join("twice.mil");
/// let text = "program(1.3) {
///     func main<ios17>(tensor<fp32, [2]> x) {
///         tensor<fp32, [2]> y = add(x = x, y = x);
///     } -> (y);
/// }";
/// std::fs::write(&path, text).unwrap();
/// let opened = coremill::open_with_source(&path)?;
/// assert_eq!(opened.source.map(|source| source.path), Some(path));
/// # Ok::<(), coremill::Error>(())
/// ```
pub fn open_with_source(path: impl AsRef<Path>) -> Result<OpenedModel, Error> {
    let path = path.as_ref();
    let (model, source) = match FileKind::detect(path)? {
        FileKind::CompiledModel => {
            let opened = compiled::read_with_listing(path);
            let (model, listing) = opened.map_err(|error| Error::of_package(path, &error))?;
            (model, listing.map(|listing| Source { path: path.join("model.mil"), listing }))
        }
        FileKind::MilText => {
            let (model, listing) = open_text(path)?;
            (model, Some(Source { path: path.to_owned(), listing }))
        }
        _ => (open(path)?, None),
    };
    Ok(OpenedModel { model, source, path: path.to_owned() })
}

impl OpenedModel {
    /// Wraps a model created in memory that will be written to a path.
    pub fn made(model: Model, path: &Path) -> OpenedModel {
        OpenedModel { model, source: None, path: path.to_owned() }
    }

    /// Renders a report about the model: each diagnostic with the source line that it refers to.
    /// Packages contain no text, so their lines are the output of [`text::print`].
    ///
    /// The path replaces the name in `options`.
    pub fn render(&self, report: &Report, options: &RenderOptions) -> String {
        let path = self.source.as_ref().map_or(&self.path, |source| &source.path);
        let options = RenderOptions { name: path.display().to_string(), ..options.clone() };
        match &self.source {
            Some(source) => report.render_in(&source.listing, &options),
            None => report.render(&self.model.program, &options),
        }
    }
}

fn open_text(path: &Path) -> Result<(Model, Listing), Error> {
    let io = |error| Error::io("read", path, error);
    let mut file = File::open(path).map_err(io)?;
    // Check the length before reading, since sparse files may be huge.
    if file.metadata().map_err(io)?.len() > MAX_TEXT_BYTES {
        return Err(too_long(path));
    }
    parse_text(&mut file, path, &directory_of(path))
}

/// Reads a model from MIL text. `name` is the name of the text in messages. Weight files are
/// relative to `directory`.
///
/// ```
/// let text = "program(1.3) {
///     func main<ios17>(tensor<fp32, [2]> x) {
///         tensor<fp32, [2]> y = add(x = x, y = x);
///     } -> (y);
/// }";
/// let opened = coremill::read_text(&mut text.as_bytes(), "standard input", ".")?;
/// assert_eq!(opened.model.program.functions[0].name, "main");
/// # Ok::<(), coremill::Error>(())
/// ```
pub fn read_text(
    from: &mut dyn Read,
    name: impl AsRef<Path>,
    directory: impl AsRef<Path>,
) -> Result<OpenedModel, Error> {
    let path = name.as_ref().to_owned();
    let (model, listing) = parse_text(from, &path, directory.as_ref())?;
    Ok(OpenedModel { model, source: Some(Source { path: path.clone(), listing }), path })
}

fn too_long(path: &Path) -> Error {
    Error::new(format!("{} is longer than {MAX_TEXT_BYTES} bytes", path.display()))
}

fn parse_text(
    from: &mut dyn Read,
    path: &Path,
    directory: &Path,
) -> Result<(Model, Listing), Error> {
    let mut bytes = Vec::new();
    let read = from.take(MAX_TEXT_BYTES + 1).read_to_end(&mut bytes);
    read.map_err(|error| Error::io("read", path, error))?;
    if bytes.len() as u64 > MAX_TEXT_BYTES {
        return Err(too_long(path));
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Error::new(format!("{} is not UTF-8 at byte {at}", path.display()))
    })?;
    let weights = WeightFiles::in_directory(directory).allow_missing();
    let (program, spans) =
        text::parse_with_spans(&text, &weights).map_err(|error| Error::of_text(path, &error))?;
    let model = model::describe(program).map_err(|error| Error::of_description(path, &error))?;
    Ok((model, Listing { text, spans }))
}

/// Saves a model in the format of the path's extension: `.mlpackage` or `.mlmodelc`.
///
/// An existing file at the path is replaced atomically once everything is written, so that a crash
/// leaves it unchanged. The output is deterministic.
///
/// ```
/// let text = "program(1.3) {
///     func main<ios17>(tensor<fp32, [2]> x) {
///         tensor<fp32, [2]> y = add(x = x, y = x);
///     } -> (y);
/// }";
/// let model = coremill::read_text(&mut text.as_bytes(), "text", ".")?.model;
/// let verified = coremill::verify(&model)?;
/// # let directory = tempfile::tempdir().unwrap();
/// # let path = directory.path().join("Twice.mlpackage");
/// coremill::save(&path, &verified, &coremill::SaveOptions::default())?;
/// assert!(path.join("Manifest.json").is_file());
/// # Ok::<(), coremill::Error>(())
/// ```
pub fn save(
    path: impl AsRef<Path>,
    verified: &Verified<'_>,
    options: &SaveOptions,
) -> Result<(), Error> {
    Ok(coremill_session::save(path.as_ref(), verified, options)?)
}

/// Saves a program as text, with its weight files next to it. The program may be invalid.
///
/// Weight files of other programs are not replaced. A device or a pipe only receives the text.
///
/// ```
/// use coremill::mil::text::Dialect;
///
/// let text = "program(1.3) {
///     func main<ios17>(tensor<fp32, [2]> x) {
///         tensor<fp32, [2]> y = add(x = x, y = x);
///     } -> (y);
/// }";
/// let model = coremill::read_text(&mut text.as_bytes(), "text", ".")?.model;
/// # let directory = tempfile::tempdir().unwrap();
/// # let path = directory.path().join("twice.mil");
/// coremill::save_text(&path, &model.program, Dialect::default())?;
/// assert!(std::fs::read_to_string(&path).unwrap().contains("add(x = x, y = x)"));
/// # Ok::<(), coremill::Error>(())
/// ```
pub fn save_text(path: impl AsRef<Path>, program: &Program, dialect: Dialect) -> Result<(), Error> {
    let path = path.as_ref();
    let directory = directory_of(path);
    if !directory.is_dir() {
        return Err(Error::missing_directory(&directory));
    }
    let failed = |error: io::Error| Error::io("write", path, error);
    let layout = Layout::plan(program).map_err(|error| Error::of_package(path, &error))?;

    if is_stream(path) {
        let options = PrintOptions { dialect, ..PrintOptions::default() };
        return write_file(path, text::print(program, &options).text.as_bytes());
    }
    // Write everything to a temporary directory, then move the files into place, the text last.
    let staging = AtomicDirectory::new(&directory).map_err(failed)?;
    layout.write(staging.path()).map_err(|error| Error::of_package(path, &error))?;
    let places = |weight: &_| layout.place(weight);
    let text = staging.path().join("text");
    let write = || {
        let mut to = io::BufWriter::new(File::create(&text)?);
        let options = PrintOptions { dialect, places: Some(&places), ..PrintOptions::default() };
        text::write(&mut to, program, &options)?;
        to.flush()
    };
    write().map_err(failed)?;

    let mut moves = Vec::new();
    for weights in layout.paths() {
        let (from, to) = (staging.path().join(weights), directory.join(weights));
        if !to.exists() {
            moves.push((from, to));
        } else if !same_content(&from, &to).map_err(failed)? {
            let message = format!("{} already exists with different weights", to.display());
            return Err(Error::new(message).with_hint("save the text in a directory of its own"));
        }
    }
    let mut text = File::open(&text).map_err(failed)?;
    // Weight files without their text would prevent other programs from being saved here.
    uninterrupted(|| {
        for (from, to) in &moves {
            let parent = to.parent().unwrap_or(&directory);
            fs::create_dir_all(parent).and_then(|()| fs::rename(from, to)).map_err(failed)?;
        }
        Ok(replace_file(path, |file| io::copy(&mut text, file).map(|_| ()))?)
    })
}

/// Writes a file atomically: an existing file stays until everything is written.
///
/// ```
/// # let directory = tempfile::tempdir().unwrap();
/// # let path = directory.path().join("notes.json");
/// coremill::write_file(&path, b"{}")?;
/// assert_eq!(std::fs::read(&path).unwrap(), b"{}");
/// # Ok::<(), coremill::Error>(())
/// ```
pub fn write_file(path: impl AsRef<Path>, bytes: &[u8]) -> Result<(), Error> {
    Ok(replace_file(path.as_ref(), |file| file.write_all(bytes))?)
}

fn directory_of(path: &Path) -> PathBuf {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or(Path::new(".")).to_owned()
}

fn same_content(left: &Path, right: &Path) -> io::Result<bool> {
    let (mut left, mut right) = (File::open(left)?, File::open(right)?);
    if left.metadata()?.len() != right.metadata()?.len() {
        return Ok(false);
    }
    let (mut left_window, mut right_window) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    loop {
        let count = left.read(&mut left_window)?;
        if count == 0 {
            return Ok(true);
        }
        right.read_exact(&mut right_window[..count])?;
        if left_window[..count] != right_window[..count] {
            return Ok(false);
        }
    }
}
