//! Index arithmetic on shapes.

use crate::error::{Result, fail};

/// Row-major strides of a dense tensor, in elements.
pub fn strides(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1usize; shape.len()];
    for axis in (1..shape.len()).rev() {
        // Saturate: an empty tensor may have sizes that overflow, and its strides are never used.
        strides[axis - 1] = strides[axis].saturating_mul(shape[axis]);
    }
    strides
}

/// Numbers of elements before an axis, along it, and after it. A tensor consists of
/// `before × after` lines along the axis. For an empty tensor, `before` and `after` are 0.
pub fn around(shape: &[usize], axis: usize) -> (usize, usize, usize) {
    if shape.contains(&0) {
        return (0, shape[axis], 0);
    }
    (shape[..axis].iter().product(), shape[axis], shape[axis + 1..].iter().product())
}

/// The shape that both broadcast to, by numpy's rules.
pub fn broadcast(x: &[usize], y: &[usize]) -> Result<Vec<usize>> {
    let rank = x.len().max(y.len());
    let extent = |shape: &[usize], axis: usize| {
        (axis + shape.len()).checked_sub(rank).map_or(1, |axis| shape[axis])
    };
    let joined = (0..rank).map(|axis| match (extent(x, axis), extent(y, axis)) {
        (x, y) if x == y => Ok(x),
        (1, extent) | (extent, 1) => Ok(extent),
        _ => fail!("shapes {x:?} and {y:?} do not broadcast together"),
    });
    joined.collect()
}

/// Strides that read a dense tensor of shape `from` as its broadcast to `to`: 0 along repeated
/// axes.
pub fn broadcast_strides(from: &[usize], to: &[usize]) -> Vec<usize> {
    let missing = to.len() - from.len();
    let dense = strides(from);
    (0..to.len())
        .map(|axis| match axis.checked_sub(missing) {
            Some(axis) if from[axis] != 1 => dense[axis],
            _ => 0,
        })
        .collect()
}

/// Calls `visit` with the offset of each index of a shape, in row-major order.
pub fn each_offset(shape: &[usize], strides: &[usize], mut visit: impl FnMut(usize)) {
    each_offsets(shape, [strides], |[offset]| visit(offset));
}

/// Calls `visit` with the offsets of each index of a shape under several sets of strides, in
/// row-major order.
pub fn each_offsets<const N: usize>(
    shape: &[usize],
    strides: [&[usize]; N],
    mut visit: impl FnMut([usize; N]),
) {
    if shape.contains(&0) {
        return;
    }
    let mut index = vec![0; shape.len()];
    let mut offsets = [0; N];
    loop {
        visit(offsets);
        let mut axis = shape.len();
        loop {
            if axis == 0 {
                return;
            }
            axis -= 1;
            index[axis] += 1;
            for (offset, strides) in offsets.iter_mut().zip(strides) {
                *offset += strides[axis];
            }
            if index[axis] < shape[axis] {
                break;
            }
            for (offset, strides) in offsets.iter_mut().zip(strides) {
                *offset -= strides[axis] * shape[axis];
            }
            index[axis] = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_follow_broadcast_strides() {
        let shape = broadcast(&[2, 1, 3], &[4, 1]).expect("they broadcast");
        assert_eq!(shape, [2, 4, 3]);
        let (x, y) = (broadcast_strides(&[2, 1, 3], &shape), broadcast_strides(&[4, 1], &shape));
        let mut seen = Vec::new();
        each_offsets(&shape, [&x, &y], |offsets| seen.push(offsets));
        assert_eq!(seen.len(), 24);
        assert_eq!(seen[..4], [[0, 0], [1, 0], [2, 0], [0, 1]]);
        assert_eq!(seen[23], [5, 3]);
        assert!(broadcast(&[2, 3], &[2]).is_err());
    }

    #[test]
    fn scalars_have_one_offset_and_empty_shapes_none() {
        let mut count = 0;
        each_offset(&[], &[], |_| count += 1);
        each_offset(&[3, 0], &[0, 1], |_| count += 10);
        assert_eq!(count, 1);
    }
}
