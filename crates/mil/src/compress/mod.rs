//! Weights made smaller.
//!
//! A compressed weight is a `constexpr_` operation in the place of a `const`; the operations that use it compute in
//! the same precision as before. The new elements are computed when they are written, window by window.

mod blocks;
mod elements;
pub mod linear;
