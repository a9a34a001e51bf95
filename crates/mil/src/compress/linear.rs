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

use coremill_tensor::packed::pack;
use coremill_tensor::{Buffer, DType, Statistics};
use half::f16;
use serde_json::Value;

use super::blocks::Blocks;
use super::elements::{Quantized, for_each_part};
use crate::ir::{Binding, Constant, Op, OpId, Opset, ValueId};
use crate::ops::OpKind;
use crate::pass::{Draft, Editor};

/// Weights have to have more elements than this, if nothing else is asked for.
pub const DEFAULT_THRESHOLD: u64 = 2048;

/// The length of a block, if none is asked for.
pub const DEFAULT_BLOCK_SIZE: u64 = 32;

/// Smaller constants are no weights, whatever the threshold.
const MIN_ELEMENTS: u64 = 10;

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

/// The scale and the zero point of a block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Step {
    pub(super) scale: f32,
    pub(super) zero_point: f32,
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
    fn range(self, mode: Mode) -> (f32, f32) {
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
            .map_err(|error| Error::new(format!("the value is no JSON: {error}")))?;
        let Value::Object(entries) = value else {
            return Err(Error::new("the value is no JSON object"));
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
                        "`{key}` is no key; there are mode, dtype, granularity, block_size, weight_threshold"
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

    /// Numbers that tell configurations apart.
    fn words(&self) -> Vec<u64> {
        let mut words = vec![u64::from(self.mode == Mode::Linear), self.dtype as u64];
        match &self.granularity {
            Granularity::Tensor => words.push(0),
            Granularity::Channel => words.push(1),
            Granularity::Block(size) => words.extend([2, *size]),
            Granularity::Blocks(sizes) => words.extend([3].iter().chain(sizes)),
        }
        words
    }

    /// The scale and the zero point of a block whose numbers lie between two; none where they are not finite.
    fn step(&self, source: DType, min: f32, max: f32) -> Option<Step> {
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
        let step = Step { scale, zero_point: zero_point.clamp(low, high) };
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
    fn new(message: impl Into<String>) -> Error {
        Error { message: message.into(), hint: None }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

/// A weight that is to be quantized.
struct Candidate {
    id: OpId,
    value: ValueId,
    dtype: DType,
    shape: Vec<u64>,
    elements: Buffer,
}

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
    let mut outcome = Outcome::default();
    for id in editor.ops() {
        let Some((value, candidate)) = candidate(&editor, id, config) else { continue };
        let replaced = match candidate {
            Ok(candidate) => replacement(&editor, &candidate, config)?.map(|op| (candidate, op)),
            Err(reason) => Err(reason),
        };
        match replaced {
            Ok((candidate, op)) => {
                let label = format!("{}_quantized", editor.name(candidate.value));
                let inserted = editor.insert(candidate.id, op, &label).map_err(|refusals| {
                    let reasons: Vec<_> = refusals.iter().map(ToString::to_string).collect();
                    Error::new(format!("`{label}`: {}", reasons.join("; ")))
                })?;
                editor.replace(candidate.value, inserted[0]);
                outcome.quantized += 1;
            }
            Err(reason) => outcome.kept.push((editor.name(value).to_owned(), reason)),
        }
    }
    Ok(outcome)
}

/// The constant that an operation is, if it is one that could be a weight, or why it is none that is quantized.
fn candidate(
    editor: &Editor<'_>,
    id: OpId,
    config: &Config,
) -> Option<(ValueId, Result<Candidate, &'static str>)> {
    let op = editor.op_of(id, OpKind::Const)?;
    let value = *op.outputs.first()?;
    let constant = op.attributes.get("val")?;
    let ty = constant.tensor_type()?;
    let shape = ty.known_shape()?;
    let count = ty.element_count()?;
    let is_matrix = shape.len() >= 2 && matches!(ty.dtype, DType::Fp16 | DType::Fp32);
    if count < MIN_ELEMENTS || !is_matrix {
        return None;
    }
    if count <= config.weight_threshold {
        return Some((value, Err("it has no more elements than `weight_threshold`")));
    }
    // What a block gives is no constant of this kind, and what is compressed already stays.
    let kinds = || editor.uses(value).ops.iter().map(|&user| editor.op(user).and_then(Op::kind));
    let is_compressed = kinds().any(|kind| kind.is_some_and(OpKind::is_constexpr));
    let is_table = kinds().all(|kind| kind == Some(OpKind::Gather));
    let stays = [
        (editor.is_output(value), "it is a result"),
        (is_compressed, "it is compressed already"),
        (is_table, "it is a table that rows are looked up in"),
    ];
    if let Some((_, reason)) = stays.into_iter().find(|(stays, _)| *stays) {
        return Some((value, Err(reason)));
    }
    let elements = constant.elements()?.clone();
    if ty.storage_bytes() != Some(elements.len() as u64) {
        return None;
    }
    Some((value, Ok(Candidate { id, value, dtype: ty.dtype, shape: shape.to_vec(), elements })))
}

/// The operation in a weight's place, or why there is none.
fn replacement(
    editor: &Editor<'_>,
    weight: &Candidate,
    config: &Config,
) -> Result<Result<Op, &'static str>, Error> {
    let sizes = match block_sizes(editor, weight, config)? {
        Ok(sizes) => sizes,
        Err(reason) => return Ok(Err(reason)),
    };
    let to_usize = |numbers: &[u64]| numbers.iter().map(|&n| usize::try_from(n)).collect();
    let (Ok(shape), Ok(lengths)): (Result<Vec<_>, _>, Result<Vec<_>, _>) =
        (to_usize(&weight.shape), to_usize(&sizes))
    else {
        return Ok(Err("its blocks are larger than it"));
    };
    let Some(blocks) = Blocks::new(&shape, &lengths) else {
        return Ok(Err("the size of its blocks does not divide it"));
    };
    let unreadable = |error: io::Error| {
        Error::new(format!("`{}` cannot be read: {error}", editor.name(weight.value)))
    };
    let extents = extents(weight, &blocks).map_err(unreadable)?;
    let Some(extents) = extents else {
        return Ok(Err("some of its elements are infinite or no numbers"));
    };
    let steps = extents.iter().map(|&(min, max)| config.step(weight.dtype, min, max));
    let Some(steps) = steps.collect::<Option<Vec<_>>>() else {
        return Ok(Err("its elements lie too far apart for its type"));
    };
    let counts: Vec<u64> = weight
        .shape
        .iter()
        .zip(&sizes)
        .map(|(&extent, &size)| extent.checked_div(size).unwrap_or(1))
        .collect();
    Ok(Ok(operation(editor.opset(), weight, config, Blocked { blocks, counts, sizes, steps })))
}

/// A weight's blocks, and what becomes of each.
struct Blocked {
    blocks: Blocks,
    /// How many there are along each axis.
    counts: Vec<u64>,
    sizes: Vec<u64>,
    steps: Vec<Step>,
}

fn operation(opset: Opset, weight: &Candidate, config: &Config, blocked: Blocked) -> Op {
    let Blocked { blocks, counts, sizes, steps } = blocked;
    let dtype = config.dtype.dtype();
    let scales: Vec<u8> = match weight.dtype {
        DType::Fp16 => {
            steps.iter().flat_map(|step| f16::from_f32(step.scale).to_le_bytes()).collect()
        }
        _ => steps.iter().flat_map(|step| step.scale.to_le_bytes()).collect(),
    };
    let zero_points: Vec<i16> = steps.iter().map(|step| step.zero_point as i16).collect();
    let zero_points = pack(dtype, &zero_points).expect("zero points are clamped to the type");
    let mut recipe = config.words();
    recipe.extend(weight.shape.iter().chain(&sizes));
    let quantized = Quantized {
        source: weight.elements.clone(),
        source_dtype: weight.dtype,
        count: weight.shape.iter().product::<u64>() as usize,
        dtype,
        range: config.dtype.range(config.mode),
        blocks,
        steps,
        recipe,
    };
    let data = Buffer::deferred(std::sync::Arc::new(quantized));
    let data = Constant::by_size(dtype, &weight.shape, data);
    if opset >= Opset::Ios18 {
        let scale = Constant::by_size(weight.dtype, &counts, scales);
        let op = Op::new(OpKind::ConstexprBlockwiseShiftScale)
            .with("data", Binding::Literal(data))
            .with("scale", Binding::Literal(scale));
        if config.mode == Mode::Symmetric && config.dtype.is_signed() {
            return op;
        }
        let offset = Constant::by_size(dtype, &counts, zero_points);
        return op.with("offset", Binding::Literal(offset));
    }
    // Up to iOS 17 the operands are attributes.
    let axis = counts.iter().position(|&count| count > 1);
    let vector: Vec<u64> = axis.map(|axis| counts[axis]).into_iter().collect();
    let mut op = Op::new(OpKind::ConstexprAffineDequantize);
    op.attributes.insert("quantized_data", data);
    op.attributes.insert("zero_point", Constant::by_size(dtype, &vector, zero_points));
    op.attributes.insert("scale", Constant::by_size(weight.dtype, &vector, scales));
    op.attributes.insert("axis", Constant::int32(axis.unwrap_or_default() as i32));
    op
}

/// The smallest and the largest number of each block; none where some are not finite.
fn extents(weight: &Candidate, blocks: &Blocks) -> io::Result<Option<Vec<(f32, f32)>>> {
    if blocks.count() == 1 {
        let found = Statistics::of(&weight.elements, weight.dtype)?;
        let finite = found.filter(|found| found.nans == 0 && found.infinities == 0);
        return Ok(finite.map(|found| vec![(found.min as f32, found.max as f32)]));
    }
    let mut extents = vec![(f32::INFINITY, f32::NEG_INFINITY); blocks.count()];
    let mut finite = true;
    let count = weight.shape.iter().product::<u64>() as usize;
    for_each_part(&weight.elements, weight.dtype, 0, count, &mut |at, numbers| {
        let mut rest = numbers;
        blocks.for_each_run(at, numbers.len(), |run, block| {
            let (now, later) = rest.split_at(run);
            let (mut min, mut max) = extents[block];
            for &number in now {
                finite &= number.is_finite();
                (min, max) = (min.min(number), max.max(number));
            }
            extents[block] = (min, max);
            rest = later;
        });
    })?;
    Ok(finite.then_some(extents))
}

/// The length of the blocks along each axis, 0 for all of it; or why there is none.
fn block_sizes(
    editor: &Editor<'_>,
    weight: &Candidate,
    config: &Config,
) -> Result<Result<Vec<u64>, &'static str>, Error> {
    let rank = weight.shape.len();
    if let Granularity::Blocks(sizes) = &config.granularity {
        if sizes.len() != rank {
            return Err(Error {
                message: format!(
                    "`block_size` has {} elements, but `{}` has {rank} axes",
                    sizes.len(),
                    editor.name(weight.value)
                ),
                hint: Some(
                    "give one number for weights of all kinds, or raise `weight_threshold` above those of others",
                ),
            });
        }
        return Ok(Ok(sizes.clone()));
    }
    let mut users = editor.uses(weight.value).ops.iter();
    let Some(axes) = users.next().map(|&user| channel_axes(editor, user, weight.value, rank))
    else {
        return Ok(Err("nothing uses it"));
    };
    if users.any(|&user| channel_axes(editor, user, weight.value, rank) != axes) {
        return Ok(Err("operations that use it have their channels along other axes"));
    }
    let (input, output) = axes;
    let mut sizes = vec![0; rank];
    match config.granularity {
        Granularity::Tensor | Granularity::Blocks(_) => {}
        Granularity::Channel => sizes[output] = 1,
        Granularity::Block(size) => {
            sizes[input] = size;
            sizes[output] = 1;
        }
    }
    Ok(Ok(sizes))
}

/// The axes of the input and the output channels of a weight of at least two dimensions.
fn channel_axes(editor: &Editor<'_>, user: OpId, weight: ValueId, rank: usize) -> (usize, usize) {
    let is_transposed = |name: &str| editor.flag(user, name).unwrap_or_default();
    let (last, before) = (rank - 1, rank - 2);
    match editor.op(user).and_then(Op::kind) {
        Some(OpKind::ConvTranspose) => (0, 1),
        Some(OpKind::Matmul) => {
            let is_right = editor.argument(user, "y") == Some(weight);
            let rows =
                if is_right { is_transposed("transpose_y") } else { !is_transposed("transpose_x") };
            if rows { (last, before) } else { (before, last) }
        }
        _ => (1, 0),
    }
}
