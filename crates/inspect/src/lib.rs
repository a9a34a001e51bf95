//! Summaries, comparisons, placement and contents of Core ML models and ExecuTorch programs.
//!
//! | module | contents |
//! |---|---|
//! | [`summary`] | counts of a model's operations, weights and features |
//! | [`compare`] | distances between the values of two programs |
//! | [`placement`] | where Core ML runs the operations: recorded plans, and forecasts |
//! | [`record`] | records of models on Apple devices, as evidence for forecasts and numerics |
//! | [`executorch`] | the Core ML models inside ExecuTorch programs: found, counted, written out |

pub mod compare;
mod error;
pub mod executorch;
pub mod placement;
pub mod record;
pub mod summary;

pub use error::{Error, ErrorKind};
