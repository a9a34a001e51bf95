use std::any::Any;
use std::io;

/// A computation of bytes, repeated each time they are read.
pub trait ByteSource: Send + Sync {
    /// The number of bytes.
    fn length(&self) -> usize;

    /// Computes the bytes from `offset` on into `target`. The same range always gives the same bytes.
    ///
    /// Callers ask for ranges within the length whose ends are multiples of the granule or the end.
    fn produce(&self, offset: usize, target: &mut [u8]) -> io::Result<()>;

    /// Ranges begin and end at multiples of this, the size of an element for instance.
    fn granule(&self) -> usize {
        1
    }

    /// What tells that another producer computes the same, if that can be told without computing.
    fn identity(&self) -> Option<Fingerprint> {
        None
    }

    /// A description of the computation, of a type that whoever continues it knows, such as [`LazyTensor`](crate::Recipe):
    /// further steps then become part of the same pass. `None` if the result cannot be continued.
    fn description(&self) -> Option<&dyn Any> {
        None
    }
}

/// A description of how bytes come about; equal ones stand for equal bytes.
///
/// It names places in memory, so it means something only while the buffers that it speaks of live.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fingerprint(Vec<u64>);

/// Words that most descriptions have room for from the start.
const ROOM: usize = 32;

impl Fingerprint {
    /// The description of something of a kind; kinds are told apart by their names.
    pub fn new(kind: &str) -> Fingerprint {
        let mut words = Vec::with_capacity(ROOM);
        words.push(kind.len() as u64);
        words.extend(kind.as_bytes().chunks(8).map(|part| {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            u64::from_le_bytes(word)
        }));
        Fingerprint(words)
    }

    /// Adds a number. Each kind adds as many as it always does, or their number first.
    pub fn with(mut self, number: u64) -> Fingerprint {
        self.0.push(number);
        self
    }

    /// Adds several numbers, as many as it always does.
    pub fn with_all(mut self, numbers: impl ExactSizeIterator<Item = u64>) -> Fingerprint {
        self.0.extend(numbers);
        self
    }

    /// Adds a part that has a description of its own.
    pub fn with_part(mut self, part: &Fingerprint) -> Fingerprint {
        self.0.push(part.0.len() as u64);
        self.0.extend(&part.0);
        self
    }
}
