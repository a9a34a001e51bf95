//! From a weight and the form that it is to have to the operations that stand for it.
//!
//! | module | holds |
//! |---|---|
//! | `build` | the operations that stand for a weight |
//! | `linear`, `palette`, `vectors` | scales, zero points and tables |
//! | `cluster` | k-means |
//! | `codes` | what is written: codes, masks, elements that are not pruned |
//! | `prune` | selects the elements that become 0 |
//! | `source`, `pruned` | the elements of a weight as numbers |

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
