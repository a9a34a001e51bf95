//! Variances, norms, distances and what else is put together from reductions.

use coremill_mil::ir::ValueId;
use coremill_mil::ops::OpKind;
use coremill_tensor::DType;

use super::reduction::Axes;
use crate::error::{Refusal, refuse};
use crate::lower::builder::Builder;
use crate::lower::call::{Call, Results};
use crate::lower::table::{Row, all, some};
use crate::lower::value::Int;

pub(crate) const ROWS: &[Row] = &[
    all("aten.var", |call| spread(call, false, false)),
    all("aten.std", |call| spread(call, true, false)),
    all("aten.var_mean", |call| spread(call, false, true)),
    all("aten.std_mean", |call| spread(call, true, true)),
    all("aten.norm", |call| norm(call, "p")),
    all("aten.linalg_vector_norm", |call| norm(call, "ord")),
    some("aten.linalg_norm", &["default"], either_norm),
    some("aten.linalg_norm", &["ord_str"], named_norm),
    some("aten.linalg_matrix_norm", &["default"], matrix_norm),
    some("aten.linalg_matrix_norm", &["str_ord"], named_norm),
    all("aten.renorm", renormalized),
    all("aten.dist", distance),
    all("aten.pairwise_distance", pairwise_distance),
    all("aten.cdist", distances),
    all("aten._cdist_forward", distances),
    all("aten._euclidean_dist", distances),
    all("aten.pdist", distances_within),
    all("aten._pdist_forward", distances_within),
    all("aten.cosine_similarity", cosine_similarity),
    all("aten.cross", cross),
    all("aten.linalg_cross", cross),
];

/// How many elements less than there are the squares are divided by.
fn correction(call: &mut Call<'_, '_>) -> Result<f64, Refusal> {
    if call.node.argument("unbiased").is_some() {
        return Ok(f64::from(u8::from(call.flag("unbiased")?)));
    }
    Ok(call.optional_float("correction")?.unwrap_or(1.0))
}

fn spread(call: &mut Call<'_, '_>, root: bool, with_mean: bool) -> Results {
    let x = call.float_tensor("self")?;
    let axes = call.reduced_axes(call.rank(x))?;
    let correction = correction(call)?;
    let kept = Axes { axes: axes.axes.clone(), keep: true };
    let mean = call.reduce(OpKind::ReduceMean, x, &kept)?;
    let gap = call.binary(OpKind::Sub, x, mean)?;
    let square = call.unary(OpKind::Square, gap)?;
    let mut variance = call.reduce(OpKind::ReduceMean, square, &axes)?;
    if correction != 0.0 {
        variance = corrected(call, variance, x, &axes, correction)?;
    }
    if root {
        variance = call.unary(OpKind::Sqrt, variance)?;
    }
    if !with_mean {
        return call.give(variance);
    }
    let mean = if axes.keep {
        mean
    } else {
        let named: Vec<_> = axes.axes.iter().map(|&axis| axis as i32).collect();
        call.squeeze(mean, &named)?
    };
    call.give_all(&[variance, mean])
}

/// A mean of `n` as if it were divided by `n − correction`.
fn corrected(
    builder: &mut Builder,
    mean: ValueId,
    x: ValueId,
    axes: &Axes,
    correction: f64,
) -> Result<ValueId, Refusal> {
    match builder.group_size(x, axes)? {
        Int::Known(count) => {
            let count = count as f64;
            let factor = count / (count - correction).max(0.0);
            builder.binary(OpKind::Mul, mean, factor as f32)
        }
        Int::Computed(count) => {
            let count = builder.cast(count, DType::Fp32)?;
            let rest = builder.binary(OpKind::Sub, count, correction as f32)?;
            let rest = builder.binary(OpKind::Maximum, rest, 0.0_f32)?;
            let factor = builder.binary(OpKind::RealDiv, count, rest)?;
            builder.binary(OpKind::Mul, mean, factor)
        }
    }
}

fn norm(call: &mut Call<'_, '_>, order: &str) -> Results {
    let x = call.any_tensor("self")?;
    let value = match x.imaginary {
        Some(imaginary) => call.hypotenuse(x.value, imaginary)?,
        None => call.cast(x.value, DType::Fp32)?,
    };
    let order = if call.has(order) { call.float(order)? } else { 2.0 };
    let axes = call.reduced_axes(call.rank(value))?;
    let y = call.norm(value, order, &axes)?;
    call.give(y)
}

/// The norm of vectors along one axis, or that of matrices along two.
fn either_norm(call: &mut Call<'_, '_>) -> Results {
    let x = call.any_tensor("self")?.value;
    let rank = call.rank(x);
    let axes = call.reduced_axes(rank)?;
    if call.has("ord") && axes.axes.len() == 2 { matrix_norm(call) } else { norm(call, "ord") }
}

