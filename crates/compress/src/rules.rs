//! Rules that select the compressed form of each weight.

use std::collections::HashMap;
use std::io;
use std::sync::{Mutex, PoisonError};

use coremill_io::share;
use coremill_tensor::DType;

use super::budget::{Budget, TradeoffCurve, TradeoffPoint, choose};
use super::encode::{EncodedWeight, build, build_joint, insert};
use super::error::{Error, NOT_FINITE, Refusal};
use super::form::CompressionConfig;
use super::form::linear::DEFAULT_THRESHOLD;
use super::form::trained::TrainedCompression;
use super::importance::{Importance, weighting};
use super::upgrade_opset::upgrade_opset;
use super::weight::{Candidate, Weight, candidate};
use coremill_mil::ir::Opset;
use coremill_mil::model::Model;
use coremill_passes::{AnalyzedFunction, Editor};

/// Options of compression.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options {
    /// The first matching rule applies. Other weights stay uncompressed.
    pub rules: Vec<Rule>,
    /// Release to support. `None` uses the oldest that supports all forms, but not older than the
    /// model's.
    pub target: Option<Opset>,
    /// Budget that chooses the bits per weight. `None` uses the forms of the rules.
    pub budget: Option<Budget>,
    /// Importance of weights from samples, used by k-means palettes and budgets.
    pub importance: Importance,
    /// Earlier compression of decompressed weights, by function and weight. The rules' forms come in
    /// addition.
    pub earlier: HashMap<(String, String), TrainedCompression>,
}

/// Compressed form for selected weights.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rule {
    /// Weights that the rule applies to.
    pub selector: Selector,
    /// Form of the weights.
    pub form: CompressionConfig,
}

/// Selection of weights. All conditions must hold.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Selector {
    /// Name patterns, in which `*` matches any text and `?` any character. Empty selects all.
    pub names: Vec<String>,
    /// Operations, one of which must use the weight. Empty selects all.
    pub ops: Vec<String>,
    /// Element type. `None` selects all.
    pub dtype: Option<DType>,
    /// Minimum number of elements. `None` is coremltools' default: more than 2048.
    pub min_elements: Option<u64>,
    /// Maximum number of elements. `None` is unlimited.
    pub max_elements: Option<u64>,
}

/// Result for a weight.
#[derive(Clone, Debug, PartialEq)]
pub struct CompressedWeight {
    /// Name of the function.
    pub function: String,
    /// Name of the weight.
    pub name: String,
    /// Shape of the weight. Empty for other constants.
    pub shape: Vec<usize>,
    /// Size before compression in bytes.
    pub before: u64,
    /// Index of the rule that applied, `None` if no rule selects the weight.
    pub rule: Option<usize>,
    /// Result of compression.
    pub fate: CompressionOutcome,
}

/// Result of compression.
#[derive(Clone, Debug, PartialEq)]
pub enum CompressionOutcome {
    /// The weight was compressed.
    Compressed {
        /// Form of the weight.
        form: CompressionConfig,
        /// Size after compression in bytes.
        after: u64,
        /// SNR in decibels, infinite if lossless. It is weighted by the importance of elements if
        /// that is known. For weights with more than 131,072 elements it is measured on a sample.
        snr: f64,
    },
    /// The weight stays uncompressed, for this reason.
    Kept(&'static str),
}

/// Reason for weights that are only excluded by their size.
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

/// Matches a name with a pattern, in which `*` matches any text and `?` any character.
pub fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), name.chars().collect());
    // Index after the last star, and the end of the text that it matches.
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

