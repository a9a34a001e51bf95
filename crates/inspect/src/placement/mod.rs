//! Where Core ML runs the operations of a model: as a Mac recorded it, or as a forecast.
//!
//! | module | holds |
//! |---|---|
//! | `plan` | [`ComputePlan`], the form of both, and its JSON |
//! | `analytics` | plans in the `analytics.mil` that Core ML writes into its cache on a Mac |
//! | `forecast` | [`forecast`]: obstacles, costs and the cheapest path put together |
//! | `obstacle` | what keeps an operation off the Neural Engine |
//! | `path` | the cheapest sequence of engines |

mod analytics;
mod forecast;
mod obstacle;
mod path;
mod plan;

pub use analytics::recorded;
pub use forecast::{ACCURACY, ForecastOptions, forecast};
pub use plan::{ComputePlan, Device, Estimate, ForecastNote, PlannedOperation, Reason};
