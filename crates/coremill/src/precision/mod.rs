//! Half precision for programs whose values leave it.
//!
//! [`choose`] runs a program on samples in `fp32`, and in `fp16` with each result rounded as on the device. Where outputs
//! part, it first moves powers of two through the program, so that all of it stays in `fp16`; what that does not cure
//! computes in `fp32`, in as few operations as it finds.
//!
//! ```no_run
//! use coremill::compiler::LowerOptions;
//! use coremill::precision::{Output, choose};
//!
//! let program = coremill::convert::read("model.pt2")?;
//! let mut options = LowerOptions::default();
//! let chosen = choose(&program, Output::Model, &options, &[])?;
//! for cure in &chosen.cures {
//!     println!("{}: {}; {}", cure.name, cure.reason, cure.remedy);
//! }
//! options.options.rewrite = chosen.rewrite;
//! let conversion = coremill::convert::convert(program, &options.options)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod search;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use coremill_compiler::{Calls, LowerOptions, Options, Precision, Rewrite};
use coremill_engine::Array;
use coremill_mil::ir::Opset;
use coremill_mil::pass::{self, Draft, KeepFp32, Magnitude, Rescaled};
use coremill_pt2::ExportedProgram;
use serde::Serialize;

use self::search::{Graph, Search};
use crate::compare::figures;
use crate::convert;
use crate::error::Error;
use crate::samples::{self, Pixels, Sample};
pub use crate::subject::Output;
use crate::subject::{Machine, Made, Outputs, Subject};

/// Outputs are as they should be from so many decibels on, and a cure is looked for below.
pub const ENOUGH_DB: f64 = 40.0;
/// Numbers beyond this are meant as infinities.
const INFINITE: f32 = 1e30;

