//! How work is stopped that somebody no longer wants.
//!
//! Whoever starts work runs it with [`CancellationToken::during`]; loops over calls, operations and windows of files call [`point`],
//! which unwinds once the token was [cancelled](Token::cancel), so that what was being written is cleaned up on the way.
//! Where nobody set a token, `point` costs a look at a thread-local.

use std::any::Any;
use std::cell::RefCell;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

thread_local! {
    static CURRENT: RefCell<Option<CancellationToken>> = const { RefCell::new(None) };
}

/// Stops work, from any thread.
#[derive(Clone, Debug, Default)]
pub struct CancellationToken(Arc<AtomicBool>);

/// What unwinds.
struct CancellationUnwind;

impl CancellationToken {
    /// Has the work end at its next [`point`].
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether the work is to end.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Does work on this thread that the token can stop. It then unwinds with what [`is_cancellation`] knows.
    pub fn during<T>(&self, work: impl FnOnce() -> T) -> T {
        /// Puts the token back that was there before, on the way of an unwinding, too.
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

/// The token of the work that this thread does, for other threads that share in it.
pub(crate) fn current() -> Option<CancellationToken> {
    CURRENT.with_borrow(Clone::clone)
}

/// A place at which work may end.
pub fn point() {
    let is_cancelled = CURRENT
        .with_borrow(|current| current.as_ref().is_some_and(CancellationToken::is_cancelled));
    if is_cancelled {
        resume_unwind(Box::new(CancellationUnwind));
    }
}

/// Whether what was caught is the end of cancelled work, and no panic.
pub fn is_cancellation(payload: &(dyn Any + Send)) -> bool {
    payload.is::<CancellationUnwind>()
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use super::*;

    #[test]
    fn work_ends_at_the_next_point_and_not_beyond_its_token() {
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
