//! Linear quantization of weights: integers, and a scale and a zero point for each block of them.
//!
//! ```text
//! w = const(val = …);                          w_quantized = constexpr_blockwise_shift_scale(data = …, scale = …);
//! y = linear(x = x, weight = w);    becomes    y = linear(x = x, weight = w_quantized);
//! ```
//!
//! Before iOS 18 it is `constexpr_affine_dequantize`, which has one scale or one for each channel. Which weights are
//! taken and how numbers are rounded is as in coremltools, so that the same model becomes the same integers.

use std::{fmt, io};

use coremill_tensor::DType;
use coremill_tensor::Isa;
use coremill_tensor::kernels::codes::{Affine, extend};
use half::f16;
use serde_json::Value;

use super::blocks::{Blocks, Sizes};
use super::build::{build, insert};
use super::form::{Form, Values};
use super::source::{Source, UNSOUND};
use super::weight::{Candidate, Weight, candidate};
use coremill_mil::ir::Opset;
use coremill_passes::{Draft, Editor};

/// Weights have to have more elements than this, if nothing else is asked for.
pub const DEFAULT_THRESHOLD: u64 = 2048;

/// The length of a block, if none is asked for.
pub const DEFAULT_BLOCK_SIZE: u64 = 32;

/// How weights are quantized.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Where zero lies among the integers.
    pub mode: Mode,
    /// The type of the integers.
    pub dtype: Integer,
    /// What shares a scale and a zero point.
    pub granularity: Granularity,
    /// Weights of at most so many elements stay as they are.
    pub weight_threshold: u64,
}

/// Where zero lies among the integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// In their middle: the largest magnitude decides on the scale.
    Symmetric,
    /// Where the smallest and the largest number of a block have it.
    Linear,
}

/// The integers that weights become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Integer {
    /// Signed, 8 bits.
    Int8,
    /// Unsigned, 8 bits.
    UInt8,
    /// Signed, 4 bits.
    Int4,
    /// Unsigned, 4 bits.
    UInt4,
}

/// What shares a scale and a zero point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Granularity {
    /// All of a weight.
    Tensor,
    /// What makes one output channel.
    Channel,
    /// So many input channels of one output channel.
    Block(u64),
    /// So many elements along each axis, 0 for all of them. All weights have to have as many axes.
    Blocks(Vec<u64>),
}

/// What became of the weights.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// How many were quantized.
    pub quantized: usize,
    /// Those that stay as they are, each with the reason.
    pub kept: Vec<(String, &'static str)>,
}

/// Why weights cannot be quantized as is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// What is wrong.
    pub message: String,
    /// What to do about it.
    pub hint: Option<&'static str>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            mode: Mode::Symmetric,
            dtype: Integer::Int8,
            granularity: Granularity::Channel,
            weight_threshold: DEFAULT_THRESHOLD,
        }
    }
}

impl Integer {
    /// The element type.
    pub fn dtype(self) -> DType {
        match self {
            Integer::Int8 => DType::Int8,
            Integer::UInt8 => DType::UInt8,
            Integer::Int4 => DType::Int4,
            Integer::UInt4 => DType::UInt4,
        }
    }

    fn is_signed(self) -> bool {
        matches!(self, Integer::Int8 | Integer::Int4)
    }

    fn is_narrow(self) -> bool {
        matches!(self, Integer::Int4 | Integer::UInt4)
    }

    /// The smallest integer and the largest; where zero is in the middle one is left out, that there are as many on
    /// either side.
    pub(super) fn range(self, mode: Mode) -> (f32, f32) {
        let left_out = f32::from(u8::from(mode == Mode::Symmetric));
        match self {
            Integer::Int8 => (-128.0 + left_out, 127.0),
            Integer::Int4 => (-8.0 + left_out, 7.0),
            Integer::UInt8 => (0.0, 255.0 - left_out),
            Integer::UInt4 => (0.0, 15.0 - left_out),
        }
    }
}

