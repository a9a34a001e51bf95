use std::io;
use std::sync::{Mutex, PoisonError};

use crate::Buffer;
use coremill_io::windows::share;

/// Number of bytes that a thread reads at a time.
const WINDOW: usize = 1 << 20;

/// Minimum number of bytes for more than one thread.
const SHARED_FROM: usize = 4 << 20;

/// Calls `visit` with windows of a buffer, on all processors if there are many windows, and returns the
/// results in order. Windows start at multiples of every element size.
pub(super) fn map_windows<T: Send>(
    buffer: &Buffer,
    visit: &(dyn Fn(usize, &[u8]) -> T + Sync),
) -> io::Result<Vec<T>> {
    let one = |start: usize| {
        let end = buffer.len().min(start + WINDOW);
        buffer.with_window(start..end, |bytes| visit(start, bytes))
    };
    let starts = (0..buffer.len()).step_by(WINDOW);
    if buffer.len() < SHARED_FROM {
        return starts.map(one).collect();
    }
    let done = Mutex::new(Vec::new());
    share(
        starts.len(),
        usize::MAX,
        || (),
        |(), index| {
            let result = (index, one(index * WINDOW)?);
            done.lock().unwrap_or_else(PoisonError::into_inner).push(result);
            Ok(())
        },
    )?;
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_unstable_by_key(|(index, _)| *index);
    Ok(done.into_iter().map(|(_, result)| result).collect())
}
