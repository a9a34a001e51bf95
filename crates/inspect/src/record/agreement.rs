//! Comparison of a record with the forecast and the engine's numerics.

use std::fmt;

use coremill_coreml::ComputeUnits;
use coremill_device::Chip;
use coremill_engine::Numerics;
use coremill_mil::model::Model;
use coremill_session::{RunOptions, inputs};
use coremill_verify::{Verified, verify};

use super::{Case, DeviceRecord, Record};
use crate::compare::{ErrorMetrics, figures};
use crate::error::{Error, ErrorKind};
use crate::placement::{ComputePlan, Device, ForecastOptions, forecast};

/// Maximum number of disagreements shown for a plan.
const MAX_SHOWN: usize = 8;

/// Agreement of a record with the forecast and the engine.
#[derive(Clone, Debug, Default)]
pub struct Agreement {
    /// Plans with the Neural Engine.
    pub plans: Vec<PlanAgreement>,
    /// Outputs of each run.
    pub numerics: Vec<NumericsAgreement>,
}

/// Agreement of a recorded plan with the forecast: whether each operation is on the Neural Engine.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanAgreement {
    /// Compute units of the plan.
    pub units: ComputeUnits,
    /// Chip of the forecast.
    pub chip: &'static Chip,
    /// Whether the record's chip is unknown, so that the forecast is for another one.
    pub assumed_chip: bool,
    /// Number of operations in both plans.
    pub operations: usize,
    /// Number of recorded operations without a forecast.
    pub unmatched: usize,
    /// Operations whose engines differ.
    pub disagreements: Vec<Disagreement>,
}

/// An operation that is on the Neural Engine in only one of two plans.
#[derive(Clone, Debug, PartialEq)]
pub struct Disagreement {
    /// The function.
    pub function: String,
    /// The operator, as in `ios17.conv`.
    pub operator: String,
    /// Name of the first result.
    pub output: String,
    /// The recorded device.
    pub recorded: Device,
    /// The forecast device.
    pub forecast: Device,
}

/// Error of the engine's outputs compared with a device's.
#[derive(Clone, Debug, PartialEq)]
pub struct NumericsAgreement {
    /// Compute units of the run.
    pub units: ComputeUnits,
    /// Index of the case.
    pub case: usize,
    /// The function.
    pub function: String,
    /// The engine's numerics.
    pub numerics: Numerics,
    /// Name and error of each output.
    pub outputs: Vec<(String, ErrorMetrics)>,
}

/// Compares a record of a model with the forecast and with the engine.
pub fn agreement(record: &Record, model: &Model) -> Result<Agreement, Error> {
    let verified = verify(model).map_err(|report| {
        let message =
            format!("the model of the record is invalid: {} errors", report.error_count());
        Error::new(message).with_kind(ErrorKind::Format)
    })?;
    let hash = super::hash(&verified)?;
    if hash != record.model.hash {
        let message = format!(
            "the record is for a model with the hash {}, got {hash}",
            coremill_io::printable_line(&record.model.hash)
        );
        return Err(Error::new(message).with_hint("pass the model that was recorded"));
    }
    let mut found = Agreement::default();
    for device in &record.devices {
        let units = device
            .units
            .parse::<ComputeUnits>()
            .map_err(|error| Error::new(error.to_string()).with_hint_of(error.hint()))?;
        let has_neural_engine =
            matches!(units, ComputeUnits::All | ComputeUnits::CpuAndNeuralEngine);
        if let Some(plan) = device.plan.as_ref().filter(|_| has_neural_engine) {
            found.plans.push(of_plan(plan, units, &record.machine.chip, model));
        }
        // Operations with a path to the Neural Engine may still be on the CPU.
        let numerics: &[Numerics] = match units {
            ComputeUnits::CpuOnly => &[Numerics::CoremlCpu],
            ComputeUnits::CpuAndGpu => &[Numerics::Rounded],
            ComputeUnits::All | ComputeUnits::CpuAndNeuralEngine => {
                &[Numerics::Ane, Numerics::CoremlCpu]
            }
        };
        for &numerics in numerics {
            of_runs(device, units, numerics, &record.cases, &verified, &mut found.numerics)?;
        }
    }
    Ok(found)
}

