//! Pooling.

use crate::bounds::CheckedInt;
use crate::lower::prelude::*;

pub(crate) const ROWS: &[Row] = &[
    several("aten.max_pool{1,2,3}d{,_with_indices}", max_pool),
    tensor("aten.avg_pool{1,2,3}d", average_pool),
    tensor("aten.max_unpool{2,3}d", max_unpool),
];

/// A window along one spatial dimension.
#[derive(Clone, Copy, Debug)]
struct Window {
    kernel: i64,
    stride: i64,
    dilation: i64,
    /// Padding on each side in torch.
    pad: i64,
    /// Static size of the input, if known.
    input: Option<i64>,
    /// Whether a partial last window counts (`ceil_mode`).
    rounded_up: bool,
}

impl Window {
    fn reach(&self) -> CheckedInt {
        (checked(self.kernel) - 1) * self.dilation + 1
    }

    /// Number of window positions for a static size.
    fn output(&self) -> Option<i64> {
        let input = self.input?;
        let room = (checked(input) + checked(self.pad) * 2 - self.reach()).get().ok()?;
        if !self.rounded_up {
            return Some(room.div_euclid(self.stride) + 1);
        }
        let steps = -(-room).div_euclid(self.stride) + 1;
        // A window must not start in the trailing padding.
        let start = ((checked(steps) - 1) * self.stride).get().ok()?;
        Some(if start >= input + self.pad { steps - 1 } else { steps })
    }

    /// Number of elements by which the last window exceeds the padding.
    fn beyond(&self) -> Option<i64> {
        let reached = (checked(self.output()?) - 1) * self.stride + self.reach();
        let beyond = reached - self.input? - checked(self.pad) * 2;
        Some(beyond.get().ok()?.max(0))
    }
}

/// Input and windows of a pool.
struct Pool {
    /// `[batch, channels, ...]`.
    x: ValueId,
    /// Whether torch's input has a batch axis.
    batched: bool,
    windows: Vec<Window>,
}

impl Pool {
    fn of(call: &mut Call<'_, '_>) -> Result<Pool> {
        let (x, spatial) = (call.value("self")?, call.spatial());
        let (x, batched) = with_batch(call, x, spatial)?;
        let kernels = call.per_dimension("kernel_size", spatial)?;
        let strides = match call.known_ints("stride")?.is_empty() {
            true => kernels.clone(),
            false => call.per_dimension("stride", spatial)?,
        };
        let pads = call.per_dimension("padding", spatial)?;
        let dilations = match call.has("dilation") {
            true => call.per_dimension("dilation", spatial)?,
            false => vec![1; spatial],
        };
        let rounded_up = call.flag("ceil_mode")?;
        let extents = call.extents(x);
        let mut windows = Vec::with_capacity(spatial);
        for axis in 0..spatial {
            windows.push(Window {
                kernel: (*kernels.at(axis)?).into(),
                stride: (*strides.at(axis)?).into(),
                dilation: (*dilations.at(axis)?).into(),
                pad: (*pads.at(axis)?).into(),
                input: extents.at(axis + 2)?.map(|extent| extent as i64),
                rounded_up,
            });
        }
        Ok(Pool { x, batched, windows })
    }

    /// Appends a pool operation.
    ///
    /// For static sizes, windows beyond the padding get more trailing padding, unless the operation must distinguish
    /// torch's padding.
    fn emit(
        &self,
        builder: &mut Builder,
        kind: OpKind,
        keeps_torch_padding: bool,
        excluded: Option<bool>,
    ) -> ValueResult {
        let ints = |of: fn(&Window) -> i64| -> Vec<i32> {
            self.windows.iter().map(|window| of(window) as i32).collect()
        };
        let beyond: Option<Vec<i64>> = self.windows.iter().map(Window::beyond).collect();
        let needs_more = beyond.as_ref().is_none_or(|all| all.iter().any(|&beyond| beyond > 0));
        let rounded_up = self.windows.iter().any(|window| window.rounded_up);
        let rounds = rounded_up && needs_more && (keeps_torch_padding || beyond.is_none());
        let pad: Vec<i32> = self
            .windows
            .iter()
            .enumerate()
            .flat_map(|(axis, window)| {
                let more = match &beyond {
                    Some(beyond) if !rounds => beyond.get(axis).copied().unwrap_or(0),
                    _ => 0,
                };
                [window.pad as i32, (window.pad + more) as i32]
            })
            .collect();
        let pad_type = if pad.iter().all(|&pad| pad == 0) { "valid" } else { "custom" };
        emit!(
            builder,
            kind,
            x = self.x,
            kernel_sizes = ints(|window| window.kernel).as_slice(),
            strides = ints(|window| window.stride).as_slice(),
            pad_type,
            pad = pad.as_slice(),
            ceil_mode = rounds,
            exclude_padding_from_average = excluded
        )
    }

