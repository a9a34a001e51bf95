//! Pools whose windows follow from how many results there are to be.

use coremill_mil::ir::ValueId;
use coremill_mil::ops::OpKind;

use super::linear::product;
use super::pooling::{Positions, gathered, places_of_largest, with_batch};
use crate::bounds::{At, created};
use crate::error::{Refusal, refuse};
use crate::lower::builder::Builder;
use crate::lower::call::{Call, Results};
use crate::lower::row::{Row, all};
use crate::lower::value::{Int, Lowered};

pub(crate) const ROWS: &[Row] = &[
    all("aten.adaptive_avg_pool1d", |call| average(call, 1)),
    all("aten.adaptive_avg_pool2d", |call| average(call, 2)),
    all("aten.adaptive_avg_pool3d", |call| average(call, 3)),
    all("aten._adaptive_avg_pool2d", |call| average(call, 2)),
    all("aten._adaptive_avg_pool3d", |call| average(call, 3)),
    all("aten.adaptive_max_pool1d", |call| largest(call, 1)),
    all("aten.adaptive_max_pool2d", |call| largest(call, 2)),
    all("aten.adaptive_max_pool3d", |call| largest(call, 3)),
];

/// One spatial dimension: its extent, if it is fixed, and how many windows there are.
struct Axis {
    input: Option<i64>,
    output: i64,
}

