//! Reference kernels that create tensors, sort them or search them.

use std::cmp::Ordering;
use std::ops::Range;
use std::sync::Arc;

use coremill_tensor::DType;
use half::f16;

use crate::array::{Array, Elements, ElementsView, View, int_range};
use crate::call::{Call, Results};
use crate::error::{Error, Result, fail};
use crate::geometry::{around, strides};
use crate::movement::{StridedView, gathered, moved};

pub(super) use super::suppression::non_maximum_suppression;

pub(super) fn argsort(call: &Call) -> Results {
    let x = call.tensor("x")?;
    let axis = call.axis("axis", x.rank())?;
    let ranks = ranked(x, axis, x.shape[axis], call.bool("ascending")?)?;
    call.give_ints(x.shape, ranks)
}

/// Returns elements in order even if `sort` is false, which allows any order.
pub(super) fn topk(call: &Call) -> Results {
    let x = call.tensor("x")?;
    let axis = call.axis("axis", x.rank())?;
    let extent = x.shape[axis];
    let count = match call.int("k")? {
        -1 => extent,
        k => match usize::try_from(k) {
            Ok(k) if k <= extent => k,
            _ => fail!("`k` must be -1 or from 0 to {extent}, the size of axis {axis}, got {k}"),
        },
    };
    let mut shape = x.shape.to_vec();
    shape[axis] = count;
    let ranks = ranked(x, axis, count, call.bool("ascending")?)?;
    let (_, _, inner) = around(&shape, axis);
    let place = |(at, &rank): (usize, &i32)| {
        let (line, step) = (at / inner / count, at % inner);
        (line * extent + rank as usize) * inner + step
    };
    let places: Vec<usize> = ranks.iter().enumerate().map(place).collect();
    let mut outputs = vec![x.runs(shape.clone(), &places, 1)];
    if let Some(&dtype) = call.dtypes.get(1) {
        let (_, most) = int_range(dtype).unwrap_or_default();
        if let Some(rank) = ranks.iter().find(|&&rank| rank > most) {
            fail!("index {rank} does not fit `{dtype}`, the type of the indices");
        }
        outputs.push(Array::ints(dtype, shape, ranks));
    }
    Ok(outputs)
}

/// Indices of the first `count` elements of each line in sorted order. The sort is stable, with NaN
/// last.
fn ranked(x: View, axis: usize, count: usize, ascending: bool) -> Result<Vec<i32>> {
    let ranked = match x.elements {
        ElementsView::Floats(floats) => ranked_by(x.shape, axis, count, |left, right| {
            let (x, y) = (floats[left], floats[right]);
            match x.partial_cmp(&y) {
                Some(order) if ascending => order,
                Some(order) => order.reverse(),
                None => x.is_nan().cmp(&y.is_nan()),
            }
        }),
        ElementsView::Ints(ints) => ranked_by(x.shape, axis, count, |left, right| {
            let order = ints[left].cmp(&ints[right]);
            if ascending { order } else { order.reverse() }
        }),
        ElementsView::Texts(_) => fail!("`x` holds strings, which cannot be ranked"),
    };
    Ok(ranked)
}

fn ranked_by(
    shape: &[usize],
    axis: usize,
    count: usize,
    order: impl Fn(usize, usize) -> Ordering,
) -> Vec<i32> {
    let (outer, extent, inner) = around(shape, axis);
    let mut ranks = vec![0; outer * count * inner];
    if count == 0 {
        return ranks;
    }
    let mut line = Vec::with_capacity(extent);
    for before in 0..outer {
        for after in 0..inner {
            let place = |step: usize| (before * extent + step) * inner + after;
            let compare = |x: &usize, y: &usize| order(place(*x), place(*y)).then(x.cmp(y));
            line.clear();
            line.extend(0..extent);
            if count < extent {
                line.select_nth_unstable_by(count - 1, compare);
                line.truncate(count);
            }
            line.sort_unstable_by(compare);
            for (rank, &step) in line.iter().enumerate() {
                ranks[(before * count + rank) * inner + after] = step as i32;
            }
        }
    }
    ranks
}