    fn finish(&self, builder: &mut Builder, y: ValueId) -> ValueResult {
        without_batch(builder, y, self.batched)
    }
}

/// Removes the batch axis that was added to an unbatched input.
pub(crate) fn without_batch(builder: &mut Builder, y: ValueId, batched: bool) -> ValueResult {
    if batched { Ok(y) } else { builder.squeeze(y, &[0]) }
}

/// Adds a batch axis if needed; returns whether there was one.
pub(crate) fn with_batch(
    builder: &mut Builder,
    x: ValueId,
    spatial: usize,
) -> Result<(ValueId, bool)> {
    let rank = builder.rank(x);
    if rank == spatial + 2 {
        Ok((x, true))
    } else if rank == spatial + 1 {
        Ok((builder.expand_dims(x, &[0])?, false))
    } else {
        refuse!("`self` must have rank {} or {}, got {rank}", spatial + 1, spatial + 2)
    }
}

fn max_pool(call: &mut Call<'_, '_>) -> Results {
    let pool = Pool::of(call)?;
    let dtype = call.result_dtype()?;
    let dilated = pool.windows.iter().any(|window| window.dilation > 1);
    let y = if is_float(dtype) && !dilated {
        pool.emit(call, OpKind::MaxPool, false, None)?
    } else {
        sliced_max(call, &pool, is_float(dtype))?
    };
    let y = pool.finish(call, y)?;
    let mut results = vec![y];
    if call.is_used(1) {
        let windows: Option<Vec<_>> = pool.windows.iter().map(positions).collect();
        let Some(windows) = windows else {
            refuse!(
                "the indices of `max_pool` require fixed spatial sizes; these are \
                 not known before the program runs"
            );
        };
        let indices = places_of_largest(call, pool.x, &windows)?;
        results.push(pool.finish(call, indices)?);
    }
    call.give_all(&results)
}

/// Max pool of dilated windows or of integers: per axis, the maximum over one slice per window position.
fn sliced_max(builder: &mut Builder, pool: &Pool, float: bool) -> ValueResult {
    let mut y = pool.x;
    for (axis, window) in pool.windows.iter().enumerate() {
        let axis = axis + 2;
        let (Some(input), Some(steps), Some(beyond)) =
            (window.input, window.output(), window.beyond())
        else {
            refuse!("`max_pool` with dilation, or of integers, requires fixed spatial sizes");
        };
        let after = window.pad + beyond;
        if window.pad > 0 || after > 0 {
            if !float {
                refuse!("`max_pool` of integers requires `padding` 0, got {}", window.pad);
            }
            let mut pad = vec![0; 2 * builder.rank(y)];
            *pad.at_mut(2 * axis)? = window.pad as i32;
            *pad.at_mut(2 * axis + 1)? = after as i32;
            y = builder.padded(y, &pad, f32::NEG_INFINITY)?;
        }
        let extent = input + window.pad + after;
        let mut most = None;
        for place in 0..window.kernel {
            let begin = (checked(place) * window.dilation).get()?;
            let end = ((checked(steps) - 1) * window.stride + begin + 1).get()?;
            let end = (end < extent).then_some(Int::Known(end));
            let range = Range { begin: Int::Known(begin), end, step: window.stride };
            let seen = builder.sliced(y, axis, range)?;
            most = Some(match most {
                Some(most) => builder.binary(OpKind::Maximum, most, seen)?,
                None => seen,
            });
        }
        y = most.unwrap_or(y);
    }
    Ok(y)
}

