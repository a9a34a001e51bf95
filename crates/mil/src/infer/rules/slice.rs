//! Slices with the semantics of Python and NumPy.

use crate::infer::rules::elements::{offset, rearranged, tensor};
use crate::infer::{InferContext, InferError, KnownElements, Rule, Scalar, refuse};
use crate::ir::{Dim, Expr, TensorType, Type};

/// Slice along one axis.
#[derive(Clone, Debug)]
struct Slice {
    begin: Bound,
    end: Bound,
    stride: i64,
    /// Whether only the element at `begin` is selected and the axis is removed.
    squeezed: bool,
}

/// Begin or end of a slice.
#[derive(Clone, Debug, PartialEq)]
enum Bound {
    /// The begin or end of the tensor.
    Open,
    /// An index; negative indices count from the end.
    At(Expr),
    /// An unknown index.
    Unknown,
}

pub(super) fn slice_by_index(site: &InferContext) -> Rule {
    let x = site.tensor("x")?;
    let slices = slices(site, x)?;
    let shape = shape_of(site, x, &slices)?;
    let value = site.value("x").and_then(|value| {
        let places = places(&value.shape, &slices)?;
        rearranged(value, &shape, |index, at| locate(&places, &slices, index, at))
    });
    Ok(vec![tensor(x.dtype, shape, value)])
}

pub(super) fn slice_update(site: &InferContext) -> Rule {
    let x = site.tensor("x")?;
    let update = site.tensor("update")?;
    let slices = slices(site, x)?;
    let shape = shape_of(site, x, &slices)?;
    let expected = Type::Tensor(TensorType { dtype: x.dtype, shape: shape.clone() });
    let given = Type::Tensor(update.clone());
    if update.rank() == 0 {
        return Err(InferError::new("is a scalar; the update must have at least one axis")
            .of("update")
            .hint("leave an axis out of `squeeze_mask`"));
    }
    if !given.is_compatible(&expected) {
        let message = format!("is `{given}`, but the slice that it replaces is `{expected}`");
        return Err(InferError::new(message).of("update"));
    }
    let fold = || {
        let (mut value, update) = (KnownElements::clone(site.value("x")?), site.value("update")?);
        let places = places(&value.shape, &slices)?;
        let mut at = vec![0; value.shape.len()];
        // Each element of the update is written to one position, so iterate over the update.
        rearranged(update, &shape, |index, source| {
            locate(&places, &slices, index, &mut at)?;
            source.copy_from_slice(index);
            let element = update.elements.get(offset(&update.shape, source)?)?;
            let place = offset(&value.shape, &at)?;
            *value.elements.get_mut(place)? = element.clone();
            Some(())
        })?;
        Some(value)
    };
    Ok(vec![tensor(x.dtype, x.shape.clone(), fold())])
}

/// The slice along each axis, from the parameters that both operations have.
fn slices(site: &InferContext, x: &TensorType) -> Result<Vec<Slice>, InferError> {
    let rank = x.rank();
    let bounds = |name: &str, mask: &str| -> Result<Vec<Bound>, InferError> {
        let masked = mask_of(site, mask, rank)?;
        let bounds = vector(site, name, rank)?;
        let at = |(element, masked): (Scalar, bool)| match (masked, element.expr()) {
            (true, _) => Bound::Open,
            (false, Some(expr)) => Bound::At(expr),
            (false, None) => Bound::Unknown,
        };
        Ok(bounds.into_iter().zip(masked).map(at).collect())
    };
    let begins = bounds("begin", "begin_mask")?;
    let ends = bounds("end", "end_mask")?;
    let squeezed = mask_of(site, "squeeze_mask", rank)?;
    let strides = match site.optional_ints("stride")? {
        None => vec![1; rank],
        Some(strides) => strides,
    };
    check_length(site, "stride", strides.len(), rank)?;
    if strides.contains(&0) {
        return Err(InferError::new("must not contain 0").of("stride"));
    }
    let parts = begins.into_iter().zip(ends).zip(strides.into_iter().zip(squeezed));
    let slice = |((begin, end), (stride, squeezed))| Slice { begin, end, stride, squeezed };
    Ok(parts.map(slice).collect())
}

