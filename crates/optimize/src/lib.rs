//! Models made smaller, or kept within half precision: compression, quantization and precision search.
//!
//! The search parts convert a program repeatedly, run it on calibration samples and compare the outputs; they need the
//! feature `compiler`. The encodings of compressed weights are in `coremill-compress`, which the compiler uses as well.
//!
//! | module | holds |
//! |---|---|
//! | [`compress`] | compression of finished models: rules, importance of weights by samples, decompression |
//! | `quantize` | post-training quantization with samples, and the loss of each layer |
//! | `precision` | search for the operations that need `fp32` or rescaling, by samples |
//! | `samples`, `archive` | calibration samples from files and folders, and those that an archive holds |
//! | `trial` | programs that are converted and run with different options |

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
