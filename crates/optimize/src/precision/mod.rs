//! Mixed precision for programs whose values exceed the range of fp16.
//!
//! [`choose`] runs a program on samples in `fp32`, and in `fp16` with each result rounded as on a
//! device. If outputs differ, it first moves powers of two through the program and merges
//! convolution branches, so that everything stays in `fp16`. If that is not enough, it moves as few
//! operations as possible to `fp32`.

mod search;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use coremill_compiler::{LowerOptions, Options, Precision, Rewrite, SourceMap};
use coremill_engine::{Array, Numerics};
use coremill_inspect::compare::{SCALES_KEY, figures};
use coremill_mil::ir::Opset;
use coremill_passes::{self as pass, AnalyzedFunction, KeepFp32, Magnitude, RescaleOutcome};
use coremill_pt2::ExportedProgram;
use serde::Serialize;

use self::search::{Graph, Search};
use crate::archive::sample_inputs;
use crate::error::Error;
use crate::samples::{self, Pixels, Sample};
pub use crate::trial::Output;
use crate::trial::{Artifact, Machine, Outputs, TrialCompiler};

/// SNR in decibels that counts as sufficient. Below it, fixes are tried.
pub const ENOUGH_DB: f64 = 40.0;
/// SNR to aim for while everything stays in `fp16`. The margin allows for devices that sum in
/// another order.
const AIM_DB: f64 = ENOUGH_DB + 3.0;
/// Larger numbers count as infinite.
const INFINITE: f32 = 1e30;

/// Changes that keep a program accurate in fp16.
#[derive(Clone, Debug)]
pub struct MixedPrecisionPlan {
    /// Changes to the program, `None` if it needs none.
    pub rewrite: Option<Rewrite>,
    /// The fixes, in program order.
    pub cures: Vec<PrecisionFix>,
    /// Accuracy of each output, before and after.
    pub outputs: Vec<Outcome>,
    /// Number of samples.
    pub samples: usize,
    /// Values that are scaled by a power of two, with the exponent.
    pub scales: BTreeMap<String, i32>,
}

/// Accuracy of an output compared with `fp32`: SNR in decibels. `None` if nothing differs, −∞ if it
/// is not finite.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// Name of the output.
    pub name: String,
    /// With plain `fp16`.
    pub before: Option<f64>,
    /// With the fixes.
    pub after: Option<f64>,
}

/// A fix for a part of the program that is inaccurate in fp16.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PrecisionFix {
    /// The first value of the part.
    pub name: String,
    /// The module that computes it.
    pub module: Option<String>,
    /// Why fp16 is inaccurate here.
    pub reason: String,
    /// The change to the program.
    pub remedy: String,
    /// The cost of the change.
    pub cost: String,
    /// Operations computed in `fp32`, empty if all stay in `fp16`.
    pub in_fp32: Vec<String>,
}

impl MixedPrecisionPlan {
    /// Applies the changes to the options of a conversion. The metadata of converted models then
    /// lists the scaled values, so that they can be compared with other models.
    pub fn apply(&self, options: &mut Options) {
        options.rewrite.clone_from(&self.rewrite);
        if !self.scales.is_empty() {
            let told = serde_json::json!(self.scales).to_string();
            options.metadata.set_user_defined(SCALES_KEY, told);
        }
    }

    /// Returns true if every output has a sufficient SNR.
    pub fn holds(&self) -> bool {
        self.outputs.iter().all(|output| is_enough(output.after))
    }
}

fn is_enough(decibels: Option<f64>) -> bool {
    decibels.is_none_or(|found| found >= ENOUGH_DB)
}

