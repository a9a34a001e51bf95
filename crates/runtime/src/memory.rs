//! Memory of a method: arenas with planned tensor offsets.
//!
//! Plans are untrusted. Loading a method checks that each tensor is inside its arena. Overlapping tensors are
//! harmless, because an output that overlaps an input is written to a copy.

use std::ops::Range;

use coremill_kernels::Arena;

use crate::error::{Result, ensure, fail};

/// Memory aligned for all element types.
pub(crate) struct AlignedBuffer {
    words: Arena,
    length: usize,
}

impl AlignedBuffer {
    /// Zeroed memory. The system allocates pages on first access.
    pub(crate) fn new(length: usize) -> Result<AlignedBuffer> {
        match Arena::reserve(length.div_ceil(size_of::<f32>())) {
            Some(words) => Ok(AlignedBuffer { words, length }),
            None => fail!("cannot allocate {length} bytes of memory"),
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(self.words.as_slice())[..self.length]
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(self.words.as_mut_slice())[..self.length]
    }

    pub(crate) fn len(&self) -> usize {
        self.length
    }
}

/// A region of an arena.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) space: usize,
    pub(crate) range: Range<usize>,
}

impl Part {
    pub(crate) fn overlaps(&self, other: &Part) -> bool {
        self.space == other.space
            && !self.range.is_empty()
            && !other.range.is_empty()
            && self.range.start < other.range.end
            && other.range.start < self.range.end
    }
}

/// All arenas, with some regions split off for writing.
pub(crate) struct SplitArena<'a> {
    /// The regions to write, in the requested order.
    pub(crate) written: Vec<&'a mut [u8]>,
    /// The remaining regions of each arena, by start offset.
    rest: Vec<Vec<(usize, &'a [u8])>>,
}

impl<'a> SplitArena<'a> {
    /// Splits off regions, which must not overlap.
    pub(crate) fn new(spaces: &'a mut [AlignedBuffer], parts: &[Part]) -> Result<SplitArena<'a>> {
        let mut written: Vec<Option<&'a mut [u8]>> = parts.iter().map(|_| None).collect();
        let mut rest = Vec::with_capacity(spaces.len());
        for (index, space) in spaces.iter_mut().enumerate() {
            let mut here: Vec<usize> =
                (0..parts.len()).filter(|part| parts[*part].space == index).collect();
            here.sort_by_key(|part| (parts[*part].range.start, parts[*part].range.end));
            let mut gaps = Vec::with_capacity(here.len() + 1);
            let mut remaining = space.bytes_mut();
            let mut start = 0;
            for part in here {
                let Range { start: from, end } = parts[part].range;
                if from == end {
                    continue;
                }
                ensure!(
                    from >= start && end - start <= remaining.len(),
                    "the bytes {from}..{end} of arena {index} are out of bounds or overlap another output"
                );
                let (gap, tail) = remaining.split_at_mut(from - start);
                let (taken, tail) = tail.split_at_mut(end - from);
                gaps.push((start, &*gap));
                written[part] = Some(taken);
                remaining = tail;
                start = end;
            }
            gaps.push((start, &*remaining));
            rest.push(gaps);
        }
        let written = written.into_iter().map(Option::unwrap_or_default).collect();
        Ok(SplitArena { written, rest })
    }

    /// A region that is not written.
    pub(crate) fn read(&self, part: &Part) -> Result<&'a [u8]> {
        if part.range.is_empty() {
            return Ok(&[]);
        }
        let gaps = self.rest.get(part.space).map_or(&[][..], Vec::as_slice);
        let found = gaps.iter().rev().find(|(start, _)| *start <= part.range.start);
        let bytes = found.and_then(|(start, bytes)| {
            bytes.get(part.range.start - start..part.range.end.checked_sub(*start)?)
        });
        ensure!(
            bytes.is_some(),
            "the bytes {:?} of arena {} are out of bounds or overlap an output",
            part.range,
            part.space
        );
        Ok(bytes.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(space: usize, range: Range<usize>) -> Part {
        Part { space, range }
    }

    #[test]
    fn splits_arena_into_writable_and_readable_regions() {
        let mut spaces = [32, 8].map(|length| AlignedBuffer::new(length).expect("allocated"));
        spaces[0].bytes_mut()[4..8].fill(7);
        let mut arena = SplitArena::new(
            &mut spaces,
            &[part(0, 16..24), part(1, 0..8), part(0, 8..16), part(0, 3..3)],
        )
        .expect("they do not overlap");
        assert_eq!(arena.written.iter().map(|bytes| bytes.len()).collect::<Vec<_>>(), [8, 8, 8, 0]);
        let read = arena.read(&part(0, 4..8)).expect("a readable region");
        arena.written[0][..4].copy_from_slice(read);
        assert_eq!(arena.read(&part(0, 24..32)).expect("a readable region").len(), 8);
        assert!(arena.read(&part(0, 6..10)).is_err());
        assert!(arena.read(&part(1, 0..1)).is_err());
        assert!(arena.read(&part(0, 30..40)).is_err());
        assert_eq!(spaces[0].bytes()[16..20], [7; 4]);
    }

    #[test]
    fn rejects_overlapping_and_out_of_bounds_regions() {
        let mut spaces = [AlignedBuffer::new(32).expect("allocated")];
        assert!(SplitArena::new(&mut spaces, &[part(0, 0..8), part(0, 4..12)]).is_err());
        assert!(SplitArena::new(&mut spaces, &[part(0, 0..33)]).is_err());
    }
}
