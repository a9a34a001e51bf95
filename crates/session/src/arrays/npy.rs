use std::borrow::Cow;
use std::io::{self, Write};
use std::path::Path;

use coremill_engine::{Array, Elements};
use coremill_tensor::DType;

use super::header::Header;
use super::{MAX_BYTES, read_mapped, replace};
use crate::error::Error;

/// Reads a `.npy` file.
pub fn read_npy(path: impl AsRef<Path>) -> Result<Array, Error> {
    read_mapped(path.as_ref(), |bytes| from_npy(bytes.as_bytes()))
}

/// Writes a `.npy` file. An existing file is replaced atomically after everything is written.
pub fn write_npy(path: impl AsRef<Path>, array: &Array) -> Result<(), Error> {
    replace(path.as_ref(), |to| to_npy(to, array))
}

/// Parses a `.npy` file.
pub fn from_npy(bytes: &[u8]) -> Result<Array, Error> {
    let (header, data) = Header::read(bytes)?;
    let (element, count) = layout(&header, data.len() as u64)?;
    let shape = &header.shape;
    // The product of the sizes after a 0 may still overflow.
    let mut extents: Vec<usize> = shape.clone();
    if header.fortran_order {
        extents.reverse();
    }
    if extents.iter().try_fold(1usize, |all, &extent| all.checked_mul(extent)).is_none() {
        return Err(Error::new(format!("an array of shape {shape:?} is too large")));
    }
    let data = element.native(data);
    let array = match element.kind {
        Kind::Tensor(dtype) => Array::from_bytes(dtype, &extents, &data)
            .ok_or_else(|| element.misfit(&data))
            .and_then(|array| element.check(array, &data))?,
        Kind::Unicode => Array::texts(extents, unicode(&data, element.bytes, count)?),
        Kind::Ascii => Array::texts(extents, ascii(&data, element.bytes)?),
    };
    Ok(if header.fortran_order { turned(&array) } else { array })
}

/// Shape of the array in a `.npy` file of `size` bytes, from the bytes at its start. The file size is checked.
pub(super) fn shape(start: &[u8], size: u64) -> Result<Vec<usize>, Error> {
    let (header, data) = Header::read(start)?;
    let before = (start.len() - data.len()) as u64;
    layout(&header, size.saturating_sub(before))?;
    Ok(header.shape)
}

/// Element type and number of elements, for data of `size` bytes.
fn layout(header: &Header, size: u64) -> Result<(ElementType<'_>, u64), Error> {
    let element = ElementType::parse(&header.descr)?;
    let (shape, width) = (&header.shape, element.bytes as u64);
    let count = shape.iter().try_fold(1u64, |count, &extent| count.checked_mul(extent as u64));
    // Zero-width elements must be rejected, as their number is not limited by the data.
    let fits = |count: &u64| {
        count.checked_mul(width) == Some(size)
            && *count <= size.saturating_mul(u64::from(width > 0))
    };
    match count.filter(fits) {
        Some(count) => Ok((element, count)),
        None => Err(Error::new(format!(
            "an array of type `{}` and shape {shape:?} does not match its {size} bytes of data",
            header.descr
        ))),
    }
}

/// Writes an array as a `.npy` file.
pub fn to_npy(to: &mut dyn Write, array: &Array) -> io::Result<()> {
    let (header, data) = parts(array)?;
    to.write_all(&header)?;
    to.write_all(&data)
}

/// Serialized header and elements.
pub(super) fn parts(array: &Array) -> io::Result<(Vec<u8>, Vec<u8>)> {
    let shape = array.shape().to_vec();
    let (descr, data) = match array.elements() {
        Elements::Texts(texts) => text_parts(texts)?,
        Elements::Floats(floats) => match array.dtype() {
            DType::Fp16 => ("<f2".to_owned(), array.to_bytes()),
            DType::Fp64 => ("<f8".to_owned(), array.to_bytes()),
            // numpy has no narrower floats; `f4` represents all of them.
            _ => {
                let data = floats.iter().flat_map(|float| float.to_le_bytes()).collect();
                ("<f4".to_owned(), Some(data))
            }
        },
        Elements::Ints(ints) => match array.dtype() {
            DType::Bool => ("|b1".to_owned(), array.to_bytes()),
            DType::Int4 | DType::Int8 => {
                ("|i1".to_owned(), Some(ints.iter().map(|&int| int as u8).collect()))
            }
            DType::Int16 => ("<i2".to_owned(), array.to_bytes()),
            DType::Int32 => ("<i4".to_owned(), array.to_bytes()),
            DType::Int64 => ("<i8".to_owned(), array.to_bytes()),
            DType::UInt16 => ("<u2".to_owned(), array.to_bytes()),
            DType::UInt32 => ("<u4".to_owned(), array.to_bytes()),
            DType::UInt64 => ("<u8".to_owned(), array.to_bytes()),
            _ => ("|u1".to_owned(), Some(ints.iter().map(|&int| int as u8).collect())),
        },
    };
    let data =
        data.ok_or_else(|| io::Error::other("the elements of the array cannot be written"))?;
    Ok((Header { descr, fortran_order: false, shape }.to_bytes(), data))
}