/// The elements of a vector with one element for each axis.
fn vector(site: &InferContext, name: &str, rank: usize) -> Result<Vec<Scalar>, InferError> {
    let ty = site.tensor(name)?;
    if ty.rank() != 1 {
        return Err(site.expected(name, "a vector with one element for each axis of `x`"));
    }
    if let Some(length) = ty.shape[0].known() {
        check_length(site, name, usize::try_from(length).unwrap_or(usize::MAX), rank)?;
    }
    match site.value(name) {
        Some(value) => Ok(value.elements.clone()),
        None => Ok(vec![Scalar::Unknown; rank]),
    }
}

fn mask_of(site: &InferContext, name: &str, rank: usize) -> Result<Vec<bool>, InferError> {
    let mask = site.bools(name, rank)?;
    check_length(site, name, mask.len(), rank)?;
    Ok(mask)
}

fn check_length(
    site: &InferContext,
    name: &str,
    length: usize,
    rank: usize,
) -> Result<(), InferError> {
    if length == rank {
        return Ok(());
    }
    let message = format!("has {length} elements, but `x` of `{}` has rank {rank}", site.name());
    Err(InferError::new(message).of(name))
}

/// The shape of the sliced tensor, without squeezed axes.
fn shape_of(site: &InferContext, x: &TensorType, slices: &[Slice]) -> Result<Vec<Dim>, InferError> {
    let mut shape = Vec::with_capacity(slices.len());
    for (axis, (extent, slice)) in x.shape.iter().zip(slices).enumerate() {
        if slice.squeezed {
            check_index(slice, extent, axis)?;
        } else {
            shape.push(extent_of(site, extent, slice, axis)?);
        }
    }
    Ok(shape)
}

fn check_index(slice: &Slice, extent: &Dim, axis: usize) -> Result<(), InferError> {
    let (Bound::At(index), Some(extent)) = (&slice.begin, extent.known()) else { return Ok(()) };
    let Some(index) = index.constant() else { return Ok(()) };
    if element_at(index, extent).is_some() {
        return Ok(());
    }
    let message = format!(
        "selects element {index} along axis {axis}, where `x` has {extent} elements; expected an \
         index from -{extent} to {}",
        i128::from(extent) - 1
    );
    Err(InferError::new(message).of("begin"))
}

/// Normalizes an index that may count from the end; `None` if it is out of bounds.
pub(super) fn element_at(index: i64, extent: u64) -> Option<u64> {
    let from_start = i128::from(index) + if index < 0 { i128::from(extent) } else { 0 };
    u64::try_from(from_start).ok().filter(|&at| at < extent)
}

/// Number of elements of a slice along an axis.
fn extent_of(
    site: &InferContext,
    extent: &Dim,
    slice: &Slice,
    axis: usize,
) -> Result<Dim, InferError> {
    let (begin, end, stride) = (&slice.begin, &slice.end, slice.stride);
    if let (Bound::At(begin), Bound::At(end)) = (begin, end)
        && let (Some(begin), Some(end)) = (begin.constant(), end.constant())
    {
        let backwards = begin >= 0 && end >= 0 && stride > 0 && end < begin
            || begin < 0 && end < 0 && stride < 0 && begin < end;
        if backwards {
            refuse!(
                "selects no elements along axis {axis}: stride {stride} does not lead from {begin} to \
                 {end}"
            );
        }
    }
    if let (Some(extent), Some(begin), Some(end)) =
        (extent.known(), begin.constant(), end.constant())
    {
        return Ok(Dim::Known(taken(extent, begin, end, stride).1));
    }
    // A slice of an axis of size 1 has one element, independent of the bounds, unless it is empty.
    if *extent == Dim::Known(1) {
        return Ok(Dim::Known(1));
    }
    Ok(site.dim(extent.expr().and_then(|extent| open_extent(&extent, slice))))
}

impl Bound {
    /// The bound, if it is known; `Some(None)` for an open bound.
    fn constant(&self) -> Option<Option<i64>> {
        match self {
            Bound::Open => Some(None),
            Bound::At(expr) => expr.constant().map(Some),
            Bound::Unknown => None,
        }
    }
}

