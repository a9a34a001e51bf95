//! Pages of new memory, which the system allocates on first write.

#[cfg(target_os = "linux")]
use std::ops::Range;

/// Size of a large page on most processors.
#[cfg(target_os = "linux")]
const LARGE: usize = 2 << 20;

/// Allocates the pages of memory that is about to be filled. The memory must not be in use elsewhere.
///
/// Allocating many pages in one call takes a fraction of the time of allocating each on first write, and pages
/// filled soon after are still in the cache. Small pages are used: memory that is filled once gains little from
/// large ones, and a virtual machine may have to request them from its host, which can take a hundred times longer.
pub fn bring_pages(memory: &mut [u8]) {
    #[cfg(all(target_os = "linux", not(miri)))]
    advise(addresses(memory), libc::MADV_POPULATE_WRITE);
    #[cfg(not(all(target_os = "linux", not(miri))))]
    let _ = memory;
}

/// Requests large pages for long-lived memory. They may be slow to allocate if memory is fragmented, but every run
/// accesses this memory: with small pages, convolutional networks take a third longer.
#[cfg(target_os = "linux")]
pub fn prefer_large(memory: &mut [u8]) {
    let Range { start, end } = addresses(memory);
    let start = start.next_multiple_of(LARGE);
    if start.saturating_add(LARGE) <= end {
        advise(start..end, libc::MADV_HUGEPAGE);
    }
}

/// Address range of memory.
#[cfg(target_os = "linux")]
fn addresses(memory: &[u8]) -> Range<usize> {
    let start = memory.as_ptr().addr();
    start..start + memory.len()
}

/// Advises the system about the whole pages in a range.
#[cfg(target_os = "linux")]
fn advise(range: Range<usize>, advice: libc::c_int) {
    // SAFETY: `sysconf` has no preconditions.
    #[expect(unsafe_code, reason = "the page size has no safe interface")]
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    let page = usize::try_from(page).unwrap_or(LARGE).max(1);
    let start = range.start.next_multiple_of(page);
    let end = range.end - range.end % page;
    if start < end {
        // SAFETY: the advice used here does not change the contents of memory.
        #[expect(unsafe_code, reason = "the system call takes an address")]
        let _ =
            unsafe { libc::madvise(std::ptr::without_provenance_mut(start), end - start, advice) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefaulting_pages_preserves_contents() {
        let length = if cfg!(miri) { 5000 } else { 300_000 };
        let mut memory: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
        let expected = memory.clone();
        for (start, size) in [(0, 1 << 14), (1, 1 << 16), (4095, 100_000), (length, 1)] {
            memory[start..].chunks_mut(size).for_each(bring_pages);
            assert!(memory == expected, "{start}, {size}");
        }
    }
}
