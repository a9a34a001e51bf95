//! Types of new values, and what strides say.

use std::sync::Arc;

use crate::limits::MAX_STRIDE_TERMS;
use crate::program::{Size, Symbolic, TensorMeta};
use crate::scalar::ScalarType;
use crate::symbol::{Expression, Function, SymbolId};

/// The type of a new tensor like `meta`, of these sizes, its elements in order.
pub(super) fn contiguous(meta: &TensorMeta, dtype: ScalarType, sizes: Vec<Size>) -> TensorMeta {
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
        requires_grad: meta.requires_grad,
    }
}

fn product(left: &Size, right: &Size) -> Size {
    match (left, right) {
        // A size of 0 steps like one of 1.
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
                // It has no value, as if one of its functions were not known.
                Expression::Call(Function::Other("long product".to_owned()), Vec::new())
            };
            Size::Symbolic(Arc::new(Symbolic { expression, hint: None }))
        }
    }
}

/// Whether an expression has no more terms than are left.
fn fits(expression: &Expression, left: &mut usize) -> bool {
    let Some(rest) = left.checked_sub(1) else { return false };
    *left = rest;
    match expression {
        Expression::Call(_, arguments) => arguments.iter().all(|argument| fits(argument, left)),
        _ => true,
    }
}

pub(super) fn expression(size: &Size) -> Expression {
    match size {
        Size::Fixed(value) => Expression::Integer(*value),
        Size::Symbolic(symbolic) => symbolic.expression.clone(),
    }
}

/// Values for symbols that tell expressions apart which are not equal. No two symbols, and no two rounds, share one.
const ROUNDS: u32 = 3;

fn number(size: &Size, round: u32) -> Option<i64> {
    match size {
        Size::Fixed(value) => Some(*value),
        Size::Symbolic(symbolic) => {
            let value = |id: SymbolId| Some(97 + i64::from(id.0) * 14 + i64::from(round) * 5);
            symbolic.expression.evaluate(&value)?.integer()
        }
    }
}

fn numbers(sizes: &[Size], round: u32) -> Option<Vec<i64>> {
    sizes.iter().map(|size| number(size, round)).collect()
}

/// Whether the lists are equal whatever the symbols are.
pub(super) fn same_sizes(left: &[Size], right: &[Size]) -> bool {
    left == right
        || left.len() == right.len()
            && (0..ROUNDS).all(|round| {
                numbers(left, round).is_some_and(|left| numbers(right, round) == Some(left))
            })
}

/// Whether both lie in the same order, dimensions of one element aside.
pub(super) fn same_order(left: &TensorMeta, right: &TensorMeta) -> bool {
    let strides = |meta: &TensorMeta, round| {
        let pairs = numbers(&meta.sizes, round)?.into_iter().zip(numbers(&meta.strides, round)?);
        Some(pairs.filter(|(size, _)| *size != 1).collect::<Vec<_>>())
    };
    left.sizes == right.sizes && left.strides == right.strides
        || (0..ROUNDS).all(|round| strides(left, round) == strides(right, round))
}

/// Whether a tensor's elements lie in the order of its dimensions, from the first of its storage on.
pub(super) fn is_contiguous(meta: &TensorMeta) -> bool {
    meta.storage_offset == Size::Fixed(0)
        && same_order(meta, &contiguous(meta, meta.dtype, meta.sizes.clone()))
}

/// Whether `reshape` of a tensor to these sizes gives a view: torch's rule. Where sizes are not known it is taken for
/// one, as it is nearly always.
pub(super) fn is_view(meta: &TensorMeta, sizes: &[Size]) -> bool {
    (0..ROUNDS).all(|round| {
        let known =
            (numbers(&meta.sizes, round), numbers(&meta.strides, round), numbers(sizes, round));
        match known {
            (Some(old), Some(strides), Some(new)) => strides_exist(&old, &strides, &new),
            _ => true,
        }
    })
}

/// Each run of dimensions that lie behind one another has to be made of whole new dimensions.
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

/// How far up the order of promotion a type is: bool, integers, floats, complex numbers.
fn category(dtype: ScalarType) -> u8 {
    use ScalarType::*;
    match dtype {
        Bool => 0,
        UInt8 | Int8 | Int16 | Int32 | Int64 | UInt16 | UInt32 | UInt64 => 1,
        Float16 | Float32 | Float64 | BFloat16 | Float8E4M3Fn | Float8E5M2 | Float8E4M3FnUz
        | Float8E5M2FnUz | Float8E8M0Fnu => 2,
        Complex32 | Complex64 | Complex128 => 3,
    }
}

/// Whether the type has fractions; complex numbers not.
pub(super) fn is_float(dtype: ScalarType) -> bool {
    category(dtype) == 2
}

pub(super) fn is_complex(dtype: ScalarType) -> bool {
    category(dtype) == 3
}

/// The type that a call on both computes in, ranks not considered.
pub(super) fn promote(left: ScalarType, right: ScalarType) -> ScalarType {
    use ScalarType::*;
    if left == right {
        return left;
    }
    let (low, high) = if category(left) <= category(right) { (left, right) } else { (right, left) };
    match (category(low), category(high)) {
        (3, _) if low.bytes() > high.bytes() => low,
        (3, _) => high,
        (2, 3) => match (low, high) {
            (Float64, _) => Complex128,
            (Float32 | BFloat16, Complex32) => Complex64,
            _ => high,
        },
        (2, _) => match (low, high) {
            (Float16, BFloat16) | (BFloat16, Float16) => Float32,
            _ if low.bytes() > high.bytes() => low,
            _ => high,
        },
        (1, 1) => match (low, high) {
            (UInt8, other) | (other, UInt8) if other == Int8 => Int16,
            _ if low.bytes() > high.bytes() => low,
            _ => high,
        },
        _ => high,
    }
}

/// The type that a call on these tensors computes in: a tensor with dimensions counts for more than one without.
pub(super) fn promote_all<'a>(tensors: impl Iterator<Item = &'a TensorMeta>) -> Option<ScalarType> {
    let (mut ranked, mut bare) = (None, None);
    for meta in tensors {
        let slot = if meta.sizes.is_empty() { &mut bare } else { &mut ranked };
        *slot = Some(slot.map_or(meta.dtype, |dtype| promote(dtype, meta.dtype)));
    }
    match (ranked, bare) {
        (Some(ranked), Some(bare)) if category(bare) > category(ranked) => Some(bare),
        (Some(ranked), _) => Some(ranked),
        (None, bare) => bare,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_exist_where_strides_do() {
        assert!(strides_exist(&[4, 6], &[6, 1], &[24]));
        assert!(strides_exist(&[4, 6], &[6, 1], &[2, 2, 3, 2]));
        assert!(!strides_exist(&[6, 4], &[1, 6], &[24]));
        assert!(strides_exist(&[6, 4], &[1, 6], &[3, 2, 4]));
        assert!(strides_exist(&[4, 1, 3], &[6, 9, 1], &[4, 3]));
        assert!(!strides_exist(&[4, 3], &[6, 1], &[12]));
        assert!(strides_exist(&[], &[], &[1, 1]));
    }

    #[test]
    fn types_are_promoted_as_torch_does() {
        use ScalarType::*;
        assert_eq!(promote(Float16, BFloat16), Float32);
        assert_eq!(promote(Int8, UInt8), Int16);
        assert_eq!(promote(Bool, UInt8), UInt8);
        assert_eq!(promote(Int64, Float16), Float16);
        assert_eq!(promote(Float64, Complex64), Complex128);
        assert_eq!(promote(Int32, Int64), Int64);
    }
}
