//! Cancellation of work that is no longer needed.
//!
//! The caller runs work with [`CancellationToken::during`]. Loops over calls, operations and file windows call
//! [`point`], which unwinds once the token was [cancelled](CancellationToken::cancel), so that unfinished output is
//! cleaned up. Without a token, `point` only reads a thread-local variable.

use std::any::Any;
use std::cell::RefCell;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

thread_local! {
    static CURRENT: RefCell<Option<CancellationToken>> = const { RefCell::new(None) };
}

/// Cancels work from any thread.
#[derive(Clone, Debug, Default)]
pub struct CancellationToken(Arc<AtomicBool>);

/// Payload of the unwinding.
struct CancellationUnwind;

impl CancellationToken {
    /// Cancels the work at its next [`point`].
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether the work was cancelled.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Runs work on this thread that the token can cancel. Cancelled work unwinds with a payload that
    /// [`is_cancellation`] recognizes.
    pub fn during<T>(&self, work: impl FnOnce() -> T) -> T {
        /// Restores the previous token, also while unwinding.
        struct Restore(Option<CancellationToken>);
        impl Drop for Restore {
            fn drop(&mut self) {
                CURRENT.with_borrow_mut(|current| *current = self.0.take());
            }
        }
        let _restore = Restore(CURRENT.replace(Some(self.clone())));
        work()
    }
}

/// The token of this thread's work, for other threads that share the work.
pub(crate) fn current() -> Option<CancellationToken> {
    CURRENT.with_borrow(Clone::clone)
}

/// A point at which work can be cancelled.
pub fn point() {
    let is_cancelled = CURRENT
        .with_borrow(|current| current.as_ref().is_some_and(CancellationToken::is_cancelled));
    if is_cancelled {
        resume_unwind(Box::new(CancellationUnwind));
    }
}

/// Whether a caught panic payload is a cancellation.
pub fn is_cancellation(payload: &(dyn Any + Send)) -> bool {
    payload.is::<CancellationUnwind>()
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use super::*;

    #[test]
    fn cancelled_work_unwinds_at_next_point() {
        let token = CancellationToken::default();
        assert_eq!(
            token.during(|| {
                point();
                1
            }),
            1
        );
        token.cancel();
        let outcome = catch_unwind(|| {
            token.during(|| {
                point();
                2
            })
        });
        assert!(is_cancellation(&*outcome.expect_err("it was cancelled")));
        point();
        let panicked = catch_unwind(|| resume_unwind(Box::new("other")));
        assert!(!is_cancellation(&*panicked.expect_err("it unwinds")));
    }
}
