//! Which weight becomes what.

use std::io;
use std::sync::{Mutex, PoisonError};

use coremill_io::share;
use coremill_tensor::DType;

use super::budget::{Budget, TradeoffCurve, TradeoffPoint, choose};
use super::encode::{EncodedWeight, build, insert};
use super::error::{Error, NOT_FINITE, Refusal};
use super::form::CompressionConfig;
use super::form::linear::DEFAULT_THRESHOLD;
use super::importance::{Importance, weighting};
use super::upgrade_opset::upgrade_opset;
use super::weight::{Candidate, Weight, candidate};
use coremill_mil::ir::Opset;
use coremill_mil::model::Model;
use coremill_passes::{AnalyzedFunction, Editor};

/// How a model is compressed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options {
    /// What becomes of weights: the first rule that selects one decides, and others stay as they are.
    pub rules: Vec<Rule>,
    /// The release that the result must run on; none is the oldest that has all forms, from the model's own on.
    pub target: Option<Opset>,
    /// What decides how many bits weights get; none if the forms of the rules do.
    pub budget: Option<Budget>,
    /// What samples show of how much outputs depend on the weights. Palettes by k-means and budgets go by it.
    pub importance: Importance,
}

/// What becomes of some weights.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rule {
    /// Which weights.
    pub selector: Selector,
    /// What they become.
    pub form: CompressionConfig,
}

/// Which weights a rule is for: those that all its parts select.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Selector {
    /// Patterns of names, in which `*` stands for any text and `?` for a letter; none selects all.
    pub names: Vec<String>,
    /// Operations, of which one has to use the weight; none selects all.
    pub ops: Vec<String>,
    /// The type of the elements; none selects all.
    pub dtype: Option<DType>,
    /// The fewest elements; none is the number that coremltools has, more than 2048.
    pub min_elements: Option<u64>,
    /// The most elements; none is any number.
    pub max_elements: Option<u64>,
}

/// What became of a weight.
#[derive(Clone, Debug, PartialEq)]
pub struct CompressedWeight {
    /// The function.
    pub function: String,
    /// The weight.
    pub name: String,
    /// Its shape; empty where it could not be a weight.
    pub shape: Vec<usize>,
    /// The bytes that it took.
    pub before: u64,
    /// The rule that decided, by its place; none if no rule selects it.
    pub rule: Option<usize>,
    /// What became of it.
    pub fate: CompressionOutcome,
}

/// What became of a weight.
#[derive(Clone, Debug, PartialEq)]
pub enum CompressionOutcome {
    /// It was compressed.
    Compressed {
        /// What it became.
        form: CompressionConfig,
        /// The bytes that it takes now.
        after: u64,
        /// The ratio of its power to that of what was lost, in decibels; infinite if nothing was. Where the importance
        /// of elements is known, both are weighted by it. Of a weight of more
        /// than 131,072 elements it is that of parts of it.
        snr: f64,
    },
    /// It stays, for a reason.
    Kept(&'static str),
}

/// Why a weight stays that only its size keeps from being selected.
pub const SMALL: &str = "it has fewer elements than the option `min_elements`";

impl Selector {
    fn selects(&self, weight: &Weight) -> bool {
        let count = weight.count() as u64;
        let is_large = count >= self.min_elements.unwrap_or(DEFAULT_THRESHOLD + 1);
        let is_small = self.max_elements.is_none_or(|most| count <= most);
        let is_used = || self.ops.iter().any(|op| weight.users.iter().any(|user| user == op));
        let is_named = || self.names.iter().any(|name| matches(name, &weight.name));
        is_large
            && is_small
            && self.dtype.is_none_or(|dtype| dtype == weight.dtype)
            && (self.ops.is_empty() || is_used())
            && (self.names.is_empty() || is_named())
    }
}

/// Whether a name is of a pattern, in which `*` stands for any text and `?` for one letter.
pub fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), name.chars().collect());
    // The place behind the last star, and what of the name it stands for up to.
    let (mut at, mut place, mut star) = (0, 0, None);
    while place < name.len() {
        match pattern.get(at) {
            Some('*') => {
                at += 1;
                star = Some((at, place));
            }
            Some(&letter) if letter == '?' || letter == name[place] => {
                (at, place) = (at + 1, place + 1);
            }
            _ => match star {
                Some((behind, from)) => {
                    star = Some((behind, from + 1));
                    (at, place) = (behind, from + 1);
                }
                None => return false,
            },
        }
    }
    pattern[at..].iter().all(|&letter| letter == '*')
}

