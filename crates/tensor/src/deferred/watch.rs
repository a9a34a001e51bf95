use std::ops::Range;

use super::{LazyTensor, Replace};
use crate::{Buffer, DType};

/// Tracks whether any byte of a buffer was read, and finds the buffer again in data computed from it. If a
/// tensor passed through compiler passes without being read, the passes would have had the same result for
/// other elements.
///
/// ```
/// use coremill_tensor::{Buffer, DType, LazyTensor, ReadTracker, with_source};
///
/// let bytes = |floats: [f32; 2]| Buffer::from(floats.map(f32::to_le_bytes).concat());
/// let (watched, watch) = ReadTracker::new(bytes([1.0, 2.0]));
/// let halves = LazyTensor::new(watched, DType::Fp32, &[2])?.cast(DType::Fp16)?.to_buffer();
/// assert!(!watch.was_read());
///
/// let other = bytes([3.0, 4.0]);
/// let with_other = |source: &Buffer, dtype: DType| Some((other.slice(watch.part(source)?)?, dtype));
/// let again = with_source(&halves, DType::Fp16, &[2], &with_other).expect("it is computed of the watched bytes");
/// assert_eq!(again.as_bytes(), [3.0, 4.0].map(|x| half::f16::from_f32(x).to_le_bytes()).concat());
/// # Ok::<(), coremill_tensor::RecipeError>(())
/// ```
#[derive(Clone, Debug)]
pub struct ReadTracker(Buffer);

impl ReadTracker {
    /// Returns the buffer with reads tracked, and the tracker.
    pub fn new(buffer: Buffer) -> (Buffer, ReadTracker) {
        let watched = Buffer::watched(buffer);
        (watched.clone(), ReadTracker(watched))
    }

    /// The tracked bytes.
    pub fn buffer(&self) -> Buffer {
        self.0.clone()
    }

    /// Whether any of the bytes was read.
    pub fn was_read(&self) -> bool {
        self.0.was_read()
    }

    /// Number of buffers that refer to the tracked bytes, including parts and sources of computed buffers,
    /// without `watches` trackers.
    pub fn holders(&self, watches: usize) -> usize {
        self.0.holders().saturating_sub(watches)
    }

    /// The range of the tracked bytes that a buffer refers to, if it does.
    pub fn part(&self, buffer: &Buffer) -> Option<Range<usize>> {
        buffer.part_of(&self.0)
    }
}

/// Returns the elements of a stored or computed buffer with replaced sources. Returns `None` if no source is
/// replaced, or if the replacements do not match.
pub fn with_source(
    elements: &Buffer,
    dtype: DType,
    shape: &[u64],
    replace: &Replace<'_>,
) -> Option<Buffer> {
    match replace(elements, dtype) {
        Some((other, found)) if found == dtype => (other.len() == elements.len()).then_some(other),
        Some((other, found)) => {
            Some(LazyTensor::new(other, found, shape).ok()?.narrowed_to(dtype).ok()?.to_buffer())
        }
        None => Some(LazyTensor::of(elements)?.with_source(replace)?.to_buffer()),
    }
}

impl Buffer {
    /// The elements without tracking, if the buffer is tracked or contains each tracked element once, at most
    /// rounded. Callers must record their dependency on the elements themselves.
    pub fn unwatched(&self) -> Buffer {
        if let Some(inner) = self.all_watched() {
            return inner;
        }
        let kept = LazyTensor::of(self).filter(LazyTensor::keeps_elements);
        let kept = kept.and_then(|recipe| {
            recipe.with_source(&|source, dtype| Some((source.all_watched()?, dtype)))
        });
        kept.map_or_else(|| self.clone(), |recipe| recipe.to_buffer())
    }
}
