//! Runs ML Programs on this machine's CPU.

mod array;
mod call;
mod error;
mod geometry;
mod limits;
mod ops;

pub use array::{Array, Elements, ElementsView, View};
pub use error::Error;
pub use limits::Limits;