/// Compresses the weights of a model, and tells what became of each. `watch` is told how many of how many are done.
///
/// A weight that several operations share is compressed once; functions that share one still do.
pub fn compress(
    model: &mut Model,
    options: &Options,
    watch: &(dyn Fn(usize, usize) + Sync),
) -> Result<Vec<CompressedWeight>, Error> {
    for rule in &options.rules {
        rule.form.check()?;
    }
    if let Some(Budget::Snr(least)) = options.budget
        && !least.is_finite()
    {
        let message = format!("a target of {least} decibels is not a finite number");
        return Err(Error::option(message));
    }
    if options.budget.is_some() && model.program.functions.len() > 1 {
        let message = "the model has several functions; a target is for models with one";
        return Err(Error::option(message).with_hint("name a form for their weights"));
    }
    let opset = target(model, options)?;
    let mut report = Vec::new();
    let mut highest = model.specification_version;
    for function in &mut model.program.functions {
        let mut draft = upgrade_opset(function, opset)?;
        of_function(&mut draft, options, watch, &mut report)?;
        highest = highest.max(draft.function.opset.specification_version());
        *function = draft.function;
    }
    model.specification_version = highest;
    Ok(report)
}

/// The release that the forms require, or the requested one.
fn target(model: &Model, options: &Options) -> Result<Opset, Error> {
    let needs = options.rules.iter().map(|rule| (rule.form.needs(), &rule.form));
    let needed = needs.max_by_key(|(opset, _)| *opset);
    let (needed, form) = needed.map_or((Opset::Ios15, None), |(opset, form)| (opset, Some(form)));
    let own = model.program.functions.iter().map(|function| function.opset);
    let own = own.max().unwrap_or(Opset::Ios15);
    let Some(target) = options.target else { return Ok(needed.max(own)) };
    if target < own {
        let message = format!("the model is for {own}; it cannot become one for {target}");
        return Err(Error::option(message)
            .with_hint("leave the target out, or convert the model for an older release"));
    }
    if let Some(form) = form.filter(|_| target < needed) {
        let message = format!("weights as `{form}` need {needed}; the target is {target}");
        return Err(Error::option(message).with_hint(
            "leave the target out, or ask for what older releases have: int8 or uint8 per tensor or channel, \
             palettes of 1, 2, 4, 6 or 8 bits per tensor, or pruning alone",
        ));
    }
    Ok(target)
}

fn of_function(
    draft: &mut AnalyzedFunction,
    options: &Options,
    watch: &(dyn Fn(usize, usize) + Sync),
    report: &mut Vec<CompressedWeight>,
) -> Result<(), Error> {
    let function = draft.function.name.clone();
    let mut editor = Editor::new(draft);
    let opset = editor.opset();
    let candidates = editor.ops().into_iter().filter_map(|id| candidate(&editor, id));
    let mut work: Vec<(Weight, usize, Vec<CompressionConfig>)> = Vec::new();
    let mut others = 0;
    for candidate in candidates {
        match candidate {
            Candidate::Weight(mut weight) => {
                weight.weighting = weighting(&weight, &options.importance);
                let mut rules = options.rules.iter().enumerate();
                match rules.find(|(_, rule)| rule.selector.selects(&weight)) {
                    Some((at, Rule { form, .. })) if !form.is_plain() => {
                        let forms = match options.budget {
                            Some(_) => form.ladder(),
                            None => vec![form.clone()],
                        };
                        work.push((weight, at, forms));
                    }
                    rule => {
                        others += weight.elements.len() as u64;
                        let (rule, reason) = match rule {
                            Some((at, _)) => (Some(at), "a rule keeps it"),
                            None => (None, unselected(&weight, &options.rules)),
                        };
                        report.push(entry(
                            &function,
                            &weight,
                            rule,
                            CompressionOutcome::Kept(reason),
                        ));
                    }
                }
            }
            Candidate::Kept(name, reason) => report.push(CompressedWeight {
                function: function.clone(),
                name,
                shape: Vec::new(),
                before: 0,
                rule: None,
                fate: CompressionOutcome::Kept(reason),
            }),
        }
    }
    // The largest first, so that no thread is left alone with it in the end.
    work.sort_by_key(|(weight, ..)| std::cmp::Reverse(weight.count()));
    let tasks =
        work.iter().flat_map(|(weight, _, forms)| forms.iter().map(move |form| (weight, form)));
    let tasks: Vec<(&Weight, &CompressionConfig)> = tasks.collect();
    let mut built = build_all(&tasks, opset, watch)?.into_iter();
    let mut built: Vec<Vec<Result<EncodedWeight, &'static str>>> =
        work.iter().map(|(.., forms)| built.by_ref().take(forms.len()).collect()).collect();
    let chosen = match options.budget {
        None => vec![Some(0); work.len()],
        Some(budget) => {
            let ladders: Vec<TradeoffCurve> = work
                .iter()
                .zip(&built)
                .map(|((weight, ..), built)| ladder(weight, built))
                .collect();
            choose(&ladders, budget, others)?
        }
    };
    for (((weight, rule, forms), built), chosen) in work.iter().zip(&mut built).zip(chosen) {
        let Some(at) = chosen else {
            let refused = built.iter().find_map(|built| built.as_ref().err().copied());
            let reason = refused.unwrap_or("the target has it stay");
            report.push(entry(&function, weight, Some(*rule), CompressionOutcome::Kept(reason)));
            continue;
        };
        let fate = match built.swap_remove(at) {
            Ok(built) => {
                let (after, loss) = (built.bytes, built.loss());
                insert(&mut editor, weight, built)?;
                CompressionOutcome::Compressed {
                    form: forms[at].clone(),
                    after,
                    snr: -10.0 * loss.log10(),
                }
            }
            Err(reason) => CompressionOutcome::Kept(reason),
        };
        report.push(entry(&function, weight, Some(*rule), fate));
    }
    Ok(())
}

