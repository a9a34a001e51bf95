//! Sources of the ExecuTorch backend, for builds against the user's runtime.

#![expect(unsafe_code, reason = "functions with a C interface")]

use std::ffi::c_char;

/// The C++ source of the ExecuTorch backend, to be compiled against an installed runtime. The text is static.
#[unsafe(no_mangle)]
pub extern "C" fn coremill_delegate_source() -> *const c_char {
    const TEXT: &str = concat!(include_str!("../delegate/coremill_delegate.cpp"), "\0");
    TEXT.as_ptr().cast()
}

/// This header, which the source of the backend includes. The text is static.
#[unsafe(no_mangle)]
pub extern "C" fn coremill_delegate_header() -> *const c_char {
    const TEXT: &str = concat!(include_str!("../include/coremill.h"), "\0");
    TEXT.as_ptr().cast()
}