/// Finds the changes that a program needs in fp16. Samples are `.npz` files, and folders of `.npz`
/// files or images. Without samples, the archive's sample inputs are used.
/// Programs in half precision are judged in the given arithmetic.
pub fn choose(
    program: &ExportedProgram,
    output: Output,
    options: &LowerOptions,
    samples: &[PathBuf],
    numerics: Numerics,
) -> Result<MixedPrecisionPlan, Error> {
    let mut options = options.clone();
    options.options.rewrite = None;
    let subject = TrialCompiler::new(program.clone(), output, &options, Opset::Ios15)?;
    let in_fp32 = Options { precision: Precision::Fp32, ..options.options.clone() };
    let in_fp16 = Options { precision: Precision::Fp16, ..options.options };
    let (made, graph) = looked_at(&subject, &in_fp32, false)?;
    if let Some(unsound) = &graph.unsound {
        return Err(
            Error::new(unsound).with_hint("correct the weights: no precision can represent them")
        );
    }
    let reference = Machine::new(made, Numerics::Fast)?;
    let ports = reference.ports()?;
    let samples = match samples {
        [] => sample_inputs(program, &ports)?.into_iter().collect(),
        paths => {
            let check = |sample: &Sample| reference.check(sample);
            samples::read(paths, &ports, &Pixels::default(), &check)?
        }
    };
    if samples.is_empty() {
        return Err(Error::new("choosing the precision requires samples").with_hint(
            "pass the option `samples=FILE.npz`, or keep the example inputs in the exported program",
        ));
    }
    let mut magnitudes = HashMap::new();
    let mut wanted = Vec::new();
    for (index, sample) in samples.iter().enumerate() {
        let mut look = |name: &str, array: &Array| see(&mut magnitudes, name, array);
        sample.iter().for_each(|(name, array)| look(name, array));
        wanted.push(reference.run(sample, &mut look)?);
        if let Some((name, _)) = wanted[index].iter().find(|(_, array)| has_no_numbers(array)) {
            let message = format!("sample {index} makes the output `{name}` NaN in fp32");
            return Err(Error::new(message).with_hint("check the sample, or leave it out"));
        }
    }
    let magnitudes: HashMap<String, Magnitude> =
        magnitudes.into_iter().map(|(name, sums)| (name, sums.magnitude())).collect();
    let magnitudes = Arc::new(magnitudes);
    let trial = Trial { subject, in_fp32, in_fp16, samples, wanted, magnitudes, numerics };
    trial.choose(&reference, graph)
}

/// The converted program and its operations, with or without merged branches.
fn looked_at(
    subject: &TrialCompiler,
    options: &Options,
    merges: bool,
) -> Result<(Artifact, Graph), Error> {
    let graph = Arc::new(Mutex::new(Graph::default()));
    let seen = graph.clone();
    let look = rewrite(move |draft, calls, _| {
        if merges {
            pass::reparameterize_conv_branches(draft);
        }
        seen.lock().unwrap_or_else(PoisonError::into_inner).add(draft, calls);
    });
    let (made, _) = subject.make(options, Some(look))?;
    let graph = std::mem::take(&mut *graph.lock().unwrap_or_else(PoisonError::into_inner));
    Ok((made, graph))
}

/// The context of trial conversions.
struct Trial {
    subject: TrialCompiler,
    in_fp32: Options,
    in_fp16: Options,
    samples: Vec<Sample>,
    wanted: Vec<Outputs>,
    magnitudes: Arc<HashMap<String, Magnitude>>,
    /// Arithmetic of programs in half precision.
    numerics: Numerics,
}

/// Changes to try.
#[derive(Clone, Debug, Default)]
struct Plan {
    /// Whether convolution branches are merged.
    merges: bool,
    /// Whether powers of two are moved.
    rescales: bool,
    /// Names of values that are computed in `fp32`.
    wide: HashSet<String>,
}

/// Changes that a plan made.
#[derive(Debug, Default)]
struct Changes {
    /// Sums of branches that became one convolution.
    merged: Vec<String>,
    rescaled: RescaleOutcome,
}

/// SNR of each output compared with `fp32`.
type Distances = Vec<(String, Option<f64>)>;

/// A plan and its result.
struct PlanTrial {
    plan: Plan,
    changes: Changes,
    after: Distances,
}

impl PlanTrial {
    fn of(trial: &Trial, plan: Plan) -> Result<PlanTrial, Error> {
        let (made, changes) = trial.make(&plan)?;
        Ok(PlanTrial { after: trial.judge(made)?, plan, changes })
    }

    fn worst(&self) -> f64 {
        let known = self.after.iter().filter_map(|(_, found)| *found);
        known.fold(f64::INFINITY, f64::min)
    }

