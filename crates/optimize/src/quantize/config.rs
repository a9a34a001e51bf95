//! Configuration of quantization.

use std::str::FromStr;

use coremill_compiler::{Options, is_within};
use coremill_compress::matches;
use coremill_engine::Numerics;
use coremill_io::unknown_name;
use coremill_mil::ir::Opset;
use coremill_mil::ops::OpKind;

use super::observe::Observer;
use super::weights::Storage;
use crate::error::Error;
use crate::samples::Pixels;

/// Quantization recipes. Names and semantics match ExecuTorch's Core ML backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recipe {
    /// No quantization; fp32.
    Fp32,
    /// No quantization; fp16.
    Fp16,
    /// 8-bit weights of convolutions and linear layers, and 8-bit activations around them.
    Int8Static,
    /// 8-bit weights of convolutions and linear layers.
    Int8WeightOnly,
    /// 4-bit weights of linear layers, with a scale per group.
    Int4PerGroup,
    /// 4-bit weights of linear layers, with a scale per output channel.
    Int4PerChannel,
    /// 8-bit weights of linear layers, with a scale per output channel.
    Int8PerChannel,
    /// 8-bit weights of linear layers, with a scale per group.
    Int8PerGroup,
    /// Palettized weights of linear layers and embeddings.
    Codebook,
}

impl Recipe {
    /// All recipes with their names.
    pub const NAMES: [(&'static str, Recipe); 9] = [
        ("fp32", Recipe::Fp32),
        ("fp16", Recipe::Fp16),
        ("int8-static", Recipe::Int8Static),
        ("int8-weight-only", Recipe::Int8WeightOnly),
        ("int4-per-group", Recipe::Int4PerGroup),
        ("int4-per-channel", Recipe::Int4PerChannel),
        ("int8-per-channel", Recipe::Int8PerChannel),
        ("int8-per-group", Recipe::Int8PerGroup),
        ("codebook", Recipe::Codebook),
    ];

    /// Name of the recipe.
    pub fn name(self) -> &'static str {
        let found = Recipe::NAMES.iter().find(|(_, recipe)| *recipe == self);
        found.map_or("", |(name, _)| name)
    }

    /// Returns true if activations are quantized, which needs samples.
    pub fn is_static(self) -> bool {
        self == Recipe::Int8Static
    }

    /// Returns true if the recipe applies to this kind of operation by default.
    fn takes(self, kind: OpKind) -> bool {
        let convolves = matches!(kind, OpKind::Conv | OpKind::ConvTranspose);
        match self {
            Recipe::Fp32 | Recipe::Fp16 => false,
            Recipe::Int8Static => {
                convolves
                    || matches!(kind, OpKind::Linear | OpKind::Matmul | OpKind::Add | OpKind::Mul)
            }
            Recipe::Int8WeightOnly => convolves || kind == OpKind::Linear,
            Recipe::Codebook => matches!(kind, OpKind::Linear | OpKind::Gather),
            _ => kind == OpKind::Linear,
        }
    }

    /// Returns true if a rule can apply the recipe to this kind of operation.
    fn can_take(self, kind: OpKind) -> bool {
        use OpKind::{Conv, ConvTranspose, Gather, Linear};
        match self {
            Recipe::Fp32 | Recipe::Fp16 => false,
            Recipe::Int8Static => self.takes(kind),
            Recipe::Codebook => matches!(kind, Linear | Gather),
            _ => matches!(kind, Conv | ConvTranspose | Linear | Gather),
        }
    }
}

impl FromStr for Recipe {
    type Err = Error;

    fn from_str(text: &str) -> Result<Recipe, Error> {
        let found = Recipe::NAMES.iter().find(|(name, _)| *name == text);
        found.map(|(_, recipe)| *recipe).ok_or_else(|| {
            Error::new(unknown_name("recipe", text, Recipe::NAMES.iter().map(|(name, _)| name)))
        })
    }
}

/// A recipe with its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scheme {
    /// The recipe.
    pub recipe: Recipe,
    /// Number of input channels per scale, for recipes with groups.
    pub group_size: usize,
    /// Bits per table index.
    pub bits: u32,
    /// Number of rows and columns per table; 0 for all.
    pub block: (usize, usize),
}

impl Scheme {
    /// A recipe with default parameters.
    pub fn new(recipe: Recipe) -> Scheme {
        Scheme { recipe, group_size: 32, bits: 4, block: (16, 0) }
    }

