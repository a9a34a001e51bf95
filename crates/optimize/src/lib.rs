//! Weights made smaller.
//!
//! A compressed weight is a `constexpr_` operation in the place of a `const`; the operations that use it compute in
//! the same precision as before. The new elements are computed when they are written, window by window.
//!
//! | module | holds |
//! |---|---|
//! | [`linear`] | integers with scales and zero points |
//! | `palette`, `cluster`, `vectors` | tables of numbers or vectors, and the places in them |
//! | `prune` | elements that become 0 |
//! | `form` | [`Form`]: what a weight becomes, of all of these |
//! | `rules` | [`compress`]: which weight becomes what |
//! | `budget` | how many bits weights get where a size or a quality is asked for |
//! | `importance` | how much outputs depend on which elements, as samples show |
//! | `raise` | functions that are to run on a newer release only |
//! | `weight`, `source` | which constants are weights, and their elements as numbers |
//! | `codes`, `build` | what is written, and the operations that stand for a weight |

mod blocks;
mod budget;
mod build;
mod cluster;
mod codes;
mod form;
mod importance;
pub mod linear;
mod palette;
mod prune;
mod raise;
mod rules;
mod source;
mod vectors;
mod weight;

pub use budget::Budget;
pub use form::{Form, Values};
pub use importance::{Feed, Importance, feeds};
pub use palette::{Algorithm, BITS, Palette};
pub use prune::{Channels, Prune};
pub use rules::{Compressed, Fate, Options, Rule, Selector, compress, matches};
