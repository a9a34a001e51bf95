//! Rules in text form, as in the command's options and in TOML files.

use std::path::Path;
use std::str::FromStr;

use coremill_compress::linear::{Config, DEFAULT_BLOCK_SIZE, Granularity, Integer, Mode};
use coremill_compress::{
    Algorithm, Channels, CompressionConfig, Palette, Prune, Rule, Selector, Values,
};
use coremill_mil::ops::OpKind;
use coremill_tensor::DType;
use serde::Deserialize;

use crate::error::Error;

/// Minimum share of elements to prune by a threshold, as in coremltools.
const LEAST_SHARE: f64 = 0.5;

/// A rule in text form. In a file, each rule is a table `[[rule]]`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RuleText {
    /// Patterns for the weight's name, one of which must match. `*` matches any text, `?` any
    /// character.
    pub name: Several,
    /// Operations, one of which must use the weight.
    pub op: Several,
    /// Element type of the weight.
    pub dtype: Option<String>,
    /// Minimum number of elements, 2049 by default.
    pub min_elements: Option<u64>,
    /// Maximum number of elements.
    pub max_elements: Option<u64>,
    /// Whether the weights stay uncompressed.
    pub keep: bool,
    /// Linear quantization to `int8`, `uint8`, `int4` or `uint4`.
    pub linear: Option<String>,
    /// Granularity of scales: `tensor` or `channel`.
    pub per: Option<String>,
    /// Number of input channels per scale, or the block size along each axis; 0 for the whole axis.
    pub block: Option<BlockSize>,
    /// Position of the zero point: `symmetric` or `linear`.
    pub mode: Option<String>,
    /// Palettization with this number of bits per index.
    pub palettize: Option<Bits>,
    /// Number of output channels per lookup table.
    pub group: Option<usize>,
    /// Axis of groups and vectors, instead of the output channels.
    pub group_axis: Option<usize>,
    /// Algorithm that computes the tables: `kmeans`, `uniform` or `unique`.
    pub algorithm: Option<String>,
    /// Number of output channels per index.
    pub vector: Option<usize>,
    /// Whether each output channel is first divided by its largest magnitude.
    pub channel_scale: bool,
    /// Integer type of table entries: `int8` or `uint8`.
    pub lut: Option<String>,
    /// Pruning: a share (`0.5`), a ratio (`2:4`), or a threshold (`>0.01`).
    pub prune: Option<Pruning>,
    /// Number of consecutive channels that are pruned together.
    pub prune_block: Option<usize>,
    /// Axis of the channels that are pruned together: 0 for output channels, 1 for input channels.
    pub prune_dim: Option<u8>,
    /// Minimum share of the elements that a threshold prunes, 0.5 by default. A weight with fewer is
    /// not pruned.
    pub prune_least: Option<f64>,
}

/// One string or a list of strings.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(from = "OneOrMore")]
pub struct Several(pub Vec<String>);

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMore {
    One(String),
    More(Vec<String>),
}

impl From<OneOrMore> for Several {
    fn from(given: OneOrMore) -> Several {
        match given {
            OneOrMore::One(text) => Several(vec![text]),
            OneOrMore::More(texts) => Several(texts),
        }
    }
}

/// Size of blocks with a scale: a number of input channels, or a size along each axis.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum BlockSize {
    /// Number of input channels.
    Channels(u64),
    /// Size along each axis; 0 for the whole axis.
    Axes(Vec<u64>),
}

impl From<u64> for BlockSize {
    fn from(size: u64) -> BlockSize {
        BlockSize::Channels(size)
    }
}

impl FromStr for BlockSize {
    type Err = Error;

    fn from_str(text: &str) -> Result<BlockSize, Error> {
        let sizes =
            text.split(',').map(|size| size.trim().parse().ok()).collect::<Option<Vec<_>>>();
        match sizes.as_deref() {
            Some([size]) => Ok(BlockSize::Channels(*size)),
            Some(sizes) => Ok(BlockSize::Axes(sizes.to_vec())),
            None => Err(Error::new(format!(
                "expected a number of input channels (`32`) or a size along each axis (`1,32,0,0`), got `{text}`"
            ))),
        }
    }
}

/// Number of bits per table index.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(try_from = "NumberOrText")]
pub enum Bits {
    /// A fixed number of bits.
    Some(u32),
    /// The smallest number of bits for all distinct values.
    Unique,
}

impl From<u32> for Bits {
    fn from(bits: u32) -> Bits {
        Bits::Some(bits)
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum NumberOrText {
    Integer(i64),
    Float(f64),
    Text(String),
}

impl std::fmt::Display for NumberOrText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            NumberOrText::Integer(number) => number.fmt(f),
            NumberOrText::Float(number) => number.fmt(f),
            NumberOrText::Text(text) => f.write_str(text),
        }
    }
}

