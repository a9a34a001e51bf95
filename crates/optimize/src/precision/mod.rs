//! Half precision for programs whose values leave it.
//!
//! [`choose`] runs a program on samples in `fp32`, and in `fp16` with each result rounded as on the device. Where outputs
//! part, it first moves powers of two through the program and merges branches of convolutions, so that all of it stays in
//! `fp16`; what that does not cure computes in `fp32`, in as few operations as it finds.

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

/// Outputs are as they should be from so many decibels on, and a cure is looked for below.
pub const ENOUGH_DB: f64 = 40.0;
/// So much is aimed at as long as everything stays in `fp16`: other devices add in other orders, and round other sums.
const AIM_DB: f64 = ENOUGH_DB + 3.0;
/// Numbers beyond this are meant as infinities.
const INFINITE: f32 = 1e30;

/// How a program stays within half precision.
#[derive(Clone, Debug)]
pub struct MixedPrecisionPlan {
    /// What has to be done to the program; none if it is sound as it is.
    pub rewrite: Option<Rewrite>,
    /// What is done, in the order of the program.
    pub cures: Vec<PrecisionFix>,
    /// How each output agrees with `fp32`, as the program was and as it is now.
    pub outputs: Vec<Outcome>,
    /// How many samples that was measured with.
    pub samples: usize,
    /// Values that are computed times a power of two, and its exponent.
    pub scales: BTreeMap<String, i32>,
}

/// How an output agrees with `fp32`, in decibels; none where nothing differs, and −∞ where it is not finite.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// The output.
    pub name: String,
    /// In plain `fp16`.
    pub before: Option<f64>,
    /// With the cures.
    pub after: Option<f64>,
}

/// One place where half precision did not do.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PrecisionFix {
    /// The first value that it is about.
    pub name: String,
    /// The module that computes it.
    pub module: Option<String>,
    /// Why half precision does not do.
    pub reason: String,
    /// What is done.
    pub remedy: String,
    /// What it costs.
    pub cost: String,
    /// The operations that compute in `fp32`; none if all stays in `fp16`.
    pub in_fp32: Vec<String>,
}

impl MixedPrecisionPlan {
    /// Has a conversion do what was chosen. The metadata of its models then says which values are computed times a power
    /// of two, so that they can be compared with those of other models.
    pub fn apply(&self, options: &mut Options) {
        options.rewrite.clone_from(&self.rewrite);
        if !self.scales.is_empty() {
            let told = serde_json::json!(self.scales).to_string();
            options.metadata.set_user_defined(SCALES_KEY, told);
        }
    }

    /// Whether every output is near enough to `fp32`.
    pub fn holds(&self) -> bool {
        self.outputs.iter().all(|output| is_enough(output.after))
    }
}

fn is_enough(decibels: Option<f64>) -> bool {
    decibels.is_none_or(|found| found >= ENOUGH_DB)
}

