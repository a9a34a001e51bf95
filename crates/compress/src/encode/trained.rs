//! Operations of a weight whose scales, zero points and tables are known.

use std::sync::Arc;

use coremill_kernels::codes::Affine;
use coremill_mil::ir::{Binding, Constant, Op, Opset};
use coremill_mil::ops::OpKind;
use coremill_tensor::Buffer;

use super::build::{Builder, ConstexprStage, EncodedWeight, PaletteTable, unsigned};
use super::codes::{CodeAssignment, Lookup};
use super::pruned::PruneMask;
use super::source::Source;
use super::vectors::{PaletteIndices, VectorLayout, Vectors};
use crate::blocks::Blocks;
use crate::error::Refusal;
use crate::form::linear::{Integer, Mode};
use crate::form::trained::{TrainedCompression, TrainedIntegers, TrainedParameter, TrainedTable};
use crate::form::{BITS, CompressionConfig, Prune, Values};
use crate::weight::Weight;

/// Builds the operations that replace a weight.
pub(crate) fn build_trained(
    weight: &Weight,
    trained: &TrainedCompression,
    opset: Opset,
) -> Result<EncodedWeight, Refusal> {
    let mut source = Source::of(weight);
    source.pruned = trained.is_sparse.then_some(PruneMask::Below(0.0));
    build_trained_from(weight, trained, source, opset)
}

/// Like [`build_trained`], for a weight of which some elements may be pruned.
pub(super) fn build_trained_from(
    weight: &Weight,
    trained: &TrainedCompression,
    source: Source,
    opset: Opset,
) -> Result<EncodedWeight, Refusal> {
    let rank = weight.shape.len();
    let prune = trained.is_sparse.then_some(Prune::Threshold { limit: 0.0, least: 0.0 });
    let form = CompressionConfig { prune, values: Values::Floats };
    if !source.is_finite()? {
        return Err(Refusal::NotFinite);
    }
    let counts = match (&trained.table, &trained.integers) {
        // Vectors do not change the number of blocks.
        (Some(table), _) => table.sizes(rank)?.0,
        (None, Some(integers)) => of_rank(&integers.scale, rank)?.shape,
        (None, None) => vec![1; rank],
    };
    let (sizes, blocks) = divided(&weight.shape, &counts)?;
    let parameters = format!(" trained {:x?} {:?}", trained.digest(), source.pruned);
    let builder = Builder { weight, form: &form, opset, sizes, blocks, parameters };
    match (&trained.table, &trained.integers) {
        (Some(table), integers) => builder.trained_table(source, table, integers.as_ref()),
        (None, Some(integers)) => builder.trained_integers(source, integers),
        (None, None) => {
            let coder = builder.coder(source, CodeAssignment::Floats, weight.dtype);
            builder.sparse(coder, |_, _| None)
        }
    }
}

fn of_rank(parameter: &TrainedParameter, rank: usize) -> Result<TrainedParameter, Refusal> {
    parameter.of_rank(rank).ok_or(Refusal::Kept("a parameter has more axes than the weight"))
}

/// Block sizes for numbers of blocks, 0 for a whole axis.
fn divided(shape: &[usize], counts: &[usize]) -> Result<(Vec<usize>, Blocks), Refusal> {
    let size = |(&extent, &count): (&usize, &usize)| match count {
        1 => Some(0),
        count => (count > 0 && extent % count == 0).then(|| extent / count),
    };
    let sizes = shape.iter().zip(counts).map(size).collect::<Option<Vec<_>>>();
    let sizes = sizes.ok_or("the blocks of a parameter do not divide its shape")?;
    let blocks =
        Blocks::new(shape, &sizes).ok_or("the blocks of a parameter do not divide its shape")?;
    Ok((sizes, blocks))
}

/// Scale and zero point of each block, rounded as integers.
fn steps(integers: &TrainedIntegers, count: usize) -> Result<Vec<Affine>, Refusal> {
    let scales = &integers.scale.elements;
    let zeros = integers.zero_point.as_ref().map_or(&[0.0][..], |zero| &zero.elements);
    let is_known = |elements: &[f32]| elements.len() == 1 || elements.len() == count;
    if !is_known(scales) || !is_known(zeros) {
        return Err(Refusal::Kept("its zero points and its scales have different blocks"));
    }
    let at = |elements: &[f32], block: usize| elements[if elements.len() == 1 { 0 } else { block }];
    let step = |block| Affine { scale: at(scales, block), zero_point: at(zeros, block).round() };
    Ok((0..count).map(step).collect())
}

/// The type of integers with this number of bits: unsigned if no integer and no zero point is negative.
fn integer(bits: u32, least: f32, steps: &[Affine]) -> Integer {
    let is_signed = least < 0.0 || steps.iter().any(|step| step.zero_point < 0.0);
    match (bits, is_signed) {
        (4, true) => Integer::Int4,
        (4, false) => Integer::UInt4,
        (_, true) => Integer::Int8,
        (_, false) => Integer::UInt8,
    }
}

