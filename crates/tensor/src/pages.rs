//! Pages of new memory, which come from the system when they are first written to.

#[cfg(target_os = "linux")]
use std::ops::Range;
#[cfg(target_os = "linux")]
use std::sync::atomic::{AtomicBool, Ordering};

/// The bytes of a large page on most processors.
#[cfg(any(target_os = "linux", test))]
const LARGE: usize = 2 << 20;

/// The pages of new memory, which are there before it is filled.
///
/// Many pages in one call take a fraction of what they take one by one, when each is first written to, and those that
/// are filled soon after are still in the cache. Threads that fill parts of more than a large page each bring in theirs
/// side by side.
pub struct NewPages {
    /// Where the memory ends.
    #[cfg(target_os = "linux")]
    end: usize,
    /// Whether large pages came quickly so far.
    #[cfg(target_os = "linux")]
    prefers_large: AtomicBool,
}

impl NewPages {
    /// The pages of memory of which nothing was written to yet.
    pub fn of(memory: &mut [u8]) -> NewPages {
        #[cfg(target_os = "linux")]
        {
            let Range { start, end } = addresses(memory);
            let first = start.next_multiple_of(LARGE);
            let prefers_large = first.saturating_add(LARGE) <= end;
            if prefers_large {
                system::bring(start..first);
            }
            NewPages { end, prefers_large: AtomicBool::new(prefers_large) }
        }
        #[cfg(not(target_os = "linux"))]
        {
            let _ = memory;
            NewPages {}
        }
    }

    /// Brings in the pages of a part that is about to be filled: its own, or the large ones that begin in it.
    pub fn bring(&self, part: &mut [u8]) {
        #[cfg(target_os = "linux")]
        {
            let Range { start, end } = addresses(part);
            if !self.prefers_large.load(Ordering::Relaxed) {
                system::bring(start..end);
                return;
            }
            for start in (start.next_multiple_of(LARGE)..end).step_by(LARGE) {
                let large = start..start.saturating_add(LARGE).min(self.end);
                if large.len() == LARGE && !system::bring_large(large.clone()) {
                    self.prefers_large.store(false, Ordering::Relaxed);
                }
                if large.len() < LARGE {
                    system::bring(large);
                }
            }
        }
        #[cfg(not(target_os = "linux"))]
        let _ = part;
    }
}

/// Where memory lies.
#[cfg(target_os = "linux")]
fn addresses(memory: &[u8]) -> Range<usize> {
    let start = memory.as_ptr().addr();
    start..start + memory.len()
}

/// Asks for large pages for memory that lives long. They may be slow to come by where memory is in pieces, but every run
/// reads and writes it: with small pages those of a convolutional network take a third longer.
#[cfg(target_os = "linux")]
pub(crate) fn prefer_large(memory: &mut [u8]) {
    let Range { start, end } = addresses(memory);
    let start = start.next_multiple_of(LARGE);
    if start.saturating_add(LARGE) <= end {
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

    /// Brings in pages of memory that nobody else uses.
    pub(super) fn bring(range: Range<usize>) {
        if !cfg!(miri) {
            advise(range, libc::MADV_POPULATE_WRITE);
        }
    }

    /// Brings in a large page, and says whether it came quickly. Where memory is in pieces, the system moves others'
    /// pages to make one, and that of a virtual machine may have to ask for memory, which takes longer than small pages
    /// do.
    pub(super) fn bring_large(range: Range<usize>) -> bool {
        if cfg!(miri) {
            return true;
        }
        advise(range.clone(), libc::MADV_HUGEPAGE);
        let before = spent();
        bring(range);
        spent().saturating_sub(before) <= DEAR
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
    fn pages_that_come_keep_what_memory_holds() {
        let length = if cfg!(miri) { 5000 } else { 3 * LARGE + 5000 };
        let mut memory: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
        let expected = memory.clone();
        for (start, size) in [(0, 1 << 18), (1, 1 << 20), (4095, 5 << 20), (length, 1)] {
            let pages = NewPages::of(&mut memory[start..]);
            for part in memory[start..].chunks_mut(size) {
                pages.bring(part);
            }
            assert!(memory == expected, "{start}, {size}");
        }
    }
}
