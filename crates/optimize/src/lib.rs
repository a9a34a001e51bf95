//! Compression, quantization and mixed precision of models.
//!
//! Quantization and precision search convert a program repeatedly, run it on calibration samples
//! and compare the outputs. They need the feature `compiler`. `coremill-compress` contains the
//! encodings of compressed weights, since the compiler uses them as well.
//!
//! | module | contents |
//! |---|---|
//! | [`compress`] | compression of finished models: rules, importance from samples, decompression |
//! | `quantize` | post-training quantization with samples, and the loss of each layer |
//! | `precision` | search for operations that need `fp32` or rescaling, with samples |
//! | `samples`, `archive` | calibration samples from files, folders and archives |
//! | `trial` | repeated conversion and execution with different options |

#[cfg(feature = "compiler")]
mod archive;
pub mod compress;
mod error;
mod files;
#[cfg(feature = "compiler")]
pub mod precision;
#[cfg(feature = "compiler")]
pub mod quantize;
mod samples;
mod trial;

#[cfg(feature = "compiler")]
pub use archive::{fit, sample_inputs};
pub use error::{Error, ErrorKind};
pub use samples::{Pixels, Sample};
pub use trial::Artifact;
#[cfg(feature = "compiler")]
pub use trial::Output;
