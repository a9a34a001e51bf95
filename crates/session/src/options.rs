use std::path::PathBuf;

use coremill_engine::{Limits, LoadOptions, Numerics};

use crate::device::Device;

/// Options of running a model or program.
#[derive(Clone, Debug, Default)]
pub struct RunOptions {
    /// The device; for an ExecuTorch program, the device of its delegates.
    pub device: Device,
    /// Number of threads on the host; 0 selects one per processor.
    pub threads: usize,
    /// The engine's arithmetic.
    pub numerics: Numerics,
    /// Resource limits on the host.
    pub limits: Limits,
    /// Directory of models compiled by Core ML; `None` selects `COREMILL_CACHE` or the system's directory.
    pub cache: Option<PathBuf>,
    /// Files of external tensors of an ExecuTorch program (`.ptd`).
    pub data: Vec<PathBuf>,
}

impl RunOptions {
    /// Options for the engine.
    pub fn engine(&self) -> LoadOptions {
        let &RunOptions { threads, numerics, limits, .. } = self;
        LoadOptions { numerics, threads, limits, ..LoadOptions::default() }
    }

    /// Options for the runtime, without delegates.
    pub(crate) fn runtime(&self) -> coremill_runtime::LoadOptions {
        coremill_runtime::LoadOptions {
            data: self.data.clone(),
            threads: self.threads,
            numerics: self.numerics,
            limits: coremill_runtime::Limits {
                memory: self.limits.bytes as u64,
                instructions: self.limits.operations,
                ..coremill_runtime::Limits::default()
            },
            ..coremill_runtime::LoadOptions::default()
        }
    }
}
