use std::io;
use std::ops::Range;
use std::sync::Arc;

use half::{bf16, f16};

use crate::DType;
use crate::deferred::narrow::{Narrow, clamped};
use crate::deferred::view::View;
use crate::produce::{ByteSource, Fingerprint};
use coremill_simd::Isa;
use coremill_simd::math::{
    bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16, round_to_bf16, round_to_fp16,
};
use coremill_simd::vector::{Kernel, Vector, dispatch};

/// Number of elements that are computed together, small enough for the L1 cache.
const CHUNK: usize = 2048;

/// Number of bytes of the source that are accessed together.
const SOURCE_WINDOW: usize = 2 << 20;

/// Number of bytes of a deferred source that are computed together.
const NESTED_WINDOW: usize = 128 << 10;

/// Minimum number of consecutive elements with one factor for rounding to half precision directly from the
/// source.
const LONG_RUN: usize = 64;

/// A step in single precision, applied to each element.
#[derive(Clone)]
pub(super) enum Step {
    /// Multiplies by the number for the element's index along an axis.
    Scale(PerAxis),
    /// Adds the number for the element's index along an axis.
    Shift(PerAxis),
    /// Clamps numbers to a limit; infinities are optionally kept.
    Clamp { limit: f32, keep_infinities: bool },
    /// Rounds to half precision.
    RoundToFp16,
    /// Rounds to bfloat16.
    RoundToBf16,
}

/// Numbers along an axis.
#[derive(Clone)]
pub(super) struct PerAxis {
    /// Number of consecutive elements with the same number.
    pub(super) inner: usize,
    /// The numbers, repeated cyclically.
    pub(super) numbers: Arc<[f32]>,
}

/// The elements of a view after some steps.
pub(super) struct Elements {
    pub(super) view: View,
    pub(super) steps: Vec<Step>,
    pub(super) dtype: DType,
    /// Size of an element of `dtype` in bytes.
    pub(super) width: usize,
    /// Whether integers out of range lose their upper bits; otherwise they are clamped.
    pub(super) wraps: bool,
    isa: Isa,
}

/// Whether arithmetic on elements of a type is supported; other elements are only moved.
pub(super) fn is_numeric(dtype: DType) -> bool {
    match dtype {
        DType::Bool | DType::Fp16 | DType::Fp32 | DType::Fp64 | DType::Bf16 => true,
        DType::Int8 | DType::Int16 | DType::Int32 | DType::Int64 => true,
        DType::UInt8 | DType::UInt16 | DType::UInt32 | DType::UInt64 => true,
        DType::Fp8E4M3Fn | DType::Fp8E5M2 | DType::String => false,
        DType::Int4 | DType::UInt1 | DType::UInt2 | DType::UInt3 | DType::UInt4 | DType::UInt6 => {
            false
        }
    }
}

/// Whether single precision represents every element of a type exactly.
pub(super) fn fits_single(dtype: DType) -> bool {
    let is_narrow = matches!(dtype, DType::Int8 | DType::Int16 | DType::UInt8 | DType::UInt16);
    is_narrow || matches!(dtype, DType::Bool | DType::Fp16 | DType::Bf16 | DType::Fp32)
}

/// Intermediate representation of a chunk's elements.
enum Intermediate {
    Nothing,
    Single,
    Double,
    Integer,
}

impl Elements {
    pub(super) fn new(view: View, steps: Vec<Step>, dtype: DType, wraps: bool) -> Elements {
        let width = dtype.bits().map_or(1, |bits| bits as usize / 8);
        Elements { view: view.simplified(), steps, dtype, width, wraps, isa: Isa::detect() }
    }

    fn through(&self) -> Intermediate {
        let (from, to) = (self.view.dtype, self.dtype);
        let float_to_float = fits_single(from) && fits_single(to) && to.is_float();
        if self.steps.is_empty() && from == to {
            Intermediate::Nothing
        } else if !self.steps.is_empty() || float_to_float {
            Intermediate::Single
        } else if from.is_float() || (from == DType::UInt64 && to.is_float()) {
            Intermediate::Double
        } else {
            Intermediate::Integer
        }
    }