/// The Frobenius norm, which is that of all elements as a vector.
fn named_norm(call: &mut Call<'_, '_>) -> Results {
    match call.text("ord")? {
        Some("fro") => {}
        other => {
            refuse!("`ord` is {other:?}, whose norm is one of singular values; accepted is `fro`")
        }
    }
    let x = call.float_tensor("self")?;
    let axes = call.reduced_axes(call.rank(x))?;
    let y = call.norm(x, 2.0, &axes)?;
    call.give(y)
}

/// The largest or smallest of the sums of magnitudes along rows or columns.
fn matrix_norm(call: &mut Call<'_, '_>) -> Results {
    let x = call.float_tensor("self")?;
    let rank = call.rank(x);
    let order = call.float("ord")?;
    let Axes { axes, keep } = call.reduced_axes(rank)?;
    let &[rows, columns] = axes.as_slice() else {
        refuse!("`dim` names {} axes; a norm of matrices has two", axes.len());
    };
    let (summed, other) = match order.abs() {
        1.0 => (rows, columns),
        f64::INFINITY => (columns, rows),
        _ => refuse!(
            "`ord` is {order}, whose norm is one of singular values; accepted are 1, -1, infinity and `fro`"
        ),
    };
    let reduction = if order > 0.0 { OpKind::ReduceMax } else { OpKind::ReduceMin };
    let sums = call.reduce(OpKind::ReduceL1Norm, x, &Axes { axes: vec![summed], keep: true })?;
    let mut y = call.reduce(reduction, sums, &Axes { axes: vec![other], keep: true })?;
    if !keep {
        y = call.squeeze(y, &[rows as i32, columns as i32])?;
    }
    call.give(y)
}

impl Builder {
    /// A norm of that order along axes.
    pub(crate) fn norm(&mut self, x: ValueId, order: f64, axes: &Axes) -> Result<ValueId, Refusal> {
        if order == 0.0 {
            let other = self.binary(OpKind::NotEqual, x, 0.0_f32)?;
            let ones = self.cast(other, DType::Fp32)?;
            return self.reduce(OpKind::ReduceSum, ones, axes);
        }
        if axes.axes.is_empty() {
            return self.unary(OpKind::Abs, x);
        }
        if order == 2.0 {
            return self.reduce(OpKind::ReduceL2Norm, x, axes);
        }
        if order == 1.0 {
            return self.reduce(OpKind::ReduceL1Norm, x, axes);
        }
        let magnitude = self.unary(OpKind::Abs, x)?;
        if order == f64::INFINITY {
            return self.reduce(OpKind::ReduceMax, magnitude, axes);
        }
        if order == f64::NEG_INFINITY {
            return self.reduce(OpKind::ReduceMin, magnitude, axes);
        }
        let power = self.binary(OpKind::Pow, magnitude, order as f32)?;
        let sum = self.reduce(OpKind::ReduceSum, power, axes)?;
        self.binary(OpKind::Pow, sum, (1.0 / order) as f32)
    }
}

/// Slices along an axis, those whose norm is above a bound scaled down to it.
fn renormalized(call: &mut Call<'_, '_>) -> Results {
    let x = call.float_tensor("self")?;
    let rank = call.rank(x);
    let (order, axis) = (call.float("p")?, call.axis("dim", rank)?);
    let bound = call.float("maxnorm")? as f32;
    let axes = (0..rank).filter(|&other| other != axis).collect();
    let norm = call.norm(x, order, &Axes { axes, keep: true })?;
    let factor = if bound > 0.0 {
        let larger = call.binary(OpKind::Maximum, norm, bound)?;
        call.binary(OpKind::RealDiv, bound, larger)?
    } else {
        // Nothing is left of what has a norm, nor of what has none.
        call.binary(OpKind::Mul, norm, 0.0_f32)?
    };
    let y = call.binary(OpKind::Mul, x, factor)?;
    call.give(y)
}

fn distance(call: &mut Call<'_, '_>) -> Results {
    let (x, y) = (call.float_tensor("self")?, call.float_tensor("other")?);
    let order = call.float("p")?;
    let gap = call.binary(OpKind::Sub, x, y)?;
    let axes = Axes { axes: (0..call.rank(gap)).collect(), keep: false };
    let z = call.norm(gap, order, &axes)?;
    call.give(z)
}

