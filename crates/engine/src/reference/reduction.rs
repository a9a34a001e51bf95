//! Reference kernels: reductions. Integers wrap around; where a reduction of integers leaves a fraction,
//! it is cut off. Of no elements, a sum is 0, a product 1, a largest element the smallest there is.

use coremill_tensor::DType;

use super::elementwise::{larger, smaller};
use crate::array::{ElementsView, View};
use crate::call::{Call, Results, saturate_int, wrap_int};
use crate::error::{Result, fail};
use crate::geometry::{each_offset, strides};

pub(super) fn reduce_argmax(call: &Call) -> Results {
    position(call, |best, candidate| candidate > best)
}

pub(super) fn reduce_argmin(call: &Call) -> Results {
    position(call, |best, candidate| candidate < best)
}

pub(super) fn reduce_l1_norm(call: &Call) -> Results {
    of_numbers(call, |sum, x| sum + x.abs(), |sum, _| sum)
}

pub(super) fn reduce_l2_norm(call: &Call) -> Results {
    of_numbers(call, |sum, x| sum + x * x, |sum, _| sum.sqrt())
}

pub(super) fn reduce_log_sum(call: &Call) -> Results {
    of_numbers(call, |sum, x| sum + x, |sum, _| sum.ln())
}

pub(super) fn reduce_log_sum_exp(call: &Call) -> Results {
    let x = call.tensor("x")?;
    let groups = groups_of(call, &x)?;
    let numbers = numbers(&x)?;
    let largest = groups.fold(&numbers, f64::NEG_INFINITY, |largest, &x| {
        if largest.is_nan() || x.is_nan() { f64::NAN } else { largest.max(x) }
    });
    // The largest is subtracted so that nothing overflows; infinities would leave NaN.
    let shift = |group: usize| if largest[group].is_finite() { largest[group] } else { 0.0 };
    let mut sums = vec![0.0; groups.count];
    groups.each(|group, at| sums[group] += (numbers[at] - shift(group)).exp());
    let logarithms = sums.iter().enumerate().map(|(group, sum)| sum.ln() + shift(group));
    give(call, groups, logarithms.collect())
}

pub(super) fn reduce_max(call: &Call) -> Results {
    one_by_one(call, (f32::NEG_INFINITY, larger), (i64::from(i32::MIN), i64::max))
}

pub(super) fn reduce_mean(call: &Call) -> Results {
    of_numbers(call, |sum, x| sum + x, |sum, count| sum / count as f64)
}

pub(super) fn reduce_min(call: &Call) -> Results {
    one_by_one(call, (f32::INFINITY, smaller), (i64::from(i32::MAX), i64::min))
}

pub(super) fn reduce_prod(call: &Call) -> Results {
    let x = call.tensor("x")?;
    if let ElementsView::Ints(_) = x.elements {
        return one_by_one(call, (1.0, |product, x| product * x), (1, i64::wrapping_mul));
    }
    of_numbers(call, |product, x| product * x, |product, _| product)
}

pub(super) fn reduce_sum(call: &Call) -> Results {
    let x = call.tensor("x")?;
    if let ElementsView::Ints(_) = x.elements {
        return one_by_one(call, (0.0, |sum, x| sum + x), (0, i64::wrapping_add));
    }
    of_numbers(call, |sum, x| sum + x, |sum, _| sum)
}

pub(super) fn reduce_sum_square(call: &Call) -> Results {
    let x = call.tensor("x")?;
    if let ElementsView::Ints(_) = x.elements {
        let add = |sum: i64, x: i64| sum.wrapping_add(x.wrapping_mul(x));
        return one_by_one(call, (0.0, |sum, x| sum + x * x), (0, add));
    }
    of_numbers(call, |sum, x| sum + x * x, |sum, _| sum)
}

/// The elements of a tensor in groups, each of which is reduced to one.
pub(super) struct Groups {
    /// The shape of the tensor.
    shape: Vec<usize>,
    /// The distance between the groups of neighbours along each axis: 0 along those that are reduced.
    pub(super) strides: Vec<usize>,
    /// The shape of what remains.
    reduced: Vec<usize>,
    /// How many groups there are.
    pub(super) count: usize,
    /// How many elements each has.
    pub(super) size: usize,
}

impl Groups {
    /// The groups along marked axes, which remain with an extent of one, or not at all.
    pub(super) fn new(call: &Call, shape: &[usize], marked: &[bool], keep: bool) -> Result<Groups> {
        let kept: Vec<usize> = shape
            .iter()
            .zip(marked)
            .map(|(&extent, &marked)| if marked { 1 } else { extent })
            .collect();
        let strides = strides(&kept).into_iter().zip(marked);
        let strides = strides.map(|(stride, &marked)| if marked { 0 } else { stride }).collect();
        let count = call.count(&kept)?;
        let size =
            shape.iter().zip(marked).filter(|(_, marked)| **marked).map(|(extent, _)| extent);
        let size = size.product();
        let reduced = match keep {
            true => kept,
            false => kept.into_iter().zip(marked).filter(|(_, m)| !**m).map(|(e, _)| e).collect(),
        };
        Ok(Groups { shape: shape.to_vec(), strides, reduced, count, size })
    }