/// Input positions of each window along one dimension; `None` outside the input.
fn positions(window: &Window) -> Option<Positions> {
    let (input, steps) = (window.input?, window.output()?);
    checked_numel(&[steps, window.kernel]).ok()?;
    let seen = (0..steps).map(|step| {
        let places = (0..window.kernel).map(|place| {
            let start = checked(step) * window.stride - window.pad;
            let at = (start + checked(place) * window.dilation).get().ok()?;
            (0..input).contains(&at).then_some(at)
        });
        places.collect()
    });
    Some(Positions { input, seen: seen.collect() })
}

/// Input positions of each window along one dimension, equally many per window.
pub(crate) struct Positions {
    pub(crate) input: i64,
    pub(crate) seen: Vec<Vec<Option<i64>>>,
}

/// Maximum number of elements of an index table.
const MAX_TABLE_ELEMENTS: i64 = 1 << 22;

/// Index within the plane of the largest element of each window; the first of several.
///
/// A constant table lists the elements of every window. They are gathered, the argmax within the window is computed,
/// and a second lookup maps it to the plane.
pub(crate) fn places_of_largest(
    builder: &mut Builder,
    x: ValueId,
    windows: &[Positions],
) -> ValueResult {
    let inputs: Vec<i64> = windows.iter().map(|window| window.input).collect();
    let plane = product(&inputs).get()?;
    let outputs: Vec<i64> = windows.iter().map(|window| window.seen.len() as i64).collect();
    let width = windows.iter().map(|window| window.seen.first().map_or(0, Vec::len) as i64);
    let (rows, width) = (product(&outputs), product(&width.collect::<Vec<_>>()));
    if (rows * width).get()? > MAX_TABLE_ELEMENTS {
        let (rows, width) = (rows.get()?, width.get()?);
        refuse!("{rows} windows of {width} elements have too many indices");
    }
    // Positions outside the plane index one element behind it, which is the minimum.
    let mut table: Vec<Vec<Option<i64>>> = vec![vec![Some(0)]];
    for window in windows {
        let rows = table.iter().flat_map(|row| {
            window.seen.iter().map(move |seen| {
                let places = row.iter().flat_map(|&row| {
                    let within =
                        move |&at: &Option<i64>| (checked(row?) * window.input + at?).get().ok();
                    seen.iter().map(within)
                });
                places.collect::<Vec<_>>()
            })
        });
        table = rows.collect();
    }
    let width = table.first().map_or(0, Vec::len);
    let outside = plane as i32;
    let flat: Vec<i32> =
        table.iter().flatten().map(|place| place.map_or(outside, |place| place as i32)).collect();

    let lines = builder.dims(x)?.part(..2)?.to_vec();
    let mut sizes = lines.clone();
    sizes.push(Int::Known(plane));
    let mut planes = builder.reshape(x, &sizes)?;
    if flat.contains(&outside) {
        planes = builder.padded(planes, &[0, 0, 0, 0, 0, 1], f32::NEG_INFINITY)?;
    }
    let seen = builder.int_constant(&[table.len() as u64, width as u64], &flat);
    let seen = builder.looked_up(planes, seen, 2)?;
    let chosen = emit!(builder, OpKind::ReduceArgmax, x = seen, axis = 3, keep_dims = false)?;
    let starts: Vec<i32> = (0..table.len()).map(|row| row.saturating_mul(width) as i32).collect();
    let starts = builder.int_constant(&[table.len() as u64], &starts);
    let at = builder.binary(OpKind::Add, chosen, starts)?;
    let flat = builder.int_constant(&[flat.len() as u64], &flat);
    let places = builder.looked_up(flat, at, 0)?;
    let mut sizes = lines;
    sizes.extend(outputs.into_iter().map(Int::Known));
    builder.reshape(places, &sizes)
}

