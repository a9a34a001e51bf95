//! The error of crates that work on models and their files.

/// Category of an error of the crates that open, convert, edit, compare and run models.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An invalid argument: a name, an option, a text that is too long, a file of another kind.
    #[default]
    Argument,
    /// A file cannot be read or written.
    File,
    /// A file is damaged or violates its format.
    Format,
    /// Calls of a PyTorch program, a model family, a tokenizer or a setting that is not supported.
    Unsupported,
    /// Core ML would reject the model.
    Invalid,
    /// A graph described in Rust, or one of its parameters, is invalid.
    Graph,
    /// An input or a state of a run is invalid: a name, a shape, elements.
    Input,
    /// The machine lacks the device.
    Device,
    /// The engine, Core ML or a kernel failed.
    Run,
    /// A bug in coremill.
    Internal,
}

/// Adds constructors to an [`opaque_error!`](crate::opaque_error) of [`ErrorKind`], and conversions from errors of other
/// crates whose kinds are or become an [`ErrorKind`].
///
/// ```
/// use coremill_io::ErrorKind;
///
/// coremill_io::opaque_error! {
///     /// Error of a comparison.
///     pub struct Error(pub(crate) ErrorKind);
/// }
/// coremill_io::model_error!(pub(crate) Error);
///
/// let error = Error::missing("model.mlpackage".as_ref());
/// assert_eq!(error.kind(), ErrorKind::File);
/// assert_eq!(error.to_string(), "model.mlpackage: no such file or directory");
/// ```
#[macro_export]
macro_rules! model_error {
    ($visibility:vis $Error:ident $(from $($(#[$attribute:meta])* $Source:ty),+)?) => {
        impl $Error {
            /// An error of the kind `Argument`.
            $visibility fn new(message: impl Into<String>) -> $Error {
                $Error::of_kind($crate::ErrorKind::Argument, message)
            }

            /// An error of a kind.
            $visibility fn of_kind(kind: $crate::ErrorKind, message: impl Into<String>) -> $Error {
                $Error::from_detail(kind, $crate::ErrorDetail::new(message))
            }

            /// A file operation failed; the message is `cannot read FILE: REASON`.
            $visibility fn io(
                action: &str,
                path: &::std::path::Path,
                error: ::std::io::Error,
            ) -> $Error {
                let detail = $crate::ErrorDetail::of_io(action, path, error);
                $Error::from_detail($crate::ErrorKind::File, detail)
            }

            /// The path does not exist.
            $visibility fn missing(path: &::std::path::Path) -> $Error {
                $Error::from_detail($crate::ErrorKind::File, $crate::ErrorDetail::not_found(path))
            }

            /// The directory of an output file does not exist.
            $visibility fn missing_directory(path: &::std::path::Path) -> $Error {
                let detail = $crate::ErrorDetail::directory_not_found(path);
                $Error::from_detail($crate::ErrorKind::File, detail)
            }

            /// Prefixes the message with the path of a file, unless the message contains it.
            $visibility fn within(self, path: &::std::path::Path) -> $Error {
                $Error::from_detail(self.kind, self.detail.within(path))
            }

            /// Prefixes the message with the name of an array.
            $visibility fn of_array(self, name: &str) -> $Error {
                $Error::from_detail(self.kind, self.detail.of_array(name))
            }
        }

        $($(
            $(#[$attribute])*
            impl From<$Source> for $Error {
                fn from(error: $Source) -> $Error {
                    $Error::from_source(error.kind().into(), error)
                }
            }
        )+)?
    };
}
