//! Devices that run models.

use std::fmt;

use coremill_coreml::ComputeUnits;

use crate::error::{Error, ErrorKind, Result};

/// A device that runs models.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Device {
    /// The CPU, through coremill's engine. Available on every system.
    #[default]
    Host,
    /// The CPU, through Core ML.
    Cpu,
    /// The GPU and the CPU, through Core ML.
    Gpu,
    /// The Neural Engine and the CPU, through Core ML.
    NeuralEngine,
    /// Any device that Core ML chooses.
    All,
}

impl Device {
    /// Every device.
    pub const ALL: [Device; 5] =
        [Device::Host, Device::Cpu, Device::Gpu, Device::NeuralEngine, Device::All];

    /// Checks that the device is available. The error contains the reason.
    pub fn check(self) -> Result<()> {
        let refused = |reason: &dyn fmt::Display| {
            let message = format!("{self} is not available: {reason}");
            let error = Error::new(message).with_kind(ErrorKind::Device);
            error.with_hint("run with the option `device=host`, and save a package for the device")
        };
        if self == Device::Host {
            return Ok(());
        }
        coremill_coreml::availability().map_err(|error| match std::env::consts::OS {
            "macos" | "ios" => refused(&error),
            here => {
                refused(&format!("Core ML is part of macOS and iOS, but this system is {here}"))
            }
        })?;
        // Older systems list no devices; Core ML falls back to the CPU there.
        let lists_devices = coremill_coreml::devices().is_ok();
        if self == Device::NeuralEngine && lists_devices && !ane_available() {
            return Err(refused(
                &"this machine has no Neural Engine, or hides it from this process",
            ));
        }
        Ok(())
    }

    /// Core ML's compute units; `None` for the host.
    pub(crate) fn compute_units(self) -> Option<ComputeUnits> {
        match self {
            Device::Host => None,
            Device::Cpu => Some(ComputeUnits::CpuOnly),
            Device::Gpu => Some(ComputeUnits::CpuAndGpu),
            Device::NeuralEngine => Some(ComputeUnits::CpuAndNeuralEngine),
            Device::All => Some(ComputeUnits::All),
        }
    }

    /// Whether the device is available.
    pub fn is_available(self) -> bool {
        self.check().is_ok()
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Device::Host => "the host",
            Device::Cpu => "Core ML on the CPU",
            Device::Gpu => "Core ML on the GPU",
            Device::NeuralEngine => "Core ML on the Neural Engine",
            Device::All => "Core ML",
        })
    }
}

/// Information on the chip and its accelerators.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChipInfo {
    /// Processor architecture, such as `aarch64`.
    pub architecture: &'static str,
    /// The operating system.
    pub system: &'static str,
    /// Number of processors.
    pub processors: usize,
    /// Vector instruction set that the host device uses.
    pub instructions: String,
    /// Whether Core ML can use a Neural Engine.
    pub neural_engine: bool,
    /// The system's information on Apple's chip; `None` on other systems.
    pub chip: Option<coremill_coreml::Chip>,
}

/// Information on this machine.
pub fn chip_info() -> ChipInfo {
    ChipInfo {
        architecture: std::env::consts::ARCH,
        system: std::env::consts::OS,
        processors: std::thread::available_parallelism().map_or(1, usize::from),
        instructions: coremill_simd::Isa::detect().to_string(),
        neural_engine: ane_available(),
        chip: coremill_coreml::chip_info().ok(),
    }
}

/// Whether models can run on the Neural Engine.
pub fn ane_available() -> bool {
    coremill_coreml::ane_available()
}
