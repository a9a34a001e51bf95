/// A pointer to memory of which each task of a pool uses another part.
pub(crate) struct Shared<T>(pub(crate) *mut T);

impl<T> Shared<T> {
    /// Whoever uses it vouches that no two tasks use the same element.
    pub(crate) fn get(&self) -> *mut T {
        self.0
    }
}

// SAFETY: a pointer alone does nothing; those who use it vouch for what they do.
#[expect(unsafe_code, reason = "tasks write to parts of one memory")]
unsafe impl<T: Send> Sync for Shared<T> {}
// SAFETY: as above.
#[expect(unsafe_code, reason = "tasks write to parts of one memory")]
unsafe impl<T: Send> Send for Shared<T> {}
