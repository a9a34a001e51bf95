//! Post-training quantization of PyTorch programs, without Python.
//!
//! | module | contents |
//! |---|---|
//! | `config`, `rules` | options, and rules from a file |
//! | `observe` | ranges of activations, from samples |
//! | `rows`, `moments` | rounding with second moments of layer inputs |
//! | `weights` | weights as integers or tables |
//! | `edit` | quantizable operations, and changes to the program |

mod config;
mod edit;
mod moments;
mod observe;
mod rows;
mod rules;
mod weights;

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use coremill_compiler::{LowerOptions, Options, Precision, Rewrite, SourceMap};
use coremill_engine::{Array, FeatureSpec, Numerics};
use coremill_inspect::compare::figures;
#[cfg(feature = "images")]
use coremill_io::unknown_name;
use coremill_mil::ir::Opset;
use coremill_mil::ops::OpKind;
use coremill_passes::{AnalyzedFunction, KeepFp32};
use coremill_pt2::ExportedProgram;
#[cfg(feature = "images")]
use coremill_session::images;
use serde::Serialize;

pub use self::config::{Config, Recipe, Rule, Scheme};
use self::edit::{CalibratedProgram, Layer, QuantizableLayers};
use self::moments::InputHessian;
pub use self::observe::Observer;
use self::observe::{CalibrationStats, Range};
use self::rows::Rows;
pub use self::rules::{RuleText, read_rules};
use crate::archive::sample_inputs;
use crate::error::Error;
use crate::samples;
pub use crate::samples::{Pixels, Sample};
pub use crate::trial::{Artifact, Output};
use crate::trial::{Machine, Outputs, TrialCompiler};

/// The loss that quantizing a layer causes.
#[derive(Clone, Debug, Serialize)]
pub struct Loss {
    /// Name of the layer's output.
    pub name: String,
    /// MIL name of the operation.
    pub op: &'static str,
    /// Path of the module.
    pub module: Option<String>,
    /// Name of the recipe.
    pub recipe: &'static str,
    /// The reason if the layer stays unquantized.
    pub kept: Option<String>,
    /// SNR of the layer's output if only this layer is quantized, `None` without samples.
    pub layer_db: Option<f64>,
    /// SNR of the model's worst output in that case.
    pub model_db: Option<f64>,
}

/// A quantized program.
#[derive(Clone, Debug)]
pub struct QuantizedProgram {
    /// The quantized model or program.
    pub made: Artifact,
    /// The release that it targets.
    pub target: Opset,
    /// All layers that the recipe applies to, sorted by their effect on the outputs, worst first.
    pub layers: Vec<Loss>,
    /// SNR of the model's worst output with all layers quantized, `None` without samples.
    pub model_db: Option<f64>,
    /// Number of samples.
    pub samples: usize,
    /// The effort of the result. It is less than requested if more effort made the outputs worse.
    pub effort: u8,
}

/// Maximum number of samples for measuring losses. All samples are used for ranges.
const MEASURED: usize = 8;

/// A program prepared for quantization.
pub struct Quantizer {
    subject: TrialCompiler,
    options: Options,
    config: Config,
    machine: Machine,
    inputs: Vec<FeatureSpec>,
    found: QuantizableLayers,
    own: Option<Sample>,
}

