//! Bytes on their way into a file: computed, hashed and written window by window, on all processors.

use std::fs::File;
use std::io;
use std::sync::{Mutex, PoisonError};

use blake3::hazmat::{
    ChainingValue, HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root,
};
use coremill_tensor::{Buffer, SharedFile, bring_pages, for_each_window, share};

/// What a thread holds at a time. It stays in the cache between being computed, hashed and written, and
/// as a power of two it is a subtree of the hash.
const WINDOW: usize = 256 << 10;

/// The windows of new memory that a thread fills in turn: large pages are its own then.
const GROUP: usize = 8;

/// More threads than this do not share memory that is filled.
const MAX_THREADS: usize = 8;

/// Fills a window with the bytes from an offset on.
pub(super) type Fill<'f> = dyn Fn(u64, &mut [u8]) -> io::Result<()> + Sync + 'f;

/// The buffer whose part a window is, from an offset on and so long, if it is part of one.
pub(super) type Lying<'b> = dyn Fn(u64, usize) -> Option<(&'b Buffer, usize)> + Sync + 'b;

/// Writes what `fill` gives to an empty file, and gives the hash of it. Windows that lie in memory or in a file already
/// are hashed and written from there.
///
/// Windows of zeros are left out: the file is as long as it is to be from the start, and holes read as
/// zeros.
pub(super) fn write(
    file: &File,
    length: u64,
    fill: &Fill<'_>,
    lying: &Lying<'_>,
) -> io::Result<blake3::Hash> {
    file.set_len(length)?;
    let shared = SharedFile::new(file);
    let is_hole = |bytes: &[u8]| bytes.iter().all(|&byte| byte == 0);
    flow(length, &|offset, window, hash| {
        let place = lying(offset, window.len()).filter(|(buffer, _)| !buffer.is_deferred());
        if let Some((buffer, start)) = place {
            return buffer.with_window(start..start + window.len(), |bytes| {
                hash(bytes);
                if is_hole(bytes) { Ok(()) } else { shared.write_lying(offset, bytes) }
            })?;
        }
        fill(offset, window)?;
        hash(window);
        if is_hole(window) { Ok(()) } else { shared.write_at(offset, window) }
    })
}

/// The hash of a buffer's bytes, none of which are kept.
pub(super) fn hash(data: &Buffer) -> io::Result<blake3::Hash> {
    hash_of(data.len() as u64, &|offset, window| data.read_at(offset as usize, window))
}

/// The hash of what `fill` gives.
pub(super) fn hash_of(length: u64, fill: &Fill<'_>) -> io::Result<blake3::Hash> {
    flow(length, &|offset, window, hash| {
        fill(offset, window)?;
        hash(window);
        Ok(())
    })
}

/// Fills new memory, and gives the hash of it.
pub(super) fn write_to(target: &mut [u8], fill: &Fill<'_>) -> io::Result<blake3::Hash> {
    if target.len() <= WINDOW {
        fill(0, target)?;
        return Ok(blake3::hash(target));
    }
    let subtrees = Subtrees::new(target.len().div_ceil(WINDOW));
    let groups = target.chunks_mut(GROUP * WINDOW).enumerate();
    let (count, groups) = (groups.len(), Mutex::new(groups));
    share(
        count,
        MAX_THREADS,
        || (),
        |(), _| {
            let next = groups.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((group, windows)) = next else { return Ok(()) };
            for (index, window) in (group * GROUP..).zip(windows.chunks_mut(WINDOW)) {
                bring_pages(window);
                fill(index as u64 * WINDOW as u64, window)?;
                subtrees.hash(index, window);
            }
            Ok(())
        },
    )?;
    Ok(subtrees.root())
}

/// What becomes of a window: it has an offset and room for its bytes, and is hashed once.
type Take<'t> = dyn Fn(u64, &mut Vec<u8>, &mut dyn FnMut(&[u8])) -> io::Result<()> + Sync + 't;

/// Lets `take` come by each window of `length` bytes, and gives the hash of all of them.
fn flow(length: u64, take: &Take<'_>) -> io::Result<blake3::Hash> {
    if length <= WINDOW as u64 {
        let mut hash = blake3::hash(&[]);
        take(0, &mut vec![0; length as usize], &mut |bytes| hash = blake3::hash(bytes))?;
        return Ok(hash);
    }
    let too_long = || io::Error::new(io::ErrorKind::FileTooLarge, format!("{length} bytes"));
    let count = usize::try_from(length.div_ceil(WINDOW as u64)).map_err(|_| too_long())?;
    let subtrees = Subtrees::new(count);
    for_each_window(length, WINDOW, |offset, window| {
        let index = (offset / WINDOW as u64) as usize;
        take(offset, window, &mut |bytes| subtrees.hash(index, bytes))
    })?;
    Ok(subtrees.root())
}

