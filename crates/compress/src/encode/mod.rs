//! Encoding of weights.
//!
//! | module | contents |
//! |---|---|
//! | `build` | operations that represent a weight |
//! | `linear`, `palette`, `vectors` | scales, zero points and lookup tables |
//! | `cluster` | k-means |
//! | `codes` | encoded data: codes, masks, elements that are not pruned |
//! | `prune` | selection of the elements to prune |
//! | `source`, `pruned` | elements of a weight as numbers |

mod build;
mod cluster;
mod codes;
mod linear;
mod palette;
mod prune;
mod pruned;
mod source;
mod vectors;

pub(super) use build::{EncodedWeight, build, insert};
