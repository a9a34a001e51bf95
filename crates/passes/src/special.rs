//! Constants that passes treat in another way for what their elements are.

use std::io;

use coremill_tensor::Buffer;
use half::f16;

use super::precision::{MAX_SEARCHED, has_far};
use coremill_mil::infer::MAX_FOLDED_ELEMENTS;

/// Whether passes treat a constant of `fp32` in another way than most of its shape, though they only look at it
/// [unwatched](Buffer::unwatched): it has nothing but zeros or nothing but ones, as halves have them, or numbers that
/// halves cannot hold.
pub fn is_zero_one_or_out_of_range(elements: &Buffer) -> io::Result<bool> {
    let count = elements.len() as u64 / 4;
    if count > MAX_SEARCHED {
        return Ok(false);
    }
    elements.with_window(0..elements.len(), |bytes| {
        let (floats, _) = bytes.as_chunks::<4>();
        let rounds_to = |number: f32| {
            let number = f16::from_f32(number);
            floats.iter().all(|&raw| f16::from_f32(f32::from_le_bytes(raw)) == number)
        };
        has_far(bytes) || count <= MAX_FOLDED_ELEMENTS && (rounds_to(0.0) || rounds_to(1.0))
    })
}
