//! Memory that each thread reuses from kernel to kernel.

use std::cell::RefCell;

use crate::memory::{CacheLine, LINE, as_elements_mut};

/// Copies of row pieces that are not contiguous in memory.
#[derive(Default)]
pub(crate) struct PackedRows {
    elements: Vec<f32>,
    used: usize,
}

impl PackedRows {
    /// Provides room for `count` elements, all unused.
    pub(crate) fn reset(&mut self, count: usize) {
        self.used = 0;
        if self.elements.len() < count {
            self.elements.resize(count, 0.0);
        }
    }

    /// Returns elements that stay in place until the next reset.
    pub(crate) fn take(&mut self, count: usize) -> &mut [f32] {
        let start = self.used;
        self.used += count;
        assert!(self.used <= self.elements.len(), "copies fit what was reset");
        // SAFETY: the elements exist. Elements taken earlier are not touched, as indexing would do.
        #[expect(unsafe_code, reason = "pointers to earlier allocations stay valid")]
        unsafe {
            std::slice::from_raw_parts_mut(self.elements.as_mut_ptr().add(start), count)
        }
    }
}

/// Memory of a task other than its input and output.
#[derive(Default)]
pub(crate) struct Scratch {
    lines: Vec<CacheLine>,
    /// Pointers to the rows of tiles.
    pub(crate) pointers: Vec<*const f32>,
    /// Rows that had to be copied.
    pub(crate) copies: PackedRows,
}

impl Scratch {
    /// Returns `count` elements aligned to a cache line, with unspecified contents.
    pub(crate) fn elements(&mut self, count: usize) -> &mut [f32] {
        let lines = count.div_ceil(LINE);
        if self.lines.len() < lines {
            self.lines.resize(lines, CacheLine::ZEROS);
        }
        &mut as_elements_mut(&mut self.lines)[..count]
    }
}

/// Runs the body with unused scratch memory of this thread.
pub(crate) fn with_scratch<T>(body: impl FnOnce(&mut Scratch) -> T) -> T {
    thread_local! {
        #[expect(clippy::vec_box, reason = "scratch memory is moved by pointer")]
        static KEPT: RefCell<Vec<Box<Scratch>>> = const { RefCell::new(Vec::new()) };
    }
    let mut scratch = KEPT.with_borrow_mut(Vec::pop).unwrap_or_default();
    let result = body(&mut scratch);
    KEPT.with_borrow_mut(|kept| kept.push(scratch));
    result
}