impl Quantizer {
    /// Lowers a program and finds the layers to quantize. Options that do not fit the program or
    /// the target are rejected here, before samples are read.
    pub fn new(
        program: ExportedProgram,
        output: Output,
        options: &LowerOptions,
        config: &Config,
    ) -> Result<Quantizer, Error> {
        config.check(&options.options)?;
        let mut options = options.clone();
        if config.scheme.recipe == Recipe::Fp32 {
            options.options.precision = Precision::Fp32;
        }
        let subject = TrialCompiler::new(program.clone(), output, &options, config.needs())?;
        let options = options.options;
        let (looked, looking) =
            (Arc::new(Mutex::new(Ok(QuantizableLayers::default()))), config.clone());
        let look = looked.clone();
        let rewrite = change(config, move |draft, calls| {
            let mut all = look.lock().unwrap_or_else(PoisonError::into_inner);
            match (edit::find(draft, calls, &looking), &mut *all) {
                (Ok(found), Ok(all)) => all.add(found),
                (Err(error), all) => *all = Err(error),
                (Ok(_), Err(_)) => {}
            }
        });
        let (made, _) = subject.make(&in_fp32(&options), Some(rewrite))?;
        let mut looked = looked.lock().unwrap_or_else(PoisonError::into_inner);
        let found = std::mem::replace(&mut *looked, Ok(QuantizableLayers::default()))?;
        let all: Vec<_> = found.all.iter().map(Layer::facts).collect();
        config.check_layers(&all)?;
        if let (Some(unfit), true) = (&found.unfit, found.layers.is_empty()) {
            return Err(Error::new(format!("no layer can be quantized: {unfit}"))
                .with_hint("choose group or block sizes that divide the sizes of the weights"));
        }
        let machine = Machine::new(made, Numerics::Fast)?;
        let inputs = machine.ports()?;
        let own = sample_inputs(&program, &inputs)?;
        let config = config.clone();
        Ok(Quantizer { subject, options, config, machine, inputs, found, own })
    }

    /// Inputs of the model.
    pub fn inputs(&self) -> &[FeatureSpec] {
        &self.inputs
    }

    /// The archive's sample inputs, `None` if it has none.
    pub fn own_sample(&self) -> Option<&Sample> {
        self.own.as_ref()
    }

    /// Reads samples: `.npz` files, and folders of `.npz` files or images.
    pub fn read_samples(&self, paths: &[PathBuf]) -> Result<Vec<Sample>, Error> {
        let check = |sample: &Sample| self.machine.check(sample);
        samples::read(paths, &self.inputs, &self.config.pixels, &check)
    }

    /// Converts a PNG or JPEG image in memory to a sample's input.
    #[cfg(feature = "images")]
    pub fn picture(&self, input: &str, bytes: &[u8]) -> Result<Array, Error> {
        let Some(port) = self.inputs.iter().find(|port| port.name == input) else {
            let names = self.inputs.iter().map(|port| &port.name);
            return Err(Error::new(unknown_name("input", input, names)));
        };
        samples::picture(port, &self.config.pixels, &|described| {
            let picture = std::io::Cursor::new(bytes);
            Ok(images::from_reader(picture, described, Some(images::Resize::Crop))?)
        })
    }

    /// Quantizes the program with samples.
    pub fn run(&self, samples: &[Sample]) -> Result<QuantizedProgram, Error> {
        let layers = &self.found.layers;
        let needs = if self.config.is_static() {
            Some("activations are quantized")
        } else if self.config.keep_worst > 0 {
            Some("the option `keep_worst` measures the layers")
        } else if self.config.effort > 1 {
            Some("the option `effort=2` uses them to round weights")
        } else {
            None
        };
        if let (Some(why), true) = (needs, samples.is_empty()) {
            return Err(Error::new(format!("samples are needed because {why}")).with_hint(
                "pass the option `samples=FILE.npz`, or a folder of images or `.npz` files",
            ));
        }
        samples.iter().try_for_each(|sample| self.machine.check(sample))?;
        let ranges = self.observe(samples)?;
        let measured = &samples[..samples.len().min(MEASURED)];
        let watched: HashSet<String> = layers.iter().map(|layer| layer.name.clone()).collect();
        let seen = Measure {
            samples: measured,
            given: outputs(&self.machine, measured, &watched)?,
            watched,
        };
        // With samples, every effort is tried and the best one wins.
        let least = if samples.is_empty() { self.config.effort } else { 0 };
        let mut attempts = Vec::new();
        for effort in least..=self.config.effort {
            let moments = Arc::new(self.moments(samples, effort)?);
            let ranges = ranges.clone();
            attempts.push(self.attempt(
                CalibratedProgram { effort, ranges, moments, ..CalibratedProgram::default() },
                &seen,
            )?);
        }
        let (best, model_db) = self.best(attempts, samples)?;
        let (made, target) = self.quantized(&best.chosen, &best.tuning, &self.options)?;
        let mut layers = best.losses;
        let kept = self.found.kept.iter();
        layers.extend(kept.map(|(layer, why)| loss_of(layer, Some(why.clone()))));
        let (samples, effort) = (samples.len(), best.tuning.effort);
        Ok(QuantizedProgram { made, target, layers, model_db, samples, effort })
    }

