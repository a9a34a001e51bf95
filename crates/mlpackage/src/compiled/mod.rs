//! Compiled models: `.mlmodelc` directories, which Core ML loads without compiling them.
//!
//! ```text
//! model.mlmodelc/
//!   model.mil                 the program as text
//!   coremldata.bin            the kind of model, its version and its description
//!   metadata.json             what tools show about it
//!   analytics/coremldata.bin  the model file's name and a hash of it
//!   weights/...               the weight files, as in a package
//! ```
//!
//! A pipeline contains a directory `model0`, `model1`, ... for each stage, with the same files except
//! `metadata.json`. Instead of `model.mil` it has the names of the stages in `modelNames/coremldata.bin`.
//!
//! For an ML Program, compiling is mostly a change of format: Apple's compiler writes the same program in
//! another format and leaves optimization to the loader. It adds two attributes, and so does [`write()`]: the
//! compiler (`buildInfo`), and the allowed shapes of inputs ([`model::shapes`](coremill_mil::model::shapes)).
//! It also sorts the inputs of functions by name. [`read`] reverses these changes, so that the result equals
//! the model of the package.
//!
//! ```
//! use coremill_mlpackage::compiled;
//! use coremill_mil::{model::describe, text};
//! use coremill_verify::verify;
//!
//! let source = "program(1.3) { func main<ios17>(tensor<fp32, [1, 4]> x) { \
//!               tensor<fp32, [1, 4]> y = relu(x = x); } -> (y); }";
//! let model = describe(text::parse(source, &text::NoWeights)?)?;
//! let directory = tempfile::tempdir()?;
//! let path = directory.path().join("relu.mlmodelc");
//! compiled::write(&path, &verify(&model)?, &compiled::WriteOptions::default())?;
//! assert_eq!(compiled::read(&path)?.program, model.program);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod analytics;
mod build_info;
mod container;
mod histogram;
mod metadata;
mod names;
mod pipeline;
mod read;
mod write;

pub use crate::package::{Error, ErrorKind, TreeFile, VirtualDirectory};
pub use pipeline::{read_pipeline, write_pipeline};
pub use read::{from_bytes, from_tree, read, read_with_listing, read_without_weights};
pub use write::{WriteOptions, to_tree, unhashed, write};

/// The files of a compiled model.
mod file {
    pub(super) const TEXT: &str = "model.mil";
    pub(super) const DATA: &str = "coremldata.bin";
    pub(super) const METADATA: &str = "metadata.json";
    pub(super) const ANALYTICS: &str = "analytics/coremldata.bin";
    pub(super) const NAMES: &str = "modelNames/coremldata.bin";
}
