use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// What reading a file to hash it brings in at a time.
const WINDOW: usize = 1 << 20;

/// By what an entry is found: a hash of all that it depends on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key([u8; 32]);

impl Key {
    /// The key of what depends on these parts, in this order. A compiled model depends on its content, the compute
    /// unit it is loaded for, and the build of the system that compiles it.
    pub fn new<P: AsRef<[u8]>>(parts: impl IntoIterator<Item = P>) -> Key {
        let mut hasher = blake3::Hasher::new_derive_key("coremill store key");
        for part in parts {
            let part = part.as_ref();
            // With its length before it, no part can be mistaken for two.
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        Key(*hasher.finalize().as_bytes())
    }

    /// Reads a key as it is printed: 64 hexadecimal digits.
    pub fn parse(text: &str) -> Option<Key> {
        // Only as it is printed, so that each key has one file name.
        let is_digit = |c: &u8| c.is_ascii_digit() || (b'a'..=b'f').contains(c);
        if text.len() != 64 || !text.as_bytes().iter().all(|c| is_digit(c)) {
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

/// The hash of a file's content.
pub fn hash_file(path: &Path) -> io::Result<[u8; 32]> {
    let mut file = File::open(path)?;
    let mut hasher = blake3::Hasher::new();
    let mut window = vec![0; WINDOW];
    loop {
        match file.read(&mut window)? {
            0 => return Ok(*hasher.finalize().as_bytes()),
            count => hasher.update(&window[..count]),
        };
    }
}
