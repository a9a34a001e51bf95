//! Checks on untrusted arguments of calls: bounds on the integers that sizes are computed from, and a limit on the
//! constants that decompositions create. The checks run before anything is computed or allocated, so an excessive
//! request in an archive is an error with a reason. Indexing into lists is checked here, too, because an archive
//! decides the length of shapes and argument lists.

use std::fmt::Debug;
use std::ops::{Add, Mul, Sub};
use std::slice::SliceIndex;

use coremill_pt2::{Argument, Graph, Kind, Meta, Node, Size, ValueId};

use crate::error::{LoweringError, Result, refuse};

/// Maximum size, and maximum integer that sizes are computed from. Products of two such integers, and sums of a few
/// such products, fit in 64 bits.
const MAX_INTEGER: i64 = 1 << 30;
/// Maximum number of elements of a tensor.
const MAX_ELEMENTS: u64 = 1 << 40;
/// Maximum number of elements of a constant that a decomposition creates; 256 MB of `f32`.
const MAX_CREATED: u64 = 1 << 26;

/// Number of elements of a constant of this shape, if a decomposition may create it.
pub(crate) fn checked_numel<T: Copy + TryInto<u64>>(extents: &[T]) -> Result<usize> {
    let count =
        extents.iter().try_fold(1u64, |count, &extent| count.checked_mul(extent.try_into().ok()?));
    match count {
        Some(count) if count <= MAX_CREATED => Ok(count as usize),
        _ => {
            let count = count.map_or("more than 2^64".to_owned(), |count| count.to_string());
            refuse!("requires a constant of {count} elements; the maximum is {MAX_CREATED}")
        }
    }
}

/// Checked indexing and slicing of lists.
pub(crate) trait CheckedIndex<T> {
    /// Returns the element at an index.
    fn at(&self, index: usize) -> Result<&T>;
    /// Returns the element at an index, mutably.
    fn at_mut(&mut self, index: usize) -> Result<&mut T>;
    /// Returns the elements of a range of indices.
    fn part<R: SliceIndex<[T], Output = [T]> + Clone + Debug>(&self, range: R) -> Result<&[T]>;
    /// Swaps two elements.
    fn exchange(&mut self, first: usize, second: usize) -> Result<()>;
}

/// Removes and returns the element at an index.
pub(crate) fn take<T>(list: &mut Vec<T>, index: usize) -> Result<T> {
    list.at(index)?;
    Ok(list.remove(index))
}

impl<T> CheckedIndex<T> for [T] {
    fn at(&self, index: usize) -> Result<&T> {
        self.get(index).ok_or_else(|| out_of_range(index, self.len()))
    }

    fn at_mut(&mut self, index: usize) -> Result<&mut T> {
        let length = self.len();
        self.get_mut(index).ok_or_else(|| out_of_range(index, length))
    }

    fn part<R: SliceIndex<[T], Output = [T]> + Clone + Debug>(&self, range: R) -> Result<&[T]> {
        self.get(range.clone()).ok_or_else(|| out_of_range(range, self.len()))
    }

    fn exchange(&mut self, first: usize, second: usize) -> Result<()> {
        self.at(first.max(second))?;
        self.swap(first, second);
        Ok(())
    }
}

/// The axis `distance` dimensions before the end of a shape of rank `rank`.
pub(crate) fn axis_from_end(rank: usize, distance: usize) -> Result<usize> {
    rank.checked_sub(distance).ok_or_else(|| {
        LoweringError::new(format!("a tensor of rank {rank} has fewer than {distance} dimensions"))
    })
}

fn out_of_range(index: impl Debug, length: usize) -> LoweringError {
    LoweringError::new(format!("index {index:?} is out of range for a list of length {length}"))
}

/// An integer in a computation of sizes and indices. An overflow of 64 bits on the way is kept, and becomes an error
/// when the result is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CheckedInt(Option<i64>);

/// Starts a checked computation, such as `checked(count) * step + 1`.
pub(crate) fn checked(value: impl Into<i64>) -> CheckedInt {
    CheckedInt(Some(value.into()))
}

/// Product of sizes.
pub(crate) fn product<'e>(extents: impl IntoIterator<Item = &'e i64>) -> CheckedInt {
    extents.into_iter().fold(checked(1), |product, &extent| product * extent)
}

impl CheckedInt {
    /// The result, or an error after an overflow.
    pub(crate) fn get(self) -> Result<i64> {
        match self.0 {
            Some(value) => Ok(value),
            None => refuse!("computes a size that does not fit in 64 bits"),
        }
    }

    /// The result as the 32-bit integer that Core ML computes sizes with.
    pub(crate) fn int32(self) -> Result<i32> {
        let value = self.get()?;
        match i32::try_from(value) {
            Ok(value) => Ok(value),
            Err(_) => refuse!("computes the size {value}; the maximum is {}", i32::MAX),
        }
    }

    /// Quotient by a positive number, rounded down.
    pub(crate) fn over(self, divisor: i64) -> CheckedInt {
        CheckedInt(self.0.and_then(|value| value.checked_div_euclid(divisor)))
    }
}

impl From<i64> for CheckedInt {
    fn from(value: i64) -> CheckedInt {
        CheckedInt(Some(value))
    }
}

impl From<i32> for CheckedInt {
    fn from(value: i32) -> CheckedInt {
        CheckedInt(Some(value.into()))
    }
}

