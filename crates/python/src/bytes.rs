//! Python `bytes` objects under construction.

use coremill_compiler::{Error, LoweringError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// A Python `bytes` object under construction.
pub(crate) struct PyBytesWriter {
    bytes: Py<PyBytes>,
    address: usize,
    length: usize,
}

impl PyBytesWriter {
    /// Allocates uninitialized memory: filling it with zeros would take as long as writing it.
    pub(crate) fn of(length: usize) -> Result<PyBytesWriter, Error> {
        Python::attach(|py| {
            let too_large = || {
                let reason = format!("the payload of {length} bytes does not fit into memory");
                Error::Program(LoweringError::new(reason))
            };
            let size = isize::try_from(length).map_err(|_| too_large())?;
            // SAFETY: without a source, Python returns a new object with memory for `size` bytes,
            // or an exception.
            #[expect(unsafe_code, reason = "PyO3 has no function for uninitialized bytes")]
            let (bytes, address) = unsafe {
                let object = ffi::PyBytes_FromStringAndSize(std::ptr::null(), size);
                let object = Bound::from_owned_ptr_or_err(py, object).map_err(|_| too_large())?;
                let address = ffi::PyBytes_AsString(object.as_ptr()).addr();
                (object.cast_into_unchecked::<PyBytes>().unbind(), address)
            };
            Ok(PyBytesWriter { bytes, address, length })
        })
    }

    /// Returns the object, once all of it is written.
    pub(crate) fn into_bytes(self) -> Py<PyBytes> {
        self.bytes
    }
}

impl AsMut<[u8]> for PyBytesWriter {
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: `bytes` keeps the memory alive, and no other code knows it until the
        // `PyBytesWriter` is consumed. Until then it is only written, so its initial contents do
        // not matter.
        #[expect(unsafe_code, reason = "reads memory that Python owns")]
        unsafe {
            std::slice::from_raw_parts_mut(self.address as *mut u8, self.length)
        }
    }
}