/// Finds out how a program stays within half precision. Samples are `.npz` files, and folders of them or of pictures; without
/// them the inputs serve that the archive holds.
pub fn choose(
    program: &ExportedProgram,
    output: Output,
    options: &LowerOptions,
    samples: &[PathBuf],
) -> Result<MixedPrecisionPlan, Error> {
    let mut options = options.clone();
    options.options.rewrite = None;
    let subject = TrialCompiler::new(program.clone(), output, &options, Opset::Ios15)?;
    let in_fp32 = Options { precision: Precision::Fp32, ..options.options.clone() };
    let in_fp16 = Options { precision: Precision::Fp16, ..options.options };
    let (made, graph) = looked_at(&subject, &in_fp32, false)?;
    if let Some(unsound) = &graph.unsound {
        return Err(
            Error::new(unsound).with_hint("mend the weights: no precision makes numbers of them")
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
        return Err(Error::new("choosing the precision needs samples").with_hint(
            "pass the option `samples=FILE.npz`, or export with example inputs that are kept",
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
            return Err(Error::new(message).with_hint("look at the sample, or leave it out"));
        }
    }
    let magnitudes: HashMap<String, Magnitude> =
        magnitudes.into_iter().map(|(name, sums)| (name, sums.magnitude())).collect();
    let magnitudes = Arc::new(magnitudes);
    let trial = Trial { subject, in_fp32, in_fp16, samples, wanted, magnitudes };
    trial.choose(&reference, graph)
}

/// The program as it is made, and its operations, with branches merged or as they are.
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

/// What is tried, and judged by.
struct Trial {
    subject: TrialCompiler,
    in_fp32: Options,
    in_fp16: Options,
    samples: Vec<Sample>,
    wanted: Vec<Outputs>,
    magnitudes: Arc<HashMap<String, Magnitude>>,
}

/// How a program is changed.
#[derive(Clone, Debug, Default)]
struct Plan {
    /// Whether branches are merged.
    merges: bool,
    /// Whether powers of two are moved.
    rescales: bool,
    /// What computes in `fp32` besides, by the name of what it gives.
    wide: HashSet<String>,
}

/// What a plan did.
#[derive(Debug, Default)]
struct Changes {
    /// Sums of branches that are one convolution now.
    merged: Vec<String>,
    rescaled: RescaleOutcome,
}

/// Each output with its distance from `fp32`.
type Distances = Vec<(String, Option<f64>)>;

/// A plan, and what comes of it.
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

    /// Whether it is worth more changes. Where values leave the range with both, those that keep more of them within.
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
        // Everything stays in `fp16` with these.
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

    /// The program by a plan, and what was done to it.
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

    /// How far the outputs of what was made lie from `fp32`: of each the worst of all samples.
    fn judge(&self, made: Artifact) -> Result<Distances, Error> {
        let machine = Machine::new(made, Numerics::Rounded)?;
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
                reason: "it squares what leaves the range of fp16".to_owned(),
                remedy: "computed as the layer norm of its input and the opposite of that"
                    .to_owned(),
                cost: "the same number of operations, on twice the width".to_owned(),
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
            // Powers of two keep values within the range.
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

    /// The first magnitude among values that half precision does not hold.
    fn beyond(&self, region: &[&str]) -> Option<Magnitude> {
        let known = region.iter().filter_map(|name| self.magnitudes.get(*name));
        known.copied().find(|it| it.is_too_large() || it.is_too_small())
    }
}

/// What computing regions of operations in `fp32` is about.
fn wide_cure(regions: &[&[&str]], reason: String, graph: &Graph) -> PrecisionFix {
    let mut names = regions.concat();
    names.sort_by_key(|name| graph.place(name));
    let (first, last) = (names[0], names[names.len() - 1]);
    let (remedy, cost) = match (names.len(), regions.len()) {
        (1, _) => ("computed in fp32".to_owned(), "casts around it, and it leaves".to_owned()),
        (count, 1) => (
            format!("{count} values up to `{last}` computed in fp32"),
            "casts around them, and they leave".to_owned(),
        ),
        (count, places) => (
            format!("{count} values in {places} places up to `{last}` computed in fp32"),
            "casts around each place, and they leave".to_owned(),
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

/// What merging branches is about.
fn merged_cure(merged: &[String], graph: &Graph) -> Option<PrecisionFix> {
    let first = merged.first()?;
    Some(PrecisionFix {
        name: first.clone(),
        module: graph.module(first).map(str::to_owned),
        reason: "rounding its branches apart adds up".to_owned(),
        remedy: match merged.len() {
            1 => "its branches merged into one convolution".to_owned(),
            count => format!("the branches of {count} sums merged into a convolution each"),
        },
        cost: "nothing: there are fewer operations".to_owned(),
        in_fp32: Vec::new(),
    })
}

/// What moving a power of two is about.
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
        0 => "nothing: weights and constants take it".to_owned(),
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
            "it takes or gives what fp16 cannot hold".to_owned()
        } else if about.is_too_large() || about.is_too_small() {
            reason(Some(&about))
        } else {
            "the constants that it is computed with leave the range of fp16".to_owned()
        },
        remedy,
        cost,
        in_fp32: scaled.in_fp32.clone(),
    }
}

/// Why half precision does not hold values.
fn reason(magnitude: Option<&Magnitude>) -> String {
    match magnitude {
        Some(found) if found.is_too_large() => {
            format!("reaches {:.2e}, and fp16 ends at 65504", found.max)
        }
        Some(found) if found.is_too_small() => {
            format!("is typically {:.2e}, for which fp16 has few digits", found.rms)
        }
        _ => "rounding to fp16 adds up".to_owned(),
    }
}

fn rewrite(
    run: impl Fn(&mut AnalyzedFunction, &SourceMap, &mut KeepFp32) + Send + Sync + 'static,
) -> Rewrite {
    Rewrite { needs: Opset::Ios15, run: Arc::new(run) }
}

/// The smaller of two qualities; none is the best.
fn least(left: Option<f64>, right: Option<f64>) -> Option<f64> {
    match (left, right) {
        (Some(left), Some(right)) => Some(left.min(right)),
        (one, other) => one.or(other),
    }
}

/// Signal to noise; none where nothing differs. Of integers it is the share that agrees that counts.
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

/// What was seen of a value.
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

/// Takes in a value. Zeros and what is meant as infinite do not count.
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

/// What a value is multiplied by, by name.
fn exponents(rescaled: &RescaleOutcome) -> BTreeMap<&str, i32> {
    let of = |scaled: &'_ pass::ScaledGroup| scaled.exponent;
    let all = rescaled
        .scaled
        .iter()
        .flat_map(|scaled| scaled.values.iter().map(move |name| (name.as_str(), of(scaled))));
    all.collect()
}