impl Config {
    /// Reads coremltools' `OpLinearQuantizerConfig` as JSON.
    pub fn from_json(text: &str) -> Result<Config, Error> {
        let value: Value = serde_json::from_str(text)
            .map_err(|error| Error::new(format!("the value is not a JSON: {error}")))?;
        let Value::Object(entries) = value else {
            return Err(Error::new("the value is not a JSON object"));
        };
        let mut config = Config::default();
        let (mut granularity, mut block) =
            ("per_channel".to_owned(), Granularity::Block(DEFAULT_BLOCK_SIZE));
        for (key, value) in &entries {
            let text = || value.as_str().ok_or_else(|| unexpected(key, value, "a text"));
            match key.as_str() {
                "mode" => {
                    config.mode = match text()?.to_ascii_lowercase().as_str() {
                        "linear_symmetric" => Mode::Symmetric,
                        "linear" => Mode::Linear,
                        _ => return Err(unexpected(key, value, "`linear_symmetric` and `linear`")),
                    }
                }
                "dtype" => {
                    config.dtype = match text()? {
                        "int8" => Integer::Int8,
                        "uint8" => Integer::UInt8,
                        "int4" => Integer::Int4,
                        "uint4" => Integer::UInt4,
                        _ => {
                            let accepted = "`int8`, `uint8`, `int4` and `uint4`";
                            return Err(unexpected(key, value, accepted));
                        }
                    }
                }
                "granularity" => granularity = text()?.to_owned(),
                "block_size" => block = block_size(key, value)?,
                "weight_threshold" => {
                    config.weight_threshold = value
                        .as_u64()
                        .ok_or_else(|| unexpected(key, value, "a number of elements from 0 on"))?;
                }
                _ => {
                    return Err(Error::new(format!(
                        "`{key}` is not a key; there are mode, dtype, granularity, block_size, weight_threshold"
                    )));
                }
            }
        }
        config.granularity = match granularity.as_str() {
            "per_tensor" => Granularity::Tensor,
            "per_channel" => Granularity::Channel,
            "per_block" => block,
            _ => {
                return Err(Error::new(format!(
                    "`granularity` is `{granularity}`; accepted are `per_tensor`, `per_channel` and `per_block`"
                )));
            }
        };
        Ok(config)
    }

    /// The oldest release that has what the result is written with.
    pub fn needs(&self) -> Opset {
        let is_blockwise =
            matches!(self.granularity, Granularity::Block(_) | Granularity::Blocks(_));
        if is_blockwise || self.dtype.is_narrow() { Opset::Ios18 } else { Opset::Ios16 }
    }

    /// The scale and the zero point of a block whose numbers lie between two; none where they are not finite.
    pub(super) fn step(&self, source: DType, min: f32, max: f32) -> Option<Affine> {
        // Halves are computed with in half precision, one operation after the other.
        let rounded = |number: f32| match source {
            DType::Fp16 => f16::from_f32(number).to_f32(),
            _ => number,
        };
        let (low, high) = self.dtype.range(self.mode);
        let (min, max) = match self.mode {
            Mode::Symmetric => {
                let largest = min.abs().max(max.abs());
                (-largest, largest)
            }
            Mode::Linear => (min.min(0.0), max.max(0.0)),
        };
        let extent = rounded(max - min);
        let scale = rounded(extent / (high - low));
        let zero_point = match self.mode {
            Mode::Symmetric if self.dtype.is_signed() => 0.0,
            Mode::Symmetric => (high / 2.0).floor(),
            Mode::Linear if extent == 0.0 => 0.0,
            Mode::Linear => {
                let weighted = rounded(rounded(low * max) - rounded(high * min));
                rounded(weighted / extent).round_ties_even()
            }
        };
        let step = Affine { scale, zero_point: zero_point.clamp(low, high) };
        (extent.is_finite() && zero_point.is_finite()).then_some(step)
    }
}

fn block_size(key: &str, value: &Value) -> Result<Granularity, Error> {
    let accepted = "a number from 0 on and a list of such, one for each axis";
    match value {
        Value::Number(_) => value.as_u64().map(Granularity::Block),
        Value::Array(sizes) => {
            sizes.iter().map(Value::as_u64).collect::<Option<_>>().map(Granularity::Blocks)
        }
        _ => None,
    }
    .ok_or_else(|| unexpected(key, value, accepted))
}

