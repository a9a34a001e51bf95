//! Quantized and palettized weights.

use coremill_engine::Array;
use coremill_mil::ir::{Binding, Constant, Op, Opset};
use coremill_mil::ops::OpKind;
use coremill_tensor::DType;
use coremill_tensor::packed::pack;

use super::moments::{Metric, by_rows};

/// Storage format of a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Storage {
    /// 4- or 8-bit integers with a scale per output channel.
    Channels { bits: u32 },
    /// Integers with a scale per group of `size` input channels.
    Groups { bits: u32, size: usize },
    /// Table indices with a table per block of rows and columns; 0 for all of them.
    Tables { bits: u32, rows: usize, columns: usize },
}

impl Storage {
    /// The oldest release that supports the format.
    pub(super) fn needs(self) -> Opset {
        match self {
            Storage::Channels { bits: 8 } => Opset::Ios16,
            _ => Opset::Ios18,
        }
    }
}

/// Factors of a block's range to try, depending on the effort.
fn factors(effort: u8) -> &'static [f32] {
    const FEW: &[f32] = &[1.0];
    const SOME: &[f32] = &[1.0, 0.98, 0.96, 0.94, 0.92, 0.9, 0.87, 0.84, 0.8, 0.75, 0.7];
    if effort == 0 { FEW } else { SOME }
}

/// The reason why a weight does not support a format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SkipReason {
    /// The shape is unsuitable. The layer can stay unquantized.
    Form(String),
    /// No format can store the elements.
    Numbers(String),
}

/// Checks that a format can store a weight.
pub(super) fn fits(weight: &Array, axis: usize, storage: Storage) -> Result<(), SkipReason> {
    blocks(weight.shape(), axis, storage)?;
    elements(weight).map(drop)
}

fn elements(weight: &Array) -> Result<&[f32], SkipReason> {
    let Some(elements) = weight.as_floats() else {
        return Err(SkipReason::Numbers("is not a tensor of floats".to_owned()));
    };
    match elements.iter().find(|element| !element.is_finite()) {
        Some(found) => {
            Err(SkipReason::Numbers(format!("holds {found}, which cannot be quantized")))
        }
        None => Ok(elements),
    }
}

/// Sizes of the blocks that share a scale or table.
fn blocks(shape: &[usize], axis: usize, storage: Storage) -> Result<Vec<usize>, SkipReason> {
    let mut blocks = shape.to_vec();
    match storage {
        Storage::Channels { .. } => blocks[axis] = 1,
        Storage::Groups { size, .. } => {
            let inputs = usize::from(axis == 0);
            let found = shape.get(inputs).copied().unwrap_or(0);
            if found == 0 || !found.is_multiple_of(size) {
                return Err(SkipReason::Form(format!(
                    "has {found} input channels, which is not a multiple of the group size {size}"
                )));
            }
            blocks[axis] = 1;
            blocks[inputs] = size;
        }
        Storage::Tables { rows, columns, .. } => {
            let [height, width] = *shape else {
                return Err(SkipReason::Form(format!(
                    "has rank {}, but tables of rows and columns require a matrix",
                    shape.len()
                )));
            };
            let rows = if rows == 0 { height } else { rows };
            let columns = if columns == 0 { width } else { columns };
            if !height.is_multiple_of(rows) || !width.is_multiple_of(columns) {
                return Err(SkipReason::Form(format!(
                    "has {height} x {width} elements, which blocks of {rows} x {columns} do not divide evenly"
                )));
            }
            blocks = vec![rows, columns];
        }
    }
    Ok(blocks)
}

/// The operation that computes the weight from its compressed form.
pub(super) fn compressed(
    weight: &Array,
    axis: usize,
    storage: Storage,
    opset: Opset,
    effort: u8,
    metrics: &[Option<Metric>],
) -> Result<Op, SkipReason> {
    let shape: Vec<usize> = weight.shape().to_vec();
    let (blocks, elements) = (blocks(&shape, axis, storage)?, elements(weight)?);
    match storage {
        Storage::Channels { bits } | Storage::Groups { bits, .. } => {
            Ok(integers(elements, &shape, &blocks, axis, bits, opset, effort, metrics))
        }
        Storage::Tables { bits, .. } => tables(elements, &shape, &blocks, bits, metrics),
    }
}

/// The metric of a weight's row, which depends on its channel group.
fn metric_of(metrics: &[Option<Metric>], row: usize, rows: usize) -> Option<&Metric> {
    metrics.get(row * metrics.len() / rows.max(1)).and_then(Option::as_ref)
}

