//! Bindings of Core ML through its Objective-C interface.

mod array;
mod call;
mod device;
mod model;
mod plan;
mod predict;

pub use call::availability;
pub use device::{chip_info, devices, system_build};
pub use model::{Model, PendingModel, compile};
pub use plan::plan;
pub use predict::State;
