use std::ops::Range;

use crate::memory::{LINE, Memory, as_elements, as_elements_mut};

/// Zeroed floats that kernels read and write in parts, aligned to a cache line.
#[derive(Debug, Default)]
pub struct Arena {
    memory: Memory,
}

/// Parts of an [`Arena`] that start at a multiple of this number are aligned to a cache line.
pub const FLOATS_PER_LINE: usize = LINE;

impl Arena {
    /// Returns an arena of at least `length` floats.
    pub fn new(length: usize) -> Arena {
        Arena { memory: Memory::zeroed(length.div_ceil(LINE)) }
    }

    /// Returns an arena of at least `length` floats; `None` if there is not enough memory.
    pub fn reserve(length: usize) -> Option<Arena> {
        Some(Arena { memory: Memory::reserve(length.div_ceil(LINE))? })
    }

    /// Number of floats.
    pub fn len(&self) -> usize {
        self.memory.as_lines().len() * LINE
    }

    /// Whether the arena is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All floats.
    pub fn as_slice(&self) -> &[f32] {
        as_elements(self.memory.as_lines())
    }

    /// All floats, mutably.
    pub fn as_mut_slice(&mut self) -> &mut [f32] {
        as_elements_mut(self.memory.as_mut_lines())
    }

    /// Appends slices of parts of the arena to vectors of the caller: shared slices for `reads`, which may
    /// overlap each other, and mutable slices for `writes`, which must not overlap any other part.
    ///
    /// # Panics
    ///
    /// Panics if a part is out of bounds or a written part overlaps another part.
    pub fn parts<'a>(
        &'a mut self,
        reads: &[Range<usize>],
        writes: &[Range<usize>],
        read: &mut Vec<&'a [f32]>,
        written: &mut Vec<&'a mut [f32]>,
    ) {
        let all = self.as_mut_slice();
        let length = all.len();
        for range in reads.iter().chain(writes) {
            assert!(
                range.start <= range.end && range.end <= length,
                "{range:?} is out of bounds of an arena of {length} elements"
            );
        }
        for (index, write) in writes.iter().enumerate() {
            let apart = |other: &Range<usize>| {
                other.end <= write.start
                    || write.end <= other.start
                    || other.is_empty()
                    || write.is_empty()
            };
            assert!(reads.iter().all(apart), "{write:?} is both written and read");
            assert!(writes[..index].iter().all(apart), "{write:?} is written twice");
        }
        let start = all.as_mut_ptr();
        let to_read = |range: &Range<usize>| {
            // SAFETY: the range is within the arena, and no written part overlaps it, as checked above. The
            // arena is borrowed exclusively for `'a`.
            #[expect(unsafe_code, reason = "borrows disjoint parts at the same time")]
            unsafe {
                std::slice::from_raw_parts(start.add(range.start).cast_const(), range.len())
            }
        };
        let to_write = |range: &Range<usize>| {
            // SAFETY: the range is within the arena, and no other part overlaps it, as checked above.
            #[expect(unsafe_code, reason = "borrows disjoint parts at the same time")]
            unsafe {
                std::slice::from_raw_parts_mut(start.add(range.start), range.len())
            }
        };
        read.extend(reads.iter().map(to_read));
        written.extend(writes.iter().map(to_write));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn borrows_disjoint_parts_for_read_and_write() {
        let mut arena = Arena::new(40);
        assert_eq!(arena.len(), 48);
        assert_eq!(arena.as_slice().as_ptr() as usize % 64, 0);
        arena.as_mut_slice()[..4].copy_from_slice(&[1.0, 2.0, 3.0, 4.0]);
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        arena.parts(&[0..4, 2..4], &[16..18, 20..21, 3..3], &mut reads, &mut writes);
        writes[0].copy_from_slice(reads[1]);
        writes[1][0] = reads[0][0];
        assert_eq!(arena.as_slice()[16..21], [3.0, 4.0, 0.0, 0.0, 1.0]);
    }

    #[test]
    #[should_panic(expected = "is both written and read")]
    fn rejects_write_overlapping_read() {
        Arena::new(16).parts(&[0..4], &[3..5], &mut Vec::new(), &mut Vec::new());
    }

    #[test]
    #[should_panic(expected = "is written twice")]
    fn rejects_overlapping_writes() {
        Arena::new(16).parts(&[], &[0..4, 3..5], &mut Vec::new(), &mut Vec::new());
    }
}
