//! Conversion of errors to exceptions of `coremill`.
//!
//! The classes are defined in Python (`coremill/_errors.py`), with documentation, types and
//! attributes.

use std::error::Error as _;

use coremill::ErrorKind;
use coremill::convert::{self, Part};
use coremill::wording;
use coremill_compiler::{self as compiler, LoweringError, UnsupportedOp};
use coremill_io::escape_truncated;
use coremill_pt2 as pt2;
use coremill_pte as pte;
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

/// Maximum length of a source line.
const MAX_CODE: usize = 111;

/// Failure of work that runs without Python's lock.
pub(crate) enum Failure {
    /// A program cannot be converted.
    Compiler(compiler::Error),
    /// A file, an option or a run is invalid.
    Library(coremill::Error),
    /// An ExecuTorch program is invalid.
    Program(pte::Error),
    /// Core ML would reject the model.
    Invalid(String),
    /// The numbers differ from the reference.
    Numbers {
        /// Names the output and its error.
        message: String,
        hint: &'static str,
    },
    /// A model cannot be run.
    Run {
        /// Message of the error, without the hint.
        message: String,
        hint: Option<String>,
    },
    /// A panic in coremill.
    Panic(String),
    /// The user pressed Ctrl-C.
    Interrupted,
}

impl From<compiler::Error> for Failure {
    fn from(error: compiler::Error) -> Failure {
        Failure::Compiler(error)
    }
}

impl From<coremill::Error> for Failure {
    fn from(error: coremill::Error) -> Failure {
        Failure::Library(error)
    }
}

impl From<coremill::inspect::Error> for Failure {
    fn from(error: coremill::inspect::Error) -> Failure {
        Failure::Library(error.into())
    }
}

impl From<coremill::optimize::Error> for Failure {
    fn from(error: coremill::optimize::Error) -> Failure {
        Failure::Library(error.into())
    }
}

impl From<coremill::edit::Error> for Failure {
    fn from(error: coremill::edit::Error) -> Failure {
        Failure::Library(error.into())
    }
}

impl From<coremill_session::Error> for Failure {
    fn from(error: coremill_session::Error) -> Failure {
        Failure::Library(error.into())
    }
}

impl From<coremill::llm::Error> for Failure {
    fn from(error: coremill::llm::Error) -> Failure {
        Failure::Library(error.into())
    }
}

impl From<pte::Error> for Failure {
    fn from(error: pte::Error) -> Failure {
        Failure::Program(error)
    }
}

impl Failure {
    pub(crate) fn into_error(self, py: Python<'_>) -> PyErr {
        match self {
            Failure::Compiler(error) => of_compiler(py, &error),
            Failure::Library(error) => of_library(py, &error),
            Failure::Program(error) => {
                let hint = error.hint().map(str::to_owned);
                make(py, "FormatError", error.to_string(), hint)
            }
            Failure::Invalid(report) => make(py, "InvalidModelError", report, None),
            Failure::Numbers { message, hint } => {
                make(py, "VerificationError", message, Some(hint.to_owned()))
            }
            Failure::Run { message, hint } => make(py, "RunError", message, hint),
            Failure::Panic(message) => internal(py, &message),
            Failure::Interrupted => PyKeyboardInterrupt::new_err(()),
        }
    }
}

/// Creates an exception of a class in `_errors.py`.
fn make(py: Python<'_>, class: &str, message: String, hint: Option<String>) -> PyErr {
    make_with(py, class, message, hint, |_| Ok(()))
}

