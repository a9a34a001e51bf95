//! Collection of a record on Core ML.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use coremill_coreml::{ComputeUnits, chip_info};
use coremill_engine::{Array, FeatureSpec, Outputs};
use coremill_mil::model::{FeatureType, ImageSizes, ShapeFlexibility};
use coremill_session::{Device, Executable, RunOptions, inputs, random};
use coremill_verify::Verified;

use super::{Case, DeviceRecord, FORMAT_VERSION, Machine, Record, RecordedModel, RecordedRun};
use crate::error::{Error, ErrorKind};
use crate::placement::ComputePlan;

/// Options of [`record`].
#[derive(Clone, Debug)]
pub struct RecordOptions {
    /// The choices of compute units.
    pub units: Vec<ComputeUnits>,
    /// Seed of the random inputs.
    pub seed: u64,
    /// Number of predictions after the first.
    pub repeat: usize,
    /// Whether the record holds the model.
    pub include_model: bool,
    /// Directory of models compiled by Core ML; `None` selects the default directory.
    pub cache: Option<PathBuf>,
}

impl Default for RecordOptions {
    fn default() -> RecordOptions {
        let units =
            vec![ComputeUnits::CpuOnly, ComputeUnits::CpuAndNeuralEngine, ComputeUnits::All];
        RecordOptions { units, seed: 0, repeat: 10, include_model: false, cache: None }
    }
}

/// Runs every function of a model on Core ML with random inputs, for each choice of compute units and each
/// enumerated shape, and records plans, outputs and times. `watch` is called with the name of each step.
pub fn record(
    verified: &Verified<'_>,
    name: &str,
    options: &RecordOptions,
    watch: &mut dyn FnMut(&str),
) -> Result<Record, Error> {
    let chip =
        chip_info().map_err(|error| Error::new(error.to_string()).with_kind(ErrorKind::Device))?;
    let machine = Machine {
        chip: chip.name,
        model: chip.model,
        system: chip.build,
        neural_engine_cores: chip.neural_engine_cores,
    };
    let (tree, hash) = super::hashed(verified)?;
    let mut cases = Vec::new();
    let mut devices = Vec::new();
    for &units in &options.units {
        watch(&format!("compiling for {units}"));
        let (device, cache) = (device(units), options.cache.clone());
        let start = Instant::now();
        let executable = coremill_session::load(
            verified,
            &RunOptions { device, cache, ..RunOptions::default() },
        )?;
        let compile_ms = milliseconds(start.elapsed());
        if cases.is_empty() {
            cases = self::cases(&*executable, options.seed)?;
        }
        let collected = collect(&*executable, units, &cases, options.repeat, &machine, watch)?;
        devices.push(DeviceRecord { compile_ms, ..collected });
    }
    let included = options.include_model;
    let files = included.then(|| {
        let files = tree.files.into_iter();
        let join = |file: coremill_mlpackage::package::TreeFile| {
            let bytes: Vec<u8> =
                file.parts.iter().flat_map(|part| part.as_bytes().to_vec()).collect();
            (file.path, bytes.into())
        };
        files.map(join).collect()
    });
    Ok(Record {
        format_version: FORMAT_VERSION,
        coremill: env!("CARGO_PKG_VERSION").to_owned(),
        machine,
        model: RecordedModel { name: name.to_owned(), hash, included },
        seed: options.seed,
        cases,
        devices,
        files,
    })
}

