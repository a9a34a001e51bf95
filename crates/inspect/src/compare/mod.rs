//! Two models, or a model and numbers, side by side.
//!
//! [`figures`] says how far two arrays
//! lie apart; [`per_op`] does so for every value that two programs share, so that one sees where they begin to.

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
