use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Bytes of a file that are read at once.
const WINDOW: usize = 1 << 20;

/// Key of an entry: a hash of everything that the entry depends on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key([u8; 32]);

impl Key {
    /// The key of an entry that depends on these parts, in this order. A compiled model depends on its content, its
    /// compute unit, and the build of the system that compiles it.
    pub fn new<P: AsRef<[u8]>>(parts: impl IntoIterator<Item = P>) -> Key {
        let mut hasher = blake3::Hasher::new_derive_key("coremill store key");
        for part in parts {
            let part = part.as_ref();
            // The length keeps one part distinct from two.
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        Key(*hasher.finalize().as_bytes())
    }

    /// Parses a printed key: 64 hexadecimal digits.
    pub fn parse(text: &str) -> Option<Key> {
        // Lower case only, so that each key has one file name.
        let is_digit = |c: &u8| c.is_ascii_digit() || (b'a'..=b'f').contains(c);
        if text.len() != 64 || !text.as_bytes().iter().all(is_digit) {
            return None;
        }
        blake3::Hash::from_hex(text).ok().map(|hash| Key(*hash.as_bytes()))
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&blake3::Hash::from_bytes(self.0).to_hex())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({self})")
    }
}

/// Hash of a file's content.
pub fn hash_file(path: &Path) -> io::Result<[u8; 32]> {
    hash(File::open(path)?)
}

pub(crate) fn hash(mut file: File) -> io::Result<[u8; 32]> {
    let mut hasher = blake3::Hasher::new();
    let mut window = vec![0; WINDOW];
    loop {
        match file.read(&mut window)? {
            0 => return Ok(*hasher.finalize().as_bytes()),
            count => hasher.update(&window[..count]),
        };
    }
}
