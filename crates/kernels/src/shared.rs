use std::marker::PhantomData;
use std::ops::Range;

/// A slice whose disjoint parts several threads write.
#[derive(Clone, Copy)]
pub(crate) struct SharedMut<'a, T = f32> {
    start: *mut T,
    length: usize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: it is a slice, whose parts `part` hands out under a contract that keeps them apart.
#[expect(unsafe_code, reason = "tasks write disjoint parts of one slice")]
unsafe impl<T: Send> Send for SharedMut<'_, T> {}
// SAFETY: as above.
#[expect(unsafe_code, reason = "tasks write disjoint parts of one slice")]
unsafe impl<T: Send> Sync for SharedMut<'_, T> {}

impl<'a, T> SharedMut<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> SharedMut<'a, T> {
        SharedMut { start: slice.as_mut_ptr(), length: slice.len(), slice: PhantomData }
    }

    /// Where the part starts, whose length is checked.
    pub(crate) fn pointer(&self, part: Range<usize>) -> *mut T {
        assert!(part.start <= part.end && part.end <= self.length, "out of the slice");
        // SAFETY: the range is within the slice.
        #[expect(unsafe_code, reason = "tasks write disjoint parts of one slice")]
        unsafe {
            self.start.add(part.start)
        }
    }

    /// The part as such a slice.
    pub(crate) fn narrowed(&self, part: Range<usize>) -> SharedMut<'_, T> {
        SharedMut { start: self.pointer(part.clone()), length: part.len(), slice: PhantomData }
    }

    /// The part, to be read.
    ///
    /// # Safety
    /// Nobody may write this part while the result lives.
    #[expect(unsafe_code, reason = "tasks read what others have written before")]
    pub(crate) unsafe fn read(&self, part: Range<usize>) -> &[T] {
        let length = part.len();
        // SAFETY: the range is within the slice, and the caller keeps writers away.
        unsafe { std::slice::from_raw_parts(self.pointer(part), length) }
    }

    /// The part.
    ///
    /// # Safety
    /// Nobody else may use this part while the result lives.
    #[expect(unsafe_code, reason = "tasks write disjoint parts of one slice")]
    #[expect(clippy::mut_from_ref, reason = "the caller keeps parts apart")]
    pub(crate) unsafe fn part(&self, part: Range<usize>) -> &mut [T] {
        let length = part.len();
        // SAFETY: the range is within the slice, and the caller keeps parts apart.
        unsafe { std::slice::from_raw_parts_mut(self.pointer(part), length) }
    }
}

/// A pointer to memory of which each task of a pool uses another part.
pub(crate) struct SharedPointer<T>(pub(crate) *mut T);

impl<T> SharedPointer<T> {
    /// Whoever uses it vouches that no two tasks use the same element.
    pub(crate) fn get(&self) -> *mut T {
        self.0
    }
}

// SAFETY: a pointer alone does nothing; those who use it vouch for what they do.
#[expect(unsafe_code, reason = "tasks write to parts of one memory")]
unsafe impl<T: Send> Sync for SharedPointer<T> {}
// SAFETY: as above.
#[expect(unsafe_code, reason = "tasks write to parts of one memory")]
unsafe impl<T: Send> Send for SharedPointer<T> {}