impl TryFrom<NumberOrText> for Bits {
    type Error = Error;

    fn try_from(given: NumberOrText) -> Result<Bits, Error> {
        given.to_string().parse()
    }
}

impl FromStr for Bits {
    type Err = Error;

    fn from_str(text: &str) -> Result<Bits, Error> {
        match text {
            "1" | "2" | "3" | "4" | "6" | "8" => Ok(Bits::Some(text.parse().unwrap_or(8))),
            "unique" => Ok(Bits::Unique),
            _ => Err(Error::new(format!(
                "the number of bits must be 1, 2, 3, 4, 6, 8 or `unique`, got `{text}`"
            ))),
        }
    }
}

/// Selection of the weights that become 0.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "NumberOrText")]
pub struct Pruning(pub Prune);

impl TryFrom<NumberOrText> for Pruning {
    type Error = Error;

    fn try_from(given: NumberOrText) -> Result<Pruning, Error> {
        given.to_string().parse()
    }
}

impl FromStr for Pruning {
    type Err = Error;

    fn from_str(text: &str) -> Result<Pruning, Error> {
        let wrong = || {
            Error::new(format!(
                "expected a share (`0.5`), a ratio (`2:4`) or a threshold (`>0.01`) to prune, got `{text}`"
            ))
        };
        let prune = if let Some(threshold) = text.strip_prefix('>') {
            let limit = threshold.trim().parse().map_err(|_| wrong())?;
            Prune::Threshold { limit, least: LEAST_SHARE }
        } else if let Some((zeros, of)) = text.split_once(':') {
            let number = |text: &str| text.trim().parse().map_err(|_| wrong());
            Prune::Ratio { zeros: number(zeros)?, of: number(of)?, along: Channels::Input }
        } else {
            Prune::Magnitude(text.parse().map_err(|_| wrong())?)
        };
        let form = CompressionConfig { prune: Some(prune.clone()), values: Values::Floats };
        form.check()?;
        Ok(Pruning(prune))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    rule: Vec<RuleText>,
}

/// Reads rules from a TOML file.
pub fn read_rules(path: &Path) -> Result<Vec<Rule>, Error> {
    let text = crate::files::read_rules(path)?;
    let file: File = toml::from_str(&text).map_err(|error| {
        Error::new(error.to_string().trim_end())
            .with_hint("write each rule in a table `[[rule]]`")
            .within(path)
    })?;
    if file.rule.is_empty() {
        let error = Error::new("it holds no rules").with_hint("write each in a table `[[rule]]`");
        return Err(error.within(path));
    }
    let rules = file.rule.iter().enumerate().map(|(at, rule)| {
        rule.to_rule().map_err(|error| {
            let message = format!("rule {}: {error}", at + 1);
            Error::new(message).within(path).with_hint_of(error.hint()).with_source(error.clone())
        })
    });
    rules.collect()
}

impl RuleText {
    /// Parses and validates the rule.
    pub fn to_rule(&self) -> Result<Rule, Error> {
        let rule = Rule { selector: self.selector()?, form: self.form()? };
        rule.form.check()?;
        Ok(rule)
    }

    fn selector(&self) -> Result<Selector, Error> {
        for name in &self.op.0 {
            OpKind::parse(name)
                .map_err(|unknown| Error::new(unknown.message).with_hint(unknown.hint))?;
        }
        let dtype = match self.dtype.as_deref() {
            None => None,
            Some("fp16") => Some(DType::Fp16),
            Some("fp32") => Some(DType::Fp32),
            Some(other) => {
                return Err(Error::new(format!(
                    "weights to compress must be `fp16` or `fp32`, got `{other}`"
                )));
            }
        };
        Ok(Selector {
            names: self.name.0.clone(),
            ops: self.op.0.clone(),
            dtype,
            min_elements: self.min_elements,
            max_elements: self.max_elements,
        })
    }

