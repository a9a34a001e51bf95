//! How Core ML is called: in an autorelease pool, with exceptions caught and answers waited for.

use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::{AnyClass, Sel};
use objc2::sel;
use objc2_foundation::{NSError, NSString, NSURL};

use crate::error::{Error, ErrorKind, Result};
use crate::options::Cancel;

/// How long nobody looks whether waiting was cancelled.
const SLICE: Duration = Duration::from_millis(10);

/// Something that may go to another thread, whatever its type says.
pub(super) struct Sendable<T>(pub(super) T);

// SAFETY: it is made only of models and compute plans right after Core ML has made them on a thread of its own for us;
// nobody else has them.
unsafe impl<T> Send for Sendable<T> {}

/// Whether Core ML can be used, and why not.
pub fn availability() -> Result {
    class("MLModel", "macOS 13 or iOS 16").map(|_| ())
}

/// Performs calls of Objective-C. Objects that they autorelease are released at the end, and an exception is an error.
pub(super) fn call<T>(act: impl FnOnce() -> Result<T>) -> Result<T> {
    autoreleasepool(|_| match objc2::exception::catch(AssertUnwindSafe(act)) {
        Ok(outcome) => outcome,
        Err(exception) => {
            let reason =
                exception.map_or_else(|| "nothing".to_owned(), |raised| raised.to_string());
            let message = format!("Core ML raised an exception: {reason}");
            Err(Error::new(ErrorKind::Exception, message))
        }
    })
}

/// A class that older systems do not have.
pub(super) fn class(name: &str, since: &str) -> Result<&'static AnyClass> {
    let terminated = std::ffi::CString::new(name).unwrap_or_default();
    AnyClass::get(&terminated).ok_or_else(|| needs(since))
}

/// Refuses a method of a class that this system does not have.
pub(super) fn has_method(name: &str, method: Sel, since: &str) -> Result {
    let found = class(name, since)?.instance_method(method);
    found.map(|_| ()).ok_or_else(|| needs(since))
}

/// Refuses a method of a class itself that this system does not have.
pub(super) fn has_class_method(name: &str, method: Sel, since: &str) -> Result {
    let found = class(name, since)?.class_method(method);
    found.map(|_| ()).ok_or_else(|| needs(since))
}

fn needs(since: &str) -> Error {
    Error::new(ErrorKind::Unavailable, format!("this needs {since} or later"))
        .with_hint("leave the option out, or update the system")
}

/// The error that Core ML gives.
pub(super) fn error_of(kind: ErrorKind, action: &str, error: &NSError) -> Error {
    let description = error.localizedDescription();
    let (domain, code) = (error.domain(), error.code());
    let mut message = format!("Core ML cannot {action}: {description} ({domain} {code})");
    if has_method("NSError", sel!(underlyingErrors), "").is_ok()
        && let Some(cause) = error.underlyingErrors().firstObject()
    {
        message += &format!(": {}", cause.localizedDescription());
    }
    Error::new(kind, message)
}

/// The error of an answer that holds an error, or nothing at all.
///
/// # Safety
/// `error` is null or points to an error that lives until the end of the call.
pub(super) unsafe fn error_at(kind: ErrorKind, action: &str, error: *mut NSError) -> Error {
    // SAFETY: by the contract above.
    match unsafe { error.as_ref() } {
        Some(error) => error_of(kind, action, error),
        None => Error::new(kind, format!("Core ML cannot {action} and does not say why")),
    }
}

/// A path as Core ML takes it.
pub(super) fn url_of(path: &Path) -> Result<Retained<NSURL>> {
    let absolute = std::path::absolute(path);
    let absolute = absolute.map_err(|error| Error::of_files("find", path, &error))?;
    let Some(text) = absolute.to_str() else {
        let message = format!("the path `{}` is not UTF-8", path.display());
        return Err(Error::new(ErrorKind::Io, message));
    };
    Ok(NSURL::fileURLWithPath(&NSString::from_str(text)))
}

/// A path that Core ML gives.
pub(super) fn path_of(url: &NSURL) -> Option<PathBuf> {
    url.path().map(|path| PathBuf::from(path.to_string()))
}

/// Waits for an answer that comes on another thread.
pub(super) fn wait<T>(
    answer: &Receiver<Result<T>>,
    timeout: Duration,
    cancel: Option<&Cancel>,
    action: &str,
) -> Result<T> {
    let begin = Instant::now();
    loop {
        if cancel.is_some_and(Cancel::is_cancelled) {
            let message = format!("the wait for Core ML to {action} was cancelled");
            return Err(Error::new(ErrorKind::Cancelled, message));
        }
        let left = timeout.saturating_sub(begin.elapsed());
        let slice = if cancel.is_some() { left.min(SLICE) } else { left };
        match answer.recv_timeout(slice) {
            Ok(outcome) => return outcome,
            Err(RecvTimeoutError::Timeout) if left.is_zero() => {
                let seconds = timeout.as_secs_f64();
                let message = format!("Core ML took longer than {seconds} s to {action}");
                return Err(Error::new(ErrorKind::Timeout, message)
                    .with_hint("allow more time, or restrict the compute units"));
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                let message = format!("Core ML gave up to {action} without an answer");
                return Err(Error::new(ErrorKind::Exception, message));
            }
        }
    }
}
