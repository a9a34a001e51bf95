//! Storage of weights, and compilation of graphs with the weights of a model's files.

use std::collections::HashMap;
use std::str::FromStr;

use coremill_compress::linear::{Config as LinearConfig, Granularity, Integer};
use coremill_compress::{
    CompressionConfig, CompressionOutcome, Options as CompressOptions, Palette, Rule, Values,
    compress, selected,
};
use coremill_graph::{Executable, Graph, Param, Params, Session};
use coremill_mil::model::Model;
use coremill_mil::text::identifier;

use crate::error::{Error, ErrorKind, Result, fail};

/// Storage of weights in the Core ML model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Weights {
    /// Codes, scales and offsets as in the file; floats as `fp16`. [`LanguageModel::losses`] measures the rounding of
    /// `fp16` arithmetic.
    #[default]
    Exact,
    /// `fp16`.
    Fp16,
    /// 8-bit integers with a scale for each output channel.
    Int8,
    /// 4-bit integers with a scale for each block of 32.
    Int4,
    /// 4-bit indices into a table for each 16 output channels.
    Lut4,
    /// 6-bit indices into a table for each 16 output channels.
    Lut6,
}

/// A share of a model's bytes, for a plan.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StorageShare {
    /// The scheme or the element type in the file.
    pub scheme: String,
    /// Number of tensors.
    pub tensors: usize,
    /// Their bytes in the file.
    pub bytes: u64,
}

/// Rounding of a tensor's weights.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TensorLoss {
    /// The tensor's name.
    pub tensor: String,
    /// The scheme or the element type in the file.
    pub scheme: String,
    /// Signal-to-noise ratio in dB.
    pub decibels: f64,
}

/// Output channels that share a table.
const TABLE_CHANNELS: usize = 16;

impl Weights {
    /// Bits of an index into a table; `None` for weights without tables.
    pub(crate) fn table_bits(self) -> Option<u32> {
        match self {
            Weights::Lut4 => Some(4),
            Weights::Lut6 => Some(6),
            _ => None,
        }
    }
}

impl FromStr for Weights {
    type Err = Error;

    fn from_str(name: &str) -> Result<Weights> {
        named(
            "weights",
            name,
            &[
                ("exact", Weights::Exact),
                ("fp16", Weights::Fp16),
                ("int8", Weights::Int8),
                ("int4", Weights::Int4),
                ("lut4", Weights::Lut4),
                ("lut6", Weights::Lut6),
            ],
        )
    }
}

/// The value of an option by its name.
pub(crate) fn named<T: Copy>(option: &str, name: &str, values: &[(&str, T)]) -> Result<T> {
    match values.iter().find(|(known, _)| *known == name) {
        Some(&(_, value)) => Ok(value),
        None => {
            let known: Vec<_> = values.iter().map(|(known, _)| format!("`{known}`")).collect();
            fail!(Argument, "`{option}` is `{name}`; expected {}", known.join(", "))
        }
    }
}

/// A compiled model, and the losses of weights that were stored as integers.
pub(crate) struct CompiledModel {
    pub(crate) executable: Executable,
    pub(crate) losses: Vec<TensorLoss>,
    pub(crate) rule_use: RuleUse,
}

/// Use of the rules in a model.
#[derive(Clone, Debug, Default)]
pub(crate) struct RuleUse {
    /// Indices of the rules that select weights.
    selecting: Vec<usize>,
    /// Weights that stay floats, with the reason.
    kept: Vec<String>,
}

impl RuleUse {
    /// Adds the use in another model.
    pub(crate) fn append(&mut self, mut other: RuleUse) {
        self.selecting.append(&mut other.selecting);
        self.kept.append(&mut other.kept);
    }

    /// Warnings about rules that select no weight, and weights that rules cannot compress.
    pub(crate) fn warnings(mut self, rules: &[Rule]) -> Vec<String> {
        let unused = (0..rules.len()).filter(|at| !self.selecting.contains(at));
        let unused: Vec<_> =
            unused.map(|at| format!("rule {} selects no weight", at + 1)).collect();
        // Functions share weights.
        self.kept.sort();
        self.kept.dedup();
        self.kept.into_iter().chain(unused).collect()
    }
}

/// Storage of a model's weights.
#[derive(Clone, Copy)]
pub(crate) struct Storage<'a> {
    pub(crate) weights: Weights,
    /// Codes of tensors in blocks stay.
    pub(crate) keeps_codes: bool,
    /// Forms of some weights. The first rule that selects a weight applies.
    pub(crate) rules: &'a [Rule],
}

