//! Models on disk, whatever their form.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use coremill_io::{StagedDirectory, is_stream, uninterrupted, write_anew};
use coremill_mil::ir::Program;
use coremill_mil::model::{self, Model};
use coremill_mil::text::{self, Dialect, Listing, PrintOptions};
use coremill_mil::verify::{RenderOptions, Report, Verified};
use coremill_mlpackage::package::weights::{Layout, WeightFiles};
use coremill_mlpackage::pipeline::Pipeline;
use coremill_mlpackage::{compiled, package};

use crate::error::{Error, ErrorKind};
use crate::foreign;

/// The forms that a model has on disk, which [`open`] tells by what it finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A `.mlpackage` directory.
    Package,
    /// A `.mlmodelc` directory.
    Compiled,
    /// A model file, with its weight files beside it.
    ModelFile,
    /// MIL text, with its weight files beside it.
    Text,
}

/// How to [`save`].
#[derive(Clone, Copy, Debug, Default)]
pub struct SaveOptions {
    /// Whether to wait until everything is on the disk.
    pub durable: bool,
}

/// A model with the text that it was read from, if it was: what [`open_with_source`] gives.
#[derive(Clone, Debug)]
pub struct Opened {
    /// The model.
    pub model: Model,
    /// What its program was read from; none for packages and model files, which hold no text.
    pub source: Option<Source>,
    path: PathBuf,
}

/// The text that a program was read from, for [`open_with_source`].
#[derive(Clone, Debug)]
pub struct Source {
    /// The file.
    pub path: PathBuf,
    /// The text, and where the parts of the program stand in it.
    pub listing: Listing,
}

/// Text of programs is at most this long; the largest that are known have some tens of megabytes.
const MAX_TEXT_BYTES: u64 = 1 << 30;

/// So much of a file tells what it is.
const START: u64 = 4096;

impl Format {
    /// The form of what lies at a path, by its content.
    pub fn of(path: &Path) -> Result<Format, Error> {
        let metadata = fs::metadata(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                let message = format!("there is nothing at {}", path.display());
                Error::new(message).kinded(ErrorKind::File)
            }
            _ => Error::io("read", path, &error),
        })?;
        if metadata.is_dir() {
            if path.join("Manifest.json").exists() {
                return Ok(Format::Package);
            }
            if path.join("coremldata.bin").exists() || path.join("model.mil").exists() {
                return Ok(Format::Compiled);
            }
            let message = format!(
                "{} is neither a package nor a compiled model: it holds no `Manifest.json` and no `coremldata.bin`",
                path.display()
            );
            return Err(Error::new(message));
        }
        if !metadata.is_file() {
            let message = format!("{} is not a regular file", path.display());
            return Err(Error::new(message).hint("write what comes through it to a file first"));
        }
        let mut start = Vec::new();
        let read = File::open(path).and_then(|file| file.take(START).read_to_end(&mut start));
        read.map_err(|error| Error::io("read", path, &error))?;
        if looks_like_text(&start) {
            return Ok(Format::Text);
        }
        match foreign::identify(path, &start) {
            Some(foreign) => Err(foreign.instead_of(path, "a Core ML model")),
            None => Ok(Format::ModelFile),
        }
    }

    /// The form that an extension asks for; text cannot be asked for with [`save`].
    fn asked_for(path: &Path) -> Result<Format, Error> {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("mlpackage") => Ok(Format::Package),
            Some("mlmodelc") => Ok(Format::Compiled),
            _ => Err(Error::new(format!("{} has no extension that says its form", path.display()))
                .hint("end it in `.mlpackage` or `.mlmodelc`")),
        }
    }
}

/// Text begins with comments and `program`; a model file with a protobuf tag below the space.
fn looks_like_text(start: &[u8]) -> bool {
    let start = start.strip_prefix(b"\xef\xbb\xbf").unwrap_or(start);
    let visible = start.iter().position(|byte| !byte.is_ascii_whitespace());
    visible.is_some_and(|at| start[at..].starts_with(b"//") || start[at..].starts_with(b"program"))
}

/// Opens a model, whatever its form. Weights stay mapped from their files. Those of a text whose file is missing have no
/// elements: the verifier reports them. The stages of a pipeline become one model; [`open_pipeline`] keeps them apart.
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
    match Format::of(path)? {
        Format::Package | Format::ModelFile => package::read(path).map_err(of_package),
        Format::Compiled => compiled::read(path).map_err(of_package),
        Format::Text => open_text(path).map(|(model, _)| model),
    }
}

/// Opens a package, a model file or a compiled model if it is a pipeline, its stages apart; `None` for any other model.
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
    let read = match Format::of(path)? {
        Format::Package | Format::ModelFile => package::read_pipeline(path),
        Format::Compiled => compiled::read_pipeline(path),
        Format::Text => Ok(None),
    };
    read.map_err(|error| Error::of_package(path, &error))
}

/// Saves a pipeline as the path's extension says, like [`save`].
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
    let written = match Format::asked_for(path)? {
        Format::Compiled => {
            let options = compiled::WriteOptions { durable, name: None };
            compiled::write_pipeline(path, pipeline, &options)
        }
        Format::Package | Format::ModelFile | Format::Text => {
            package::write_pipeline(path, pipeline, &package::WriteOptions { durable })
        }
    };
    written.map_err(|error| Error::of_package(path, &error))
}

