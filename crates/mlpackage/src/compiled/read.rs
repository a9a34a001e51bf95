use std::path::Path;

use coremill_tensor::Buffer;

use super::container::{self, Kind};
use super::{Error, ErrorKind, build_info, file};
use crate::package::decode::ModelContent;
use crate::package::tree::Source;
use crate::package::weights::WeightFiles;
use crate::package::{decode, directory};
use crate::pipeline::{Pipeline, Stage};
use coremill_mil::limits;
use coremill_mil::model::{Metadata, Model, shapes};
use coremill_mil::text::{self, Listing, NoWeights, Spans};

/// Reads a compiled model; its weights stay in mapped files. The stages of a pipeline are linked into one
/// model.
pub fn read(path: &Path) -> Result<Model, Error> {
    directory::read_one(path, || read_from(&Source::Directory(path)))
}

/// Reads a compiled model whose files are in memory, or inside another file, by path.
pub fn from_tree(files: impl IntoIterator<Item = (String, Buffer)>) -> Result<Model, Error> {
    read_from(&Source::in_memory(files)?)
}

fn read_from(source: &Source<'_>) -> Result<Model, Error> {
    read_parts(source, true)?.into_model()
}

/// Reads a compiled model, and returns the text of `model.mil` as well; `None` for a pipeline, which has one
/// text for each stage.
pub fn read_with_listing(path: &Path) -> Result<(Model, Option<Listing>), Error> {
    directory::read_one(path, || {
        let source = Source::Directory(path);
        let data = source_data(&source)?;
        let ModelDescription::Model(model) = describe(data.as_bytes())? else {
            return Ok((read_parts(&source, true)?.into_model()?, None));
        };
        let mapped = directory::map(path, file::TEXT)?;
        let text = decode_text(mapped.as_bytes())?;
        let (mut model, spans) = with_program(model, text)?;
        WeightFiles::in_directory(path).load(&mut model.program)?;
        Ok((model, Some(Listing { text: text.to_owned(), spans })))
    })
}

/// Reads a compiled model without its weight files, which may be missing.
pub fn read_without_weights(path: &Path) -> Result<Model, Error> {
    directory::read_one(path, || read_parts(&Source::Directory(path), false)?.into_model())
}

/// Reads a compiled model; keeps the stages of a pipeline separate.
pub(super) fn read_parts(source: &Source<'_>, weights: bool) -> Result<ModelContent, Error> {
    match describe(source_data(source)?.as_bytes())? {
        ModelDescription::Model(model) => {
            let mapped = source.map(file::TEXT)?;
            let (mut model, _) = with_program(model, decode_text(mapped.as_bytes())?)?;
            if weights {
                source.weights("").load(&mut model.program)?;
            }
            Ok(ModelContent::Model(Box::new(model)))
        }
        ModelDescription::Pipeline(mut pipeline, stages) => {
            pipeline.stages = self::stages(source, stages, weights)?;
            Ok(ModelContent::Pipeline(pipeline))
        }
    }
}

/// Reads the stages of a pipeline.
fn stages(source: &Source<'_>, count: usize, weights: bool) -> Result<Vec<Stage>, Error> {
    let named = match source {
        Source::Directory(path) => path.join(file::NAMES).is_file(),
        Source::Memory(files) => files.contains_key(file::NAMES),
    };
    let names = match named {
        true => container::read_names(source.map(file::NAMES)?.as_bytes(), count)
            .map_err(|error| error.in_file(file::NAMES))?,
        false => vec![String::new(); count],
    };
    let read = |(index, name)| {
        let model = stage(source, &format!("model{index}"), weights)?;
        Ok(Stage { name, model })
    };
    names.into_iter().enumerate().map(read).collect()
}

fn stage(source: &Source<'_>, directory: &str, weights: bool) -> Result<Model, Error> {
    let within = |error: Error| error.within(directory.to_owned());
    let data = source.map(&format!("{directory}/{}", file::DATA))?;
    let ModelDescription::Model(model) = describe(data.as_bytes()).map_err(within)? else {
        let message = format!("the stage `{directory}` is a pipeline; expected an `mlProgram`");
        return Err(Error::new(ErrorKind::OtherModel, message));
    };
    let text = source.map(&format!("{directory}/{}", file::TEXT))?;
    let text = decode_text(text.as_bytes()).map_err(within)?;
    let (mut model, _) = with_program(model, text).map_err(within)?;
    if weights {
        source.weights(directory).load(&mut model.program).map_err(within)?;
    }
    Ok(model)
}

