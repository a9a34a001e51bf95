//! Summaries, comparisons and contents of Core ML models and ExecuTorch programs.
//!
//! | module | holds |
//! |---|---|
//! | [`summary`] | counts of a model's operations, weights and features |
//! | [`compare`] | distances between the values of two programs |
//! | [`executorch`] | the Core ML models inside ExecuTorch programs: found, counted, written out |

pub mod compare;
mod error;
pub mod executorch;
pub mod summary;

pub use error::{Error, ErrorKind};
