//! A simple matrix product: portable, for any layout, on one thread.
//!
//! It defines the results of the faster kernels, and is fast enough to run whole models as a reference.

/// A borrowed matrix of floats. The element at row `i` and column `j` is `elements[i * rows + j * columns]`.
#[derive(Clone, Copy, Debug)]
pub struct StridedMatrix<'a> {
    /// The elements.
    pub elements: &'a [f32],
    /// Distance between adjacent elements of a column.
    pub rows: usize,
    /// Distance between adjacent elements of a row.
    pub columns: usize,
}

/// Sizes of a product: `rows` × `depth` times `depth` × `columns`.
#[derive(Clone, Copy, Debug)]
pub struct Extents {
    /// The rows of the left factor and of the product.
    pub rows: usize,
    /// The columns of the left factor and the rows of the right one.
    pub depth: usize,
    /// The columns of the right factor and of the product.
    pub columns: usize,
}

/// Number of rows of a tile, which is kept in registers.
const TILE_ROWS: usize = 4;
/// Number of columns of a tile.
const TILE_COLUMNS: usize = 8;
/// Depth of a partial sum before it is added to the product. Partial sums are more accurate than one long
/// sum, and the packed parts of both factors stay in the fastest caches.
const BLOCK_DEPTH: usize = 256;
/// Number of columns of the right factor that are packed at a time.
const BLOCK_COLUMNS: usize = 512;
/// Minimum number of rows for which packing the right factor pays off.
const FEW_ROWS: usize = 4;

impl<'a> StridedMatrix<'a> {
    /// Returns a dense row-major matrix.
    pub fn dense(elements: &'a [f32], columns: usize) -> StridedMatrix<'a> {
        StridedMatrix { elements, rows: columns, columns: 1 }
    }

    /// The transposed matrix.
    pub fn transposed(self) -> StridedMatrix<'a> {
        StridedMatrix { rows: self.columns, columns: self.rows, ..self }
    }

    /// Adjacent elements of a row, if they are contiguous.
    pub(crate) fn contiguous(&self, row: usize, column: usize, count: usize) -> Option<&'a [f32]> {
        let start = row * self.rows + column;
        (self.columns == 1).then(|| &self.elements[start..start + count])
    }

    /// The element at a row and a column.
    pub fn at(&self, row: usize, column: usize) -> f32 {
        self.elements[row * self.rows + column * self.columns]
    }
}

/// Adds the product of two matrices to a dense row-major matrix.
///
/// # Panics
///
/// Panics if a matrix has fewer elements than the sizes require.
pub fn gemm_reference(
    product: &mut [f32],
    extents: Extents,
    left: StridedMatrix,
    right: StridedMatrix,
) {
    let Extents { rows, depth, columns } = extents;
    assert!(product.len() >= rows * columns, "the product has too few elements");
    if rows == 0 || depth == 0 || columns == 0 {
        return;
    }
    if rows < FEW_ROWS && (right.rows == 1 || right.columns == 1) {
        return add_few_rows(product, extents, left, right);
    }
    let mut packed_left = vec![0.0; BLOCK_DEPTH * TILE_ROWS];
    let mut packed_right = vec![0.0; BLOCK_DEPTH * columns.min(BLOCK_COLUMNS).next_multiple_of(8)];
    for first_column in (0..columns).step_by(BLOCK_COLUMNS) {
        let width = BLOCK_COLUMNS.min(columns - first_column);
        for first_step in (0..depth).step_by(BLOCK_DEPTH) {
            let steps = BLOCK_DEPTH.min(depth - first_step);
            let panels = width.div_ceil(TILE_COLUMNS);
            for panel in 0..panels {
                let first = first_column + panel * TILE_COLUMNS;
                let packed = &mut packed_right[panel * steps * TILE_COLUMNS..];
                let (packed, _) = packed.as_chunks_mut::<TILE_COLUMNS>();
                let present = TILE_COLUMNS.min(columns - first);
                for (step, to) in packed[..steps].iter_mut().enumerate() {
                    to[present..].fill(0.0);
                    for (column, to) in to[..present].iter_mut().enumerate() {
                        *to = right.at(first_step + step, first + column);
                    }
                }
            }
            for first_row in (0..rows).step_by(TILE_ROWS) {
                let present = TILE_ROWS.min(rows - first_row);
                let (packed, _) = packed_left.as_chunks_mut::<TILE_ROWS>();
                for (step, to) in packed[..steps].iter_mut().enumerate() {
                    to[present..].fill(0.0);
                    for (row, to) in to[..present].iter_mut().enumerate() {
                        *to = left.at(first_row + row, first_step + step);
                    }
                }
                for panel in 0..panels {
                    let first = first_column + panel * TILE_COLUMNS;
                    let (of_panel, _) =
                        packed_right[panel * steps * TILE_COLUMNS..].as_chunks::<TILE_COLUMNS>();
                    let sums = tile(&packed[..steps], &of_panel[..steps]);
                    let width = TILE_COLUMNS.min(columns - first);
                    for (row, sums) in sums[..present].iter().enumerate() {
                        let start = (first_row + row) * columns + first;
                        for (to, sum) in product[start..start + width].iter_mut().zip(sums) {
                            *to += sum;
                        }
                    }
                }
            }
        }
    }
}

