//! Copies that change the layout: permutations, slices, concatenations, padding, and conversion between
//! channels first and channels last.

#[cfg(test)]
mod tests;

use crate::Pool;
use crate::shared::SharedMut;

/// Layout of a strided tensor in a slice.
#[derive(Clone, Copy, Debug)]
pub struct StridedSlice<'a> {
    /// Offset of the first element.
    pub offset: usize,
    /// Distance between adjacent elements along each axis; negative if the axis is reversed.
    pub strides: &'a [isize],
}

/// The strides of a dense tensor with this shape.
pub fn dense_strides(shape: &[usize]) -> Vec<isize> {
    let mut strides = vec![0; shape.len()];
    let mut step = 1isize;
    for (stride, &length) in strides.iter_mut().zip(shape).rev() {
        *stride = step;
        step = step.saturating_mul(isize::try_from(length).unwrap_or(isize::MAX));
    }
    strides
}

/// Copies a strided tensor to another strided tensor of the same shape.
///
/// # Panics
/// Panics if strides have another rank or exceed their slice, or if two elements have the same location in
/// the target.
pub fn copy_strided<T: Copy + Send + Sync>(
    pool: &Pool,
    shape: &[usize],
    source: &[T],
    from: StridedSlice<'_>,
    target: &mut [T],
    to: StridedSlice<'_>,
) {
    check(shape, from, source.len(), "source");
    check(shape, to, target.len(), "target");
    if shape.contains(&0) {
        return;
    }
    let space = Space::new(shape, from, to);
    let target = SharedMut::new(target);
    let copy = CopyKernel { space: &space, source: source.as_ptr(), target: target.pointer(0..0) };
    let elements: usize = shape.iter().product();
    let grain = (32_768 / (elements / space.units()).max(1)).max(1);
    // Multithreading pays off from some hundred kilobytes on.
    if pool.threads() == 1 || elements * size_of::<T>() < 1 << 17 {
        return copy.units(0..space.units());
    }
    pool.run_ranges(space.units(), grain, |range| copy.units(range));
}

/// Transposes a dense tensor: axis `i` of the target is axis `permutation[i]` of the source.
///
/// # Panics
/// Panics if `permutation` is not a permutation of the axes, or if a length does not match the shape.
pub fn permute<T: Copy + Send + Sync>(
    pool: &Pool,
    source: &[T],
    shape: &[usize],
    permutation: &[usize],
    target: &mut [T],
) {
    let mut seen = vec![false; shape.len()];
    assert_eq!(permutation.len(), shape.len(), "the permutation's length must equal the rank");
    for &axis in permutation {
        assert!(
            axis < shape.len() && !std::mem::replace(&mut seen[axis], true),
            "{permutation:?} is not a permutation"
        );
    }
    let strides = dense_strides(shape);
    let permuted: Vec<_> = permutation.iter().map(|&axis| shape[axis]).collect();
    let from: Vec<_> = permutation.iter().map(|&axis| strides[axis]).collect();
    let to = dense_strides(&permuted);
    let from = StridedSlice { offset: 0, strides: &from };
    copy_strided(pool, &permuted, source, from, target, StridedSlice { offset: 0, strides: &to });
}

/// Converts `[batch, channels, pixels]` to `[batch, pixels, channels]`.
///
/// # Panics
/// Panics if a length does not match the sizes.
pub fn channels_to_last<T: Copy + Send + Sync>(
    pool: &Pool,
    [batch, channels, pixels]: [usize; 3],
    source: &[T],
    target: &mut [T],
) {
    permute(pool, source, &[batch, channels, pixels], &[0, 2, 1], target);
}

/// Converts `[batch, pixels, channels]` to `[batch, channels, pixels]`.
///
/// # Panics
/// Panics if a length does not match the sizes.
pub fn channels_to_first<T: Copy + Send + Sync>(
    pool: &Pool,
    [batch, pixels, channels]: [usize; 3],
    source: &[T],
    target: &mut [T],
) {
    permute(pool, source, &[batch, pixels, channels], &[0, 2, 1], target);
}

/// Concatenates dense tensors along an axis. Each part comes with its size along the axis. `outer` is the
/// product of the sizes before the axis, `inner` the product of the sizes after it.
///
/// # Panics
/// Panics if a length does not match the sizes.
pub fn concat<T: Copy + Send + Sync>(
    pool: &Pool,
    outer: usize,
    inner: usize,
    sources: &[(&[T], usize)],
    target: &mut [T],
) {
    let total: usize = sources.iter().map(|(_, length)| length).sum();
    assert_eq!(target.len(), outer * total * inner, "the target's length does not match the parts");
    let mut offset = 0;
    for &(source, length) in sources {
        assert_eq!(
            source.len(),
            outer * length * inner,
            "a part's length does not match its shape"
        );
        let from = dense_strides(&[outer, length * inner]);
        let to = dense_strides(&[outer, total * inner]);
        let to = StridedSlice { offset, strides: &to };
        let from = StridedSlice { offset: 0, strides: &from };
        if !source.is_empty() {
            copy_strided(pool, &[outer, length * inner], source, from, target, to);
        }
        offset += length * inner;
    }
}

