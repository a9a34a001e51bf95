//! What calls may ask for: bounds on the numbers that extents are computed from, and a budget for what decompositions
//! create. Both are asked before anything is computed or memory is taken, so that an archive that asks for too much is
//! refused at once, with the reason. What a list holds at a place is asked here, too, as an archive decides how long
//! shapes and lists of arguments are.

use std::fmt::Debug;
use std::ops::{Add, Mul, Sub};
use std::slice::SliceIndex;

use coremill_pt2::{Argument, Graph, Kind, Meta, Node, Size, ValueId};

use crate::error::{LoweringError, Result, refuse};

/// No extent, and no integer that extents are computed from, is larger. Products of two of them, and sums of a few such
/// products, fit 64 bits.
const MAX_INTEGER: i64 = 1 << 30;
/// No tensor has more elements.
const MAX_ELEMENTS: u64 = 1 << 40;
/// No constant that a decomposition creates has more elements; 256 MB of `f32`.
const MAX_CREATED: u64 = 1 << 26;

/// How many elements a constant of these extents has, if a decomposition may create it.
pub(crate) fn checked_numel<T: Copy + TryInto<u64>>(extents: &[T]) -> Result<usize> {
    let count =
        extents.iter().try_fold(1u64, |count, &extent| count.checked_mul(extent.try_into().ok()?));
    match count {
        Some(count) if count <= MAX_CREATED => Ok(count as usize),
        _ => {
            let count = count.map_or("more than 2^64".to_owned(), |count| count.to_string());
            refuse!("needs a constant of {count} elements; at most {MAX_CREATED} are created")
        }
    }
}

/// Lists that are asked for a place, or for a run of places, which they may not have.
pub(crate) trait CheckedIndex<T> {
    /// What stands at a place.
    fn at(&self, place: usize) -> Result<&T>;
    /// The same, to be changed.
    fn at_mut(&mut self, place: usize) -> Result<&mut T>;
    /// A run of places.
    fn part<R: SliceIndex<[T], Output = [T]> + Clone + Debug>(&self, places: R) -> Result<&[T]>;
    /// Exchanges what stands at two places.
    fn exchange(&mut self, first: usize, second: usize) -> Result<()>;
}

/// Takes what stands at a place out of a list, which becomes shorter.
pub(crate) fn take<T>(list: &mut Vec<T>, place: usize) -> Result<T> {
    list.at(place)?;
    Ok(list.remove(place))
}

impl<T> CheckedIndex<T> for [T] {
    fn at(&self, place: usize) -> Result<&T> {
        self.get(place).ok_or_else(|| out_of_range(place, self.len()))
    }

    fn at_mut(&mut self, place: usize) -> Result<&mut T> {
        let length = self.len();
        self.get_mut(place).ok_or_else(|| out_of_range(place, length))
    }

    fn part<R: SliceIndex<[T], Output = [T]> + Clone + Debug>(&self, places: R) -> Result<&[T]> {
        self.get(places.clone()).ok_or_else(|| out_of_range(places, self.len()))
    }

    fn exchange(&mut self, first: usize, second: usize) -> Result<()> {
        self.at(first.max(second))?;
        self.swap(first, second);
        Ok(())
    }
}

/// The axis that stands so many places before the end of a shape of this rank.
pub(crate) fn axis_from_end(rank: usize, places: usize) -> Result<usize> {
    rank.checked_sub(places).ok_or_else(|| {
        LoweringError::new(format!("a tensor of rank {rank} has no {places} dimensions"))
    })
}

fn out_of_range(place: impl Debug, length: usize) -> LoweringError {
    LoweringError::new(format!("place {place:?} is out of range for a list of {length}"))
}

/// An integer that extents and places are computed with. What leaves 64 bits on the way stays outside, and is refused
/// when the result is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CheckedInt(Option<i64>);

/// The beginning of a computation with extents: `checked(count) * step + 1`.
pub(crate) fn checked(value: impl Into<i64>) -> CheckedInt {
    CheckedInt(Some(value.into()))
}

