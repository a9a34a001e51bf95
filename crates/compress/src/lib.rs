//! Weights made smaller.
//!
//! A compressed weight is a `constexpr_` operation in the place of a `const`; the operations that use it compute in
//! the same precision as before. The new elements are computed when they are written, window by window.
//!
//! | module | holds |
//! |---|---|
//! | [`linear`] | quantizes the weights of a function to integers |
//! | `rules` | [`compress`]: which weight becomes what |
//! | `budget` | how many bits weights get where a size or a quality is asked for |
//! | `raise` | functions that are to run on a newer release only |
//! | `encode` | the operations that stand for a weight, and the codes that are written |
//! | `importance` | how much outputs depend on which elements, as samples show |
//! | `weight`, `weighting`, `blocks` | which constants are weights, and which of their elements belong together |
//! | `form` | [`CompressionConfig`]: what a weight becomes: integers, palettes, zeros, or several of these |
//! | `error` | [`Error`], and why a weight stays as it is |

mod blocks;
mod budget;
mod encode;
mod error;
mod form;
mod importance;
pub mod linear;
mod rules;
mod upgrade_opset;
mod weight;
mod weighting;

pub use budget::Budget;
pub use error::{Error, ErrorKind};
pub use form::{Algorithm, BITS, Channels, CompressionConfig, Palette, Prune, Values};
pub use importance::{Importance, WeightInput, feeds};
pub use rules::{
    CompressedWeight, CompressionOutcome, Options, Rule, SMALL, Selector, compress, matches,
};