fn pairwise_distance(call: &mut Call<'_, '_>) -> Results {
    let (x, y) = (call.float_tensor("x1")?, call.float_tensor("x2")?);
    let (order, epsilon) = (call.float("p")?, call.float("eps")? as f32);
    let keep = call.flag("keepdim")?;
    let gap = call.binary(OpKind::Sub, x, y)?;
    let gap = call.binary(OpKind::Add, gap, epsilon)?;
    let axes = Axes { axes: vec![call.rank(gap) - 1], keep };
    let z = call.norm(gap, order, &axes)?;
    call.give(z)
}

/// The distances of all rows of one matrix from all rows of another.
fn distances(call: &mut Call<'_, '_>) -> Results {
    let (x, y) = (call.float_tensor("x1")?, call.float_tensor("x2")?);
    let order = if call.has("p") { call.float("p")? } else { 2.0 };
    let z = distances_between(call, x, y, order)?;
    call.give(z)
}

fn distances_between(
    builder: &mut Builder,
    x: ValueId,
    y: ValueId,
    order: f64,
) -> Result<ValueId, Refusal> {
    let rank = builder.rank(x).max(builder.rank(y));
    if rank > 4 {
        refuse!("distances of rows are lowered up to rank 4, found rank {rank}");
    }
    let x = builder.expand_dims(x, &[-2])?;
    let y = builder.expand_dims(y, &[-3])?;
    let gap = builder.binary(OpKind::Sub, x, y)?;
    let axes = Axes { axes: vec![builder.rank(gap) - 1], keep: false };
    builder.norm(gap, order, &axes)
}

/// The distances of each row of a matrix from those after it.
fn distances_within(call: &mut Call<'_, '_>) -> Results {
    let x = call.float_tensor("self")?;
    let order = call.float("p")?;
    let Some(Int::Known(rows)) = call.dim(x, 0).ok() else {
        refuse!("`pdist` is lowered for a fixed number of rows");
    };
    let all = distances_between(call, x, x, order)?;
    let flat = call.reshape(all, &[Int::Known(-1)])?;
    let indices: Vec<i32> = (0..rows)
        .flat_map(|row| (row + 1..rows).map(move |other| (row * rows + other) as i32))
        .collect();
    let z = call.emit(
        OpKind::Gather,
        [("x", flat.into()), ("indices", indices.as_slice().into()), ("axis", 0.into())],
    )?;
    call.give(z)
}

fn cosine_similarity(call: &mut Call<'_, '_>) -> Results {
    let (x, y) = (call.float_tensor("x1")?, call.float_tensor("x2")?);
    let epsilon = call.float("eps")? as f32;
    let product = call.binary(OpKind::Mul, x, y)?;
    let rank = call.rank(product);
    let axis = call.axis("dim", rank)?;
    let axes = Axes { axes: vec![axis], keep: false };
    let product = call.reduce(OpKind::ReduceSum, product, &axes)?;
    let mut norms = Vec::new();
    for side in [x, y] {
        let Some(own) = (axis + call.rank(side)).checked_sub(rank) else {
            refuse!("axis {axis} of the product is none of one factor");
        };
        let axes = Axes { axes: vec![own], keep: false };
        let norm = call.reduce(OpKind::ReduceL2Norm, side, &axes)?;
        norms.push(call.binary(OpKind::Maximum, norm, epsilon)?);
    }
    let norms = call.binary(OpKind::Mul, norms[0], norms[1])?;
    let z = call.binary(OpKind::RealDiv, product, norms)?;
    call.give(z)
}

fn cross(call: &mut Call<'_, '_>) -> Results {
    let (x, y) = (call.tensor("self")?.value, call.tensor("other")?.value);
    let result = call.result_dtype()?;
    let (x, y) = (call.cast_to(x, result)?, call.cast_to(y, result)?);
    let rank = call.rank(x).max(call.rank(y));
    let axis = if call.has("dim") {
        call.axis("dim", rank)?
    } else {
        // The first axis of three elements, as torch has it.
        match call.extents(x).iter().position(|&extent| extent == Some(3)) {
            Some(axis) => axis,
            None => refuse!("no axis has three elements"),
        }
    };
    let mut turned = Vec::new();
    for (side, order) in [(x, [1, 2, 0]), (y, [2, 0, 1]), (x, [2, 0, 1]), (y, [1, 2, 0])] {
        let own = (axis + call.rank(side)) as i32 - rank as i32;
        turned.push(call.emit(
            OpKind::Gather,
            [("x", side.into()), ("indices", order.into()), ("axis", own.into())],
        )?);
    }
    let left = call.binary(OpKind::Mul, turned[0], turned[1])?;
    let right = call.binary(OpKind::Mul, turned[2], turned[3])?;
    let z = call.binary(OpKind::Sub, left, right)?;
    let z = call.wrapped(z, result)?;
    call.give(z)
}
