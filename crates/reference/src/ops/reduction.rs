//! Reference kernels of reductions. Integers wrap around, and fractions are truncated. For no
//! elements a sum is 0, a product 1, and a maximum the smallest number.

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
    // Subtracting the maximum avoids overflow. An infinite maximum would cause NaN.
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

/// The elements of a tensor in groups, each of which is reduced to one element.
pub(super) struct Groups {
    shape: Vec<usize>,
    /// Strides of the groups; 0 along reduced axes.
    pub(super) strides: Vec<usize>,
    /// Shape of the result.
    reduced: Vec<usize>,
    /// Number of groups.
    pub(super) count: usize,
    /// Number of elements per group.
    pub(super) size: usize,
}

impl Groups {
    /// Groups elements along the marked axes. If `keep` is set, the result keeps these axes with
    /// size 1.
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

    /// Calls `visit` with the group and the index of each element, in row-major order.
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

    /// Folds the elements of each group, in order.
    pub(super) fn fold<T, A: Copy>(&self, x: &[T], begin: A, f: impl Fn(A, &T) -> A) -> Vec<A> {
        let mut folded = vec![begin; self.count];
        self.each(|group, at| folded[group] = f(folded[group], &x[at]));
        folded
    }
}

/// Marks the axes in the `axes` parameter, or all if it is unbound.
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

/// Reduces in `f64`, starting from 0, or from 1 for a product. `finish` takes the result and the
/// number of elements.
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

/// Reduces floats in `f32`, or integers.
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

/// The index along an axis of the first element that is better than all others. NaN is best.
fn position(call: &Call, better: impl Fn(f64, f64) -> bool) -> Results {
    let x = call.tensor("x")?;
    let mut marked = vec![false; x.rank()];
    marked[call.axis("axis", x.rank())?] = true;
    let groups = Groups::new(call, x.shape, &marked, call.bool("keep_dims")?)?;
    let numbers = numbers(&x)?;
    // The best element, its index, and the number of elements seen.
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
