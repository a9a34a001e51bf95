//! Reference kernels of gather and scatter operations.

use coremill_mil::ir::Opset;

use crate::array::{ElementsView, View};
use crate::call::{Call, Results};
use crate::error::{Error, Result, fail};
use crate::geometry::{around, strides};

pub(super) fn gather(call: &Call) -> Results {
    let (x, indices) = (call.tensor("x")?, call.tensor("indices")?);
    let axis = call.axis("axis", x.rank())?;
    let batch = batch_dims(call, x, indices)?;
    if batch > axis {
        fail!("`axis` must not be one of the {batch} batch axes, got {axis}");
    }
    let mut shape = x.shape[..axis].to_vec();
    shape.extend_from_slice(&indices.shape[batch..]);
    shape.extend_from_slice(&x.shape[axis + 1..]);
    let count = call.count(&shape)?;
    let places = Axis::of(call, x, axis).places(indices.ints()?)?;
    if count == 0 {
        return Ok(vec![x.runs(shape, &[], 0)]);
    }

    let batches: usize = x.shape[..batch].iter().product();
    let between: usize = x.shape[batch..axis].iter().product();
    let (extent, length) = (x.shape[axis], x.shape[axis + 1..].iter().product::<usize>());
    let mut starts = Vec::with_capacity(count / length);
    for (at, places) in places.chunks_exact(places.len() / batches).enumerate() {
        for line in at * between..(at + 1) * between {
            starts.extend(places.iter().map(|place| (line * extent + place) * length));
        }
    }
    Ok(vec![x.runs(shape, &starts, length)])
}

pub(super) fn gather_along_axis(call: &Call) -> Results {
    let (x, indices) = (call.tensor("x")?, call.tensor("indices")?);
    let axis = call.axis("axis", x.rank())?;
    let shape = indices.shape.to_vec();
    call.count(&shape)?;
    let starts = along_axis(call, x, "x", indices, axis)?;
    Ok(vec![x.runs(shape, &starts, 1)])
}

pub(super) fn gather_nd(call: &Call) -> Results {
    let (x, indices) = (call.tensor("x")?, call.tensor("indices")?);
    let batch = batch_dims(call, x, indices)?;
    let (tuples, depth) = tuples(indices, x.rank().saturating_sub(batch))?;
    if batch > tuples.len() {
        fail!(
            "`batch_dims` must be at most {}, the rank of `indices` minus 1, got {batch}",
            tuples.len()
        );
    }
    let mut shape = tuples.to_vec();
    shape.extend_from_slice(&x.shape[batch + depth..]);
    let count = call.count(&shape)?;
    let inside = tuple_starts(call, x, batch, indices, depth)?;
    if count == 0 {
        return Ok(vec![x.runs(shape, &[], 0)]);
    }
    let length = x.shape[batch + depth..].iter().product();
    let batches: usize = x.shape[..batch].iter().product();
    let (each, extent) = (inside.len() / batches, x.len() / batches);
    let starts: Vec<usize> =
        inside.iter().enumerate().map(|(at, start)| at / each * extent + start).collect();
    Ok(vec![x.runs(shape, &starts, length)])
}

pub(super) fn scatter(call: &Call) -> Results {
    let (data, indices) = (call.tensor("data")?, call.tensor("indices")?);
    let axis = call.axis("axis", data.rank())?;
    let mut expected = data.shape[..axis].to_vec();
    expected.extend_from_slice(indices.shape);
    expected.extend_from_slice(&data.shape[axis + 1..]);
    let places = Axis::of(call, data, axis).places(indices.ints()?)?;
    let (lines, extent, length) = around(data.shape, axis);
    let mut starts = Vec::with_capacity(lines * places.len());
    for line in 0..lines {
        starts.extend(places.iter().map(|place| (line * extent + place) * length));
    }
    scattered(call, data, &expected, &starts, length)
}

pub(super) fn scatter_along_axis(call: &Call) -> Results {
    let (data, indices) = (call.tensor("data")?, call.tensor("indices")?);
    let axis = call.axis("axis", data.rank())?;
    let starts = along_axis(call, data, "data", indices, axis)?;
    scattered(call, data, indices.shape, &starts, 1)
}

