//! Core ML models on any operating system: convert, open, check, summarize, run, compare and save.
//!
//! [`convert`](fn@convert) converts an archive of `torch.export.save` to a model, [`lower`] to an
//! ExecuTorch program. [`open`] reads a package, a compiled model, a model file or MIL text.
//! [`open_with_source`] also keeps the text, for reports with source lines. [`verify`] proves that
//! Core ML would accept the model, or reports all problems. [`save`] writes a verified model in the
//! format of the path's extension.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let directory = tempfile::tempdir()?;
//! let source = directory.path().join("twice.mil");
//! std::fs::write(&source, "
//!     program(1.3) {
//!         func main<ios17>(tensor<fp32, [2, 3]> x) {
//!             tensor<fp32, [2, 3]> y = add(x = x, y = x);
//!         } -> (y);
//!     }
//! ")?;
//!
//! let model = coremill::open(&source)?;
//! let verified = coremill::verify(&model)?;
//! let package = directory.path().join("twice.mlpackage");
//! coremill::save(&package, &verified, &coremill::SaveOptions::default())?;
//!
//! let summary = coremill::summary::summarize(&coremill::open(&package)?);
//! assert_eq!(summary.functions[0].inputs[0].name, "x");
//! # Ok(())
//! # }
//! ```
//!
//! | module | contents |
//! |---|---|
//! | [`precision`] | mixed precision, chosen with samples |
//! | [`mod@convert`] | conversion of PyTorch programs, and verification of the results |
//! | [`quantize`] | post-training quantization with samples, and the loss of each layer |
//! | [`edit`] | edits of inputs, outputs, names, types, images, labels and functions |
//! | [`compare`] | comparison of two models, value by value |
//! | [`compress`] | compression and decompression of weights |
//! | [`executorch`] | ExecuTorch programs and their Core ML models |
//! | [`session`] | execution of models and ExecuTorch programs on every device |
//! | [`graph`] | models described in Rust, their parameters and sessions |
//! | [`llm`] | language models: conversion, tokenizers, generation |
//! | [`engine`] | execution on this machine's CPU |
//! | [`arrays`] | arrays in numpy's file formats |
//! | [`feedback`] | outputs of one step that are inputs of the next |
//! | `images` | image inputs; needs the feature `images` |
//! | [`summary`] | summary of a model |
//! | [`mil`] | programs, descriptions, the operation table, MIL text and the verifier |

#![deny(missing_docs)]

pub mod compare;
pub mod compress;
#[cfg(feature = "compiler")]
pub mod convert;
pub mod engine;
mod error;
pub mod executorch;
#[cfg(feature = "compiler")]
pub mod feedback;
mod files;
mod fill;
pub mod mil;
#[cfg(feature = "compiler")]
pub mod precision;
#[cfg(feature = "compiler")]
mod programs;
pub mod quantity;
#[cfg(feature = "compiler")]
pub mod quantize;
pub mod summary;
#[doc(hidden)]
pub mod wording;

#[cfg(feature = "compiler")]
pub use coremill_compiler::{Precision, States};
pub use coremill_device as device;
pub use coremill_edit as edit;
pub use coremill_graph as graph;
pub use coremill_inspect as inspect;
pub use coremill_llm as llm;
pub use coremill_mil::ir::Opset;
pub use coremill_mil::model::Model;
pub use coremill_optimize as optimize;
#[cfg(feature = "images")]
pub use coremill_session::images;
pub use coremill_session::{self as session, FileKind, SaveOptions, arrays, vocabulary};
pub use coremill_tensor::DType;
pub use coremill_verify::{Report, Verified, check, check_on, verify};
pub use error::{Error, ErrorKind};
pub use files::{
    OpenedModel, Source, open, open_pipeline, open_with_source, read_text, save, save_pipeline,
    save_text, write_file,
};
pub use fill::{fill_weights, randomize_weights};

#[cfg(feature = "compiler")]
pub use programs::{Conversion, ConvertOptions, LowerOptions, LoweredProgram, convert, lower};

/// Compiles and runs the Rust code in the README and the documentation with the tests.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../../README.md")]
    pub struct Readme;
    #[doc = include_str!("../../../docs/rust.md")]
    pub struct Rust;
    #[doc = include_str!("../../../docs/compression.md")]
    pub struct Compression;
    #[doc = include_str!("../../../docs/delegate.md")]
    pub struct Delegate;
    #[doc = include_str!("../../../docs/language-models.md")]
    pub struct LanguageModels;
    #[doc = include_str!("../../../docs/executorch.md")]
    pub struct ExecuTorch;
}