    /// The options of programs that losses are measured with.
    fn measured(&self) -> Options {
        match self.config.numerics {
            Numerics::Fast => in_fp32(&self.options),
            Numerics::Rounded | Numerics::Ane | Numerics::CoremlCpu => self.options.clone(),
        }
    }

    /// Measures the loss of each layer with the roundings of an effort, and excludes the worst
    /// layers.
    fn attempt(&self, mut tuning: CalibratedProgram, seen: &Measure<'_>) -> Result<Attempt, Error> {
        let layers = &self.found.layers;
        let mut losses = Vec::new();
        let mut shifts = HashMap::new();
        for layer in layers {
            let mut loss = loss_of(layer, None);
            if !seen.samples.is_empty() {
                let alone = HashSet::from([layer.name.clone()]);
                let (made, _) = self.quantized(&alone, &tuning, &self.measured())?;
                let machine = Machine::new(made, self.config.numerics)?;
                let found = outputs(&machine, seen.samples, &seen.watched)?;
                loss.layer_db = decibels(&seen.given, &found, Some(&layer.name));
                loss.model_db = decibels(&seen.given, &found, None);
                if tuning.effort > 0
                    && let Some(shift) = shift(&seen.given, &found, layer)
                {
                    shifts.insert(layer.name.clone(), shift);
                }
            }
            losses.push(loss);
        }
        tuning.shifts = shifts;
        let cost = |loss: &Loss| loss.model_db.unwrap_or(f64::INFINITY);
        losses.sort_by(|left, right| cost(left).total_cmp(&cost(right)));
        let (worst, chosen) = losses.split_at_mut(self.config.keep_worst.min(layers.len()));
        for loss in worst {
            loss.kept = Some("one of the worst".to_owned());
        }
        let chosen = chosen.iter().map(|loss| loss.name.clone()).collect();
        Ok(Attempt { tuning, losses, chosen })
    }

    /// The attempt with the smallest error over all samples, and its SNR. The first one wins a tie.
    fn best(
        &self,
        mut attempts: Vec<Attempt>,
        samples: &[Sample],
    ) -> Result<(Attempt, Option<f64>), Error> {
        let mut tried = Vec::new();
        for attempt in &attempts {
            let options = self.measured();
            let (made, _) = self.quantized(&attempt.chosen, &attempt.tuning, &options)?;
            tried.push((Machine::new(made, self.config.numerics)?, Noise::default()));
        }
        for sample in samples {
            let wanted = self.machine.outputs(sample)?;
            for (machine, noise) in &mut tried {
                noise.add(&wanted, &machine.outputs(sample)?);
            }
        }
        let mut best = 0;
        for (at, (_, noise)) in tried.iter().enumerate() {
            if noise.decibels() > tried[best].1.decibels() {
                best = at;
            }
        }
        let found = (!samples.is_empty()).then(|| tried[best].1.decibels());
        Ok((attempts.swap_remove(best), found))
    }

