//! ExecuTorch programs: the `.pte` files that apps ship.
//!
//! | module | holds |
//! |---|---|
//! | [`program`] | what a program says: methods, their values and instructions, constants, delegates |
//! | `data` | [`Data`]: bytes in parts, of which none is copied together |

mod data;
pub mod program;

pub use data::Data;
pub use program::Program;
