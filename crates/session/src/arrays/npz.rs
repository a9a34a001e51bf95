use std::io::{self, Write};
use std::path::Path;

use coremill_engine::Array;
use coremill_tensor::Buffer;
use coremill_zip::{Archive, Writer};

use super::{MAX_BYTES, MAX_HEADER_BYTES, npy, read_mapped, replace};
use crate::FeatureSpec;
use crate::error::Error;

const EXTENSION: &str = ".npy";

/// Size of magic number, version and length before a header.
const PREFIX_BYTES: usize = 12;

/// Arrays up to this size are read even if no input accepts their shape, so that the checks of the inputs report the
/// mismatch.
const MAX_UNCHECKED_BYTES: u64 = 1 << 20;

/// Reads the arrays of a `.npz` file, in file order.
pub fn read_npz(path: impl AsRef<Path>) -> Result<Vec<(String, Array)>, Error> {
    read_mapped(path.as_ref(), from_npz)
}

/// Reads a `.npz` file for given inputs, like [`from_npz_for`].
pub fn read_npz_for(
    path: impl AsRef<Path>,
    specs: &[FeatureSpec],
) -> Result<Vec<(String, Array)>, Error> {
    read_mapped(path.as_ref(), |bytes| from_npz_for(bytes, specs))
}

/// Writes a `.npz` file. An existing file is replaced atomically after everything is written.
pub fn write_npz(path: impl AsRef<Path>, arrays: &[(String, Array)]) -> Result<(), Error> {
    replace(path.as_ref(), |to| to_npz(to, arrays))
}

/// Parses the arrays of a `.npz` file, in file order.
pub fn from_npz(bytes: Buffer) -> Result<Vec<(String, Array)>, Error> {
    read(bytes, &|_, _, _| Ok(()))
}

/// Parses the arrays of a `.npz` file for given inputs, in file order. An array above one megabyte with a shape that
/// no input accepts is an error before memory is allocated for it, as compressed files may expand a thousandfold.
pub fn from_npz_for(bytes: Buffer, specs: &[FeatureSpec]) -> Result<Vec<(String, Array)>, Error> {
    read(bytes, &|name, shape, size| {
        if size <= MAX_UNCHECKED_BYTES || specs.iter().any(|spec| spec.accepts_shape(shape)) {
            return Ok(());
        }
        Err(match specs.iter().find(|spec| spec.name == name) {
            Some(spec) => Error::new(format!(
                "the shape of `{name}` must be {}, got {shape:?}",
                spec.accepted_shapes()
            )),
            None => Error::new(format!("no input accepts the shape {shape:?} of `{name}`")),
        })
    })
}

/// Reads arrays. `accept` checks the name, shape and size of each before decompression.
fn read(
    bytes: Buffer,
    accept: &dyn Fn(&str, &[usize], u64) -> Result<(), Error>,
) -> Result<Vec<(String, Array)>, Error> {
    if bytes.as_bytes().starts_with(b"\x93NUMPY") {
        return Err(Error::new("it is a `.npy` array, not a `.npz` file")
            .with_hint("save it with `numpy.savez`, or pass it alone, under a name"));
    }
    let of_zip = |error: coremill_zip::Error| {
        let converted = Error::new(error.to_string());
        match error.hint() {
            Some(hint) => converted.with_hint(hint),
            None => converted,
        }
    };
    let archive = Archive::open(bytes).map_err(of_zip)?;
    let mut left = MAX_BYTES;
    let mut arrays = Vec::new();
    for entry in archive.names() {
        let Some(name) = entry.strip_suffix(EXTENSION) else {
            let message = format!(
                "`{}` is not an array; expected a name that ends in `.npy`",
                entry.escape_debug()
            );
            return Err(Error::new(message));
        };
        let start = archive.read_start(entry, PREFIX_BYTES + MAX_HEADER_BYTES).map_err(of_zip)?;
        let size = archive.size(entry).unwrap_or(0);
        let shape = npy::shape(start.as_bytes(), size).map_err(|error| error.of_array(name))?;
        accept(name, &shape, size)?;
        let bytes = archive.read(entry, left).map_err(of_zip)?;
        left -= bytes.len() as u64;
        let array = npy::from_npy(bytes.as_bytes()).map_err(|error| error.of_array(name))?;
        arrays.push((name.to_owned(), array));
    }
    Ok(arrays)
}

/// Writes arrays as an uncompressed `.npz` file.
pub fn to_npz(to: &mut dyn Write, arrays: &[(String, Array)]) -> io::Result<()> {
    let mut writer = Writer::new(to);
    for (name, array) in arrays {
        let (header, data) = npy::parts(array)?;
        writer.add(&format!("{name}{EXTENSION}"), &[&header, &data])?;
    }
    writer.finish().map(|_| ())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use coremill_tensor::DType;

    use super::*;

    #[test]
    fn failed_write_keeps_existing_file() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("x.npz");
        let array = |x: f32| Array::floats(DType::Fp32, [1], vec![x]);
        let first = [("x".to_owned(), array(1.0))];
        write_npz(&path, &first).expect("written");
        let twice = [("x".to_owned(), array(2.0)), ("x".to_owned(), array(3.0))];
        let error = write_npz(&path, &twice).expect_err("a duplicate name");
        assert!(error.to_string().ends_with("two entries have the name `x.npy`"), "{error}");
        assert_eq!(read_npz(&path).expect("the first"), first);
        let entries = fs::read_dir(directory.path()).expect("a directory").count();
        assert_eq!(entries, 1, "a failed write must leave no temporary file");
    }

    #[test]
    fn rejects_non_array_entries_by_name() {
        let zip = |name: &str, bytes: &[u8]| {
            let mut writer = Writer::new(Vec::new());
            writer.add(name, &[bytes]).expect("memory");
            from_npz(Buffer::from(writer.finish().expect("memory"))).expect_err(name).to_string()
        };
        assert_eq!(
            zip("x.pkl", b""),
            "`x.pkl` is not an array; expected a name that ends in `.npy`"
        );
        let message = zip("x.npy", b"rubbish");
        assert!(message.starts_with("`x`: it is not a `.npy` array"), "{message}");
    }
}
