use std::fmt;

use crate::DType;

/// Why elements cannot be computed in the way that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecipeError {
    /// An integer does not fit the type that it is cast to.
    OutOfRange {
        /// Where the element stands, in row-major order.
        index: u64,
        /// The element.
        value: i128,
        /// The type that it does not fit.
        dtype: DType,
    },
    /// The shape, the axis or the element type does not fit; says what was found.
    Misfit(String),
    /// The elements could not be read.
    Unreadable(String),
}

impl fmt::Display for RecipeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecipeError::OutOfRange { index, value, dtype } => {
                write!(f, "element {index} is {value}, which `{dtype}` cannot hold")
            }
            RecipeError::Misfit(message) => f.write_str(message),
            RecipeError::Unreadable(message) => write!(f, "the elements cannot be read: {message}"),
        }
    }
}

impl std::error::Error for RecipeError {}

/// A [`RecipeError::Misfit`] with a formatted message.
macro_rules! misfit {
    ($($message:tt)*) => {
        Err($crate::deferred::RecipeError::Misfit(format!($($message)*)))
    };
}
pub(super) use misfit;
