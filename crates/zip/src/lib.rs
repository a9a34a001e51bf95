//! Zip archives: read where they lie, and written.
//!
//! The usual crate is not used. torch writes dates with month 0 and local headers without sizes, and weights
//! have to stay mapped: this reader goes by the central directory alone, zip64 included, and gives the bytes of
//! a stored entry as a part of the file. Archives may be hostile: [`limits`] bounds what they can ask for.
//!
//! ```
//! use coremill_tensor::Buffer;
//! use coremill_zip::{Archive, Writer};
//!
//! let mut writer = Writer::new(Vec::new());
//! writer.add("x.npy", &[b"some ", b"bytes"])?;
//! let archive = Archive::open(Buffer::from(writer.finish()?)).expect("what was written");
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
