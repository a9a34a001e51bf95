//! Operations of a weight that was compressed before, and is compressed further.

use super::build::{EncodedWeight, build_from};
use super::codes::NonzeroPrefixSums;
use super::palette::{self, Tables};
use super::pruned::PruneMask;
use super::source::Source;
use super::trained::build_trained_from;
use super::{linear, prune};
use crate::blocks::Blocks;
use crate::error::{Error, Refusal};
use crate::form::linear::{Config, Granularity};
use crate::form::trained::{TrainedCompression, TrainedIntegers, TrainedParameter, TrainedTable};
use crate::form::{CompressionConfig, Palette, Prune, Values};
use crate::weight::Weight;
use coremill_mil::ir::Opset;

/// Minimum number of floats that further compression applies to, as in coremltools.
const MIN_STORED: usize = 10;

/// Builds the operations of a weight with earlier compression, and with the form that comes in addition. A form
/// that the weight has already changes nothing.
pub(crate) fn build_joint(
    weight: &Weight,
    earlier: &TrainedCompression,
    form: &CompressionConfig,
    opset: Opset,
) -> Result<EncodedWeight, Refusal> {
    let mut joint = earlier.clone();
    let mut source = Source::of(weight);
    if joint.is_sparse {
        source.pruned = Some(PruneMask::Below(0.0));
    } else if let Some(prune) = &form.prune {
        if !source.is_finite()? {
            return Err(Refusal::NotFinite);
        }
        source.pruned = Some(prune::select(prune, weight, &source)?);
        joint.is_sparse = true;
    }
    match (&form.values, &joint.table, &joint.integers) {
        (Values::Floats, ..)
        | (Values::Linear(_), _, Some(_))
        | (Values::Palette(_), Some(_), _) => {}
        (Values::Linear(config), Some(table), None) => {
            joint.integers = Some(integers_of(config, table, weight)?);
        }
        (Values::Palette(palette), None, Some(integers)) => {
            joint.table = Some(table_of(palette, weight, &source, integers, opset)?);
        }
        (Values::Linear(_) | Values::Palette(_), None, None) => {
            // A sparse weight: the new form applies to the elements that are not pruned.
            if NonzeroPrefixSums::of(&source)?.total() < MIN_STORED {
                return Err(Refusal::Kept("fewer than 10 of its elements are not pruned"));
            }
            let form = CompressionConfig {
                prune: Some(Prune::Threshold { limit: 0.0, least: 0.0 }),
                values: form.values.clone(),
            };
            return build_from(weight, &form, source, opset);
        }
    }
    build_trained_from(weight, &joint, source, opset)
}

/// Scale and zero point of the entries of tables: one for all.
fn integers_of(
    config: &Config,
    table: &TrainedTable,
    weight: &Weight,
) -> Result<TrainedIntegers, Refusal> {
    if config.granularity != Granularity::Tensor {
        let message = format!("the tables of `{}` can have only one scale", weight.name);
        let error = Error::option(message).with_hint("quantize per tensor");
        return Err(Refusal::Invalid(error));
    }
    let entries = &table.entries.elements;
    if entries.len() < MIN_STORED {
        return Err(Refusal::Kept("its tables have fewer than 10 entries"));
    }
    let least = entries.iter().copied().fold(f32::INFINITY, f32::min);
    let most = entries.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let step = linear::step(config, weight.dtype, least, most)
        .ok_or("the range of its elements is too large for its type")?;
    let one = |number: f32| TrainedParameter { shape: Vec::new(), elements: vec![number] };
    Ok(TrainedIntegers {
        bits: config.dtype.dtype().bits().unwrap_or(8),
        scale: one(step.scale),
        zero_point: Some(one(step.zero_point)),
    })
}

/// Tables of a weight of integers. Their entries are integers with the same scale.
fn table_of(
    palette: &Palette,
    weight: &Weight,
    source: &Source,
    integers: &TrainedIntegers,
    opset: Opset,
) -> Result<TrainedTable, Refusal> {
    if !integers.scale.is_for_all() {
        return Err(Refusal::Kept("integer tables must have a single scale"));
    }
    if palette.vector > 1 || palette.channel_scale {
        return Err(Refusal::Kept("tables of vectors or with channel scales cannot be integers"));
    }
    let sizes = palette::sizes(palette, weight)?;
    let blocks = Blocks::new(&weight.shape, &sizes);
    let blocks = blocks.ok_or("the block size does not divide its shape")?;
    let Tables { bits, entries, .. } = palette::tables(source, &blocks, palette, opset)?;
    let counts = weight.shape.iter().zip(&sizes);
    let mut shape: Vec<usize> =
        counts.map(|(&extent, &size)| extent.checked_div(size).unwrap_or(1)).collect();
    shape.extend([1 << bits, 1]);
    let entries = TrainedParameter { shape, elements: entries };
    Ok(TrainedTable { entries, scale: None, vector_axis: None })
}