    /// Computes elements, starting with the element at index `first`.
    fn compute(&self, first: usize, source: &[u8], target: &mut [u8]) {
        let (from, to, isa) = (self.view.dtype, self.dtype, self.isa);
        let (scale, steps) = match self.steps.as_slice() {
            [Step::Scale(along), steps @ ..] if along.inner >= LONG_RUN => (Some(along), steps),
            steps => (None, steps),
        };
        let clamp = match steps {
            [] => Some(None),
            [Step::Clamp { limit, keep_infinities }] => Some(Some((*limit, *keep_infinities))),
            _ => None,
        };
        if let (DType::Fp32, DType::Fp16, Some(clamp)) = (from, to, clamp) {
            let (source, target) = (source.as_chunks().0, target.as_chunks_mut().0);
            let Some(along) = scale else {
                return dispatch(isa, Narrow { source, target, factor: 1.0, clamp });
            };
            for (run, factor) in along.runs(first, source.len()) {
                let (source, target) = (&source[run.clone()], &mut target[run]);
                dispatch(isa, Narrow { source, target, factor, clamp });
            }
            return;
        }
        if let (DType::Fp32, DType::Fp32, Some(along), []) = (from, to, scale, steps) {
            let (source, target) = (source.as_chunks().0, target.as_chunks_mut().0);
            for (run, factor) in along.runs(first, source.len()) {
                for (target, source) in target[run.clone()].iter_mut().zip(&source[run]) {
                    *target = (f32::from_le_bytes(*source) * factor).to_le_bytes();
                }
            }
            return;
        }
        let chunks = || {
            let sources = source.chunks(CHUNK * self.view.width);
            (first..).step_by(CHUNK).zip(sources)
        };
        let targets = target.chunks_mut(CHUNK * self.width);
        match self.through() {
            Intermediate::Nothing => target.copy_from_slice(source),
            Intermediate::Single => {
                let mut numbers = [0f32; CHUNK];
                for ((first, source), target) in chunks().zip(targets) {
                    let numbers = &mut numbers[..target.len() / self.width];
                    read_single(isa, from, source, numbers);
                    for step in &self.steps {
                        step.apply(isa, first, numbers);
                    }
                    write_single(isa, to, numbers, target);
                }
            }
            Intermediate::Double => {
                let mut numbers = [0f64; CHUNK];
                for ((_, source), target) in chunks().zip(targets) {
                    let numbers = &mut numbers[..target.len() / self.width];
                    read_double(from, source, numbers);
                    write_double(to, numbers, target);
                }
            }
            Intermediate::Integer => {
                let mut numbers = [0i64; CHUNK];
                for ((_, source), target) in chunks().zip(targets) {
                    let numbers = &mut numbers[..target.len() / self.width];
                    read_integers(from, source, numbers);
                    if from == DType::UInt64 && !self.wraps {
                        for number in numbers.iter_mut().filter(|number| **number < 0) {
                            *number = i64::MAX;
                        }
                    }
                    if let (false, Some((low, high))) = (self.wraps, to.integer_range()) {
                        let low = i64::try_from(low).unwrap_or(i64::MIN);
                        let high = i64::try_from(high).unwrap_or(i64::MAX);
                        numbers.iter_mut().for_each(|number| *number = (*number).clamp(low, high));
                    }
                    write_integers(to, numbers, target);
                }
            }
        }
    }
}

impl ByteSource for Elements {
    fn length(&self) -> usize {
        self.view.count() * self.width
    }

    fn granule(&self) -> usize {
        self.width
    }

