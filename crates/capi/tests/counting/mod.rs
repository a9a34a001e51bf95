//! An allocator that counts bytes.
#![allow(
    dead_code,
    clippy::allow_attributes,
    reason = "each test uses only some of these functions"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering};

struct Counting;

/// Total number of allocated bytes, and number of bytes in use.
pub(crate) static ALLOCATED: AtomicUsize = AtomicUsize::new(0);
pub(crate) static IN_USE: AtomicIsize = AtomicIsize::new(0);

// SAFETY: all calls are forwarded to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size(), Ordering::Relaxed);
        IN_USE.fetch_add(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: as for the system's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: as for the system's.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;
