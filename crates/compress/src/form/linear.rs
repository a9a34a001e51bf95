//! Linear quantization: integers with a scale and a zero point per block.

use std::fmt;

use coremill_io::unknown_name;
use coremill_tensor::DType;
use serde_json::Value;

use crate::error::Error;
use coremill_mil::ir::Opset;

/// Default threshold: weights must have more elements.
pub const DEFAULT_THRESHOLD: u64 = 2048;

/// Default block size.
pub const DEFAULT_BLOCK_SIZE: u64 = 32;

/// Options of linear quantization.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Position of the zero point.
    pub mode: Mode,
    /// Integer type.
    pub dtype: Integer,
    /// Elements that share a scale and a zero point.
    pub granularity: Granularity,
    /// Weights with at most this number of elements stay uncompressed.
    pub weight_threshold: u64,
}

/// Position of the zero point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Zero is in the middle of the integers. The largest magnitude determines the scale.
    Symmetric,
    /// The minimum and maximum of a block determine scale and zero point.
    Linear,
}

/// Integer type of quantized weights.
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

/// Elements that share a scale and a zero point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Granularity {
    /// The whole weight.
    Tensor,
    /// Each output channel.
    Channel,
    /// Blocks of input channels within each output channel.
    Block(u64),
    /// Blocks with this size along each axis; 0 for the whole axis. All weights must have this
    /// number of axes.
    Blocks(Vec<u64>),
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

    pub(crate) fn is_signed(self) -> bool {
        matches!(self, Integer::Int8 | Integer::Int4)
    }

    fn is_narrow(self) -> bool {
        matches!(self, Integer::Int4 | Integer::UInt4)
    }

    /// The smallest and the largest integer. Symmetric mode omits one to have equally many on both
    /// sides of zero.
    pub(crate) fn range(self, mode: Mode) -> (f32, f32) {
        let left_out = f32::from(u8::from(mode == Mode::Symmetric));
        match self {
            Integer::Int8 => (-128.0 + left_out, 127.0),
            Integer::Int4 => (-8.0 + left_out, 7.0),
            Integer::UInt8 => (0.0, 255.0 - left_out),
            Integer::UInt4 => (0.0, 15.0 - left_out),
        }
    }
}

impl fmt::Display for Integer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.dtype().fmt(f)
    }
}

impl Config {
    /// Parses coremltools' `OpLinearQuantizerConfig` as JSON.
    pub fn from_json(text: &str) -> Result<Config, Error> {
        let value: Value = serde_json::from_str(text)
            .map_err(|error| Error::option(format!("the value is not valid JSON: {error}")))?;
        let Value::Object(entries) = value else {
            return Err(Error::option("the value is not a JSON object"));
        };
        let mut config = Config::default();
        let (mut granularity, mut block) =
            ("per_channel".to_owned(), Granularity::Block(DEFAULT_BLOCK_SIZE));
        for (key, value) in &entries {
            let text = || value.as_str().ok_or_else(|| unexpected(key, value, "a string"));
            match key.as_str() {
                "mode" => {
                    config.mode = match text()?.to_ascii_lowercase().as_str() {
                        "linear_symmetric" => Mode::Symmetric,
                        "linear" => Mode::Linear,
                        _ => return Err(unexpected(key, value, "`linear_symmetric` or `linear`")),
                    }
                }
                "dtype" => {
                    config.dtype = match text()? {
                        "int8" => Integer::Int8,
                        "uint8" => Integer::UInt8,
                        "int4" => Integer::Int4,
                        "uint4" => Integer::UInt4,
                        _ => {
                            let accepted = "`int8`, `uint8`, `int4` or `uint4`";
                            return Err(unexpected(key, value, accepted));
                        }
                    }
                }
                "granularity" => granularity = text()?.to_owned(),
                "block_size" => block = block_size(key, value)?,
                "weight_threshold" => {
                    config.weight_threshold = value
                        .as_u64()
                        .ok_or_else(|| unexpected(key, value, "a non-negative integer"))?;
                }
                _ => {
                    let known = ["mode", "dtype", "granularity", "block_size", "weight_threshold"];
                    return Err(Error::option(unknown_name("key", key, known)));
                }
            }
        }
        config.granularity = match granularity.as_str() {
            "per_tensor" => Granularity::Tensor,
            "per_channel" => Granularity::Channel,
            "per_block" => block,
            _ => {
                return Err(Error::option(format!(
                    "`granularity` must be `per_tensor`, `per_channel` or `per_block`, got `{granularity}`"
                )));
            }
        };
        Ok(config)
    }

    /// The oldest release that supports the result.
    pub fn needs(&self) -> Opset {
        let is_blockwise =
            matches!(self.granularity, Granularity::Block(_) | Granularity::Blocks(_));
        if is_blockwise || self.dtype.is_narrow() { Opset::Ios18 } else { Opset::Ios16 }
    }
}

fn block_size(key: &str, value: &Value) -> Result<Granularity, Error> {
    let accepted = "a non-negative integer, or a list with one for each axis";
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
    Error::option(format!("`{key}` must be {accepted}, got `{found}`"))
}
