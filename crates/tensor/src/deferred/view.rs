use std::io;
use std::ops::Range;

use crate::deferred::RecipeError;
use crate::deferred::error::misfit;
use crate::produce::Fingerprint;
use crate::{Buffer, DType};

/// Dimensions that a view may have; more than any framework has.
const MAX_RANK: usize = 64;

/// A view whose strides repeat elements may be larger than its source, up to here.
const MAX_REPEATED_BYTES: usize = 1 << 31;

/// The most of a mapped file that is looked at to gather some of its elements.
const MAX_SPAN: usize = 16 << 20;

/// What is looked at together to copy pieces of it.
const LOOKED_AT: usize = 4 << 20;

/// Pieces of a file that lie this far apart are read one by one: each would bring in pages of its own.
const FAR: usize = 64 << 10;

/// Rows that are gathered together where the next dimension moves faster in the source than the last:
/// they share cache lines.
const ROWS: usize = 16;

/// Columns that are gathered of some rows before the rest of them.
const COLUMNS: usize = 64;

/// Elements that lie in a buffer, at strides.
#[derive(Clone)]
pub(super) struct View {
    pub(super) source: Buffer,
    pub(super) dtype: DType,
    /// Bytes of an element.
    pub(super) width: usize,
    pub(super) shape: Vec<usize>,
    /// Elements between neighbours along each dimension.
    pub(super) strides: Vec<usize>,
    /// The first element.
    pub(super) offset: usize,
}

impl View {
    /// The view, if its elements lie within the source.
    pub(super) fn new(
        source: Buffer,
        dtype: DType,
        shape: &[u64],
        strides: &[u64],
        offset: u64,
    ) -> Result<View, RecipeError> {
        let width = match dtype.bits() {
            Some(bits) if bits % 8 == 0 => bits as usize / 8,
            _ => return misfit!("elements of `{dtype}` do not lie in bytes of their own"),
        };
        if shape.len() != strides.len() || shape.len() > MAX_RANK {
            return misfit!(
                "there are {} sizes and {} strides; there have to be as many, and at most {MAX_RANK}",
                shape.len(),
                strides.len()
            );
        }
        let narrow = |numbers: &[u64]| {
            numbers.iter().map(|&number| usize::try_from(number).ok()).collect::<Option<Vec<_>>>()
        };
        let sizes = narrow(shape).zip(narrow(strides)).zip(usize::try_from(offset).ok());
        let view = sizes.map(|((shape, strides), offset)| View {
            source,
            dtype,
            width,
            shape,
            strides,
            offset,
        });
        match view {
            Some(view) if view.lies_within() => Ok(view),
            Some(View { source, .. }) => misfit!(
                "elements of `{dtype}` at sizes {shape:?}, strides {strides:?} and offset {offset} do not \
                 lie within {} bytes",
                source.len()
            ),
            None => misfit!("sizes {shape:?} and strides {strides:?} are too large"),
        }
    }

    fn lies_within(&self) -> bool {
        if self.shape.contains(&0) {
            return true;
        }
        let count = self.shape.iter().try_fold(1usize, |count, &size| count.checked_mul(size));
        let bytes = count.and_then(|count| count.checked_mul(self.width));
        let mut dimensions = self.shape.iter().zip(&self.strides);
        let last = dimensions.try_fold(self.offset, |last, (&size, &stride)| {
            last.checked_add((size - 1).checked_mul(stride)?)
        });
        let end = last.and_then(|last| last.checked_add(1)?.checked_mul(self.width));
        end.is_some_and(|end| end <= self.source.len())
            && bytes.is_some_and(|bytes| bytes <= MAX_REPEATED_BYTES.max(self.source.len()))
    }

    pub(super) fn count(&self) -> usize {
        // The product did not overflow when the view was made, unless a size is 0.
        if self.shape.contains(&0) { 0 } else { self.shape.iter().product() }
    }

    /// Whether the last dimension moves fastest and nothing is left out.
    pub(super) fn is_contiguous(&self) -> bool {
        let mut wanted = 1;
        self.shape.contains(&0)
            || self.shape.iter().zip(&self.strides).rev().all(|(&size, &stride)| {
                let fits = size == 1 || stride == wanted;
                wanted *= size;
                fits
            })
    }