fn source_data(source: &Source<'_>) -> Result<Buffer, Error> {
    let there = match source {
        Source::Directory(path) => path.join(file::DATA).is_file(),
        Source::Memory(files) => files.contains_key(file::DATA),
    };
    if !there {
        let message =
            format!("{} is not a compiled model: it contains no {}", source.shown(), file::DATA);
        let hint = "compiled models are directories named `.mlmodelc`";
        return Err(Error::new(ErrorKind::NotAModel, message).with_hint(hint));
    }
    source.map(file::DATA)
}

/// Reads a compiled model from the contents of `coremldata.bin` and `model.mil`. Its weights have locations
/// but no elements.
pub fn from_bytes(data: &[u8], text: &[u8]) -> Result<Model, Error> {
    match describe(data)? {
        ModelDescription::Model(model) => {
            with_program(model, decode_text(text)?).map(|(model, _)| model)
        }
        ModelDescription::Pipeline(..) => {
            let message =
                "a `pipeline` has a separate text for each stage; expected an `mlProgram`";
            Err(Error::new(ErrorKind::OtherModel, message).in_file(file::DATA))
        }
    }
}

/// Contents of a `coremldata.bin`.
enum ModelDescription {
    /// A model without its program.
    Model(Model),
    /// A pipeline without its stages, and the number of stages.
    Pipeline(Pipeline, usize),
}

fn describe(data: &[u8]) -> Result<ModelDescription, Error> {
    let in_data = |error: Error| error.in_file(file::DATA);
    let contents = container::read(data).map_err(in_data)?;
    let mut description = decode::description(contents.description).map_err(in_data)?;
    // Compilers always write this field; an empty one has no meaning.
    description.metadata.take_if(|metadata| *metadata == Metadata::default());
    let specification_version = contents.specification_version;
    Ok(match contents.kind {
        Kind::Program => ModelDescription::Model(Model {
            specification_version,
            description,
            ..Model::default()
        }),
        Kind::Pipeline(stages) => {
            let pipeline = Pipeline { specification_version, description, ..Pipeline::default() };
            ModelDescription::Pipeline(pipeline, stages)
        }
    })
}

fn decode_text(text: &[u8]) -> Result<&str, Error> {
    if text.len() as u64 > limits::MODEL_BYTES {
        let message =
            format!("the text has {} bytes; the maximum is {}", text.len(), limits::MODEL_BYTES);
        return Err(in_text(Error::new(ErrorKind::Limit, message)));
    }
    std::str::from_utf8(text).map_err(|error| {
        let at = error.valid_up_to() as u64;
        in_text(Error::new(ErrorKind::ModelFile, "the text is not UTF-8").at(at))
    })
}

fn in_text(error: Error) -> Error {
    error.in_file(file::TEXT)
}

fn with_program(mut model: Model, text: &str) -> Result<(Model, Spans), Error> {
    // Compilers sort the inputs of functions by name; restore the order of the description.
    let order = |function: &str, input: &str| {
        let description = &model.description;
        let described = description.functions.iter().find(|described| described.name == function);
        let (inputs, states) = described.map_or_else(
            || (&description.inputs, &description.states),
            |described| (&described.inputs, &described.states),
        );
        inputs.iter().chain(states).position(|feature| feature.name == input)
    };
    let (program, spans) = text::parse_ordered(text, &NoWeights, &order).map_err(|error| {
        let message = format!("line {}, column {}: {}", error.line, error.column, error.message());
        let wrong = Error::new(ErrorKind::ModelFile, message).at(error.offset as u64);
        in_text(match error.hint() {
            Some(hint) => wrong.with_hint(hint),
            None => wrong,
        })
    })?;
    model.program = program;
    build_info::remove(&mut model.program);
    shapes::detach(&mut model);
    Ok((model, spans))
}