    /// Returns true if this plan is a better basis for more changes. If values overflow in both,
    /// the plan that rescales is better.
    fn is_better_than(&self, known: &PlanTrial) -> bool {
        match known.worst() {
            f64::NEG_INFINITY if self.worst() == f64::NEG_INFINITY => self.plan.rescales,
            worst => self.worst() > worst,
        }
    }
}

impl Trial {
    fn choose(&self, reference: &Machine, mut graph: Graph) -> Result<MixedPrecisionPlan, Error> {
        let mut best = PlanTrial::of(self, Plan::default())?;
        let before = best.after.clone();
        // These plans keep everything in `fp16`.
        for (merges, rescales) in [(false, true), (true, true), (true, false)] {
            if best.worst() >= AIM_DB {
                break;
            }
            let tried = PlanTrial::of(self, Plan { merges, rescales, ..Plan::default() })?;
            if merges && tried.changes.merged.is_empty() {
                break;
            }
            if tried.is_better_than(&best) {
                best = tried;
            }
        }
        if best.worst() >= ENOUGH_DB {
            return Ok(self.chosen(&best, &graph, &before));
        }
        let plan = best.plan;
        if plan.merges {
            graph = looked_at(&self.subject, &self.in_fp32, true)?.1;
        }
        let plan = Search { trial: self, reference, graph: &graph }.widen(plan)?;
        Ok(self.chosen(&PlanTrial::of(self, plan)?, &graph, &before))
    }

    /// Converts the program with a plan. Also returns the changes.
    fn make(&self, plan: &Plan) -> Result<(Artifact, Changes), Error> {
        let told = Arc::new(Mutex::new(Changes::default()));
        let tell = told.clone();
        let (made, _) = self.subject.make(&self.in_fp16, Some(self.rewrite(plan, Some(tell))))?;
        let told = std::mem::take(&mut *told.lock().unwrap_or_else(PoisonError::into_inner));
        Ok((made, told))
    }

    fn rewrite(&self, plan: &Plan, tell: Option<Arc<Mutex<Changes>>>) -> Rewrite {
        let (plan, magnitudes) = (plan.clone(), self.magnitudes.clone());
        rewrite(move |draft, _, keep| {
            let mut done = Changes::default();
            if plan.merges {
                done.merged = pass::reparameterize_conv_branches(draft);
            }
            if plan.rescales {
                done.rescaled = pass::rescale(draft, &magnitudes, keep);
            }
            if let Some(tell) = &tell {
                let mut told = tell.lock().unwrap_or_else(PoisonError::into_inner);
                told.merged.extend(done.merged);
                told.rescaled.scaled.extend(done.rescaled.scaled);
                told.rescaled.norms.extend(done.rescaled.norms);
                told.rescaled.exponents.extend(done.rescaled.exponents);
            }
            keep.names.extend(plan.wide.iter().cloned());
        })
    }

    /// SNR of each output compared with `fp32`: the minimum over all samples.
    fn judge(&self, made: Artifact) -> Result<Distances, Error> {
        let machine = Machine::new(made, self.numerics)?;
        let mut all: Distances = Vec::new();
        for (sample, wanted) in self.samples.iter().zip(&self.wanted) {
            let found = machine.outputs(sample)?;
            for (at, ((name, wanted), (_, found))) in wanted.iter().zip(&found).enumerate() {
                let decibels = decibels(wanted, found);
                match all.get_mut(at) {
                    Some((_, known)) => *known = least(*known, decibels),
                    None => all.push((name.clone(), decibels)),
                }
            }
        }
        Ok(all)
    }

