//! Pipelines: models that run one after another, each on the results of earlier ones.
//!
//! A stage's inputs are matched by name with the pipeline's inputs and the outputs of earlier stages. Core ML
//! runs the stages one by one and converts features in between: an image is passed to the next stage as 8-bit
//! pixels. [`link`](link()) converts a pipeline to one model, with these conversions as operations; that
//! model can be checked, run and compiled like any other. [`package::read`](crate::package::read) and
//! [`compiled::read`](crate::compiled::read) return linked models. Their `read_pipeline` and `write_pipeline`
//! keep the stages separate.
//!
//! All stages must be ML Programs; Core ML also runs other kinds of stages.

mod link;

pub use link::link;

use coremill_mil::ir::{Program, UnknownFields};
use coremill_mil::model::{Extra, Model, ModelDescription};
use coremill_verify::{Report, Verified, verify};

/// A model that consists of stages.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pipeline {
    /// Kind of the pipeline's outputs.
    pub kind: PipelineKind,
    /// Version of the format; no stage has a higher one.
    pub specification_version: i32,
    /// Whether it can be trained on the device.
    pub is_updatable: bool,
    /// Inputs and outputs of the pipeline.
    pub description: ModelDescription,
    /// The stages, in the order of execution.
    pub stages: Vec<Stage>,
    /// Other files of the package.
    pub extra: Extra,
    /// Fields of the model file that this crate does not know.
    pub unknown: UnknownFields,
    /// Unknown fields of the message that contains the stages, for instance class labels of a classifier.
    pub unknown_of_kind: UnknownFields,
}

/// A stage of a [`Pipeline`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stage {
    /// Name for users; empty if the pipeline does not name its stages.
    pub name: String,
    /// The model.
    pub model: Model,
}

/// Kinds of pipelines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PipelineKind {
    /// Arbitrary outputs.
    #[default]
    Plain,
    /// A class label, optionally with its probabilities.
    Classifier,
    /// A number.
    Regressor,
}

impl PipelineKind {
    /// Field number in model files.
    pub(crate) fn field(self) -> u32 {
        match self {
            PipelineKind::Plain => 202,
            PipelineKind::Classifier => 200,
            PipelineKind::Regressor => 201,
        }
    }

    pub(crate) fn from_field(field: u32) -> Option<PipelineKind> {
        [PipelineKind::Plain, PipelineKind::Classifier, PipelineKind::Regressor]
            .into_iter()
            .find(|kind| kind.field() == field)
    }
}

impl Pipeline {
    /// Name of a stage for messages.
    pub fn stage_name(&self, index: usize) -> String {
        match self.stages.get(index) {
            Some(stage) if !stage.name.is_empty() => stage.name.clone(),
            _ => format!("model{index}"),
        }
    }

    /// Verifies all stages. The error contains the index of the first invalid stage and its report.
    pub fn verify(&self) -> Result<Vec<Verified<'_>>, (usize, Report)> {
        let stages = self.stages.iter().enumerate();
        stages
            .map(|(index, stage)| verify(&stage.model).map_err(|report| (index, report)))
            .collect()
    }

    pub(crate) fn programs_mut(&mut self) -> impl Iterator<Item = &mut Program> {
        self.stages.iter_mut().map(|stage| &mut stage.model.program)
    }
}
