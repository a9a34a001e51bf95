//! Why a program, or a part of it, cannot be taken to Core ML.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use coremill_io::cancel;
use coremill_mil::infer;
use coremill_mil::ir::Opset;
use coremill_pt2::Node;

/// What is made of a call, or why it cannot be.
pub(crate) type Result<T, E = LoweringError> = std::result::Result<T, E>;

/// Why one call cannot be lowered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoweringError {
    /// What is wrong: what was found, what is accepted.
    pub reason: String,
    /// What to do.
    pub hint: Option<String>,
    /// The oldest release whose operations would do, if that is all that is wrong.
    pub needs: Option<Opset>,
}

/// A call that cannot be lowered, and where it comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnsupportedOp {
    /// torch's name of the call.
    pub node: String,
    /// The operator, `aten.histc.default` for instance.
    pub operator: String,
    /// Why.
    pub refusal: LoweringError,
    /// The path of the module that made the call.
    pub module: Option<String>,
    /// The file, the line and the code of the model that made the call; torch's own where there is no other.
    pub source: Option<(String, u32, Option<String>)>,
}

/// Runs what lowers or decomposes a call of an operator. A panic there is a fault of ours, which refuses the call and
/// lets all others go on; its message stands on standard error.
pub(crate) fn guarded<T>(node: &Node, work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|payload| {
        if cancel::is_cancellation(&*payload) {
            resume_unwind(payload);
        }
        let reason = format!("lowering `{}` ended in an internal error", node.target);
        Err(LoweringError::new(reason)
            .hint("report it, with the model: this is a fault of coremill"))
    })
}

/// Why a program cannot be converted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// The archive is at fault.
    Archive(coremill_pt2::Error),
    /// Calls that cannot be lowered; all of them.
    Refused(Vec<UnsupportedOp>),
    /// Something about the program as a whole, or about the options.
    Program(LoweringError),
    /// coremill is at fault: a pass refuses what lowering made.
    Fault(String),
}

impl LoweringError {
    /// A refusal for a reason.
    pub fn new(reason: impl Into<String>) -> LoweringError {
        LoweringError { reason: reason.into(), hint: None, needs: None }
    }

    /// A refusal with the hint of an error, which may have none.
    pub(crate) fn of(reason: impl Into<String>, hint: Option<&str>) -> LoweringError {
        LoweringError { hint: hint.map(str::to_owned), ..LoweringError::new(reason) }
    }

    /// The same, with a hint.
    pub fn hint(mut self, hint: impl Into<String>) -> LoweringError {
        self.hint = Some(hint.into());
        self
    }

    /// A refusal because `what` came with a later release than the target.
    pub fn needs(what: &str, needed: Opset, target: Opset) -> LoweringError {
        let refusal =
            LoweringError::new(format!("{what} needs {needed}; this program targets {target}"));
        let hint = format!("pass the option `target={}`, or leave the target out", needed.tag());
        LoweringError { needs: Some(needed), ..refusal.hint(hint) }
    }

    /// What inference has against an operation.
    pub(crate) fn of_operation(name: &str, refusals: &[infer::InferError]) -> LoweringError {
        let reasons: Vec<_> = refusals.iter().map(|refusal| refusal.to_string()).collect();
        let refusal =
            LoweringError::new(format!("Core ML's `{name}` refuses it: {}", reasons.join("; ")));
        match refusals.iter().find_map(|refusal| refusal.hint.clone()) {
            Some(hint) => refusal.hint(hint),
            None => refusal,
        }
    }
}

impl UnsupportedOp {
    /// A refusal of a call.
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
            Error::Fault(message) => write!(f, "{message}; this is a fault of coremill"),
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
    /// Calls have no lowering.
    Unsupported,
    /// The options do not fit the program.
    Input,
    /// coremill is at fault.
    Internal,
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

    /// Suggested fix, if there is one for the whole program; calls that cannot be lowered have their own.
    pub fn hint(&self) -> Option<&str> {
        match self {
            Error::Archive(error) => error.hint(),
            Error::Program(refusal) => refusal.hint.as_deref(),
            Error::Refused(_) | Error::Fault(_) => None,
        }
    }
}

impl From<coremill_pt2::Error> for Error {
    fn from(error: coremill_pt2::Error) -> Error {
        Error::Archive(error)
    }
}

/// Ends a lowering with a [`LoweringError`] whose reason is formatted.
macro_rules! refuse {
    ($($reason:tt)*) => {
        return Err($crate::error::LoweringError::new(format!($($reason)*)))
    };
}
pub(crate) use refuse;
