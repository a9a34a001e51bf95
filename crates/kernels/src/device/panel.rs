//! The frame of products in a device's arithmetic: blocks of both factors are packed, tiles of the product computed.

use std::ops::Range;

use coremill_simd::Isa;
use coremill_simd::vector::{Kernel, Vector, dispatch};

use super::bias::Bias;
use crate::Pool;
use crate::product::{Extents, StridedMatrix};
use crate::shared::SharedMut;

/// Columns of a panel: a multiple of the lanes of every vector.
pub(super) const WIDTH: usize = 16;
/// Rows of a tile.
pub(super) const HEIGHT: usize = 4;
/// Rows and columns that a task computes.
const BLOCK_ROWS: usize = 64;
const BLOCK_COLUMNS: usize = 128;

/// Arithmetic of sums of products.
pub(super) trait Arithmetic {
    /// Facts about a panel of the right factor.
    type Panel;

    /// A packed element of a factor: the element and an auxiliary number.
    fn pack(value: f32, is_left: bool) -> [f32; 2];

    /// Packs elements of the right factor that are contiguous.
    #[inline(always)]
    fn pack_right(values: &[f32], elements: &mut [f32], others: &mut [f32]) {
        for ((&value, element), other) in values.iter().zip(elements).zip(others) {
            [*element, *other] = Self::pack(value, false);
        }
    }

    /// Looks at a packed panel.
    fn survey(panel: &PackedPanel<'_, WIDTH>) -> Self::Panel;

    /// The sums of a tile: of each row and each column, `bias` and the products along the depth, as results.
    fn sums<V: Vector, const ROWS: usize>(
        left: &PackedPanel<'_, ROWS>,
        right: &PackedPanel<'_, WIDTH>,
        survey: &Self::Panel,
        bias: &[[f32; WIDTH]; ROWS],
    ) -> [[f32; WIDTH]; ROWS];
}

/// PackedPanel elements, `N` for each step along the depth, and the numbers that go with them.
pub(super) struct PackedPanel<'a, const N: usize> {
    pub(super) elements: &'a [[f32; N]],
    pub(super) others: &'a [[f32; N]],
}

/// Computes `product = left · right + bias`.
pub(super) fn run<A: Arithmetic>(
    (pool, isa): (&Pool, Isa),
    product: &mut [f32],
    extents: Extents,
    [left, right]: [StridedMatrix<'_>; 2],
    bias: Bias<'_>,
) {
    let Extents { rows, depth, columns } = extents;
    let (down, across) = (rows.div_ceil(BLOCK_ROWS), columns.div_ceil(BLOCK_COLUMNS));
    let product = SharedMut::new(product);
    pool.run(down * across, |task| {
        let (block, column) = (task % down * BLOCK_ROWS, task / down * BLOCK_COLUMNS);
        let block = Block::<'_, A> {
            rows: block..(block + BLOCK_ROWS).min(rows),
            columns: column..(column + BLOCK_COLUMNS).min(columns),
            depth,
            stride: columns,
            factors: [left, right],
            bias,
            product,
            arithmetic: std::marker::PhantomData,
        };
        dispatch(isa, block);
    });
}

struct Block<'a, A> {
    rows: Range<usize>,
    columns: Range<usize>,
    depth: usize,
    stride: usize,
    factors: [StridedMatrix<'a>; 2],
    bias: Bias<'a>,
    product: SharedMut<'a>,
    arithmetic: std::marker::PhantomData<A>,
}

impl<A: Arithmetic> Kernel for Block<'_, A> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let depth = self.depth;
        let mut elements = vec![[0.0; WIDTH]; depth];
        let mut others = vec![[0.0; WIDTH]; depth];
        let tall = self.rows.len() / HEIGHT * HEIGHT;
        let tiles = (tall / HEIGHT) * depth;
        let mut tall_elements = vec![[0.0; HEIGHT]; tiles];
        let mut tall_others = vec![[0.0; HEIGHT]; tiles];
        let mut low_elements = vec![[0.0; 1]; (self.rows.len() - tall) * depth];
        let mut low_others = low_elements.clone();
        for (index, row) in self.rows.clone().enumerate() {
            for step in 0..depth {
                let [element, other] = A::pack(self.factors[0].at(row, step), true);
                if index < tall {
                    let place = index / HEIGHT * depth + step;
                    tall_elements[place][index % HEIGHT] = element;
                    tall_others[place][index % HEIGHT] = other;
                } else {
                    let place = (index - tall) * depth + step;
                    (low_elements[place][0], low_others[place][0]) = (element, other);
                }
            }
        }
        for first in self.columns.clone().step_by(WIDTH) {
            let present = WIDTH.min(self.columns.end - first);
            for (step, (element, other)) in elements.iter_mut().zip(&mut others).enumerate() {
                match self.factors[1].contiguous(step, first, present) {
                    Some(values) => {
                        A::pack_right(values, &mut element[..present], &mut other[..present]);
                    }
                    None => {
                        for column in 0..present {
                            [element[column], other[column]] =
                                A::pack(self.factors[1].at(step, first + column), false);
                        }
                    }
                }
                // What is left from a wider panel does not count.
                element[present..].fill(0.0);
            }
            let right = PackedPanel { elements: &elements, others: &others };
            let survey = A::survey(&right);
            for tile in 0..tall / HEIGHT {
                let part = tile * depth..(tile + 1) * depth;
                let left = PackedPanel {
                    elements: &tall_elements[part.clone()],
                    others: &tall_others[part],
                };
                let row = self.rows.start + tile * HEIGHT;
                self.tile::<V, HEIGHT>(&left, &right, &survey, (row, first, present));
            }
            for low in 0..self.rows.len() - tall {
                let part = low * depth..(low + 1) * depth;
                let left = PackedPanel {
                    elements: &low_elements[part.clone()],
                    others: &low_others[part],
                };
                let row = self.rows.start + tall + low;
                self.tile::<V, 1>(&left, &right, &survey, (row, first, present));
            }
        }
    }
}

impl<A: Arithmetic> Block<'_, A> {
    #[inline(always)]
    fn tile<V: Vector, const ROWS: usize>(
        &self,
        left: &PackedPanel<'_, ROWS>,
        right: &PackedPanel<'_, WIDTH>,
        survey: &A::Panel,
        (row, first, present): (usize, usize, usize),
    ) {
        let mut bias = [[0.0; WIDTH]; ROWS];
        for (index, bias) in bias.iter_mut().enumerate() {
            for (column, bias) in bias[..present].iter_mut().enumerate() {
                *bias = self.bias.at(row + index, first + column);
            }
        }
        let sums = A::sums::<V, ROWS>(left, right, survey, &bias);
        for (index, sums) in sums.iter().enumerate() {
            let start = (row + index) * self.stride + first;
            // SAFETY: no two tasks compute the same element.
            #[expect(unsafe_code, reason = "tasks write to disjoint parts of a product")]
            let to = unsafe { self.product.part(start..start + present) };
            to.copy_from_slice(&sums[..present]);
        }
    }
}
