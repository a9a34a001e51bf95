//! Runs models and ExecuTorch programs on named arrays, on every device.
//!
//! A [`Backend`] prepares a model, the [`Executable`] lists functions with their inputs, outputs and states, and a
//! [`Session`] runs one function on named arrays. The engine, Core ML and the runtime of ExecuTorch programs implement
//! these traits. Every other crate of the workspace runs models through them, so that inputs have the same names and are
//! checked in the same way everywhere.
//!
//! ```
//! use coremill_engine::Array;
//! use coremill_mil::{model, text};
//! use coremill_verify as verify;
//! use coremill_session::{RunOptions, inputs};
//! use coremill_tensor::DType;
//!
//! let text = "program(1.3) {
//!     func main<ios17>(tensor<fp32, [2]> x) {
//!         tensor<fp32, [2]> y = add(x = x, y = x);
//!     } -> (y);
//! }";
//! let model = model::describe(text::parse(text, &text::NoWeights).expect("MIL")).expect("complete");
//! let verified = verify::verify(&model).expect("sound");
//!
//! let executable = coremill_session::load(&verified, &RunOptions::default())?;
//! let mut session = executable.session("main")?;
//! let x = Array::floats(DType::Fp32, [2], vec![1.0, 2.0]);
//! let outputs = session.run(&inputs(&[("x".to_owned(), x)]))?;
//! assert_eq!(outputs.floats("y"), Some(&[2.0, 4.0][..]));
//! # Ok::<(), coremill_session::Error>(())
//! ```
//!
//! | module | holds |
//! |---|---|
//! | `backend` | the traits [`Backend`], [`Executable`], [`Session`] |
//! | `engine`, `coreml`, `executorch` | their implementations; `absent` replaces `coreml` on systems without Core ML |
//! | `options`, `device` | [`RunOptions`], [`Device`] |
//! | `input` | [`Input`]: slices and arrays as inputs |
//! | [`arrays`], `images`, `random` | inputs from numpy's files and images, and random inputs |
//! | `values` | values inside a program, by name |
//! | `vocabulary` | range of inputs that index a table |
//! | `file_kind` | [`FileKind::detect`]: file formats |
//! | `save` | [`save()`]: writes a model in the format of the path's extension |

mod backend;
#[cfg(any(target_vendor = "apple", coremill_standin))]
mod coreml;
mod device;
mod engine;
mod error;
mod executorch;
mod file_kind;
mod input;
mod options;
mod random;
mod save;
mod values;
mod vocabulary;

#[cfg(not(any(target_vendor = "apple", coremill_standin)))]
#[path = "absent.rs"]
mod coreml;

pub mod arrays;
#[cfg(feature = "images")]
pub mod images;

use std::sync::Arc;

use coremill_verify::Verified;

pub use backend::{Backend, Executable, Inputs, OutputSlices, Session, Signature, inputs};
pub use coremill_engine::{Array, FeatureSpec, Limits, Outputs, Value};
pub use coremill_runtime::{Hooks, Span};
pub use coreml::CoreMlBackend;
pub use device::{ChipInfo, Device, ane_available, chip_info};
pub use engine::{EngineBackend, EngineExecutable};
pub use error::{Error, ErrorKind, Result};
pub use executorch::{ExactValue, ExecuTorchBackend, MethodSession, ProgramExecutable};
pub use file_kind::{FileKind, MODEL_EXTENSIONS, OtherFile, models_in};
pub use input::{ArrayView, BorrowedElements, Element, Input};
pub use options::RunOptions;
pub use random::random;
pub use save::{SaveOptions, save};
pub use vocabulary::vocabulary;

/// Prepares a model for the selected device.
pub fn load(model: &Verified<'_>, options: &RunOptions) -> Result<Arc<dyn Executable>> {
    options.device.check()?;
    match options.device {
        Device::Host => EngineBackend.prepare(model, options),
        _ => CoreMlBackend.prepare(model, options),
    }
}

/// Prepares an ExecuTorch program, whose delegates run on the selected device.
pub fn load_program(
    program: coremill_pte::Program,
    options: &RunOptions,
) -> Result<Arc<dyn Executable>> {
    options.device.check()?;
    ExecuTorchBackend.prepare(program, options)
}