/// The block of each element.
fn block_of_each(shape: &[usize], blocks: &[usize]) -> Vec<u32> {
    let counts: Vec<usize> = shape.iter().zip(blocks).map(|(all, one)| all / one).collect();
    let total: usize = shape.iter().product();
    let mut places = vec![0usize; shape.len()];
    let mut found = Vec::with_capacity(total);
    for _ in 0..total {
        let block = places
            .iter()
            .zip(blocks)
            .zip(&counts)
            .fold(0, |block, ((place, one), count)| block * count + place / one);
        found.push(block as u32);
        for axis in (0..shape.len()).rev() {
            places[axis] += 1;
            if places[axis] < shape[axis] {
                break;
            }
            places[axis] = 0;
        }
    }
    found
}

fn integers(
    elements: &[f32],
    shape: &[usize],
    blocks: &[usize],
    axis: usize,
    bits: u32,
    opset: Opset,
    effort: u8,
    metrics: &[Option<Metric>],
) -> Op {
    let counts: Vec<usize> = shape.iter().zip(blocks).map(|(all, one)| all / one).collect();
    let place = block_of_each(shape, blocks);
    let total: usize = counts.iter().product();
    let high = ((1 << (bits - 1)) - 1) as f32;
    let low = -high - 1.0;
    let mut largest = vec![0f32; total];
    for (&element, &block) in elements.iter().zip(&place) {
        let most = &mut largest[block as usize];
        *most = most.max(element.abs());
    }
    // Divides by half the range of the integers, like torch.
    let scale = |most: f32, factor: f32| rounded_to_half(most * factor / ((high - low) / 2.0));
    let code = |element: f32, scale: f32| (element / scale).round_ties_even().clamp(low, high);
    let mut scales: Vec<f32> = largest.iter().map(|&most| scale(most, 1.0)).collect();
    let mut best = vec![f64::INFINITY; total];
    let (rows, length) = (shape[0], shape[1..].iter().product::<usize>());
    let powers: Vec<Vec<f64>> = metrics
        .iter()
        .map(|metric| metric.as_ref().map_or(vec![1.0; length], Metric::powers))
        .collect();
    let power = |at: usize| match powers.len() {
        0 => 1.0,
        groups => powers[at / length * groups / rows][at % length],
    };
    for &factor in factors(effort) {
        let tried: Vec<f32> = largest.iter().map(|&most| scale(most, factor)).collect();
        let mut errors = vec![0f64; total];
        for (at, (&element, &block)) in elements.iter().zip(&place).enumerate() {
            let scale = tried[block as usize];
            let off = f64::from(element - code(element, scale) * scale);
            errors[block as usize] += off * off * power(at);
        }
        for block in 0..total {
            if errors[block] < best[block] {
                (best[block], scales[block]) = (errors[block], tried[block]);
            }
        }
    }
    let mut codes = Vec::with_capacity(elements.len());
    if metrics.is_empty() {
        codes.extend(
            elements
                .iter()
                .zip(&place)
                .map(|(&element, &block)| code(element, scales[block as usize])),
        );
    } else {
        // The blocks of a row are consecutive.
        let (each, block) = (total / rows, length * rows / total);
        let made = by_rows(rows, |row| {
            let weights = &elements[row * length..][..length];
            let scales = &scales[row * each..][..each];
            match metric_of(metrics, row, rows) {
                Some(metric) => metric.fitted(weights, scales, block, &code, &rounded_to_half),
                None => {
                    let of = |(at, &weight): (usize, &f32)| code(weight, scales[at / block]);
                    (weights.iter().enumerate().map(of).collect(), scales.to_vec())
                }
            }
        });
        scales.clear();
        for (of_row, fitted) in made {
            codes.extend(of_row);
            scales.extend(fitted);
        }
    }
    let codes: Vec<i16> = codes.into_iter().map(|code| code as i16).collect();
    let dtype = if bits == 4 { DType::Int4 } else { DType::Int8 };
    let packed = pack(dtype, &codes).unwrap_or_default();
    let data = Constant::by_size(dtype, &wide(shape), packed);
    let literal = |op: Op, name: &'static str, constant| op.with(name, Binding::Literal(constant));
    if opset < Opset::Ios18 {
        let op = literal(Op::new(OpKind::ConstexprAffineDequantize), "quantized_data", data);
        let op = literal(op, "zero_point", Constant::by_size(dtype, &[], vec![0_u8]));
        let op = literal(op, "scale", floats(&[scales.len()], &scales));
        return literal(op, "axis", Constant::int32(axis as i32));
    }
    let op = literal(Op::new(OpKind::ConstexprBlockwiseShiftScale), "data", data);
    literal(op, "scale", floats(&counts, &scales))
}

