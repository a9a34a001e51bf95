//! The operations that represent a compressed weight.

use std::io;
use std::sync::Arc;

use coremill_kernels::codes::{Affine, extend, squared_error};
use coremill_simd::Isa;
use coremill_tensor::packed;
use coremill_tensor::{Buffer, DType};

use super::codes::{
    CodeAssignment, Coder, Dense, IndexLookup, Lookup, Mask, NonzeroPrefixSums, QuantParams,
    Sparse, ZeroPoints,
};
use super::palette::Tables;
use super::source::Source;
use super::vectors::{PaletteIndices, VectorLayout, Vectors};
use super::{linear, palette, prune, vectors};
use crate::blocks::Blocks;
use crate::error::{Error, Refusal};
use crate::form::linear::{Config, Integer, Mode};
use crate::form::{CompressionConfig, Palette, Values};
use crate::weight::Weight;
use crate::weighting::ElementImportance;
use coremill_mil::ir::{Binding, Constant, Op, Opset, ValueId};
use coremill_mil::ops::OpKind;
use coremill_passes::Editor;

/// Number of elements of a large weight that are sampled to measure its quality.
const COMPARED: usize = 1 << 17;

/// Number of contiguous elements per sample.
const PART: usize = 1 << 9;

/// An encoded weight.
pub(crate) struct EncodedWeight {
    stages: Vec<ConstexprStage>,
    /// Size in bytes.
    pub(crate) bytes: u64,
    /// Signal power and noise power. Large weights are sampled.
    quality: (f64, f64),
}

impl EncodedWeight {
    /// Lost share of the weight's power; 0 if lossless.
    pub(crate) fn loss(&self) -> f64 {
        let (signal, noise) = self.quality;
        if noise == 0.0 { 0.0 } else { noise / signal }
    }

    /// Binds the constants that older operations have as attributes to parameters, so that later passes find them.
    pub(crate) fn with_parameters(mut self) -> EncodedWeight {
        for ConstexprStage { op, .. } in &mut self.stages {
            for (name, constant) in std::mem::take(&mut op.attributes).iter() {
                op.set_input(name.to_owned().into(), vec![Binding::Literal(constant.clone())]);
            }
        }
        self
    }
}

/// The tables of a palettized weight.
pub(super) enum PaletteTable {
    Stored(Constant),
    /// The operation that computes them.
    Computed(Op),
}

/// An operation of an encoded weight.
pub(super) struct ConstexprStage {
    pub(super) op: Op,
    label: &'static str,
    /// Parameters bound to outputs of the previous stage, by index.
    from_before: Vec<(&'static str, usize)>,
}

impl ConstexprStage {
    pub(super) fn new(op: Op, label: &'static str) -> ConstexprStage {
        ConstexprStage { op, label, from_before: Vec::new() }
    }

    pub(super) fn bound(mut self, parameter: &'static str, result: usize) -> ConstexprStage {
        self.from_before.push((parameter, result));
        self
    }
}

/// Builds the operations that replace a weight.
pub(crate) fn build(
    weight: &Weight,
    form: &CompressionConfig,
    opset: Opset,
) -> Result<EncodedWeight, Refusal> {
    let mut source = Source::of(weight);
    if let Some(prune) = &form.prune {
        if !source.is_finite()? {
            return Err(Refusal::NotFinite);
        }
        source.pruned = Some(prune::select(prune, weight, &source)?);
    }
    build_from(weight, form, source, opset)
}

/// Like [`build`], for a weight whose elements to prune are known.
pub(super) fn build_from(
    weight: &Weight,
    form: &CompressionConfig,
    source: Source,
    opset: Opset,
) -> Result<EncodedWeight, Refusal> {
    let sizes = match &form.values {
        Values::Floats => vec![0; weight.shape.len()],
        Values::Linear(config) => linear::sizes(&config.granularity, weight)?,
        Values::Palette(palette) => palette::sizes(palette, weight)?,
    };
    let blocks = Blocks::new(&weight.shape, &sizes);
    let blocks = blocks.ok_or("the block size does not divide its shape")?;
    Builder { weight, form, opset, sizes, blocks, parameters: String::new() }.build(source)
}

pub(super) struct Builder<'a> {
    pub(super) weight: &'a Weight,
    pub(super) form: &'a CompressionConfig,
    pub(super) opset: Opset,
    /// Block size along each axis; 0 for the whole axis.
    pub(super) sizes: Vec<usize>,
    pub(super) blocks: Blocks,
    /// Identifies parameters that do not follow from the form and the weight.
    pub(super) parameters: String,
}