    /// Converts the program with the chosen layers quantized.
    fn quantized(
        &self,
        chosen: &HashSet<String>,
        tuning: &CalibratedProgram,
        options: &Options,
    ) -> Result<(Artifact, Opset), Error> {
        let failed = Arc::new(Mutex::new(None));
        let (told, config) = (failed.clone(), self.config.clone());
        let (chosen, tuning) = (chosen.clone(), tuning.clone());
        let rewrite = change(&self.config, move |draft, calls| {
            if let Err(error) = edit::apply(draft, calls, &chosen, &config, &tuning) {
                told.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            }
        });
        let made = self.subject.make(options, Some(rewrite))?;
        match failed.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(error) => Err(error),
            None => Ok(made),
        }
    }

    /// Second moments of layer inputs, if the effort requires them.
    fn moments(
        &self,
        samples: &[Sample],
        effort: u8,
    ) -> Result<HashMap<(String, Rows), Vec<InputHessian>>, Error> {
        let mut moments: HashMap<(String, Rows), Option<Vec<InputHessian>>> = HashMap::new();
        if effort < 2 {
            return Ok(HashMap::new());
        }
        let mut inputs: HashMap<&str, HashSet<&Rows>> = HashMap::new();
        for layer in &self.found.layers {
            if let Some(rows) = &layer.rows {
                inputs.entry(&layer.input).or_default().insert(rows);
            }
        }
        for sample in samples {
            let mut look = |name: &str, array: &Array| {
                for &rows in inputs.get(name).into_iter().flatten() {
                    let new = || {
                        let (groups, length) = rows.lengths(array.shape())?;
                        (0..groups).map(|_| InputHessian::new(length)).collect()
                    };
                    let known = moments.entry((name.to_owned(), rows.clone())).or_insert_with(new);
                    if let Some(known) = known {
                        rows.for_each(array, &mut |group, row| known[group].see(row));
                    }
                }
            };
            sample.iter().for_each(|(name, array)| look(name, array));
            self.machine.run(sample, &mut look)?;
        }
        Ok(moments.into_iter().filter_map(|(key, found)| Some((key, found?))).collect())
    }

    /// Ranges of activations, by name.
    fn observe(&self, samples: &[Sample]) -> Result<HashMap<String, Range>, Error> {
        let names = &self.found.observed;
        if names.is_empty() {
            return Ok(HashMap::new());
        }
        let mut seen: HashMap<String, CalibrationStats> = HashMap::new();
        for (index, sample) in samples.iter().enumerate() {
            let mut bad = None;
            let mut look = |name: &str, array: &Array| {
                let new = || CalibrationStats::new(self.config.observer);
                if names.contains(name)
                    && let Some(elements) = array.as_floats()
                    && !seen.entry(name.to_owned()).or_insert_with(new).see(elements)
                {
                    bad.get_or_insert_with(|| name.to_owned());
                }
            };
            for (name, array) in sample {
                look(name, array);
            }
            self.machine.run(sample, &mut look)?;
            if let Some(name) = bad {
                let message = format!("sample {index} makes `{name}` NaN or infinite");
                return Err(Error::new(message).with_hint("check the sample, or leave it out"));
            }
        }
        Ok(seen.into_iter().map(|(name, seen)| (name, seen.range())).collect())
    }
}

impl QuantizableLayers {
    /// Merges the layers found in another part of the program, or in a new partitioning of it.
    fn add(&mut self, other: QuantizableLayers) {
        let names: HashSet<String> = other.all.iter().map(|layer| layer.name.clone()).collect();
        self.all.retain(|layer| !names.contains(&layer.name));
        self.layers.retain(|layer| !names.contains(&layer.name));
        self.kept.retain(|(layer, _)| !names.contains(&layer.name));
        self.all.extend(other.all);
        self.layers.extend(other.layers);
        self.kept.extend(other.kept);
        self.unfit = self.unfit.take().or(other.unfit);
        self.observed.extend(other.observed);
    }
}

/// A rewrite of the functions that a program is converted to.
fn change(
    config: &Config,
    run: impl Fn(&mut AnalyzedFunction, &SourceMap) + Send + Sync + 'static,
) -> Rewrite {
    let run =
        move |draft: &mut AnalyzedFunction, calls: &SourceMap, _: &mut KeepFp32| run(draft, calls);
    Rewrite { needs: config.needs(), run: Arc::new(run) }
}

fn in_fp32(options: &Options) -> Options {
    Options { precision: Precision::Fp32, ..options.clone() }
}

/// Outputs and watched values for each sample.
fn outputs(
    machine: &Machine,
    samples: &[Sample],
    watched: &HashSet<String>,
) -> Result<Vec<CalibrationRun>, Error> {
    let mut all = Vec::with_capacity(samples.len());
    for sample in samples {
        let mut values = HashMap::new();
        let outputs = machine.run(sample, &mut |name, array| {
            if watched.contains(name) {
                values.insert(name.to_owned(), array.clone());
            }
        })?;
        all.push(CalibrationRun { outputs, values });
    }
    Ok(all)
}

