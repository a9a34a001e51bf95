//! Weights with histograms of their elements.

use std::cmp::Reverse;
use std::collections::HashMap;

use coremill_engine::{Array, evaluate};
use coremill_mil::ir::{Binding, Constant, Function, Op, ValueId};
use coremill_mil::ops::OpKind;
use coremill_tensor::{Buffer, DType};

use crate::data::{Histogram, Weight};

/// Minimum number of elements of a weight. Smaller constants are arguments.
const SMALLEST: u64 = 10;
/// Maximum number of elements to sample per weight.
const MAX_SAMPLED: usize = 1 << 16;
/// Number of contiguous elements per sample.
const RUN: usize = 1 << 10;
/// Maximum number of elements of a compressed weight that is expanded for its histogram.
const MAX_EXPANDED: u64 = 1 << 20;
/// Number of bins of a histogram.
const BARS: usize = 48;

/// Weights found so far, without duplicates.
#[derive(Default)]
pub(crate) struct Weights {
    found: Vec<Weight>,
    by_name: HashMap<(String, ValueId), usize>,
}

impl Weights {
    /// The weight of an operation without inputs, if it is large enough.
    pub(crate) fn add(&mut self, function: &Function, value: ValueId, op: &Op) -> Option<usize> {
        let key = (function.name.clone(), value);
        if let Some(&found) = self.by_name.get(&key) {
            return Some(found);
        }
        let kind = op.kind()?;
        let described = function.value(value);
        let elements = described.ty.as_tensor()?.element_count()?;
        if elements < SMALLEST || !kind.is_constant() {
            return None;
        }
        let constants = stated(function, op);
        let stored = |constant: &&Constant| constant.tensor_type()?.storage_bytes();
        let histogram = match kind {
            OpKind::Const => constants.first().and_then(|constant| of_constant(constant)),
            _ => of_compressed(function, op, elements),
        };
        self.found.push(Weight {
            name: described.name.clone(),
            ty: described.ty.to_string(),
            form: if kind == OpKind::Const { "dense" } else { kind.name() }.to_owned(),
            bytes: constants.iter().filter_map(stored).sum(),
            elements,
            histogram,
        });
        self.by_name.insert(key, self.found.len() - 1);
        Some(self.found.len() - 1)
    }

    /// The weights, largest first, and a map from the original index of each weight to its new
    /// index.
    pub(crate) fn finish(self) -> (Vec<usize>, Vec<Weight>) {
        let mut sorted: Vec<_> = self.found.into_iter().enumerate().collect();
        sorted.sort_by_key(|(_, weight)| Reverse(weight.bytes));
        let mut order = vec![0; sorted.len()];
        for (now, (before, _)) in sorted.iter().enumerate() {
            order[*before] = now;
        }
        (order, sorted.into_iter().map(|(_, weight)| weight).collect())
    }
}

/// The constants of the weight with this name.
pub(crate) fn constants_of<'f>(function: &'f Function, name: &str) -> Vec<&'f Constant> {
    let gives = |op: &&Op| op.outputs.iter().any(|&output| function.value(output).name == name);
    let op = function.all_ops().map(|(_, op)| op).find(gives);
    op.map_or_else(Vec::new, |op| stated(function, op))
}

/// The constants of a weight: its own value, or the operands of its decompression.
fn stated<'f>(function: &'f Function, op: &'f Op) -> Vec<&'f Constant> {
    let own = op.attributes.iter().map(|(_, constant)| constant);
    let own = own.filter(|constant| constant.tensor_type().is_some());
    let taken = op.all_bindings().filter_map(|(_, binding)| function.bound_constant(binding));
    own.chain(taken).collect()
}

fn of_constant(constant: &Constant) -> Option<Histogram> {
    let tensor = constant.tensor_type()?;
    let elements = usize::try_from(tensor.element_count()?).ok()?;
    histogram(&sample(constant.elements()?, tensor.dtype, elements)?)
}