impl Builder<'_> {
    fn build(self, source: Source) -> Result<EncodedWeight, Refusal> {
        match &self.form.values {
            Values::Floats => {
                let coder = self.coder(source, CodeAssignment::Floats, self.weight.dtype);
                self.sparse(coder, |_, _| None)
            }
            Values::Linear(config) => self.linear(source, config),
            Values::Palette(palette) if palette.vector > 1 => self.vectors(source, palette),
            Values::Palette(palette) => self.palette(source, palette),
        }
    }

    pub(super) fn coder(&self, source: Source, coding: CodeAssignment, dtype: DType) -> Arc<Coder> {
        Arc::new(Coder { source, coding, dtype, recipe: self.recipe() })
    }

    /// Identifies the encoding, so that equal weights are written once.
    pub(super) fn recipe(&self) -> String {
        let Weight { shape, axes, dtype, weighting, .. } = self.weight;
        let weighting = weighting.as_ref().map(ElementImportance::channels);
        let Builder { form, parameters, .. } = self;
        format!("{form:?} {shape:?} {axes:?} {dtype} {weighting:?}{parameters}")
    }

    /// Number of blocks along each axis.
    pub(super) fn counts(&self) -> Vec<u64> {
        let extents = self.weight.shape.iter().zip(&self.sizes);
        extents.map(|(&extent, &size)| extent.checked_div(size).unwrap_or(1) as u64).collect()
    }

    pub(super) fn shape(&self) -> Vec<u64> {
        self.weight.shape.iter().map(|&extent| extent as u64).collect()
    }

    /// A constant in the weight's type.
    pub(super) fn floats(&self, shape: &[u64], numbers: &[f32]) -> Constant {
        let source = Source::of(self.weight);
        // Small blocks need many scales, so allocate exactly.
        let width = if source.is_half() { 2 } else { 4 };
        let mut bytes = Vec::with_capacity(numbers.len() * width);
        numbers.iter().for_each(|&number| source.push(number, &mut bytes));
        Constant::by_size(self.weight.dtype, shape, bytes)
    }

    fn linear(&self, source: Source, config: &Config) -> Result<EncodedWeight, Refusal> {
        let steps = linear::steps(&source, &self.blocks, config)?;
        let has_zero = config.mode != Mode::Symmetric
            || !matches!(config.dtype, Integer::Int8 | Integer::Int4);
        self.integers(source, config.dtype, config.dtype.range(config.mode), &steps, has_zero)
    }

    /// A weight as integers in a range, with a scale and a zero point per block.
    pub(super) fn integers(
        &self,
        source: Source,
        integer: Integer,
        range: (f32, f32),
        steps: &[Affine],
        has_zero: bool,
    ) -> Result<EncodedWeight, Refusal> {
        let counts = self.counts();
        let scales: Vec<f32> = steps.iter().map(|step| step.scale).collect();
        let zeros: Vec<i16> = steps.iter().map(|step| step.zero_point as i16).collect();
        let dtype = integer.dtype();
        let integers = |shape: &[u64]| {
            let packed = packed::pack(dtype, &zeros).expect("zero points are clamped to the type");
            Constant::by_size(dtype, shape, packed)
        };
        let scale = self.floats(&counts, &scales);
        let held = scale.elements().cloned().expect("a constant of floats has elements");
        let zero_points = match zeros.first() {
            Some(&first) if zeros.iter().all(|&zero| zero == first) => ZeroPoints::One(first),
            _ => ZeroPoints::Each(zeros.clone()),
        };
        let steps = QuantParams { scales: held, is_half: source.is_half(), zero_points };
        let coding = CodeAssignment::Affine { blocks: self.blocks.clone(), steps, range };
        let coder = self.coder(source, coding, dtype);
        let scaled = |mut op: Op| {
            op = op.with("scale", Binding::Literal(scale.clone()));
            match has_zero {
                true => op.with("offset", Binding::Literal(integers(&counts))),
                false => op,
            }
        };
        if self.form.prune.is_some() {
            return self.sparse(coder, |mask, nonzero| {
                let op = Op::new(OpKind::ConstexprSparseBlockwiseShiftScale)
                    .with("data_mask", Binding::Literal(mask))
                    .with("nonzero_data", Binding::Literal(nonzero));
                Some(ConstexprStage::new(scaled(op), "quantized"))
            });
        }
        let data = Buffer::deferred(Arc::new(Dense(Arc::clone(&coder))));
        let data = Constant::by_size(dtype, &self.shape(), data);
        let op = if self.opset >= Opset::Ios18 {
            let op =
                Op::new(OpKind::ConstexprBlockwiseShiftScale).with("data", Binding::Literal(data));
            scaled(op)
        } else {
            // Up to iOS 17 the operands are attributes.
            let axis = counts.iter().position(|&count| count > 1);
            let vector: Vec<u64> = axis.map(|axis| counts[axis]).into_iter().collect();
            let mut op = Op::new(OpKind::ConstexprAffineDequantize);
            op.attributes.insert("quantized_data", data);
            op.attributes.insert("zero_point", integers(&vector));
            op.attributes.insert("scale", self.floats(&vector, &scales));
            op.attributes.insert("axis", Constant::int32(axis.unwrap_or_default() as i32));
            op
        };
        self.built(vec![ConstexprStage::new(op, "quantized")], quality(&coder)?)
    }

    fn palette(&self, mut source: Source, palette: &Palette) -> Result<EncodedWeight, Refusal> {
        if palette.channel_scale {
            source.scales = Some(self.channel_scales(&source, palette)?);
        }
        let Tables { bits, mut entries, used, grids } =
            palette::tables(&source, &self.blocks, palette, self.opset)?;
        let length = 1usize << bits;
        let mut shape = self.counts();
        shape.extend([length as u64, 1]);
        let mut table = match palette.entries {
            None => PaletteTable::Stored(self.floats(&shape, &entries)),
            Some(integer) => {
                let (op, dequantized) = self
                    .integer_table(integer, &shape, &entries, &source)
                    .ok_or("the range of its elements is too large for its type")?;
                entries = dequantized;
                PaletteTable::Computed(op)
            }
        };
        let lookup = match grids {
            Some(grids) if palette.entries.is_none() => Lookup {
                length,
                entries: entries.clone(),
                find: IndexLookup::Grid(grids),
                order: None,
            },
            _ => Lookup::nearest(length, entries.clone(), &used),
        };
        let dtype = unsigned(bits);
        let scales = source.scales.as_ref().map(|(_, scales)| scales.clone());
        let coding = CodeAssignment::Tables { blocks: self.blocks.clone(), tables: lookup };
        let coder = self.coder(source, coding, dtype);
        if let Some(scales) = scales
            && self.form.prune.is_none()
            && self.opset >= Opset::Ios18
        {
            // A single operation: chains of tables and scales are reported to leave the Neural Engine.
            let output = palette::output(palette, self.weight)?;
            table = PaletteTable::Stored(self.scaled_table(output, &entries, length, &scales));
        }
        self.palettized(&coder, table, &entries)
    }

    /// A weight of indices into tables. Before iOS 18, there is a single table, of these entries.
    pub(super) fn palettized(
        &self,
        coder: &Arc<Coder>,
        table: PaletteTable,
        entries: &[f32],
    ) -> Result<EncodedWeight, Refusal> {
        let mut stages = Vec::new();
        let looked_up = |op: Op, stages: &mut Vec<ConstexprStage>| {
            let stage = match table {
                PaletteTable::Stored(table) => {
                    ConstexprStage::new(op.with("lut", Binding::Literal(table)), "palettized")
                }
                PaletteTable::Computed(table) => {
                    stages.push(ConstexprStage::new(table, "lut"));
                    ConstexprStage::new(op, "palettized").bound("lut", 0)
                }
            };
            stages.push(stage);
        };
        if self.form.prune.is_some() {
            let ranks = Arc::new(NonzeroPrefixSums::of(&coder.source)?);
            let (mask, nonzero) = self.sparse_parts(coder, &ranks);
            let op = Op::new(OpKind::ConstexprLutToSparse)
                .with("indices_mask", Binding::Literal(mask))
                .with("indices_nonzero_data", Binding::Literal(nonzero));
            looked_up(op, &mut stages);
            let op = Op::new(OpKind::ConstexprSparseToDense);
            stages.push(
                ConstexprStage::new(op, "sparsified").bound("mask", 0).bound("nonzero_data", 1),
            );
            return self.built(stages, quality(coder)?);
        }
        let indices = Buffer::deferred(Arc::new(Dense(Arc::clone(coder))));
        if self.opset < Opset::Ios18 {
            let mut op = Op::new(OpKind::ConstexprLutToDense);
            let bytes = indices.len() as u64;
            op.attributes.insert("indices", Constant::by_size(DType::UInt8, &[bytes], indices));
            op.attributes.insert("lut", self.floats(&[entries.len() as u64], entries));
            op.attributes.insert("shape", self.stated_shape());
            return self.built(vec![ConstexprStage::new(op, "palettized")], quality(coder)?);
        }
        let indices = Constant::by_size(coder.dtype, &self.shape(), indices);
        let op = Op::new(OpKind::ConstexprLutToDense).with("indices", Binding::Literal(indices));
        looked_up(op, &mut stages);
        self.built(stages, quality(coder)?)
    }

    /// The largest magnitude of each output channel; 1 if all elements are 0.
    fn channel_scales(
        &self,
        source: &Source,
        palette: &Palette,
    ) -> Result<(Blocks, Vec<f32>), Refusal> {
        let mut sizes = vec![0; self.weight.shape.len()];
        sizes[palette::output(palette, self.weight)?] = 1;
        let blocks = Blocks::new(&self.weight.shape, &sizes).ok_or("it has no channels")?;
        let mut extents = vec![(0.0, 0.0); blocks.count()];
        let mut finite = true;
        source.for_each_part(0, source.count, &mut |part| {
            let mut runs = Vec::new();
            blocks.for_each_run(part.at, part.raw.len(), |run, block| runs.push((run, block)));
            let isa = Isa::detect();
            finite &= extend(isa, part.raw, &runs, &mut extents);
        })?;
        if !finite {
            return Err(Refusal::NotFinite);
        }
        let scale = |&(least, most): &(f32, f32)| match most.max(-least) {
            0.0 => 1.0,
            largest => largest,
        };
        Ok((blocks, extents.iter().map(scale).collect()))
    }

    /// The table of each output channel, multiplied by the scale of the channel. Shared tables are repeated.
    fn scaled_table(
        &self,
        output: usize,
        entries: &[f32],
        length: usize,
        scales: &[f32],
    ) -> Constant {
        let rank = self.weight.shape.len();
        let group = match self.sizes[output] {
            0 => scales.len(),
            size => size,
        };
        let scaled: Vec<f32> = scales
            .iter()
            .enumerate()
            .flat_map(|(channel, scale)| {
                let table = &entries[channel / group * length..][..length];
                table.iter().map(move |entry| entry * scale)
            })
            .collect();
        let mut shape = vec![1; rank + 2];
        shape[output] = scales.len() as u64;
        shape[rank] = length as u64;
        self.floats(&shape, &scaled)
    }

    /// A table of integers with a single scale, and the dequantized entries.
    fn integer_table(
        &self,
        integer: Integer,
        shape: &[u64],
        entries: &[f32],
        source: &Source,
    ) -> Option<(Op, Vec<f32>)> {
        let config = Config { dtype: integer, ..Config::default() };
        let least = entries.iter().copied().fold(f32::INFINITY, f32::min);
        let most = entries.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let step = linear::step(&config, self.weight.dtype, least, most)?;
        let (low, high) = integer.range(config.mode);
        let code = |&entry: &f32| {
            let steps = source.round(entry / step.scale).round_ties_even() + step.zero_point;
            steps.clamp(low, high) as i16
        };
        let codes: Vec<i16> = entries.iter().map(code).collect();
        let dequantized = codes
            .iter()
            .map(|&code| source.round(step.scale * (f32::from(code) - step.zero_point)))
            .collect();
        let ones = vec![1; shape.len()];
        let op = self.integers_of_table(integer.dtype(), shape, &codes, &ones, &[step])?;
        Some((op, dequantized))
    }

    /// The operation that computes tables from integers, with a step for each block of tables; `None` if a number is too
    /// large for the type.
    pub(super) fn integers_of_table(
        &self,
        dtype: DType,
        shape: &[u64],
        codes: &[i16],
        blocks: &[u64],
        steps: &[Affine],
    ) -> Option<Op> {
        let data = Constant::by_size(dtype, shape, packed::pack(dtype, codes)?);
        let scales: Vec<f32> = steps.iter().map(|step| step.scale).collect();
        let mut op = Op::new(OpKind::ConstexprBlockwiseShiftScale)
            .with("data", Binding::Literal(data))
            .with("scale", Binding::Literal(self.floats(blocks, &scales)));
        if steps.iter().any(|step| step.zero_point != 0.0) {
            let zeros: Vec<i16> = steps.iter().map(|step| step.zero_point as i16).collect();
            let zeros = packed::pack(dtype, &zeros)?;
            op = op.with("offset", Binding::Literal(Constant::by_size(dtype, blocks, zeros)));
        }
        Some(op)
    }

    fn vectors(&self, source: Source, palette: &Palette) -> Result<EncodedWeight, Refusal> {
        let output = palette::output(palette, self.weight)?;
        let mut places = self.weight.shape.clone();
        places[output] /= palette.vector;
        let mut sizes = self.sizes.clone();
        sizes[output] /= palette.vector;
        let blocks = Blocks::new(&places, &sizes);
        let blocks = blocks.ok_or("the block size does not divide its shape")?;
        let inner = self.weight.shape[output + 1..].iter().product();
        let lay = VectorLayout { size: palette.vector, inner };
        let (entries, used, bits) = vectors::tables(&source, &lay, &blocks, palette)?;
        let (length, dtype) = (1usize << bits, unsigned(bits));
        let mut shape = self.counts();
        shape.extend([length as u64, palette.vector as u64]);
        let lut = self.floats(&shape, &entries);
        let recipe = self.recipe();
        let of = Vectors { source, lay, blocks, entries, used, length, dtype, recipe };
        let quality = of.quality()?;
        let indices = Buffer::deferred(Arc::new(PaletteIndices(Arc::new(of))));
        let places: Vec<u64> = places.iter().map(|&extent| extent as u64).collect();
        let op = Op::new(OpKind::ConstexprLutToDense)
            .with("indices", Binding::Literal(Constant::by_size(dtype, &places, indices)))
            .with("lut", Binding::Literal(lut))
            .with("vector_axis", Binding::Literal(Constant::int32(output as i32)));
        self.built(vec![ConstexprStage::new(op, "palettized")], quality)
    }

    /// The mask and the codes of elements that are not pruned.
    pub(super) fn sparse_parts(
        &self,
        coder: &Arc<Coder>,
        ranks: &Arc<NonzeroPrefixSums>,
    ) -> (Constant, Constant) {
        let mask = Buffer::deferred(Arc::new(Mask(Arc::clone(coder))));
        let nonzero = Buffer::deferred(Arc::new(Sparse(Arc::clone(coder), Arc::clone(ranks))));
        let mask = match self.opset >= Opset::Ios18 {
            true => Constant::by_size(DType::UInt1, &self.shape(), mask),
            false => {
                let bytes = mask.len() as u64;
                Constant::by_size(DType::UInt8, &[bytes], mask)
            }
        };
        (mask, Constant::by_size(coder.dtype, &[ranks.total() as u64], nonzero))
    }

    /// A pruned weight. `decode` creates the operation that decodes the codes, if there is one.
    pub(super) fn sparse(
        &self,
        coder: Arc<Coder>,
        decode: impl FnOnce(Constant, Constant) -> Option<ConstexprStage>,
    ) -> Result<EncodedWeight, Refusal> {
        let ranks = Arc::new(NonzeroPrefixSums::of(&coder.source)?);
        let (mask, nonzero) = self.sparse_parts(&coder, &ranks);
        let op = Op::new(OpKind::ConstexprSparseToDense);
        let stages = match decode(mask.clone(), nonzero.clone()) {
            Some(stage) => {
                let dense =
                    ConstexprStage::new(op, "sparsified").bound("mask", 0).bound("nonzero_data", 1);
                vec![stage, dense]
            }
            None if self.opset >= Opset::Ios18 => {
                let op = op.with("mask", Binding::Literal(mask));
                vec![ConstexprStage::new(
                    op.with("nonzero_data", Binding::Literal(nonzero)),
                    "sparsified",
                )]
            }
            None => {
                let mut op = op;
                op.attributes.insert("mask", mask);
                op.attributes.insert("nonzero_data", nonzero);
                op.attributes.insert("shape", self.stated_shape());
                vec![ConstexprStage::new(op, "sparsified")]
            }
        };
        self.built(stages, quality(&coder)?)
    }

    /// The `shape` operand of older operations.
    pub(super) fn stated_shape(&self) -> Constant {
        let bytes: Vec<u8> =
            self.weight.shape.iter().flat_map(|&extent| (extent as u32).to_le_bytes()).collect();
        Constant::by_size(DType::UInt32, &[self.weight.shape.len() as u64], bytes)
    }

    pub(super) fn built(
        &self,
        stages: Vec<ConstexprStage>,
        quality: (f64, f64),
    ) -> Result<EncodedWeight, Refusal> {
        let literals = |stage: &ConstexprStage| {
            let bound = stage.op.all_bindings().filter_map(|(_, binding)| match binding {
                Binding::Literal(constant) => constant.elements(),
                Binding::Value(_) => None,
            });
            let stated = stage.op.attributes.iter().filter_map(|(_, constant)| constant.elements());
            bound.chain(stated).map(|elements| elements.len() as u64).sum::<u64>()
        };
        let bytes = stages.iter().map(literals).sum();
        Ok(EncodedWeight { stages, bytes, quality })
    }
}

