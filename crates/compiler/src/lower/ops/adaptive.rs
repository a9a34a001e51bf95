//! Adaptive pools, whose windows follow from the output size.

use super::linear::times_along;
use super::pooling::{Positions, places_of_largest, with_batch, without_batch};
use crate::lower::prelude::*;

pub(crate) const ROWS: &[Row] = &[
    tensor("aten.{,_}adaptive_avg_pool{1,2,3}d", average),
    several("aten.adaptive_max_pool{1,2,3}d", largest),
];

/// A spatial dimension: static input size, if known, and number of windows.
struct Axis {
    input: Option<i64>,
    output: i64,
}

impl Axis {
    /// Start and end of each window.
    fn windows(&self) -> Option<Vec<(i64, i64)>> {
        checked_numel(&[self.output]).ok()?;
        let (input, output) = (self.input?, self.output);
        let start = |at: i64| at * input / output;
        let end = |at: i64| ((at + 1) * input + output - 1) / output;
        Some((0..output).map(|at| (start(at), end(at))).collect())
    }

    fn is_whole(&self) -> bool {
        self.output == 1
    }

    fn is_kept(&self) -> bool {
        self.input == Some(self.output)
    }

    /// Window size if all windows are adjacent and equal.
    fn evenly(&self) -> Option<i64> {
        let (input, output) = (self.input?, self.output);
        (output > 0 && input % output == 0).then(|| input / output)
    }
}

/// The batched input, whether it had a batch axis, and its spatial dimensions.
fn operand(call: &mut Call<'_, '_>) -> Result<(ValueId, bool, Vec<Axis>)> {
    let (x, spatial) = (call.value("self")?, call.spatial());
    let (x, batched) = with_batch(call, x, spatial)?;
    let sizes = call.per_dimension("output_size", spatial)?;
    let extents = call.extents(x);
    let mut axes = Vec::with_capacity(spatial);
    for (axis, size) in sizes.into_iter().enumerate() {
        let output = i64::from(size);
        let input = extents.at(axis + 2)?.map(|extent| extent as i64);
        if input.is_none() && output != 1 {
            refuse!("`output_size` must be 1 along a dimension with a dynamic size, got {output}");
        }
        axes.push(Axis { input, output });
    }
    Ok((x, batched, axes))
}

/// Pools along one axis with windows that are neither adjacent nor the whole axis.
type Along = fn(&mut Builder, ValueId, usize, &Axis) -> ValueResult;

/// Pools with a reduction for whole axes, and with one of Core ML's pools for adjacent windows.
fn pooled(
    builder: &mut Builder,
    x: ValueId,
    axes: &[Axis],
    [whole, pool]: [OpKind; 2],
    along: Along,
) -> ValueResult {
    let changed: Vec<_> = axes.iter().enumerate().filter(|(_, axis)| !axis.is_kept()).collect();
    if changed.is_empty() {
        return Ok(x);
    }
    if changed.iter().all(|(_, axis)| axis.is_whole()) {
        let places: Vec<_> = changed.iter().map(|(at, _)| at + 2).collect();
        return builder.reduced(whole, x, &places, true);
    }
    if let Some(kernel) = axes.iter().map(Axis::evenly).collect::<Option<Vec<_>>>() {
        let kernel: Vec<_> = kernel.into_iter().map(|extent| extent as i32).collect();
        let (kernel_sizes, strides) = (kernel.as_slice(), kernel.as_slice());
        return emit!(builder, pool, x, kernel_sizes, strides, pad_type = "valid");
    }
    let mut y = x;
    for (at, axis) in changed.into_iter().rev() {
        y = match axis.is_whole() {
            true => builder.reduced(whole, y, &[at + 2], true)?,
            false => along(builder, y, at + 2, axis)?,
        };
    }
    Ok(y)
}

fn average(call: &mut Call<'_, '_>) -> ValueResult {
    let (x, batched, axes) = operand(call)?;
    let y = pooled(call, x, &axes, [OpKind::ReduceMean, OpKind::AvgPool], averaged)?;
    without_batch(call, y, batched)
}

/// Averages along an axis by multiplying with a constant matrix.
fn averaged(builder: &mut Builder, x: ValueId, axis: usize, of: &Axis) -> ValueResult {
    let (Some(input), Some(windows)) = (of.input, of.windows()) else {
        refuse!("the windows of an adaptive pool are not known before the program runs");
    };
    checked_numel(&[of.output, input])?;
    let rows = windows.into_iter().flat_map(|(start, end)| {
        let share = 1.0 / (end - start) as f32;
        (0..input).map(move |at| if (start..end).contains(&at) { share } else { 0.0 })
    });
    let rows: Vec<f32> = rows.collect();
    let matrix = builder.float_constant(&[of.output as u64, input as u64], &rows);
    times_along(builder, x, axis, matrix)
}

fn largest(call: &mut Call<'_, '_>) -> Results {
    let (x, batched, axes) = operand(call)?;
    let y = pooled(call, x, &axes, [OpKind::ReduceMax, OpKind::MaxPool], largest_along)?;
    let mut results = vec![without_batch(call, y, batched)?];
    if call.is_used(1) {
        let windows: Option<Vec<_>> = axes.iter().map(positions).collect();
        let Some(windows) = windows else {
            refuse!("returning the indices of an adaptive pool requires fixed sizes");
        };
        let indices = places_of_largest(call, x, &windows)?;
        results.push(without_batch(call, indices, batched)?);
    }
    call.give_all(&results)
}

/// Elements of each window. Smaller windows repeat their last element.
fn positions(axis: &Axis) -> Option<Positions> {
    let windows = axis.windows()?;
    let width = windows.iter().map(|(start, end)| end - start).max()?;
    checked_numel(&[axis.output, width]).ok()?;
    let seen = windows
        .iter()
        .map(|&(start, end)| (0..width).map(|place| Some((start + place).min(end - 1))).collect());
    Some(Positions { input: axis.input?, seen: seen.collect() })
}

fn largest_along(builder: &mut Builder, x: ValueId, axis: usize, of: &Axis) -> ValueResult {
    let Some(windows) = positions(of) else {
        refuse!("the windows of an adaptive pool are not known before the program runs");
    };
    let width = windows.seen.first().map_or(0, Vec::len);
    if builder.rank(x) < 5 {
        let places: Vec<i32> =
            windows.seen.iter().flatten().map(|at| at.unwrap_or(0) as i32).collect();
        let places = builder.int_constant(&[of.output as u64, width as u64], &places);
        let seen = builder.looked_up(x, places, axis)?;
        return builder.reduced(OpKind::ReduceMax, seen, &[axis + 1], false);
    }
    // There is no sixth axis, so the first elements of all windows are gathered, then the second ones, and so on.
    let mut columns = Vec::with_capacity(width);
    for place in 0..width {
        let seen = windows.seen.iter().map(|seen| seen.get(place).copied().flatten());
        let places: Vec<i32> = seen.map(|at| at.unwrap_or(0) as i32).collect();
        let places = builder.int_constant(&[of.output as u64], &places);
        columns.push(builder.looked_up(x, places, axis)?);
    }
    let mut most = *columns.at(0)?;
    for &column in columns.part(1..)? {
        most = builder.binary(OpKind::Maximum, most, column)?;
    }
    Ok(most)
}
