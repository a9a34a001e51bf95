//! Decisions of generated programs.

/// Decisions that are read from bytes until these are used up.
pub(crate) struct Draw<'d> {
    bytes: &'d [u8],
    state: u64,
}

impl<'d> Draw<'d> {
    pub(crate) fn new(bytes: &'d [u8], seed: u64) -> Draw<'d> {
        Draw { bytes, state: seed | 1 }
    }

    pub(crate) fn below(&mut self, count: usize) -> usize {
        if let Some((&byte, rest)) = self.bytes.split_first() {
            self.bytes = rest;
            return usize::from(byte) % count;
        }
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 11) as usize % count
    }

    pub(crate) fn of<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())].clone()
    }

    /// True with a probability of one in `count`.
    pub(crate) fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }
}