/// Plans and runs an executable for one choice of compute units.
pub(super) fn collect(
    executable: &dyn Executable,
    units: ComputeUnits,
    cases: &[Case],
    repeat: usize,
    machine: &Machine,
    watch: &mut dyn FnMut(&str),
) -> Result<DeviceRecord, Error> {
    watch(&format!("planning for {units}"));
    // Older systems have no plans, but the outputs are still worth recording.
    let (plan, plan_error) = match executable.compute_plan() {
        Ok(plan) => {
            let operations = plan.operations.into_iter().map(Into::into).collect();
            (Some(ComputePlan::new(&machine.chip, &machine.system, operations)), None)
        }
        Err(error) => (None, Some(error.to_string())),
    };
    let mut load_ms = BTreeMap::new();
    let mut runs = Vec::new();
    for function in executable.functions() {
        watch(&format!("loading `{function}` for {units}"));
        let start = Instant::now();
        let mut session = executable.session(&function)?;
        load_ms.insert(function.clone(), milliseconds(start.elapsed()));
        watch(&format!("running `{function}` for {units}"));
        for (index, case) in cases.iter().enumerate() {
            if case.function != function {
                continue;
            }
            session.reset()?;
            let given = inputs(&case.inputs);
            let start = Instant::now();
            let outputs = session.run(&given)?;
            let first_ms = milliseconds(start.elapsed());
            let mut repeat_ms = Vec::with_capacity(repeat);
            for _ in 0..repeat {
                let start = Instant::now();
                session.run(&given)?;
                repeat_ms.push(milliseconds(start.elapsed()));
            }
            runs.push(RecordedRun { case: index, first_ms, repeat_ms, outputs: arrays(outputs) });
        }
    }
    let units = units.name().to_owned();
    Ok(DeviceRecord { units, compile_ms: 0.0, load_ms, plan, plan_error, runs })
}

/// Random inputs of all functions, once for each enumerated shape.
pub(super) fn cases(executable: &dyn Executable, seed: u64) -> Result<Vec<Case>, Error> {
    let mut cases = Vec::new();
    for function in executable.functions() {
        let specs = executable.signature(&function)?.inputs;
        let shapes: Vec<_> = specs.iter().map(shapes).collect();
        let count = shapes.iter().map(Vec::len).fold(1, usize::max);
        for index in 0..count {
            let mut inputs = Vec::new();
            for (spec, shapes) in specs.iter().zip(&shapes) {
                if spec.description.as_ref().is_some_and(|description| description.is_optional) {
                    continue;
                }
                // Core ML accepts the enumerated shapes of several inputs at the same index.
                let Some(shape) = shapes.get(index).or(shapes.first()) else {
                    let message = format!("input `{}` has no default shape", spec.name);
                    return Err(Error::new(message).with_hint("give the model fixed shapes"));
                };
                let vocabulary = executable.vocabulary(&function, &spec.name);
                inputs.push((spec.name.clone(), random(spec, shape.clone(), seed, vocabulary)?));
            }
            cases.push(Case { function: function.clone(), inputs });
        }
    }
    Ok(cases)
}

/// The enumerated shapes of an input, or its default shape.
fn shapes(spec: &FeatureSpec) -> Vec<Vec<usize>> {
    let default = spec.default_shape();
    let mut shapes: Vec<Vec<usize>> = match spec.description.as_ref().map(|found| &found.ty) {
        Some(FeatureType::MultiArray(array)) => match &array.flexibility {
            ShapeFlexibility::Enumerated(shapes) => {
                let sizes = |shape: &Vec<i64>| {
                    shape.iter().map(|&size| usize::try_from(size).ok()).collect()
                };
                shapes.iter().filter_map(sizes).collect()
            }
            _ => Vec::new(),
        },
        Some(FeatureType::Image(image)) => match (&image.sizes, &default) {
            (ImageSizes::Enumerated(sizes), Some(default)) => {
                let with = |height, width| {
                    let leading = default.len().checked_sub(2)?;
                    let mut shape = default[..leading].to_vec();
                    shape.extend([usize::try_from(height).ok()?, usize::try_from(width).ok()?]);
                    Some(shape)
                };
                sizes.iter().filter_map(|size| with(size.height, size.width)).collect()
            }
            _ => Vec::new(),
        },
        _ => Vec::new(),
    };
    if let Some(default) = default
        && !shapes.contains(&default)
    {
        shapes.insert(0, default);
    }
    shapes
}

fn arrays(outputs: Outputs) -> Vec<(String, Array)> {
    let outputs = outputs.0.into_iter();
    outputs.filter_map(|(name, value)| Some((name, value.as_array()?.clone()))).collect()
}

fn device(units: ComputeUnits) -> Device {
    match units {
        ComputeUnits::All => Device::All,
        ComputeUnits::CpuOnly => Device::Cpu,
        ComputeUnits::CpuAndGpu => Device::Gpu,
        ComputeUnits::CpuAndNeuralEngine => Device::NeuralEngine,
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
