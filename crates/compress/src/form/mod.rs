//! Compressed forms of weights.

use std::fmt;

pub(crate) mod linear;
mod palette;
mod prune;
pub(crate) mod trained;

pub use palette::{Algorithm, BITS, Palette};
pub use prune::{Channels, Prune};

use self::linear::{Granularity, Mode};
use super::error::Error;
use coremill_mil::ir::Opset;

/// Compressed form of a weight: pruning and storage of the elements.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CompressionConfig {
    /// Elements to prune, which are stored as one bit. `None` keeps all.
    pub prune: Option<Prune>,
    /// Storage of the elements.
    pub values: Values,
}

/// Storage of a weight's elements.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Values {
    /// Floats.
    #[default]
    Floats,
    /// Integers with a scale and a zero point per block.
    Linear(linear::Config),
    /// Indices into lookup tables.
    Palette(Palette),
}

impl CompressionConfig {
    /// Returns true if the weight stays uncompressed.
    pub fn is_plain(&self) -> bool {
        self.prune.is_none() && self.values == Values::Floats
    }

    /// Whether blocks of elements within a channel have scales of their own.
    pub fn has_block_scales(&self) -> bool {
        let Values::Linear(linear) = &self.values else { return false };
        matches!(linear.granularity, Granularity::Block(_) | Granularity::Blocks(_))
    }

    /// The oldest release that supports the form.
    pub fn needs(&self) -> Opset {
        let of_values = match &self.values {
            Values::Floats if self.prune.is_none() => return Opset::Ios15,
            Values::Floats => return Opset::Ios16,
            Values::Linear(config) => config.needs(),
            Values::Palette(palette) => palette.needs(),
        };
        if self.prune.is_some() { Opset::Ios18 } else { of_values }
    }

    /// Checks the options independently of a weight.
    pub fn check(&self) -> Result<(), Error> {
        let wrong = |message: String| Err(Error::option(message));
        match self.prune {
            Some(Prune::Magnitude(share) | Prune::Blocks { share, .. })
                if !(0.0..=1.0).contains(&share) =>
            {
                return wrong(format!("the share to prune must be from 0 to 1, got {share}"));
            }
            Some(Prune::Threshold { limit, .. }) if !(limit >= 0.0 && limit.is_finite()) => {
                return wrong(format!("the threshold must be finite and at least 0, got {limit}"));
            }
            Some(Prune::Threshold { least, .. }) if !(0.0..=1.0).contains(&least) => {
                return wrong(format!(
                    "the minimum share to prune must be from 0 to 1, got {least}"
                ));
            }
            Some(Prune::Blocks { size: 0, .. }) => {
                return wrong("groups to prune must have at least 1 channel, got 0".to_owned());
            }
            Some(Prune::Ratio { zeros, of, .. }) if zeros == 0 || zeros >= of => {
                return wrong(format!(
                    "cannot prune {zeros} of {of}; the first number must be at least 1 and less than the second"
                ));
            }
            _ => {}
        }
        match &self.values {
            Values::Palette(palette) => palette.check(self.prune.is_some()),
            Values::Linear(linear::Config { granularity: Granularity::Block(0), .. }) => {
                wrong("`block_size` must be at least 1, got 0".to_owned())
            }
            Values::Linear(_) | Values::Floats => Ok(()),
        }
    }
}

/// Formats the form for tables, such as `4-bit palette by 16 channels, 50 % pruned`.
impl fmt::Display for CompressionConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.values {
            Values::Floats => {}
            Values::Linear(config) => {
                let mode = if config.mode == Mode::Linear { " linear" } else { "" };
                write!(f, "{}{mode} ", config.dtype)?;
                match &config.granularity {
                    Granularity::Tensor => f.write_str("per tensor")?,
                    Granularity::Channel => f.write_str("per channel")?,
                    Granularity::Block(size) => write!(f, "by blocks of {size}")?,
                    Granularity::Blocks(sizes) => write!(f, "by blocks of {sizes:?}")?,
                }
            }
            Values::Palette(palette) => palette.fmt(f)?,
        }
        let separator = if self.values == Values::Floats { "" } else { ", " };
        match &self.prune {
            None if self.values == Values::Floats => f.write_str("unchanged"),
            None => Ok(()),
            Some(Prune::Magnitude(share)) => write!(f, "{separator}{} % pruned", share * 100.0),
            Some(Prune::Blocks { share, size, along }) => {
                write!(f, "{separator}{} % pruned by {size} {along}", share * 100.0)
            }
            Some(Prune::Ratio { zeros, of, along }) => {
                write!(f, "{separator}{zeros} of {of} {along} pruned")
            }
            Some(Prune::Threshold { limit, .. }) => {
                write!(f, "{separator}pruned up to {limit}")
            }
        }
    }
}