/// How a program stays within half precision.
#[derive(Clone, Debug)]
pub struct Chosen {
    /// What has to be done to the program; none if it is sound as it is.
    pub rewrite: Option<Rewrite>,
    /// What is done, in the order of the program.
    pub cures: Vec<Cure>,
    /// How each output agrees with `fp32`, as the program was and as it is now.
    pub outputs: Vec<Outcome>,
    /// How many samples that was measured with.
    pub samples: usize,
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
pub struct Cure {
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

impl Chosen {
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
) -> Result<Chosen, Error> {
    let mut options = options.clone();
    options.options.rewrite = None;
    let subject = Subject::new(program.clone(), output, &options, Opset::Ios15)?;
    let in_fp32 = Options { precision: Precision::Fp32, ..options.options.clone() };
    let in_fp16 = Options { precision: Precision::Fp16, ..options.options };
    let graph = Arc::new(Mutex::new(Graph::default()));
    let (seen, look) = (graph.clone(), Graph::add);
    let looked = rewrite(move |draft, calls, _| {
        look(&mut seen.lock().unwrap_or_else(PoisonError::into_inner), draft, calls);
    });
    let (made, _) = subject.make(&in_fp32, Some(looked))?;
    let graph = graph.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let reference = Machine::new(made, false)?;
    let ports = reference.ports()?;
    let samples = match samples {
        [] => convert::sample_inputs(program, &ports)?.into_iter().collect(),
        paths => {
            let check = |sample: &Sample| reference.check(sample);
            samples::read(paths, &ports, &Pixels::default(), &check)?
        }
    };
    if samples.is_empty() {
        return Err(Error::new("there are no samples to choose the precision with").hint(
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
            return Err(Error::new(message).hint("look at the sample, or leave it out"));
        }
    }
    let magnitudes: HashMap<String, Magnitude> =
        magnitudes.into_iter().map(|(name, sums)| (name, sums.magnitude())).collect();
    let trial = Trial { subject, in_fp16, samples, wanted, magnitudes: Arc::new(magnitudes) };
    trial.choose(&reference, &graph)
}

/// What is tried, and judged by.
struct Trial {
    subject: Subject,
    in_fp16: Options,
    samples: Vec<Sample>,
    wanted: Vec<Outputs>,
    magnitudes: Arc<HashMap<String, Magnitude>>,
}

/// How a program is changed.
#[derive(Clone, Debug, Default)]
struct Plan {
    /// Whether powers of two are moved.
    rescales: bool,
    /// What computes in `fp32` besides, by the name of what it gives.
    wide: HashSet<String>,
}

impl Trial {
    fn choose(&self, reference: &Machine, graph: &Graph) -> Result<Chosen, Error> {
        let mut plan = Plan::default();
        let (made, _) = self.make(&plan)?;
        let before = self.judge(made)?;
        if before.iter().all(|(_, found)| is_enough(*found)) {
            return Ok(self.chosen(&plan, &Rescaled::default(), graph, &before, &before));
        }
        plan.rescales = true;
        let (made, rescaled) = self.make(&plan)?;
        let after = self.judge(made)?;
        if after.iter().all(|(_, found)| is_enough(*found)) {
            return Ok(self.chosen(&plan, &rescaled, graph, &before, &after));
        }
        // Where powers of two do harm, they are left out.
        plan.rescales = worst(&after) >= worst(&before);
        let plan = Search { trial: self, reference, graph }.widen(plan)?;
        let (made, rescaled) = self.make(&plan)?;
        let after = self.judge(made)?;
        Ok(self.chosen(&plan, &rescaled, graph, &before, &after))
    }

    /// The program by a plan, and what was moved in it.
    fn make(&self, plan: &Plan) -> Result<(Made, Rescaled), Error> {
        let told = Arc::new(Mutex::new(Rescaled::default()));
        let tell = told.clone();
        let (made, _) = self.subject.make(&self.in_fp16, Some(self.rewrite(plan, Some(tell))))?;
        let told = std::mem::take(&mut *told.lock().unwrap_or_else(PoisonError::into_inner));
        Ok((made, told))
    }

    fn rewrite(&self, plan: &Plan, tell: Option<Arc<Mutex<Rescaled>>>) -> Rewrite {
        let (plan, magnitudes) = (plan.clone(), self.magnitudes.clone());
        rewrite(move |draft, _, keep| {
            if plan.rescales {
                let done = pass::rescale(draft, &magnitudes, keep);
                if let Some(tell) = &tell {
                    let mut told = tell.lock().unwrap_or_else(PoisonError::into_inner);
                    told.scaled.extend(done.scaled);
                    told.norms.extend(done.norms);
                }
            }
            keep.names.extend(plan.wide.iter().cloned());
        })
    }

    /// How far the outputs of what was made lie from `fp32`: of each the worst of all samples.
    fn judge(&self, made: Made) -> Result<Vec<(String, Option<f64>)>, Error> {
        let machine = Machine::new(made, true)?;
        let mut all: Vec<(String, Option<f64>)> = Vec::new();
        for (sample, wanted) in self.samples.iter().zip(&self.wanted) {
            let found = machine.run(sample, &mut |_, _| {})?;
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

    fn chosen(
        &self,
        plan: &Plan,
        rescaled: &Rescaled,
        graph: &Graph,
        before: &[(String, Option<f64>)],
        after: &[(String, Option<f64>)],
    ) -> Chosen {
        let outcome = |((name, before), (_, after)): (&(String, _), &(String, _))| Outcome {
            name: name.clone(),
            before: *before,
            after: *after,
        };
        let mut cures = Vec::new();
        let name_of = |name: &String| graph.module(name).map(str::to_owned);
        for scaled in &rescaled.scaled {
            cures.push(scaled_cure(scaled, graph));
        }
        for name in &rescaled.norms {
            cures.push(Cure {
                name: name.clone(),
                module: name_of(name),
                reason: "it squares what leaves the range of fp16".to_owned(),
                remedy: "computed as the layer norm of its input and the opposite of that"
                    .to_owned(),
                cost: "the same number of operations, on twice the width".to_owned(),
                in_fp32: Vec::new(),
            });
        }
        let regions = graph.regions(&plan.wide);
        cures.extend(regions.iter().map(|region| self.wide_cure(region, graph)));
        cures.sort_by_key(|cure| graph.place(&cure.name));
        let is_changed = plan.rescales || !plan.wide.is_empty();
        Chosen {
            rewrite: is_changed.then(|| self.rewrite(plan, None)),
            cures,
            outputs: before.iter().zip(after).map(outcome).collect(),
            samples: self.samples.len(),
        }
    }

    /// What computing a region of operations in `fp32` is about.
    fn wide_cure(&self, region: &[&str], graph: &Graph) -> Cure {
        let (first, last) = (region[0], region[region.len() - 1]);
        let known = region.iter().filter_map(|name| self.magnitudes.get(*name));
        let out = known.copied().find(|it| it.is_too_large() || it.is_too_small());
        let (remedy, cost) = match region.len() {
            1 => ("computed in fp32".to_owned(), "casts around it, and it leaves".to_owned()),
            count => (
                format!("{count} values up to `{last}` computed in fp32"),
                "casts around them, and they leave".to_owned(),
            ),
        };
        Cure {
            name: first.to_owned(),
            module: graph.module(first).map(str::to_owned),
            reason: reason(out.as_ref()),
            remedy,
            cost: format!("{cost} the Neural Engine"),
            in_fp32: region.iter().map(|name| (*name).to_owned()).collect(),
        }
    }
}

/// What moving a power of two is about.
fn scaled_cure(scaled: &pass::Scaled, graph: &Graph) -> Cure {
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
    Cure {
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
        _ => "loses digits in fp16".to_owned(),
    }
}

fn rewrite(run: impl Fn(&mut Draft, &Calls, &mut KeepFp32) + Send + Sync + 'static) -> Rewrite {
    Rewrite { needs: Opset::Ios15, run: Arc::new(run) }
}

/// The smaller of two qualities; none is the best.
fn least(left: Option<f64>, right: Option<f64>) -> Option<f64> {
    match (left, right) {
        (Some(left), Some(right)) => Some(left.min(right)),
        (one, other) => one.or(other),
    }
}

fn worst(outputs: &[(String, Option<f64>)]) -> f64 {
    outputs.iter().filter_map(|(_, found)| *found).fold(f64::INFINITY, f64::min)
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
fn exponents(rescaled: &Rescaled) -> BTreeMap<&str, i32> {
    let of = |scaled: &'_ pass::Scaled| scaled.exponent;
    let all = rescaled
        .scaled
        .iter()
        .flat_map(|scaled| scaled.values.iter().map(move |name| (name.as_str(), of(scaled))));
    all.collect()
}
