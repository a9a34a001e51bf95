//! Decodes model files to models.

mod constant;
mod description;
mod other_kinds;
mod program;
#[cfg(test)]
mod tests;

use super::error::{Error, ErrorKind};
use super::wire::{Field, Reader, malformed, unknown_field};
use crate::pipeline::{self, Pipeline, PipelineKind, Stage};
use coremill_mil::ir::{Program, UnknownFields};
use coremill_mil::limits;
use coremill_mil::model::{Extra, Model, ModelDescription};

type Result<T> = std::result::Result<T, Error>;

/// Field number of `mlProgram` in the model's kind.
const ML_PROGRAM: u32 = 502;

/// Content of a model file.
pub(crate) enum ModelContent {
    Model(Box<Model>),
    Pipeline(Pipeline),
}

impl ModelContent {
    /// All programs of the model.
    pub(crate) fn programs_mut(&mut self) -> Vec<&mut Program> {
        match self {
            ModelContent::Model(model) => vec![&mut model.program],
            ModelContent::Pipeline(pipeline) => pipeline.programs_mut().collect(),
        }
    }

    /// Other files of the package.
    pub(crate) fn extra_mut(&mut self) -> &mut Extra {
        match self {
            ModelContent::Model(model) => &mut model.extra,
            ModelContent::Pipeline(pipeline) => &mut pipeline.extra,
        }
    }

    /// The model; the stages of a pipeline are linked.
    pub(crate) fn into_model(self) -> Result<Model> {
        match self {
            ModelContent::Model(model) => Ok(*model),
            ModelContent::Pipeline(pipeline) => linked(pipeline),
        }
    }

    pub(crate) fn into_pipeline(self) -> Option<Pipeline> {
        match self {
            ModelContent::Model(_) => None,
            ModelContent::Pipeline(pipeline) => Some(pipeline),
        }
    }
}

/// Links the stages of a pipeline into one model.
pub(crate) fn linked(pipeline: Pipeline) -> Result<Model> {
    pipeline::link(pipeline).map_err(|detail| {
        let error = Error::new(ErrorKind::Unsupported, detail.to_string());
        error.with_hint(detail.hint().unwrap_or_default())
    })
}

/// Decodes a model file and links the stages of a pipeline. Weights have locations but no data.
pub(crate) fn model(bytes: &[u8]) -> Result<Model> {
    any(bytes)?.into_model()
}

/// Decodes a model file. Weights have locations but no data.
pub(crate) fn any(bytes: &[u8]) -> Result<ModelContent> {
    let mut budget = Budget::new(bytes.len() as u64);
    let mut found = Message::default();
    let kind = found.read(Reader::new(bytes))?;
    let Some(kind) = kind else {
        let message = "the file contains no model of a known kind";
        let error = Error::new(ErrorKind::OtherModel, message);
        return Err(error.with_hint("is this a Core ML model file?"));
    };
    if kind.number == ML_PROGRAM {
        return found.model(&kind, &mut budget).map(|model| ModelContent::Model(Box::new(model)));
    }
    match PipelineKind::from_field(kind.number) {
        Some(of) if other_kinds::is_of_programs(&kind) => {
            found.pipeline(of, &kind, &mut budget).map(ModelContent::Pipeline)
        }
        _ => Err(other_kinds::refusal(&kind, found.version.unwrap_or_default())),
    }
}

/// The fields of a `Model` message other than its kind.
#[derive(Default)]
struct Message<'b> {
    version: Option<i32>,
    description: Option<Field<'b>>,
    updatable: Option<bool>,
    unknown: UnknownFields,
}

