//! Contents of errors, and names in messages.

mod model;
mod opaque;
mod unknown;

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::printable;

pub use model::ErrorKind;
pub use unknown::{quoted_choice, quoted_list, unknown_among, unknown_name, unsupported_extension};

/// An error or a message that may have a hint.
pub trait HasHint: fmt::Display {
    /// Suggested fix.
    fn hint(&self) -> Option<&str> {
        None
    }
}

impl HasHint for &str {}
impl HasHint for String {}
impl HasHint for io::Error {}

/// Contents of an error: a message, a location, a hint and a source.
///
/// Each crate wraps it in an `Error` with a kind of its own, which [`opaque_error!`](crate::opaque_error) defines. `L` is
/// the location in the terms of that crate: an entry of an archive, an operation, an instruction.
///
/// ```
/// use coremill_io::ErrorDetail;
///
/// let detail = ErrorDetail::<()>::new("`block_size` must be at least 1, got 0").with_hint("pass 32");
/// assert_eq!(detail.to_string(), "`block_size` must be at least 1, got 0");
/// assert_eq!(detail.hint(), Some("pass 32"));
/// ```
#[derive(Clone, Debug, Default)]
pub struct ErrorDetail<L = ()> {
    /// Description of the error, without its location.
    pub message: String,
    /// Location of the error.
    pub location: L,
    /// Suggested fix.
    pub hint: Option<String>,
    /// Error that caused this one.
    pub source: Option<Arc<dyn StdError + Send + Sync>>,
}

impl<L: Default> ErrorDetail<L> {
    /// A message without location, hint or source.
    pub fn new(message: impl Into<String>) -> ErrorDetail<L> {
        let message = message.into();
        ErrorDetail { message, location: L::default(), hint: None, source: None }
    }

    /// Error for a file operation, such as `cannot read model.pte: permission denied`.
    pub fn of_io(action: &str, path: &Path, error: io::Error) -> ErrorDetail<L> {
        let message = format!("cannot {action} {}: {error}", path.display());
        ErrorDetail::new(message).with_source(error)
    }

    /// Error for a path that does not exist.
    pub fn not_found(path: &Path) -> ErrorDetail<L> {
        ErrorDetail::new(format!("{}: no such file or directory", path.display()))
    }

    /// Error for an output path whose directory does not exist.
    pub fn directory_not_found(directory: &Path) -> ErrorDetail<L> {
        ErrorDetail::new(format!("{}: no such directory", directory.display()))
    }

    /// Wraps an error of another crate, with its message and hint.
    pub fn of_source(source: impl HasHint + StdError + Send + Sync + 'static) -> ErrorDetail<L> {
        ErrorDetail::new(source.to_string()).with_hint_of(source.hint()).with_source(source)
    }
}

impl<L> ErrorDetail<L> {
    /// Sets the hint.
    pub fn with_hint(mut self, hint: impl Into<String>) -> ErrorDetail<L> {
        self.hint = Some(printable(&hint.into()).into_owned());
        self
    }

    /// Sets the hint of another error, if it has one.
    pub fn with_hint_of(mut self, hint: Option<&str>) -> ErrorDetail<L> {
        self.hint = hint.map(|hint| printable(hint).into_owned());
        self
    }

    /// Sets the source.
    pub fn with_source(mut self, source: impl StdError + Send + Sync + 'static) -> ErrorDetail<L> {
        self.source = Some(Arc::new(source));
        self
    }

    /// Prefixes the message with a path, unless the message contains it.
    pub fn within(mut self, path: &Path) -> ErrorDetail<L> {
        let path = path.display().to_string();
        if !self.message.contains(&path) {
            self.message = format!("{path}: {}", self.message);
        }
        self
    }

    /// Prefixes the message with the name of an array: `` `x`: ... ``.
    pub fn of_array(mut self, name: &str) -> ErrorDetail<L> {
        self.message = format!("`{}`: {}", name.escape_debug(), self.message);
        self
    }

    /// Suggested fix.
    pub fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    /// Error that caused this one, as [`std::error::Error::source`] returns it.
    pub fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

/// Sources are equal if their messages are.
impl<L: PartialEq> PartialEq for ErrorDetail<L> {
    fn eq(&self, other: &ErrorDetail<L>) -> bool {
        let text = |detail: &ErrorDetail<L>| detail.source.as_ref().map(ToString::to_string);
        (&self.message, &self.location, &self.hint)
            == (&other.message, &other.location, &other.hint)
            && text(self) == text(other)
    }
}

impl<L: Eq> Eq for ErrorDetail<L> {}

impl<L: fmt::Debug> StdError for ErrorDetail<L> {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        ErrorDetail::source(self)
    }
}

/// The message alone: each crate prints locations in its own way. Names from files cannot contain escape sequences.
impl<L> fmt::Display for ErrorDetail<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&printable(&self.message))
    }
}

#[test]
fn error_equality_compares_source_messages() {
    let of = |source: &str| {
        ErrorDetail::<()>::new("cannot read").with_source(io::Error::other(source.to_owned()))
    };
    assert_eq!(of("disk full"), of("disk full"));
    assert_ne!(of("disk full"), of("interrupted"));
    assert_ne!(of("disk full"), of("disk full").with_hint("free some space"));
    let source = of("disk full").source().map(ToString::to_string);
    assert_eq!(source.as_deref(), Some("disk full"));
}
