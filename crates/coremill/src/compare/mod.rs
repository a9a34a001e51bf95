//! Two models, or a model and numbers, side by side.
//!
//! [`figures`] says how far two arrays
//! lie apart; [`per_op`] does so for every value that two programs share, so that one sees where they begin to.
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

mod figures;
mod origin;
mod per_op;
mod report;
mod scales;

pub(crate) use figures::figures_of_doubles;
pub use figures::{ErrorMetrics, figures};
pub use origin::ValueOrigin;
pub use per_op::{Contents, PerOp, RunningModel, Step, Target, UnmatchedValue, per_op};
pub use report::{Line, NotFinite, PerOpReport, UnpairedLine};
pub use scales::SCALES_KEY;
