//! Keys and values of an attention: floats, or 16-bit integers with a scale for each vector.

use std::ops::Range;

use super::Heads;
use coremill_simd::Isa;
use coremill_simd::vector::{Kernel, MAX_LANES, Vector, dispatch};

/// Vectors of equal length as signed 16-bit integers, each vector with a scale of its own. They take half the memory of
/// floats, for instance in a cache of keys and values.
///
/// An element differs by at most 2⁻¹⁶ of the largest element of its vector, whereas half precision differs by up to 2⁻¹¹ of the
/// element itself. If an element is infinite or NaN, all elements of its vector become NaN.
#[derive(Clone, Debug, PartialEq)]
pub struct WordVectors {
    depth: usize,
    words: Vec<i16>,
    scales: Vec<f32>,
}

/// The largest integer.
const MOST: f32 = i16::MAX as f32;

/// Vectors whose largest magnitude is below this are zero.
const LEAST: f32 = 1e-30;

impl WordVectors {
    /// Returns `count` vectors of `depth` zeros. Their memory is not touched before they are written.
    ///
    /// # Panics
    /// Panics if the number of elements overflows.
    pub fn zeros(count: usize, depth: usize) -> WordVectors {
        let elements = count.checked_mul(depth).expect("the elements of all vectors are counted");
        WordVectors { depth, words: vec![0; elements], scales: vec![0.0; count] }
    }

    /// Number of vectors.
    pub fn count(&self) -> usize {
        self.scales.len()
    }

    /// Number of elements of a vector.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.words) + size_of_val(&*self.scales)
    }

    /// Replaces adjacent vectors from an index on.
    ///
    /// # Panics
    /// Panics if the number of elements is no multiple of the depth, or exceeds the vectors.
    pub fn write(&mut self, isa: Isa, first: usize, elements: &[f32]) {
        let depth = self.depth.max(1);
        assert!(elements.len().is_multiple_of(depth), "vectors are whole");
        let count = elements.len() / depth;
        let scales = &mut self.scales[first..first + count];
        let words = &mut self.words[first * self.depth..][..elements.len()];
        dispatch(isa, Narrow { elements, depth, words, scales });
    }

    /// Reads adjacent vectors from an index on.
    ///
    /// # Panics
    /// Panics if the target is not as long as whole vectors, or exceeds the vectors.
    pub fn read(&self, isa: Isa, first: usize, target: &mut [f32]) {
        let depth = self.depth.max(1);
        assert!(target.len().is_multiple_of(depth), "vectors are whole");
        let count = target.len() / depth;
        let words = &self.words[first * self.depth..];
        let head = WordHead { words, scales: &self.scales[first..], depth: self.depth, stride: 1 };
        head.copy(isa, 0..count, 0..self.depth, target, depth);
    }
}

/// Converts vectors to integers.
struct Narrow<'a> {
    elements: &'a [f32],
    depth: usize,
    words: &'a mut [i16],
    scales: &'a mut [f32],
}

impl Kernel for Narrow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let Narrow { elements, depth, words, scales } = self;
        let vectors = elements.chunks_exact(depth).zip(words.chunks_exact_mut(depth));
        for ((elements, words), to) in vectors.zip(scales) {
            let mut largest = V::zero();
            for part in elements.chunks(V::LANES) {
                // SAFETY: the part has this many elements.
                #[expect(unsafe_code, reason = "vectors are loaded without bounds checks")]
                let part = unsafe { V::load_partial(part.as_ptr(), part.len()) };
                largest = part.abs().max_nan(largest);
            }
            let most = if V::any(largest.is_nan()) { f32::NAN } else { largest.maximum() };
            let (scale, inverse) = match most {
                LEAST..f32::INFINITY => (most / MOST, MOST / most),
                _ => (if most < LEAST { 0.0 } else { f32::NAN }, 0.0),
            };
            *to = scale;
            if inverse == 0.0 {
                words.fill(0);
                continue;
            }
            let inverse = V::splat(inverse);
            for (part, words) in elements.chunks(V::LANES).zip(words.chunks_mut(V::LANES)) {
                let mut integers = [0i32; MAX_LANES];
                // SAFETY: the part has this many elements, and storing floats only moves bits.
                #[expect(
                    unsafe_code,
                    reason = "vectors are loaded and stored without bounds checks"
                )]
                unsafe {
                    let scaled = V::load_partial(part.as_ptr(), part.len()).mul(inverse);
                    V::from_bits(scaled.to_int()).store(integers.as_mut_ptr().cast());
                }
                words.iter_mut().zip(integers).for_each(|(word, integer)| *word = integer as i16);
            }
        }
    }
}