/// Opens a model, whatever its form, and keeps the text of its program if there is one, so that
/// [`Opened::render`] can show the lines of the file itself.
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
pub fn open_with_source(path: impl AsRef<Path>) -> Result<Opened, Error> {
    let path = path.as_ref();
    let (model, source) = match Format::of(path)? {
        Format::Package | Format::ModelFile => (open(path)?, None),
        Format::Compiled => {
            let opened = compiled::read_with_listing(path);
            let (model, listing) = opened.map_err(|error| Error::of_package(path, &error))?;
            (model, listing.map(|listing| Source { path: path.join("model.mil"), listing }))
        }
        Format::Text => {
            let (model, listing) = open_text(path)?;
            (model, Some(Source { path: path.to_owned(), listing }))
        }
    };
    Ok(Opened { model, source, path: path.to_owned() })
}

impl Opened {
    /// A model that was made here and is to be written to a path.
    pub fn made(model: Model, path: &Path) -> Opened {
        Opened { model, source: None, path: path.to_owned() }
    }

    /// A report about the model, for people: each diagnostic under the line of the file that it is
    /// about. For packages, which hold no text, lines are those that [`text::print`] gives.
    ///
    /// The text is called by its path, whatever `options` say.
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
    let io = |error| Error::io("read", path, &error);
    let mut file = File::open(path).map_err(io)?;
    // Before anything is read: a sparse file costs nothing to make.
    if file.metadata().map_err(io)?.len() > MAX_TEXT_BYTES {
        return Err(too_long(path));
    }
    parse_text(&mut file, path, &directory_of(path))
}

/// Reads a model as MIL text from anywhere. `name` is what messages call the text; its weight files
/// lie under `directory`.
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
) -> Result<Opened, Error> {
    let path = name.as_ref().to_owned();
    let (model, listing) = parse_text(from, &path, directory.as_ref())?;
    Ok(Opened { model, source: Some(Source { path: path.clone(), listing }), path })
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
    read.map_err(|error| Error::io("read", path, &error))?;
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

/// Saves a model as the path's extension says: `.mlpackage` or `.mlmodelc`.
///
/// What stood at the path is replaced in one step, when everything is written; a writer that dies
/// leaves it as it was. The same model gives the same bytes.
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
    let path = path.as_ref();
    let of_package = |error: package::Error| Error::of_package(path, &error);
    match Format::asked_for(path)? {
        Format::Compiled => {
            let options = compiled::WriteOptions { durable: options.durable, name: None };
            compiled::write(path, verified, &options).map_err(of_package)
        }
        Format::Package | Format::ModelFile | Format::Text => {
            let options = package::WriteOptions { durable: options.durable };
            package::write(path, verified, &options).map_err(of_package)
        }
    }
}

/// Saves a program as text, its weight files beside it. It need not be sound.
///
/// A weight file of another program is not replaced. A device or a pipe gets the text alone.
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
        return Err(Error::new(format!("there is no directory {}", directory.display())));
    }
    let failed = |error: io::Error| Error::io("write", path, &error);
    let layout = Layout::plan(program).map_err(|error| Error::of_package(path, &error))?;

    if is_stream(path) {
        let options = PrintOptions { dialect, ..PrintOptions::default() };
        return write_file(path, text::print(program, &options).text.as_bytes());
    }
    // Everything is written beside its place first; files then take their places, the text last.
    let staging = StagedDirectory::new(&directory).map_err(failed)?;
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
            let message = format!("{} exists and holds other weights", to.display());
            return Err(Error::new(message).hint("save the text in a directory of its own"));
        }
    }
    let mut text = File::open(&text).map_err(failed)?;
    // Weights without the text would keep other programs from being saved here.
    uninterrupted(|| {
        for (from, to) in &moves {
            let parent = to.parent().unwrap_or(&directory);
            fs::create_dir_all(parent).and_then(|()| fs::rename(from, to)).map_err(failed)?;
        }
        replace(path, |file| io::copy(&mut text, file).map(|_| ()))
    })
}

/// More than rules for every weight of a model take.
const MAX_RULES_BYTES: u64 = 4 << 20;

/// The text of a file of rules.
pub(crate) fn read_rules(path: &Path) -> Result<String, Error> {
    let mut text = String::new();
    let read =
        File::open(path).and_then(|file| file.take(MAX_RULES_BYTES + 1).read_to_string(&mut text));
    read.map_err(|error| Error::io("read", path, &error))?;
    if text.len() as u64 > MAX_RULES_BYTES {
        let message = format!("it is longer than the {MAX_RULES_BYTES} bytes that rules may have");
        return Err(Error::new(message).within(path));
    }
    Ok(text)
}

/// Writes a file in one step: what stood at the path stays until everything is written.
///
/// ```
/// # let directory = tempfile::tempdir().unwrap();
/// # let path = directory.path().join("notes.json");
/// coremill::write_file(&path, b"{}")?;
/// assert_eq!(std::fs::read(&path).unwrap(), b"{}");
/// # Ok::<(), coremill::Error>(())
/// ```
pub fn write_file(path: impl AsRef<Path>, bytes: &[u8]) -> Result<(), Error> {
    replace(path.as_ref(), |file| file.write_all(bytes))
}

/// Writes a file: what stood there is replaced in one step when everything is written; devices and pipes are written to.
pub(crate) fn replace(
    path: &Path,
    write: impl FnOnce(&mut File) -> io::Result<()>,
) -> Result<(), Error> {
    let directory = directory_of(path);
    if !directory.is_dir() {
        return Err(Error::new(format!("there is no directory {}", directory.display())));
    }
    write_anew(path, false, write).map_err(|error| Error::io("write", path, &error))
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