pub(super) fn band_part(call: &Call) -> Results {
    let x = call.tensor("x")?;
    let &[.., rows, columns] = x.shape else {
        fail!("`x` has shape {:?}; expected a rank of at least 2", x.shape);
    };
    let (lower, upper) = (call.int("lower")?, call.int("upper")?);
    // The range of columns to keep in each row.
    let band = |row: usize| {
        let first = usize::try_from(lower).map_or(0, |lower| row.saturating_sub(lower));
        let last = usize::try_from(upper).map_or(columns, |upper| row + upper + 1);
        first.min(columns)..last.min(columns).max(first.min(columns))
    };
    let elements = match x.elements {
        ElementsView::Floats(floats) => {
            Elements::Floats(Arc::new(banded(floats, rows, columns, band)))
        }
        _ => Elements::Ints(Arc::new(banded(x.ints()?, rows, columns, band))),
    };
    Ok(vec![Array::from_elements(x.dtype, x.shape.to_vec(), elements)])
}

fn banded<T: Copy + Default>(
    x: &[T],
    rows: usize,
    columns: usize,
    band: impl Fn(usize) -> Range<usize>,
) -> Vec<T> {
    let mut banded = vec![T::default(); x.len()];
    if x.is_empty() {
        return banded;
    }
    for (at, (kept, row)) in banded.chunks_mut(columns).zip(x.chunks(columns)).enumerate() {
        let range = band(at % rows);
        kept[range.clone()].copy_from_slice(&row[range]);
    }
    banded
}

pub(super) fn cumsum(call: &Call) -> Results {
    let x = call.tensor("x")?;
    let axis = call.axis("axis", x.rank())?;
    let (exclusive, reverse) = (call.bool("exclusive")?, call.bool("reverse")?);
    if let ElementsView::Ints(ints) = x.elements {
        let sums = sums(ints, x.shape, axis, exclusive, reverse, i32::wrapping_add);
        return call.give_ints(x.shape, sums);
    }
    let sums = sums(x.floats()?, x.shape, axis, exclusive, reverse, |sum, element| sum + element);
    call.give_floats(x.shape, sums)
}

fn sums<T: Copy + Default>(
    x: &[T],
    shape: &[usize],
    axis: usize,
    exclusive: bool,
    reverse: bool,
    add: impl Fn(T, T) -> T,
) -> Vec<T> {
    let (outer, extent, inner) = around(shape, axis);
    let mut sums = vec![T::default(); x.len()];
    let mut running = vec![T::default(); inner];
    for line in 0..outer {
        running.fill(T::default());
        for step in 0..extent {
            let step = if reverse { extent - 1 - step } else { step };
            let at = (line * extent + step) * inner;
            let elements = sums[at..][..inner].iter_mut().zip(&x[at..][..inner]);
            for (running, (sum, &element)) in running.iter_mut().zip(elements) {
                let next = add(*running, element);
                *sum = if exclusive { *running } else { next };
                *running = next;
            }
        }
    }
    sums
}

pub(super) fn fill(call: &Call) -> Results {
    let shape = call.ints("shape", 0)?;
    match shape.iter().map(|&extent| usize::try_from(extent).ok()).collect() {
        Some(extents) => filled(call, extents),
        None => fail!("`shape` must contain sizes of at least 0, got {shape:?}"),
    }
}

pub(super) fn fill_like(call: &Call) -> Results {
    filled(call, call.tensor("ref_tensor")?.shape.to_vec())
}

fn filled(call: &Call, shape: Vec<usize>) -> Results {
    let count = call.count(&shape)?;
    match call.optional("value") {
        None => call.give_floats(shape, vec![call.float("value")?; count]),
        Some(value) => match value.repeated(shape, count) {
            Some(filled) => Ok(vec![filled]),
            None => fail!("`value` must have one element, got {}", value.len()),
        },
    }
}

pub(super) fn identity(call: &Call) -> Results {
    Ok(vec![call.tensor("x")?.to_array()])
}