fn of_plan(
    recorded: &ComputePlan,
    units: ComputeUnits,
    chip: &str,
    model: &Model,
) -> PlanAgreement {
    let parsed = Chip::parse(chip).ok();
    let chip = parsed.unwrap_or(Chip::of_study());
    let forecast = forecast(model, &ForecastOptions { chip, ..ForecastOptions::default() });
    let by_name = forecast.by_name();
    let (mut operations, mut unmatched, mut disagreements) = (0, 0, Vec::new());
    for (operation, device) in recorded.placed() {
        let output = operation.outputs.first().map_or("", String::as_str);
        let expected = by_name.get(&(&*operation.function, output));
        let Some(expected) = expected.and_then(|found| found.preferred) else {
            unmatched += 1;
            continue;
        };
        operations += 1;
        let is_engine = |device| device == Device::NeuralEngine;
        if is_engine(device) != is_engine(expected) {
            disagreements.push(Disagreement {
                function: operation.function.clone(),
                operator: operation.operator.clone(),
                output: output.to_owned(),
                recorded: device,
                forecast: expected,
            });
        }
    }
    PlanAgreement {
        units,
        chip,
        assumed_chip: parsed.is_none(),
        operations,
        unmatched,
        disagreements,
    }
}

fn of_runs(
    device: &DeviceRecord,
    units: ComputeUnits,
    numerics: Numerics,
    cases: &[Case],
    verified: &Verified<'_>,
    found: &mut Vec<NumericsAgreement>,
) -> Result<(), Error> {
    let executable =
        coremill_session::load(verified, &RunOptions { numerics, ..RunOptions::default() })?;
    for run in &device.runs {
        let Some(case) = cases.get(run.case) else { continue };
        let computed = executable.session(&case.function)?.run(&inputs(&case.inputs))?;
        let mut outputs = Vec::new();
        for (name, recorded) in &run.outputs {
            let Some(array) = computed.get(name).and_then(|value| value.as_array()) else {
                let message = format!("the engine has no output `{name}`");
                return Err(Error::new(message).with_kind(ErrorKind::Format));
            };
            outputs.push((name.clone(), figures(recorded, array)?));
        }
        let function = case.function.clone();
        found.push(NumericsAgreement { units, case: run.case, function, numerics, outputs });
    }
    Ok(())
}

/// One line for each plan and run, below each plan its first disagreements.
impl fmt::Display for Agreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for plan in &self.plans {
            writeln!(f, "{plan}")?;
            for disagreement in plan.disagreements.iter().take(MAX_SHOWN) {
                writeln!(f, "  {disagreement}")?;
            }
            let more = plan.disagreements.len().saturating_sub(MAX_SHOWN);
            if more > 0 {
                writeln!(f, "  and {more} more")?;
            }
        }
        self.numerics.iter().try_for_each(|numerics| writeln!(f, "{numerics}"))
    }
}

impl fmt::Display for PlanAgreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let same = self.operations - self.disagreements.len();
        write!(
            f,
            "forecast for {}, {}: {same} of {} operations agree",
            self.chip, self.units, self.operations
        )?;
        if self.assumed_chip {
            f.write_str("; the record's chip is unknown")?;
        }
        match self.unmatched {
            0 => Ok(()),
            count => write!(f, "; {count} are not in the forecast"),
        }
    }
}

impl fmt::Display for Disagreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Disagreement { function, operator, output, recorded, forecast } = self;
        write!(
            f,
            "{function}: {operator} `{output}`: recorded on the {}, forecast on the {}",
            recorded.name(),
            forecast.name()
        )
    }
}

impl fmt::Display for NumericsAgreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NumericsAgreement { units, case, function, numerics, outputs } = self;
        write!(f, "numerics `{numerics}`, {units}, {function}, case {case}:")?;
        for (name, metrics) in outputs {
            let snr = metrics.snr();
            match snr == f64::INFINITY {
                true => write!(f, " `{name}` equal")?,
                false => write!(
                    f,
                    " `{name}` SNR {snr:.1} dB, largest error {:.3e}",
                    metrics.max_absolute
                )?,
            }
        }
        Ok(())
    }
}