/// Compresses the weights of a model. Returns a description of each weight. `watch` is called with
/// the number of finished weights and the total.
///
/// A weight that several operations share is compressed once. Functions still share weights
/// afterwards.
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
        let message = format!("the target must be a finite number of decibels, got {least}");
        return Err(Error::option(message));
    }
    if options.budget.is_some() && model.program.functions.len() > 1 {
        let count = model.program.functions.len();
        let message = format!("a target requires a model with one function, got {count} functions");
        return Err(
            Error::option(message).with_hint("name a form for the weights instead of a target")
        );
    }
    if options.budget.is_some() && !options.earlier.is_empty() {
        let message = "a target requires a model whose weights are not compressed yet";
        return Err(
            Error::option(message).with_hint("name a form for the weights instead of a target")
        );
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

/// The requested release, or the oldest release for the forms and the model.
fn target(model: &Model, options: &Options) -> Result<Opset, Error> {
    let needs = options.rules.iter().map(|rule| (rule.form.needs(), &rule.form));
    let needed = needs.max_by_key(|(opset, _)| *opset);
    let (needed, form) = needed.map_or((Opset::Ios15, None), |(opset, form)| (opset, Some(form)));
    let own = model.program.functions.iter().map(|function| function.opset);
    let own = own.max().unwrap_or(Opset::Ios15);
    let Some(target) = options.target else { return Ok(needed.max(own)) };
    if target < own {
        let message = format!("the model targets {own} and cannot be converted to {target}");
        return Err(Error::option(message)
            .with_hint("leave the target out, or convert the model for an older release"));
    }
    if let Some(form) = form.filter(|_| target < needed) {
        let message = format!("weights as `{form}` need {needed}; the target is {target}");
        return Err(Error::option(message).with_hint(
            "leave the target out, or use a form that older releases support: int8 or uint8 per tensor or channel, \
             palettes of 1, 2, 4, 6 or 8 bits per tensor, or pruning alone",
        ));
    }
    Ok(target)
}

/// The index of the rule that selects a weight, by the name of the weight.
pub fn selected(model: &Model, rules: &[Rule]) -> Result<HashMap<String, usize>, Error> {
    let mut found = HashMap::new();
    for function in &model.program.functions {
        let mut draft = upgrade_opset(function, function.opset)?;
        let editor = Editor::new(&mut draft);
        for id in editor.ops() {
            let Some(Candidate::Weight(weight)) = candidate(&editor, id) else { continue };
            if let Some(at) = rules.iter().position(|rule| rule.selector.selects(&weight)) {
                found.insert(weight.name, at);
            }
        }
    }
    Ok(found)
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
                    rule if earlier(options, &function, &weight).is_some() => {
                        // The weight gets its earlier form again.
                        let at = rule.map_or(usize::MAX, |(at, _)| at);
                        work.push((weight, at, vec![CompressionConfig::default()]));
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
    // Largest first, so that the last thread does not start with it.
    work.sort_by_key(|(weight, ..)| std::cmp::Reverse(weight.count()));
    let tasks = work.iter().flat_map(|(weight, _, forms)| {
        let earlier = earlier(options, &function, weight);
        forms.iter().map(move |form| (weight, form, earlier))
    });
    let tasks: Vec<Task<'_>> = tasks.collect();
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
    let known = |rule: usize| Some(rule).filter(|&rule| rule < options.rules.len());
    for (((weight, rule, forms), built), chosen) in work.iter().zip(&mut built).zip(chosen) {
        let Some(at) = chosen else {
            let refused = built.iter().find_map(|built| built.as_ref().err().copied());
            let reason = refused.unwrap_or("compressing it would miss the target");
            report.push(entry(&function, weight, known(*rule), CompressionOutcome::Kept(reason)));
            continue;
        };
        let mut changed = entry(&function, weight, known(*rule), CompressionOutcome::Kept(""));
        changed.fate = match built.swap_remove(at) {
            Ok(built) => {
                let (after, loss) = (built.bytes, built.loss());
                insert(&mut editor, weight, built)?;
                if forms[at].is_plain() {
                    // The weight has its earlier form.
                    changed.before = after;
                    CompressionOutcome::Kept(match unselected(weight, &options.rules) {
                        SMALL if changed.rule.is_none() => SMALL,
                        _ => "it is compressed already",
                    })
                } else {
                    let snr = -10.0 * loss.log10();
                    CompressionOutcome::Compressed { form: forms[at].clone(), after, snr }
                }
            }
            Err(reason) => CompressionOutcome::Kept(reason),
        };
        report.push(changed);
    }
    Ok(())
}

/// The earlier compression of a weight.
fn earlier<'o>(
    options: &'o Options,
    function: &str,
    weight: &Weight,
) -> Option<&'o TrainedCompression> {
    if options.earlier.is_empty() {
        return None;
    }
    options.earlier.get(&(function.to_owned(), weight.name.clone()))
}

/// The reason why no rule selects a weight: its size or something else.
fn unselected(weight: &Weight, rules: &[Rule]) -> &'static str {
    let of_any_size = |rule: &Rule| Selector { min_elements: Some(0), ..rule.selector.clone() };
    match rules.iter().any(|rule| of_any_size(rule).selects(weight)) {
        true => SMALL,
        false => "no rule selects it",
    }
}

/// Size and loss of a weight in each form.
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

/// A weight, the form that it gets, and its earlier compression.
type Task<'a> = (&'a Weight, &'a CompressionConfig, Option<&'a TrainedCompression>);

fn build_task((weight, form, earlier): Task<'_>, opset: Opset) -> Result<EncodedWeight, Refusal> {
    let Some(earlier) = earlier else { return build(weight, form, opset) };
    match build_joint(weight, earlier, form, opset) {
        // A form that does not fit leaves the earlier compression.
        Err(Refusal::Kept(_)) => build_joint(weight, earlier, &CompressionConfig::default(), opset),
        built => built,
    }
}

/// Builds encodings in parallel. Results have the order of `work`.
fn build_all(
    work: &[Task<'_>],
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
            let weight = work[index].0;
            let built = match build_task(work[index], opset) {
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
    Error::model(format!("`{}` cannot be compressed: {NOT_FINITE}", weight.name))
        .with_hint("correct the weight, or exclude it by name with a rule that sets `keep = true`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn glob_patterns_match_names() {
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