fn text_parts(texts: &[String]) -> io::Result<(String, Option<Vec<u8>>)> {
    let longest = texts.iter().map(|text| text.chars().count()).max().unwrap_or(0).max(1);
    // Every element has the width of the longest.
    let bytes = longest.checked_mul(4).and_then(|width| width.checked_mul(texts.len()));
    let Some(bytes) = bytes.filter(|&bytes| bytes as u64 <= MAX_BYTES) else {
        let count = texts.len();
        return Err(io::Error::other(format!(
            "{count} strings of up to {longest} characters are too large for an array"
        )));
    };
    let mut data = Vec::with_capacity(bytes);
    for text in texts {
        let start = data.len();
        data.extend(text.chars().flat_map(|c| u32::from(c).to_le_bytes()));
        data.resize(start + 4 * longest, 0);
    }
    Ok((format!("<U{longest}"), Some(data)))
}

/// An element type in numpy's notation: byte order, kind, width.
struct ElementType<'a> {
    descr: &'a str,
    kind: Kind,
    big_endian: bool,
    /// Width of an element in bytes.
    bytes: usize,
}

enum Kind {
    Tensor(DType),
    Unicode,
    Ascii,
}

impl<'a> ElementType<'a> {
    fn parse(descr: &'a str) -> Result<ElementType<'a>, Error> {
        let refuse = || {
            Error::new(format!("arrays of type `{descr}` are not supported"))
                .with_hint("convert them with `astype` to b1, i1 to i8, u1 to u8, f2 to f8, U or S")
        };
        let mut rest = descr.chars();
        let big_endian = match rest.next() {
            Some('>') => true,
            Some('<' | '|' | '=') => false,
            _ => return Err(refuse()),
        };
        let kind = rest.next().ok_or_else(refuse)?;
        let width: usize = rest.as_str().parse().map_err(|_| refuse())?;
        let (kind, bytes) = match (kind, width) {
            ('b', 1) => (Kind::Tensor(DType::Bool), 1),
            ('i', 1) => (Kind::Tensor(DType::Int8), 1),
            ('i', 2) => (Kind::Tensor(DType::Int16), 2),
            ('i', 4) => (Kind::Tensor(DType::Int32), 4),
            ('i', 8) => (Kind::Tensor(DType::Int64), 8),
            ('u', 1) => (Kind::Tensor(DType::UInt8), 1),
            ('u', 2) => (Kind::Tensor(DType::UInt16), 2),
            ('u', 4) => (Kind::Tensor(DType::UInt32), 4),
            ('u', 8) => (Kind::Tensor(DType::UInt64), 8),
            ('f', 2) => (Kind::Tensor(DType::Fp16), 2),
            ('f', 4) => (Kind::Tensor(DType::Fp32), 4),
            ('f', 8) => (Kind::Tensor(DType::Fp64), 8),
            ('V', 2) => (Kind::Tensor(DType::Bf16), 2),
            ('U', width) => (Kind::Unicode, width.checked_mul(4).ok_or_else(refuse)?),
            ('S', width) => (Kind::Ascii, width),
            _ => return Err(refuse()),
        };
        Ok(ElementType { descr, kind, big_endian, bytes })
    }

    /// The elements in little-endian order.
    fn native<'d>(&self, data: &'d [u8]) -> Cow<'d, [u8]> {
        let word = match self.kind {
            Kind::Tensor(_) => self.bytes,
            Kind::Unicode => 4,
            Kind::Ascii => 1,
        };
        if !self.big_endian || word == 1 {
            return Cow::Borrowed(data);
        }
        let mut data = data.to_vec();
        data.chunks_exact_mut(word).for_each(<[u8]>::reverse);
        Cow::Owned(data)
    }

    /// Error for an integer outside 32 bits.
    fn misfit(&self, data: &[u8]) -> Error {
        let words = data.chunks_exact(self.bytes);
        let numbers = words.map(|word| {
            let mut wide = [0; 8];
            wide[..word.len()].copy_from_slice(word);
            match self.kind {
                Kind::Tensor(DType::Int64) => i128::from(i64::from_le_bytes(wide)),
                _ => i128::from(u64::from_le_bytes(wide)),
            }
        });
        let outside = numbers.into_iter().find(|number| i32::try_from(*number).is_err());
        let found = outside.map_or_else(String::new, |number| format!(" {number}"));
        Error::new(format!(
            "the element{found} of an array `{}` does not fit in 32 bits",
            self.descr
        ))
        .with_hint("Core ML computes on 32-bit integers")
    }

    /// Returns the array, unless a finite 64-bit float became infinite.
    fn check(&self, array: Array, data: &[u8]) -> Result<Array, Error> {
        if !matches!(self.kind, Kind::Tensor(DType::Fp64)) {
            return Ok(array);
        }
        let wide = data.as_chunks::<8>().0.iter().map(|word| f64::from_le_bytes(*word));
        match wide.into_iter().find(|&float| float.is_finite() && !(float as f32).is_finite()) {
            Some(outside) => {
                let message = format!("the element {outside:e} of an array `{}`", self.descr);
                Err(Error::new(message + " becomes infinite in 32 bits"))
            }
            None => Ok(array),
        }
    }
}