impl<'b> Message<'b> {
    /// Reads the fields; returns the field with the kind of the model and its contents.
    fn read(&mut self, mut reader: Reader<'b>) -> Result<Option<Field<'b>>> {
        let mut kind: Option<Field<'b>> = None;
        while let Some(field) = reader.next()? {
            match field.number {
                1 => {
                    let value = field.int32("specificationVersion")?;
                    field.once(&mut self.version, "specificationVersion", value)?;
                }
                2 => field.once(&mut self.description, "description", field)?,
                10 => field.once(&mut self.updatable, "isUpdatable", field.bool("isUpdatable")?)?,
                number if number == ML_PROGRAM || other_kinds::name(number).is_some() => {
                    field.once(&mut kind, "a kind of model", field)?;
                }
                _ => self.unknown.0.extend_from_slice(field.raw),
            }
        }
        Ok(kind)
    }

    fn described(&self, budget: &mut Budget) -> Result<ModelDescription> {
        let Some(field) = self.description else { return Ok(ModelDescription::default()) };
        let within = |error: Error| error.within("description");
        description::model(field.message("description")?, budget).map_err(within)
    }

    fn model(self, program: &Field<'_>, budget: &mut Budget) -> Result<Model> {
        let description = self.described(budget)?;
        let reader = program.message("mlProgram")?;
        let within = |error: Error| error.within("mlProgram");
        Ok(Model {
            specification_version: self.version.unwrap_or_default(),
            is_updatable: self.updatable.unwrap_or_default(),
            description,
            program: program::program(reader, budget).map_err(within)?,
            extra: Extra::default(),
            unknown: self.unknown,
        })
    }

    fn pipeline(
        self,
        kind: PipelineKind,
        field: &Field<'_>,
        budget: &mut Budget,
    ) -> Result<Pipeline> {
        let mut pipeline = Pipeline {
            kind,
            specification_version: self.version.unwrap_or_default(),
            is_updatable: self.updatable.unwrap_or_default(),
            description: self.described(budget)?,
            unknown: self.unknown,
            ..Pipeline::default()
        };
        let name = other_kinds::name(field.number).unwrap_or_default();
        let mut reader = field.message(name)?;
        if kind != PipelineKind::Plain {
            let mut inner = None;
            while let Some(field) = reader.next()? {
                match field.number {
                    1 => field.once(&mut inner, "pipeline", field)?,
                    _ => pipeline.unknown_of_kind.0.extend_from_slice(field.raw),
                }
            }
            let inner = inner.ok_or_else(|| missing("the pipeline", field.offset))?;
            reader = inner.message("pipeline")?;
        }
        let mut names = Vec::new();
        while let Some(field) = reader.next()? {
            match field.number {
                1 => {
                    let limit = limits::PIPELINE_STAGES;
                    count(&mut pipeline.stages.len(), limit, "stages", field.offset)?;
                    let index = pipeline.stages.len();
                    let within = |error: Error| error.within(format!("stage {index}"));
                    let model = stage(&field, budget).map_err(within)?;
                    pipeline.stages.push(Stage { name: String::new(), model });
                }
                2 => {
                    let name = field.name("names")?;
                    budget.consume_budget::<String>(name.len(), field.offset)?;
                    names.push(name.to_owned());
                }
                _ => return Err(unknown_field(&field, "a pipeline")),
            }
        }
        if !names.is_empty() && names.len() != pipeline.stages.len() {
            let (stages, names) = (pipeline.stages.len(), names.len());
            let message = format!("a pipeline of {stages} stages has {names} stage names");
            return Err(malformed(message, field.offset));
        }
        for (stage, name) in pipeline.stages.iter_mut().zip(names) {
            stage.name = name;
        }
        Ok(pipeline)
    }
}

fn stage(field: &Field<'_>, budget: &mut Budget) -> Result<Model> {
    let mut found = Message::default();
    match found.read(field.message("models")?)? {
        Some(kind) if kind.number == ML_PROGRAM => found.model(&kind, budget),
        Some(kind) => Err(other_kinds::refusal(&kind, found.version.unwrap_or_default())),
        None => Err(missing("the kind of the model", field.offset)),
    }
}

/// Decodes a description on its own, as in compiled models.
pub(crate) fn description(bytes: &[u8]) -> Result<ModelDescription> {
    description::model(Reader::new(bytes), &mut Budget::new(bytes.len() as u64))
}

/// Name of a kind of model other than an ML Program, by its field number.
pub(crate) fn kind_name(number: u32) -> Option<&'static str> {
    other_kinds::name(number)
}

/// Remaining limits for decoding a file.
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

    /// Subtracts the memory of one `T` plus `extra` bytes.
    fn consume_budget<T>(&mut self, extra: usize, offset: u64) -> Result<()> {
        let bytes = (size_of::<T>() + extra) as u64;
        match self.memory.checked_sub(bytes) {
            Some(left) => {
                self.memory = left;
                Ok(())
            }
            None => {
                let message = format!(
                    "the model requires more than {} bytes of memory, which is out of proportion to its \
                     file size",
                    self.allowed
                );
                Err(Error::new(ErrorKind::Limit, message).at(offset))
            }
        }
    }
}

/// Counts an item of which a program may have at most `limit`.
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

/// Error: a message lacks a required field.
fn missing(what: &str, offset: u64) -> Error {
    malformed(format!("{what} is missing"), offset)
}
