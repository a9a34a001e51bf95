//! The error type of a crate.

/// Defines the opaque error of a crate: a kind, and an [`ErrorDetail`](crate::ErrorDetail) with the location in the
/// terms of that crate.
///
/// The type has the accessors `kind()` and `hint()`, implements `Error`, and can be cloned and compared. Its
/// constructors have the visibility that is written before the kind. `Display` prints the message; an error with a
/// location implements `Display` itself.
///
/// ```
/// use coremill_io::ErrorDetail;
///
/// /// Category of an [`Error`].
/// #[derive(Clone, Copy, Debug, PartialEq, Eq)]
/// pub enum ErrorKind {
///     Full,
/// }
///
/// coremill_io::opaque_error! {
///     /// Error of a cache.
///     pub struct Error(pub(crate) ErrorKind);
/// }
///
/// let error = Error::from_detail(ErrorKind::Full, ErrorDetail::new("the disk is full"));
/// let error = error.with_hint("delete some entries");
/// assert_eq!(error.kind(), ErrorKind::Full);
/// assert_eq!(error.hint(), Some("delete some entries"));
/// assert_eq!(error.to_string(), "the disk is full");
/// ```
#[macro_export]
macro_rules! opaque_error {
    ($(#[$attribute:meta])* $outer:vis struct $Error:ident($inner:vis $Kind:ty);) => {
        $crate::opaque_error! { $(#[$attribute])* $outer struct $Error($inner $Kind, ()); }

        impl ::std::fmt::Display for $Error {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                ::std::fmt::Display::fmt(&*self.detail, f)
            }
        }
    };
    ($(#[$attribute:meta])* $outer:vis struct $Error:ident($inner:vis $Kind:ty, $Location:ty);) => {
        $(#[$attribute])*
        #[derive(Clone, PartialEq, Eq)]
        $outer struct $Error {
            kind: $Kind,
            // Boxed, so that a `Result` stays small.
            detail: ::std::boxed::Box<$crate::ErrorDetail<$Location>>,
        }

        impl $Error {
            /// An error of a kind.
            $inner fn from_detail(kind: $Kind, detail: $crate::ErrorDetail<$Location>) -> $Error {
                $Error { kind, detail: ::std::boxed::Box::new(detail) }
            }

            /// Wraps an error of another crate, with its message and hint.
            $inner fn from_source(
                kind: $Kind,
                source: impl $crate::HasHint + ::std::error::Error + Send + Sync + 'static,
            ) -> $Error {
                $Error::from_detail(kind, $crate::ErrorDetail::of_source(source))
            }

            /// Sets the kind.
            $inner fn with_kind(mut self, kind: $Kind) -> $Error {
                self.kind = kind;
                self
            }

            /// Sets the hint.
            $inner fn with_hint(self, hint: impl Into<String>) -> $Error {
                $Error::from_detail(self.kind, self.detail.with_hint(hint))
            }

            /// Sets the hint of another error, if it has one.
            $inner fn with_hint_of(self, hint: Option<&str>) -> $Error {
                $Error::from_detail(self.kind, self.detail.with_hint_of(hint))
            }

            /// Sets the source.
            $inner fn with_source(
                self,
                source: impl ::std::error::Error + Send + Sync + 'static,
            ) -> $Error {
                $Error::from_detail(self.kind, self.detail.with_source(source))
            }

            /// Category of the error.
            pub fn kind(&self) -> $Kind {
                self.kind
            }

            /// Suggested fix.
            pub fn hint(&self) -> Option<&str> {
                self.detail.hint()
            }
        }

        impl $crate::HasHint for $Error {
            fn hint(&self) -> Option<&str> {
                self.detail.hint()
            }
        }

        /// The kind, and the text that `Display` prints.
        impl ::std::fmt::Debug for $Error {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                write!(f, "{:?}: {self}", self.kind)?;
                match self.hint() {
                    Some(hint) => write!(f, " (hint: {hint})"),
                    None => Ok(()),
                }
            }
        }

        impl ::std::error::Error for $Error {
            fn source(&self) -> Option<&(dyn ::std::error::Error + 'static)> {
                self.detail.source()
            }
        }
    };
}
