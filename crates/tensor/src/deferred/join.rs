use std::io;

use crate::Buffer;
use crate::produce::{ByteSource, Fingerprint};

/// Concatenation of tensors along an axis: blocks of each part in turn.
pub(super) struct Join {
    /// Each part with its number of bytes in a turn.
    pub(super) parts: Vec<(Buffer, usize)>,
    /// Number of turns.
    pub(super) turns: usize,
    /// Size of an element in bytes.
    pub(super) width: usize,
}

impl Join {
    /// Number of bytes in a turn.
    fn turn(&self) -> usize {
        self.parts.iter().map(|(_, block)| block).sum()
    }
}

impl ByteSource for Join {
    fn length(&self) -> usize {
        self.turn() * self.turns
    }

    fn granule(&self) -> usize {
        self.width
    }

    fn produce(&self, offset: usize, mut target: &mut [u8]) -> io::Result<()> {
        let length = self.turn();
        let mut turn = offset.checked_div(length).unwrap_or(0);
        let mut skipped = offset.checked_rem(length).unwrap_or(0);
        while !target.is_empty() {
            for (part, block) in &self.parts {
                if skipped >= *block {
                    skipped -= block;
                    continue;
                }
                let count = (block - skipped).min(target.len());
                let (now, later) = target.split_at_mut(count);
                part.read_at(turn * block + skipped, now)?;
                (target, skipped) = (later, 0);
                if target.is_empty() {
                    return Ok(());
                }
            }
            turn += 1;
        }
        Ok(())
    }

    fn identity(&self) -> Option<Fingerprint> {
        let identity =
            Fingerprint::new("join").with(self.turns as u64).with(self.parts.len() as u64);
        Some(self.parts.iter().fold(identity, |identity, (part, block)| {
            identity.with(*block as u64).with_part(&part.identity())
        }))
    }
}
