//! Encoding of weights.
//!
//! | module | contents |
//! |---|---|
//! | `build` | operations that represent a weight |
//! | `linear`, `palette`, `vectors` | scales, zero points and lookup tables |
//! | `indices` | look-ups that a caller computed |
//! | `cluster` | k-means |
//! | `codes` | encoded data: codes, masks, elements that are not pruned |
//! | `trained`, `joint` | operations with known parameters, and further compression of compressed weights |
//! | `prune` | selection of the elements to prune |
//! | `source`, `pruned` | elements of a weight as numbers |

mod build;
mod cluster;
mod codes;
mod indices;
mod joint;
mod linear;
mod palette;
mod prune;
mod pruned;
mod source;
mod trained;
mod vectors;

pub(super) use build::{EncodedWeight, build, insert};
pub use cluster::kmeans;
pub(super) use indices::build_indexed;
pub(super) use joint::build_joint;
pub(super) use linear::step;
pub(super) use trained::build_trained;
