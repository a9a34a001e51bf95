//! Zeroed memory in whole cache lines.

use std::{fmt, io};

use memmap2::MmapMut;

/// A cache line of floats.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct CacheLine([f32; LINE]);

impl CacheLine {
    pub(crate) const ZEROS: CacheLine = CacheLine([0.0; LINE]);
}

/// Number of elements in a [`CacheLine`].
pub(crate) const LINE: usize = 16;

/// Minimum size in bytes of memory that is mapped separately. The system can use large pages for it, which
/// are faster to allocate, and releases it at once.
const LARGE: usize = 4 << 20;

/// A number of cache lines, initially zero.
pub(crate) struct Memory(Owner);

enum Owner {
    Lines(Vec<CacheLine>),
    Pages(MmapMut),
}

impl Memory {
    /// Memory that is written once and then read in order, in pages of the usual size. Large pages hardly make
    /// such reads faster, but a system whose memory is fragmented may need longer to find them than a model
    /// needs to run.
    pub(crate) fn in_small_pages(lines: usize) -> Memory {
        let bytes = lines.saturating_mul(size_of::<CacheLine>());
        let pages = (bytes >= LARGE && !cfg!(miri)).then(|| MmapMut::map_anon(bytes));
        Memory(match pages {
            Some(Ok(pages)) => Owner::Pages(pages),
            _ => Owner::Lines(vec![CacheLine::ZEROS; lines]),
        })
    }

    /// Like `zeroed`; `None` if there is not enough memory.
    pub(crate) fn reserve(lines: usize) -> Option<Memory> {
        let bytes = lines.checked_mul(size_of::<CacheLine>())?;
        if bytes >= LARGE && !cfg!(miri) {
            return Some(Memory(Owner::Pages(new_pages(bytes).ok()?)));
        }
        Some(Memory::zeroed(lines))
    }

    pub(crate) fn zeroed(lines: usize) -> Memory {
        let bytes = lines.saturating_mul(size_of::<CacheLine>());
        let pages = (bytes >= LARGE && !cfg!(miri)).then(|| new_pages(bytes));
        Memory(match pages {
            Some(Ok(pages)) => Owner::Pages(pages),
            _ => Owner::Lines(vec![CacheLine::ZEROS; lines]),
        })
    }

    pub(crate) fn as_lines(&self) -> &[CacheLine] {
        match &self.0 {
            Owner::Lines(lines) => lines,
            // SAFETY: pages are aligned to more than a line and contain whole lines, and all bit patterns are
            // valid floats.
            #[expect(unsafe_code, reason = "reinterprets pages as cache lines")]
            Owner::Pages(pages) => unsafe {
                std::slice::from_raw_parts(
                    pages.as_ptr().cast(),
                    pages.len() / size_of::<CacheLine>(),
                )
            },
        }
    }

    pub(crate) fn as_mut_lines(&mut self) -> &mut [CacheLine] {
        match &mut self.0 {
            Owner::Lines(lines) => lines,
            // SAFETY: as above.
            #[expect(unsafe_code, reason = "reinterprets pages as cache lines")]
            Owner::Pages(pages) => unsafe {
                let lines = pages.len() / size_of::<CacheLine>();
                std::slice::from_raw_parts_mut(pages.as_mut_ptr().cast(), lines)
            },
        }
    }

    /// Pointer to the first byte.
    pub(crate) fn as_bytes(&self) -> *const u8 {
        self.as_lines().as_ptr().cast()
    }

    /// Size in bytes.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(self.as_lines())
    }
}

fn new_pages(bytes: usize) -> io::Result<MmapMut> {
    #[cfg_attr(
        not(target_os = "linux"),
        expect(unused_mut, reason = "only Linux supports the advice")
    )]
    let mut pages = MmapMut::map_anon(bytes)?;
    #[cfg(target_os = "linux")]
    coremill_io::pages::prefer_large(&mut pages);
    Ok(pages)
}

impl Default for Memory {
    fn default() -> Memory {
        Memory(Owner::Lines(Vec::new()))
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memory({} bytes)", self.bytes())
    }
}

pub(crate) fn as_elements(lines: &[CacheLine]) -> &[f32] {
    // SAFETY: a line is sixteen elements without padding.
    #[expect(unsafe_code, reason = "reinterprets cache lines as elements")]
    unsafe {
        std::slice::from_raw_parts(lines.as_ptr().cast(), lines.len() * LINE)
    }
}

pub(crate) fn as_elements_mut(lines: &mut [CacheLine]) -> &mut [f32] {
    // SAFETY: a line is sixteen elements without padding.
    #[expect(unsafe_code, reason = "reinterprets cache lines as elements")]
    unsafe {
        std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), lines.len() * LINE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_any_size_is_zero_and_aligned() {
        let large = if cfg!(miri) { 4 } else { LARGE / size_of::<CacheLine>() };
        for lines in [0, 1, large - 1, large + 3] {
            let mut memory = Memory::zeroed(lines);
            assert_eq!(memory.as_lines().len(), lines);
            assert_eq!(memory.as_lines().as_ptr().addr() % size_of::<CacheLine>(), 0);
            assert!(as_elements(memory.as_lines()).iter().all(|&element| element == 0.0));
            as_elements_mut(memory.as_mut_lines()).fill(1.0);
            assert!(as_elements(memory.as_lines()).iter().all(|&element| element == 1.0));
        }
    }
}
