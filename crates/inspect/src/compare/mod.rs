//! Comparison of models with other models, or with arrays.
//!
//! [`figures`] measures the error of an array. [`per_op`] measures the error of every value that
//! two programs share, which shows where they diverge.

mod figures;
mod origin;
mod per_op;
mod report;
mod scales;

pub use figures::{ErrorMetrics, figures, figures_of_doubles};
pub use origin::ValueOrigin;
pub use per_op::{Contents, PerOp, RunningModel, Step, Target, UnmatchedValue, per_op};
pub use report::{Line, NotFinite, PerOpReport, UnpairedLine};
pub use scales::SCALES_KEY;
