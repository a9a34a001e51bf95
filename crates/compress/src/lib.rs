//! Compression of weights.
//!
//! A compressed weight is a `constexpr_` operation that replaces a `const`. The operations that use
//! it compute in the same precision as before. The compressed data is computed when it is written,
//! window by window.
//!
//! | module | contents |
//! |---|---|
//! | [`linear`] | linear quantization of a function's weights |
//! | `rules` | [`compress`]: rules that select the form of each weight |
//! | `budget` | choice of bits per weight for a size or quality |
//! | `upgrade_opset` | conversion of functions to a newer opset |
//! | `encode` | operations and data of compressed weights |
//! | `importance` | importance of elements, from samples |
//! | `weight`, `weighting`, `blocks` | weights, importance of elements, blocks |
//! | `form` | [`CompressionConfig`]: integers, palettes, pruning, or a combination |
//! | `joint` | [`compression_of`]: parameters of weights that are compressed already |
//! | `trained` | [`compress_trained`]: parameters that training found
//! | `error` | [`Error`], and reasons why a weight stays uncompressed |

mod blocks;
mod budget;
mod encode;
mod error;
mod form;
mod importance;
mod joint;
pub mod linear;
mod rules;
mod trained;
mod upgrade_opset;
mod weight;
mod weighting;

pub use budget::Budget;
pub use encode::kmeans;
pub use error::{Error, ErrorKind};
pub use form::trained::{
    IndexedWeight, TrainedCompression, TrainedIntegers, TrainedParameter, TrainedTable,
};
pub use form::{Algorithm, BITS, Channels, CompressionConfig, Palette, Prune, Values};
pub use importance::{Importance, WeightInput, feeds};
pub use joint::compression_of;
pub use rules::{
    CompressedWeight, CompressionOutcome, Options, Rule, SMALL, Selector, compress, matches,
    selected,
};
pub use trained::{compress_trained, replace_by_indices};
pub use upgrade_opset::upgrade_opset;
