//! Settings by name.
#![expect(unsafe_code, reason = "reads a C string")]

use std::ffi::{CStr, c_char};

use coremill_io::unknown_name;
use coremill_pte::program::CompileSpec;
use coremill_runtime::Numerics;

use crate::error::{CoremillStatus, Failure, Result, guard};

/// A setting for loading. Both strings belong to the caller and are copied.
///
/// | key | value | |
/// |---|---|---|
/// | `compute_unit` | `cpu_only`, `cpu_and_gpu`, `cpu_and_ne`, `all` | devices that Core ML may use; the engine for other systems always uses the CPU |
/// | `cache_dir` | a directory | cache of models compiled by Core ML; not used by the engine |
/// | `threads` | a number | number of threads; 0, the default, selects one per processor |
/// | `numerics` | `fast`, `rounded`, `ane`, `coreml-cpu` | the engine's arithmetic: floats in 32 bits, results rounded to their types, as the Neural Engine, or as Core ML on the CPU; `precision` is an older name, and `faithful` one of `rounded` |
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CoremillOption {
    /// The name.
    pub key: *const c_char,
    /// The value.
    pub value: *const c_char,
}

/// Options for loading.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Options {
    pub(crate) threads: usize,
    pub(crate) numerics: Numerics,
    pub(crate) compute_unit: Option<String>,
    pub(crate) cache_dir: Option<String>,
}

const COMPUTE_UNITS: [&str; 4] = ["cpu_only", "cpu_and_gpu", "cpu_and_ne", "all"];

/// Maximum number of threads, above any machine's processors.
const MAX_THREADS: usize = 4096;

/// Borrows a C string.
///
/// # Safety
/// The pointer is null or points to a NUL-terminated string that is valid for `'a`.
pub(crate) unsafe fn text<'a>(pointer: *const c_char, what: &str) -> Result<&'a str> {
    if pointer.is_null() {
        return Err(Failure::argument(format!("`{what}` is null")));
    }
    // SAFETY: the pointer is not null; the rest is guaranteed by the caller.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map_err(|_| Failure::argument(format!("`{what}` is not UTF-8")))
}

/// Borrows a C array.
///
/// # Safety
/// The pointer is null, or points to `count` elements that are valid and unmodified for `'a`.
pub(crate) unsafe fn array<'a, T>(pointer: *const T, count: usize, what: &str) -> Result<&'a [T]> {
    let fits =
        count.checked_mul(size_of::<T>()).is_some_and(|bytes| isize::try_from(bytes).is_ok());
    match (pointer.is_null(), count) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(Failure::argument(format!("`{what}` is null, but its count is {count}"))),
        (false, _) if !fits || !pointer.is_aligned() => {
            Err(Failure::argument(format!("`{what}` is not an array of {count} elements")))
        }
        // SAFETY: not null, aligned, and of a valid length; the rest is guaranteed by the caller.
        (false, _) => Ok(unsafe { std::slice::from_raw_parts(pointer, count) }),
    }
}

impl Options {
    /// # Safety
    /// The pointer points to `count` options, whose strings are NUL-terminated.
    pub(crate) unsafe fn read(options: *const CoremillOption, count: usize) -> Result<Options> {
        let mut read = Options::default();
        // SAFETY: guaranteed by the caller.
        for option in unsafe { array(options, count, "options") }? {
            // SAFETY: guaranteed by the caller.
            let (key, value) = unsafe { (text(option.key, "key")?, text(option.value, "value")?) };
            read.set(key, value)?;
        }
        Ok(read)
    }

    fn set(&mut self, key: &str, value: &str) -> Result {
        let refused = |accepted: &str| {
            Failure::argument(format!("option `{key}` must be {accepted}, got `{value}`"))
        };
        match key {
            "compute_unit" if COMPUTE_UNITS.contains(&value) => {
                self.compute_unit = Some(value.to_owned());
            }
            "compute_unit" => {
                return Err(refused("`cpu_only`, `cpu_and_gpu`, `cpu_and_ne` or `all`"));
            }
            "cache_dir" if value.is_empty() => return Err(refused("a directory")),
            "cache_dir" => self.cache_dir = Some(value.to_owned()),
            "threads" => {
                let threads = value.parse().ok().filter(|threads| *threads <= MAX_THREADS);
                self.threads =
                    threads.ok_or_else(|| refused(&format!("from 0 to {MAX_THREADS}")))?;
            }
            "numerics" | "precision" => {
                let refused = |_| refused("`fast`, `rounded`, `ane` or `coreml-cpu`");
                self.numerics = value.parse().map_err(refused)?;
            }
            _ => {
                let known = ["compute_unit", "cache_dir", "threads", "numerics"];
                return Err(Failure::argument(unknown_name("option", key, known)));
            }
        }
        Ok(())
    }

    /// The settings as compile specs for backends. They take precedence over the program's.
    pub(crate) fn specs(&self) -> Vec<CompileSpec> {
        let named = [("compute_units", &self.compute_unit), ("cache_dir", &self.cache_dir)];
        let spec = |(key, value): (&str, &Option<String>)| {
            let value = value.as_ref()?.clone().into_bytes();
            Some(CompileSpec { key: key.to_owned(), value })
        };
        named.into_iter().filter_map(spec).collect()
    }
}

/// Checks options without loading anything.
///
/// # Safety
/// `options` points to `option_count` options with NUL-terminated strings, or is null if there are none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coremill_options_check(
    options: *const CoremillOption,
    option_count: usize,
) -> CoremillStatus {
    guard(|| {
        // SAFETY: guaranteed by the caller.
        unsafe { Options::read(options, option_count) }.map(|_| ())
    })
}
