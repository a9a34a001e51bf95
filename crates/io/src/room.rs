//! Room for files, asked for ahead of the bytes that are written.
//!
//! A file system that finds room page by page, as they are written, takes half as long again.

#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) use linux::Preallocation;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) use other::Preallocation;

#[cfg(any(target_os = "linux", target_os = "android"))]
mod linux {
    use std::collections::HashSet;
    use std::fs::File;
    use std::ops::Range;

    /// The bytes that room is asked for at once. A piece of the file without a byte to write gets none: it stays a hole.
    const PIECE: u64 = 1 << 20;

    /// The pieces of a file that have room.
    pub(crate) struct Preallocation {
        /// The file's length, or 0 where no room is asked for.
        length: u64,
        pieces: HashSet<u64>,
    }

    impl Preallocation {
        /// That of a file that is as long as it is to be.
        pub(crate) fn of(file: &File) -> Preallocation {
            let length = file.metadata().map_or(0, |metadata| metadata.len());
            Preallocation {
                length: if length < PIECE { 0 } else { length },
                pieces: HashSet::new(),
            }
        }

        /// Asks for the room of the pieces that bytes lie in, where the file system has it ahead. Where there is none
        /// left, writing the bytes says so.
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
        fn pieces_that_are_written_get_room_and_others_stay_holes() {
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
                "it is no longer than it was"
            );
            let held = file.metadata().expect("a file").blocks() * 512;
            // File systems that give no room ahead give none.
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

    /// Nothing is known of room here.
    pub(crate) struct Preallocation;

    impl Preallocation {
        pub(crate) fn of(_: &File) -> Preallocation {
            Preallocation
        }

        pub(crate) fn reserve(&mut self, _: &File, _: Range<u64>) {}
    }
}