/// Pads a dense tensor with a constant, by `before` and `after` along each axis.
///
/// # Panics
/// Panics if a length does not match the sizes.
pub fn pad_constant<T: Copy + Send + Sync>(
    pool: &Pool,
    source: &[T],
    shape: &[usize],
    before: &[usize],
    after: &[usize],
    value: T,
    target: &mut [T],
) {
    assert_eq!(before.len(), shape.len(), "the padding's length must equal the rank");
    assert_eq!(after.len(), shape.len(), "the padding's length must equal the rank");
    let padded: Vec<_> = (0..shape.len()).map(|at| before[at] + shape[at] + after[at]).collect();
    let length = padded.iter().product::<usize>();
    assert_eq!(target.len(), length, "the target's length does not match its shape");
    target.fill(value);
    if shape.contains(&0) {
        return;
    }
    let (from, to) = (dense_strides(shape), dense_strides(&padded));
    let offset = before.iter().zip(&to).map(|(&before, &step)| before * step.unsigned_abs()).sum();
    let to = StridedSlice { offset, strides: &to };
    copy_strided(pool, shape, source, StridedSlice { offset: 0, strides: &from }, target, to);
}

/// Asserts that all elements are within a slice.
fn check(shape: &[usize], place: StridedSlice<'_>, length: usize, what: &str) {
    assert_eq!(
        place.strides.len(),
        shape.len(),
        "the number of the {what}'s strides must equal the rank"
    );
    if shape.contains(&0) {
        return;
    }
    let (mut first, mut last) = (place.offset as i128, place.offset as i128);
    for (&length, &stride) in shape.iter().zip(place.strides) {
        let reach = (length - 1) as i128 * stride as i128;
        if reach < 0 { first += reach } else { last += reach }
    }
    assert!(first >= 0 && last < length as i128, "the {what}'s strides exceed it");
}

struct Axis {
    length: usize,
    from: isize,
    to: isize,
}

/// The shape with its axes in the order of the target, and merged if both sides allow it.
struct Space {
    /// Axes outside a unit.
    outer: Vec<Axis>,
    /// The unit of work.
    unit: Unit,
    from: usize,
    to: usize,
}

/// The part that is copied at once.
enum Unit {
    /// A row that is contiguous on both sides.
    Row(usize),
    /// A row with strides.
    Strided(Axis),
    /// A block of a plane that is contiguous along one axis of the source and another axis of the target.
    /// Blocks have [`BLOCK`] rows of the target.
    Plane { rows: Axis, columns: Axis, blocks: usize },
}

/// Number of target rows in a block of a plane. A block of `BLOCK` × `BLOCK` elements stays in the L1 cache
/// on both sides.
const BLOCK: usize = 32;

impl Space {
    fn new(shape: &[usize], from: StridedSlice<'_>, to: StridedSlice<'_>) -> Space {
        let mut axes: Vec<Axis> = (0..shape.len())
            .filter(|&axis| shape[axis] != 1)
            .map(|axis| Axis {
                length: shape[axis],
                from: from.strides[axis],
                to: to.strides[axis],
            })
            .collect();
        axes.sort_by_key(|axis| std::cmp::Reverse(axis.to.unsigned_abs()));
        let mut extent = 1;
        for axis in axes.iter().rev() {
            assert!(
                axis.to.unsigned_abs() >= extent,
                "two elements have the same offset in the target"
            );
            extent = axis.to.unsigned_abs() * axis.length;
        }
        let mut merged: Vec<Axis> = vec![];
        for axis in axes {
            match merged.last_mut() {
                Some(last)
                    if last.from == axis.from.wrapping_mul(axis.length as isize)
                        && last.to == axis.to.wrapping_mul(axis.length as isize) =>
                {
                    *last = Axis { length: last.length * axis.length, ..axis };
                }
                _ => merged.push(axis),
            }
        }
        let inner = merged.pop().unwrap_or(Axis { length: 1, from: 1, to: 1 });
        let other = merged.iter().position(|axis| axis.from == 1);
        let unit = match other {
            _ if inner.from == 1 && inner.to == 1 => Unit::Row(inner.length),
            Some(other) if inner.to == 1 => {
                let rows = merged.remove(other);
                let blocks = rows.length.div_ceil(BLOCK);
                Unit::Plane { rows, columns: inner, blocks }
            }
            _ => Unit::Strided(inner),
        };
        Space { outer: merged, unit, from: from.offset, to: to.offset }
    }