/// Why no rule selects a weight: the size that rules ask for, or something else.
fn unselected(weight: &Weight, rules: &[Rule]) -> &'static str {
    let of_any_size = |rule: &Rule| Selector { min_elements: Some(0), ..rule.selector.clone() };
    match rules.iter().any(|rule| of_any_size(rule).selects(weight)) {
        true => SMALL,
        false => "no rule selects it",
    }
}

/// What a weight would take and lose in each of its forms.
fn ladder(weight: &Weight, built: &[Result<EncodedWeight, &'static str>]) -> TradeoffCurve {
    let rung = |built: &Result<EncodedWeight, &'static str>| {
        let built = built.as_ref().ok()?;
        Some(TradeoffPoint { bytes: built.bytes, loss: built.loss() })
    };
    TradeoffCurve { plain: weight.elements.len() as u64, rungs: built.iter().map(rung).collect() }
}

fn entry(
    function: &str,
    weight: &Weight,
    rule: Option<usize>,
    fate: CompressionOutcome,
) -> CompressedWeight {
    CompressedWeight {
        function: function.to_owned(),
        name: weight.name.clone(),
        shape: weight.shape.clone(),
        before: weight.elements.len() as u64,
        rule,
        fate,
    }
}

/// Builds what weights become on all processors, and gives it in their order.
fn build_all(
    work: &[(&Weight, &CompressionConfig)],
    opset: Opset,
    watch: &(dyn Fn(usize, usize) + Sync),
) -> Result<Vec<Result<EncodedWeight, &'static str>>, Error> {
    let done = Mutex::new((0..work.len()).map(|_| None).collect::<Vec<_>>());
    let failed = Mutex::new(None);
    let finished = std::sync::atomic::AtomicUsize::new(0);
    watch(0, work.len());
    let outcome = share(
        work.len(),
        usize::MAX,
        || (),
        |(), index| {
            let (weight, form) = work[index];
            let built = match build(weight, form, opset) {
                Ok(built) => Ok(Ok(built)),
                Err(Refusal::NotFinite) if weight.is_of_layer() => Err(unsound(weight)),
                Err(refusal) => refusal.reason(&weight.name).map(Err),
            };
            match built {
                Ok(built) => {
                    let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                    done[index] = Some(built);
                }
                Err(error) => {
                    *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                    return Err(io::Error::other("a weight cannot be compressed"));
                }
            }
            let finished = finished.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1;
            watch(finished, work.len());
            Ok(())
        },
    );
    if let Some(error) = failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(error);
    }
    outcome.map_err(|error| Error::model(error.to_string()).with_source(error))?;
    let done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok(done.into_iter().flatten().collect())
}

fn unsound(weight: &Weight) -> Error {
    Error::model(format!("`{}` cannot be compressed: {NOT_FINITE}", weight.name)).with_hint(
        "correct the weight, or keep it as it is with a rule of its name and `keep = true`",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_select_names() {
        for (pattern, name) in [
            ("*", ""),
            ("*", "x"),
            ("a*c", "abbc"),
            ("*weight*", "up_weight_0"),
            ("l?_w", "l1_w"),
            ("**b", "ab"),
        ] {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [("a", "ab"), ("a*c", "abcb"), ("?", ""), ("", "a"), ("*_w", "w")] {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
    }
}
