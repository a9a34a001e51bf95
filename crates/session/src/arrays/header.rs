//! The header of a `.npy` file: a Python dictionary of one line.

use std::fmt::Write as _;

use super::{MAX_HEADER_BYTES, MAX_RANK};
use crate::error::Error;

const MAGIC: &[u8] = b"\x93NUMPY";

/// Alignment of the data, as in numpy.
const ALIGNMENT: usize = 64;

/// Fields of a header.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// Element type in numpy's notation, such as `<f4`.
    pub(super) descr: String,
    /// Whether the first axis varies fastest.
    pub(super) fortran_order: bool,
    pub(super) shape: Vec<usize>,
}

impl Header {
    /// Parses a header, and returns the bytes after it.
    pub(super) fn read(bytes: &[u8]) -> Result<(Header, &[u8]), Error> {
        let cut = || Error::new("the header of the array is truncated");
        let rest = bytes.strip_prefix(MAGIC).ok_or_else(|| {
            Error::new("it is not a `.npy` array: it does not begin with `\\x93NUMPY`")
        })?;
        let (&[major, _minor], rest) = rest.split_first_chunk::<2>().ok_or_else(cut)?;
        let (length, rest) = match major {
            1 => {
                let (length, rest) = rest.split_first_chunk::<2>().ok_or_else(cut)?;
                (usize::from(u16::from_le_bytes(*length)), rest)
            }
            2 | 3 => {
                let (length, rest) = rest.split_first_chunk::<4>().ok_or_else(cut)?;
                (u32::from_le_bytes(*length) as usize, rest)
            }
            _ => {
                let message = format!("the `.npy` file must have version 1 to 3, got {major}");
                return Err(Error::new(message));
            }
        };
        if length > MAX_HEADER_BYTES {
            return Err(Error::new(format!(
                "the array's header must have at most {MAX_HEADER_BYTES} bytes, got {length}"
            )));
        }
        let (text, data) = rest.split_at_checked(length).ok_or_else(cut)?;
        let text = std::str::from_utf8(text).ok();
        let header = text.and_then(|text| Dictionary { rest: text }.parse());
        let header = header.ok_or_else(|| {
            Error::new(
                "the header of the array does not specify `descr`, `fortran_order` and `shape`",
            )
            .with_hint("structured and pickled arrays are not supported; save plain arrays")
        })?;
        Ok((header, data))
    }

    /// Serializes the header with magic number and length, padded so that data is aligned.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut shape = String::new();
        for extent in &self.shape {
            let _ = write!(shape, "{extent}, ");
        }
        // `(2, 3)`, but `(2,)`.
        let shape =
            if self.shape.len() == 1 { shape.trim_end() } else { shape.trim_end_matches(", ") };
        let order = if self.fortran_order { "True" } else { "False" };
        let descr = &self.descr;
        let mut text =
            format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': ({shape}), }}");
        let before = MAGIC.len() + 4;
        let padded = (before + text.len() + 1).next_multiple_of(ALIGNMENT);
        text.push_str(&" ".repeat(padded - before - text.len() - 1));
        text.push('\n');
        // A header for 64 sizes of 20 digits fits in the 65535 bytes of version 1.
        let mut bytes = [MAGIC, &[1, 0], &(text.len() as u16).to_le_bytes()].concat();
        bytes.extend(text.as_bytes());
        bytes
    }
}

/// Parser of a header.
struct Dictionary<'a> {
    rest: &'a str,
}

impl<'a> Dictionary<'a> {
    fn parse(mut self) -> Option<Header> {
        let (mut descr, mut fortran_order, mut shape) = (None, None, None);
        self.token("{")?;
        while self.token("}").is_none() {
            let key = self.string()?;
            self.token(":")?;
            match key {
                "descr" if descr.is_none() => descr = Some(self.string()?.to_owned()),
                "fortran_order" if fortran_order.is_none() => {
                    fortran_order = Some(if self.token("True").is_some() {
                        true
                    } else {
                        self.token("False")?;
                        false
                    });
                }
                "shape" if shape.is_none() => shape = Some(self.shape()?),
                _ => return None,
            }
            if self.token(",").is_none() {
                self.token("}")?;
                break;
            }
        }
        let ends = self.rest.trim().is_empty();
        ends.then_some(Header { descr: descr?, fortran_order: fortran_order?, shape: shape? })
    }

    fn shape(&mut self) -> Option<Vec<usize>> {
        let mut shape = Vec::new();
        self.token("(")?;
        while self.token(")").is_none() {
            self.rest = self.rest.trim_start();
            let digits = self.rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(self.rest.len());
            let (number, rest) = self.rest.split_at(digits);
            // Python 2 wrote `3L`.
            self.rest = rest.strip_prefix('L').unwrap_or(rest);
            shape.push(number.parse().ok()?);
            if shape.len() > MAX_RANK {
                return None;
            }
            if self.token(",").is_none() {
                self.token(")")?;
                break;
            }
        }
        Some(shape)
    }

    fn string(&mut self) -> Option<&'a str> {
        self.rest = self.rest.trim_start();
        let quote = self.rest.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
        let (text, rest) = self.rest[1..].split_once(quote)?;
        self.rest = rest;
        (!text.contains('\\')).then_some(text)
    }

    fn token(&mut self, token: &str) -> Option<()> {
        self.rest = self.rest.trim_start().strip_prefix(token)?;
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<Header> {
        Dictionary { rest: text }.parse()
    }

    #[test]
    fn reads_and_writes_numpy_headers() {
        let header = read("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }  \n");
        let expected = Header { descr: "<f4".to_owned(), fortran_order: false, shape: vec![2, 3] };
        assert_eq!(header, Some(expected));
        let header = read("{\"shape\": (3L,), \"fortran_order\": True, \"descr\": \"|u1\"}");
        let expected = Header { descr: "|u1".to_owned(), fortran_order: true, shape: vec![3] };
        assert_eq!(header.as_ref(), Some(&expected));
        let bytes = expected.to_bytes();
        assert_eq!(bytes.len() % ALIGNMENT, 0);
        assert_eq!(Header::read(&bytes).expect("the written header"), (expected, &[][..]));
    }

    #[test]
    fn rejects_malformed_and_structured_headers() {
        for text in [
            "",
            "{}",
            "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': ()}",
            "{'descr': '<f4', 'fortran_order': 0, 'shape': ()}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'shape': (2,)}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)} more",
            "{'descr': '<f4', 'fortran_order': False}",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