/// The start of a slice along an axis, and its number of elements.
fn taken(extent: u64, begin: Option<i64>, end: Option<i64>, stride: i64) -> (u64, u64) {
    let extent = i128::from(extent);
    // A backward slice ends before the first element, at -1.
    let (low, high) = if stride > 0 { (0, extent) } else { (-1, extent - 1) };
    let clamp = |bound: i64| {
        let from_start = i128::from(bound) + if bound < 0 { extent } else { 0 };
        from_start.clamp(low, high.max(low))
    };
    let (first, last) = if stride > 0 { (low, high) } else { (high, low) };
    let begin = begin.map_or(first, clamp);
    let end = end.map_or(last, clamp);
    let (distance, step) = if stride > 0 {
        (end - begin, i128::from(stride))
    } else {
        (begin - end, -i128::from(stride))
    };
    let count = if distance <= 0 { 0 } else { (distance + step - 1) / step };
    // Both are within the axis, whose size fits.
    (u64::try_from(begin).unwrap_or(0), u64::try_from(count).unwrap_or(0))
}

/// Number of elements of a slice along an axis with a symbolic size.
fn open_extent(extent: &Expr, slice: &Slice) -> Option<Expr> {
    let zero = Expr::from(0);
    let (begin, end, stride) = (&slice.begin, &slice.end, slice.stride);
    if *begin == Bound::Open && *end == Bound::Open {
        return extent.ceil_div(&Expr::from(stride.checked_abs()?));
    }
    // Assume that the axis is long enough for a slice of one element or from one end of the axis.
    let known = |bound: &Bound| match bound {
        Bound::At(expr) => expr.constant(),
        Bound::Open | Bound::Unknown => None,
    };
    match (known(begin), end, known(end)) {
        (Some(begin), Bound::Open, _) if begin == 0 && stride < 0 || begin == -1 && stride > 0 => {
            return Some(Expr::from(1));
        }
        (Some(begin), _, Some(end)) => {
            let distance = end.checked_sub(begin)?;
            let ahead = begin >= 0 && end >= 0 && stride > 0;
            let back = begin < 0 && end < 0 && stride < 0;
            if (ahead || back) && distance.unsigned_abs() <= stride.unsigned_abs() {
                return Some(Expr::from(i64::from(distance != 0)));
            }
        }
        _ => {}
    }
    if stride < 0 {
        return None;
    }
    let begin = match begin {
        Bound::Open => zero.clone(),
        Bound::At(at) if at.lower_bound().is_some_and(|bound| bound >= 0) => at.clone(),
        Bound::At(at) if at.constant().is_some() => {
            if *end == Bound::Open {
                let length = extent.smaller(&zero.sub(at)?)?;
                return length.ceil_div(&Expr::from(stride));
            }
            not_negative(extent.add(at)?)?
        }
        Bound::At(_) | Bound::Unknown => return None,
    };
    let end = match end {
        Bound::Open => extent.clone(),
        Bound::At(at) if at.lower_bound().is_some_and(|bound| bound >= 0) => at.smaller(extent)?,
        Bound::At(at) if at.constant().is_some() => extent.add(at)?,
        Bound::At(_) | Bound::Unknown => return None,
    };
    not_negative(end.sub(&begin)?.ceil_div(&Expr::from(stride))?)
}

/// The maximum of the expression and zero.
pub(super) fn not_negative(expr: Expr) -> Option<Expr> {
    if expr.lower_bound().is_some_and(|bound| bound >= 0) {
        return Some(expr);
    }
    expr.larger(&Expr::from(0))
}

/// Start of each slice along its axis, for a tensor with known elements.
fn places(shape: &[u64], slices: &[Slice]) -> Option<Vec<u64>> {
    let place = |(&extent, slice): (&u64, &Slice)| {
        let begin = slice.begin.constant()?;
        if slice.squeezed {
            return element_at(begin.unwrap_or(0), extent);
        }
        Some(taken(extent, begin, slice.end.constant()?, slice.stride).0)
    };
    shape.iter().zip(slices).map(place).collect()
}