fn make_with(
    py: Python<'_>,
    class: &str,
    message: String,
    hint: Option<String>,
    fill: impl FnOnce(&Bound<'_, PyDict>) -> PyResult<()>,
) -> PyErr {
    let message = in_python(&message);
    let hint = hint.map(|hint| in_python(&wording::with_steps(&hint, &STEPS)));
    let made = || -> PyResult<PyErr> {
        let class = py.import("coremill._errors")?.getattr(class)?;
        let keywords = PyDict::new(py);
        keywords.set_item("hint", hint)?;
        fill(&keywords)?;
        Ok(PyErr::from_value(class.call((message,), Some(&keywords))?))
    };
    made().unwrap_or_else(|error| error)
}

/// Steps that hints of libraries suggest, with the functions that perform them.
const STEPS: [(&str, &str); 4] = [
    (
        "convert the language model first",
        "`llm.convert` converts the language model; `llm.load` runs the file itself",
    ),
    (
        "if it is a language model, generate text with it",
        "`llm.load` loads models that generate text",
    ),
    ("compute the embeddings of texts with it", "`llm.load_embedder` loads embedding models"),
    ("transcribe audio with it", "`llm.load_speech` loads speech models"),
];

/// Rewrites options in a message as Python arguments: `target="ios18"`.
fn in_python(text: &str) -> String {
    wording::with_options(text, |name, value| match value {
        Some(value) if value.parse::<f64>().is_err() => format!("{name}=\"{value}\""),
        Some(value) => format!("{name}={value}"),
        None => name.to_owned(),
    })
}

/// The user's input is invalid.
pub(crate) fn new(py: Python<'_>, message: String, hint: Option<String>) -> PyErr {
    make(py, "Error", message, hint)
}

/// An option or an argument is invalid.
pub(crate) fn option(py: Python<'_>, message: impl Into<String>, hint: Option<String>) -> PyErr {
    make(py, "OptionError", message.into(), hint)
}

/// An in-memory program uses an unsupported feature.
pub(crate) fn unsupported(py: Python<'_>, message: String) -> PyErr {
    make(py, "FormatError", message, None)
}

/// A bug in coremill.
pub(crate) fn internal(py: Python<'_>, message: &str) -> PyErr {
    let hint = "this is a bug in coremill; please report it".to_owned();
    make(py, "InternalError", message.to_owned(), Some(hint))
}

/// Adds the name of a node or tensor to an error.
pub(crate) fn in_node(py: Python<'_>, error: PyErr, name: &str) -> PyErr {
    if error.is_instance_of::<PyKeyboardInterrupt>(py) {
        return error;
    }
    let value = error.value(py);
    if let Ok(Some(known)) = value.getattr_opt("node")
        && !known.is_none()
    {
        return error;
    }
    let text = value.getattr_opt("message").ok().flatten();
    let text = text.map_or_else(|| error.to_string(), |text| text.to_string());
    let hint = value.getattr_opt("hint").ok().flatten();
    let hint = hint.and_then(|hint| hint.extract::<Option<String>>().ok()).flatten();
    let told = make_with(py, "FormatError", format!("`{name}`: {text}"), hint, |keywords| {
        keywords.set_item("node", name)
    });
    told.set_cause(py, Some(error));
    told
}

/// An invalid program, from an archive or from memory.
pub(crate) fn of_archive(py: Python<'_>, error: &pt2::Error) -> PyErr {
    make_with(
        py,
        "FormatError",
        error.located_message(),
        error.hint().map(str::to_owned),
        |keywords| keywords.set_item("node", error.node()),
    )
}

pub(crate) fn of_library(py: Python<'_>, error: &coremill::Error) -> PyErr {
    // Compiler errors contain the call, the operator and the source line.
    let mut sources = std::iter::successors(error.source(), |&error| error.source());
    if let Some(cause) = sources.find_map(|source| source.downcast_ref::<compiler::Error>()) {
        return of_compiler(py, cause);
    }
    let class = match error.kind() {
        ErrorKind::Format => "FormatError",
        ErrorKind::Unsupported => "ConversionError",
        ErrorKind::Invalid => "InvalidModelError",
        ErrorKind::Run | ErrorKind::Input | ErrorKind::Device => "RunError",
        ErrorKind::Internal => "InternalError",
        _ => "Error",
    };
    let message = error.rendered().map_or_else(|| error.to_string(), str::to_owned);
    // The rendered text contains the hint.
    let hint = if error.rendered().is_some() { None } else { error.hint().map(str::to_owned) };
    make(py, class, message, hint)
}

pub(crate) fn of_refusal(py: Python<'_>, refusal: &LoweringError) -> PyErr {
    make_with(py, "ConversionError", refusal.reason.clone(), refusal.hint.clone(), |keywords| {
        keywords.set_item("reason", &refusal.reason)
    })
}

fn of_compiler(py: Python<'_>, error: &compiler::Error) -> PyErr {
    match error {
        compiler::Error::Archive(error) => of_archive(py, error),
        compiler::Error::Program(refusal) => of_refusal(py, refusal),
        compiler::Error::Fault(message) => internal(py, message),
        compiler::Error::Refused(all) => {
            let first = all.first();
            let hint = first.and_then(|call| call.refusal.hint.clone());
            let told = convert::render_refused(None, all, &plain);
            make_with(py, "ConversionError", told.trim_end().to_owned(), None, |keywords| {
                let refused = PyList::empty(py);
                for call in all {
                    refused.append(refused_call(py, call)?)?;
                }
                keywords.set_item("refused", refused)?;
                if let Some(call) = first {
                    fill_call(keywords, call)?;
                }
                keywords.set_item("first_hint", hint)
            })
        }
    }
}

/// Returns text unchanged, with source lines truncated as in a command's output without a terminal.
fn plain(part: Part, text: &str) -> String {
    match part {
        Part::Code => escape_truncated(text, MAX_CODE).to_string(),
        _ => text.to_owned(),
    }
}

fn fill_call(keywords: &Bound<'_, PyDict>, call: &UnsupportedOp) -> PyResult<()> {
    keywords.set_item("operator", &call.operator)?;
    keywords.set_item("reason", &call.refusal.reason)?;
    keywords.set_item("module", &call.module)?;
    keywords.set_item("node", &call.node)?;
    keywords.set_item("source", call.source.clone())
}

/// Converts an unsupported call to `coremill.RefusedCall`.
pub(crate) fn refused_call<'py>(
    py: Python<'py>,
    call: &UnsupportedOp,
) -> PyResult<Bound<'py, PyAny>> {
    let keywords = PyDict::new(py);
    fill_call(&keywords, call)?;
    keywords.set_item("hint", &call.refusal.hint)?;
    py.import("coremill._errors")?.getattr("RefusedCall")?.call((), Some(&keywords))
}
