//! Apple's Core ML from safe Rust: compile, load, predict, states, plans, devices.
//!
//! ```no_run
//! use coremill_cache::Store;
//! use coremill_coreml::{Cache, LoadOptions, Output, OwnedTensor, Tensor};
//! use coremill_tensor::DType;
//!
//! let store = Store::open("/tmp/models", &Default::default())?;
//! let cached = Cache::new(&store).compiled("Digits.mlpackage".as_ref(), &LoadOptions::default())?;
//! let model = cached.load(&LoadOptions::default())?;
//! let image = [0u8; 4 * 28 * 28];
//! let image = Tensor::contiguous(DType::Fp32, &[1, 1, 28, 28], &image)?;
//! let mut scores = OwnedTensor::new("scores", DType::Fp32);
//! model.predict(&[("image", image)], &mut [&mut scores as &mut dyn Output], None)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Tensors are read and written where they lie if their types are the model's; otherwise elements are converted, and one
//! that does not fit is an error. Results that Core ML pads are copied by their strides. Objective-C exceptions become
//! errors. On other systems everything compiles, and [`availability`] says why nothing can be loaded.
//!
//! | module | holds |
//! |---|---|
//! | `options` | [`ComputeUnits`], [`LoadOptions`], [`Cancel`] |
//! | `interface` | [`ArrayFeature`], [`Plan`], [`Device`]: what Core ML says about a model and a machine |
//! | `tensor`, `convert` | [`Tensor`], [`TensorMut`], [`Output`]: elements where they lie, and on their way |
//! | `cache` | [`Cache`]: models are compiled once; the feature of that name |
//! | `apple` | Core ML itself |
//! | `absent` | the same for systems without it |

#![cfg_attr(
    any(target_vendor = "apple", coremill_standin),
    expect(unsafe_code, reason = "this crate calls Objective-C")
)]
#![cfg_attr(
    not(any(target_vendor = "apple", coremill_standin)),
    expect(dead_code, reason = "only Core ML needs conversions")
)]

#[cfg(feature = "cache")]
mod cache;
mod convert;
mod error;
mod interface;
mod options;
mod tensor;
mod tree;

#[cfg(any(target_vendor = "apple", coremill_standin))]
#[path = "apple/mod.rs"]
mod machine;
#[cfg(not(any(target_vendor = "apple", coremill_standin)))]
#[path = "absent.rs"]
mod machine;

#[cfg(feature = "cache")]
pub use cache::{Cache, CompiledModel};
pub use error::{Error, ErrorKind};
pub use interface::{ArrayFeature, Chip, Device, DeviceKind, Plan, PlannedOperation, Shapes};
pub use machine::{
    Model, PendingModel, State, availability, chip_info, compile, devices, plan, system_build,
};
pub use options::{Cancel, ComputeUnits, LoadOptions, Reshapes, Specialization};
pub use tensor::{Output, OwnedTensor, Tensor, TensorMut};

/// Whether this machine has a Neural Engine that models may use.
pub fn ane_available() -> bool {
    let is_engine = |device: &Device| device.kind == DeviceKind::NeuralEngine;
    devices().is_ok_and(|devices| devices.iter().any(is_engine))
}