/// Computes the index in the tensor of an element of the slice.
fn locate(places: &[u64], slices: &[Slice], index: &[u64], at: &mut [u64]) -> Option<()> {
    let mut index = index.iter();
    for ((at, place), slice) in at.iter_mut().zip(places).zip(slices) {
        let step = if slice.squeezed { 0 } else { *index.next()? };
        let moved = i128::from(*place) + i128::from(step) * i128::from(slice.stride);
        *at = u64::try_from(moved).ok()?;
    }
    Some(())
}

pub(super) fn slice_by_size(site: &InferContext) -> Rule {
    let x = site.tensor("x")?;
    let rank = x.rank();
    let begins = vector(site, "begin", rank)?;
    let sizes = vector(site, "size", rank)?;
    let mut shape = Vec::with_capacity(rank);
    let mut starts = Vec::with_capacity(rank);
    for (axis, ((extent, begin), size)) in x.shape.iter().zip(&begins).zip(&sizes).enumerate() {
        let start = begin.int().zip(extent.known()).map(|(begin, extent)| {
            // A slice may begin at the end of an axis; it is then empty.
            if u64::try_from(begin) == Ok(extent) {
                Some(extent)
            } else {
                element_at(begin, extent)
            }
        });
        if let Some(None) = start {
            let message = format!(
                "starts at {} along axis {axis}, where `x` has {extent} elements",
                begin.int().unwrap_or_default()
            );
            return Err(InferError::new(message).of("begin"));
        }
        let start = start.flatten();
        starts.push(start);
        let left = start.zip(extent.known()).map(|(start, extent)| extent.saturating_sub(start));
        let size = match size.int() {
            Some(-1) => match left {
                Some(left) => Dim::Known(left),
                None => site.dim(remaining(extent, begin)),
            },
            Some(size) => {
                let Ok(size) = u64::try_from(size) else {
                    let message = format!("must be -1 or at least 0 along axis {axis}, got {size}");
                    return Err(InferError::new(message).of("size"));
                };
                let room = left.or(extent.known());
                if room.is_some_and(|room| size > room) {
                    let message = format!(
                        "is {size} along axis {axis}, where {} of {extent} elements remain",
                        room.unwrap_or_default()
                    );
                    return Err(InferError::new(message)
                        .of("size")
                        .hint("-1 selects all remaining elements"));
                }
                Dim::Known(size)
            }
            None => site.dim(size.expr()),
        };
        shape.push(size);
    }
    let starts: Option<Vec<u64>> = starts.into_iter().collect();
    let value = site.value("x").zip(starts).and_then(|(value, starts)| {
        rearranged(value, &shape, |index, at| {
            for ((at, start), step) in at.iter_mut().zip(&starts).zip(index) {
                *at = start.checked_add(*step)?;
            }
            Some(())
        })
    });
    Ok(vec![tensor(x.dtype, shape, value)])
}

/// Number of elements of an axis from an index on.
fn remaining(extent: &Dim, begin: &Scalar) -> Option<Expr> {
    let (extent, begin) = (extent.expr()?, begin.expr()?);
    let bound = begin.lower_bound();
    if bound.is_some_and(|bound| bound >= 0) {
        return not_negative(extent.sub(&begin)?);
    }
    begin.constant().and_then(|begin| begin.checked_neg()).map(Expr::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_match_python() {
        let whole = |extent, stride| taken(extent, None, None, stride);
        assert_eq!(whole(5, 1), (0, 5));
        assert_eq!(whole(5, 2), (0, 3));
        assert_eq!(whole(5, -2), (4, 3));
        assert_eq!(taken(5, Some(-2), None, 1), (3, 2));
        assert_eq!(taken(5, Some(3), Some(-6), -1), (3, 4));
        assert_eq!(taken(5, Some(9), None, 1).1, 0);
        assert_eq!(taken(5, Some(i64::MIN), Some(i64::MAX), i64::MAX), (0, 1));
        assert_eq!(taken(5, Some(i64::MAX), Some(i64::MIN), i64::MIN), (4, 1));
        assert_eq!(taken(0, None, None, -1).1, 0);
        assert_eq!(taken(u64::MAX, None, None, 1), (0, u64::MAX));
    }
}
