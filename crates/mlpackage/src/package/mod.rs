//! Packages: the `.mlpackage` directories that hold ML Programs.
//!
//! | file | holds |
//! |---|---|
//! | `Manifest.json` | which files there are, and which is the model |
//! | `Data/com.apple.CoreML/model.mlmodel` | the model, a protobuf message |
//! | `Data/com.apple.CoreML/weights/weight.bin` | large constants, which the model refers to by offset |
//!
//! [`read`] takes any package that an attacker may have written: what it does not refuse is sound, as
//! far as the format goes; whether the program makes sense is for the verifier to say. Weights stay in
//! their files. [`write`](write()) replaces a package in one step, and the same model always gives the
//! same bytes. [`to_tree`] and [`from_tree`] do the same for packages inside other files. Whatever a reader here does not know is kept and written again, or refused by name.
//!
//! ```
//! use coremill_mil::{model::describe, text, verify::verify};
//! use coremill_mlpackage::package;
//!
//! let source = r#"
//!     program(1.3)
//!     {
//!         func main<ios17>(tensor<fp32, [1, 4]> x) {
//!             tensor<fp32, [1, 4]> y = relu(x = x);
//!         } -> (y);
//!     }
//! "#;
//! let model = describe(text::parse(source, &text::NoWeights)?)?;
//! let directory = tempfile::tempdir()?;
//! let path = directory.path().join("relu.mlpackage");
//! package::write(&path, &verify(&model)?, &package::WriteOptions::default())?;
//! assert_eq!(package::read(&path)?, model);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub(crate) mod decode;
pub(crate) mod directory;
pub(crate) mod encode;
mod error;
pub(crate) mod manifest;
mod read;
mod schema;
pub(crate) mod tree;
pub mod weights;
mod wire;
mod write;

pub use directory::WriteOptions;
pub use error::{Error, ErrorKind};
pub use manifest::Manifest;
pub use read::{from_bytes, from_tree, read, read_pipeline};
pub use tree::{PendingPackage, TreeFile, VirtualDirectory, write_files};
pub(crate) use write::check_pipeline;
pub use write::{to_bytes, to_tree, unhashed, write, write_pipeline};
