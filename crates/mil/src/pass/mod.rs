//! Passes: MIL to MIL.
//!
//! A pass is a function of an [`Editor`]; [`run`] lists them in order. Each has a head comment that shows what
//! it does in MIL's text, and a test beside it under `tests/passes`.

mod editor;

pub use editor::{Editor, Uses};
