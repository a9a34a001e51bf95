use std::path::Path;

use coremill_tensor::Buffer;

use super::{Error, ErrorKind, build_info, container, file};
use crate::package::tree::Source;
use crate::package::weights::WeightFiles;
use crate::package::{decode, directory};
use coremill_mil::limits;
use coremill_mil::model::{Metadata, Model, shapes};
use coremill_mil::text::{self, Listing, NoWeights, Spans};

/// Reads a compiled model; its weights stay mapped from their files.
pub fn read(path: &Path) -> Result<Model, Error> {
    directory::read_one(path, || read_from(&Source::Directory(path)))
}

/// Reads a compiled model whose files lie in memory, or inside another file, by their paths.
pub fn from_tree(files: impl IntoIterator<Item = (String, Buffer)>) -> Result<Model, Error> {
    read_from(&Source::in_memory(files)?)
}

fn read_from(source: &Source<'_>) -> Result<Model, Error> {
    let mut model = without_weights(source)?;
    source.weights("").load(&mut model.program)?;
    Ok(model)
}

/// Reads a compiled model, and keeps the text of its program as it stands in `model.mil`.
pub fn read_with_listing(path: &Path) -> Result<(Model, Listing), Error> {
    directory::read_one(path, || {
        let model = read_description(&Source::Directory(path))?;
        let mapped = directory::map(path, file::TEXT)?;
        let text = decode_text(mapped.as_bytes())?;
        let (mut model, spans) = with_program(model, text)?;
        WeightFiles::in_directory(path).load(&mut model.program)?;
        Ok((model, Listing { text: text.to_owned(), spans }))
    })
}

/// Reads a compiled model without its weight files, which need not be there.
pub fn read_without_weights(path: &Path) -> Result<Model, Error> {
    directory::read_one(path, || without_weights(&Source::Directory(path)))
}

fn without_weights(source: &Source<'_>) -> Result<Model, Error> {
    let model = read_description(source)?;
    let mapped = source.map(file::TEXT)?;
    with_program(model, decode_text(mapped.as_bytes())?).map(|(model, _)| model)
}

fn read_description(source: &Source<'_>) -> Result<Model, Error> {
    let there = match source {
        Source::Directory(path) => path.join(file::DATA).is_file(),
        Source::Memory(files) => files.contains_key(file::DATA),
    };
    if !there {
        let message =
            format!("{} is not a compiled model: it holds no {}", source.shown(), file::DATA);
        let hint = "compiled models are directories named `.mlmodelc`";
        return Err(Error::new(ErrorKind::NotAModel, message).with_hint(hint));
    }
    describe(source.map(file::DATA)?.as_bytes())
}

/// Reads a compiled model whose `coremldata.bin` and `model.mil` are in memory; its weights keep their
/// places and have no elements.
pub fn from_bytes(data: &[u8], text: &[u8]) -> Result<Model, Error> {
    with_program(describe(data)?, decode_text(text)?).map(|(model, _)| model)
}

/// The model without its program.
fn describe(data: &[u8]) -> Result<Model, Error> {
    let in_data = |error: Error| error.in_file(file::DATA);
    let contents = container::read(data).map_err(in_data)?;
    let mut description = decode::description(contents.description).map_err(in_data)?;
    // Compilers always write the field; empty, it says nothing.
    description.metadata.take_if(|metadata| *metadata == Metadata::default());
    Ok(Model {
        specification_version: contents.specification_version,
        description,
        ..Model::default()
    })
}

fn decode_text(text: &[u8]) -> Result<&str, Error> {
    if text.len() as u64 > limits::MODEL_BYTES {
        let message = format!("{} bytes of text; at most {} go", text.len(), limits::MODEL_BYTES);
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
    let (program, spans) = text::parse_with_spans(text, &NoWeights).map_err(|error| {
        let message = format!("line {}, column {}: {}", error.line, error.column, error.message);
        let wrong = Error::new(ErrorKind::ModelFile, message).at(error.offset as u64);
        in_text(match error.hint {
            Some(hint) => wrong.with_hint(hint),
            None => wrong,
        })
    })?;
    model.program = program;
    build_info::remove(&mut model.program);
    shapes::detach(&mut model);
    Ok((model, spans))
}
