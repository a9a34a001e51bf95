use std::any::Any;
use std::io;

/// A computation of bytes, which is repeated each time they are read.
pub trait ByteSource: Send + Sync {
    /// Number of bytes.
    fn length(&self) -> usize;

    /// Computes the bytes from `offset` on into `target`. The same range always has the same bytes.
    ///
    /// Callers pass ranges within the length whose bounds are multiples of the granule or the end.
    fn produce(&self, offset: usize, target: &mut [u8]) -> io::Result<()>;

    /// Alignment of ranges, for instance the size of an element.
    fn granule(&self) -> usize {
        1
    }

    /// Identity of the computation, if it is known without computing: producers with equal identities compute
    /// equal bytes.
    fn identity(&self) -> Option<Fingerprint> {
        None
    }

    /// A description of the computation that allows others to continue it, such as
    /// [`LazyTensor`](crate::Recipe): further steps are then computed in the same pass. `None` if the result
    /// cannot be continued.
    fn description(&self) -> Option<&dyn Any> {
        None
    }
}

/// Description of the origin of bytes; equal descriptions mean equal bytes.
///
/// It contains addresses, so it is valid only while the described buffers exist.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fingerprint(Vec<u64>);

/// Initial capacity in words, sufficient for most descriptions.
const ROOM: usize = 32;

impl Fingerprint {
    /// Returns a description of a kind; kinds are distinguished by their names.
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

    /// Adds a number. For each kind, the number of words must be fixed or be added first.
    pub fn with(mut self, number: u64) -> Fingerprint {
        self.0.push(number);
        self
    }

    /// Adds several numbers, whose count must be fixed for the kind.
    pub fn with_all(mut self, numbers: impl ExactSizeIterator<Item = u64>) -> Fingerprint {
        self.0.extend(numbers);
        self
    }

    /// Adds the description of a part.
    pub fn with_part(mut self, part: &Fingerprint) -> Fingerprint {
        self.0.push(part.0.len() as u64);
        self.0.extend(&part.0);
        self
    }
}
