//! Scales and zero points of linear quantization.

use coremill_kernels::codes::{Affine, extend};
use coremill_simd::Isa;
use coremill_tensor::DType;
use half::f16;

use super::source::Source;
use crate::blocks::Blocks;
use crate::error::{Error, Refusal};
use crate::form::linear::{Config, Granularity, Mode};
use crate::weight::Weight;

/// Block size of a weight along each axis; 0 for the whole axis.
pub(super) fn sizes(granularity: &Granularity, weight: &Weight) -> Result<Vec<usize>, Refusal> {
    let rank = weight.shape.len();
    let mut sizes = vec![0; rank];
    match granularity {
        Granularity::Tensor => {}
        Granularity::Blocks(given) => {
            if given.len() != rank {
                let message = format!(
                    "`block_size` has {} elements, but `{}` has {rank} axes",
                    given.len(),
                    weight.name
                );
                let error = Error::option(message).with_hint("pass one number for all kinds of weights, or raise `weight_threshold` above the other weights' sizes");
                return Err(Refusal::Invalid(error));
            }
            sizes.clone_from(given);
        }
        Granularity::Channel | Granularity::Block(_) => {
            let Some((input, output)) = weight.axes else {
                return Err(Refusal::Kept(
                    "operations that use it have their channels along different axes",
                ));
            };
            if let Granularity::Block(size) = granularity {
                sizes[input] = *size;
            }
            sizes[output] = 1;
        }
    }
    let sizes = sizes.into_iter().map(usize::try_from).collect::<Result<_, _>>();
    sizes.map_err(|_| Refusal::Kept("its blocks are larger than the weight"))
}

/// Scale and zero point of a block with this range. `None` if the range is not finite.
pub(crate) fn step(config: &Config, source: DType, min: f32, max: f32) -> Option<Affine> {
    // For fp16 weights each operation is rounded to fp16.
    let rounded = |number: f32| match source {
        DType::Fp16 => f16::from_f32(number).to_f32(),
        _ => number,
    };
    let (low, high) = config.dtype.range(config.mode);
    let (min, max) = match config.mode {
        Mode::Symmetric => {
            let largest = min.abs().max(max.abs());
            (-largest, largest)
        }
        Mode::Linear => (min.min(0.0), max.max(0.0)),
    };
    let extent = rounded(max - min);
    let scale = rounded(extent / (high - low));
    let zero_point = match config.mode {
        Mode::Symmetric if config.dtype.is_signed() => 0.0,
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

/// Scale and zero point of each block.
pub(super) fn steps(
    source: &Source,
    blocks: &Blocks,
    config: &Config,
) -> Result<Vec<Affine>, Refusal> {
    let isa = Isa::detect();
    let mut extents = vec![(f32::INFINITY, f32::NEG_INFINITY); blocks.count()];
    let (mut runs, mut finite) = (Vec::new(), true);
    source.for_each_part(0, source.count, &mut |part| {
        runs.clear();
        blocks.for_each_run(part.at, part.numbers.len(), |run, block| runs.push((run, block)));
        finite &= extend(isa, part.numbers, &runs, &mut extents);
    })?;
    if !finite {
        return Err(Refusal::NotFinite);
    }
    let steps = extents.iter().map(|&(min, max)| step(config, source.dtype, min, max));
    steps
        .collect::<Option<_>>()
        .ok_or(Refusal::Kept("the range of its elements is too large for its type"))
}
