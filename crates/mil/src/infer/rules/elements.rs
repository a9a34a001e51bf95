//! Helpers that move and compute known elements, for operations that programs use to compute shapes.

use std::cmp::Ordering;

use coremill_tensor::DType;

use crate::infer::shape::fixed;
use crate::infer::{InferredValue, KnownElements, MAX_FOLDED_ELEMENTS, Scalar};
use crate::ir::{Dim, Type};

/// The number of elements of a shape; `None` if there are too many to fold.
pub(super) fn foldable_count(shape: &[u64]) -> Option<usize> {
    // A size of zero makes the product zero, even if the other sizes overflow.
    if shape.contains(&0) {
        return Some(0);
    }
    let count = shape.iter().try_fold(1u64, |count, &extent| count.checked_mul(extent))?;
    (count <= MAX_FOLDED_ELEMENTS).then_some(count as usize)
}

/// Maximum number of elements of a tensor that is tracked with unknown elements; such tensors are parts of
/// shapes.
const MAX_UNKNOWN_ELEMENTS: usize = 10;

/// The known elements of an operand; unknown elements if only its (small) shape is known.
pub(super) fn elements_of(operand: &InferredValue) -> Option<KnownElements> {
    if let Some(value) = &operand.value {
        return Some(KnownElements::clone(value));
    }
    let tensor = operand.ty.as_tensor()?;
    let shape = tensor.known_shape()?;
    let count = foldable_count(&shape).filter(|&count| count <= MAX_UNKNOWN_ELEMENTS)?;
    KnownElements::new(tensor.dtype, shape, vec![Scalar::Unknown; count])
}

/// The tensor, or `None` if all of its elements are unknown and the type is equally informative.
pub(super) fn informative(folded: KnownElements) -> Option<KnownElements> {
    let known = folded.elements.iter().any(|element| *element != Scalar::Unknown);
    (known || folded.elements.is_empty()).then_some(folded)
}

/// The same elements in another shape with the same number of elements.
pub(super) fn reshaped(x: &KnownElements, shape: &[Dim]) -> Option<KnownElements> {
    KnownElements::new(x.dtype, fixed(shape)?, x.elements.clone())
}

/// Rearranges elements: the result at an index is the element of `x` at the index computed by `source`.
pub(super) fn rearranged(
    x: &KnownElements,
    shape: &[Dim],
    mut source: impl FnMut(&[u64], &mut [u64]) -> Option<()>,
) -> Option<KnownElements> {
    let mut at = vec![0; x.shape.len()];
    tabulated(x.dtype, shape, |index| {
        at.fill(0);
        source(index, &mut at)?;
        x.elements.get(offset(&x.shape, &at)?).cloned()
    })
}

/// Computes the elements from their indices; `None` if one cannot be computed.
pub(super) fn tabulated(
    dtype: DType,
    shape: &[Dim],
    mut element: impl FnMut(&[u64]) -> Option<Scalar>,
) -> Option<KnownElements> {
    let shape = fixed(shape)?;
    let count = foldable_count(&shape)?;
    let mut elements = Vec::with_capacity(count);
    let mut index = vec![0; shape.len()];
    for _ in 0..count {
        elements.push(element(&index)?);
        advance(&mut index, &shape);
    }
    KnownElements::new(dtype, shape, elements)
}

/// The row-major offset of an index; `None` if the index is out of bounds.
pub(super) fn offset(shape: &[u64], index: &[u64]) -> Option<usize> {
    let mut offset = 0u64;
    for (&extent, &at) in shape.iter().zip(index) {
        if at >= extent {
            return None;
        }
        offset = offset.checked_mul(extent)?.checked_add(at)?;
    }
    usize::try_from(offset).ok()
}

/// Advances an index in row-major order.
fn advance(index: &mut [u64], shape: &[u64]) {
    for (at, extent) in index.iter_mut().zip(shape).rev() {
        *at += 1;
        if *at < *extent {
            return;
        }
        *at = 0;
    }
}

/// Offsets of the elements of each line along an axis, line by line.
pub(super) fn lines(shape: &[u64], axis: usize) -> Vec<Vec<usize>> {
    let Some(count) = foldable_count(shape).filter(|&count| count > 0) else { return Vec::new() };
    let Some(&length) = shape.get(axis) else { return Vec::new() };
    let stride = shape[axis + 1..].iter().product::<u64>() as usize;
    let length = length as usize;
    let starts = (0..count).filter(|place| (place / stride).is_multiple_of(length));
    starts.map(|start| (0..length).map(|step| start + step * stride).collect()).collect()
}

/// The order of two numbers with NaN last; `None` if it is unknown.
pub(super) fn order(left: &Scalar, right: &Scalar) -> Option<Ordering> {
    match (left, right) {
        (Scalar::Float(left), Scalar::Float(right)) => {
            Some(left.partial_cmp(right).unwrap_or_else(|| left.is_nan().cmp(&right.is_nan())))
        }
        _ => Some(left.int()?.cmp(&right.int()?)),
    }
}

/// Whether a value is within the range of an integer type; `true` for other types.
pub(super) fn fits(dtype: DType, value: i64) -> bool {
    match dtype {
        DType::Int8 => i8::try_from(value).is_ok(),
        DType::UInt8 => u8::try_from(value).is_ok(),
        DType::Int16 => i16::try_from(value).is_ok(),
        DType::UInt16 => u16::try_from(value).is_ok(),
        DType::Int32 => i32::try_from(value).is_ok(),
        DType::UInt32 => u32::try_from(value).is_ok(),
        _ => true,
    }
}

/// The inference result of a tensor with optional known elements.
pub(super) fn tensor(dtype: DType, shape: Vec<Dim>, value: Option<KnownElements>) -> InferredValue {
    let outcome = InferredValue::tensor(dtype, shape);
    let value =
        value.filter(|value| Type::tensor(value.dtype, &value.shape).is_compatible(&outcome.ty));
    outcome.with(value)
}