pub(super) fn unsigned(bits: u32) -> DType {
    match bits {
        1 => DType::UInt1,
        2 => DType::UInt2,
        3 => DType::UInt3,
        4 => DType::UInt4,
        6 => DType::UInt6,
        _ => DType::UInt8,
    }
}

/// Signal power and noise power. Large weights are sampled at equal distances.
pub(super) fn quality(coder: &Coder) -> io::Result<(f64, f64)> {
    let count = coder.source.count;
    let (parts, length) = match count <= COMPARED {
        true => (1, count),
        false => (COMPARED / PART, PART),
    };
    let (mut signal, mut noise) = (0.0, 0.0);
    let (mut codes, mut decoded, mut weights) = (Vec::new(), Vec::new(), Vec::new());
    for part in 0..parts {
        let start = (count - length) / parts.max(2).saturating_sub(1) * part;
        coder.source.for_each_part(start, length, &mut |part| {
            codes.clear();
            coder.encode(part.at, part.numbers, &mut codes);
            coder.decode(part.at, part.numbers, &codes, &mut decoded);
            let (power, loss) = match &coder.source.weighting {
                None => squared_error(Isa::detect(), part.raw, &decoded),
                Some(weighting) => {
                    weighting.of_elements(part.at, part.raw.len(), &mut weights);
                    let weighted = |numbers: &[f32]| -> Vec<f32> {
                        numbers.iter().zip(&weights).map(|(x, weight)| x * weight.sqrt()).collect()
                    };
                    squared_error(Isa::detect(), &weighted(part.raw), &weighted(&decoded))
                }
            };
            signal += power;
            noise += loss;
        })?;
    }
    Ok((signal, noise))
}

/// Replaces a weight by its encoding.
pub(crate) fn insert(
    editor: &mut Editor<'_>,
    weight: &Weight,
    built: EncodedWeight,
) -> Result<(), Error> {
    let mut results: Vec<ValueId> = Vec::new();
    for ConstexprStage { mut op, label, from_before } in built.stages {
        for (parameter, index) in from_before {
            op = op.with(parameter, Binding::Value(results[index]));
        }
        let label = format!("{}_{label}", weight.name);
        results = editor.insert(weight.id, op, &label).map_err(|refusals| {
            let reasons: Vec<_> = refusals.iter().map(ToString::to_string).collect();
            Error::model(format!("`{label}`: {}", reasons.join("; ")))
        })?;
    }
    editor.replace(weight.value, results[0]);
    Ok(())
}