    fn chosen(&self, tried: &PlanTrial, graph: &Graph, before: &Distances) -> MixedPrecisionPlan {
        let PlanTrial { plan, changes, after } = tried;
        let outcome = |((name, before), (_, after)): (&(String, _), &(String, _))| Outcome {
            name: name.clone(),
            before: *before,
            after: *after,
        };
        let mut cures = Vec::new();
        let name_of = |name: &String| graph.module(name).map(str::to_owned);
        cures.extend(merged_cure(&changes.merged, graph));
        for scaled in &changes.rescaled.scaled {
            cures.push(scaled_cure(scaled, graph));
        }
        for name in &changes.rescaled.norms {
            cures.push(PrecisionFix {
                name: name.clone(),
                module: name_of(name),
                reason: "its squares exceed the range of fp16".to_owned(),
                remedy: "computed as the layer norm of its input and the negated input".to_owned(),
                cost: "the same number of operations, at twice the width".to_owned(),
                in_fp32: Vec::new(),
            });
        }
        let (out, rounding): (Vec<_>, Vec<_>) = graph
            .regions(&plan.wide)
            .into_iter()
            .partition(|region| !plan.rescales && self.beyond(region).is_some());
        cures.extend(out.iter().map(|region| {
            let reason = reason(self.beyond(region).as_ref());
            wide_cure(&[region.as_slice()], reason, graph)
        }));
        if !rounding.is_empty() {
            // Values are in range, since powers of two were moved.
            let regions: Vec<&[&str]> = rounding.iter().map(Vec::as_slice).collect();
            cures.push(wide_cure(&regions, reason(None), graph));
        }
        cures.sort_by_key(|cure| graph.place(&cure.name));
        let is_changed = plan.merges || plan.rescales || !plan.wide.is_empty();
        MixedPrecisionPlan {
            rewrite: is_changed.then(|| self.rewrite(plan, None)),
            cures,
            outputs: before.iter().zip(after).map(outcome).collect(),
            samples: self.samples.len(),
            scales: changes.rescaled.exponents.iter().cloned().collect(),
        }
    }

    /// The magnitude of the first value outside the range of fp16.
    fn beyond(&self, region: &[&str]) -> Option<Magnitude> {
        let known = region.iter().filter_map(|name| self.magnitudes.get(*name));
        known.copied().find(|it| it.is_too_large() || it.is_too_small())
    }
}

/// Describes computing regions in `fp32`.
fn wide_cure(regions: &[&[&str]], reason: String, graph: &Graph) -> PrecisionFix {
    let mut names = regions.concat();
    names.sort_by_key(|name| graph.place(name));
    let (first, last) = (names[0], names[names.len() - 1]);
    let (remedy, cost) = match (names.len(), regions.len()) {
        (1, _) => {
            ("computed in fp32".to_owned(), "casts around it, and it does not run on".to_owned())
        }
        (count, 1) => (
            format!("{count} values up to `{last}` computed in fp32"),
            "casts around them, and they do not run on".to_owned(),
        ),
        (count, regions) => (
            format!("{count} values in {regions} regions up to `{last}` computed in fp32"),
            "casts around each region, and they do not run on".to_owned(),
        ),
    };
    PrecisionFix {
        name: first.to_owned(),
        module: graph.module(first).map(str::to_owned),
        reason,
        remedy,
        cost: format!("{cost} the Neural Engine"),
        in_fp32: names.into_iter().map(str::to_owned).collect(),
    }
}

/// Describes merging branches.
fn merged_cure(merged: &[String], graph: &Graph) -> Option<PrecisionFix> {
    let first = merged.first()?;
    Some(PrecisionFix {
        name: first.clone(),
        module: graph.module(first).map(str::to_owned),
        reason: "rounding errors of its branches accumulate".to_owned(),
        remedy: match merged.len() {
            1 => "its branches merged into one convolution".to_owned(),
            count => format!("the branches of each of {count} sums merged into one convolution"),
        },
        cost: "none: there are fewer operations".to_owned(),
        in_fp32: Vec::new(),
    })
}