fn unexpected(key: &str, found: &Value, accepted: &str) -> Error {
    let found = found.as_str().map_or_else(|| found.to_string(), str::to_owned);
    Error::new(format!("`{key}` is `{found}`; accepted are {accepted}"))
}

impl Error {
    pub(super) fn new(message: impl Into<String>) -> Error {
        Error { message: message.into(), hint: None }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

/// Quantizes the weights of a function.
///
/// Taken are float constants of two dimensions and more. Tables that only `gather` uses stay, since embeddings lose
/// more by it than they save; one that is another operation's weight, too, is taken.
pub fn quantize(draft: &mut Draft, config: &Config) -> Result<Outcome, Error> {
    let mut editor = Editor::new(draft);
    let (needed, opset) = (config.needs(), editor.opset());
    if opset < needed {
        return Err(Error {
            message: format!(
                "quantized weights of this kind need {needed}; the program is for {opset}"
            ),
            hint: Some("ask for a newer release, or for 8 bits and no blocks"),
        });
    }
    let form = Form { values: Values::Linear(config.clone()), ..Form::default() };
    let mut outcome = Outcome::default();
    for id in editor.ops() {
        let weight = match candidate(&editor, id) {
            None => continue,
            Some(Candidate::Kept(name, reason)) => {
                outcome.kept.push((name, reason));
                continue;
            }
            Some(Candidate::Weight(weight)) => weight,
        };
        let built = if weight.count() as u64 <= config.weight_threshold {
            Err("it has no more elements than `weight_threshold`")
        } else if weight.is_table() {
            Err("it is a table that rows are looked up in")
        } else {
            build(&weight, &form, opset)?
        };
        match built {
            Ok(built) => {
                insert(&mut editor, &weight, built)?;
                outcome.quantized += 1;
            }
            Err(reason) => outcome.kept.push((weight.name, reason)),
        }
    }
    Ok(outcome)
}

/// The scale and the zero point of each block; or why there are none.
pub(super) fn steps(
    source: &Source,
    blocks: &Blocks,
    config: &Config,
) -> io::Result<Result<Vec<Affine>, &'static str>> {
    let isa = Isa::detect();
    let mut extents = vec![(f32::INFINITY, f32::NEG_INFINITY); blocks.count()];
    let (mut runs, mut finite) = (Vec::new(), true);
    source.for_each_part(0, source.count, &mut |part| {
        runs.clear();
        blocks.for_each_run(part.at, part.numbers.len(), |run, block| runs.push((run, block)));
        finite &= extend(isa, part.numbers, &runs, &mut extents);
    })?;
    if !finite {
        return Ok(Err(UNSOUND));
    }
    let steps = extents.iter().map(|&(min, max)| config.step(source.dtype, min, max));
    let steps: Option<Vec<_>> = steps.collect();
    Ok(steps.ok_or("its elements lie too far apart for its type"))
}

impl Granularity {
    /// The length of the blocks of a weight along each axis, 0 for all of it; or why there is none.
    pub(super) fn sizes(&self, weight: &Weight) -> Result<Sizes, Error> {
        let rank = weight.shape.len();
        let mut sizes = vec![0; rank];
        match self {
            Granularity::Tensor => {}
            Granularity::Blocks(given) => {
                if given.len() != rank {
                    return Err(Error {
                        message: format!(
                            "`block_size` has {} elements, but `{}` has {rank} axes",
                            given.len(),
                            weight.name
                        ),
                        hint: Some(
                            "give one number for weights of all kinds, or raise `weight_threshold` above those of others",
                        ),
                    });
                }
                sizes.clone_from(given);
            }
            Granularity::Channel | Granularity::Block(_) => {
                let Some((input, output)) = weight.axes else {
                    return Ok(Err("operations that use it have their channels along other axes"));
                };
                if let Granularity::Block(size) = self {
                    sizes[input] = *size;
                }
                sizes[output] = 1;
            }
        }
        let sizes = sizes.into_iter().map(usize::try_from).collect::<Result<_, _>>();
        Ok(sizes.map_err(|_| "its blocks are larger than it"))
    }
}