    fn form(&self) -> Result<CompressionConfig, Error> {
        let needs = |word: &str, other: &str| {
            Err(Error::new(format!("`{word}` requires `{other}`, which the rule does not set")))
        };
        let linear_words = [
            ("per", self.per.is_some()),
            ("block", self.block.is_some()),
            ("mode", self.mode.is_some()),
        ];
        let palette_words = [
            ("group", self.group.is_some()),
            ("group_axis", self.group_axis.is_some()),
            ("algorithm", self.algorithm.is_some()),
            ("vector", self.vector.is_some()),
            ("channel_scale", self.channel_scale),
            ("lut", self.lut.is_some()),
        ];
        if self.linear.is_none()
            && let Some((word, _)) = linear_words.into_iter().find(|(_, given)| *given)
        {
            return needs(word, "linear");
        }
        if self.palettize.is_none()
            && let Some((word, _)) = palette_words.into_iter().find(|(_, given)| *given)
        {
            return needs(word, "palettize");
        }
        let prune = self.pruning()?;
        let values = match (&self.linear, self.palettize) {
            (Some(_), Some(_)) => {
                return Err(Error::new("`linear` and `palettize` are mutually exclusive")
                    .with_hint("to store the tables of a palette as integers, set `lut`"));
            }
            (Some(dtype), None) => Values::Linear(self.linear(dtype)?),
            (None, Some(bits)) => Values::Palette(self.palette(bits)?),
            (None, None) => Values::Floats,
        };
        let form = CompressionConfig { prune, values };
        match (self.keep, form.is_plain()) {
            (true, false) => Err(Error::new("`keep` cannot be combined with a compression")),
            (false, true) => Err(Error::new("no compression is selected")
                .with_hint("set `linear`, `palettize`, `prune` or `keep`")),
            _ => Ok(form),
        }
    }

    fn pruning(&self) -> Result<Option<Prune>, Error> {
        let dim = match self.prune_dim {
            None => None,
            Some(0) => Some(Channels::Output),
            Some(1) => Some(Channels::Input),
            Some(other) => {
                let accepted = "0 for output channels or 1 for input channels";
                return Err(unknown("prune_dim", &other.to_string(), accepted));
            }
        };
        let mut prune = self.prune.as_ref().map(|pruning| pruning.0.clone());
        if let Some(share) = self.prune_least {
            let Some(Prune::Threshold { least, .. }) = &mut prune else {
                return Err(Error::new("`prune_least` requires pruning by a threshold")
                    .with_hint("set the threshold: `prune = \">0.01\"`"));
            };
            *least = share;
        }
        match (prune, self.prune_block, dim) {
            (prune, None, None) => Ok(prune),
            (Some(Prune::Magnitude(share)), Some(size), dim) => {
                Ok(Some(Prune::Blocks { share, size, along: dim.unwrap_or(Channels::Output) }))
            }
            (Some(Prune::Ratio { zeros, of, .. }), None, Some(along)) => {
                Ok(Some(Prune::Ratio { zeros, of, along }))
            }
            (_, Some(_), _) => Err(Error::new("`prune_block` requires pruning by a share")
                .with_hint("set the share to prune: `prune = 0.5`")),
            (_, None, Some(_)) => {
                Err(Error::new("`prune_dim` requires pruning by a ratio or by blocks")
                    .with_hint("set `prune = \"2:4\"`, or `prune_block` in addition to `prune`"))
            }
        }
    }

    fn linear(&self, dtype: &str) -> Result<Config, Error> {
        let granularity = match (self.per.as_deref(), &self.block) {
            (Some(_), Some(_)) => {
                return Err(Error::new("`per` and `block` are mutually exclusive"));
            }
            (None, Some(BlockSize::Channels(size))) => Granularity::Block(*size),
            (None, Some(BlockSize::Axes(sizes))) => Granularity::Blocks(sizes.clone()),
            (None | Some("channel"), None) => Granularity::Channel,
            (Some("tensor"), None) => Granularity::Tensor,
            (Some("block"), None) => Granularity::Block(DEFAULT_BLOCK_SIZE),
            (Some(other), None) => {
                return Err(unknown("per", other, "`tensor`, `channel` or `block`"));
            }
        };
        let mode = match self.mode.as_deref() {
            None | Some("symmetric") => Mode::Symmetric,
            Some("linear") => Mode::Linear,
            Some(other) => return Err(unknown("mode", other, "`symmetric` or `linear`")),
        };
        let dtype = integer("linear", dtype)?;
        Ok(Config { mode, dtype, granularity, ..Config::default() })
    }