fn clamped(steps: &mut [Affine], (low, high): (f32, f32)) {
    steps.iter_mut().for_each(|step| step.zero_point = step.zero_point.clamp(low, high));
}

impl TrainedTable {
    fn axis(&self, rank: usize) -> Result<usize, Refusal> {
        let axis = self.vector_axis.unwrap_or(0);
        let counted = if axis < 0 { axis + rank as i64 } else { axis };
        let axis = usize::try_from(counted).ok().filter(|&axis| axis < rank);
        axis.ok_or(Refusal::Kept("the axis of its vectors is out of range"))
    }
}

impl Builder<'_> {
    fn trained_integers(
        &self,
        source: Source,
        integers: &TrainedIntegers,
    ) -> Result<EncodedWeight, Refusal> {
        let mut steps = steps(integers, self.blocks.count())?;
        let mut least = f32::INFINITY;
        source.for_each_part(0, source.count, &mut |part| {
            let mut rest = part.numbers;
            self.blocks.for_each_run(part.at, part.numbers.len(), |run, block| {
                let (now, later) = rest.split_at(run);
                let Affine { scale, zero_point } = steps[block];
                let code = |number: &f32| (number / scale).round_ties_even() + zero_point;
                least = now.iter().map(code).fold(least, f32::min);
                rest = later;
            });
        })?;
        let integer = integer(integers.bits, least, &steps);
        let range = integer.range(Mode::Linear);
        clamped(&mut steps, range);
        // Zero points of signed integers that are all zero have no effect.
        let has_zero = steps.iter().any(|step| step.zero_point != 0.0);
        self.integers(source, integer, range, &steps, has_zero)
    }

    fn trained_table(
        &self,
        mut source: Source,
        table: &TrainedTable,
        integers: Option<&TrainedIntegers>,
    ) -> Result<EncodedWeight, Refusal> {
        let rank = self.weight.shape.len();
        let (counts, found, vector) = table.sizes(rank)?;
        let is_new = self.opset >= Opset::Ios18;
        let bits = BITS.into_iter().find(|&bits| 1 << bits >= found && (bits != 3 || is_new));
        let bits = bits.ok_or("its lookup table has more than 256 entries")?;
        let length = 1usize << bits;
        let mut entries = Vec::with_capacity(counts.iter().product::<usize>() * length * vector);
        for table in table.entries.elements.chunks(found * vector) {
            entries.extend_from_slice(table);
            entries.resize(entries.len() + (length - found) * vector, 0.0);
        }
        let scale = match &table.scale {
            None => None,
            Some(scale) => Some(of_rank(scale, rank)?),
        };
        if let Some(scale) = &scale {
            let (_, blocks) = divided(&self.weight.shape, &scale.shape)?;
            source.scales = Some((blocks, scale.elements.clone()));
        }
        if vector > 1 && (integers.is_some() || source.pruned.is_some()) {
            return Err(Refusal::Kept("vectors cannot be pruned or stored as integers"));
        }
        if integers.is_some() && scale.is_some() {
            return Err(Refusal::Kept(
                "integer tables cannot be combined with scales of the weight",
            ));
        }
        let mut shape: Vec<u64> = counts.iter().map(|&count| count as u64).collect();
        shape.extend([length as u64, vector as u64]);
        if vector > 1 {
            return self.trained_vectors(source, table, entries, shape, scale.as_ref());
        }
        let palette = if let Some(integers) = integers {
            let (op, dequantized) = self.integer_entries(integers, &shape, &entries)?;
            entries = dequantized;
            PaletteTable::Computed(op)
        } else if let Some(scale) = &scale {
            PaletteTable::Computed(self.scaled_entries(scale, &shape, &entries)?)
        } else {
            PaletteTable::Stored(self.floats(&shape, &entries))
        };
        let coding = CodeAssignment::Tables {
            blocks: self.blocks.clone(),
            tables: Lookup::unordered(length, entries.clone()),
        };
        let coder = self.coder(source, coding, unsigned(bits));
        self.palettized(&coder, palette, &entries)
    }

    /// Tables of integers, and the dequantized entries.
    fn integer_entries(
        &self,
        integers: &TrainedIntegers,
        shape: &[u64],
        entries: &[f32],
    ) -> Result<(Op, Vec<f32>), Refusal> {
        let rank = self.weight.shape.len();
        let length = shape[rank] as usize;
        let scale = of_rank(&integers.scale, rank)?;
        let count = entries.len() / length;
        let steps_of = scale.elements.len();
        if !scale.is_for_all() && (steps_of != count || counts(&scale) != shape[..rank]) {
            return Err(Refusal::Kept("its scales and its tables have different blocks"));
        }
        let mut steps = steps(integers, steps_of)?;
        let of = |at: usize| if steps_of == 1 { 0 } else { at / length };
        let code = |steps: &[Affine], at: usize| {
            let Affine { scale, zero_point } = steps[of(at)];
            (entries[at] / scale).round_ties_even() + zero_point
        };
        let least = (0..entries.len()).map(|at| code(&steps, at)).fold(f32::INFINITY, f32::min);
        let integer = integer(integers.bits, least, &steps);
        let range = integer.range(Mode::Linear);
        clamped(&mut steps, range);
        let codes: Vec<i16> =
            (0..entries.len()).map(|at| code(&steps, at).clamp(range.0, range.1) as i16).collect();
        let decode = |(at, &code): (usize, &i16)| {
            let Affine { scale, zero_point } = steps[of(at)];
            scale * (f32::from(code) - zero_point)
        };
        let dequantized = codes.iter().enumerate().map(decode).collect();
        let mut blocks = counts(&scale);
        blocks.extend([1, 1]);
        let op = self.integers_of_table(integer.dtype(), shape, &codes, &blocks, &steps);
        let op = op.ok_or("its entries are too large for their type")?;
        Ok((op, dequantized))
    }

    /// Tables of floats, each multiplied by the scale of its part of the weight. A table that is for several
    /// scales is repeated.
    fn scaled_entries(
        &self,
        scale: &TrainedParameter,
        shape: &[u64],
        entries: &[f32],
    ) -> Result<Op, Refusal> {
        let rank = self.weight.shape.len();
        let length = shape[rank] as usize;
        let tables: Vec<usize> = shape[..rank].iter().map(|&count| count as usize).collect();
        let all: Vec<usize> =
            tables.iter().zip(&scale.shape).map(|(&one, &two)| one.max(two)).collect();
        let divides = |parts: &[usize]| all.iter().zip(parts).all(|(all, part)| all % part == 0);
        if !divides(&tables) || !divides(&scale.shape) {
            return Err(Refusal::Kept("its scales and its tables have different blocks"));
        }
        let (_, blocks) = divided(&all, &tables)?;
        let mut repeated = Vec::with_capacity(all.iter().product::<usize>() * length);
        blocks.for_each_run(0, all.iter().product(), |run, block| {
            for _ in 0..run {
                repeated.extend_from_slice(&entries[block * length..][..length]);
            }
        });
        let mut of_data: Vec<u64> = all.iter().map(|&count| count as u64).collect();
        of_data.extend([length as u64, 1]);
        let mut of_scale = counts(scale);
        of_scale.extend([1, 1]);
        Ok(Op::new(OpKind::ConstexprBlockwiseShiftScale)
            .with("data", Binding::Literal(self.floats(&of_data, &repeated)))
            .with("scale", Binding::Literal(self.floats(&of_scale, &scale.elements))))
    }

    fn trained_vectors(
        &self,
        source: Source,
        table: &TrainedTable,
        entries: Vec<f32>,
        shape: Vec<u64>,
        scale: Option<&TrainedParameter>,
    ) -> Result<EncodedWeight, Refusal> {
        let rank = self.weight.shape.len();
        let (axis, size) = (table.axis(rank)?, shape[rank + 1] as usize);
        let mut places = self.weight.shape.clone();
        if !places[axis].is_multiple_of(size) {
            return Err(Refusal::Kept(
                "its number of channels is not a multiple of the vector size",
            ));
        }
        places[axis] /= size;
        let tables: Vec<usize> = shape[..rank].iter().map(|&count| count as usize).collect();
        let (_, blocks) = divided(&places, &tables)?;
        let length = shape[rank] as usize;
        let dtype = unsigned(length.ilog2());
        let lut = self.floats(&shape, &entries);
        let lay = VectorLayout { size, inner: self.weight.shape[axis + 1..].iter().product() };
        let used = vec![length; blocks.count()];
        let recipe = self.recipe();
        let of = Vectors { source, lay, blocks, entries, used, length, dtype, recipe };
        let quality = of.quality()?;
        let indices = Buffer::deferred(Arc::new(PaletteIndices(Arc::new(of))));
        let places: Vec<u64> = places.iter().map(|&extent| extent as u64).collect();
        let op = Op::new(OpKind::ConstexprLutToDense)
            .with("indices", Binding::Literal(Constant::by_size(dtype, &places, indices)))
            .with("lut", Binding::Literal(lut))
            .with("vector_axis", Binding::Literal(Constant::int32(axis as i32)));
        let mut stages = vec![ConstexprStage::new(op, "palettized")];
        if let Some(scale) = scale {
            // Scales within a vector cannot be applied to its table.
            let scales = self.floats(&counts(scale), &scale.elements);
            let op = Op::new(OpKind::ConstexprBlockwiseShiftScale)
                .with("scale", Binding::Literal(scales));
            stages.push(ConstexprStage::new(op, "quantized").bound("data", 0));
        }
        self.built(stages, quality)
    }
}

fn counts(parameter: &TrainedParameter) -> Vec<u64> {
    parameter.shape.iter().map(|&count| count as u64).collect()
}