    fn produce(&self, offset: usize, target: &mut [u8]) -> io::Result<()> {
        let first = offset / self.width;
        let count = target.len() / self.width;
        let wide = self.view.width;
        if self.view.is_contiguous() {
            let start = self.view.run().start + first * wide;
            let mut done = 0;
            let range = start..start + count * wide;
            // A deferred source is computed into a buffer, which should stay in a near cache.
            let window = if self.view.source.is_deferred() { NESTED_WINDOW } else { SOURCE_WINDOW };
            return self.view.source.for_each_window(range, window, &mut |source| {
                let count = source.len() / wide;
                let target = &mut target[done * self.width..][..count * self.width];
                self.compute(first + done, source, target);
                done += count;
                Ok(())
            });
        }
        if matches!(self.through(), Intermediate::Nothing) {
            return self.view.gather(first..first + count, target);
        }
        let mut gathered = vec![0; SOURCE_WINDOW.min(count * wide)];
        let step = gathered.len() / wide;
        for (target, done) in target.chunks_mut(step * self.width).zip((0..).step_by(step)) {
            let count = target.len() / self.width;
            let gathered = &mut gathered[..count * wide];
            self.view.gather(first + done..first + done + count, gathered)?;
            self.compute(first + done, gathered, target);
        }
        Ok(())
    }

    fn identity(&self) -> Option<Fingerprint> {
        let mut identity = Fingerprint::new("elements").with_part(&self.view.identity());
        identity = identity.with(self.dtype as u64).with(u64::from(self.wraps));
        for step in &self.steps {
            identity = match step {
                Step::Scale(along) => along.identify(identity.with(0)),
                Step::Shift(along) => along.identify(identity.with(1)),
                Step::Clamp { limit, keep_infinities } => {
                    let limit = u64::from(limit.to_bits());
                    identity.with(2).with(limit).with(u64::from(*keep_infinities))
                }
                Step::RoundToFp16 => identity.with(3),
                Step::RoundToBf16 => identity.with(4),
            };
        }
        Some(identity)
    }
}

impl Step {
    fn apply(&self, isa: Isa, first: usize, numbers: &mut [f32]) {
        match self {
            Step::Scale(along) => along.apply(first, numbers, |number, factor| number * factor),
            Step::Shift(along) => along.apply(first, numbers, |number, term| number + term),
            Step::Clamp { limit, keep_infinities } => {
                let (limit, keep_infinities) = (*limit, *keep_infinities);
                dispatch(isa, Clamp { numbers, limit, keep_infinities });
            }
            Step::RoundToFp16 => round_to_fp16(isa, numbers),
            Step::RoundToBf16 => round_to_bf16(isa, numbers),
        }
    }
}

struct Clamp<'a> {
    numbers: &'a mut [f32],
    limit: f32,
    keep_infinities: bool,
}

impl Kernel for Clamp<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let Clamp { numbers, limit, keep_infinities } = self;
        for numbers in numbers.chunks_mut(V::LANES) {
            let (numbers, count) = (numbers.as_mut_ptr(), numbers.len());
            // SAFETY: there are `count` numbers, at most one vector.
            #[expect(unsafe_code, reason = "vectors are loaded from and stored to memory")]
            unsafe {
                let limited = clamped(V::load_partial(numbers, count), limit, keep_infinities);
                limited.store_partial(numbers, count);
            }
        }
    }
}

impl PerAxis {
    #[inline(always)]
    fn apply(&self, first: usize, numbers: &mut [f32], change: impl Fn(f32, f32) -> f32) {
        if self.inner == 1 {
            let (mut place, mut start) = (first % self.numbers.len(), 0);
            while start < numbers.len() {
                let along = &self.numbers[place..];
                let length = along.len().min(numbers.len() - start);
                let run = numbers[start..start + length].iter_mut().zip(along);
                run.for_each(|(number, &other)| *number = change(*number, other));
                (start, place) = (start + length, 0);
            }
            return;
        }
        for (run, other) in self.runs(first, numbers.len()) {
            numbers[run].iter_mut().for_each(|number| *number = change(*number, other));
        }
    }

    /// Runs of elements with the same number, among `count` elements from index `first` on.
    #[inline(always)]
    fn runs(&self, first: usize, count: usize) -> impl Iterator<Item = (Range<usize>, f32)> {
        let mut place = first / self.inner % self.numbers.len();
        let (mut start, mut left) = (0, self.inner - first % self.inner);
        std::iter::from_fn(move || {
            if start == count {
                return None;
            }
            let (run, number) = (start..count.min(start.saturating_add(left)), self.numbers[place]);
            (start, left) = (run.end, self.inner);
            place = if place + 1 == self.numbers.len() { 0 } else { place + 1 };
            Some((run, number))
        })
    }

