use std::io::{self, Write};

use coremill_engine::Array;
use coremill_tensor::Buffer;
use coremill_zip::{Archive, Writer};

use super::{MAX_BYTES, npy};
use crate::error::Error;

const EXTENSION: &str = ".npy";

/// The arrays of a `.npz` file, in its order.
pub fn from_npz(bytes: Buffer) -> Result<Vec<(String, Array)>, Error> {
    if bytes.as_bytes().starts_with(b"\x93NUMPY") {
        return Err(Error::new("it is a `.npy` array, not a `.npz` file")
            .hint("save it with `numpy.savez`, or pass it alone, under a name"));
    }
    let of_zip = |error: coremill_zip::Error| {
        let converted = Error::new(error.to_string());
        match error.hint() {
            Some(hint) => converted.hint(hint),
            None => converted,
        }
    };
    let archive = Archive::open(bytes).map_err(of_zip)?;
    let mut left = MAX_BYTES;
    let mut arrays = Vec::new();
    for entry in archive.names() {
        let Some(name) = entry.strip_suffix(EXTENSION) else {
            let message =
                format!("`{}` is no array; accepted are `NAME.npy`", entry.escape_debug());
            return Err(Error::new(message));
        };
        let bytes = archive.read(entry, left).map_err(of_zip)?;
        left -= bytes.len() as u64;
        let array = npy::from_npy(bytes.as_bytes()).map_err(|error| error.of_array(name))?;
        arrays.push((name.to_owned(), array));
    }
    Ok(arrays)
}

/// Writes arrays as a `.npz` file, not compressed.
pub fn to_npz(to: &mut dyn Write, arrays: &[(String, Array)]) -> io::Result<()> {
    let mut writer = Writer::new(to);
    for (name, array) in arrays {
        let (header, data) = npy::parts(array)?;
        writer.add(&format!("{name}{EXTENSION}"), &[&header, &data])?;
    }
    writer.finish().map(|_| ())
}