/// Result of one run.
struct CalibrationRun {
    outputs: Outputs,
    values: HashMap<String, Array>,
}

/// Context of loss measurements.
struct Measure<'s> {
    samples: &'s [Sample],
    /// Outputs of the unquantized program.
    given: Vec<CalibrationRun>,
    /// Names of layer outputs.
    watched: HashSet<String>,
}

/// A candidate quantization of the program.
struct Attempt {
    tuning: CalibratedProgram,
    /// Loss of each layer, worst effect on the outputs first.
    losses: Vec<Loss>,
    /// Names of the quantized layers.
    chosen: HashSet<String>,
}

/// Signal power and noise power of each output, over several runs.
#[derive(Default)]
struct Noise(Vec<[f64; 2]>);

impl Noise {
    fn add(&mut self, wanted: &Outputs, found: &Outputs) {
        let pairs = wanted.iter().zip(found).map(|((_, wanted), (_, found))| (wanted, found));
        for (at, (wanted, found)) in pairs.enumerate() {
            self.see(at, wanted, found);
        }
    }

    fn see(&mut self, at: usize, wanted: &Array, found: &Array) {
        self.0.resize(self.0.len().max(at + 1), [0.0; 2]);
        let Ok(figures) = figures(wanted, found) else { return };
        let [signal, noise] = &mut self.0[at];
        *signal += figures.powers[0];
        *noise += if figures.unlike > 0 { f64::INFINITY } else { figures.powers[1] };
    }

    /// SNR of the worst output, infinite if nothing differs.
    fn decibels(&self) -> f64 {
        let of = |&[signal, noise]: &[f64; 2]| match noise {
            0.0 => f64::INFINITY,
            noise => 10.0 * (signal / noise).log10(),
        };
        self.0.iter().map(of).fold(f64::INFINITY, f64::min)
    }
}

fn loss_of(layer: &Layer, kept: Option<String>) -> Loss {
    Loss {
        name: layer.name.clone(),
        op: layer.kind.name(),
        module: layer.module.clone(),
        recipe: layer.scheme.recipe.name(),
        kept,
        layer_db: None,
        model_db: None,
    }
}

/// SNR over all samples, for a value or for the worst output.
fn decibels(
    reference: &[CalibrationRun],
    found: &[CalibrationRun],
    value: Option<&str>,
) -> Option<f64> {
    let mut noise = Noise::default();
    for (reference, found) in reference.iter().zip(found) {
        match value {
            Some(name) => noise.see(0, reference.values.get(name)?, found.values.get(name)?),
            None => noise.add(&reference.outputs, &found.outputs),
        }
    }
    Some(noise.decibels())
}

/// Mean error of each output channel if only this layer is quantized.
fn shift(
    reference: &[CalibrationRun],
    found: &[CalibrationRun],
    layer: &Layer,
) -> Option<Vec<f32>> {
    if !matches!(layer.kind, OpKind::Conv | OpKind::ConvTranspose | OpKind::Linear) {
        return None;
    }
    let mut sums: Vec<f64> = Vec::new();
    let mut count = 0usize;
    for (reference, found) in reference.iter().zip(found) {
        let wanted = reference.values.get(&layer.name)?;
        let (one, other) = (wanted.as_floats()?, found.values.get(&layer.name)?.as_floats()?);
        let shape = wanted.shape();
        let axis = if layer.kind == OpKind::Linear { shape.len() - 1 } else { 1 };
        let channels = *shape.get(axis)?;
        let inner: usize = shape[axis + 1..].iter().product();
        sums.resize(channels, 0.0);
        for (at, (one, other)) in one.iter().zip(other).enumerate() {
            sums[at / inner % channels] += f64::from(one - other);
        }
        count += one.len() / channels.max(1);
    }
    Some(sums.iter().map(|sum| (sum / count.max(1) as f64) as f32).collect())
}
