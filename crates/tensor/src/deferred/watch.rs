use std::ops::Range;

use super::{LazyTensor, Replace};
use crate::{Buffer, DType};

/// Tells whether somebody has read bytes of a buffer, and finds it again in what is computed of it: how whoever takes a
/// tensor through passes learns that they would have done the same with other elements.
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
    /// The same bytes, watched.
    pub fn new(buffer: Buffer) -> (Buffer, ReadTracker) {
        let watched = Buffer::watched(buffer);
        (watched.clone(), ReadTracker(watched))
    }

    /// The watched bytes.
    pub fn buffer(&self) -> Buffer {
        self.0.clone()
    }

    /// Whether anybody has read any of the bytes.
    pub fn was_read(&self) -> bool {
        self.0.was_read()
    }

    /// How many buffers there are of the watched bytes, parts and sources of what is computed of them included, but for
    /// those of watches.
    pub fn holders(&self, watches: usize) -> usize {
        self.0.holders().saturating_sub(watches)
    }

    /// The part of the watched bytes that a buffer is, if it is one.
    pub fn part(&self, buffer: &Buffer) -> Option<Range<usize>> {
        buffer.part_of(&self.0)
    }
}

/// The elements of a type and a shape that a buffer holds or computes, of other sources; none if none of its sources is
/// replaced, or the others do not do.
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
    /// The same elements, watched by nobody: those of a watched buffer, or what has each of its elements once, rounded at
    /// most. Whoever reads these says elsewhere what it looks for.
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
