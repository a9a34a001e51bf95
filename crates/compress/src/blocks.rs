//! Division of tensors into blocks with parameters of their own.

/// Division of a tensor into blocks: the number and length of blocks along each axis.
///
/// Adjacent axes are merged where possible. Elements of a block that are contiguous in memory then
/// form runs of maximal length.
#[derive(Clone, Debug)]
pub(super) struct Blocks {
    /// Number and length, outermost axis first; never empty.
    axes: Vec<(usize, usize)>,
}

impl Blocks {
    /// Creates blocks of these sizes; 0 is the whole axis. `None` if a size does not divide
    /// its axis.
    pub(super) fn new(shape: &[usize], sizes: &[usize]) -> Option<Blocks> {
        let mut axes: Vec<(usize, usize)> = Vec::with_capacity(shape.len());
        for (&extent, &size) in shape.iter().zip(sizes) {
            let (count, length) = match size {
                0 => (1, extent),
                size if extent % size == 0 => (extent / size, size),
                _ => return None,
            };
            match axes.last_mut() {
                Some((_, outer)) if count == 1 => *outer *= length,
                Some((outer, 1)) if length == 1 => *outer *= count,
                _ => axes.push((count, length)),
            }
        }
        if axes.is_empty() {
            axes.push((1, 1));
        }
        Some(Blocks { axes })
    }

    /// The number of elements per block, if blocks are contiguous.
    pub(super) fn contiguous(&self) -> Option<usize> {
        match self.axes.as_slice() {
            [(_, length)] => Some(*length),
            _ => None,
        }
    }

    /// Number of elements per block.
    pub(super) fn size(&self) -> usize {
        self.axes.iter().map(|(_, length)| length).product()
    }

    /// Number of blocks.
    pub(super) fn count(&self) -> usize {
        self.axes.iter().map(|(count, _)| count).product()
    }

    /// Calls `visit` for each run of elements in the same block, with the length of the run and the
    /// index of the block. Covers `length` elements from `start` on, in row-major order. Blocks are
    /// numbered in row-major order, too.
    pub(super) fn for_each_run(
        &self,
        start: usize,
        length: usize,
        mut visit: impl FnMut(usize, usize),
    ) {
        let Some((&(count, size), outer)) = self.axes.split_last() else { return };
        let row = count * size;
        let (mut at, end) = (start, start + length);
        while at < end {
            let first = count * block_of(outer, at / row);
            let row_end = end.min((at / row + 1) * row);
            while at < row_end {
                let along = at % row / size;
                let run_end = row_end.min(at / row * row + (along + 1) * size);
                visit(run_end - at, first + along);
                at = run_end;
            }
        }
    }
}

/// Index of the block that contains an element.
fn block_of(axes: &[(usize, usize)], place: usize) -> usize {
    let (mut rest, mut block, mut stride) = (place, 0, 1);
    for &(count, size) in axes.iter().rev() {
        let extent = count * size;
        block += rest % extent / size * stride;
        stride *= count;
        rest /= extent;
    }
    block
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The block of each element from `start` on, expanded from the runs.
    fn blocks_of(shape: &[usize], sizes: &[usize], start: usize) -> Vec<usize> {
        let blocks = Blocks::new(shape, sizes).expect("sizes divide");
        let mut found = Vec::new();
        let count = shape.iter().product::<usize>() - start;
        blocks.for_each_run(start, count, |length, block| {
            assert!(length > 0 && block < blocks.count());
            found.extend(std::iter::repeat_n(block, length));
        });
        assert_eq!(found.len(), count);
        found
    }

    #[test]
    fn for_each_run_maps_elements_to_blocks() {
        let shape = [4, 6, 2, 3];
        for sizes in [
            [0, 0, 0, 0],
            [1, 0, 0, 0],
            [0, 1, 0, 0],
            [0, 0, 0, 1],
            [1, 2, 0, 0],
            [1, 3, 1, 0],
            [2, 2, 2, 3],
            [1, 1, 1, 1],
        ] {
            let sizes_or_all: Vec<usize> = sizes
                .iter()
                .zip(&shape)
                .map(|(&size, &all)| if size == 0 { all } else { size })
                .collect();
            let mut expected = Vec::new();
            for place in 0..shape.iter().product() {
                let (mut rest, mut block, mut stride) = (place, 0, 1);
                for axis in (0..4).rev() {
                    block += rest % shape[axis] / sizes_or_all[axis] * stride;
                    stride *= shape[axis] / sizes_or_all[axis];
                    rest /= shape[axis];
                }
                expected.push(block);
            }
            for start in [0, 1, 7, 36, 143] {
                assert_eq!(blocks_of(&shape, &sizes, start), expected[start..], "{sizes:?}");
            }
        }
    }

    #[test]
    fn rejects_block_sizes_that_do_not_divide_shape() {
        assert!(Blocks::new(&[4, 6], &[1, 4]).is_none());
        assert!(Blocks::new(&[4, 6], &[1, 12]).is_none());
    }
}
