//! Errors of conversions.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use coremill_io::{HasHint, cancel};
use coremill_mil::infer;
use coremill_mil::ir::Opset;
use coremill_pt2::Node;

/// Result of lowering a call.
pub(crate) type Result<T, E = LoweringError> = std::result::Result<T, E>;

/// Reason why a call cannot be lowered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoweringError {
    /// Description of the error: the unsupported construct and the expected one.
    pub reason: String,
    /// Suggested fix.
    pub hint: Option<String>,
    /// The oldest release that supports the call, if a newer target is the only fix needed.
    pub needs: Option<Opset>,
}

/// A call that cannot be lowered, and its location in the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnsupportedOp {
    /// Name of the call's node in the exported program.
    pub node: String,
    /// The operator, such as `aten.histc.default`.
    pub operator: String,
    /// The reason.
    pub refusal: LoweringError,
    /// Path of the module that made the call.
    pub module: Option<String>,
    /// File, line and source text of the call in the model; torch's own source if the model's is unknown.
    pub source: Option<(String, u32, Option<String>)>,
}

/// Runs the lowering or decomposition of a call. A panic becomes an error for this call, and the other calls are
/// still processed; the panic message goes to standard error.
pub(crate) fn guarded<T>(node: &Node, work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|payload| {
        if cancel::is_cancellation(&*payload) {
            resume_unwind(payload);
        }
        let reason = format!("internal error while lowering `{}`", node.target);
        Err(LoweringError::new(reason)
            .hint("this is a bug in coremill: please report it together with the model"))
    })
}

/// Reason why a program cannot be converted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// The archive is invalid.
    Archive(coremill_pt2::Error),
    /// All calls that cannot be lowered.
    Refused(Vec<UnsupportedOp>),
    /// A problem of the whole program or of the options.
    Program(LoweringError),
    /// Internal error: a pass rejects lowered code.
    Fault(String),
}

impl LoweringError {
    /// Error with a reason and no hint.
    pub fn new(reason: impl Into<String>) -> LoweringError {
        LoweringError { reason: reason.into(), hint: None, needs: None }
    }

    /// Error with an optional hint.
    pub(crate) fn of(reason: impl Into<String>, hint: Option<&str>) -> LoweringError {
        LoweringError { hint: hint.map(str::to_owned), ..LoweringError::new(reason) }
    }

    /// Adds a hint.
    pub fn hint(mut self, hint: impl Into<String>) -> LoweringError {
        self.hint = Some(hint.into());
        self
    }

    /// Error for a feature `what` that was introduced after the target release.
    pub fn needs(what: &str, needed: Opset, target: Opset) -> LoweringError {
        let refusal =
            LoweringError::new(format!("{what} needs {needed}; this program targets {target}"));
        let hint = format!("pass the option `target={}`, or leave the target out", needed.tag());
        LoweringError { needs: Some(needed), ..refusal.hint(hint) }
    }

    /// Error for an operation whose type inference failed.
    pub(crate) fn of_operation(name: &str, refusals: &[infer::InferError]) -> LoweringError {
        let reasons: Vec<_> = refusals.iter().map(|refusal| refusal.to_string()).collect();
        let refusal =
            LoweringError::new(format!("Core ML's `{name}` rejects it: {}", reasons.join("; ")));
        match refusals.iter().find_map(|refusal| refusal.hint.clone()) {
            Some(hint) => refusal.hint(hint),
            None => refusal,
        }
    }
}

impl UnsupportedOp {
    /// Error for a call, with its location.
    pub(crate) fn of(node: &Node, refusal: LoweringError) -> UnsupportedOp {
        let source = node.origin.model_source().or_else(|| node.origin.source());
        UnsupportedOp {
            node: node.name.clone(),
            operator: node.target.to_string(),
            refusal,
            module: node.origin.module_path().map(str::to_owned),
            source: source.map(|s| (s.file.to_owned(), s.line, s.code.map(str::to_owned))),
        }
    }
}

impl fmt::Display for LoweringError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl fmt::Display for UnsupportedOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` ({}): {}", self.operator, self.node, self.refusal.reason)?;
        if let Some(module) = self.module.as_deref().filter(|module| !module.is_empty()) {
            write!(f, "\n  in module `{module}`")?;
        }
        if let Some((file, line, code)) = &self.source {
            write!(f, "\n  at {file}:{line}")?;
            if let Some(code) = code {
                write!(f, ": {code}")?;
            }
        }
        if let Some(hint) = &self.refusal.hint {
            write!(f, "\n  hint: {hint}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Archive(error) => error.fmt(f),
            Error::Program(refusal) => refusal.fmt(f),
            Error::Fault(message) => write!(f, "{message}; this is a bug in coremill"),
            Error::Refused(all) => {
                match all.len() {
                    1 => f.write_str("1 call cannot be lowered")?,
                    count => write!(f, "{count} calls cannot be lowered")?,
                }
                all.iter().try_for_each(|refused| write!(f, "\n{refused}"))
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Archive(error) => Some(error),
            Error::Refused(_) | Error::Program(_) | Error::Fault(_) => None,
        }
    }
}

/// Category of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The archive cannot be read.
    Archive,
    /// Some calls have no lowering.
    Unsupported,
    /// The options do not fit the program.
    Input,
    /// Internal error of coremill.
    Internal,
}

impl From<ErrorKind> for coremill_io::ErrorKind {
    fn from(kind: ErrorKind) -> coremill_io::ErrorKind {
        match kind {
            ErrorKind::Archive => coremill_io::ErrorKind::Format,
            ErrorKind::Unsupported => coremill_io::ErrorKind::Unsupported,
            ErrorKind::Input => coremill_io::ErrorKind::Argument,
            ErrorKind::Internal => coremill_io::ErrorKind::Internal,
        }
    }
}

impl Error {
    /// Category of the error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::Archive(_) => ErrorKind::Archive,
            Error::Refused(_) => ErrorKind::Unsupported,
            Error::Program(_) => ErrorKind::Input,
            Error::Fault(_) => ErrorKind::Internal,
        }
    }

    /// Suggested fix for the whole program. Each unsupported call has a hint of its own.
    pub fn hint(&self) -> Option<&str> {
        match self {
            Error::Archive(error) => error.hint(),
            Error::Program(refusal) => refusal.hint.as_deref(),
            Error::Refused(_) | Error::Fault(_) => None,
        }
    }
}

impl HasHint for Error {
    fn hint(&self) -> Option<&str> {
        Error::hint(self)
    }
}

impl From<coremill_pt2::Error> for Error {
    fn from(error: coremill_pt2::Error) -> Error {
        Error::Archive(error)
    }
}

impl From<coremill_delegate::Error> for Error {
    fn from(error: coremill_delegate::Error) -> Error {
        match error.kind() {
            coremill_delegate::ErrorKind::Fault => Error::Fault(error.to_string()),
            _ => Error::Program(LoweringError::of(error.to_string(), error.hint())),
        }
    }
}

/// Returns a [`LoweringError`] with a formatted reason from the enclosing function.
macro_rules! refuse {
    ($($reason:tt)*) => {
        return Err($crate::error::LoweringError::new(format!($($reason)*)))
    };
}
pub(crate) use refuse;
