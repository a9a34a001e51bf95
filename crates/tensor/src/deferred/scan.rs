use std::io;
use std::sync::{Mutex, PoisonError};

use crate::Buffer;
use coremill_io::windows::share;

/// Bytes that a thread reads at a time.
const WINDOW: usize = 1 << 20;

/// Bytes from which on more than one thread is worth starting.
const SHARED_FROM: usize = 4 << 20;

/// Calls `visit` with windows of a buffer, on all processors if there are many, and gives the results in
/// order. Windows begin at multiples of any element's width.
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
