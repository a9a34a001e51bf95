//! Packages: the `.mlpackage` directories of ML Programs.
//!
//! | file | contents |
//! |---|---|
//! | `Manifest.json` | the list of files, and which one is the model |
//! | `Data/com.apple.CoreML/model.mlmodel` | the model, a protobuf message |
//! | `Data/com.apple.CoreML/weights/weight.bin` | large constants, which the model refers to by offset |
//!
//! [`read`] accepts untrusted packages: the result is valid as far as the format defines it, and the verifier
//! checks the program. Weights stay in their files. [`write`](write()) replaces a package in one step, and
//! the same model always results in the same bytes. [`to_tree`] and [`from_tree`] do the same for packages
//! inside other files. Unknown fields are preserved, or rejected with an error that names them.
//!
//! ```
//! use coremill_mil::{model::describe, text};
//! use coremill_verify::verify;
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