pub(super) fn non_zero(call: &Call) -> Results {
    let x = call.tensor("x")?;
    let found: Vec<usize> = match x.elements {
        ElementsView::Floats(floats) => (0..x.len()).filter(|&at| floats[at] != 0.0).collect(),
        _ => {
            let ints = x.ints()?;
            (0..x.len()).filter(|&at| ints[at] != 0).collect()
        }
    };
    let shape = [found.len(), x.rank()];
    let mut places = Vec::with_capacity(call.count(&shape)?);
    let strides = strides(x.shape);
    for mut at in found {
        for stride in &strides {
            places.push((at / stride) as i32);
            at %= stride;
        }
    }
    call.give_ints(shape, places)
}

/// An index out of range leaves the whole vector off.
pub(super) fn one_hot(call: &Call) -> Results {
    let indices = call.tensor("indices")?;
    let axis = call.axis("axis", indices.rank() + 1)?;
    let size = call.int("one_hot_vector_size")?;
    let Ok(size) = usize::try_from(size) else {
        fail!("`one_hot_vector_size` must be at least 0, got {size}");
    };
    let mut shape = indices.shape.to_vec();
    shape.insert(axis, size);
    call.count(&shape)?;
    let hot = Hot { indices: indices.ints()?, size, inner: around(&shape, axis).2 };
    if call.dtype().is_float() {
        let vectors = hot.vectors(call.float("on_value")?, call.float("off_value")?);
        return call.give_floats(shape, vectors);
    }
    let value = |name: &str, default: i32| match call.has(name) {
        true => call.int(name),
        false => Ok(default),
    };
    let vectors = hot.vectors(value("on_value", 1)?, value("off_value", 0)?);
    call.give_ints(shape, vectors)
}

struct Hot<'a> {
    indices: &'a [i32],
    size: usize,
    /// Number of elements after the new axis.
    inner: usize,
}

impl Hot<'_> {
    fn vectors<T: Copy>(&self, on: T, off: T) -> Vec<T> {
        let mut vectors = vec![off; self.indices.len() * self.size];
        for (at, &index) in self.indices.iter().enumerate() {
            if let Ok(index) = usize::try_from(index)
                && index < self.size
            {
                let (line, step) = (at / self.inner, at % self.inner);
                vectors[(line * self.size + index) * self.inner + step] = on;
            }
        }
        vectors
    }
}

pub(super) fn pad(call: &Call) -> Results {
    let x = call.tensor("x")?;
    let pads = call.ints("pad", 0)?;
    let rank = x.rank();
    let padded = pads.len() / 2;
    if !pads.len().is_multiple_of(2) || padded > rank {
        fail!("`pad` has {} elements; expected two for each of up to {rank} axes", pads.len());
    }
    let mode = call.text("mode")?;
    let mut amounts = vec![[0, 0]; rank - padded];
    for (axis, pair) in (rank - padded..).zip(pads.chunks_exact(2)) {
        let extent = x.shape[axis];
        let amount = |amount: i32| match usize::try_from(amount) {
            Ok(amount) if amount <= reach(mode, extent) => Ok(amount),
            _ => {
                let most = reach(mode, extent).min(i32::MAX as usize);
                let message = format!(
                    "`pad` must hold numbers from 0 to {most} for axis {axis} of `x`, which has {extent} elements, \
                     with mode `{mode}`, got {amount}"
                );
                Err(Error::new(message))
            }
        };
        amounts.push([amount(pair[0])?, amount(pair[1])?]);
    }
    let mut shape = x.shape.to_vec();
    for (extent, [before, after]) in shape.iter_mut().zip(&amounts) {
        *extent = extent.saturating_add(before + after);
    }
    let count = call.count(&shape)?;
    if mode == "constant" {
        let mut elements = vec![call.float("constant_val")?; count];
        let mut inside = StridedView::dense(&shape);
        inside.shape = x.shape.to_vec();
        for (stride, [before, _]) in inside.strides.iter().zip(&amounts) {
            inside.start = inside.start.saturating_add((*stride as usize).saturating_mul(*before));
        }
        inside.write(x.floats()?, &mut elements);
        return call.give_floats(shape, elements);
    }
    if count == 0 {
        return call.give_floats(shape, Vec::new());
    }
    // Pad one axis at a time, innermost first, so that the copied runs grow.
    let mut elements = x.floats()?.to_vec();
    let mut run = 1;
    for axis in (0..rank).rev() {
        let extent = x.shape[axis];
        let sources = sources(mode, extent, amounts[axis])?;
        let lines = elements.len() / (extent * run);
        let line = |line| sources.iter().map(move |place| (line * extent + place) * run);
        let starts: Vec<usize> = (0..lines).flat_map(line).collect();
        elements = gathered(&elements, &starts, run);
        run *= shape[axis];
    }
    call.give_floats(shape, elements)
}