/// Histogram of a compressed weight that is not too large.
fn of_compressed(function: &Function, op: &Op, elements: u64) -> Option<Histogram> {
    if elements > MAX_EXPANDED {
        return None;
    }
    let mut arguments: Vec<(&str, Vec<Array>)> = Vec::new();
    for (parameter, binding) in op.all_bindings() {
        let array = match binding {
            Binding::Literal(constant) => Array::from_constant(constant).ok()?,
            Binding::Value(_) => Array::from_constant(function.bound_constant(binding)?).ok()?,
        };
        arguments.push((parameter, vec![array]));
    }
    for (name, constant) in op.attributes.iter() {
        if let Ok(array) = Array::from_constant(constant) {
            arguments.push((name, vec![array]));
        }
    }
    let arguments: Vec<(&str, &[Array])> =
        arguments.iter().map(|(name, arrays)| (*name, arrays.as_slice())).collect();
    let dtype = function.value(*op.outputs.first()?).ty.as_tensor()?.dtype;
    let arrays = evaluate(op.kind()?, function.opset, &arguments, &[dtype]).ok()?;
    histogram(arrays.first()?.as_floats()?)
}

/// Samples runs of elements at equal distances.
fn sample(buffer: &Buffer, dtype: DType, elements: usize) -> Option<Vec<f32>> {
    let runs = if elements <= MAX_SAMPLED { 1 } else { MAX_SAMPLED / RUN };
    let length = if runs == 1 { elements } else { RUN };
    let mut sampled = Vec::with_capacity(runs * length);
    for run in 0..runs {
        // Runs start at byte boundaries for every element size.
        let first = if runs == 1 { 0 } else { (elements - length) / (runs - 1) * run / 8 * 8 };
        let bits = dtype.bits()? as usize;
        let start = first * bits / 8;
        let mut bytes = vec![0; (length * bits).div_ceil(8)];
        buffer.read_at(start, &mut bytes).ok()?;
        let array = Array::from_bytes(dtype, &[length], &bytes)?;
        match (array.as_floats(), array.as_ints()) {
            (Some(floats), _) => sampled.extend_from_slice(floats),
            (_, Some(ints)) => sampled.extend(ints.iter().map(|&int| int as f32)),
            _ => return None,
        }
    }
    Some(sampled)
}

/// The histogram of numbers, `None` if there are none.
pub(crate) fn histogram(numbers: &[f32]) -> Option<Histogram> {
    if numbers.is_empty() {
        return None;
    }
    let finite = || numbers.iter().copied().filter(|number| number.is_finite());
    let (mut min, mut max, mut sum, mut squares, mut count) =
        (f32::MAX, f32::MIN, 0.0, 0.0, 0usize);
    let mut zeros = 0usize;
    for number in finite() {
        (min, max) = (min.min(number), max.max(number));
        sum += f64::from(number);
        squares += f64::from(number) * f64::from(number);
        zeros += usize::from(number == 0.0);
        count += 1;
    }
    if count == 0 {
        (min, max) = (0.0, 0.0);
    }
    let mut counts = vec![0; BARS];
    let width = (f64::from(max) - f64::from(min)).max(f64::MIN_POSITIVE);
    for number in finite() {
        let at = (f64::from(number) - f64::from(min)) / width * BARS as f64;
        counts[(at as usize).min(BARS - 1)] += 1;
    }
    let mean = sum / count.max(1) as f64;
    Some(Histogram {
        min,
        max,
        mean,
        deviation: (squares / count.max(1) as f64 - mean * mean).max(0.0).sqrt(),
        zeros: zeros as f64 / numbers.len() as f64,
        non_finite: numbers.len() - count,
        sampled: numbers.len(),
        counts,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histogram_counts_every_element_once() {
        let numbers: Vec<f32> = (0..1000).map(|number| number as f32 / 10.0).collect();
        let found = histogram(&numbers).expect("a histogram");
        assert_eq!(found.counts.iter().sum::<u32>(), 1000);
        assert_eq!((found.min, found.max, found.non_finite), (0.0, 99.9, 0));
        assert!((found.mean - 49.95).abs() < 1e-3);
        let odd = histogram(&[f32::NAN, 1.0, f32::INFINITY, 0.0]).expect("a histogram");
        assert_eq!((odd.non_finite, odd.zeros), (2, 0.25));
        assert_eq!(histogram(&[]), None);
    }

    #[test]
    fn packed_samples_start_at_byte_boundaries() {
        // 4-bit elements 0, 1, 2, … repeated.
        let bytes: Vec<u8> =
            (0..200_000u32).map(|at| ((2 * at % 16) | ((2 * at + 1) % 16) << 4) as u8).collect();
        let sampled = sample(&Buffer::from(bytes), DType::UInt4, 400_000).expect("a sample");
        assert_eq!(sampled.len(), MAX_SAMPLED);
        assert!(sampled.chunks(RUN).all(|run| run.windows(2).all(|w| w[1] == (w[0] + 1.0) % 16.0)));
    }
}
