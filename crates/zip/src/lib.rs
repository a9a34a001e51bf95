//! Reader and writer of zip archives.
//!
//! The `zip` crate is not used: torch writes dates with month 0 and local headers without sizes, and weights must
//! stay mapped. This reader relies on the central directory only, including zip64, and returns stored entries as
//! slices of the file. Archives may be malicious; [`limits`] bounds the reader's resources.
//!
//! ```
//! use coremill_tensor::Buffer;
//! use coremill_zip::{Archive, Writer};
//!
//! let mut writer = Writer::new(Vec::new());
//! writer.add("x.npy", &[b"some ", b"bytes"])?;
//! let archive = Archive::open(Buffer::from(writer.finish()?)).expect("a valid archive");
//! assert_eq!(archive.read("x.npy", 100).expect("few bytes").as_bytes(), b"some bytes");
//! # Ok::<(), std::io::Error>(())
//! ```

mod error;
mod format;
pub mod limits;
mod read;
mod write;

pub use error::{Error, ErrorKind};
pub use read::Archive;
pub use write::Writer;
