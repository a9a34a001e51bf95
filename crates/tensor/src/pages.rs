//! Pages of new memory, which come from the system when they are first written to.

use std::slice::ChunksMut;

/// The bytes of a large page on most processors.
const LARGE: usize = 2 << 20;

/// Windows of new memory whose pages are there when they are given out.
///
/// Many pages in one call take a fraction of what they take one by one, when each is first written to, and those that
/// are filled soon after are still in the cache.
pub struct NewWindows<'m> {
    windows: ChunksMut<'m, u8>,
    /// Up to where pages are there.
    #[cfg(target_os = "linux")]
    end: usize,
    /// Where the memory ends.
    #[cfg(target_os = "linux")]
    whole: usize,
    /// Whether large pages came quickly so far.
    #[cfg(target_os = "linux")]
    prefers_large: bool,
}

impl<'m> NewWindows<'m> {
    /// Windows of `size` bytes, the last of which may be shorter.
    ///
    /// # Panics
    /// Where the size is 0.
    pub fn of(memory: &'m mut [u8], size: usize) -> NewWindows<'m> {
        NewWindows {
            #[cfg(target_os = "linux")]
            end: memory.as_ptr().addr(),
            #[cfg(target_os = "linux")]
            whole: memory.as_ptr().addr() + memory.len(),
            #[cfg(target_os = "linux")]
            prefers_large: true,
            windows: memory.chunks_mut(size),
        }
    }

    /// How many windows there are to come.
    pub fn count_left(&self) -> usize {
        self.windows.len()
    }
}

impl<'m> Iterator for NewWindows<'m> {
    type Item = &'m mut [u8];

    fn next(&mut self) -> Option<&'m mut [u8]> {
        let window = self.windows.next()?;
        #[cfg(target_os = "linux")]
        while self.end < window.as_ptr().addr() + window.len() {
            let start = self.end;
            self.end = (start + 1).next_multiple_of(LARGE).min(self.whole);
            system::bring(start..self.end, &mut self.prefers_large);
        }
        Some(window)
    }
}

/// Asks for large pages for memory that is written to later, unless those are hard to come by.
#[cfg(target_os = "linux")]
pub(crate) fn prefer_large(memory: &mut [u8]) {
    let start = memory.as_ptr().addr().next_multiple_of(LARGE);
    let end = memory.as_ptr().addr() + memory.len();
    let mut prefers_large = end.saturating_sub(start) >= LARGE;
    if prefers_large {
        system::bring(start..start + LARGE, &mut prefers_large);
    }
    if prefers_large {
        system::advise(start..end, libc::MADV_HUGEPAGE);
    }
}

#[cfg(target_os = "linux")]
mod system {
    use std::ops::Range;
    use std::time::Duration;

    use super::LARGE;

    /// What a large page takes where one is free is a fraction of this.
    const DEAR: Duration = Duration::from_millis(1);

    /// Brings in pages of memory that nobody else uses, within a large page. Where memory is in pieces, the system moves
    /// others' pages to make large ones, which takes longer than small pages do: the first such page is the last.
    pub(super) fn bring(range: Range<usize>, prefers_large: &mut bool) {
        if cfg!(miri) {
            return;
        }
        if !*prefers_large || range.len() < LARGE {
            advise(range, libc::MADV_POPULATE_WRITE);
            return;
        }
        advise(range.clone(), libc::MADV_HUGEPAGE);
        let before = spent();
        advise(range, libc::MADV_POPULATE_WRITE);
        *prefers_large = spent().saturating_sub(before) <= DEAR;
    }

    /// What the thread has taken of the processor: others may run meanwhile.
    fn spent() -> Duration {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the time is written to, and to nothing else.
        #[expect(unsafe_code, reason = "the system's clocks have no safe interface")]
        unsafe {
            libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time);
        }
        Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
    }

    /// Gives advice about the whole pages in a range, which the system may ignore.
    pub(super) fn advise(range: Range<usize>, advice: libc::c_int) {
        // SAFETY: `sysconf` has no conditions.
        #[expect(unsafe_code, reason = "the size of pages has no safe interface")]
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        let page = usize::try_from(page).unwrap_or(LARGE).max(1);
        let start = range.start.next_multiple_of(page);
        let end = range.end - range.end % page;
        if start < end {
            // SAFETY: neither piece of advice that is given here changes what memory holds.
            #[expect(unsafe_code, reason = "advice is given to the system by address")]
            let _ = unsafe {
                libc::madvise(std::ptr::without_provenance_mut(start), end - start, advice)
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_all_of_the_memory_and_keep_what_it_holds() {
        let length = if cfg!(miri) { 5000 } else { 3 * LARGE + 5000 };
        let mut memory: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
        let expected = memory.clone();
        for (start, size) in [(0, 1 << 18), (1, 1 << 20), (4095, 5 << 20), (length, 1)] {
            let mut windows = NewWindows::of(&mut memory[start..], size);
            assert_eq!(windows.count_left(), (length - start).div_ceil(size));
            let mut at = start;
            for window in &mut windows {
                assert!(*window == expected[at..(at + size).min(length)], "{at}");
                at += window.len();
            }
            assert_eq!((at, windows.count_left()), (length, 0));
        }
    }
}
