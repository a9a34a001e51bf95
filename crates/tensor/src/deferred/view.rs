use std::io;
use std::ops::Range;

use crate::deferred::RecipeError;
use crate::deferred::error::misfit;
use crate::produce::Fingerprint;
use crate::{Buffer, DType};

/// Dimensions that a view may have; more than any framework has.
const MAX_RANK: usize = 64;

/// Maximum size in bytes of a view whose strides repeat elements, unless the source is larger.
const MAX_REPEATED_BYTES: usize = 1 << 31;

/// Maximum size in bytes of a range of a mapped file that is accessed to gather some of its elements.
const MAX_SPAN: usize = 16 << 20;

/// Maximum size in bytes of a range that is accessed at once to copy pieces of it.
const LOOKED_AT: usize = 4 << 20;

/// Minimum distance in bytes of pieces of a file that are read one by one, because each would load its own
/// pages.
const FAR: usize = 64 << 10;

/// Number of rows that are gathered together if the second-last dimension has the smaller stride. Adjacent
/// rows share cache lines.
const ROWS: usize = 16;

/// Number of columns that are gathered at a time for a group of rows.
const COLUMNS: usize = 64;

/// Strided elements in a buffer.
#[derive(Clone)]
pub(super) struct View {
    pub(super) source: Buffer,
    pub(super) dtype: DType,
    /// Size of an element in bytes.
    pub(super) width: usize,
    pub(super) shape: Vec<usize>,
    /// Strides of the dimensions, in elements.
    pub(super) strides: Vec<usize>,
    /// Index of the first element.
    pub(super) offset: usize,
}

impl View {
    /// Returns the view, if its elements are within the source.
    pub(super) fn new(
        source: Buffer,
        dtype: DType,
        shape: &[u64],
        strides: &[u64],
        offset: u64,
    ) -> Result<View, RecipeError> {
        let width = match dtype.bits() {
            Some(bits) if bits % 8 == 0 => bits as usize / 8,
            _ => return misfit!("elements of `{dtype}` do not occupy whole bytes"),
        };
        if shape.len() != strides.len() || shape.len() > MAX_RANK {
            return misfit!(
                "the numbers of sizes ({}) and strides ({}) must be equal and at most {MAX_RANK}",
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
                "a `{dtype}` view of sizes {shape:?}, strides {strides:?} and offset {offset} is outside \
                 the buffer of {} bytes",
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
        // The product did not overflow when the view was created, unless a size is 0.
        if self.shape.contains(&0) { 0 } else { self.shape.iter().product() }
    }

    /// Whether the elements are dense in row-major order.
    pub(super) fn is_contiguous(&self) -> bool {
        let mut wanted = 1;
        self.shape.contains(&0)
            || self.shape.iter().zip(&self.strides).rev().all(|(&size, &stride)| {
                let fits = size == 1 || stride == wanted;
                wanted *= size;
                fits
            })
    }

    /// The byte range of a contiguous view.
    pub(super) fn run(&self) -> Range<usize> {
        let start = if self.count() == 0 { 0 } else { self.offset * self.width };
        start..start + self.count() * self.width
    }

    /// The same elements with as few dimensions as possible.
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

    /// Whether elements are so scattered that accessing the whole range between them needs more memory or
    /// time than reading it in pieces with several elements each.
    fn is_scattered(&self, span: &Range<usize>, count: usize) -> bool {
        let pieces = matches!(self.strides.as_slice(), [.., 1, last] if *last > 1);
        let most = if self.source.is_deferred() { 0 } else { MAX_SPAN / self.width };
        pieces && span.len() > most.max(2 * count)
    }

    /// Copies a range of elements of a view whose second-last dimension is contiguous in the source. Each
    /// piece of the source contains the elements of one column for several rows.
    fn gather_tiles(&self, range: Range<usize>, target: &mut [u8]) -> io::Result<()> {
        let (&[.., size, columns], &[.., stride]) = (&*self.shape, &*self.strides) else {
            return Ok(());
        };
        let mut at = range.start;
        while at < range.end {
            let row = at / columns;
            let rows = (size - row % size).min(range.end.div_ceil(columns) - row);
            let place = self.offset + self.place_of_row(row);
            // A part of a single row needs only its own columns.
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

    /// Copies the elements of columns, starting at element `place`, a few columns at a time.
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

    /// Copies a range of the elements; `source` starts at element `base`.
    fn gather_from(&self, source: &[u8], base: usize, range: Range<usize>, target: &mut [u8]) {
        match self.width {
            1 => self.gather_elements::<1>(range, base, source, target),
            2 => self.gather_elements::<2>(range, base, source, target),
            4 => self.gather_elements::<4>(range, base, source, target),
            _ => self.gather_elements::<8>(range, base, source, target),
        }
    }

    /// The range of the source that contains a range of elements.
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
                        // Read each line of the source once, and write each line of the target once.
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

    /// Element offset of the first element of a row.
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
