use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::error::Error;

/// The devices that may run a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ComputeUnits {
    /// All devices.
    #[default]
    All,
    /// CPU only.
    CpuOnly,
    /// CPU and GPU.
    CpuAndGpu,
    /// CPU and Neural Engine.
    CpuAndNeuralEngine,
}

impl ComputeUnits {
    /// Name in ExecuTorch's compile specs and options.
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

/// Expected frequency of changes of input shapes; from iOS 17.4 and macOS 14.4 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reshapes {
    /// Frequent: optimizes changes of shape.
    Frequent,
    /// Infrequent: optimizes predictions.
    Infrequent,
}

/// Optimization while loading; from iOS 18 and macOS 15 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Specialization {
    /// Core ML's default.
    Default,
    /// Faster predictions, slower loading.
    FastPrediction,
}

/// Options for compiling and loading models.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// The devices that may run the model.
    pub compute_units: ComputeUnits,
    /// Function of a multifunction model; needs iOS 18 or macOS 15.
    pub function: Option<String>,
    /// Expected frequency of changes of input shapes.
    pub reshapes: Option<Reshapes>,
    /// Optimization while loading.
    pub specialization: Option<Specialization>,
    /// Whether the GPU may accumulate in fp16.
    pub low_precision_gpu: bool,
    /// Timeout for compiling, and for loading.
    pub timeout: Duration,
    /// Cancels waiting.
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

/// Cancels waiting for Core ML from another thread. Core ML itself completes its operation; the result is discarded.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Cancels current and later waits.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether [`Cancel::cancel`] was called.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
