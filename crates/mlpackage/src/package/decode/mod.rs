//! Model files into models.

mod constant;
mod description;
mod other_kinds;
mod program;
#[cfg(test)]
mod tests;

use super::error::{Error, ErrorKind};
use super::wire::{Field, Reader, malformed};
use coremill_mil::limits;
use coremill_mil::model::{Model, ModelDescription};

type Result<T> = std::result::Result<T, Error>;

/// The number of `mlProgram` among the kinds of model.
const ML_PROGRAM: u32 = 502;

/// Decodes a model file. Weights keep their place and have no data.
pub(crate) fn model(bytes: &[u8]) -> Result<Model> {
    let mut model = Model::default();
    let (mut version, mut description, mut updatable) = (None, None, None);
    let mut kind: Option<Field<'_>> = None;
    let mut reader = Reader::new(bytes);
    while let Some(field) = reader.next()? {
        match field.number {
            1 => {
                let value = field.int32("specificationVersion")?;
                field.once(&mut version, "specificationVersion", value)?;
            }
            2 => field.once(&mut description, "description", field)?,
            10 => field.once(&mut updatable, "isUpdatable", field.bool("isUpdatable")?)?,
            number if number == ML_PROGRAM || other_kinds::name(number).is_some() => {
                field.once(&mut kind, "a kind of model", field)?;
            }
            _ => model.unknown.0.extend_from_slice(field.raw),
        }
    }
    model.specification_version = version.unwrap_or_default();
    model.is_updatable = updatable.unwrap_or_default();
    let Some(kind) = kind else {
        let message = "the file holds no model of a kind that is known";
        let error = Error::new(ErrorKind::OtherModel, message);
        return Err(error.with_hint("is this a Core ML model file?"));
    };
    if kind.number != ML_PROGRAM {
        return Err(other_kinds::refusal(&kind, model.specification_version));
    }

    let mut budget = Budget::new(bytes.len() as u64);
    if let Some(field) = description {
        let within = |error: Error| error.within("description");
        let reader = field.message("description")?;
        model.description = description::model(reader, &mut budget).map_err(within)?;
    }
    let reader = kind.message("mlProgram")?;
    model.program =
        program::program(reader, &mut budget).map_err(|error| error.within("mlProgram"))?;
    Ok(model)
}

/// Decodes a description alone, as compiled models hold it.
pub(crate) fn description(bytes: &[u8]) -> Result<ModelDescription> {
    description::model(Reader::new(bytes), &mut Budget::new(bytes.len() as u64))
}

/// The name of a kind of model other than an ML Program, by its field in model files.
pub(crate) fn kind_name(number: u32) -> Option<&'static str> {
    other_kinds::name(number)
}

/// What decoding one file may still use.
struct Budget {
    memory: u64,
    allowed: u64,
    ops: usize,
    values: usize,
    blocks: usize,
}

impl Budget {
    fn new(file_bytes: u64) -> Budget {
        let allowed = file_bytes.saturating_mul(limits::MEMORY_FACTOR) + limits::MEMORY_FLOOR;
        Budget { memory: allowed, allowed, ops: 0, values: 0, blocks: 0 }
    }

    /// Takes the memory of one `T` and `extra` bytes beside it.
    fn charge<T>(&mut self, extra: usize, offset: u64) -> Result<()> {
        let bytes = (size_of::<T>() + extra) as u64;
        match self.memory.checked_sub(bytes) {
            Some(left) => {
                self.memory = left;
                Ok(())
            }
            None => {
                let message = format!(
                    "the model takes more than {} bytes of memory, out of proportion to its file",
                    self.allowed
                );
                Err(Error::new(ErrorKind::Limit, message).at(offset))
            }
        }
    }
}

/// Counts one thing more of which a program may have `limit`.
fn count(counter: &mut usize, limit: usize, what: &str, offset: u64) -> Result<()> {
    *counter += 1;
    if *counter > limit {
        return Err(over(what, limit, offset));
    }
    Ok(())
}

fn over(what: &str, limit: usize, offset: u64) -> Error {
    let message = format!("there are more than {limit} {what}");
    Error::new(ErrorKind::Limit, message).at(offset)
}

/// A message that must have a field.
fn missing(what: &str, offset: u64) -> Error {
    malformed(format!("{what} is missing"), offset)
}
