use std::fmt;

use crate::DType;

/// Reason why elements cannot be computed as requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecipeError {
    /// An integer is out of the range of the type to which it is cast.
    OutOfRange {
        /// Index of the element in row-major order.
        index: u64,
        /// The element.
        value: i128,
        /// The target type.
        dtype: DType,
    },
    /// The shape, the axis or the element type is not supported; the string describes it.
    Misfit(String),
    /// The elements could not be read.
    Unreadable(String),
}

impl fmt::Display for RecipeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecipeError::OutOfRange { index, value, dtype } => {
                write!(f, "element {index} is {value}, which is out of range for `{dtype}`")
            }
            RecipeError::Misfit(message) => f.write_str(message),
            RecipeError::Unreadable(message) => write!(f, "the elements cannot be read: {message}"),
        }
    }
}

impl std::error::Error for RecipeError {}

/// Returns a [`RecipeError::Misfit`] with a formatted message.
macro_rules! misfit {
    ($($message:tt)*) => {
        Err($crate::deferred::RecipeError::Misfit(format!($($message)*)))
    };
}
pub(super) use misfit;
