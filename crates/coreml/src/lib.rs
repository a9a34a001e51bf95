//! Safe Rust bindings of Apple's Core ML: compilation, loading, prediction, states, compute plans, devices.
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
//! Tensors are used in place if their types are the model's. Otherwise elements are converted, and an element that
//! does not fit is an error. Padded results of Core ML are copied by their strides. Objective-C exceptions become
//! errors. On other systems the crate compiles, and [`availability`] returns the reason why nothing can be loaded.
//!
//! | module | holds |
//! |---|---|
//! | `options` | [`ComputeUnits`], [`LoadOptions`], [`Cancel`] |
//! | `interface` | [`ArrayFeature`], [`Plan`], [`Device`]: descriptions of models and machines |
//! | `tensor`, `convert` | [`Tensor`], [`TensorMut`], [`Output`]: borrowed elements, and their conversion |
//! | `cache` | [`Cache`] of compiled models; requires the feature `cache` |
//! | `prewarm` | [`prewarm`]: background preparation of models; requires the feature `cache` |
//! | `apple` | bindings of Core ML |
//! | `absent` | substitute for systems without Core ML |

#![cfg_attr(
    any(target_vendor = "apple", coremill_standin),
    expect(unsafe_code, reason = "calls Objective-C")
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
#[cfg(feature = "cache")]
mod prewarm;
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
#[cfg(feature = "cache")]
pub use prewarm::{PrewarmOptions, PrewarmProgress, PrewarmStage, PrewarmedModel, prewarm};
pub use tensor::{Output, OwnedTensor, Tensor, TensorMut};

/// Whether models can use a Neural Engine on this machine.
pub fn ane_available() -> bool {
    let is_engine = |device: &Device| device.kind == DeviceKind::NeuralEngine;
    devices().is_ok_and(|devices| devices.iter().any(is_engine))
}