    pub(super) fn storage(self) -> Option<Storage> {
        let size = self.group_size;
        Some(match self.recipe {
            Recipe::Fp32 | Recipe::Fp16 => return None,
            Recipe::Int8Static | Recipe::Int8WeightOnly | Recipe::Int8PerChannel => {
                Storage::Channels { bits: 8 }
            }
            Recipe::Int4PerChannel => Storage::Channels { bits: 4 },
            Recipe::Int4PerGroup => Storage::Groups { bits: 4, size },
            Recipe::Int8PerGroup => Storage::Groups { bits: 8, size },
            Recipe::Codebook => {
                let (rows, columns) = self.block;
                Storage::Tables { bits: self.bits, rows, columns }
            }
        })
    }

    fn needs(self) -> Opset {
        let weights = self.storage().map_or(Opset::Ios15, Storage::needs);
        if self.recipe.is_static() { weights.max(Opset::Ios17) } else { weights }
    }

    fn check(self) -> Result<(), Error> {
        if self.group_size == 0 {
            return Err(Error::new("`group_size` must be at least 1, got 0")
                .with_hint("a typical value is 32"));
        }
        if !(1..=8).contains(&self.bits) {
            let message = format!("`bits` must be from 1 to 8, got {}", self.bits);
            return Err(Error::new(message));
        }
        Ok(())
    }
}

/// Quantization of selected layers. All conditions of a rule must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// Module paths or patterns with `*` and `?`, one of which must contain the layer. Empty
    /// selects all.
    pub modules: Vec<String>,
    /// MIL names of operations, one of which must be the layer's. Empty selects the operations that
    /// the recipe applies to by default.
    pub ops: Vec<String>,
    /// Minimum number of elements of the weight.
    pub min_elements: Option<u64>,
    /// Maximum number of elements of the weight.
    pub max_elements: Option<u64>,
    /// Quantization scheme, `None` to leave the layers unquantized.
    pub scheme: Option<Scheme>,
}

/// The properties of a layer that rules test.
pub(super) struct Facts<'l> {
    pub(super) name: &'l str,
    pub(super) module: Option<&'l str>,
    pub(super) kind: OpKind,
    /// Number of elements of the weight; 0 if there is none.
    pub(super) elements: u64,
}

impl Rule {
    fn selects(&self, facts: &Facts<'_>) -> bool {
        let is_named = |path: &String| is_of(path, facts);
        let has_size = self.min_elements.is_none_or(|least| facts.elements >= least)
            && self.max_elements.is_none_or(|most| facts.elements <= most);
        let is_sized = self.min_elements.is_some() || self.max_elements.is_some();
        (self.modules.is_empty() || self.modules.iter().any(is_named))
            && (self.ops.is_empty() || self.ops.iter().any(|op| op == facts.kind.name()))
            && (!is_sized || facts.elements > 0 && has_size)
    }
}

/// Returns true if a layer is in the module with this path.
pub(super) fn is_of(path: &str, facts: &Facts<'_>) -> bool {
    let of_module = |module| is_within(module, path) || matches(path, module);
    facts.module.is_some_and(of_module) || facts.name == coremill_compiler::identifier(path)
}

/// Options of quantization.
#[derive(Clone, Debug)]
pub struct Config {
    /// Scheme of the layers that no rule selects.
    pub scheme: Scheme,
    /// Algorithm that chooses the ranges of activations.
    pub observer: Observer,
    /// Normalization of pixels in samples that are images.
    pub pixels: Pixels,
    /// Paths of modules to leave unquantized.
    pub keep: Vec<String>,
    /// MIL names of operations to leave unquantized.
    pub keep_ops: Vec<String>,
    /// Weights with fewer elements stay unquantized.
    pub min_elements: u64,
    /// Rules for selected layers. The first matching rule applies.
    pub rules: Vec<Rule>,
    /// Number of layers to leave unquantized, chosen by their effect on the outputs. Needs samples.
    pub keep_worst: usize,
    /// Effort of rounding. 0 rounds to nearest. 1 searches better ranges of weights and, with
    /// samples, corrects biases for the mean error. 2 rounds weights to minimize the error of the
    /// samples' outputs. With samples, the best result of all efforts up to this one is used.
    pub effort: u8,
    /// Arithmetic in which losses are measured. In `Fast`, the program is in fp32 and quantization alone makes noise;
    /// otherwise the program has its own precision.
    pub numerics: Numerics,
}

/// Maximum value of `effort`.
const MAX_EFFORT: u8 = 2;

/// Decision for a layer.
pub(super) enum LayerAction {
    /// Quantize the layer.
    Scheme(Scheme),
    /// Leave the layer unquantized, for this reason.
    Kept(String),
    /// No rule applies.
    Nothing,
}

impl Config {
    /// Default options for a recipe.
    pub fn new(recipe: Recipe) -> Config {
        Config {
            scheme: Scheme::new(recipe),
            observer: Observer::default(),
            pixels: Pixels::default(),
            keep: Vec::new(),
            keep_ops: Vec::new(),
            min_elements: 0,
            rules: Vec::new(),
            keep_worst: 0,
            effort: 0,
            numerics: Numerics::Fast,
        }
    }

