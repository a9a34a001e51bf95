//! Sizes of new values: constants or symbolic expressions.

use std::fmt::Debug;
use std::slice::SliceIndex;
use std::sync::Arc;

use coremill_pt2::{Expression, Function, Hint, Size, Symbolic};

use crate::error::{Result, refuse};

/// Maximum number of terms of a new expression. Longer ones become unknown.
const MAX_TERMS: usize = 256;

pub(crate) fn expression(size: &Size) -> Expression {
    match size {
        Size::Fixed(value) => Expression::Integer(*value),
        Size::Symbolic(symbolic) => symbolic.expression.clone(),
    }
}

/// A size by index, or a range of sizes. Checked, as a malformed archive may declare a lower rank than the operator
/// returns.
pub(crate) fn at<I>(sizes: &[Size], at: I) -> Result<&I::Output>
where
    I: SliceIndex<[Size]> + Clone + Debug,
{
    match sizes.get(at.clone()) {
        Some(size) => Ok(size),
        None => refuse!("dimension {at:?} is out of range for a tensor of rank {}", sizes.len()),
    }
}

/// A static size. `what` names it in the error.
pub(crate) fn known(size: &Size, what: &str) -> Result<i64> {
    match size.fixed() {
        Some(size) => Ok(size),
        None => refuse!("{what} is unknown at compile time"),
    }
}

fn hint(size: &Size) -> Option<i64> {
    match size {
        Size::Fixed(value) => Some(*value),
        Size::Symbolic(symbolic) => match symbolic.hint {
            Some(Hint::Int(value)) => Some(value),
            _ => None,
        },
    }
}

fn terms(expression: &Expression) -> usize {
    match expression {
        Expression::Call(_, arguments) => 1 + arguments.iter().map(terms).sum::<usize>(),
        _ => 1,
    }
}

fn call(
    function: Function,
    left: &Size,
    right: &Size,
    compute: fn(i64, i64) -> Option<i64>,
) -> Size {
    if let (Size::Fixed(left), Size::Fixed(right)) = (left, right)
        && let Some(value) = compute(*left, *right)
    {
        return Size::Fixed(value);
    }
    let hint = hint(left).zip(hint(right)).and_then(|(left, right)| compute(left, right));
    let arguments = vec![expression(left), expression(right)];
    let expression = if arguments.iter().map(terms).sum::<usize>() < MAX_TERMS {
        Expression::Call(function, arguments)
    } else {
        Expression::Call(Function::Other("long expression".to_owned()), Vec::new())
    };
    Size::Symbolic(Arc::new(Symbolic { expression, hint: hint.map(Hint::Int) }))
}

pub(crate) fn add(left: &Size, right: &Size) -> Size {
    match (left, right) {
        (Size::Fixed(0), other) | (other, Size::Fixed(0)) => other.clone(),
        _ => call(Function::Add, left, right, i64::checked_add),
    }
}

pub(crate) fn multiply(left: &Size, right: &Size) -> Size {
    match (left, right) {
        (Size::Fixed(1), other) | (other, Size::Fixed(1)) => other.clone(),
        (Size::Fixed(0), _) | (_, Size::Fixed(0)) => Size::Fixed(0),
        _ => call(Function::Mul, left, right, i64::checked_mul),
    }
}

/// Quotient, rounded down.
pub(crate) fn divided(size: &Size, by: &Size) -> Size {
    match by {
        Size::Fixed(1) => size.clone(),
        by => call(Function::FloorDiv, size, by, i64::checked_div_euclid),
    }
}

pub(crate) fn product<'a>(sizes: impl IntoIterator<Item = &'a Size>) -> Size {
    sizes.into_iter().fold(Size::Fixed(1), |product, size| multiply(&product, size))
}

/// Broadcasts two sizes; `None` if they are known to differ.
fn broadcast_one(left: &Size, right: &Size) -> Option<Size> {
    match (left, right) {
        (Size::Fixed(1), other) | (other, Size::Fixed(1)) => Some(other.clone()),
        (Size::Fixed(a), Size::Fixed(b)) => (a == b).then(|| left.clone()),
        // A symbolic size next to a static one equals it or is 1.
        (Size::Fixed(_), _) => Some(left.clone()),
        (_, Size::Fixed(_)) => Some(right.clone()),
        _ => Some(left.clone()),
    }
}

/// Broadcasts two shapes; `None` if they are known to differ.
pub(crate) fn broadcast(left: &[Size], right: &[Size]) -> Option<Vec<Size>> {
    let rank = left.len().max(right.len());
    let at = |sizes: &[Size], index: usize| {
        let own = (index + sizes.len()).checked_sub(rank);
        own.and_then(|own| sizes.get(own)).cloned().unwrap_or(Size::Fixed(1))
    };
    (0..rank).map(|index| broadcast_one(&at(left, index), &at(right, index))).collect()
}

/// Strides of a contiguous tensor, in elements.
pub(crate) fn strides(sizes: &[Size]) -> Vec<Size> {
    let mut strides = vec![Size::Fixed(1); sizes.len()];
    let mut step = Size::Fixed(1);
    for (stride, size) in strides.iter_mut().zip(sizes).rev() {
        stride.clone_from(&step);
        // A size of 0 has the stride of a size of 1.
        if *size != Size::Fixed(0) {
            step = multiply(&step, size);
        }
    }
    strides
}
