use super::*;

/// Distinct elements.
fn ramp(count: usize) -> Vec<u32> {
    (0..count as u32).map(|at| at.wrapping_mul(2_654_435_761)).collect()
}

fn offset_of(shape: &[usize], slice: StridedSlice<'_>, mut at: usize) -> usize {
    let mut offset = slice.offset as isize;
    for axis in (0..shape.len()).rev() {
        offset += (at % shape[axis]) as isize * slice.strides[axis];
        at /= shape[axis];
    }
    offset as usize
}

/// Copies with a simple loop and compares, for every element size.
fn check_copy(
    pool: &Pool,
    shape: &[usize],
    source: usize,
    from: StridedSlice<'_>,
    target: usize,
    to: StridedSlice<'_>,
) {
    let elements = ramp(source);
    let total: usize = shape.iter().product();
    macro_rules! compare {
        ($type:ty) => {{
            let source: Vec<$type> = elements.iter().map(|&element| element as $type).collect();
            let mut expected: Vec<$type> = vec![77; target];
            for at in 0..total {
                expected[offset_of(shape, to, at)] = source[offset_of(shape, from, at)];
            }
            let mut result: Vec<$type> = vec![77; target];
            copy_strided(pool, shape, &source, from, &mut result, to);
            assert!(result == expected, "{shape:?} {from:?} {to:?}");
        }};
    }
    compare!(u8);
    compare!(u16);
    compare!(u32);
    compare!(u64);
}

#[test]
fn strided_copies_match_naive_loop() {
    for threads in [1, 3] {
        let pool = Pool::new(threads);
        let mut cases: Vec<(Vec<usize>, usize, Vec<isize>, usize, Vec<isize>)> = vec![
            (vec![], 0, vec![], 0, vec![]),
            (vec![5], 0, vec![1], 3, vec![1]),
            (vec![5], 4, vec![-1], 0, vec![2]),
            (vec![3, 4], 0, vec![1, 3], 0, vec![4, 1]),
            (vec![3, 4], 0, vec![4, 1], 2, vec![8, 1]),
            (vec![3, 4], 0, vec![0, 1], 0, vec![4, 1]),
            (vec![0, 4], 0, vec![4, 1], 0, vec![4, 1]),
            (vec![2, 3, 4], 23, vec![-12, -4, -1], 0, vec![12, 4, 1]),
            (vec![2, 3, 4], 0, vec![1, 2, 6], 0, vec![1, 2, 6]),
            (vec![2, 1, 3, 1], 0, vec![3, 99, 1, 99], 0, vec![1, 0, 2, 5]),
        ];
        if !cfg!(miri) {
            cases.extend([
                (vec![300, 257], 0, vec![1, 300], 0, vec![257, 1]),
                (vec![3, 70_000], 0, vec![1, 3], 0, vec![70_000, 1]),
                (vec![70_000, 3], 0, vec![1, 70_000], 0, vec![3, 1]),
                (vec![4, 100, 33, 17], 0, vec![56_100, 17, 1_700, 1], 0, vec![56_100, 561, 17, 1]),
                (vec![40, 33, 65], 0, vec![33, 1, 1_320], 0, vec![2_145, 65, 1]),
                (vec![100, 1_000], 0, vec![1_000, 1], 5, vec![1_010, 1]),
            ]);
        }
        for (shape, from, from_strides, to, to_strides) in cases {
            let from = StridedSlice { offset: from, strides: &from_strides };
            let to = StridedSlice { offset: to, strides: &to_strides };
            let length = |strided: StridedSlice<'_>| {
                let reach = shape.iter().zip(strided.strides);
                let reach =
                    reach.map(|(&length, &step)| (length as isize - 1).max(0) * step.max(0));
                strided.offset + reach.sum::<isize>() as usize + 1
            };
            check_copy(&pool, &shape, length(from), from, length(to), to);
        }
    }
}

#[test]
fn permutes_axes_and_channel_layouts() {
    for threads in [1, 3] {
        let pool = Pool::new(threads);
        let sizes = if cfg!(miri) { [2, 3, 4] } else { [3, 64, 1_111] };
        let [a, b, c] = sizes;
        let source = ramp(a * b * c);
        for permutation in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let mut target = vec![0; source.len()];
            permute(&pool, &source, &sizes, &permutation, &mut target);
            let shape = permutation.map(|axis| sizes[axis]);
            for at in 0..source.len() {
                let mut index = [0; 3];
                index[permutation[0]] = at / (shape[1] * shape[2]);
                index[permutation[1]] = at / shape[2] % shape[1];
                index[permutation[2]] = at % shape[2];
                assert_eq!(target[at], source[(index[0] * b + index[1]) * c + index[2]]);
            }
        }
        let mut last = vec![0; source.len()];
        channels_to_last(&pool, sizes, &source, &mut last);
        for (at, &element) in last.iter().enumerate() {
            let (row, column, channel) = (at / (c * b), at / b % c, at % b);
            assert_eq!(element, source[(row * b + channel) * c + column]);
        }
        let mut first = vec![0; source.len()];
        channels_to_first(&pool, [a, c, b], &last, &mut first);
        assert!(first == source);
    }
}

#[test]
fn concatenates_and_pads() {
    let pool = Pool::new(2);
    let mut target = [0u8; 10];
    concat(&pool, 2, 1, &[(&[1, 2, 3, 4], 2), (&[], 0), (&[5, 6, 7, 8, 9, 10], 3)], &mut target);
    assert_eq!(target, [1, 2, 5, 6, 7, 3, 4, 8, 9, 10]);
    let mut target = [0i64; 12];
    pad_constant(&pool, &[1, 2, 3, 4], &[2, 2], &[1, 0], &[0, 2], -1, &mut target);
    assert_eq!(target, [-1, -1, -1, -1, 1, 2, -1, -1, 3, 4, -1, -1]);
    let mut target = [0u16; 3];
    pad_constant(&pool, &[], &[0], &[1], &[2], 9, &mut target);
    assert_eq!(target, [9, 9, 9]);
}

#[test]
#[should_panic(expected = "strides exceed it")]
fn rejects_source_strides_out_of_bounds() {
    let strides = StridedSlice { offset: 1, strides: &[-1] };
    let to = StridedSlice { offset: 0, strides: &[1] };
    copy_strided(&Pool::new(1), &[3], &[1u8, 2, 3], strides, &mut [0; 3], to);
}

#[test]
#[should_panic(expected = "the same offset in the target")]
fn rejects_overlapping_target_strides() {
    let from = StridedSlice { offset: 0, strides: &[2, 1] };
    let to = StridedSlice { offset: 0, strides: &[1, 1] };
    copy_strided(&Pool::new(1), &[2, 2], &[1u8, 2, 3, 4], from, &mut [0; 4], to);
}