/// The hashes of windows, of which there are at least two; threads add them in any order.
struct Subtrees {
    count: usize,
    values: Mutex<Vec<ChainingValue>>,
}

impl Subtrees {
    fn new(count: usize) -> Subtrees {
        Subtrees { count, values: Mutex::new(vec![ChainingValue::default(); count]) }
    }

    fn hash(&self, index: usize, window: &[u8]) {
        let mut hasher = blake3::Hasher::new();
        hasher.set_input_offset(index as u64 * WINDOW as u64).update(window);
        let subtree = hasher.finalize_non_root();
        self.values.lock().unwrap_or_else(PoisonError::into_inner)[index] = subtree;
    }

    /// The hash of all windows.
    fn root(self) -> blake3::Hash {
        let values = self.values.into_inner().unwrap_or_else(PoisonError::into_inner);
        let (left, right) = values.split_at(left_of(self.count));
        merge_subtrees_root(&merged(left), &merged(right), Mode::Hash)
    }
}

/// The hash's value for neighbouring windows, of which there is at least one.
fn merged(subtrees: &[ChainingValue]) -> ChainingValue {
    if let [only] = subtrees {
        return *only;
    }
    let (left, right) = subtrees.split_at(left_of(subtrees.len()));
    merge_subtrees_non_root(&merged(left), &merged(right), Mode::Hash)
}

/// How many of some windows make the left subtree: the largest power of two that leaves some.
fn left_of(count: usize) -> usize {
    count.div_ceil(2).next_power_of_two()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_that_of_all_bytes_in_turn() {
        let bytes: Vec<u8> = (0..9 * WINDOW as u32).map(|at| (at / 7 + at) as u8).collect();
        let lengths = [0, 1, 1024, WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW, 3 * WINDOW - 5];
        for length in lengths.into_iter().chain([4 * WINDOW + 1000, 5 * WINDOW, 9 * WINDOW]) {
            let part = Buffer::from(bytes[..length].to_vec());
            assert_eq!(hash(&part).expect("in memory"), blake3::hash(&bytes[..length]), "{length}");
            let mut target = vec![0xff; length];
            let fill = |offset: u64, window: &mut [u8]| part.read_at(offset as usize, window);
            let hash = write_to(&mut target, &fill).expect("in memory");
            assert_eq!(hash, blake3::hash(&bytes[..length]), "{length}");
            assert!(target == bytes[..length], "{length}");
        }
    }

    #[test]
    fn holes_read_as_the_zeros_that_they_are() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        let mut bytes = vec![0; 5 * WINDOW + 3];
        bytes[2 * WINDOW + 9] = 1;
        let fill = |offset: u64, window: &mut [u8]| {
            window.copy_from_slice(&bytes[offset as usize..][..window.len()]);
            Ok(())
        };
        let nowhere = |_, _| None;
        let hash = write(file.as_file(), bytes.len() as u64, &fill, &nowhere).expect("written");
        assert_eq!(hash, blake3::hash(&bytes));
        assert!(std::fs::read(file.path()).expect("a file") == bytes);
    }

    #[test]
    fn a_window_that_fails_ends_it() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        let fill = |offset: u64, _: &mut [u8]| match offset {
            0x30_0000 => Err(io::Error::other("the disk is gone")),
            _ => Ok(()),
        };
        let error = write(file.as_file(), 100 << 20, &fill, &|_, _| None).expect_err("it fails");
        assert_eq!(error.to_string(), "the disk is gone");
    }

    #[test]
    fn windows_that_lie_somewhere_are_not_filled() {
        let source = tempfile::NamedTempFile::new().expect("a temporary file");
        let bytes: Vec<u8> = (0..6 * WINDOW as u32 + 77).map(|at| (at / 5 + at) as u8).collect();
        std::fs::write(source.path(), &bytes).expect("written");
        let mapped = Buffer::map(source.path()).expect("mapped");
        for buffer in [Buffer::from(bytes.clone()), mapped] {
            let file = tempfile::NamedTempFile::new().expect("a temporary file");
            // Every third window is filled.
            let is_filled = |offset: u64| (offset / WINDOW as u64) % 3 == 1;
            let fill = |offset: u64, window: &mut [u8]| {
                assert!(is_filled(offset), "{offset}");
                buffer.read_at(offset as usize, window)
            };
            let lying = |offset, _| (!is_filled(offset)).then_some((&buffer, offset as usize));
            let length = bytes.len() as u64;
            let hash = write(file.as_file(), length, &fill, &lying).expect("written");
            assert_eq!(hash, blake3::hash(&bytes));
            assert!(std::fs::read(file.path()).expect("a file") == bytes);
        }
    }
}