fn unicode(data: &[u8], width: usize, count: u64) -> Result<Vec<String>, Error> {
    let mut texts = Vec::new();
    if count == 0 {
        return Ok(texts);
    }
    for element in data.chunks_exact(width) {
        let codes = element.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word));
        let text: Option<String> = codes.map(char::from_u32).collect();
        let text =
            text.ok_or_else(|| Error::new("the array has a string that is not valid Unicode"))?;
        texts.push(text.trim_end_matches('\0').to_owned());
    }
    Ok(texts)
}

fn ascii(data: &[u8], width: usize) -> Result<Vec<String>, Error> {
    let mut texts = Vec::new();
    if data.is_empty() {
        return Ok(texts);
    }
    for element in data.chunks_exact(width) {
        let text = std::str::from_utf8(element);
        let text =
            text.map_err(|_| Error::new("the array has a string that is not valid UTF-8"))?;
        texts.push(text.trim_end_matches('\0').to_owned());
    }
    Ok(texts)
}

/// Reverses the order of the axes.
fn turned(array: &Array) -> Array {
    fn turn<T: Clone>(elements: &[T], shape: &[usize]) -> Vec<T> {
        let rank = shape.len();
        // Distance in `elements` of neighbors along each axis of the result.
        let mut steps = vec![1; rank];
        for axis in 1..rank {
            steps[axis] = steps[axis - 1] * shape[rank - axis];
        }
        let mut turned = Vec::with_capacity(elements.len());
        let mut index = vec![0; rank];
        let mut at = 0;
        while turned.len() < elements.len() {
            turned.push(elements[at].clone());
            for axis in (0..rank).rev() {
                index[axis] += 1;
                at += steps[axis];
                if index[axis] < shape[rank - 1 - axis] {
                    break;
                }
                at -= steps[axis] * index[axis];
                index[axis] = 0;
            }
        }
        turned
    }
    let from = array.shape();
    let shape: Vec<usize> = from.iter().rev().copied().collect();
    match array.elements() {
        Elements::Floats(floats) => Array::floats(array.dtype(), shape, turn(floats, from)),
        Elements::Ints(ints) => Array::ints(array.dtype(), shape, turn(ints, from)),
        Elements::Texts(texts) => Array::texts(shape, turn(texts, from)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn npy(version: u8, header: &str, data: &[u8]) -> Vec<u8> {
        let length = header.len() as u32;
        let length = length.to_le_bytes();
        let length = if version == 1 { &length[..2] } else { &length[..] };
        [b"\x93NUMPY", &[version, 0][..], length, header.as_bytes(), data].concat()
    }

    fn parse(descr: &str, order: &str, shape: &str, data: &[u8]) -> Result<Array, Error> {
        let header = format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}}}");
        from_npy(&npy(1, &header, data))
    }

    fn concat<const N: usize>(words: &[[u8; N]]) -> Vec<u8> {
        words.concat()
    }

    #[test]
    fn reads_npy_dtypes_byte_orders_and_versions() {
        let words = |values: &[i16]| values.iter().map(|v| v.to_be_bytes()).collect::<Vec<_>>();
        let array = parse(">i2", "False", "(2,)", &concat(&words(&[-2, 300]))).expect("two");
        assert_eq!((array.dtype(), array.as_ints()), (DType::Int16, Some(&[-2, 300][..])));
        let data = concat(&[0.5f64.to_be_bytes(), f64::INFINITY.to_be_bytes()]);
        let array = parse(">f8", "False", "(2,)", &data).expect("two");
        assert_eq!(array.as_floats(), Some(&[0.5, f32::INFINITY][..]));
        let array = parse("|b1", "False", "()", &[1]).expect("a scalar");
        assert_eq!((array.dtype(), array.as_ints()), (DType::Bool, Some(&[1][..])));
        let array = parse("<V2", "False", "(1,)", &[0x80, 0x3f]).expect("one");
        assert_eq!((array.dtype(), array.as_floats()), (DType::Bf16, Some(&[1.0][..])));
        let data = concat(&[(u32::from('ß')).to_be_bytes(), [0; 4]]);
        let array = parse(">U2", "False", "(1,)", &data).expect("a text");
        assert_eq!(array.elements(), Array::texts([1], vec!["ß".to_owned()]).elements());
        for version in [1, 2, 3] {
            let header = "{'descr': '|u1', 'fortran_order': False, 'shape': (3,), }";
            let array = from_npy(&npy(version, header, &[1, 2, 255])).expect("three bytes");
            assert_eq!(array.as_ints(), Some(&[1, 2, 255][..]));
        }
    }

    #[test]
    fn converts_fortran_order_to_row_major() {
        let array = parse("|i1", "True", "(2, 3)", &[1, 4, 2, 5, 3, 6]).expect("six");
        assert_eq!((array.shape(), array.as_ints()), (&[2, 3][..], Some(&[1, 2, 3, 4, 5, 6][..])));
        let data: Vec<u8> = (0..24).collect();
        let array = parse("|u1", "True", "(2, 3, 4)", &data).expect("24");
        // numpy: np.arange(24).reshape(4, 3, 2).T
        let ints = array.as_ints().expect("integers");
        assert_eq!(ints[..8], [0, 6, 12, 18, 2, 8, 14, 20]);
        assert_eq!(ints[12..16], [1, 7, 13, 19]);
    }

    #[test]
    fn rejects_overflowing_values_sizes_and_shapes() {
        let error = |result: Result<Array, Error>| result.expect_err("refused").to_string();
        assert_eq!(
            error(parse("<i8", "False", "(1,)", &5_000_000_000i64.to_le_bytes())),
            "the element 5000000000 of an array `<i8` does not fit in 32 bits"
        );
        assert_eq!(
            error(parse("<u4", "False", "(1,)", &u32::MAX.to_le_bytes())),
            "the element 4294967295 of an array `<u4` does not fit in 32 bits"
        );
        assert_eq!(
            error(parse("<f8", "False", "(1,)", &1e300f64.to_le_bytes())),
            "the element 1e300 of an array `<f8` becomes infinite in 32 bits"
        );
        assert_eq!(
            error(parse("<f4", "False", "(2,)", &[0; 7])),
            "an array of type `<f4` and shape [2] does not match its 7 bytes of data"
        );
        assert_eq!(
            error(parse("<c8", "False", "(1,)", &[0; 8])),
            "arrays of type `<c8` are not supported"
        );
        // Sizes that overflow, and invalid characters. The cases without data only must not panic: some are valid empty arrays.
        for (descr, shape, data) in [
            ("<U0", "(1152921504606846976,)", &[][..]),
            ("<f4", "(4294967296, 4294967296, 4294967296, 0)", &[]),
            ("<f4", "(0, 4294967296, 4294967296, 4294967296)", &[]),
            ("<f4", "(18446744073709551615,)", &[0; 4]),
            ("<U4611686018427387904", "(1,)", &[]),
            ("<S1", "(1,)", &[0xff]),
            ("<U1", "(1,)", &[0xff; 4]),
        ] {
            for order in ["False", "True"] {
                let read = parse(descr, order, shape, data);
                assert!(read.is_err() || data.is_empty(), "{descr} {shape}");
            }
        }
    }

    #[test]
    fn round_trips_arrays_through_npy() {
        let arrays = [
            Array::floats(DType::Fp16, [2, 1], vec![0.5, -65504.0]),
            Array::floats(DType::Fp64, [1], vec![0.1]),
            Array::ints(DType::Int64, [1, 2], vec![i32::MIN, i32::MAX]),
            Array::ints(DType::UInt16, [1], vec![65535]),
            Array::ints(DType::Bool, [], vec![1]),
            Array::texts([2], vec!["tench".to_owned(), "größer".to_owned()]),
            Array::floats(DType::Fp32, [0, 3], vec![]),
        ];
        for array in arrays {
            let mut bytes = Vec::new();
            to_npy(&mut bytes, &array).expect("memory");
            assert_eq!(from_npy(&bytes).expect("the written array"), array);
        }
        for (dtype, expected) in [(DType::Int4, DType::Int8), (DType::UInt3, DType::UInt8)] {
            let mut bytes = Vec::new();
            to_npy(&mut bytes, &Array::ints(dtype, [1], vec![5])).expect("memory");
            assert_eq!(
                from_npy(&bytes).expect("the written array"),
                Array::ints(expected, [1], vec![5])
            );
        }
    }
}