fn average_pool(call: &mut Call<'_, '_>) -> ValueResult {
    let dtype = call.result_dtype()?;
    if !is_float(dtype) {
        refuse!("`avg_pool` requires floats, got `{dtype}`");
    }
    let pool = Pool::of(call)?;
    let padded = pool.windows.iter().any(|window| window.pad > 0);
    let beyond: Option<Vec<i64>> = pool.windows.iter().map(Window::beyond).collect();
    let beyond_padding = beyond.is_none_or(|all| all.iter().any(|&beyond| beyond > 0));
    if call.has("divisor_override") {
        let divisor = call.known_int("divisor_override")?;
        if divisor == 0 {
            refuse!("`divisor_override` must not be 0");
        }
        // With `divisor_override`, the mean over all elements is rescaled by their number.
        let mean = pool.emit(call, OpKind::AvgPool, false, Some(false))?;
        let kernels: Vec<i64> = pool.windows.iter().map(|window| window.kernel).collect();
        let count = product(&kernels).get()?;
        let y = call.scaled(mean, count as f64 / divisor as f64)?;
        return pool.finish(call, y);
    }
    let excluded = padded && !call.flag("count_include_pad")?;
    let y = if !pool.windows.iter().any(|window| window.rounded_up) || !beyond_padding {
        pool.emit(call, OpKind::AvgPool, false, Some(excluded))?
    } else if excluded || !padded {
        // Without torch's padding, all padding comes from partial windows.
        pool.emit(call, OpKind::AvgPool, false, Some(true))?
    } else if pool.windows.len() < 3 {
        pool.emit(call, OpKind::AvgPool, true, Some(false))?
    } else {
        partly_padded_average(call, &pool)?
    };
    pool.finish(call, y)
}

/// Average that includes torch's padding but not the elements beyond it.
fn partly_padded_average(builder: &mut Builder, pool: &Pool) -> ValueResult {
    let mean = pool.emit(builder, OpKind::AvgPool, false, Some(false))?;
    let mut factors = vec![1.0f32];
    let mut shape = vec![1, 1];
    for window in &pool.windows {
        let (Some(input), Some(steps)) = (window.input, window.output()) else {
            refuse!("`avg_pool` with `ceil_mode` over three dimensions requires fixed sizes");
        };
        shape.push(steps as u64);
        let line: Vec<f32> = (0..steps)
            .map(|step| {
                let start = step.saturating_mul(window.stride);
                let end = (start + window.kernel).min(input + window.pad + window.pad);
                window.kernel as f32 / (end - start) as f32
            })
            .collect();
        let both =
            factors.iter().flat_map(|&factor| line.iter().map(move |&more: &f32| factor * more));
        factors = both.collect();
    }
    let factors = builder.float_constant(&shape, &factors);
    builder.binary(OpKind::Mul, mean, factors)
}

/// Scatters elements to their indices in planes of zeros.
fn max_unpool(call: &mut Call<'_, '_>) -> ValueResult {
    let (x, spatial) = (call.value("self")?, call.spatial());
    let indices = call.value("indices")?;
    let sizes = call.known_ints("output_size")?;
    let (x, batched) = with_batch(call, x, spatial)?;
    let (indices, _) = with_batch(call, indices, spatial)?;
    let lines = call.dims(x)?.part(..2)?.to_vec();
    let plane = product(&sizes).get()?;
    if lines.iter().any(|line| line.known().is_none()) {
        refuse!("`max_unpool` requires fixed sizes");
    }
    let flat: Vec<_> = lines.iter().copied().chain([Int::Known(-1)]).collect();
    let (updates, indices) = (call.reshape(x, &flat)?, call.reshape(indices, &flat)?);
    let shape: Vec<_> = lines.iter().copied().chain([Int::Known(plane)]).collect();
    let data = call.full(&shape, DType::Fp32, 0.0)?;
    let kind = OpKind::ScatterAlongAxis;
    let scattered = emit!(call, kind, data, indices, updates, axis = 2, mode = "update")?;
    let mut shape: Vec<_> = if batched { lines } else { lines.part(1..)?.to_vec() };
    shape.extend(sizes.into_iter().map(Int::Known));
    call.reshape(scattered, &shape)
}
