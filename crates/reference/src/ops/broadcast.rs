//! Elementwise functions of one tensor, or of several tensors that are broadcast together.

use crate::array::ElementsView;
use crate::call::{Call, Results};
use crate::error::{Result, fail};
use crate::geometry::{broadcast, broadcast_strides, each_offsets};

/// Applies a function to each element of a float tensor.
pub(super) fn map_floats(call: &Call, f: impl Fn(f32) -> f32) -> Results {
    let x = call.tensor("x")?;
    call.give_floats(x.shape, x.floats()?.iter().map(|&x| f(x)).collect())
}

/// The broadcast shape. Fails if it exceeds the limit.
pub(super) fn joined(call: &Call, shapes: &[&[usize]]) -> Result<Vec<usize>> {
    let mut joined = Vec::new();
    for shape in shapes {
        joined = broadcast(&joined, shape)?;
    }
    call.count(&joined)?;
    Ok(joined)
}

/// Applies `f` to each pair of elements of two tensors, broadcast to `shape`.
pub(super) fn zip<T: Copy, U: Copy, R>(
    shape: &[usize],
    (x, x_shape): (&[T], &[usize]),
    (y, y_shape): (&[U], &[usize]),
    f: impl Fn(T, U) -> R,
) -> Vec<R> {
    if x_shape == shape && y_shape == shape {
        return x.iter().zip(y).map(|(&x, &y)| f(x, y)).collect();
    }
    if let ([y], true) = (y, x_shape == shape) {
        return x.iter().map(|&x| f(x, *y)).collect();
    }
    if let ([x], true) = (x, y_shape == shape) {
        return y.iter().map(|&y| f(*x, y)).collect();
    }
    let (x_strides, y_strides) =
        (broadcast_strides(x_shape, shape), broadcast_strides(y_shape, shape));
    // If the result is a scalar, both operands have its shape and were handled above.
    let Some((&width, outer)) = shape.split_last() else { return Vec::new() };
    if width == 0 {
        return Vec::new();
    }
    let mut out = Vec::with_capacity(shape.iter().product());
    let last = outer.len();
    let (x_step, y_step) = (x_strides[last], y_strides[last]);
    each_offsets(outer, [&x_strides[..last], &y_strides[..last]], |[at_x, at_y]| {
        out.extend(
            (0..width).map(|column| f(x[at_x + column * x_step], y[at_y + column * y_step])),
        );
    });
    out
}

/// Broadcasts the elements of `x` to `shape`.
pub(super) fn expanded<T: Copy>(shape: &[usize], x: &[T], x_shape: &[usize]) -> Vec<T> {
    if x_shape == shape {
        return x.to_vec();
    }
    let strides = broadcast_strides(x_shape, shape);
    let mut out = Vec::with_capacity(shape.iter().product());
    each_offsets(shape, [&strides[..]], |[offset]| out.push(x[offset]));
    out
}

/// An arithmetic operation on `x` and `y`, which have the same type.
pub(super) fn arithmetic(
    call: &Call,
    of_floats: impl Fn(f32, f32) -> f32,
    of_ints: impl Fn(i32, i32) -> i32,
) -> Results {
    let (x, y) = (call.tensor("x")?, call.tensor("y")?);
    let shape = joined(call, &[x.shape, y.shape])?;
    match (x.elements, y.elements) {
        (ElementsView::Floats(a), ElementsView::Floats(b)) => {
            let floats = zip(&shape, (a, x.shape), (b, y.shape), of_floats);
            call.give_floats(shape, floats)
        }
        (ElementsView::Ints(a), ElementsView::Ints(b)) => {
            let ints = zip(&shape, (a, x.shape), (b, y.shape), of_ints);
            call.give_ints(shape, ints)
        }
        _ => fail!("expects `x` and `y` of the same type, found `{}` and `{}`", x.dtype, y.dtype),
    }
}

/// A comparison of `x` and `y`, which have the same type.
pub(super) fn comparison(
    call: &Call,
    of_floats: impl Fn(&f32, &f32) -> bool,
    of_ints: impl Fn(&i32, &i32) -> bool,
) -> Results {
    let (x, y) = (call.tensor("x")?, call.tensor("y")?);
    let shape = joined(call, &[x.shape, y.shape])?;
    let bools = match (x.elements, y.elements) {
        (ElementsView::Floats(a), ElementsView::Floats(b)) => {
            zip(&shape, (a, x.shape), (b, y.shape), |x, y| i32::from(of_floats(&x, &y)))
        }
        (ElementsView::Ints(a), ElementsView::Ints(b)) => {
            zip(&shape, (a, x.shape), (b, y.shape), |x, y| i32::from(of_ints(&x, &y)))
        }
        _ => fail!("expects `x` and `y` of the same type, found `{}` and `{}`", x.dtype, y.dtype),
    };
    call.give_ints(shape, bools)
}