pub(super) fn scatter_nd(call: &Call) -> Results {
    let (data, indices) = (call.tensor("data")?, call.tensor("indices")?);
    let (tuples, depth) = tuples(indices, data.rank())?;
    let mut expected = tuples.to_vec();
    expected.extend_from_slice(&data.shape[depth..]);
    let starts = tuple_starts(call, data, 0, indices, depth)?;
    let length = if data.is_empty() { 0 } else { data.shape[depth..].iter().product() };
    scattered(call, data, &expected, &starts, length)
}

/// The axis that indices refer to.
pub struct Axis {
    name: usize,
    extent: usize,
    /// Whether negative indices count from the end. From iOS17 on they are out of range.
    counts_back: bool,
}

impl Axis {
    /// An axis of a tensor, with the rule for negative indices in the opset of the call.
    pub fn of(call: &Call, x: View, axis: usize) -> Axis {
        let counts_back = call.since() < Opset::Ios17;
        Axis { name: axis, extent: x.shape[axis], counts_back }
    }

    /// Validates an index and converts it to `0..extent`.
    pub fn place(&self, index: i32) -> Result<usize> {
        let counted = if index < 0 && self.counts_back { self.extent as i64 } else { 0 };
        match usize::try_from(i64::from(index) + counted) {
            Ok(place) if place < self.extent => Ok(place),
            _ => Err(self.outside(index)),
        }
    }

    fn places(&self, indices: &[i32]) -> Result<Vec<usize>> {
        indices.iter().map(|&index| self.place(index)).collect()
    }

    #[cold]
    fn outside(&self, index: i32) -> Error {
        let (axis, extent) = (self.name, self.extent);
        let error = Error::new(format!(
            "index {index} is outside axis {axis}, which has {extent} elements"
        ));
        if index < 0 && !self.counts_back {
            return error.with_hint(
                "from iOS17 on, negative indices do not count from the end; add the size of the axis",
            );
        }
        error
    }
}

/// Number of leading batch axes that `x` and `indices` share; 0 before iOS16.
fn batch_dims(call: &Call, x: View, indices: View) -> Result<usize> {
    if call.row.parameter("batch_dims").is_none() {
        return Ok(0);
    }
    let given = call.int("batch_dims")?;
    match usize::try_from(given) {
        Ok(count)
            if x.shape.get(..count).is_some_and(|shared| indices.shape.starts_with(shared)) =>
        {
            Ok(count)
        }
        _ => fail!(
            "`batch_dims` is {given}, but `x` has shape {:?} and `indices` has shape {:?}",
            x.shape,
            indices.shape
        ),
    }
}

/// Offsets in the tensor for indices of `*_along_axis` operations.
fn along_axis(call: &Call, x: View, name: &str, indices: View, axis: usize) -> Result<Vec<usize>> {
    let same = |at: usize| at == axis || indices.shape[at] == x.shape[at];
    if indices.rank() != x.rank() || !(0..x.rank()).all(same) {
        fail!(
            "`indices` has shape {:?} and `{name}` has shape {:?}; they may differ only along axis {axis}",
            indices.shape,
            x.shape
        );
    }
    let target = Axis::of(call, x, axis);
    let (_, taken, length) = around(indices.shape, axis);
    let places = indices.ints()?.iter().enumerate();
    // The index has the same outer and inner position as its element in the target.
    places
        .map(|(at, &index)| {
            let (line, step) = (at / length / taken, at % length);
            Ok((line * target.extent + target.place(index)?) * length + step)
        })
        .collect()
}

/// Splits the shape of `indices` into the shape of tuples and the length of a tuple, at most
/// `most`.
fn tuples<'a>(indices: View<'a>, most: usize) -> Result<(&'a [usize], usize)> {
    match indices.shape.split_last() {
        Some((&depth, tuples)) if depth <= most => Ok((tuples, depth)),
        _ => fail!(
            "`indices` has shape {:?}; the maximum size of its last axis is {most}",
            indices.shape
        ),
    }
}