/// The nearest positive fp16 number. Scales are stored in fp16, so codes must be computed with the
/// rounded scale.
fn rounded_to_half(scale: f32) -> f32 {
    let half = Array::floats(DType::Fp16, [1], vec![scale.clamp(6e-8, 65504.0)]);
    let read = half.to_bytes().and_then(|bytes| Array::from_bytes(DType::Fp16, &[1], &bytes));
    read.and_then(|array| array.as_floats().map(|all| all[0])).unwrap_or(scale)
}

fn tables(
    elements: &[f32],
    shape: &[usize],
    blocks: &[usize],
    bits: u32,
    metrics: &[Option<Metric>],
) -> Result<Op, SkipReason> {
    let counts: Vec<usize> = shape.iter().zip(blocks).map(|(all, one)| all / one).collect();
    let dtype = match bits {
        1 => DType::UInt1,
        2 => DType::UInt2,
        3 => DType::UInt3,
        4 => DType::UInt4,
        5 | 6 => DType::UInt6,
        _ => DType::UInt8,
    };
    let entries = 1usize << dtype.bits().unwrap_or(8);
    let place = block_of_each(shape, blocks);
    let total: usize = counts.iter().product();
    let size: usize = blocks.iter().product();
    let mut members: Vec<Vec<f32>> = vec![Vec::with_capacity(size); total];
    for (&element, &block) in elements.iter().zip(&place) {
        members[block as usize].push(element);
    }
    let mut lut = Vec::with_capacity(total * entries);
    let mut centres = Vec::with_capacity(total);
    for members in &mut members {
        let found = means(members, 1 << bits);
        lut.extend_from_slice(&found);
        lut.resize(lut.len() + entries - found.len(), 0.0);
        centres.push(found);
    }
    let nearest = |element: f32, centres: &[f32]| {
        let at = centres.partition_point(|&centre| centre < element);
        let below = at.saturating_sub(1);
        let above = at.min(centres.len() - 1);
        if element - centres[below] <= centres[above] - element { below } else { above }
    };
    let (rows, length) = (shape[0], shape[1]);
    let codes = by_rows(rows, |row| {
        let weights = &elements[row * length..][..length];
        let table = |column: usize| &centres[place[row * length + column] as usize];
        let code = |column: usize, number: f32| nearest(number, table(column)) as f32;
        let value = |column: usize, code: f32| table(column)[code as usize];
        match metric_of(metrics, row, rows) {
            Some(metric) => metric.codes(weights, &code, &value),
            None => weights.iter().enumerate().map(|(at, &weight)| code(at, weight)).collect(),
        }
    });
    let codes: Vec<i16> = codes.into_iter().flatten().map(|code| code as i16).collect();
    let Some(packed) = pack(dtype, &codes) else {
        return Err(SkipReason::Form("has too many codes".to_owned()));
    };
    let indices = Constant::by_size(dtype, &wide(shape), packed);
    let lut = floats(&[counts.as_slice(), &[entries, 1]].concat(), &lut);
    Ok(Op::new(OpKind::ConstexprLutToDense)
        .with("indices", Binding::Literal(indices))
        .with("lut", Binding::Literal(lut)))
}

/// One-dimensional k-means: the `count` centers, in ascending order.
fn means(members: &mut [f32], count: usize) -> Vec<f32> {
    const ROUNDS: usize = 30;
    members.sort_by(f32::total_cmp);
    let length = members.len();
    let mut sums = Vec::with_capacity(length + 1);
    sums.push(0f64);
    for &member in members.iter() {
        sums.push(sums[sums.len() - 1] + f64::from(member));
    }
    let mut centres: Vec<f32> = (0..count)
        .map(|at| members[((2 * at + 1) * length / (2 * count)).min(length - 1)])
        .collect();
    for _ in 0..ROUNDS {
        let mut start = 0;
        let before = centres.clone();
        for at in 0..count {
            let end = match before.get(at + 1) {
                Some(next) => {
                    let middle = (before[at] + next) / 2.0;
                    members.partition_point(|&member| member <= middle)
                }
                None => length,
            };
            if end > start {
                centres[at] = ((sums[end] - sums[start]) / (end - start) as f64) as f32;
                start = end;
            }
        }
        centres.sort_by(f32::total_cmp);
        if centres == before {
            break;
        }
    }
    centres
}

fn wide(shape: &[usize]) -> Vec<u64> {
    shape.iter().map(|&extent| extent as u64).collect()
}

/// A constant of fp32 elements.
pub(super) fn floats(shape: &[usize], elements: &[f32]) -> Constant {
    let bytes: Vec<u8> = elements.iter().flat_map(|element| element.to_le_bytes()).collect();
    Constant::by_size(DType::Fp32, &wide(shape), bytes)
}