/// Compiles the functions of one model, sets their parameters to tensors of files, and compresses these.
pub(crate) fn compile_graphs(
    session: &Session,
    graphs: &[Graph],
    Storage { weights, keeps_codes, rules }: Storage<'_>,
    param: &dyn Fn(&str) -> Result<Param>,
) -> Result<CompiledModel> {
    let rules: Vec<Rule> = rules.iter().cloned().map(with_identifiers).collect();
    let mut executable = session.compile_all(&graphs.iter().collect::<Vec<_>>())?;
    let mut declared: Vec<String> =
        graphs.iter().flat_map(|graph| graph.params()).map(|(name, _)| name).collect();
    declared.sort();
    declared.dedup();
    // Rules select and compress floats.
    let is_dense = !keeps_codes || !rules.is_empty();
    for name in &declared {
        let param = param(name)?;
        executable.set(name, if is_dense { param.to_dense()? } else { param })?;
    }
    let mut rule_use = RuleUse::default();
    if keeps_codes && is_dense {
        let selected = selected(executable.model()?, &rules)
            .map_err(|error| Error::from_source(ErrorKind::Run, error))?;
        let is_compressed = |name: &str| {
            selected.get(&identifier(name)).is_some_and(|&at| !rules[at].form.is_plain())
        };
        for name in declared.iter().filter(|name| !is_compressed(name)) {
            executable.set(name, param(name)?)?;
        }
        rule_use.selecting.extend(selected.into_values());
    }
    let is_float = matches!(weights, Weights::Exact | Weights::Fp16);
    if is_float && rules.is_empty() {
        return Ok(CompiledModel { executable, losses: Vec::new(), rule_use });
    }
    let given = rules.len();
    let own = (!is_float).then(|| Rule { selector: Default::default(), form: form_of(weights) });
    let rules: Vec<Rule> = rules.into_iter().chain(own).collect();
    let mut model = executable.model()?.clone();
    let mut losses = compress_weights(&mut model, rules, given, &declared, &mut rule_use)?;
    for loss in &mut losses {
        if let Ok(param) = param(&loss.tensor) {
            loss.scheme = storage(&param);
        }
    }
    Ok(CompiledModel { executable: session.load(model)?, losses, rule_use })
}

/// A rule whose patterns for the names of parameters match the names of weights in MIL.
fn with_identifiers(mut rule: Rule) -> Rule {
    let is_other = |it: char| !it.is_ascii_alphanumeric() && !matches!(it, '*' | '?');
    for name in &mut rule.selector.names {
        *name = name.replace(is_other, "_");
    }
    rule
}

/// The form of weights as integers.
fn form_of(weights: Weights) -> CompressionConfig {
    let integers = |dtype, granularity| {
        let linear = LinearConfig { dtype, granularity, ..LinearConfig::default() };
        CompressionConfig { values: Values::Linear(linear), ..CompressionConfig::default() }
    };
    match weights {
        Weights::Int4 => integers(Integer::Int4, Granularity::Block(32)),
        Weights::Lut4 | Weights::Lut6 => {
            let palette = Palette {
                bits: weights.table_bits(),
                group: Some(TABLE_CHANNELS),
                ..Palette::default()
            };
            CompressionConfig { values: Values::Palette(palette), ..CompressionConfig::default() }
        }
        _ => integers(Integer::Int8, Granularity::Channel),
    }
}

/// Compresses the weights of a model by rules, and records the use of the first `given` rules. Returns the loss of each weight, by the
/// name of its parameter.
fn compress_weights(
    model: &mut Model,
    rules: Vec<Rule>,
    given: usize,
    declared: &[String],
    rule_use: &mut RuleUse,
) -> Result<Vec<TensorLoss>> {
    let options = CompressOptions { rules, ..CompressOptions::default() };
    let compressed = compress(model, &options, &|_, _| {})
        .map_err(|error| Error::from_source(ErrorKind::Run, error))?;
    let names: HashMap<String, &String> =
        declared.iter().map(|name| (identifier(name), name)).collect();
    let mut losses: Vec<TensorLoss> = Vec::new();
    for weight in compressed {
        let tensor = names.get(&weight.name).map_or(weight.name, |name| name.to_string());
        let rule = weight.rule.filter(|&at| at < given);
        rule_use.selecting.extend(rule);
        match weight.fate {
            // Functions share weights.
            CompressionOutcome::Compressed { snr, .. } => {
                if snr.is_finite() && !losses.iter().any(|loss| loss.tensor == tensor) {
                    losses.push(TensorLoss { tensor, scheme: String::new(), decibels: snr });
                }
            }
            CompressionOutcome::Kept(reason) => {
                if let Some(at) = rule.filter(|&at| !options.rules[at].form.is_plain()) {
                    let text =
                        format!("`{tensor}` stays in fp16 despite rule {}: {reason}", at + 1);
                    rule_use.kept.push(text);
                }
            }
        }
    }
    Ok(losses)
}

/// The scheme of a tensor, or its element type.
pub(crate) fn storage(param: &Param) -> String {
    match param.scheme() {
        Some(scheme) => scheme.name().to_owned(),
        None => {
            let count = param.shape().iter().product::<u64>().max(1);
            format!("{}-bit elements", param.bytes().len() as u64 * 8 / count)
        }
    }
}

/// Tensors by their storage, the largest share first.
pub(crate) fn storage_shares(params: &Params) -> Vec<StorageShare> {
    let mut shares: Vec<StorageShare> = Vec::new();
    for (_, param) in params.iter() {
        let scheme = storage(param);
        let bytes = param.bytes().len() as u64;
        match shares.iter_mut().find(|share| share.scheme == scheme) {
            Some(share) => (share.tensors, share.bytes) = (share.tensors + 1, share.bytes + bytes),
            None => shares.push(StorageShare { scheme, tensors: 1, bytes }),
        }
    }
    shares.sort_by_key(|share| std::cmp::Reverse(share.bytes));
    shares
}
