//! Types of new values, and analysis of strides.

use std::sync::Arc;

use coremill_pt2::{
    Expression, Function, ScalarType, Size, SymbolId, Symbolic, TensorMeta,
    promotion::promote_ranked,
};

use crate::limits::MAX_STRIDE_TERMS;

/// Type of a new contiguous tensor with the device of `meta`.
pub(crate) fn contiguous(meta: &TensorMeta, dtype: ScalarType, sizes: Vec<Size>) -> TensorMeta {
    let mut strides = vec![Size::Fixed(1); sizes.len()];
    for dimension in (1..sizes.len()).rev() {
        strides[dimension - 1] = product(&strides[dimension], &sizes[dimension]);
    }
    TensorMeta {
        dtype,
        sizes,
        strides,
        storage_offset: Size::Fixed(0),
        layout: meta.layout,
        device: meta.device.clone(),
    }
}

fn product(left: &Size, right: &Size) -> Size {
    match (left, right) {
        // A size of 0 has the stride of a size of 1.
        (left, Size::Fixed(0 | 1)) => left.clone(),
        (Size::Fixed(1), right) => right.clone(),
        (Size::Fixed(left), Size::Fixed(right)) => Size::Fixed(left.saturating_mul(*right)),
        (left, right) => {
            let factors = vec![expression(left), expression(right)];
            let mut left = MAX_STRIDE_TERMS;
            let short = factors.iter().all(|factor| fits(factor, &mut left));
            let expression = if short {
                Expression::Call(Function::Mul, factors)
            } else {
                // An unknown function represents an unknown value.
                Expression::Call(Function::Other("long product".to_owned()), Vec::new())
            };
            Size::Symbolic(Arc::new(Symbolic { expression, hint: None }))
        }
    }
}

/// Whether an expression fits into the remaining number of terms.
fn fits(expression: &Expression, left: &mut usize) -> bool {
    let Some(rest) = left.checked_sub(1) else { return false };
    *left = rest;
    match expression {
        Expression::Call(_, arguments) => arguments.iter().all(|argument| fits(argument, left)),
        _ => true,
    }
}

pub(crate) fn expression(size: &Size) -> Expression {
    match size {
        Size::Fixed(value) => Expression::Integer(*value),
        Size::Symbolic(symbolic) => symbolic.expression.clone(),
    }
}

/// Number of random symbol assignments to compare expressions with. Values differ between symbols and rounds.
const ROUNDS: u32 = 3;

fn number(size: &Size, round: u32) -> Option<i64> {
    match size {
        Size::Fixed(value) => Some(*value),
        Size::Symbolic(symbolic) => {
            let value = |id: SymbolId| Some(97 + id.index() as i64 * 14 + i64::from(round) * 5);
            symbolic.expression.evaluate(&value)?.integer()
        }
    }
}

fn numbers(sizes: &[Size], round: u32) -> Option<Vec<i64>> {
    sizes.iter().map(|size| number(size, round)).collect()
}

/// Whether the sizes are equal for all values of the symbols.
pub(crate) fn same_sizes(left: &[Size], right: &[Size]) -> bool {
    left == right
        || left.len() == right.len()
            && (0..ROUNDS).all(|round| {
                numbers(left, round).is_some_and(|left| numbers(right, round) == Some(left))
            })
}

/// Whether both tensors have the same memory order, ignoring unit dimensions.
pub(crate) fn same_order(left: &TensorMeta, right: &TensorMeta) -> bool {
    let strides = |meta: &TensorMeta, round| {
        let pairs = numbers(&meta.sizes, round)?.into_iter().zip(numbers(&meta.strides, round)?);
        Some(pairs.filter(|(size, _)| *size != 1).collect::<Vec<_>>())
    };
    left.sizes == right.sizes && left.strides == right.strides
        || (0..ROUNDS).all(|round| strides(left, round) == strides(right, round))
}

/// Whether a tensor is contiguous and starts at the beginning of its storage.
pub(crate) fn is_contiguous(meta: &TensorMeta) -> bool {
    meta.storage_offset == Size::Fixed(0)
        && same_order(meta, &contiguous(meta, meta.dtype, meta.sizes.clone()))
}

/// Whether `reshape` to these sizes returns a view, by torch's rule. Assumed if sizes are unknown, as this is nearly
/// always the case.
pub(crate) fn is_view(meta: &TensorMeta, sizes: &[Size]) -> bool {
    (0..ROUNDS).all(|round| {
        let known =
            (numbers(&meta.sizes, round), numbers(&meta.strides, round), numbers(sizes, round));
        match known {
            (Some(old), Some(strides), Some(new)) => strides_exist(&old, &strides, &new),
            _ => true,
        }
    })
}

/// Each run of dimensions that are contiguous in memory must consist of whole new dimensions.
fn strides_exist(old: &[i64], strides: &[i64], new: &[i64]) -> bool {
    if old.is_empty() || old.contains(&0) {
        return true;
    }
    let mut left = new.len();
    let mut base = strides[old.len() - 1];
    let (mut old_elements, mut new_elements) = (1i64, 1i64);
    for dimension in (0..old.len()).rev() {
        old_elements = old_elements.saturating_mul(old[dimension]);
        let ends = dimension == 0
            || old[dimension - 1] != 1
                && strides[dimension - 1] != old_elements.saturating_mul(base);
        if !ends {
            continue;
        }
        while left > 0 && (new_elements < old_elements || new[left - 1] == 1) {
            new_elements = new_elements.saturating_mul(new[left - 1]);
            left -= 1;
        }
        if new_elements != old_elements {
            return false;
        }
        if dimension > 0 {
            base = strides[dimension - 1];
            (old_elements, new_elements) = (1, 1);
        }
    }
    left == 0
}

/// Promoted type of tensors.
pub(crate) fn promote_all<'a>(tensors: impl Iterator<Item = &'a TensorMeta>) -> Option<ScalarType> {
    promote_ranked(tensors.map(|meta| (meta.dtype, meta.sizes.len())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detects_reshapes_that_are_views() {
        assert!(strides_exist(&[4, 6], &[6, 1], &[24]));
        assert!(strides_exist(&[4, 6], &[6, 1], &[2, 2, 3, 2]));
        assert!(!strides_exist(&[6, 4], &[1, 6], &[24]));
        assert!(strides_exist(&[6, 4], &[1, 6], &[3, 2, 4]));
        assert!(strides_exist(&[4, 1, 3], &[6, 9, 1], &[4, 3]));
        assert!(!strides_exist(&[4, 3], &[6, 1], &[12]));
        assert!(strides_exist(&[], &[], &[1, 1]));
    }
}
