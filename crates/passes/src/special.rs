//! Constants whose elements affect passes.

use std::io;

use coremill_tensor::Buffer;
use half::f16;

use super::precision::{MAX_SEARCHED, has_far};
use coremill_mil::infer::MAX_FOLDED_ELEMENTS;

/// Whether passes treat an `fp32` constant differently because of its elements, although they only read it
/// [unwatched](Buffer::unwatched). This is the case if all its elements round to zero or to one in fp16, or if some
/// exceed the range of fp16.
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