    fn palette(&self, bits: Bits) -> Result<Palette, Error> {
        let algorithm = match (self.algorithm.as_deref(), bits) {
            (None | Some("unique"), Bits::Unique) | (Some("unique"), _) => Algorithm::Unique,
            (None | Some("kmeans"), Bits::Some(_)) => Algorithm::KMeans,
            (Some("uniform"), Bits::Some(_)) => Algorithm::Uniform,
            (Some(other), _) => {
                let accepted = "`kmeans` or `uniform` with a number of bits, or `unique`";
                return Err(unknown("algorithm", other, accepted));
            }
        };
        Ok(Palette {
            bits: match bits {
                Bits::Some(bits) => Some(bits),
                Bits::Unique => None,
            },
            algorithm,
            group: self.group,
            axis: self.group_axis,
            vector: self.vector.unwrap_or(1),
            channel_scale: self.channel_scale,
            entries: self.lut.as_deref().map(|name| integer("lut", name)).transpose()?,
        })
    }
}

fn integer(word: &str, name: &str) -> Result<Integer, Error> {
    match name {
        "int8" => Ok(Integer::Int8),
        "uint8" => Ok(Integer::UInt8),
        "int4" => Ok(Integer::Int4),
        "uint4" => Ok(Integer::UInt4),
        _ => Err(unknown(word, name, "`int8`, `uint8`, `int4` or `uint4`")),
    }
}

fn unknown(word: &str, found: &str, accepted: &str) -> Error {
    Error::new(format!("`{word}` must be {accepted}, got `{found}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(text: &str) -> Result<Vec<Rule>, String> {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("rules.toml");
        std::fs::write(&path, text).expect("the file can be written");
        read_rules(&path).map_err(|error| error.to_string())
    }

    #[test]
    fn parses_rule_files() {
        let found = rules(
            "[[rule]]\nname = \"*embed*\"\nlinear = \"int8\"\n\n\
             [[rule]]\nop = [\"conv\", \"linear\"]\npalettize = 4\ngroup = 16\nlut = \"int8\"\nprune = \"2:4\"\n\n\
             [[rule]]\ndtype = \"fp16\"\nmin_elements = 10\nkeep = true\n",
        );
        let found = found.expect("rules");
        assert_eq!(found.len(), 3);
        assert_eq!(found[0].selector.names, ["*embed*"]);
        assert_eq!(
            found[1].form.prune,
            Some(Prune::Ratio { zeros: 2, of: 4, along: Channels::Input })
        );
        let palette =
            Palette { group: Some(16), entries: Some(Integer::Int8), ..Palette::default() };
        assert_eq!(found[1].form.values, Values::Palette(palette));
        assert!(found[2].form.is_plain());
    }

    #[test]
    fn parses_per_axis_block_sizes() {
        let found = rules(
            "[[rule]]\nlinear = \"int8\"\nblock = [0, 2, 0, 1]\n\n\
             [[rule]]\npalettize = 4\ngroup = 16\ngroup_axis = 1\n",
        );
        let found = found.expect("rules");
        let Values::Linear(config) = &found[0].form.values else { panic!("{:?}", found[0]) };
        assert_eq!(config.granularity, Granularity::Blocks(vec![0, 2, 0, 1]));
        let palette = Palette { group: Some(16), axis: Some(1), ..Palette::default() };
        assert_eq!(found[1].form.values, Values::Palette(palette));
        assert_eq!("32".parse(), Ok(BlockSize::Channels(32)));
        assert_eq!("1, 32".parse(), Ok(BlockSize::Axes(vec![1, 32])));
        assert!("1,".parse::<BlockSize>().is_err());
    }

    #[test]
    fn rejects_invalid_rules() {
        for (text, message) in [
            ("", "it holds no rules"),
            ("[[rule]]\nlinear = \"int8\"\ngroup_axis = 1", "`group_axis` requires `palettize`"),
            (
                "[[rule]]\nlinear = \"int5\"",
                "`linear` must be `int8`, `uint8`, `int4` or `uint4`, got `int5`",
            ),
            (
                "[[rule]]\npalettize = 5",
                "the number of bits must be 1, 2, 3, 4, 6, 8 or `unique`, got `5`",
            ),
            ("[[rule]]\nprune = 2.0", "the share to prune must be from 0 to 1, got 2"),
            ("[[rule]]\nprune = \"4:4\"", "cannot prune 4 of 4"),
            (
                "[[rule]]\nprune = \"2:4\"\nprune_block = 2",
                "`prune_block` requires pruning by a share",
            ),
            ("[[rule]]\nprune = 0.5\nprune_dim = 1", "`prune_dim` requires pruning by a ratio"),
            (
                "[[rule]]\nprune = 0.5\nprune_block = 2\nprune_dim = 2",
                "`prune_dim` must be 0 for output channels or 1 for input channels, got `2`",
            ),
            (
                "[[rule]]\nlinear = \"int8\"\nprune_block = 2",
                "`prune_block` requires pruning by a share",
            ),
            ("[[rule]]\ngroup = 4\nlinear = \"int8\"", "`group` requires `palettize`"),
            ("[[rule]]\nname = \"x\"", "no compression is selected"),
            ("[[rule]]\nkeep = true\nlinear = \"int8\"", "`keep` cannot be combined"),
            ("[[rule]]\nop = \"convolution\"\nkeep = true", "unknown operation `convolution`"),
            ("[[rule]]\nlinear = \"int8\"\npalettize = 4", "are mutually exclusive"),
            ("[[rule]]\nlinaer = \"int8\"", "unknown field `linaer`"),
            ("[[rule]]\npalettize = 4\nvector = 2\nprune = 0.5", "vectors cannot be pruned"),
        ] {
            let error = rules(text).expect_err(text);
            assert!(error.contains(message), "{text}: {error}");
        }
    }
}