    /// Calls `visit` with each element's group and its own index, in row-major order.
    pub(super) fn each(&self, mut visit: impl FnMut(usize, usize)) {
        let (width, step, outer) = match (self.shape.split_last(), self.strides.last()) {
            (Some((&width, outer)), Some(&step)) => (width, step, outer),
            _ => (1, 0, &[][..]),
        };
        if width == 0 {
            return;
        }
        let mut at = 0;
        each_offset(outer, &self.strides[..outer.len()], |group| {
            for column in 0..width {
                visit(group + column * step, at);
                at += 1;
            }
        });
    }

    /// Takes the elements of each group in, one after the other.
    pub(super) fn fold<T, A: Copy>(&self, x: &[T], begin: A, f: impl Fn(A, &T) -> A) -> Vec<A> {
        let mut folded = vec![begin; self.count];
        self.each(|group, at| folded[group] = f(folded[group], &x[at]));
        folded
    }
}

/// The axes that `axes` names, every one if it is not bound.
pub(super) fn marked_axes(call: &Call, rank: usize) -> Result<Vec<bool>> {
    let mut marked = vec![false; rank];
    for axis in call.axes_or_all("axes", rank)? {
        marked[axis] = true;
    }
    Ok(marked)
}

fn groups_of(call: &Call, x: &View) -> Result<Groups> {
    Groups::new(call, x.shape, &marked_axes(call, x.rank())?, call.bool("keep_dims")?)
}

/// A reduction in `f64` from zero, or one for a product, and what is made of the result and the number
/// of elements.
fn of_numbers(
    call: &Call,
    f: impl Fn(f64, f64) -> f64,
    finish: impl Fn(f64, usize) -> f64,
) -> Results {
    let x = call.tensor("x")?;
    let groups = groups_of(call, &x)?;
    let begin = if call.kind() == coremill_mil::ops::OpKind::ReduceProd { 1.0 } else { 0.0 };
    let folded = match x.elements {
        ElementsView::Floats(x) => groups.fold(x, begin, |so_far, &x| f(so_far, f64::from(x))),
        ElementsView::Ints(x) => groups.fold(x, begin, |so_far, &x| f(so_far, f64::from(x))),
        ElementsView::Texts(_) => fail!("expects numbers, found `string`"),
    };
    let size = groups.size;
    give(call, groups, folded.into_iter().map(|value| finish(value, size)).collect())
}

/// A reduction of floats in `f32`, or of integers.
fn one_by_one(
    call: &Call,
    (first_float, of_floats): (f32, impl Fn(f32, f32) -> f32),
    (first_int, of_ints): (i64, impl Fn(i64, i64) -> i64),
) -> Results {
    let x = call.tensor("x")?;
    let groups = groups_of(call, &x)?;
    match x.elements {
        ElementsView::Floats(x) => {
            let floats = groups.fold(x, first_float, |so_far, &x| of_floats(so_far, x));
            call.give_floats(groups.reduced, floats)
        }
        ElementsView::Ints(x) => {
            let ints = groups.fold(x, first_int, |so_far, &x| of_ints(so_far, i64::from(x)));
            let dtype = call.dtype();
            let ints = ints.into_iter().map(|value| wrap_int(dtype, value));
            call.give_ints(groups.reduced, ints.collect())
        }
        ElementsView::Texts(_) => fail!("expects numbers, found `string`"),
    }
}

fn give(call: &Call, groups: Groups, numbers: Vec<f64>) -> Results {
    let dtype = call.dtype();
    if dtype.is_float() {
        call.give_floats(groups.reduced, numbers.into_iter().map(|x| x as f32).collect())
    } else {
        let ints = numbers.into_iter().map(|x| saturate_int(dtype, x));
        call.give_ints(groups.reduced, ints.collect())
    }
}

fn numbers(x: &View) -> Result<Vec<f64>> {
    Ok(match x.elements {
        ElementsView::Floats(floats) => floats.iter().map(|&x| f64::from(x)).collect(),
        ElementsView::Ints(ints) => ints.iter().map(|&x| f64::from(x)).collect(),
        ElementsView::Texts(_) => fail!("expects numbers, found `string`"),
    })
}

/// Along one axis, the index of the first element that is better than all others; NaN is the best.
fn position(call: &Call, better: impl Fn(f64, f64) -> bool) -> Results {
    let x = call.tensor("x")?;
    let mut marked = vec![false; x.rank()];
    marked[call.axis("axis", x.rank())?] = true;
    let groups = Groups::new(call, x.shape, &marked, call.bool("keep_dims")?)?;
    let numbers = numbers(&x)?;
    // The best, its index, and how many were seen.
    let best = groups.fold(&numbers, (f64::NAN, 0i64, 0i64), |(best, at, seen), &x| {
        let wins = seen == 0 || better(best, x) || (x.is_nan() && !best.is_nan());
        if wins { (x, seen, seen + 1) } else { (best, at, seen + 1) }
    });
    let dtype = match call.dtype() {
        DType::UInt16 => DType::UInt16,
        _ => DType::Int32,
    };
    let indices = best.into_iter().map(|(_, at, _)| wrap_int(dtype, at));
    call.give_ints(groups.reduced, indices.collect())
}
