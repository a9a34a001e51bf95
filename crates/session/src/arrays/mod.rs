//! numpy's files: `.npy` for one array, `.npz` for several named arrays.
//!
//! Arrays are written in the numpy type that holds their elements: booleans, integers and floats as such, integers
//! narrower than a byte as bytes, `bf16` and 8-bit floats, which numpy lacks, as `float32`, strings as `<U`. Files
//! may be of either byte order, in C or Fortran order, stored or compressed. 64-bit numbers are converted to the 32
//! bits of an [`Array`]; integers that do not fit are an error. Two-byte void elements (`V2`), the form in which
//! numpy writes `ml_dtypes.bfloat16`, are read as `bf16`.
//!
//! ```
//! use coremill_engine::Array;
//! use coremill_session::arrays;
//! use coremill_tensor::DType;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let directory = tempfile::tempdir()?;
//! let path = directory.path().join("inputs.npz");
//! let x = Array::floats(DType::Fp16, [2, 1], vec![0.5, -2.0]);
//! arrays::write_npz(&path, &[("x".to_owned(), x.clone())])?;
//! assert_eq!(arrays::read_npz(&path)?, [("x".to_owned(), x)]);
//! # Ok(())
//! # }
//! ```

mod header;
mod npy;
mod npz;

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::Path;

use coremill_io::write_anew;
use coremill_tensor::Buffer;

use crate::error::Error;

pub use npy::{from_npy, read_npy, to_npy, write_npy};
pub use npz::{from_npz, from_npz_for, read_npz, read_npz_for, to_npz, write_npz};

/// Maximum size in bytes of the arrays of a file. Compressed files may expand a thousandfold.
pub const MAX_BYTES: u64 = 16 << 30;

/// Maximum size in bytes of a `.npy` header. numpy's headers for plain arrays have 64 to 192.
pub const MAX_HEADER_BYTES: usize = 1 << 16;

/// Maximum rank of an array, as in numpy.
pub const MAX_RANK: usize = 64;

/// Signature of zip archives. An empty archive differs, but contains no array.
const ARCHIVE: &[u8] = b"PK\x03\x04";

/// Reads a stream such as a pipe to its end, for [`from_npz`]; at most [`MAX_BYTES`].
pub fn read_all(mut from: &mut dyn Read, name: &str) -> Result<Buffer, Error> {
    let failed = |error: io::Error| Error::io("read", Path::new(name), error);
    let mut bytes = Vec::new();
    (&mut from).take(ARCHIVE.len() as u64).read_to_end(&mut bytes).map_err(failed)?;
    // Rejects other data at once, as the stream may be endless.
    if !bytes.is_empty() && bytes != ARCHIVE {
        let error = Error::new(format!("{name}: it is not a zip archive"));
        return Err(error.with_hint("pass arrays as a `.npz` file, which numpy's `savez` writes"));
    }
    from.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(Error::new(format!("{name} is longer than {MAX_BYTES} bytes")));
    }
    Ok(Buffer::from(bytes))
}

/// Reads a mapped file. Fails if the file was truncated in the meantime.
fn read_mapped<T>(path: &Path, read: impl FnOnce(Buffer) -> Result<T, Error>) -> Result<T, Error> {
    let bytes = Buffer::map(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Error::missing(path),
        _ => Error::io("read", path, error),
    })?;
    let found = read(bytes.clone()).map_err(|error| error.within(path));
    bytes.check().map_err(|error| Error::io("read", path, error)).and(found)
}

fn replace(path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Error> {
    replace_file(path, |file: &mut File| {
        let mut to = BufWriter::new(file);
        write(&mut to)?;
        to.flush()
    })
}

/// Writes a file. An existing file is replaced atomically after everything is written. Devices and pipes are written
/// to directly.
pub fn replace_file(
    path: &Path,
    write: impl FnOnce(&mut File) -> io::Result<()>,
) -> Result<(), Error> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let directory = parent.unwrap_or(Path::new("."));
    if !directory.is_dir() {
        return Err(Error::missing_directory(directory));
    }
    write_anew(path, false, write).map_err(|error| Error::io("write", path, error))
}