impl Axis {
    /// Where each window begins and ends.
    fn windows(&self) -> Option<Vec<(i64, i64)>> {
        created(&[self.output]).ok()?;
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

    /// The extent of windows side by side.
    fn evenly(&self) -> Option<i64> {
        let (input, output) = (self.input?, self.output);
        (output > 0 && input % output == 0).then(|| input / output)
    }
}

fn axes(call: &mut Call<'_, '_>, x: ValueId, spatial: usize) -> Result<Vec<Axis>, Refusal> {
    let sizes = call.int_list("output_size")?;
    let sizes = if let ([only], true) = (sizes.as_slice(), spatial > 1) {
        vec![*only; spatial]
    } else {
        sizes
    };
    let extents = call.extents(x);
    let mut axes = Vec::with_capacity(spatial);
    for (axis, size) in sizes.into_iter().enumerate() {
        let Some(output) = size.known() else {
            refuse!("`output_size` is not known before the program runs");
        };
        let input = extents.at(axis + 2)?.map(|extent| extent as i64);
        if input.is_none() && output != 1 {
            refuse!(
                "`output_size` is {output} along a dimension whose size is not fixed, so that the \
                 windows are not known; accepted is 1"
            );
        }
        axes.push(Axis { input, output });
    }
    Ok(axes)
}

/// Pools that windows side by side, or all elements, make up.
fn plain(
    builder: &mut Builder,
    x: ValueId,
    axes: &[Axis],
    whole: OpKind,
    pool: OpKind,
) -> Result<Option<ValueId>, Refusal> {
    if axes.iter().all(Axis::is_kept) {
        return Ok(Some(x));
    }
    if axes.iter().all(|axis| axis.is_whole() || axis.is_kept()) {
        let reduced = axes.iter().enumerate().filter(|(_, axis)| !axis.is_kept());
        let reduced: Vec<_> = reduced.map(|(at, _)| at + 2).collect();
        return builder.reduced(whole, x, &reduced, true).map(Some);
    }
    let Some(kernel) = axes.iter().map(Axis::evenly).collect::<Option<Vec<_>>>() else {
        return Ok(None);
    };
    let kernel: Vec<_> = kernel.into_iter().map(|extent| extent as i32).collect();
    let y = builder.emit(
        pool,
        [
            ("x", x.into()),
            ("kernel_sizes", kernel.as_slice().into()),
            ("strides", kernel.as_slice().into()),
            ("pad_type", "valid".into()),
        ],
    )?;
    Ok(Some(y))
}

fn average(call: &mut Call<'_, '_>, spatial: usize) -> Results {
    let x = call.tensor("self")?.value;
    let (x, batched) = with_batch(call, x, spatial)?;
    let axes = axes(call, x, spatial)?;
    let plain = plain(call, x, &axes, OpKind::ReduceMean, OpKind::AvgPool)?;
    let y = match plain {
        Some(y) => y,
        None => {
            let mut y = x;
            for (axis, of) in axes.iter().enumerate().rev() {
                y = averaged(call, y, axis + 2, of)?;
            }
            y
        }
    };
    let y = if batched { y } else { call.squeeze(y, &[0])? };
    call.give(y)
}

/// Averages along one axis: the product with a constant matrix.
fn averaged(builder: &mut Builder, x: ValueId, axis: usize, of: &Axis) -> Result<ValueId, Refusal> {
    if of.is_kept() {
        return Ok(x);
    }
    if of.is_whole() {
        return builder.reduced(OpKind::ReduceMean, x, &[axis], true);
    }
    let (Some(input), Some(windows)) = (of.input, of.windows()) else {
        refuse!("the windows of an adaptive pool are not known before the program runs");
    };
    created(&[of.output, input])?;
    let rows = windows.into_iter().flat_map(|(start, end)| {
        let share = 1.0 / (end - start) as f32;
        (0..input).map(move |at| if (start..end).contains(&at) { share } else { 0.0 })
    });
    let rows: Vec<f32> = rows.collect();
    let matrix = builder.float_constant(&[of.output as u64, input as u64], &rows);
    times_along(builder, x, axis, matrix)
}

/// The product of a constant matrix with each line of a tensor along an axis.
pub(crate) fn times_along(
    builder: &mut Builder,
    x: ValueId,
    axis: usize,
    matrix: ValueId,
) -> Result<ValueId, Refusal> {
    let rank = builder.rank(x);
    if axis + 1 == rank {
        return product(builder, x, matrix, false, true);
    }
    if axis + 2 == rank {
        return builder.binary(OpKind::Matmul, matrix, x);
    }
    // The axes behind it as one.
    let rows = builder.shape(matrix).at(0)?.known();
    let mut sizes = builder.dims(x)?;
    let joined: Vec<_> = sizes.part(..=axis)?.iter().copied().chain([Int::Known(-1)]).collect();
    let lines = builder.reshape(x, &joined)?;
    let product = builder.binary(OpKind::Matmul, matrix, lines)?;
    *sizes.at_mut(axis)? = Int::Known(rows.unwrap_or(1) as i64);
    builder.reshape(product, &sizes)
}

fn largest(call: &mut Call<'_, '_>, spatial: usize) -> Results {
    let x = call.tensor("self")?;
    let (x, batched) = with_batch(call, x.value, spatial)?;
    let axes = axes(call, x, spatial)?;
    let plain = plain(call, x, &axes, OpKind::ReduceMax, OpKind::MaxPool)?;
    let y = match plain {
        Some(y) => y,
        None => {
            let mut y = x;
            for (axis, of) in axes.iter().enumerate().rev() {
                y = largest_along(call, y, axis + 2, of)?;
            }
            y
        }
    };
    let y = if batched { y } else { call.squeeze(y, &[0])? };
    let mut results = vec![Lowered::tensor(y, call.result_dtype()?)];
    if call.is_used(1) {
        let windows: Option<Vec<_>> = axes.iter().map(positions).collect();
        let Some(windows) = windows else {
            refuse!("the indices of an adaptive pool are lowered for sizes that are fixed");
        };
        let indices = places_of_largest(call, x, &windows)?;
        let indices = if batched { indices } else { call.squeeze(indices, &[0])? };
        results.push(Lowered::tensor(indices, call.result_tensor(1)?.dtype));
    }
    Ok(results)
}

/// What each window sees, the last element again and again where others see more.
fn positions(axis: &Axis) -> Option<Positions> {
    let windows = axis.windows()?;
    let width = windows.iter().map(|(start, end)| end - start).max()?;
    created(&[axis.output, width]).ok()?;
    let seen = windows
        .iter()
        .map(|&(start, end)| (0..width).map(|place| Some((start + place).min(end - 1))).collect());
    Some(Positions { input: axis.input?, seen: seen.collect() })
}

fn largest_along(
    builder: &mut Builder,
    x: ValueId,
    axis: usize,
    of: &Axis,
) -> Result<ValueId, Refusal> {
    if of.is_kept() {
        return Ok(x);
    }
    if of.is_whole() {
        return builder.reduced(OpKind::ReduceMax, x, &[axis], true);
    }
    let Some(windows) = positions(of) else {
        refuse!("the windows of an adaptive pool are not known before the program runs");
    };
    let rank = builder.rank(x);
    let mut columns = Vec::new();
    let width = windows.seen.first().map_or(0, Vec::len);
    if rank < 5 {
        let places: Vec<i32> =
            windows.seen.iter().flatten().map(|at| at.unwrap_or(0) as i32).collect();
        let places = builder.int_constant(&[of.output as u64, width as u64], &places);
        let seen = gathered(builder, x, places, axis as i32)?;
        return builder.reduced(OpKind::ReduceMax, seen, &[axis + 1], false);
    }
    // There is no sixth dimension: the first elements of all windows, the second ones, and so on.
    for place in 0..width {
        let places: Vec<i32> = windows
            .seen
            .iter()
            .map(|seen| seen.get(place).copied().flatten().unwrap_or(0) as i32)
            .collect();
        let places = builder.int_constant(&[of.output as u64], &places);
        columns.push(gathered(builder, x, places, axis as i32)?);
    }
    let mut most = *columns.at(0)?;
    for &column in columns.part(1..)? {
        most = builder.binary(OpKind::Maximum, most, column)?;
    }
    Ok(most)
}
