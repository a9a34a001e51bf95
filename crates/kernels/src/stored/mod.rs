//! Matrices of weights as they lie in a file: of narrow floats, quantized, or as indices into palettes.
//!
//! They are never expanded in memory. [`multiply_stored`] takes few rows through them at the speed of
//! memory, row by row of the weights; for many rows [`StoredPanels`] expands what a panel of
//! [`PackedWeights::keep`](super::matmul::PackedWeights::keep) needs at a time.

mod decode;
mod dot;
mod format;
mod numbers;
mod panels;

pub use dot::multiply_stored;
pub use format::{Blocks, QuantizedMatrix};
pub use panels::StoredPanels;

#[cfg(test)]
mod tests;
