//! Observers of a run.

pub use coremill_tensor::{Span, self_times};

/// Operation name under which [`Hooks::observe`] reports the inputs of a model.
pub const INPUT: &str = "input";

#[cfg(feature = "host")]
pub use coremill_engine::Hooks;

/// Observers of a run.
#[cfg(not(feature = "host"))]
#[derive(Default)]
pub struct Hooks<'h> {
    /// Receives the time of each instruction, and of each operation within delegates.
    pub profile: Option<&'h mut Vec<Span>>,
}