    fn units(&self) -> usize {
        let blocks = match self.unit {
            Unit::Plane { blocks, .. } => blocks,
            _ => 1,
        };
        blocks * self.outer.iter().map(|axis| axis.length).product::<usize>()
    }
}

struct CopyKernel<'a, T> {
    space: &'a Space,
    source: *const T,
    target: *mut T,
}

// SAFETY: the source is only read, and units have disjoint locations in the target.
#[expect(unsafe_code, reason = "units write to disjoint elements of a slice")]
unsafe impl<T: Sync> Sync for CopyKernel<'_, T> {}

impl<T: Copy> CopyKernel<'_, T> {
    #[expect(unsafe_code, reason = "`copy_strided` has checked the addresses of all elements")]
    fn units(&self, range: std::ops::Range<usize>) {
        let space = self.space;
        let blocks = match space.unit {
            Unit::Plane { blocks, .. } => blocks,
            _ => 1,
        };
        // The position along each outer axis, and the resulting offsets.
        let mut index = vec![0; space.outer.len()];
        let (mut from, mut to) = (space.from as isize, space.to as isize);
        let mut rest = range.start / blocks;
        for (axis, index) in space.outer.iter().zip(&mut index).rev() {
            *index = rest % axis.length;
            rest /= axis.length;
            from += *index as isize * axis.from;
            to += *index as isize * axis.to;
        }
        let mut block = range.start % blocks;
        for _ in range {
            // SAFETY: `copy_strided` checked that all elements are within the slices and that the target's
            // elements have distinct locations. The elements of this unit are some of them.
            unsafe {
                let (source, target) = (self.source.offset(from), self.target.offset(to));
                match &space.unit {
                    Unit::Row(length) => copy_row(source, target, *length),
                    Unit::Strided(axis) => {
                        for at in 0..axis.length as isize {
                            *target.offset(at * axis.to) = *source.offset(at * axis.from);
                        }
                    }
                    Unit::Plane { rows, columns, .. } => {
                        let first = block * BLOCK;
                        let count = BLOCK.min(rows.length - first);
                        let source = source.add(first);
                        let target = target.offset(first as isize * rows.to);
                        transpose(source, columns, target, rows.to, count);
                    }
                }
            }
            block += 1;
            if block < blocks {
                continue;
            }
            block = 0;
            for (axis, index) in space.outer.iter().zip(&mut index).rev() {
                *index += 1;
                from += axis.from;
                to += axis.to;
                if *index < axis.length {
                    break;
                }
                *index = 0;
                from -= axis.length as isize * axis.from;
                to -= axis.length as isize * axis.to;
            }
        }
    }
}

/// # Safety
/// `length` elements must be readable at `source` and writable at `target`.
#[inline]
#[expect(unsafe_code, reason = "the caller guarantees the elements")]
unsafe fn copy_row<T: Copy>(source: *const T, target: *mut T, length: usize) {
    // SAFETY: the caller guarantees the elements.
    unsafe {
        if length < 16 {
            // For short rows, a loop is faster than a call.
            for at in 0..length {
                *target.add(at) = *source.add(at);
            }
        } else {
            std::ptr::copy_nonoverlapping(source, target, length);
        }
    }
}

/// Copies `count` rows of the target, which are adjacent columns in the source.
///
/// # Safety
/// The elements must be readable and writable at the locations given by the strides.
#[expect(unsafe_code, reason = "the caller guarantees the elements")]
unsafe fn transpose<T: Copy>(
    source: *const T,
    columns: &Axis,
    target: *mut T,
    row: isize,
    count: usize,
) {
    let mut column = 0;
    while column < columns.length {
        let width = BLOCK.min(columns.length - column);
        // SAFETY: the caller guarantees the elements; this applies to all accesses below.
        unsafe {
            let source = source.offset(column as isize * columns.from);
            let target = target.add(column);
            let (mut at, full) = (0, count / 4 * 4);
            // Process four rows of the target together, so that each cache line of the source is used at
            // once.
            while at < full {
                for x in 0..width {
                    let source = source.offset(x as isize * columns.from).add(at);
                    let four = source.cast::<[T; 4]>().read_unaligned();
                    for (y, element) in four.into_iter().enumerate() {
                        *target.offset((at + y) as isize * row).add(x) = element;
                    }
                }
                at += 4;
            }
            for at in full..count {
                for x in 0..width {
                    *target.offset(at as isize * row).add(x) =
                        *source.offset(x as isize * columns.from).add(at);
                }
            }
        }
        column += width;
    }
}