/// Converts integers to elements.
struct Widen<'a> {
    head: WordHead<'a>,
    vectors: Range<usize>,
    elements: Range<usize>,
    target: &'a mut [f32],
    width: usize,
}

impl Kernel for Widen<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let Widen { head, vectors, elements, target, width } = self;
        for (vector, target) in vectors.zip(target.chunks_mut(width)) {
            let start = vector * head.stride * head.depth;
            let source = &head.words[start + elements.start..start + elements.end];
            let target = &mut target[..source.len()];
            let scale = V::splat(head.scale(vector));
            for (source, target) in source.chunks(V::LANES).zip(target.chunks_mut(V::LANES)) {
                // SAFETY: both have this many elements.
                #[expect(unsafe_code, reason = "vectors are accessed without bounds checks")]
                unsafe {
                    load_words::<V>(source.as_ptr(), source.len())
                        .mul(scale)
                        .store_partial(target.as_mut_ptr(), target.len());
                }
            }
        }
    }
}

/// Loads up to a vector of integers. The other lanes are zero.
///
/// # Safety
/// `count` must be at most the number of lanes, and `count` integers must be readable.
#[inline(always)]
#[expect(unsafe_code, reason = "the caller guarantees the integers")]
unsafe fn load_words<V: Vector>(source: *const i16, count: usize) -> V {
    let mut all = [0i16; MAX_LANES];
    // SAFETY: the caller guarantees the integers, and the copy has as many as the widest vector.
    unsafe {
        if count == V::LANES {
            return V::load_words(source);
        }
        std::ptr::copy_nonoverlapping(source, all.as_mut_ptr(), count);
        V::load_words(all.as_ptr())
    }
}

/// Keys or values of all heads.
pub trait Vectors: Copy + Sync {
    /// Keys or values of one head.
    type Head: HeadVectors;

    /// Whether all vectors exist.
    fn fits(&self, extents: [usize; 3], depth: usize) -> bool;

    /// The vectors of a head from a vector on, of which there must be one.
    fn head(&self, set: usize, head: usize) -> Self::Head;

    /// Leaves out the first vectors of each head.
    fn from(self, first: usize) -> Self;
}

/// Keys or values of one head.
pub trait HeadVectors: Copy + Sync {
    /// Whether vectors have a scale.
    const SCALED: bool;

    /// The scale of a vector.
    fn scale(&self, index: usize) -> f32;

    /// Loads up to a vector of elements, without the scale. The other lanes are zero.
    ///
    /// # Safety
    /// `count` must be at most the number of lanes, and the elements must exist.
    #[expect(unsafe_code, reason = "the caller guarantees the elements")]
    unsafe fn load<V: Vector>(&self, index: usize, at: usize, count: usize) -> V;

    /// Copies some elements of some vectors to rows of `width`.
    fn copy(
        &self,
        isa: Isa,
        vectors: Range<usize>,
        elements: Range<usize>,
        target: &mut [f32],
        width: usize,
    );
}

/// Whether `length` elements contain all vectors of `depth` elements at these strides.
pub(super) fn fits(length: usize, extents: &[usize], strides: &[usize], depth: usize) -> bool {
    let needed = last(extents, strides).and_then(|last| last.checked_add(depth));
    extents.contains(&0) || needed.is_some_and(|needed| needed <= length)
}

/// Offset of the last vector. `None` if it overflows.
fn last(extents: &[usize], strides: &[usize]) -> Option<usize> {
    extents.iter().zip(strides).try_fold(0usize, |sum, (&extent, &stride)| {
        sum.checked_add(stride.checked_mul(extent.saturating_sub(1))?)
    })
}

impl<'a> Vectors for Heads<'a> {
    type Head = FloatHead<'a>;

