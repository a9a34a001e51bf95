//! Comparison of models with other models, or with arrays.
//!
//! ```
//! use coremill::compare::figures;
//! use coremill::engine::Array;
//! use coremill::graph::DType;
//!
//! let expected = Array::floats(DType::Fp32, [2], vec![1.0, 2.0]);
//! let found = Array::floats(DType::Fp32, [2], vec![1.0, 2.001]);
//! let figures = figures(&expected, &found)?;
//! assert_eq!(figures.differing, 1);
//! assert!(figures.is_within(1e-3) && figures.snr() > 60.0);
//! # Ok::<(), coremill::Error>(())
//! ```

pub use coremill_inspect::compare::*;
