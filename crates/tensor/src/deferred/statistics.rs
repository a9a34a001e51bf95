use std::io;

use half::f16;

use super::LazyTensor;
use super::scan::map_windows;
use super::steps::{is_numeric, read_double};
use crate::{Buffer, DType};
use coremill_simd::Isa;
use coremill_simd::vector::{Kernel, Vector, dispatch};

/// Number of elements that are converted together.
const CHUNK: usize = 2048;

/// Smallest number that rounds to infinity in half precision.
const OVERFLOWING: f32 = 65520.0;

/// Largest number that rounds to 0 in half precision.
const VANISHING: f32 = 1.0 / (1u32 << 25) as f32;

/// Statistics of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Statistics {
    /// The smallest finite element; infinity if there is none.
    pub min: f64,
    /// The largest finite element; minus infinity if there is none.
    pub max: f64,
    /// Number of NaN elements.
    pub nans: u64,
    /// Number of infinite elements.
    pub infinities: u64,
    /// Number of finite elements that are infinite in half precision.
    pub overflowing: u64,
    /// Number of nonzero elements that are 0 in half precision.
    pub vanishing: u64,
}

impl Statistics {
    /// Reads every element, on all processors. Returns `None` for types that are not numeric or narrower than
    /// a byte.
    pub fn of(elements: &Buffer, dtype: DType) -> io::Result<Option<Statistics>> {
        if !is_numeric(dtype) {
            return Ok(None);
        }
        let width = dtype.bits().map_or(1, |bits| bits as usize / 8);
        let isa = Isa::detect();
        let parts = map_windows(elements, &|_, bytes| match dtype {
            DType::Fp32 => singles(isa, bytes),
            _ => doubles(dtype, width, bytes),
        })?;
        Ok(Some(parts.into_iter().fold(Statistics::NONE, Statistics::with)))
    }

    /// Whether the sources of single-precision elements prove that no element exceeds a limit.
    pub fn surely_within(elements: &Buffer, limit: f64) -> io::Result<bool> {
        let known = match LazyTensor::of(elements) {
            Some(recipe) => recipe.scaled(),
            None => (!elements.is_deferred()).then(|| (elements.clone(), 1.0)),
        };
        let Some((source, factor)) = known else { return Ok(false) };
        let isa = Isa::detect();
        let largest = map_windows(&source, &|_, bytes| {
            dispatch(isa, Extent { elements: bytes.as_chunks().0 }).largest
        })?;
        // NaN has the largest bits.
        let largest = f32::from_bits(largest.into_iter().max().unwrap_or(0));
        // Each product is rounded.
        Ok(f64::from(largest) * f64::from(factor) * (1.0 + f64::from(f32::EPSILON)) <= limit)
    }

    /// Whether no element is infinite in half precision and there are no infinite or NaN elements.
    pub fn fits_fp16(&self) -> bool {
        self.nans == 0 && self.infinities == 0 && self.overflowing == 0
    }

    const NONE: Statistics = Statistics {
        min: f64::INFINITY,
        max: f64::NEG_INFINITY,
        nans: 0,
        infinities: 0,
        overflowing: 0,
        vanishing: 0,
    };

    fn with(self, other: Statistics) -> Statistics {
        Statistics {
            min: self.min.min(other.min),
            max: self.max.max(other.max),
            nans: self.nans + other.nans,
            infinities: self.infinities + other.infinities,
            overflowing: self.overflowing + other.overflowing,
            vanishing: self.vanishing + other.vanishing,
        }
    }

    fn count(&mut self, number: f64) {
        if number.is_nan() {
            self.nans += 1;
        } else if number.is_infinite() {
            self.infinities += 1;
        } else {
            (self.min, self.max) = (self.min.min(number), self.max.max(number));
            let half = f16::from_f64(number);
            self.overflowing += u64::from(half.is_infinite());
            self.vanishing += u64::from(number != 0.0 && half.to_bits() << 1 == 0);
        }
    }
}

fn doubles(dtype: DType, width: usize, bytes: &[u8]) -> Statistics {
    let mut statistics = Statistics::NONE;
    let mut numbers = [0.0; CHUNK];
    for chunk in bytes.chunks(CHUNK * width) {
        let numbers = &mut numbers[..chunk.len() / width];
        read_double(dtype, chunk, numbers);
        numbers.iter().for_each(|&number| statistics.count(number));
    }
    statistics
}

fn singles(isa: Isa, bytes: &[u8]) -> Statistics {
    let mut statistics = Statistics::NONE;
    let (elements, _) = bytes.as_chunks::<4>();
    for chunk in elements.chunks(CHUNK) {
        let extent = dispatch(isa, Extent { elements: chunk });
        if extent.largest < OVERFLOWING.to_bits() {
            statistics.min = statistics.min.min(from_key(extent.min).into());
            statistics.max = statistics.max.max(from_key(extent.max).into());
            statistics.vanishing += u64::from(extent.vanishing);
        } else {
            chunk.iter().for_each(|bytes| statistics.count(f32::from_le_bytes(*bytes).into()));
        }
    }
    statistics
}

/// Properties computed by integer comparisons of the bits of floats, which vectorize in any order.
struct Extent<'a> {
    elements: &'a [[u8; 4]],
}

struct PartialStatistics {
    /// Bits of the largest magnitude.
    largest: u32,
    min: i32,
    max: i32,
    vanishing: u32,
}

/// Number of independent partial results: one cache line.
const LANES: usize = 16;

impl Kernel for Extent<'_> {
    type Output = PartialStatistics;

    #[inline(always)]
    fn run<V: Vector>(self) -> PartialStatistics {
        let mut largest = [0u32; LANES];
        let mut min = [i32::MAX; LANES];
        let mut max = [i32::MIN; LANES];
        let mut vanishing = [0u32; LANES];
        let (lines, rest) = self.elements.as_chunks::<LANES>();
        for line in lines {
            for lane in 0..LANES {
                let bits = u32::from_le_bytes(line[lane]);
                let (magnitude, key) = (bits & 0x7fff_ffff, key(bits));
                largest[lane] = largest[lane].max(magnitude);
                min[lane] = min[lane].min(key);
                max[lane] = max[lane].max(key);
                vanishing[lane] += u32::from(vanishes(magnitude));
            }
        }
        for element in rest {
            let bits = u32::from_le_bytes(*element);
            let (magnitude, key) = (bits & 0x7fff_ffff, key(bits));
            largest[0] = largest[0].max(magnitude);
            min[0] = min[0].min(key);
            max[0] = max[0].max(key);
            vanishing[0] += u32::from(vanishes(magnitude));
        }
        PartialStatistics {
            largest: largest.into_iter().fold(0, u32::max),
            min: min.into_iter().fold(i32::MAX, i32::min),
            max: max.into_iter().fold(i32::MIN, i32::max),
            vanishing: vanishing.into_iter().sum(),
        }
    }
}

#[inline(always)]
fn vanishes(magnitude: u32) -> bool {
    // Zero wraps around to the largest integer.
    magnitude.wrapping_sub(1) < VANISHING.to_bits()
}

/// An integer with the same order as the floats with these bits.
#[inline(always)]
fn key(bits: u32) -> i32 {
    let bits = bits.cast_signed();
    bits ^ (bits >> 31 & 0x7fff_ffff)
}

fn from_key(key: i32) -> f32 {
    f32::from_bits((key ^ (key >> 31 & 0x7fff_ffff)).cast_unsigned())
}
