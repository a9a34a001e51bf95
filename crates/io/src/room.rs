//! Preallocation of disk space for files.
//!
//! Without preallocation, file systems allocate page by page, which takes 50 % longer.

#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) use linux::Preallocation;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) use other::Preallocation;

#[cfg(any(target_os = "linux", target_os = "android"))]
mod linux {
    use std::collections::HashSet;
    use std::fs::File;
    use std::ops::Range;

    /// Number of bytes allocated at once. A piece of the file without written bytes is not allocated and stays a
    /// hole.
    const PIECE: u64 = 1 << 20;

    /// The preallocated pieces of a file.
    pub(crate) struct Preallocation {
        /// Length of the file; 0 if preallocation is disabled.
        length: u64,
        pieces: HashSet<u64>,
    }

    impl Preallocation {
        /// Preallocation for a file that already has its final length.
        pub(crate) fn of(file: &File) -> Preallocation {
            let length = file.metadata().map_or(0, |metadata| metadata.len());
            Preallocation {
                length: if length < PIECE { 0 } else { length },
                pieces: HashSet::new(),
            }
        }

        /// Preallocates the pieces that contain the given bytes, if the file system supports it. If the disk is
        /// full, the write reports the error.
        pub(crate) fn reserve(&mut self, file: &File, bytes: Range<u64>) {
            for piece in bytes.start / PIECE..bytes.end.min(self.length).div_ceil(PIECE) {
                if self.pieces.insert(piece) {
                    let start = piece * PIECE;
                    let length = PIECE.min(self.length - start);
                    let flags = rustix::fs::FallocateFlags::KEEP_SIZE;
                    if rustix::fs::fallocate(file, flags, start, length).is_err() {
                        self.length = 0;
                        return;
                    }
                }
            }
        }
    }

    #[cfg(test)]
    mod tests {
        use std::os::unix::fs::MetadataExt as _;

        use super::*;

        #[test]
        fn preallocates_only_written_pieces() {
            let file = tempfile::tempfile().expect("a temporary file");
            let length = 5 * PIECE + 9;
            file.set_len(length).expect("a length");
            let mut room = Preallocation::of(&file);
            room.reserve(&file, PIECE - 1..PIECE + 1);
            room.reserve(&file, PIECE + 7..PIECE + 8);
            room.reserve(&file, 5 * PIECE..length);
            assert_eq!(
                file.metadata().expect("a file").len(),
                length,
                "the length must not change"
            );
            let held = file.metadata().expect("a file").blocks() * 512;
            // File systems without preallocation allocate nothing.
            let expected = 2 * PIECE..=2 * PIECE + (64 << 10);
            assert!(room.length == 0 || expected.contains(&held), "{held}");
            assert!(room.length == 0 || room.pieces == HashSet::from([0, 1, 5]));
        }
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod other {
    use std::fs::File;
    use std::ops::Range;

    /// Preallocation is not supported on this system.
    pub(crate) struct Preallocation;

    impl Preallocation {
        pub(crate) fn of(_: &File) -> Preallocation {
            Preallocation
        }

        pub(crate) fn reserve(&mut self, _: &File, _: Range<u64>) {}
    }
}
