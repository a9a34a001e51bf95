//! Information on the machine and its compute devices.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

use objc2::runtime::{AnyObject, NSObjectProtocol, ProtocolObject};
use objc2::{Message, sel};
use objc2_core_ml::{MLComputeDeviceProtocol, MLModel, MLNeuralEngineComputeDevice};

use super::call::{call, class, has_class_method};
use crate::error::{Error, ErrorKind, Result};
use crate::interface::{Chip, Device, DeviceKind};

unsafe extern "C" {
    fn sysctlbyname(
        name: *const c_char,
        old: *mut c_void,
        old_length: *mut usize,
        new: *const c_void,
        new_length: usize,
    ) -> c_int;
}

/// The compute devices of this machine; needs macOS 14 or iOS 17.
pub fn devices() -> Result<Vec<Device>> {
    call(|| {
        has_class_method("MLModel", sel!(availableComputeDevices), "macOS 14 or iOS 17")?;
        // SAFETY: the method exists.
        let devices = unsafe { MLModel::availableComputeDevices() };
        Ok(devices.iter().map(|device| describe(&device)).collect())
    })
}

/// Information on the machine.
pub fn chip_info() -> Result<Chip> {
    let model = text_of(c"hw.model").or_else(|| text_of(c"hw.machine")).unwrap_or_default();
    let name = text_of(c"machdep.cpu.brand_string").or_else(|| text_of(c"hw.machine"));
    // Systems that do not list devices do not report the number of cores, either.
    let devices = devices().unwrap_or_default();
    let engine = devices.iter().find(|device| device.kind == DeviceKind::NeuralEngine);
    let neural_engine_cores = engine.and_then(|device| device.cores).unwrap_or(0);
    Ok(Chip { name: name.unwrap_or_default(), model, build: system_build()?, neural_engine_cores })
}

/// Build of the operating system.
pub fn system_build() -> Result<String> {
    static BUILD: OnceLock<Option<String>> = OnceLock::new();
    let build = BUILD.get_or_init(|| text_of(c"kern.osversion"));
    build
        .clone()
        .ok_or_else(|| Error::new(ErrorKind::Unavailable, "the system does not report its build"))
}

/// Kind of a device.
pub(super) fn kind_of(device: &ProtocolObject<dyn MLComputeDeviceProtocol>) -> DeviceKind {
    let known = [
        ("MLCPUComputeDevice", DeviceKind::Cpu),
        ("MLGPUComputeDevice", DeviceKind::Gpu),
        ("MLNeuralEngineComputeDevice", DeviceKind::NeuralEngine),
    ];
    let is = |name| class(name, "").is_ok_and(|class| device.isKindOfClass(class));
    known.into_iter().find(|(name, _)| is(name)).map_or(DeviceKind::Other, |(_, kind)| kind)
}

fn describe(device: &ProtocolObject<dyn MLComputeDeviceProtocol>) -> Device {
    let kind = kind_of(device);
    let object: &AnyObject = device.as_ref();
    // Only for Neural Engines, as the class does not exist on older systems.
    let engine = (kind == DeviceKind::NeuralEngine)
        .then(|| object.retain().downcast::<MLNeuralEngineComputeDevice>().ok())
        .flatten();
    // SAFETY: it only reads.
    let cores = engine.map(|engine| unsafe { engine.totalCoreCount() });
    Device { kind, cores: cores.and_then(|cores| usize::try_from(cores).ok()) }
}

/// A string property of the system.
fn text_of(name: &CStr) -> Option<String> {
    let mut bytes = [0u8; 256];
    let mut length = bytes.len();
    // SAFETY: the name is NUL-terminated, and the system writes at most `length` bytes.
    let status = unsafe {
        let room = bytes.as_mut_ptr().cast::<c_void>();
        sysctlbyname(name.as_ptr(), room, &mut length, std::ptr::null(), 0)
    };
    let written = bytes.get(..length).filter(|_| status == 0)?;
    let text = CStr::from_bytes_until_nul(written).ok()?.to_str().ok()?;
    (!text.is_empty()).then(|| text.to_owned())
}