macro_rules! operators {
    ($($operator:ident $method:ident $compute:ident),*) => {$(
        impl<T: Into<CheckedInt>> $operator<T> for CheckedInt {
            type Output = CheckedInt;

            fn $method(self, other: T) -> CheckedInt {
                let both = self.0.zip(other.into().0);
                CheckedInt(both.and_then(|(left, right)| left.$compute(right)))
            }
        }
    )*};
}

operators!(Add add checked_add, Sub sub checked_sub, Mul mul checked_mul);

/// Checks that lowering can compute with a call's integers and with the sizes of its tensors.
pub(crate) fn check(node: &Node, graph: &Graph) -> Result<()> {
    let mut refused = None;
    let mut look = |id: ValueId| {
        if let Err(refusal) = check_meta(graph, id) {
            refused.get_or_insert(refusal);
        }
    };
    node.for_each_use(&mut look);
    node.defined().for_each(look);
    if let Some(refusal) = refused {
        return Err(refusal);
    }
    let Some(schema) = &node.schema else { return Ok(()) };
    for parameter in &schema.arguments {
        let Some(argument) = node.argument(&parameter.name) else { continue };
        if is_int(&parameter.kind) {
            check_ints(&node.target.to_string(), &parameter.name, argument)?;
        }
    }
    Ok(())
}

fn check_meta(graph: &Graph, id: ValueId) -> Result<()> {
    let value = graph.value(id);
    let Meta::Tensor(meta) = &value.meta else { return Ok(()) };
    let mut elements = 1u64;
    for extent in meta.sizes.iter().filter_map(Size::fixed) {
        if extent > i64::from(i32::MAX) {
            refuse!(
                "`{}` has a dimension of size {extent}; the maximum is {}",
                value.name,
                i32::MAX
            );
        }
        // An empty tensor counts, too: its other dimensions may be huge, and so may the tensors it is computed from.
        elements = elements.saturating_mul(extent.max(1) as u64);
    }
    if elements > MAX_ELEMENTS {
        refuse!("`{}` must have at most {MAX_ELEMENTS} elements, got {elements}", value.name);
    }
    Ok(())
}

fn is_int(kind: &Kind) -> bool {
    match kind {
        Kind::Int => true,
        Kind::Optional(kind) | Kind::List(kind, _) => is_int(kind),
        _ => false,
    }
}

/// Smallest value that torch accepts for parameters of windows, groups and chunks.
fn least(operator: &str, parameter: &str) -> i64 {
    match parameter {
        // `as_strided` allows a stride of zero.
        "stride" if operator.contains("as_strided") => 0,
        "kernel_size" | "stride" | "dilation" | "groups" | "chunks" | "step" | "upscale_factor"
        | "downscale_factor" | "split_size" => 1,
        "output_size" | "steps" => 0,
        _ => -MAX_INTEGER,
    }
}

fn check_ints(operator: &str, parameter: &str, argument: &Argument) -> Result<()> {
    match argument {
        Argument::Int(value) => {
            // Very large slice bounds mean "to the end" and are clamped.
            let is_bound = matches!(parameter, "start" | "end" | "length")
                && (*value > i64::MAX / 2 || *value < i64::MIN / 2);
            let least = if *value == 0 && parameter == "split_size" {
                0
            } else {
                least(operator, parameter)
            };
            if !is_bound && !(least..=MAX_INTEGER).contains(value) {
                refuse!("`{parameter}` must be from {least} to {MAX_INTEGER}, got {value}");
            }
            Ok(())
        }
        Argument::List(items) => {
            items.iter().try_for_each(|item| check_ints(operator, parameter, item))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checked_arithmetic_defers_overflow_errors_to_get() {
        assert_eq!((checked(7) * 3_i64 - 1_i64 + checked(2)).get(), Ok(22));
        assert_eq!(checked(-7).over(2).get(), Ok(-4));
        let left = checked(i64::MAX) * 2_i64 - i64::MAX;
        assert!(left.get().is_err() && (left - left).get().is_err());
        assert!(checked(1).over(0).get().is_err());
        assert_eq!(product(&[3, 4, 5]).get(), Ok(60));
        assert!(checked(1_i64 << 31).int32().is_err());
    }

    #[test]
    fn rejects_out_of_range_list_indices() {
        let mut list = vec![3, 4, 5];
        assert_eq!((list.at(2), list.part(1..)), (Ok(&5), Ok(&[4, 5][..])));
        assert_eq!((list.at_mut(0).copied(), list.exchange(0, 2)), (Ok(3), Ok(())));
        assert_eq!(
            (take(&mut list, 0), &list[..], axis_from_end(2, 2)),
            (Ok(5), &[4, 3][..], Ok(0))
        );
        let reason = list.at(2).expect_err("index out of range").reason;
        assert_eq!(reason, "index 2 is out of range for a list of length 2");
        assert!(list.at_mut(2).is_err() && list.part(1..3).is_err() && list.part(3..).is_err());
        assert!(
            list.exchange(2, 0).is_err()
                && take(&mut list, 2).is_err()
                && axis_from_end(1, 2).is_err()
        );
    }

    #[test]
    fn limits_element_count_of_created_constants() {
        assert_eq!(checked_numel(&[60_000i64, 1000]), Ok(60_000_000));
        assert_eq!(checked_numel::<u64>(&[]), Ok(1));
        let refusal = checked_numel(&[60_000i64, 59_999]).expect_err("too many elements").reason;
        assert_eq!(refusal, "requires a constant of 3599940000 elements; the maximum is 67108864");
        assert!(checked_numel(&[1i64 << 40, 1 << 40]).is_err() && checked_numel(&[-1i64]).is_err());
    }
}
