//! Computes, hashes and writes the contents of files window by window, on all processors.
//!
//! The hash only has to distinguish files that were not constructed to collide. It takes a seventh of the
//! time of writing the bytes; a cryptographic hash takes longer than writing.

use std::fs::File;
use std::io;
use std::sync::{Mutex, PoisonError};

use coremill_io::{PositionedWriter, fill_windows, for_each_window};
use coremill_tensor::Buffer;
use twox_hash::XxHash3_128;

/// Size of a window in bytes. A window stays in the cache while it is computed, hashed and written. Hashes of
/// files depend on this number.
const WINDOW: usize = 256 << 10;

/// Fills a window with the contents at an offset.
pub(super) type Fill<'f> = dyn Fn(u64, &mut [u8]) -> io::Result<()> + Sync + 'f;

/// Writes the output of `fill` to an empty file, and returns its hash. Bytes in memory or in a mapped file
/// are copied as well: the file system then reads them from the cache while it blocks other threads from the
/// file.
///
/// Windows of zeros are not written: the file has its final length from the start, and holes are read as
/// zeros.
pub(super) fn write(file: &File, length: u64, fill: &Fill<'_>) -> io::Result<blake3::Hash> {
    file.set_len(length)?;
    let shared = PositionedWriter::new(file);
    let is_hole = |bytes: &[u8]| bytes.iter().all(|&byte| byte == 0);
    flow(length, fill, &|offset, window| {
        if is_hole(window) { Ok(()) } else { shared.write_at(offset, window) }
    })
}

/// Hash of the contents of a buffer, read without keeping it in memory.
pub(super) fn hash(data: &Buffer) -> io::Result<blake3::Hash> {
    hash_of(data.len() as u64, &|offset, window| data.read_at(offset as usize, window))
}

/// Hash of the output of `fill`.
pub(super) fn hash_of(length: u64, fill: &Fill<'_>) -> io::Result<blake3::Hash> {
    flow(length, fill, &|_, _| Ok(()))
}

/// Fills memory and returns the hash of its contents.
pub(super) fn write_to(target: &mut [u8], fill: &Fill<'_>) -> io::Result<blake3::Hash> {
    let hashes = Hashes::new(target.len().div_ceil(WINDOW));
    fill_windows(target, WINDOW, |offset, window| {
        fill(offset as u64, window)?;
        hashes.add(offset / WINDOW, window);
        Ok(())
    })?;
    Ok(hashes.all())
}

/// Consumes a filled window. It may exchange the buffer.
type Take<'t> = dyn Fn(u64, &mut Vec<u8>) -> io::Result<()> + Sync + 't;

/// Fills all windows of `length` bytes, passes each to `take`, and returns the hash of all windows.
fn flow(length: u64, fill: &Fill<'_>, take: &Take<'_>) -> io::Result<blake3::Hash> {
    let too_long = || {
        io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("{length} bytes exceed the address space"),
        )
    };
    let count = usize::try_from(length.div_ceil(WINDOW as u64)).map_err(|_| too_long())?;
    let hashes = Hashes::new(count);
    for_each_window(length, WINDOW, |offset, window| {
        fill(offset, window)?;
        hashes.add((offset / WINDOW as u64) as usize, window);
        take(offset, window)
    })?;
    Ok(hashes.all())
}

/// Hashes of windows, which threads add in any order.
struct Hashes(Mutex<Vec<u128>>);

impl Hashes {
    fn new(count: usize) -> Hashes {
        Hashes(Mutex::new(vec![0; count]))
    }

    fn add(&self, index: usize, window: &[u8]) {
        let hash = XxHash3_128::oneshot(window);
        self.0.lock().unwrap_or_else(PoisonError::into_inner)[index] = hash;
    }

    /// The hash of all windows. The last window's hash depends on its length.
    fn all(self) -> blake3::Hash {
        let mut all = blake3::Hasher::new();
        for hash in self.0.into_inner().unwrap_or_else(PoisonError::into_inner) {
            all.update(&hash.to_le_bytes());
        }
        all.finalize()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(length: usize) -> Vec<u8> {
        (0..length as u32).map(|at| (at / 7 + at) as u8).collect()
    }

    fn hash_of_bytes(bytes: &[u8]) -> blake3::Hash {
        hash(&Buffer::from(bytes.to_vec())).expect("in memory")
    }

    #[test]
    fn filling_memory_returns_same_hash_as_reading() {
        let bytes = numbers(9 * WINDOW);
        let lengths = [0, 1, 1024, WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW, 3 * WINDOW - 5];
        let mut seen = vec![];
        for length in lengths.into_iter().chain([4 * WINDOW + 1000, 5 * WINDOW, 9 * WINDOW]) {
            let part = Buffer::from(bytes[..length].to_vec());
            let expected = hash(&part).expect("in memory");
            let mut target = vec![0xff; length];
            let fill = |offset: u64, window: &mut [u8]| part.read_at(offset as usize, window);
            assert_eq!(write_to(&mut target, &fill).expect("in memory"), expected, "{length}");
            assert!(target == bytes[..length], "{length}");
            assert!(!seen.contains(&expected), "{length}");
            seen.push(expected);
        }
    }

    #[test]
    fn hash_detects_flipped_moved_and_appended_bytes() {
        let bytes = numbers(4 * WINDOW + 77);
        let expected = hash_of_bytes(&bytes);
        for at in [0, 1, WINDOW - 1, WINDOW, 3 * WINDOW + 5, 4 * WINDOW, 4 * WINDOW + 76] {
            let mut other = bytes.clone();
            other[at] ^= 0x80;
            assert_ne!(hash_of_bytes(&other), expected, "{at}");
        }
        let mut swapped = bytes[WINDOW..2 * WINDOW].to_vec();
        swapped.extend_from_slice(&bytes[..WINDOW]);
        swapped.extend_from_slice(&bytes[2 * WINDOW..]);
        assert_ne!(hash_of_bytes(&swapped), expected);
        for zeros in [1, 7, WINDOW] {
            let longer = [bytes.as_slice(), &vec![0; zeros]].concat();
            assert_ne!(hash_of_bytes(&longer), expected, "{zeros} zeros");
        }
    }

    #[test]
    fn sparse_write_preserves_contents_and_hash() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        let mut bytes = vec![0; 5 * WINDOW + 3];
        bytes[2 * WINDOW + 9] = 1;
        let fill = |offset: u64, window: &mut [u8]| {
            window.copy_from_slice(&bytes[offset as usize..][..window.len()]);
            Ok(())
        };
        let hash = write(file.as_file(), bytes.len() as u64, &fill).expect("written");
        assert_eq!(hash, hash_of_bytes(&bytes));
        assert!(std::fs::read(file.path()).expect("a file") == bytes);
    }

    #[test]
    fn failing_window_aborts_write() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        let fill = |offset: u64, _: &mut [u8]| match offset {
            0x30_0000 => Err(io::Error::other("the disk is gone")),
            _ => Ok(()),
        };
        let error = write(file.as_file(), 100 << 20, &fill).expect_err("it fails");
        assert_eq!(error.to_string(), "the disk is gone");
    }
}
