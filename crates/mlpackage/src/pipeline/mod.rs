//! Pipelines: models that run one after another, each on what those before it give.
//!
//! A stage takes its inputs by name from the pipeline's inputs and from the outputs of earlier stages. Core ML runs the
//! stages one by one, and converts features in between: an image that a stage gives reaches the next one as 8-bit pixels.
//! [`link`](link()) makes one model of a pipeline, with these conversions written out as operations; that model can be
//! checked, run and compiled like any other. [`package::read`](crate::package::read) and
//! [`compiled::read`](crate::compiled::read) link what they read. `read_pipeline` beside them keeps the stages apart, and
//! `write_pipeline` writes them.
//!
//! Only pipelines whose stages are ML Programs are supported; Core ML runs other kinds of stages, too.

mod link;

pub use link::link;

use coremill_mil::ir::{Program, UnknownFields};
use coremill_mil::model::{Extra, Model, ModelDescription};
use coremill_mil::verify::{Report, Verified, verify};

/// A model made of stages.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pipeline {
    /// What callers expect of it.
    pub kind: PipelineKind,
    /// The version of the format; that of no stage is higher.
    pub specification_version: i32,
    /// Whether it can be trained on the device.
    pub is_updatable: bool,
    /// Inputs and outputs of the whole.
    pub description: ModelDescription,
    /// The models, in the order in which they run.
    pub stages: Vec<Stage>,
    /// Other files of the package.
    pub extra: Extra,
    /// Fields of the model file that this crate does not know.
    pub unknown: UnknownFields,
    /// Fields that this crate does not know of the message that holds the stages: class labels of a classifier.
    pub unknown_of_kind: UnknownFields,
}

/// A model of a [`Pipeline`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stage {
    /// The name, for people; empty if the pipeline names none of its stages.
    pub name: String,
    /// The model.
    pub model: Model,
}

/// Kinds of pipelines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PipelineKind {
    /// Any outputs.
    #[default]
    Plain,
    /// A class label, and perhaps its probabilities.
    Classifier,
    /// A number.
    Regressor,
}

impl PipelineKind {
    /// The field of model files.
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
    /// The name of a stage for messages.
    pub fn stage_name(&self, index: usize) -> String {
        match self.stages.get(index) {
            Some(stage) if !stage.name.is_empty() => stage.name.clone(),
            _ => format!("model{index}"),
        }
    }

    /// The stages as sound models, or the index of the first unsound one with its report.
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
