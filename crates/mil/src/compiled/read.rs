use std::path::Path;

use super::{Error, ErrorKind, build_info, container, file};
use crate::model::{Model, shapes};
use crate::package::weights::WeightFiles;
use crate::package::{decode, directory, limits};
use crate::text::{self, NoWeights};

/// Reads a compiled model; its weights stay mapped from their files.
pub fn read(path: &Path) -> Result<Model, Error> {
    let mut model = read_without_weights(path)?;
    WeightFiles::in_directory(path).load(&mut model.program)?;
    Ok(model)
}

/// Reads a compiled model without its weight files, which need not be there.
pub fn read_without_weights(path: &Path) -> Result<Model, Error> {
    if !path.join(file::DATA).is_file() {
        let message =
            format!("{} is no compiled model: it holds no {}", path.display(), file::DATA);
        let hint = "compiled models are directories named `.mlmodelc`";
        return Err(Error::new(ErrorKind::NotAModel, message).with_hint(hint));
    }
    let model = describe(directory::map(path, file::DATA)?.as_bytes())?;
    with_program(model, directory::map(path, file::TEXT)?.as_bytes())
}

/// Reads a compiled model whose `coremldata.bin` and `model.mil` are in memory; its weights keep their
/// places and have no elements.
pub fn from_bytes(data: &[u8], text: &[u8]) -> Result<Model, Error> {
    with_program(describe(data)?, text)
}

/// The model without its program.
fn describe(data: &[u8]) -> Result<Model, Error> {
    let in_data = |error: Error| error.in_file(file::DATA);
    let contents = container::read(data).map_err(in_data)?;
    Ok(Model {
        specification_version: contents.specification_version,
        description: decode::description(contents.description).map_err(in_data)?,
        ..Model::default()
    })
}

fn with_program(mut model: Model, text: &[u8]) -> Result<Model, Error> {
    let in_text = |error: Error| error.in_file(file::TEXT);
    if text.len() as u64 > limits::MODEL_BYTES {
        let message = format!("{} bytes of text; at most {} go", text.len(), limits::MODEL_BYTES);
        return Err(in_text(Error::new(ErrorKind::Limit, message)));
    }
    let text = std::str::from_utf8(text).map_err(|error| {
        let at = error.valid_up_to() as u64;
        in_text(Error::new(ErrorKind::ModelFile, "the text is not UTF-8").at(at))
    })?;
    model.program = text::parse(text, &NoWeights).map_err(|error| {
        let message = format!("line {}, column {}: {}", error.line, error.column, error.message);
        let wrong = Error::new(ErrorKind::ModelFile, message).at(error.offset as u64);
        in_text(match error.hint {
            Some(hint) => wrong.with_hint(hint),
            None => wrong,
        })
    })?;
    build_info::remove(&mut model.program);
    shapes::detach(&mut model);
    Ok(model)
}