    fn fits(&self, extents: [usize; 3], depth: usize) -> bool {
        fits(self.elements.len(), &extents, &self.strides, depth)
    }

    fn head(&self, set: usize, head: usize) -> FloatHead<'a> {
        let start = set * self.strides[0] + head * self.strides[1];
        let elements = &self.elements[start.min(self.elements.len())..];
        FloatHead { elements, stride: self.strides[2] }
    }

    fn from(self, first: usize) -> Heads<'a> {
        let start = (first * self.strides[2]).min(self.elements.len());
        Heads { elements: &self.elements[start..], ..self }
    }
}

/// Vectors of floats.
#[derive(Clone, Copy, Debug)]
pub struct FloatHead<'a> {
    elements: &'a [f32],
    stride: usize,
}

impl HeadVectors for FloatHead<'_> {
    const SCALED: bool = false;

    #[inline(always)]
    fn scale(&self, _index: usize) -> f32 {
        1.0
    }

    #[inline(always)]
    #[expect(unsafe_code, reason = "the caller guarantees the elements")]
    unsafe fn load<V: Vector>(&self, index: usize, at: usize, count: usize) -> V {
        let source = self.elements[index * self.stride + at..].as_ptr();
        // SAFETY: the caller guarantees the elements.
        unsafe { if count == V::LANES { V::load(source) } else { V::load_partial(source, count) } }
    }

    fn copy(
        &self,
        _isa: Isa,
        vectors: Range<usize>,
        elements: Range<usize>,
        target: &mut [f32],
        width: usize,
    ) {
        for (vector, target) in vectors.zip(target.chunks_mut(width)) {
            let start = vector * self.stride;
            let source = &self.elements[start + elements.start..start + elements.end];
            target[..source.len()].copy_from_slice(source);
        }
    }
}

/// Vectors of all heads, as integers.
#[derive(Clone, Copy, Debug)]
pub struct WordHeads<'a> {
    /// The vectors.
    pub vectors: &'a WordVectors,
    /// Index of the first vector.
    pub first: usize,
    /// Strides of set, head and vector, in vectors.
    pub strides: [usize; 3],
}

impl<'a> Vectors for WordHeads<'a> {
    type Head = WordHead<'a>;

    fn fits(&self, extents: [usize; 3], depth: usize) -> bool {
        let last = last(&extents, &self.strides).and_then(|last| last.checked_add(self.first));
        let exists = last.is_some_and(|last| last < self.vectors.count());
        extents.contains(&0) || (exists && depth == self.vectors.depth)
    }

    fn head(&self, set: usize, head: usize) -> WordHead<'a> {
        let first = self.first + set * self.strides[0] + head * self.strides[1];
        let depth = self.vectors.depth;
        WordHead {
            words: self.vectors.words.get(first * depth..).unwrap_or_default(),
            scales: self.vectors.scales.get(first..).unwrap_or_default(),
            depth,
            stride: self.strides[2],
        }
    }

    fn from(self, first: usize) -> WordHeads<'a> {
        WordHeads { first: self.first + first * self.strides[2], ..self }
    }
}

/// Vectors of integers.
#[derive(Clone, Copy, Debug)]
pub struct WordHead<'a> {
    words: &'a [i16],
    scales: &'a [f32],
    depth: usize,
    stride: usize,
}

impl HeadVectors for WordHead<'_> {
    const SCALED: bool = true;

    #[inline(always)]
    fn scale(&self, index: usize) -> f32 {
        self.scales[index * self.stride]
    }

    #[inline(always)]
    #[expect(unsafe_code, reason = "the caller guarantees the elements")]
    unsafe fn load<V: Vector>(&self, index: usize, at: usize, count: usize) -> V {
        let source = self.words[index * self.stride * self.depth + at..].as_ptr();
        // SAFETY: the caller guarantees the elements.
        unsafe { load_words::<V>(source, count) }
    }

    fn copy(
        &self,
        isa: Isa,
        vectors: Range<usize>,
        elements: Range<usize>,
        target: &mut [f32],
        width: usize,
    ) {
        dispatch(isa, Widen { head: *self, vectors, elements, target, width });
    }
}