    fn identify(&self, identity: Fingerprint) -> Fingerprint {
        let identity = identity.with(self.inner as u64).with(self.numbers.len() as u64);
        identity.with_all(self.numbers.iter().map(|number| u64::from(number.to_bits())))
    }
}

/// Reads little-endian elements of a primitive type.
macro_rules! read {
    ($type:ty, $bytes:expr, $numbers:expr, $convert:expr) => {{
        let (elements, _) = $bytes.as_chunks::<{ size_of::<$type>() }>();
        for (number, element) in $numbers.iter_mut().zip(elements) {
            *number = $convert(<$type>::from_le_bytes(*element));
        }
    }};
}

/// Writes little-endian elements of a primitive type.
macro_rules! write {
    ($type:ty, $bytes:expr, $numbers:expr, $convert:expr) => {{
        let (elements, _) = $bytes.as_chunks_mut::<{ size_of::<$type>() }>();
        for (element, number) in elements.iter_mut().zip($numbers.iter()) {
            let number: $type = $convert(*number);
            *element = number.to_le_bytes();
        }
    }};
}

fn read_single(isa: Isa, dtype: DType, bytes: &[u8], numbers: &mut [f32]) {
    match dtype {
        DType::Fp16 => {
            let mut halves = [f16::ZERO; CHUNK];
            let halves = &mut halves[..numbers.len()];
            read!(f16, bytes, halves, |half| half);
            f16_to_f32(isa, halves, numbers);
        }
        DType::Bf16 => {
            let mut brains = [bf16::ZERO; CHUNK];
            let brains = &mut brains[..numbers.len()];
            read!(bf16, bytes, brains, |brain| brain);
            bf16_to_f32(isa, brains, numbers);
        }
        DType::Fp32 => read!(f32, bytes, numbers, |number| number),
        DType::Fp64 => read!(f64, bytes, numbers, |number| number as f32),
        DType::UInt64 => read!(u64, bytes, numbers, |number| number as f32),
        _ => {
            let mut integers = [0; CHUNK];
            let integers = &mut integers[..numbers.len()];
            read_integers(dtype, bytes, integers);
            let pairs = numbers.iter_mut().zip(integers);
            pairs.for_each(|(number, integer)| *number = *integer as f32);
        }
    }
}

pub(super) fn read_double(dtype: DType, bytes: &[u8], numbers: &mut [f64]) {
    match dtype {
        DType::Fp64 => read!(f64, bytes, numbers, |number| number),
        DType::Fp32 => read!(f32, bytes, numbers, f64::from),
        DType::Fp16 => read!(f16, bytes, numbers, f16::to_f64),
        DType::Bf16 => read!(bf16, bytes, numbers, bf16::to_f64),
        DType::UInt64 => read!(u64, bytes, numbers, |number| number as f64),
        _ => {
            let mut integers = [0; CHUNK];
            let integers = &mut integers[..numbers.len()];
            read_integers(dtype, bytes, integers);
            let pairs = numbers.iter_mut().zip(integers);
            pairs.for_each(|(number, integer)| *number = *integer as f64);
        }
    }
}

/// Reads integers. Numbers of `uint64` beyond the range of `int64` become negative.
pub(super) fn read_integers(dtype: DType, bytes: &[u8], numbers: &mut [i64]) {
    match dtype {
        DType::Bool => read!(u8, bytes, numbers, |byte| i64::from(byte != 0)),
        DType::Int8 => read!(i8, bytes, numbers, i64::from),
        DType::Int16 => read!(i16, bytes, numbers, i64::from),
        DType::Int32 => read!(i32, bytes, numbers, i64::from),
        DType::Int64 => read!(i64, bytes, numbers, |number| number),
        DType::UInt8 => read!(u8, bytes, numbers, i64::from),
        DType::UInt16 => read!(u16, bytes, numbers, i64::from),
        DType::UInt32 => read!(u32, bytes, numbers, i64::from),
        DType::UInt64 => read!(u64, bytes, numbers, u64::cast_signed),
        _ => unreachable!("{dtype} is not an integer type with bytes of its own"),
    }
}