/// Offset of each tuple of indices within the part of the tensor of its batch.
fn tuple_starts(
    call: &Call,
    x: View,
    batch: usize,
    indices: View,
    depth: usize,
) -> Result<Vec<usize>> {
    let axes: Vec<Axis> = (batch..batch + depth).map(|axis| Axis::of(call, x, axis)).collect();
    if depth == 0 {
        return Ok(vec![0; call.count(&indices.shape[..indices.rank() - 1])?]);
    }
    let strides = strides(x.shape);
    let start = |tuple: &[i32]| {
        // Saturate: the strides of an empty tensor may be of any size.
        let mut start = 0usize;
        for ((&index, axis), stride) in tuple.iter().zip(&axes).zip(&strides[batch..]) {
            start = start.saturating_add(axis.place(index)?.saturating_mul(*stride));
        }
        Ok(start)
    };
    indices.ints()?.chunks_exact(depth).map(start).collect()
}

/// Combination of an element of `data` with an element of `updates`.
#[derive(Clone, Copy, PartialEq)]
enum Mode {
    Add,
    Div,
    Max,
    Min,
    Mul,
    Sub,
    Update,
}

impl Mode {
    fn of(call: &Call) -> Result<Mode> {
        Ok(match call.text("mode")? {
            "add" => Mode::Add,
            "div" => Mode::Div,
            "max" => Mode::Max,
            "min" => Mode::Min,
            "mul" => Mode::Mul,
            "sub" => Mode::Sub,
            "update" => Mode::Update,
            other => fail!("unknown `mode` `{other}`"),
        })
    }

    fn on_floats(self) -> fn(f32, f32) -> f32 {
        match self {
            Mode::Add => |held, update| held + update,
            Mode::Div => |held, update| held / update,
            Mode::Max => |held, update| if held.is_nan() || held > update { held } else { update },
            Mode::Min => |held, update| if held.is_nan() || held < update { held } else { update },
            Mode::Mul => |held, update| held * update,
            Mode::Sub => |held, update| held - update,
            Mode::Update => |_, update| update,
        }
    }

    fn on_ints(self) -> fn(i32, i32) -> i32 {
        match self {
            Mode::Add => i32::wrapping_add,
            Mode::Div => i32::wrapping_div,
            Mode::Max => Ord::max,
            Mode::Min => Ord::min,
            Mode::Mul => i32::wrapping_mul,
            Mode::Sub => i32::wrapping_sub,
            Mode::Update => |_, update| update,
        }
    }
}

/// Combines runs of `updates` into `data` at these offsets, in order.
fn scattered(
    call: &Call,
    data: View,
    expected: &[usize],
    starts: &[usize],
    length: usize,
) -> Results {
    let updates = call.tensor("updates")?;
    if updates.shape != expected {
        fail!(
            "`updates` has shape {:?}; expected {expected:?} from `data` and `indices`",
            updates.shape
        );
    }
    let mode = Mode::of(call)?;
    if let ElementsView::Floats(floats) = data.elements {
        let mut held = floats.to_vec();
        combine(&mut held, updates.floats()?, starts, length, mode.on_floats());
        return call.give_floats(data.shape, held);
    }
    let (mut held, updates) = (data.ints()?.to_vec(), updates.ints()?);
    if mode == Mode::Div && updates.contains(&0) {
        fail!("`updates` must not contain 0 if integers are divided");
    }
    combine(&mut held, updates, starts, length, mode.on_ints());
    call.give_ints(data.shape, held)
}

fn combine<T: Copy>(
    held: &mut [T],
    updates: &[T],
    starts: &[usize],
    length: usize,
    combined: fn(T, T) -> T,
) {
    if length == 0 {
        return;
    }
    for (&start, updates) in starts.iter().zip(updates.chunks_exact(length)) {
        for (held, &update) in held[start..][..length].iter_mut().zip(updates) {
            *held = combined(*held, update);
        }
    }
}
