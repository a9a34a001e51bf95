use std::collections::{BTreeMap, HashMap};

use coremill_io::ErrorDetail;
use serde::{Deserialize, Serialize};

/// The version of the form of [`ComputePlan`].
const FORMAT_VERSION: u32 = 1;

/// A compute plan: recorded on a Mac, or a forecast. Its JSON form is stable: fields are only added while `format_version`
/// stays.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ComputePlan {
    /// The version of this form.
    pub format_version: u32,
    /// Basis of a forecast; `None` for a recorded plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forecast: Option<ForecastNote>,
    /// The machine that it was recorded on, `Apple M3 Pro` for instance.
    #[serde(default)]
    pub machine: String,
    /// The build of its system, `24A335` for instance.
    #[serde(default)]
    pub system: String,
    /// The operations.
    pub operations: Vec<PlannedOperation>,
}

/// Basis of a forecast.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ForecastNote {
    /// The chip that it is for.
    pub chip: String,
    /// The share of recorded plans that the cost model repeats.
    pub accuracy: String,
}

/// An operation of a plan.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PlannedOperation {
    /// The function.
    pub function: String,
    /// The operator, as in `ios17.conv`.
    #[serde(default)]
    pub operator: String,
    /// The names of its results.
    pub outputs: Vec<String>,
    /// Share of the total cost that Core ML estimates; `None` for constants.
    #[serde(default)]
    pub cost: Option<f64>,
    /// Device that runs the operation; `None` for constants.
    #[serde(default)]
    pub preferred: Option<Device>,
    /// The devices that could run it.
    #[serde(default)]
    pub supported: Vec<Device>,
    /// Why it is not on the Neural Engine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// The reason in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// Suggested change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
    /// Estimated times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimate: Option<Estimate>,
}

/// Estimated times of an operation, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// On the CPU.
    pub cpu: Option<f64>,
    /// On the Neural Engine.
    pub neural_engine: Option<f64>,
}

/// Why an operation is not on the Neural Engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// The Neural Engine does not have the operation, or not with such arguments.
    NoPath,
    /// A size exceeds a limit.
    Limit,
    /// It works on integers.
    Int32,
    /// It computes in fp32.
    Fp32,
    /// A size is unknown until the model runs.
    DynamicShape,
    /// It could run there, but going there and back costs more than it saves.
    NotWorthIt,
    /// The devices that Core ML may use do not include it.
    NotAllowed,
}

/// Device that runs operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Device {
    /// The processor.
    Cpu,
    /// The graphics processor.
    Gpu,
    /// The Neural Engine.
    NeuralEngine,
    /// A device unknown to this crate.
    #[serde(other)]
    Other,
}

impl From<coremill_coreml::PlannedOperation> for PlannedOperation {
    fn from(operation: coremill_coreml::PlannedOperation) -> PlannedOperation {
        let coremill_coreml::PlannedOperation {
            function,
            operator,
            outputs,
            cost,
            preferred,
            supported,
        } = operation;
        PlannedOperation {
            function,
            operator,
            outputs,
            cost,
            preferred: preferred.map(Device::from),
            supported: supported.into_iter().map(Device::from).collect(),
            ..PlannedOperation::default()
        }
    }
}

impl From<coremill_coreml::DeviceKind> for Device {
    fn from(kind: coremill_coreml::DeviceKind) -> Device {
        use coremill_coreml::DeviceKind as Kind;
        match kind {
            Kind::Cpu => Device::Cpu,
            Kind::Gpu => Device::Gpu,
            Kind::NeuralEngine => Device::NeuralEngine,
            Kind::Other => Device::Other,
        }
    }
}

impl Device {
    /// Its name in a sentence.
    pub fn name(self) -> &'static str {
        match self {
            Device::Cpu => "CPU",
            Device::Gpu => "GPU",
            Device::NeuralEngine => "Neural Engine",
            Device::Other => "another device",
        }
    }
}

impl Reason {
    /// Its name in a table.
    pub fn name(self) -> &'static str {
        match self {
            Reason::NoPath => "no path",
            Reason::Limit => "limit",
            Reason::Int32 => "int32",
            Reason::Fp32 => "fp32",
            Reason::DynamicShape => "dynamic shape",
            Reason::NotWorthIt => "not worth it",
            Reason::NotAllowed => "not allowed",
        }
    }
}

impl ComputePlan {
    /// A recorded plan of this version.
    pub fn new(machine: &str, system: &str, operations: Vec<PlannedOperation>) -> ComputePlan {
        let (machine, system) = (machine.to_owned(), system.to_owned());
        ComputePlan { format_version: FORMAT_VERSION, forecast: None, machine, system, operations }
    }

    /// Reads the JSON form.
    pub fn from_json(text: &str) -> Result<ComputePlan, ErrorDetail> {
        let plan: ComputePlan = serde_json::from_str(text)
            .map_err(|error| ErrorDetail::new(error.to_string()).with_source(error))?;
        match plan.format_version {
            FORMAT_VERSION => Ok(plan),
            version => Err(ErrorDetail::new(format!(
                "`format_version` must be {FORMAT_VERSION}, got {version}"
            ))),
        }
    }

    /// The origin of the plan, as people read it: `forecast for M4`, `recorded on Apple M3 Pro, system 24A335`.
    pub fn origin(&self) -> String {
        match (&self.forecast, &*self.machine, &*self.system) {
            (Some(note), ..) => format!("forecast for {}", note.chip),
            (None, "", _) => "recorded on a Mac".to_owned(),
            (None, machine, "") => format!("recorded on {machine}"),
            (None, machine, system) => format!("recorded on {machine}, system {system}"),
        }
    }

    /// The operations that run somewhere, which constants do not.
    pub fn placed(&self) -> impl Iterator<Item = (&PlannedOperation, Device)> {
        let operations = self.operations.iter();
        operations.filter_map(|operation| Some((operation, operation.preferred?)))
    }

    /// The number of operations on each device.
    pub fn counts(&self) -> BTreeMap<Device, usize> {
        let mut counts = BTreeMap::new();
        for (_, device) in self.placed() {
            *counts.entry(device).or_default() += 1;
        }
        counts
    }

    /// The share of operations on the Neural Engine, from 0 to 1; 1 if nothing is computed.
    pub fn neural_engine_share(&self) -> f64 {
        let total = self.placed().count();
        let within = self.placed().filter(|(_, device)| *device == Device::NeuralEngine).count();
        if total == 0 { 1.0 } else { within as f64 / total as f64 }
    }

    /// The operations by function and first result.
    pub fn by_name(&self) -> HashMap<(&str, &str), &PlannedOperation> {
        let named = self.operations.iter().filter_map(|operation| {
            Some(((&*operation.function, &**operation.outputs.first()?), operation))
        });
        named.collect()
    }
}