/// Source index of each element of a padded axis.
fn sources(mode: &str, extent: usize, [before, after]: [usize; 2]) -> Result<Vec<usize>> {
    let within = (0..extent).collect::<Vec<_>>();
    let (first, last): (Vec<usize>, Vec<usize>) = match mode {
        "reflect" => {
            ((1..=before).rev().collect(), (1..=after).map(|step| extent - 1 - step).collect())
        }
        "replicate" => (vec![0; before], vec![extent - 1; after]),
        other => fail!("unknown `mode` `{other}`"),
    };
    Ok([first, within, last].concat())
}

/// Maximum padding before or after an axis.
fn reach(mode: &str, extent: usize) -> usize {
    match mode {
        "reflect" => extent.saturating_sub(1),
        "replicate" => extent,
        _ => usize::MAX,
    }
}

pub(super) fn range_1d(call: &Call) -> Results {
    let dtype = call.dtype();
    if dtype.is_float() {
        let bounds = [call.float("start")?, call.float("end")?, call.float("step")?];
        return float_range(call, dtype, bounds.map(f64::from));
    }
    let [start, end, step] =
        [call.int("start")?, call.int("end")?, call.int("step")?].map(i64::from);
    if step == 0 {
        fail!("`step` must not be 0");
    }
    let (distance, width) = if step > 0 { (end - start, step) } else { (start - end, -step) };
    let count = if distance <= 0 { 0 } else { (distance - 1) / width + 1 };
    let count = call.count(&[count as usize])?;
    // Every element is between the two ends, so it fits.
    let range = (0..count as i64).map(|at| (start + at * step) as i32);
    call.give_ints([count], range.collect())
}

/// A range of floats as in numpy: each operation is rounded to the type, and the step is the
/// difference of the first two elements.
fn float_range(call: &Call, dtype: DType, [start, end, step]: [f64; 3]) -> Results {
    let round = |value: f64| match dtype {
        DType::Fp16 => f16::from_f64(value).to_f64(),
        _ => f64::from(value as f32),
    };
    let count = round(round(end - start) / step).ceil();
    if !count.is_finite() {
        fail!("the range from {start} to {end} in steps of {step} has {count} elements");
    }
    let count = call.count(&[count.max(0.0) as usize])?;
    let width = round(round(start + step) - start);
    let element = |at: usize| match at {
        0 => start,
        1 => round(start + step),
        at => round(start + round(at as f64 * width)),
    };
    call.give_floats([count], (0..count).map(|at| element(at) as f32).collect())
}

pub(super) fn shape(call: &Call) -> Results {
    let x = call.tensor("x")?;
    match x.shape.iter().map(|&extent| i32::try_from(extent).ok()).collect() {
        Some(extents) => call.give_ints([x.rank()], extents),
        None => fail!("`x` has shape {:?}; each size must fit `int32`", x.shape),
    }
}

pub(super) fn tile(call: &Call) -> Results {
    let x = call.tensor("x")?;
    let reps = call.ints("reps", 0)?;
    if reps.len() != x.rank() {
        fail!("`reps` has {} elements; `x` has {} axes", reps.len(), x.rank());
    }
    let dense = StridedView::dense(x.shape);
    let (mut shape, mut seen) =
        (Vec::new(), StridedView { shape: vec![], strides: vec![], ..dense });
    for (axis, &rep) in reps.iter().enumerate() {
        let Some(rep) = usize::try_from(rep).ok().filter(|&rep| rep > 0) else {
            fail!("`reps` must be at least 1, got {rep} for axis {axis}");
        };
        seen.shape.extend([rep, x.shape[axis]]);
        seen.strides.extend([0, dense.strides[axis]]);
        shape.push(x.shape[axis].saturating_mul(rep));
    }
    call.count(&shape)?;
    let elements = moved!(x, source => seen.read(source));
    Ok(vec![Array::from_elements(x.dtype, shape, elements)])
}
