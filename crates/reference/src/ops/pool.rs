//! Reference kernels of pooling.

use std::ops::Range;

use super::window::{Window, positive, windows};
use crate::call::{Call, Results};
use crate::error::fail;

pub(super) fn avg_pool(call: &Call) -> Results {
    let exclude = call.bool("exclude_padding_from_average")?;
    pool(call, |x, reach| {
        let sum: f64 = reach.places(|at| f64::from(x[at])).sum();
        let count = if exclude { reach.inside() } else { reach.padded() };
        // The mean of an empty window is 0.
        if count == 0 { 0.0 } else { (sum / count as f64) as f32 }
    })
}

pub(super) fn l2_pool(call: &Call) -> Results {
    pool(call, |x, reach| {
        let sum: f64 = reach.places(|at| f64::from(x[at]) * f64::from(x[at])).sum();
        sum.sqrt() as f32
    })
}

pub(super) fn max_pool(call: &Call) -> Results {
    pool(call, |x, reach| {
        let larger = |most: f32, x: f32| if x > most || x.is_nan() { x } else { most };
        let keep = |most: f32, x: f32| if most.is_nan() { most } else { larger(most, x) };
        reach.places(|at| x[at]).fold(f32::NEG_INFINITY, keep)
    })
}

/// The input range of a window at one position, along up to three dimensions. Missing dimensions
/// have a range of one element.
struct WindowExtent {
    /// Indices inside the input.
    inside: [Range<usize>; 3],
    /// Number of elements along each dimension, including padding.
    padded: [usize; 3],
    extents: [usize; 3],
}

impl WindowExtent {
    fn inside(&self) -> usize {
        self.inside.iter().map(Range::len).product()
    }

    fn padded(&self) -> usize {
        self.padded.iter().fold(1, |product, &extent| product.saturating_mul(extent))
    }

    /// Applies `element` to each index of the channel that the window covers.
    fn places<T>(&self, element: impl Fn(usize) -> T) -> impl Iterator<Item = T> {
        let [_, height, width] = self.extents;
        let [planes, rows, columns] = self.inside.clone();
        let starts = planes
            .flat_map(move |plane| rows.clone().map(move |row| (plane * height + row) * width));
        starts.flat_map(move |start| columns.clone().map(move |column| start + column)).map(element)
    }
}

/// Along one dimension: the indices inside the input, and the number of elements including padding.
pub fn reach(window: &Window, step: usize) -> (Range<usize>, usize) {
    let start = step as i64 * window.stride - window.before;
    // With `ceil_mode` the window may extend beyond the padding. Elements there are not counted.
    let end = (start + window.kernel as i64).min(window.input as i64 + window.after);
    let clamp = |at: i64| at.clamp(0, window.input as i64) as usize;
    let inside = clamp(start)..clamp(end);
    (inside.start..inside.end.max(inside.start), (end - start).max(0) as usize)
}

fn pool(call: &Call, reduce: impl Fn(&[f32], &WindowExtent) -> f32) -> Results {
    let x = call.tensor("x")?;
    if !(3..=5).contains(&x.rank()) {
        fail!("`x` must have rank 3 to 5, got {}", x.rank());
    }
    let spatial = x.rank() - 2;
    let kernel: Vec<usize> =
        positive(call, "kernel_sizes", spatial)?.into_iter().map(|size| size as usize).collect();
    let rounded_up = call.bool("ceil_mode")?;
    let windows = windows(call, &x.shape[2..], &kernel, &vec![1; spatial], rounded_up)?;
    let mut shape = x.shape[..2].to_vec();
    shape.extend(windows.iter().map(|window| window.output));
    let count = call.count(&shape)?;
    let (plane, x) = (call.count(&x.shape[2..])?, call.floats("x")?);

    if count == 0 {
        return call.give_floats(shape, Vec::new());
    }
    let positions = call.count(&shape[2..])?;
    let absent = 3 - spatial;
    let along = |axis: usize, index: usize| match axis.checked_sub(absent) {
        Some(axis) => reach(&windows[axis], index),
        None => (0..1, 1),
    };
    let steps = |axis: usize| axis.checked_sub(absent).map_or(1, |axis| windows[axis].output);
    let extent = |axis: usize| axis.checked_sub(absent).map_or(1, |axis| windows[axis].input);
    let extents = [0, 1, 2].map(extent);
    let mut output = vec![0.0; count];
    for position in 0..positions {
        let (rest, column) = (position / steps(2), position % steps(2));
        let index = [rest / steps(1), rest % steps(1), column];
        let [planes, rows, columns] = [0, 1, 2].map(|axis| along(axis, index[axis]));
        let reach = WindowExtent {
            inside: [planes.0, rows.0, columns.0],
            padded: [planes.1, rows.1, columns.1],
            extents,
        };
        for channel in 0..shape[0] * shape[1] {
            let x = &x[channel * plane..(channel + 1) * plane];
            output[channel * positions + position] = reduce(x, &reach);
        }
    }
    call.give_floats(shape, output)
}
