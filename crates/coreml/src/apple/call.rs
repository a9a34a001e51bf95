//! Calls of Core ML: in an autorelease pool, with exceptions caught and asynchronous answers awaited.

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

/// Polling interval for cancellation.
const SLICE: Duration = Duration::from_millis(10);

/// Marks a value as sendable to another thread.
pub(super) struct Sendable<T>(pub(super) T);

// SAFETY: only created for models and compute plans that Core ML has just created on its own thread. There are no
// other references to them.
unsafe impl<T> Send for Sendable<T> {}

/// Whether Core ML is available. The error contains the reason.
pub fn availability() -> Result {
    class("MLModel", "macOS 13 or iOS 16").map(|_| ())
}

/// Runs Objective-C calls in an autorelease pool, and converts exceptions to errors.
pub(super) fn call<T>(act: impl FnOnce() -> Result<T>) -> Result<T> {
    autoreleasepool(|_| match objc2::exception::catch(AssertUnwindSafe(act)) {
        Ok(outcome) => outcome,
        Err(exception) => {
            let reason =
                exception.map_or_else(|| "unknown reason".to_owned(), |raised| raised.to_string());
            let message = format!("Core ML raised an exception: {reason}");
            Err(Error::new(ErrorKind::Exception, message))
        }
    })
}

/// A class that older systems lack.
pub(super) fn class(name: &str, since: &str) -> Result<&'static AnyClass> {
    let terminated = std::ffi::CString::new(name).unwrap_or_default();
    AnyClass::get(&terminated).ok_or_else(|| needs(since))
}

/// Checks that the system has an instance method.
pub(super) fn has_method(name: &str, method: Sel, since: &str) -> Result {
    let found = class(name, since)?.instance_method(method);
    found.map(|_| ()).ok_or_else(|| needs(since))
}

/// Checks that the system has a class method.
pub(super) fn has_class_method(name: &str, method: Sel, since: &str) -> Result {
    let found = class(name, since)?.class_method(method);
    found.map(|_| ()).ok_or_else(|| needs(since))
}

fn needs(since: &str) -> Error {
    Error::new(ErrorKind::Unavailable, format!("this needs {since} or later"))
        .with_hint("omit the option, or update the system")
}

/// Converts an error of Core ML.
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

/// Converts an error that may be null.
///
/// # Safety
/// `error` is null or points to an error that lives until the end of the call.
pub(super) unsafe fn error_at(kind: ErrorKind, action: &str, error: *mut NSError) -> Error {
    // SAFETY: by the contract above.
    match unsafe { error.as_ref() } {
        Some(error) => error_of(kind, action, error),
        None => Error::new(kind, format!("Core ML cannot {action}, and reports no reason")),
    }
}

/// A path as a URL.
pub(super) fn url_of(path: &Path) -> Result<Retained<NSURL>> {
    let absolute = std::path::absolute(path);
    let absolute = absolute.map_err(|error| Error::of_files("resolve", path, &error))?;
    let Some(text) = absolute.to_str() else {
        let message = format!("the path `{}` is not valid UTF-8", path.display());
        return Err(Error::new(ErrorKind::Io, message));
    };
    Ok(NSURL::fileURLWithPath(&NSString::from_str(text)))
}

/// The path of a URL.
pub(super) fn path_of(url: &NSURL) -> Option<PathBuf> {
    url.path().map(|path| PathBuf::from(path.to_string()))
}

/// Waits for the answer of another thread.
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
                let message = format!("Core ML abandoned the request to {action} without a result");
                return Err(Error::new(ErrorKind::Exception, message));
            }
        }
    }
}
