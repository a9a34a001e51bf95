//! Memory that is about to be written to for the first time.

/// Gets the pages of new memory from the system in few calls: one by one, when they are first written to, they take a
/// multiple of the time that filling them takes. Where the system does not do so, they come one by one.
#[cfg(target_os = "linux")]
pub(crate) fn prepare(address: usize, length: usize) {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::{Duration, Instant};

    use rustix::mm::Advice;

    /// The bytes of a large page on most processors.
    const LARGE: usize = 2 << 20;
    /// What a large page takes where one is free is a fraction of this.
    const DEAR: Duration = Duration::from_millis(1);
    /// More threads than this wait for one another in the system.
    const THREADS: usize = 4;

    let start = address.next_multiple_of(LARGE);
    let count = (address + length).saturating_sub(start) / LARGE;
    // Large pages come sooner than many small ones, as long as some are free. Where memory is in pieces, the system moves
    // others' pages to make large ones, which takes longer than small pages do: the first such page is the last.
    let prefers_large = AtomicBool::new(true);
    let all = coremill::tensor::share(
        count,
        THREADS,
        || (),
        |_, index| {
            let part = start + index * LARGE;
            let begun = Instant::now();
            let is_large = prefers_large.load(Ordering::Relaxed);
            if is_large {
                advise(part, LARGE, Advice::LinuxHugepage);
            }
            advise(part, LARGE, Advice::LinuxPopulateWrite);
            if is_large && begun.elapsed() > DEAR {
                prefers_large.store(false, Ordering::Relaxed);
            }
            Ok(())
        },
    );
    // No part fails: it is advice.
    let _ = all;
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn prepare(_address: usize, _length: usize) {}

#[cfg(target_os = "linux")]
fn advise(start: usize, length: usize, advice: rustix::mm::Advice) {
    // SAFETY: the pages lie within memory that the caller has; their content stays.
    #[expect(unsafe_code, reason = "advice is given to the system by address")]
    let _ = unsafe { rustix::mm::madvise(start as *mut _, length, advice) };
}