    fn schemes(&self) -> impl Iterator<Item = Scheme> {
        let ruled = self.rules.iter().filter_map(|rule| rule.scheme);
        ruled.chain([self.scheme])
    }

    /// Returns true if activations of some layers are quantized, which needs samples.
    pub fn is_static(&self) -> bool {
        self.schemes().any(|scheme| scheme.recipe.is_static())
    }

    /// The oldest release that supports all schemes.
    pub fn needs(&self) -> Opset {
        self.schemes().map(Scheme::needs).max().unwrap_or(Opset::Ios15)
    }

    pub(super) fn wanted(&self, facts: &Facts<'_>) -> LayerAction {
        let rule = self.rules.iter().find(|rule| {
            let takes = |scheme: Scheme| match rule.ops.is_empty() {
                true => scheme.recipe.takes(facts.kind),
                false => scheme.recipe.can_take(facts.kind),
            };
            rule.selects(facts) && rule.scheme.is_none_or(takes)
        });
        let scheme = match rule {
            Some(rule) => rule.scheme,
            None => Some(self.scheme).filter(|scheme| scheme.recipe.takes(facts.kind)),
        };
        match scheme {
            None if rule.is_some() && self.schemes().any(|it| it.recipe.takes(facts.kind)) => {
                LayerAction::Kept("a rule keeps it".to_owned())
            }
            None => LayerAction::Nothing,
            Some(_) if self.keep.iter().any(|path| is_of(path, facts)) => {
                LayerAction::Kept("its module is kept".to_owned())
            }
            Some(_) if self.keep_ops.iter().any(|op| op == facts.kind.name()) => {
                LayerAction::Kept("its operation is kept".to_owned())
            }
            Some(_) if facts.elements > 0 && facts.elements < self.min_elements => {
                LayerAction::Kept(format!("has {} elements", facts.elements))
            }
            Some(scheme) => LayerAction::Scheme(scheme),
        }
    }

    pub(super) fn check(&self, options: &Options) -> Result<(), Error> {
        self.schemes().try_for_each(Scheme::check)?;
        self.pixels.check()?;
        if self.effort > MAX_EFFORT {
            let message = format!("`effort` must be 0, 1 or 2, got {}", self.effort);
            return Err(Error::new(message));
        }
        let ops = self.rules.iter().flat_map(|rule| &rule.ops).chain(&self.keep_ops);
        for name in ops {
            OpKind::parse(name)
                .map_err(|unknown| Error::new(unknown.message).with_hint(unknown.hint))?;
        }
        match options.target {
            Some(target) if target < self.needs() => {
                let needed = self.needs();
                Err(Error::new(format!("the recipe needs {needed}; the target is {target}"))
                    .with_hint(format!(
                        "pass the option `target={}`, or leave the target out",
                        needed.tag()
                    )))
            }
            _ => Ok(()),
        }
    }

    /// Rejects rules, paths and recipes that select no layer, since they would have no effect.
    pub(super) fn check_layers(&self, layers: &[Facts<'_>]) -> Result<(), Error> {
        let known = || {
            let shown = |facts: &Facts<'_>| {
                let path = facts.module.filter(|path| !path.is_empty()).unwrap_or(facts.name);
                format!("`{path}` (`{}`)", facts.kind.name())
            };
            let some: Vec<_> = layers.iter().take(5).map(shown).collect();
            match some.as_slice() {
                [] => "nothing in the program can be quantized".to_owned(),
                some => format!("layers that can be quantized include {}", some.join(", ")),
            }
        };
        if let Some(path) = self.keep.iter().find(|path| !layers.iter().any(|it| is_of(path, it))) {
            return Err(
                Error::new(format!("the recipe quantizes nothing in `{path}`")).with_hint(known())
            );
        }
        for (at, rule) in self.rules.iter().enumerate() {
            let takes = |facts: &Facts<'_>| {
                rule.scheme.is_none_or(|scheme| scheme.recipe.can_take(facts.kind))
            };
            if !layers.iter().any(|facts| rule.selects(facts) && takes(facts)) {
                return Err(
                    Error::new(format!("rule {} selects no layer", at + 1)).with_hint(known())
                );
            }
        }
        let is_wanted = |facts: &Facts<'_>| !matches!(self.wanted(facts), LayerAction::Nothing);
        if self.schemes().any(|scheme| scheme.storage().is_some()) && !layers.iter().any(is_wanted)
        {
            let message = format!("the recipe `{}` applies to no layer", self.scheme.recipe.name());
            return Err(Error::new(message).with_hint(known()));
        }
        Ok(())
    }
}
