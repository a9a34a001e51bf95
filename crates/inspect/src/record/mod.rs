//! Records of models on Apple devices: compute plan, outputs and times, as evidence for forecasts and numerics.
//!
//! A record is a zip archive:
//!
//! | entry | content |
//! |---|---|
//! | `record.json` | [`Record`]: versions, machine, the model's hash, seed, times |
//! | `inputs/CASE.npz` | inputs of a case |
//! | `outputs/UNITS/CASE.npz` | outputs of a case with these compute units |
//! | `plans/UNITS.json` | compute plan with these compute units |
//! | `model.mlpackage/…` | the model, if it is included |
//!
//! | module | holds |
//! |---|---|
//! | `collect` | [`record`]: runs a model on Core ML |
//! | `archive` | [`is_record`], [`write`], [`read`], [`from_bytes`], [`to_bytes`] |
//! | `agreement` | [`agreement`]: comparison of a record with the forecast and the engine |

mod agreement;
mod archive;
mod collect;

use std::collections::BTreeMap;

use coremill_engine::Array;
use coremill_mil::model::Model;
use coremill_mlpackage::package;
use coremill_tensor::Buffer;
use coremill_verify::Verified;
use serde::{Deserialize, Serialize};

pub use agreement::{Agreement, Disagreement, NumericsAgreement, PlanAgreement, agreement};
pub use archive::{from_bytes, is_record, read, to_bytes, write};
pub use collect::{RecordOptions, record};

use crate::error::{Error, ErrorKind};
use crate::placement::ComputePlan;

/// The version of the form of [`Record`].
const FORMAT_VERSION: u32 = 1;

/// Results of a model on a device. The JSON form holds everything except arrays, plans and the model; for the same
/// `format_version`, fields are only added.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// The version of this form.
    pub format_version: u32,
    /// Version of coremill.
    pub coremill: String,
    /// The machine.
    pub machine: Machine,
    /// The model.
    pub model: RecordedModel,
    /// Seed of the random inputs.
    pub seed: u64,
    /// The inputs of each run.
    pub cases: Vec<Case>,
    /// The results for each choice of compute units.
    pub devices: Vec<DeviceRecord>,
    /// The files of the model's package, if included.
    #[serde(skip)]
    pub files: Option<Vec<(String, Buffer)>>,
}

/// The machine of a record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Name of the processor, such as `Apple M3 Pro`.
    pub chip: String,
    /// Model of the machine, such as `Mac15,6`.
    pub model: String,
    /// Build of the operating system, such as `24A335`.
    pub system: String,
    /// Number of Neural Engine cores; 0 if there is none.
    pub neural_engine_cores: usize,
}

/// The model of a record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedModel {
    /// The file name.
    pub name: String,
    /// Hash of the program and its weights, in hexadecimal digits.
    pub hash: String,
    /// Whether the record holds the model.
    pub included: bool,
}

/// A function with inputs. Functions with enumerated shapes have one case for each.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Case {
    /// The function.
    pub function: String,
    /// The inputs. States start at zero.
    #[serde(skip)]
    pub inputs: Vec<(String, Array)>,
}

/// The results for a choice of compute units.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DeviceRecord {
    /// Compute units: `cpu_only`, `cpu_and_gpu`, `cpu_and_ne` or `all`.
    pub units: String,
    /// Duration of compiling the model, or of finding it in the cache, in milliseconds.
    pub compile_ms: f64,
    /// Duration of loading each function, in milliseconds. The first load compiles for the Neural Engine.
    pub load_ms: BTreeMap<String, f64>,
    /// The compute plan.
    #[serde(skip)]
    pub plan: Option<ComputePlan>,
    /// Reason for the missing plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan_error: Option<String>,
    /// One run for each case.
    pub runs: Vec<RecordedRun>,
}

/// Results of a case.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RecordedRun {
    /// Index of the case.
    pub case: usize,
    /// Duration of the first prediction, in milliseconds.
    pub first_ms: f64,
    /// Durations of the repeated predictions, in milliseconds.
    pub repeat_ms: Vec<f64>,
    /// Outputs of the first prediction.
    #[serde(skip)]
    pub outputs: Vec<(String, Array)>,
}

impl Record {
    /// Model and machine: `Digits.mlpackage on Apple M3 Pro (Mac15,6), system 24A335`.
    pub fn title(&self) -> String {
        let Machine { chip, model, system, .. } = &self.machine;
        format!("{} on {chip} ({model}), system {system}", self.model.name)
    }

    /// The included model; `None` if the record has only its hash.
    pub fn included_model(&self) -> Result<Option<Model>, Error> {
        let Some(files) = &self.files else { return Ok(None) };
        package::from_tree(files.iter().cloned()).map(Some).map_err(|error| of_package(&error))
    }
}

impl RecordedRun {
    /// Median duration of the repeated predictions, in milliseconds; the first prediction's if none was repeated.
    pub fn median_ms(&self) -> f64 {
        let mut times = self.repeat_ms.clone();
        times.sort_by(f64::total_cmp);
        times.get(times.len() / 2).copied().unwrap_or(self.first_ms)
    }
}

/// Hash of a model's program and weights, as in [`RecordedModel::hash`].
pub fn hash(verified: &Verified<'_>) -> Result<String, Error> {
    hashed(verified).map(|(_, hash)| hash)
}

/// The files of a model's package, and the hash of its program and weights.
fn hashed(verified: &Verified<'_>) -> Result<(package::VirtualDirectory, String), Error> {
    let tree = package::to_tree(verified).map_err(|error| of_package(&error))?;
    let hash = tree.content.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok((tree, hash))
}

fn of_package(error: &package::Error) -> Error {
    Error::new(format!("the model of the record: {error}"))
        .with_kind(ErrorKind::Format)
        .with_hint_of(error.hint())
}