fn write_single(isa: Isa, dtype: DType, numbers: &[f32], bytes: &mut [u8]) {
    match dtype {
        DType::Fp16 => {
            let mut halves = [f16::ZERO; CHUNK];
            let halves = &mut halves[..numbers.len()];
            f32_to_f16(isa, numbers, halves);
            write!(f16, bytes, halves, |half| half);
        }
        DType::Bf16 => {
            let mut brains = [bf16::ZERO; CHUNK];
            let brains = &mut brains[..numbers.len()];
            f32_to_bf16(isa, numbers, brains);
            write!(bf16, bytes, brains, |brain| brain);
        }
        DType::Fp32 => write!(f32, bytes, numbers, |number| number),
        _ => {
            let mut doubles = [0.0; CHUNK];
            let doubles = &mut doubles[..numbers.len()];
            let pairs = doubles.iter_mut().zip(numbers);
            pairs.for_each(|(double, &number)| *double = f64::from(number));
            write_double(dtype, doubles, bytes);
        }
    }
}

/// Writes numbers. Conversion to integers truncates and saturates, and NaN becomes 0.
fn write_double(dtype: DType, numbers: &[f64], bytes: &mut [u8]) {
    match dtype {
        DType::Bool => write!(u8, bytes, numbers, |number: f64| u8::from(number != 0.0)),
        DType::Fp16 => write!(f16, bytes, numbers, f16::from_f64),
        DType::Bf16 => write!(bf16, bytes, numbers, bf16::from_f64),
        DType::Fp32 => write!(f32, bytes, numbers, |number: f64| number as f32),
        DType::Fp64 => write!(f64, bytes, numbers, |number| number),
        DType::Int8 => write!(i8, bytes, numbers, |number: f64| number as i8),
        DType::Int16 => write!(i16, bytes, numbers, |number: f64| number as i16),
        DType::Int32 => write!(i32, bytes, numbers, |number: f64| number as i32),
        DType::Int64 => write!(i64, bytes, numbers, |number: f64| number as i64),
        DType::UInt8 => write!(u8, bytes, numbers, |number: f64| number as u8),
        DType::UInt16 => write!(u16, bytes, numbers, |number: f64| number as u16),
        DType::UInt32 => write!(u32, bytes, numbers, |number: f64| number as u32),
        DType::UInt64 => write!(u64, bytes, numbers, |number: f64| number as u64),
        _ => unreachable!("{dtype} is not a number with bytes of its own"),
    }
}

fn write_integers(dtype: DType, numbers: &[i64], bytes: &mut [u8]) {
    match dtype {
        DType::Bool => write!(u8, bytes, numbers, |number: i64| u8::from(number != 0)),
        DType::Int8 => write!(i8, bytes, numbers, |number: i64| number as i8),
        DType::Int16 => write!(i16, bytes, numbers, |number: i64| number as i16),
        DType::Int32 => write!(i32, bytes, numbers, |number: i64| number as i32),
        DType::Int64 => write!(i64, bytes, numbers, |number| number),
        DType::UInt8 => write!(u8, bytes, numbers, |number: i64| number as u8),
        DType::UInt16 => write!(u16, bytes, numbers, |number: i64| number as u16),
        DType::UInt32 => write!(u32, bytes, numbers, |number: i64| number as u32),
        DType::UInt64 => write!(u64, bytes, numbers, |number: i64| number as u64),
        DType::Fp16 => write!(f16, bytes, numbers, |number: i64| f16::from_f64(number as f64)),
        DType::Bf16 => write!(bf16, bytes, numbers, |number: i64| bf16::from_f64(number as f64)),
        DType::Fp32 => write!(f32, bytes, numbers, |number: i64| number as f32),
        DType::Fp64 => write!(f64, bytes, numbers, |number: i64| number as f64),
        _ => unreachable!("{dtype} is not a number with bytes of its own"),
    }
}