/// The product of extents.
pub(crate) fn product<'e>(extents: impl IntoIterator<Item = &'e i64>) -> CheckedInt {
    extents.into_iter().fold(checked(1), |product, &extent| product * extent)
}

impl CheckedInt {
    /// The result.
    pub(crate) fn get(self) -> Result<i64> {
        match self.0 {
            Some(value) => Ok(value),
            None => refuse!("computes with an extent of more than 64 bits"),
        }
    }

    /// The result, if it fits the integers that Core ML computes extents with.
    pub(crate) fn int32(self) -> Result<i32> {
        let value = self.get()?;
        match i32::try_from(value) {
            Ok(value) => Ok(value),
            Err(_) => refuse!("computes with the extent {value}; at most {} go", i32::MAX),
        }
    }

    /// How often a positive number goes into it, rounded down.
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

/// Whether a call's integers, and the sizes of its tensors, are ones that lowering can compute with.
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
            refuse!("`{}` has a dimension of {extent}; expected at most {}", value.name, i32::MAX);
        }
        // A tensor without elements is as good as one with them: what it is made of may have some.
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

/// The least that torch accepts for what windows, groups and parts are made of.
fn least(operator: &str, parameter: &str) -> i64 {
    match parameter {
        // A view may have any strides.
        "stride" if operator.contains("as_strided") => 0,
        // A pool's stride may be left out.
        "kernel_size" | "stride" | "dilation" | "groups" | "chunks" | "step" | "upscale_factor"
        | "downscale_factor" | "split_size" => 1,
        "output_size" | "steps" => 0,
        _ => -MAX_INTEGER,
    }
}

fn check_ints(operator: &str, parameter: &str, argument: &Argument) -> Result<()> {
    match argument {
        Argument::Int(value) => {
            // Slices that go to the end, whatever it is, end there.
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
    fn what_leaves_64_bits_is_refused_at_the_end() {
        assert_eq!((checked(7) * 3_i64 - 1_i64 + checked(2)).get(), Ok(22));
        assert_eq!(checked(-7).over(2).get(), Ok(-4));
        let left = checked(i64::MAX) * 2_i64 - i64::MAX;
        assert!(left.get().is_err() && (left - left).get().is_err());
        assert!(checked(1).over(0).get().is_err());
        assert_eq!(product(&[3, 4, 5]).get(), Ok(60));
        assert!(checked(1_i64 << 31).int32().is_err());
    }

    #[test]
    fn places_that_a_list_lacks_are_refused() {
        let mut list = vec![3, 4, 5];
        assert_eq!((list.at(2), list.part(1..)), (Ok(&5), Ok(&[4, 5][..])));
        assert_eq!((list.at_mut(0).copied(), list.exchange(0, 2)), (Ok(3), Ok(())));
        assert_eq!(
            (take(&mut list, 0), &list[..], axis_from_end(2, 2)),
            (Ok(5), &[4, 3][..], Ok(0))
        );
        let reason = list.at(2).expect_err("there are two").reason;
        assert_eq!(reason, "place 2 is out of range for a list of 2");
        assert!(list.at_mut(2).is_err() && list.part(1..3).is_err() && list.part(3..).is_err());
        assert!(
            list.exchange(2, 0).is_err()
                && take(&mut list, 2).is_err()
                && axis_from_end(1, 2).is_err()
        );
    }

    #[test]
    fn what_is_created_has_a_budget() {
        assert_eq!(checked_numel(&[60_000i64, 1000]), Ok(60_000_000));
        assert_eq!(checked_numel::<u64>(&[]), Ok(1));
        let refusal = checked_numel(&[60_000i64, 59_999]).expect_err("too many").reason;
        assert_eq!(
            refusal,
            "needs a constant of 3599940000 elements; at most 67108864 are created"
        );
        assert!(checked_numel(&[1i64 << 40, 1 << 40]).is_err() && checked_numel(&[-1i64]).is_err());
    }
}
