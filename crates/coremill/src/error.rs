use std::fmt;
use std::path::Path;

use coremill_mil::{model, package, text};

/// Why a model or arrays cannot be opened or saved.
#[derive(Clone, Debug)]
pub struct Error {
    message: String,
    hint: Option<String>,
    /// The line of a text at fault, for people.
    excerpt: Option<String>,
}

impl Error {
    pub(crate) fn new(message: impl Into<String>) -> Error {
        Error { message: message.into(), hint: None, excerpt: None }
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Error {
        self.hint = Some(hint.into());
        self
    }

    pub(crate) fn of_package(path: &Path, error: &package::Error) -> Error {
        let mut message = named(path, error.message());
        let places = [error.file().map(str::to_owned), error.location()];
        let mut places: Vec<_> = places.into_iter().flatten().collect();
        places.extend(error.offset().map(|offset| format!("byte {offset}")));
        if !places.is_empty() {
            message += &format!(" (in {})", places.join(", "));
        }
        Error { message, hint: error.hint().map(str::to_owned), excerpt: None }
    }

    pub(crate) fn of_text(path: &Path, error: &text::Error) -> Error {
        let name = path.display().to_string();
        let message = format!("{name}:{}:{}: {}", error.line, error.column, error.message);
        let excerpt = error.render(&name);
        Error { message, hint: error.hint.clone(), excerpt: Some(excerpt) }
    }

    pub(crate) fn of_description(path: &Path, error: &model::DescribeError) -> Error {
        Error::new(format!("{}: {}", path.display(), error.message)).hint(&*error.hint)
    }

    pub(crate) fn of_engine(error: &coremill_engine::Error) -> Error {
        let hint = error.remedy().map(str::to_owned);
        Error { hint, ..Error::new(error.to_string()) }
    }

    pub(crate) fn io(action: &str, path: &Path, error: &std::io::Error) -> Error {
        Error::new(format!("cannot {action} {}: {error}", path.display()))
    }

    /// The same error, in a file.
    pub(crate) fn within(mut self, path: &Path) -> Error {
        self.message = named(path, &self.message);
        self
    }

    /// The same error, in an array of that name.
    pub(crate) fn of_array(mut self, name: &str) -> Error {
        self.message = format!("`{}`: {}", name.escape_debug(), self.message);
        self
    }

    /// What to do about it.
    pub fn remedy(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    /// For text that does not parse: the message, the line with a mark under the place, and the
    /// remedy.
    pub fn rendered(&self) -> Option<&str> {
        self.excerpt.as_deref()
    }
}

/// The message with the path before it, unless it speaks of the path itself.
fn named(path: &Path, message: &str) -> String {
    let path = path.display().to_string();
    if message.contains(&path) { message.to_owned() } else { format!("{path}: {message}") }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}
