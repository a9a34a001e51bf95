//! Status codes, messages, and the guard around each entry.
#![expect(unsafe_code, reason = "entries of a C interface")]

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

/// How a call went.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoremillStatus {
    /// It did what it was asked to.
    Ok = 0,
    /// An argument is null, out of range, or of the wrong form.
    InvalidArgument = 1,
    /// A handle was never given out, or has been freed.
    InvalidHandle = 2,
    /// What was to be loaded cannot be read or run.
    InvalidModel = 3,
    /// There is no method, port, state or data of that name or index.
    NotFound = 4,
    /// The run failed.
    ExecutionFailed = 5,
    /// A defect of this library: it stopped before it could do harm.
    Internal = 6,
}

/// Failure of a call.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) status: CoremillStatus,
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
}

/// An error that may have a hint.
pub(crate) trait HasHint: std::fmt::Display {
    fn hint(&self) -> Option<&str> {
        None
    }
}

impl HasHint for &str {}
impl HasHint for String {}
impl HasHint for std::io::Error {}

impl HasHint for Failure {
    fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}

impl HasHint for coremill_pte::Error {
    fn hint(&self) -> Option<&str> {
        coremill_pte::Error::hint(self)
    }
}

impl HasHint for coremill_runtime::Error {
    fn hint(&self) -> Option<&str> {
        coremill_runtime::Error::hint(self)
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

    /// An error of the file or directory at a path.
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
    /// The message and the hint of the last failure.
    static LAST: RefCell<(CString, Option<CString>)> = RefCell::default();
}

/// Text for C, which ends at the first zero.
pub(crate) fn c_text(text: &str) -> CString {
    let end = text.find('\0').unwrap_or(text.len());
    CString::new(&text[..end]).unwrap_or_default()
}

/// Runs what an entry does. Failures and panics become a status and a message; nothing unwinds into C.
pub(crate) fn guard(body: impl FnOnce() -> Result) -> CoremillStatus {
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return CoremillStatus::Ok,
        Ok(Err(failure)) => failure,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text =
                text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no reason");
            let message = format!("a defect of coremill: {text}");
            let hint = Some("report this, with the model".to_owned());
            Failure { status: CoremillStatus::Internal, message, hint }
        }
    };
    // The memory of a thread that ends may be gone.
    let told = (c_text(&failure.message), failure.hint.as_deref().map(c_text));
    let _ = LAST.try_with(|last| last.replace(told));
    failure.status
}

/// What went wrong in the last call of this thread that failed, in UTF-8.
///
/// The text belongs to the library, and stays until the next call of this thread fails.
#[unsafe(no_mangle)]
pub extern "C" fn coremill_error_message() -> *const c_char {
    LAST.try_with(|last| last.borrow().0.as_ptr()).unwrap_or(c"".as_ptr())
}

/// Suggested fix for the last call of this thread that failed, in UTF-8; null if there is none.
///
/// The text belongs to the library, and stays until the next call of this thread fails.
#[unsafe(no_mangle)]
pub extern "C" fn coremill_error_hint() -> *const c_char {
    let hint = |last: &RefCell<(CString, Option<CString>)>| {
        last.borrow().1.as_ref().map_or(std::ptr::null(), |hint| hint.as_ptr())
    };
    LAST.try_with(hint).unwrap_or(std::ptr::null())
}

/// The version of the library, as `1.2.3`. The text is static.
#[unsafe(no_mangle)]
pub extern "C" fn coremill_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}
