//! Status codes, messages, and the guard around each entry.
#![expect(unsafe_code, reason = "entries of a C interface")]

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

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

/// Why a call does not do what it was asked to.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) status: CoremillStatus,
    pub(crate) message: String,
}

pub(crate) type Result<T = ()> = std::result::Result<T, Failure>;

impl Failure {
    pub(crate) fn argument(message: impl Into<String>) -> Failure {
        Failure { status: CoremillStatus::InvalidArgument, message: message.into() }
    }

    pub(crate) fn model(message: impl std::fmt::Display) -> Failure {
        Failure { status: CoremillStatus::InvalidModel, message: message.to_string() }
    }

    pub(crate) fn missing(message: impl Into<String>) -> Failure {
        Failure { status: CoremillStatus::NotFound, message: message.into() }
    }

    pub(crate) fn execution(error: impl std::fmt::Display) -> Failure {
        Failure { status: CoremillStatus::ExecutionFailed, message: error.to_string() }
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
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
            Failure { status: CoremillStatus::Internal, message }
        }
    };
    // The memory of a thread that ends may be gone.
    let _ = LAST.try_with(|last| last.replace(c_text(&failure.message)));
    failure.status
}

/// What went wrong in the last call of this thread that failed, in UTF-8.
///
/// The text belongs to the library, and stays until the next call of this thread fails.
#[unsafe(no_mangle)]
pub extern "C" fn coremill_error_message() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// The version of the library, as `1.2.3`. The text is static.
#[unsafe(no_mangle)]
pub extern "C" fn coremill_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}
