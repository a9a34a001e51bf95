use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::error::Error;

/// What may compute a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ComputeUnits {
    /// Everything there is.
    #[default]
    All,
    /// The processor alone.
    CpuOnly,
    /// The processor and the graphics processor.
    CpuAndGpu,
    /// The processor and the Neural Engine.
    CpuAndNeuralEngine,
}

impl ComputeUnits {
    /// The name that ExecuTorch's compile specs and options have for it.
    pub fn name(self) -> &'static str {
        match self {
            ComputeUnits::All => "all",
            ComputeUnits::CpuOnly => "cpu_only",
            ComputeUnits::CpuAndGpu => "cpu_and_gpu",
            ComputeUnits::CpuAndNeuralEngine => "cpu_and_ne",
        }
    }
}

impl fmt::Display for ComputeUnits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for ComputeUnits {
    type Err = Error;

    fn from_str(text: &str) -> Result<ComputeUnits, Error> {
        let all = [
            ComputeUnits::All,
            ComputeUnits::CpuOnly,
            ComputeUnits::CpuAndGpu,
            ComputeUnits::CpuAndNeuralEngine,
        ];
        all.into_iter().find(|units| units.name() == text).ok_or_else(|| {
            Error::input(format!("`{text}` is not a compute unit"))
                .with_hint("use `all`, `cpu_only`, `cpu_and_gpu` or `cpu_and_ne`")
        })
    }
}

/// How often the shapes of inputs change, from iOS 17.4 and macOS 14.4 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reshapes {
    /// Often: a change of shape should be quick.
    Frequent,
    /// Seldom: predictions should be quick.
    Infrequent,
}

/// What loading prepares for, from iOS 18 and macOS 15 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Specialization {
    /// What Core ML does without being told.
    Default,
    /// Predictions are quick, loading takes longer.
    FastPrediction,
}

/// How a model is compiled and loaded.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// What may compute it.
    pub compute_units: ComputeUnits,
    /// The function, of a model that has several; needs iOS 18 or macOS 15.
    pub function: Option<String>,
    /// How often shapes change.
    pub reshapes: Option<Reshapes>,
    /// What loading prepares for.
    pub specialization: Option<Specialization>,
    /// Whether the graphics processor may sum in fp16.
    pub low_precision_gpu: bool,
    /// The longest that compiling may take, and the longest that loading may.
    pub timeout: Duration,
    /// Ends waiting early.
    pub cancel: Option<Cancel>,
}

impl Default for LoadOptions {
    fn default() -> LoadOptions {
        LoadOptions {
            compute_units: ComputeUnits::All,
            function: None,
            reshapes: None,
            specialization: None,
            low_precision_gpu: false,
            timeout: Duration::from_secs(300),
            cancel: None,
        }
    }
}

/// Ends waiting for Core ML from another thread. Core ML itself goes on to the end of what it is doing; nobody sees the
/// result.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Ends what waits, now and from now on.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it was called.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
