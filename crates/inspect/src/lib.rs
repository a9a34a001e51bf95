//! Summaries, comparisons and extraction of Core ML models and ExecuTorch programs.
//!
//! | module | contents |
//! |---|---|
//! | [`summary`] | summary of a model's operations, weights and features |
//! | [`compare`] | errors between the values of two programs |
//! | [`executorch`] | Core ML models inside ExecuTorch programs |

pub mod compare;
mod error;
pub mod executorch;
pub mod summary;

pub use error::{Error, ErrorKind};
