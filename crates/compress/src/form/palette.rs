//! Palettization: lookup tables, and an index into a table for each element.

use std::fmt;

use super::linear::Integer;
use crate::error::Error;
use coremill_mil::ir::Opset;

/// Options of palettization.
#[derive(Clone, Debug, PartialEq)]
pub struct Palette {
    /// Bits per index. `None` for as many as [`Algorithm::Unique`] needs.
    pub bits: Option<u32>,
    /// Algorithm that computes the tables.
    pub algorithm: Algorithm,
    /// Number of output channels per table. `None` for a single table.
    pub group: Option<usize>,
    /// Axis of groups and vectors. `None` for the axis of the output channels.
    pub axis: Option<usize>,
    /// Number of elements per entry, along the output channels.
    pub vector: usize,
    /// Whether each output channel is first divided by its largest magnitude.
    pub channel_scale: bool,
    /// Integer type of the entries, `None` for floats.
    pub entries: Option<Integer>,
}

/// Algorithm that computes lookup tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// k-means: the entries with the least squared error.
    KMeans,
    /// Equally spaced entries from the smallest to the largest element.
    Uniform,
    /// All distinct values. Weights with more values than entries stay uncompressed.
    Unique,
}

/// Supported numbers of bits per index.
pub const BITS: [u32; 6] = [1, 2, 3, 4, 6, 8];

impl Default for Palette {
    fn default() -> Palette {
        Palette {
            bits: Some(4),
            algorithm: Algorithm::KMeans,
            group: None,
            axis: None,
            vector: 1,
            channel_scale: false,
            entries: None,
        }
    }
}

impl Palette {
    /// The oldest release that supports the result.
    pub(super) fn needs(&self) -> Opset {
        let is_plain = self.group.is_none() && self.vector == 1 && self.bits != Some(3);
        let has_floats = self.entries.is_none() && !self.channel_scale;
        if is_plain && has_floats { Opset::Ios16 } else { Opset::Ios18 }
    }

    pub(super) fn check(&self, is_sparse: bool) -> Result<(), Error> {
        let bits = self.bits.unwrap_or(8);
        let wrong = |message: String, hint: Option<&str>| {
            let refused = Error::option(message);
            Err(match hint {
                Some(hint) => refused.with_hint(hint),
                None => refused,
            })
        };
        if !BITS.contains(&bits) {
            return wrong(format!("palettes must have 1, 2, 3, 4, 6 or 8 bits, got {bits}"), None);
        }
        if self.bits.is_none() && self.algorithm != Algorithm::Unique {
            return wrong("this algorithm requires a number of bits".to_owned(), None);
        }
        if self.group == Some(0) || self.vector == 0 {
            return wrong(
                "groups and vectors must have at least 1 channel, got 0".to_owned(),
                None,
            );
        }
        if self.vector > 1 {
            if self.algorithm == Algorithm::Uniform {
                let hint = Some("use k-means for vectors");
                return wrong("uniform palettes hold scalars, not vectors".to_owned(), hint);
            }
            if is_sparse || self.entries.is_some() || self.channel_scale {
                let hint = Some("remove one of these options");
                let message = "vectors cannot be pruned, scaled per channel, or stored as integers";
                return wrong(message.to_owned(), hint);
            }
            if let Some(group) = self.group.filter(|group| group % self.vector != 0) {
                let size = self.vector;
                let message = format!(
                    "the group size must be a multiple of the vector size {size}, got {group}"
                );
                return wrong(message, None);
            }
        }
        if let Some(entries @ (Integer::Int4 | Integer::UInt4)) = self.entries {
            let message = format!("table entries must be int8 or uint8, got {entries}");
            return wrong(message, None);
        }
        if self.channel_scale && is_sparse {
            let message = "pruned weights cannot have channel scales";
            return wrong(message.to_owned(), Some("remove one of these options"));
        }
        Ok(())
    }
}

impl fmt::Display for Palette {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(bits) = self.bits {
            write!(f, "{bits}-bit ")?
        }
        match self.algorithm {
            Algorithm::KMeans => {}
            Algorithm::Uniform => f.write_str("uniform ")?,
            Algorithm::Unique => f.write_str("unique ")?,
        }
        f.write_str("palette")?;
        if let Some(entries) = self.entries {
            write!(f, " of {entries}")?;
        }
        if self.vector > 1 {
            write!(f, " of vectors of {}", self.vector)?;
        }
        match self.group {
            Some(group) => write!(f, " by {group} channels")?,
            None => f.write_str(" per tensor")?,
        }
        if let Some(axis) = self.axis {
            write!(f, " along axis {axis}")?;
        }
        if self.channel_scale {
            f.write_str(", scaled per channel")?;
        }
        Ok(())
    }
}
