use std::path::PathBuf;

use coremill_engine::{Limits, LoadOptions, Numerics};

use crate::device::Device;

/// How a model or a program is to be run.
#[derive(Clone, Debug, Default)]
pub struct RunOptions {
    /// The device that computes; for an ExecuTorch program, the device of its delegates.
    pub device: Device,
    /// The number of threads that share the work on the host; 0 stands for one per processor.
    pub threads: usize,
    /// Where the engine rounds.
    pub numerics: Numerics,
    /// Bounds on what the host computes.
    pub limits: Limits,
    /// The directory of models compiled by Core ML; `None` stands for `COREMILL_CACHE` or the system's directory.
    pub cache: Option<PathBuf>,
    /// Files of tensors that an ExecuTorch program refers to (`.ptd`).
    pub data: Vec<PathBuf>,
}

impl RunOptions {
    /// The engine's part.
    pub fn engine(&self) -> LoadOptions {
        let &RunOptions { threads, numerics, limits, .. } = self;
        LoadOptions { numerics, threads, limits, ..LoadOptions::default() }
    }

    /// The runtime's part; delegates aside.
    pub(crate) fn runtime(&self) -> coremill_runtime::LoadOptions {
        coremill_runtime::LoadOptions {
            data: self.data.clone(),
            threads: self.threads,
            rounded: self.numerics == Numerics::Rounded,
            limits: coremill_runtime::Limits {
                memory: self.limits.bytes as u64,
                instructions: self.limits.operations,
                ..coremill_runtime::Limits::default()
            },
            ..coremill_runtime::LoadOptions::default()
        }
    }
}
