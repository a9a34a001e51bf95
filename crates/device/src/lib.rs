//! Facts about Apple's devices, as tables: each row names its source.
//!
//! Nothing here was measured by this project. The rows repeat public studies of real devices ([`Source`]); where two
//! studies disagree, the row notes it, and a study through the public Core ML framework outweighs one through Apple's private
//! compiler, whose front end Core ML does not use.
//!
//! ```
//! use coremill_device::{Chip, Limit, support};
//!
//! let chip = Chip::parse("iphone17pro")?;
//! assert_eq!(chip.name, "A19 Pro");
//! assert!(support("conv").on_neural_engine(chip));
//! assert!(!support("cumsum").on_neural_engine(chip));
//! assert_eq!(Limit::KernelWidth.most(chip), 15);
//! # Ok::<(), coremill_device::UnknownChip>(())
//! ```
//!
//! | module | holds |
//! |---|---|
//! | `chip` | chips, the devices that have them, and generations |
//! | `source` | public studies, their devices and dates |
//! | `support` | the engines that run each operation |
//! | `limit` | the largest sizes that the Neural Engine takes |
//! | `hazard` | evidence for the warnings of the verifier: engines, chips, releases, sources |
//! | `cost` | time of an operation on each engine, cost of a segment and of a switch |

mod chip;
mod cost;
mod hazard;
mod limit;
mod source;
mod support;

pub use chip::{CHIPS, Chip, Family, Generation, UnknownChip};
pub use cost::{
    COSTS, Cost, CostClass, CostRow, END_MS, SEGMENT_MS, SWITCH_MS, Work, cost_class, costs,
};
pub use hazard::{Confidence, HAZARDS, Hazard};
pub use limit::{LIMITS, Limit, LimitRow};
pub use source::{SOURCES, Source, SourceRow};
pub use support::{OPERATIONS, Support, SupportRow, support};

/// An engine that Core ML runs operations on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Engine {
    /// The processor.
    Cpu,
    /// The graphics processor.
    Gpu,
    /// The Neural Engine.
    NeuralEngine,
}

impl Engine {
    /// Every engine.
    pub const ALL: [Engine; 3] = [Engine::Cpu, Engine::Gpu, Engine::NeuralEngine];

    /// Its name in a sentence.
    pub const fn name(self) -> &'static str {
        match self {
            Engine::Cpu => "CPU",
            Engine::Gpu => "GPU",
            Engine::NeuralEngine => "Neural Engine",
        }
    }
}
