//! Encodes models to model files.
//!
//! The output depends only on the model: fields are in ascending order, map entries are sorted by key, and
//! fields unknown to the reader are at the end of their message.

mod constant;
mod description;
mod program;

use super::error::{Error, ErrorKind};
use super::wire::Writer;
use crate::pipeline::{Pipeline, PipelineKind};
use coremill_mil::ir::{Weight, WeightPlace};
use coremill_mil::limits;
use coremill_mil::model::{Model, ModelDescription};

type Result<T> = std::result::Result<T, Error>;

/// Returns the location of a weight.
pub(crate) type Places<'p> = &'p dyn Fn(&Weight) -> Option<WeightPlace>;

/// Encodes a model file with the weight locations of `places`.
pub(crate) fn model(model: &Model, places: Places<'_>) -> Result<Vec<u8>> {
    let mut writer = Writer::default();
    let mut failure = Failure(None);
    fields(&mut writer, model, places, &mut failure);
    checked(writer, failure)
}

/// Encodes the model file of a pipeline with the weight locations of `places`.
pub(crate) fn pipeline(pipeline: &Pipeline, places: Places<'_>) -> Result<Vec<u8>> {
    let mut writer = Writer::default();
    let mut failure = Failure(None);
    writer.int64(1, i64::from(pipeline.specification_version));
    writer.message(2, |writer| description::model(writer, &pipeline.description));
    writer.bool(10, pipeline.is_updatable);
    let stages = |writer: &mut Writer, failure: &mut Failure| {
        for (index, stage) in pipeline.stages.iter().enumerate() {
            let write = |failure: &mut Failure| {
                writer.message(1, |writer| fields(writer, &stage.model, places, failure));
            };
            failure.within(|| format!("stage {index}"), write);
        }
        if pipeline.stages.iter().any(|stage| !stage.name.is_empty()) {
            for stage in &pipeline.stages {
                writer.bytes_always(2, stage.name.as_bytes());
            }
        }
    };
    writer.message(pipeline.kind.field(), |writer| {
        match pipeline.kind {
            PipelineKind::Plain => stages(writer, &mut failure),
            PipelineKind::Classifier | PipelineKind::Regressor => {
                writer.message(1, |writer| stages(writer, &mut failure));
            }
        }
        writer.raw(&pipeline.unknown_of_kind.0);
    });
    writer.raw(&pipeline.unknown.0);
    checked(writer, failure)
}

fn fields(writer: &mut Writer, model: &Model, places: Places<'_>, failure: &mut Failure) {
    writer.int64(1, i64::from(model.specification_version));
    writer.message(2, |writer| description::model(writer, &model.description));
    writer.bool(10, model.is_updatable);
    writer.message(502, |writer| program::program(writer, &model.program, places, failure));
    writer.raw(&model.unknown.0);
}

fn checked(writer: Writer, failure: Failure) -> Result<Vec<u8>> {
    if let Some(error) = failure.0 {
        return Err(error);
    }
    let bytes = writer.finish();
    if bytes.len() as u64 > limits::MODEL_BYTES {
        let message = format!(
            "the model file would have {} bytes; the maximum is {}",
            bytes.len(),
            limits::MODEL_BYTES
        );
        let error = Error::new(ErrorKind::Unwritable, message);
        return Err(error.with_hint("store large constants in a weight file"));
    }
    Ok(bytes)
}

/// Encodes a description on its own, as in compiled models.
pub(crate) fn description(description: &ModelDescription) -> Vec<u8> {
    let mut writer = Writer::default();
    description::model(&mut writer, description);
    writer.finish()
}

/// The first failure. Messages are written by closures that cannot fail; output after a failure is discarded.
struct Failure(Option<Error>);

impl Failure {
    fn note(&mut self, message: impl FnOnce() -> String) {
        self.0.get_or_insert_with(|| Error::new(ErrorKind::Unwritable, message()));
    }

    /// Calls `write`; the location of a failure in it includes `segment`.
    fn within(&mut self, segment: impl FnOnce() -> String, write: impl FnOnce(&mut Failure)) {
        let failed_before = self.0.is_some();
        write(self);
        if !failed_before {
            self.0 = self.0.take().map(|error| error.within(segment()));
        }
    }
}
