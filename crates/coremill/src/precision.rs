//! Mixed precision for programs whose values exceed the range of fp16.
//!
//! ```no_run
//! use coremill::convert::LowerOptions;
//! use coremill::engine::Numerics;
//! use coremill::precision::{Output, choose};
//!
//! let program = coremill::convert::read("model.pt2")?;
//! let mut options = LowerOptions::default();
//! let chosen = choose(&program, Output::Model, &options, &[], Numerics::Rounded)?;
//! for cure in &chosen.cures {
//!     println!("{}: {}; {}", cure.name, cure.reason, cure.remedy);
//! }
//! chosen.apply(&mut options.options);
//! let conversion = coremill::convert::convert(program, &options.options)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub use coremill_optimize::precision::*;
