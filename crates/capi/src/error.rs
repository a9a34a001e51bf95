//! Status codes, error messages, and the guard around each entry point.
#![expect(unsafe_code, reason = "functions with a C interface")]

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use coremill_io::HasHint;

/// Result of a call.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoremillStatus {
    /// Success.
    Ok = 0,
    /// An argument is null, out of range, or malformed.
    InvalidArgument = 1,
    /// A handle is invalid or was freed.
    InvalidHandle = 2,
    /// The model or program cannot be read or run.
    InvalidModel = 3,
    /// No method, port, state or data has this name or index.
    NotFound = 4,
    /// The run failed.
    ExecutionFailed = 5,
    /// Internal error: a defect of this library.
    Internal = 6,
    /// Core ML is missing or too old.
    Unavailable = 7,
    /// The preparation was cancelled.
    Cancelled = 8,
    /// The preparation is not ready yet.
    Timeout = 9,
}

/// Failure of a call.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) status: CoremillStatus,
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
}

impl HasHint for Failure {
    fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}

pub(crate) type Result<T = ()> = std::result::Result<T, Failure>;

impl Failure {
    fn of(status: CoremillStatus, error: &dyn HasHint) -> Failure {
        Failure { status, message: error.to_string(), hint: error.hint().map(str::to_owned) }
    }

    pub(crate) fn argument(error: impl HasHint) -> Failure {
        Failure::of(CoremillStatus::InvalidArgument, &error)
    }

    pub(crate) fn model(error: impl HasHint) -> Failure {
        Failure::of(CoremillStatus::InvalidModel, &error)
    }

    /// Error for a file or directory.
    pub(crate) fn file(path: &Path, error: &dyn HasHint) -> Failure {
        let failure = Failure::of(CoremillStatus::InvalidModel, error);
        Failure { message: format!("{}: {}", path.display(), failure.message), ..failure }
    }

    pub(crate) fn missing(error: impl HasHint) -> Failure {
        Failure::of(CoremillStatus::NotFound, &error)
    }

    pub(crate) fn execution(error: impl HasHint) -> Failure {
        Failure::of(CoremillStatus::ExecutionFailed, &error)
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

thread_local! {
    /// Message and hint of the last failure.
    static LAST: RefCell<(CString, Option<CString>)> = RefCell::default();
}

/// Converts text to a C string, truncated at the first NUL.
pub(crate) fn c_text(text: &str) -> CString {
    let end = text.find('\0').unwrap_or(text.len());
    CString::new(&text[..end]).unwrap_or_default()
}

/// Runs the body of an entry point. Errors and panics become a status and a message; nothing unwinds into C.
pub(crate) fn guard(body: impl FnOnce() -> Result) -> CoremillStatus {
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return CoremillStatus::Ok,
        Ok(Err(failure)) => failure,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text =
                text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("unknown panic");
            let message = format!("internal error of coremill: {text}");
            let hint = Some("report this with the model".to_owned());
            Failure { status: CoremillStatus::Internal, message, hint }
        }
    };
    // Thread-local memory may already be destroyed when a thread ends.
    let told = (c_text(&failure.message), failure.hint.as_deref().map(c_text));
    let _ = LAST.try_with(|last| last.replace(told));
    failure.status
}

/// Message of this thread's last failed call, in UTF-8.
///
/// The text belongs to the library and is valid until the next failed call of this thread.
#[unsafe(no_mangle)]
pub extern "C" fn coremill_error_message() -> *const c_char {
    LAST.try_with(|last| last.borrow().0.as_ptr()).unwrap_or(c"".as_ptr())
}

/// Suggested fix for this thread's last failed call, in UTF-8; null if there is none.
///
/// The text belongs to the library and is valid until the next failed call of this thread.
#[unsafe(no_mangle)]
pub extern "C" fn coremill_error_hint() -> *const c_char {
    let hint = |last: &RefCell<(CString, Option<CString>)>| {
        last.borrow().1.as_ref().map_or(std::ptr::null(), |hint| hint.as_ptr())
    };
    LAST.try_with(hint).unwrap_or(std::ptr::null())
}

/// Version of the library, such as `1.2.3`. The text is static.
#[unsafe(no_mangle)]
pub extern "C" fn coremill_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}
