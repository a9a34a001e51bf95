//! Arguments of methods. A wrong type raises `OptionError`, as for the options of functions.

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyString};

use crate::error;

/// A string.
pub(crate) struct Text(pub(crate) String);

/// A non-negative integer.
pub(crate) struct Count(pub(crate) usize);

/// A bool.
pub(crate) struct Flag(pub(crate) bool);

impl<'a, 'py> FromPyObject<'a, 'py> for Text {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Text> {
        let text = object.cast::<PyString>().ok().and_then(|text| text.extract().ok());
        text.map(Text).ok_or_else(|| wrong(&object, "a str"))
    }
}

impl<'a, 'py> FromPyObject<'a, 'py> for Count {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Count> {
        object.extract().map(Count).map_err(|_| wrong(&object, "a non-negative integer"))
    }
}

impl<'a, 'py> FromPyObject<'a, 'py> for Flag {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Flag> {
        let flag = object.cast::<PyBool>().map(|flag| Flag(flag.is_true()));
        flag.map_err(|_| wrong(&object, "True or False"))
    }
}

fn wrong(value: &Bound<'_, PyAny>, what: &str) -> PyErr {
    let shown = value.repr().map_or_else(|_| "an object".to_owned(), |text| text.to_string());
    let shown: String = shown.chars().take(80).collect();
    error::option(value.py(), format!("found {shown}; expected {what}"), None)
}