fn tile(
    left: &[[f32; TILE_ROWS]],
    right: &[[f32; TILE_COLUMNS]],
) -> [[f32; TILE_COLUMNS]; TILE_ROWS] {
    let mut sums = [[0.0; TILE_COLUMNS]; TILE_ROWS];
    for (left, right) in left.iter().zip(right) {
        for (sums, left) in sums.iter_mut().zip(left) {
            for (sum, right) in sums.iter_mut().zip(right) {
                *sum += left * right;
            }
        }
    }
    sums
}

/// Product with few rows. It reads the right factor once, in memory order.
fn add_few_rows(product: &mut [f32], extents: Extents, left: StridedMatrix, right: StridedMatrix) {
    let Extents { rows, depth, columns } = extents;
    let mut of_row = vec![0.0; depth];
    for row in 0..rows {
        for (step, to) in of_row.iter_mut().enumerate() {
            *to = left.at(row, step);
        }
        let product = &mut product[row * columns..(row + 1) * columns];
        if right.rows == 1 {
            for (column, to) in product.iter_mut().enumerate() {
                let start = column * right.columns;
                *to += dot(&of_row, &right.elements[start..start + depth]);
            }
        } else {
            for (step, factor) in of_row.iter().enumerate() {
                let start = step * right.rows;
                let of_step = &right.elements[start..start + columns];
                for (to, right) in product.iter_mut().zip(of_step) {
                    *to += factor * right;
                }
            }
        }
    }
}

fn dot(left: &[f32], right: &[f32]) -> f32 {
    const LANES: usize = 16;
    let ((left, left_rest), (right, right_rest)) =
        (left.as_chunks::<LANES>(), right.as_chunks::<LANES>());
    let mut sums = [0.0; LANES];
    for (left, right) in left.iter().zip(right) {
        for ((sum, left), right) in sums.iter_mut().zip(left).zip(right) {
            *sum += left * right;
        }
    }
    let rest = left_rest.iter().zip(right_rest).map(|(left, right)| left * right);
    sums.iter().copied().chain(rest).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(count: usize, seed: u32) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) as f32 / 65_536.0 - 0.5
        };
        (0..count).map(|_| next()).collect()
    }

    #[test]
    fn gemm_matches_definition_for_all_layouts() {
        let extents = [1, 3, 4, 5, 8, 17];
        for rows in extents {
            for columns in [1, 7, 8, 9, 515] {
                for depth in [0, 1, 5, 16, 33, 300] {
                    let (left, right) = (numbers(rows * depth, 1), numbers(depth * columns, 2));
                    for (left_transposed, right_transposed) in
                        [(false, false), (false, true), (true, false), (true, true)]
                    {
                        let left = match left_transposed {
                            false => StridedMatrix::dense(&left, depth),
                            true => StridedMatrix::dense(&left, rows).transposed(),
                        };
                        let right = match right_transposed {
                            false => StridedMatrix::dense(&right, columns),
                            true => StridedMatrix::dense(&right, depth).transposed(),
                        };
                        let mut product = vec![1.0; rows * columns];
                        gemm_reference(&mut product, Extents { rows, depth, columns }, left, right);
                        for row in 0..rows {
                            for column in 0..columns {
                                let exact: f64 = (0..depth)
                                    .map(|k| {
                                        f64::from(left.at(row, k)) * f64::from(right.at(k, column))
                                    })
                                    .sum();
                                let found = f64::from(product[row * columns + column]);
                                assert!((found - 1.0 - exact).abs() < 1e-4, "{found} {exact}");
                            }
                        }
                    }
                }
            }
        }
    }
}
