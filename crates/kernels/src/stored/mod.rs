//! Matrices of weights in their file format: narrow floats, quantized integers, or indices into palettes.
//!
//! They are never expanded in memory as a whole. [`multiply_stored`] multiplies few rows by them at memory
//! bandwidth, row by row of the weights. For many rows, [`StoredPanels`] expands one panel of
//! [`PackedWeights::keep`](super::matmul::PackedWeights::keep) at a time.

mod decode;
mod dot;
mod format;
mod numbers;
mod panels;
mod parameters;
mod words;

pub use dot::multiply_stored;
pub use format::{Blocks, ElementValues, NestedBlocks, QuantizedMatrix};
pub use panels::StoredPanels;
pub use words::multiply_words;

#[cfg(test)]
mod tests;
