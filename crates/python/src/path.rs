//! Paths, as strings or path-like objects.

use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::error;

/// A path argument. Extracting a `PathBuf` directly panics on strings with lone surrogates.
pub(crate) struct PathArgument(pub(crate) PathBuf);

impl<'a, 'py> FromPyObject<'a, 'py> for PathArgument {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<PathArgument> {
        let py = object.py();
        let os = py.import("os")?;
        let path = os.call_method1("fspath", (&*object,)).map_err(|cause| {
            let class =
                object.get_type().name().map_or_else(|_| String::new(), |name| name.to_string());
            let told = error::option(py, format!("found a {class}; expected a path"), None);
            told.set_cause(py, Some(cause));
            told
        })?;
        let found = os.call_method1("fsdecode", (&path,)).and_then(|text| {
            os.call_method1("fsencode", (&text,))?;
            text.extract()
        });
        found.map(PathArgument).map_err(|cause| {
            let shown = path.repr().map_or_else(|_| String::new(), |text| text.to_string());
            error::option(py, format!("{shown} is not a path: {cause}"), None)
        })
    }
}

/// The path, `None` if the value is not a path.
pub(crate) fn path_of(value: &Bound<'_, PyAny>) -> PyResult<Option<PathBuf>> {
    if !value.is_instance_of::<PyString>() && !value.hasattr("__fspath__")? {
        return Ok(None);
    }
    Ok(Some(value.extract::<PathArgument>()?.0))
}