/// Describes moving a power of two.
fn scaled_cure(scaled: &pass::ScaledGroup, graph: &Graph) -> PrecisionFix {
    let first = scaled.values.first().or(scaled.in_fp32.first()).cloned().unwrap_or_default();
    let about = Magnitude { max: scaled.largest, rms: scaled.smallest };
    let remedy = match (scaled.values.len(), scaled.values.last()) {
        (0, _) | (_, None) => "computed in fp32".to_owned(),
        (1, _) => format!("computed times 2^{}", scaled.exponent),
        (count, Some(last)) => {
            format!("{count} values up to `{last}` computed times 2^{}", scaled.exponent)
        }
    };
    let multiplications = |count: usize| match count {
        0 => "none: weights and constants absorb it".to_owned(),
        1 => "1 multiplication".to_owned(),
        count => format!("{count} multiplications"),
    };
    let wide = match scaled.in_fp32.len() {
        0 => None,
        1 => Some("1 operation in fp32".to_owned()),
        count => Some(format!("{count} operations in fp32")),
    };
    let cost = match wide {
        None => multiplications(scaled.added),
        Some(wide) if scaled.added == 0 => wide,
        Some(wide) => format!("{}; {wide}", multiplications(scaled.added)),
    };
    PrecisionFix {
        module: graph.module(&first).map(str::to_owned),
        name: first,
        reason: if scaled.values.is_empty() {
            "fp16 cannot represent its operands or results".to_owned()
        } else if about.is_too_large() || about.is_too_small() {
            reason(Some(&about))
        } else {
            "the constants that it uses are outside the range of fp16".to_owned()
        },
        remedy,
        cost,
        in_fp32: scaled.in_fp32.clone(),
    }
}

/// Explains why values are inaccurate in fp16.
fn reason(magnitude: Option<&Magnitude>) -> String {
    match magnitude {
        Some(found) if found.is_too_large() => {
            format!("reaches {:.2e}; the maximum of fp16 is 65504", found.max)
        }
        Some(found) if found.is_too_small() => {
            format!("is typically {:.2e}, where fp16 has low precision", found.rms)
        }
        _ => "rounding errors of fp16 accumulate".to_owned(),
    }
}

fn rewrite(
    run: impl Fn(&mut AnalyzedFunction, &SourceMap, &mut KeepFp32) + Send + Sync + 'static,
) -> Rewrite {
    Rewrite { needs: Opset::Ios15, run: Arc::new(run) }
}

/// The smaller SNR; `None` is the largest.
fn least(left: Option<f64>, right: Option<f64>) -> Option<f64> {
    match (left, right) {
        (Some(left), Some(right)) => Some(left.min(right)),
        (one, other) => one.or(other),
    }
}

/// SNR in decibels, `None` if nothing differs. For integers it is computed from the share of
/// differing elements.
fn decibels(wanted: &Array, found: &Array) -> Option<f64> {
    let Ok(figures) = figures(wanted, found) else { return Some(f64::NEG_INFINITY) };
    if figures.integers {
        let share = figures.differing as f64 / figures.elements.max(1) as f64;
        return (share > 0.0).then(|| -20.0 * share.log10());
    }
    Some(figures.snr()).filter(|found| *found != f64::INFINITY)
}

fn has_no_numbers(array: &Array) -> bool {
    array.as_floats().is_some_and(|elements| elements.iter().any(|element| element.is_nan()))
}

/// Statistics of a value.
#[derive(Clone, Copy, Default)]
struct Sums {
    max: f64,
    squares: f64,
    count: f64,
}

impl Sums {
    fn magnitude(self) -> Magnitude {
        Magnitude { max: self.max, rms: (self.squares / self.count.max(1.0)).sqrt() }
    }
}

/// Adds a value to the statistics. Zeros and infinite elements are ignored.
fn see(seen: &mut HashMap<String, Sums>, name: &str, array: &Array) {
    let Some(elements) = array.as_floats() else { return };
    let sums = seen.entry(name.to_owned()).or_default();
    for &element in elements {
        let size = element.abs();
        if size > 0.0 && size < INFINITE {
            let size = f64::from(size);
            sums.max = sums.max.max(size);
            sums.squares += size * size;
            sums.count += 1.0;
        }
    }
}

/// Exponents of the scaled values, by name.
fn exponents(rescaled: &RescaleOutcome) -> BTreeMap<&str, i32> {
    let of = |scaled: &'_ pass::ScaledGroup| scaled.exponent;
    let all = rescaled
        .scaled
        .iter()
        .flat_map(|scaled| scaled.values.iter().map(move |name| (name.as_str(), of(scaled))));
    all.collect()
}
