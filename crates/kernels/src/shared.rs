use std::marker::PhantomData;
use std::ops::Range;

/// A slice whose disjoint parts are written by several threads.
#[derive(Clone, Copy)]
pub(crate) struct SharedMut<'a, T = f32> {
    start: *mut T,
    length: usize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: it is a slice, and the contract of `part` keeps its parts disjoint.
#[expect(unsafe_code, reason = "tasks write to disjoint parts of a slice")]
unsafe impl<T: Send> Send for SharedMut<'_, T> {}
// SAFETY: as above.
#[expect(unsafe_code, reason = "tasks write to disjoint parts of a slice")]
unsafe impl<T: Send> Sync for SharedMut<'_, T> {}

impl<'a, T> SharedMut<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> SharedMut<'a, T> {
        SharedMut { start: slice.as_mut_ptr(), length: slice.len(), slice: PhantomData }
    }

    /// Pointer to the start of a part, which must be in bounds.
    pub(crate) fn pointer(&self, part: Range<usize>) -> *mut T {
        assert!(part.start <= part.end && part.end <= self.length, "out of the slice");
        // SAFETY: the range is within the slice.
        #[expect(unsafe_code, reason = "tasks write to disjoint parts of a slice")]
        unsafe {
            self.start.add(part.start)
        }
    }

    /// A part as a shared slice.
    pub(crate) fn narrowed(&self, part: Range<usize>) -> SharedMut<'_, T> {
        SharedMut { start: self.pointer(part.clone()), length: part.len(), slice: PhantomData }
    }

    /// A part for reading.
    ///
    /// # Safety
    /// No thread may write this part while the result is in use.
    #[expect(unsafe_code, reason = "tasks read elements that earlier tasks have written")]
    pub(crate) unsafe fn read(&self, part: Range<usize>) -> &[T] {
        let length = part.len();
        // SAFETY: the range is within the slice, and the caller excludes writers.
        unsafe { std::slice::from_raw_parts(self.pointer(part), length) }
    }

    /// A part for writing.
    ///
    /// # Safety
    /// No other code may access this part while the result is in use.
    #[expect(unsafe_code, reason = "tasks write to disjoint parts of a slice")]
    #[expect(clippy::mut_from_ref, reason = "the caller guarantees disjoint parts")]
    pub(crate) unsafe fn part(&self, part: Range<usize>) -> &mut [T] {
        let length = part.len();
        // SAFETY: the range is within the slice, and the caller keeps parts disjoint.
        unsafe { std::slice::from_raw_parts_mut(self.pointer(part), length) }
    }
}

/// A pointer to memory of which each task of a pool accesses a different part.
pub(crate) struct SharedPointer<T>(pub(crate) *mut T);

impl<T> SharedPointer<T> {
    /// Returns the pointer. The caller must ensure that no two tasks access the same element.
    pub(crate) fn get(&self) -> *mut T {
        self.0
    }
}

// SAFETY: the pointer is only used in unsafe code, which guarantees disjoint accesses.
#[expect(unsafe_code, reason = "tasks write to disjoint parts of a buffer")]
unsafe impl<T: Send> Sync for SharedPointer<T> {}
// SAFETY: as above.
#[expect(unsafe_code, reason = "tasks write to disjoint parts of a buffer")]
unsafe impl<T: Send> Send for SharedPointer<T> {}