    /// The bytes of a contiguous view.
    pub(super) fn run(&self) -> Range<usize> {
        let start = if self.count() == 0 { 0 } else { self.offset * self.width };
        start..start + self.count() * self.width
    }

    /// The same elements with as few dimensions as can be.
    pub(super) fn simplified(mut self) -> View {
        let mut dimensions: Vec<(usize, usize)> = Vec::new();
        for (&size, &stride) in self.shape.iter().zip(&self.strides) {
            match dimensions.last_mut() {
                _ if size == 1 => {}
                Some((before, outer)) if *outer == stride.saturating_mul(size) => {
                    (*before, *outer) = (*before * size, stride);
                }
                _ => dimensions.push((size, stride)),
            }
        }
        (self.shape, self.strides) = dimensions.into_iter().unzip();
        self
    }

    /// Copies a range of the elements, in row-major order, into `target`.
    pub(super) fn gather(&self, range: Range<usize>, target: &mut [u8]) -> io::Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let span = self.span(&range);
        if self.is_scattered(&span, range.len()) {
            return self.gather_tiles(range, target);
        }
        let bytes = span.start * self.width..span.end * self.width;
        self.source.with_window(bytes, |source| self.gather_from(source, span.start, range, target))
    }

    /// Whether elements lie so far apart that a look at all between them takes more memory or time than
    /// reading them in pieces, each of which has several.
    fn is_scattered(&self, span: &Range<usize>, count: usize) -> bool {
        let pieces = matches!(self.strides.as_slice(), [.., 1, last] if *last > 1);
        let most = if self.source.is_deferred() { 0 } else { MAX_SPAN / self.width };
        pieces && span.len() > most.max(2 * count)
    }

    /// Copies a range of the elements of a view whose last dimension but one moves fastest in the source:
    /// each piece of the source holds as many rows' elements of a column as there are.
    fn gather_tiles(&self, range: Range<usize>, target: &mut [u8]) -> io::Result<()> {
        let (&[.., size, columns], &[.., stride]) = (&*self.shape, &*self.strides) else {
            return Ok(());
        };
        let mut at = range.start;
        while at < range.end {
            let row = at / columns;
            let rows = (size - row % size).min(range.end.div_ceil(columns) - row);
            let place = self.offset + self.place_of_row(row);
            // A part of a single row needs the columns of that part alone.
            let end = range.end.min((row + rows) * columns);
            let first = if rows == 1 { at % columns } else { 0 };
            let last = if rows == 1 { (end - 1) % columns } else { columns - 1 };
            let mut tile = vec![0; (last + 1 - first) * rows * self.width];
            let pieces = tile.chunks_exact_mut(rows * self.width).zip(first..);
            if self.source.is_deferred() || stride * self.width >= FAR {
                for (piece, column) in pieces {
                    self.source.read_at((place + column * stride) * self.width, piece)?;
                }
            } else {
                self.copy_pieces(pieces.collect(), place)?;
            }
            let whole = View {
                source: Buffer::from(Vec::new()),
                dtype: self.dtype,
                width: self.width,
                shape: vec![rows, last + 1 - first],
                strides: vec![1, rows],
                offset: 0,
            };
            let start = row * columns + first;
            let to = &mut target[(at - range.start) * self.width..(end - range.start) * self.width];
            whole.gather_from(&tile, 0, at - start..end - start, to);
            at = end;
        }
        Ok(())
    }

    /// Copies the elements of columns from `place` on, of a few columns at a time.
    fn copy_pieces(&self, mut pieces: Vec<(&mut [u8], usize)>, place: usize) -> io::Result<()> {
        let stride = self.strides.last().copied().unwrap_or(1) * self.width;
        for pieces in pieces.chunks_mut((LOOKED_AT / stride).max(1)) {
            let (Some((_, first)), Some((piece, last))) = (pieces.first(), pieces.last()) else {
                continue;
            };
            let start = place * self.width + first * stride;
            let end = place * self.width + last * stride + piece.len();
            self.source.with_window(start..end, |source| {
                for ((piece, _), from) in pieces.iter_mut().zip((0..).step_by(stride)) {
                    piece.copy_from_slice(&source[from..from + piece.len()]);
                }
            })?;
        }
        Ok(())
    }

    /// Copies a range of the elements from the source's elements from `base` on.
    fn gather_from(&self, source: &[u8], base: usize, range: Range<usize>, target: &mut [u8]) {
        match self.width {
            1 => self.gather_elements::<1>(range, base, source, target),
            2 => self.gather_elements::<2>(range, base, source, target),
            4 => self.gather_elements::<4>(range, base, source, target),
            _ => self.gather_elements::<8>(range, base, source, target),
        }
    }

    /// The part of the source that a range of elements lies in.
    fn span(&self, range: &Range<usize>) -> Range<usize> {
        let (mut start, mut end) = (self.offset, self.offset + 1);
        let (mut first, mut last) = (range.start, range.end - 1);
        let mut inner = self.count();
        let mut apart = false;
        for (&size, &stride) in self.shape.iter().zip(&self.strides) {
            inner /= size;
            if apart {
                end += (size - 1) * stride;
            } else {
                start += first / inner * stride;
                end += last / inner * stride;
                apart = first / inner != last / inner;
                (first, last) = (first % inner, last % inner);
            }
        }
        start..end
    }

    fn gather_elements<const WIDTH: usize>(
        &self,
        range: Range<usize>,
        base: usize,
        source: &[u8],
        target: &mut [u8],
    ) {
        let (source, _) = source.as_chunks::<WIDTH>();
        let (target, _) = target.as_chunks_mut::<WIDTH>();
        let Some((&columns, outer)) = self.shape.split_last() else {
            target[0] = source[self.offset - base];
            return;
        };
        let stride = self.strides[outer.len()];
        let mut at = range.start;
        while at < range.end {
            let (row, column) = (at / columns, at % columns);
            let left = &mut target[at - range.start..];
            let place = self.offset + self.place_of_row(row) + column * stride - base;
            let (across, siblings) = match outer.last() {
                Some(&size) => (self.strides[outer.len() - 1], size - row % size),
                None => (0, 1),
            };
            let rows = siblings.min((range.end - at) / columns).min(ROWS);
            if column == 0 && stride > across && rows > 1 {
                for first in (0..columns).step_by(COLUMNS) {
                    let block = first..columns.min(first + COLUMNS);
                    if across == 1 && rows == ROWS {
                        // Lines of the source are read once, lines of the target written once.
                        let mut lines = [[[0; WIDTH]; ROWS]; COLUMNS];
                        for (line, column) in lines.iter_mut().zip(block.clone()) {
                            let from = place + column * stride;
                            line.copy_from_slice(&source[from..from + ROWS]);
                        }
                        for row in 0..ROWS {
                            let to = &mut left[row * columns..][block.clone()];
                            to.iter_mut().zip(&lines).for_each(|(to, line)| *to = line[row]);
                        }
                        continue;
                    }
                    for row in 0..rows {
                        let place = place + row * across;
                        let to = &mut left[row * columns..][block.clone()];
                        for (to, column) in to.iter_mut().zip(block.clone()) {
                            *to = source[place + column * stride];
                        }
                    }
                }
                at += rows * columns;
                continue;
            }
            let length = (columns - column).min(range.end - at);
            if stride == 1 {
                left[..length].copy_from_slice(&source[place..place + length]);
            } else {
                for (to, step) in left[..length].iter_mut().zip(0..) {
                    *to = source[place + step * stride];
                }
            }
            at += length;
        }
    }

    /// Elements from the first one to the first one of a row.
    fn place_of_row(&self, mut row: usize) -> usize {
        let outer = self.shape.len() - 1;
        let dimensions = self.shape[..outer].iter().zip(&self.strides);
        dimensions.rev().fold(0, |place, (&size, &stride)| {
            let place = place + row % size * stride;
            row /= size;
            place
        })
    }

    pub(super) fn identity(&self) -> Fingerprint {
        let mut identity = self.source.identity().with(self.dtype as u64).with(self.offset as u64);
        identity = identity.with(self.shape.len() as u64);
        for (&size, &stride) in self.shape.iter().zip(&self.strides) {
            identity = identity.with(size as u64).with(stride as u64);
        }
        identity
    }
}
