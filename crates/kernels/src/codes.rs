//! Conversion between floats and the small integers of compressed weights.

use coremill_simd::Isa;
use coremill_simd::vector::{Kernel, MAX_LANES, Vector, dispatch};

/// Number of independent partial results: one cache line of floats.
const LANES: usize = 16;

/// Adding a small integer to this number stores the integer in the low bits of the sum.
const INTEGERS: f32 = 12_582_912.0;

/// Quantization of floats to integers: `round(number / scale) + zero_point`, clamped.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Affine {
    /// Difference between the numbers of consecutive integers.
    pub scale: f32,
    /// The integer that represents 0.
    pub zero_point: f32,
}

/// Quantization of floats to indices of an even grid: `round((number - least) / extent · steps)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Grid {
    /// The number of the first index.
    pub least: f32,
    /// Difference between the numbers of the last and the first index.
    pub extent: f32,
}

/// Converts fp16 to fp32.
///
/// # Panics
/// Panics if the lengths differ.
pub fn widen(isa: Isa, halves: &[[u8; 2]], numbers: &mut [f32]) {
    assert_eq!(halves.len(), numbers.len(), "the lengths must be equal");
    dispatch(isa, Widen { halves, numbers });
}

/// Rounds fp32 to the bits of the nearest fp16 numbers.
///
/// # Panics
/// Panics if the lengths differ.
pub fn narrow(isa: Isa, numbers: &[f32], halves: &mut [u16]) {
    assert_eq!(halves.len(), numbers.len(), "the lengths must be equal");
    dispatch(isa, Narrow { numbers, halves });
}

/// Extends the ranges (minimum, maximum) of blocks to include the numbers. Each run is a length and the index
/// of its block. Returns whether all numbers are finite.
pub fn extend(
    isa: Isa,
    numbers: &[f32],
    runs: &[(usize, usize)],
    extents: &mut [(f32, f32)],
) -> bool {
    dispatch(isa, Extend { numbers, runs, extents })
}

/// Quantizes numbers to integers. Each run is a length and its conversion. The integers are clamped to
/// `range`. With `half`, quotients are first rounded to half precision. Signed integers are stored in two's
/// complement.
///
/// # Panics
/// Panics if the lengths of numbers and codes differ.
pub fn affine(
    isa: Isa,
    numbers: &[f32],
    runs: &[(usize, Affine)],
    range: (f32, f32),
    half: bool,
    codes: &mut [u8],
) {
    assert_eq!(codes.len(), numbers.len(), "the lengths must be equal");
    dispatch(isa, Quantize { numbers, runs, range, half, codes });
}

/// Quantizes numbers to indices of an even grid with `steps` steps. Each run is a length and its grid. With
/// `half`, the result of each operation is rounded to half precision.
///
/// # Panics
/// Panics if the lengths of numbers and codes differ.
pub fn grid(
    isa: Isa,
    numbers: &[f32],
    runs: &[(usize, Grid)],
    steps: f32,
    half: bool,
    codes: &mut [u8],
) {
    assert_eq!(codes.len(), numbers.len(), "the lengths must be equal");
    dispatch(isa, Place { numbers, runs, steps, half, codes });
}

/// Counts, for each number, the limits below it. Each run is a length and the index of the first of its
/// `count` limits.
///
/// # Panics
/// Panics if the lengths of numbers and codes differ, or if limits are missing.
pub fn bucketize(
    isa: Isa,
    numbers: &[f32],
    runs: &[(usize, usize)],
    limits: &[f32],
    count: usize,
    codes: &mut [u8],
) {
    assert_eq!(codes.len(), numbers.len(), "the lengths must be equal");
    dispatch(isa, Above { numbers, runs, limits, count, codes });
}

/// Dequantizes integers; the inverse of [`affine`]. Each run is a length and its conversion.
///
/// # Panics
/// Panics if the lengths of codes and numbers differ.
pub fn restore(
    isa: Isa,
    codes: &[u8],
    runs: &[(usize, Affine)],
    signed: bool,
    numbers: &mut [f32],
) {
    assert_eq!(codes.len(), numbers.len(), "the lengths must be equal");
    dispatch(isa, Restore { codes, runs, signed, numbers });
}

/// Rounds numbers in place to the nearest fp16 numbers.
pub fn round_to_half(isa: Isa, numbers: &mut [f32]) {
    dispatch(isa, RoundToHalf { numbers });
}

/// Returns the sum of the squares of the numbers, and the sum of the squared differences from `others`.
///
/// # Panics
/// Panics if the lengths differ.
pub fn squared_error(isa: Isa, numbers: &[f32], others: &[f32]) -> (f64, f64) {
    assert_eq!(numbers.len(), others.len(), "the lengths must be equal");
    dispatch(isa, Lost { numbers, others })
}

/// Packs the low bits of codes, the first code in the lowest bits, like
/// [`packed::pack`](coremill_tensor::packed::pack). Unused bits of the last byte are 0.
///
/// # Panics
/// Panics if the target does not have the packed length, or if codes have more than 8 bits.
pub fn pack(bits: u32, codes: &[u8], target: &mut [u8]) {
    assert!((1..=8).contains(&bits), "codes must have 1 to 8 bits, got {bits}");
    assert_eq!(
        target.len(),
        (codes.len() * bits as usize).div_ceil(8),
        "the target must hold all {bits}-bit codes"
    );
    match bits {
        8 => target.copy_from_slice(codes),
        4 => {
            let (pairs, rest) = codes.as_chunks::<2>();
            for (byte, [low, high]) in target.iter_mut().zip(pairs) {
                *byte = low & 15 | high << 4;
            }
            if let ([last], Some(byte)) = (rest, target.last_mut()) {
                *byte = last & 15;
            }
        }
        _ => {
            // Eight codes of `bits` bits fill `bits` bytes.
            let mask = (1u64 << bits) - 1;
            for (codes, target) in codes.chunks(8).zip(target.chunks_mut(bits as usize)) {
                let word = codes
                    .iter()
                    .rev()
                    .fold(0u64, |word, &code| word << bits | u64::from(code) & mask);
                target.copy_from_slice(&word.to_le_bytes()[..target.len()]);
            }
        }
    }
}

struct Widen<'a> {
    halves: &'a [[u8; 2]],
    numbers: &'a mut [f32],
}

impl Kernel for Widen<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let halves = self.halves.chunks(V::LANES);
        for (halves, numbers) in halves.zip(self.numbers.chunks_mut(V::LANES)) {
            let mut bits = [0u16; MAX_LANES];
            for (bits, half) in bits.iter_mut().zip(halves) {
                *bits = u16::from_le_bytes(*half);
            }
            // SAFETY: the array has at least as many elements as a vector has lanes, and only `numbers.len()`
            // elements are stored.
            #[expect(unsafe_code, reason = "vectors are loaded from and stored to memory")]
            unsafe {
                let loaded = V::load_f16(bits.as_ptr());
                if numbers.len() == V::LANES {
                    loaded.store(numbers.as_mut_ptr());
                } else {
                    loaded.store_partial(numbers.as_mut_ptr(), numbers.len());
                }
            }
        }
    }
}

struct Narrow<'a> {
    numbers: &'a [f32],
    halves: &'a mut [u16],
}

impl Kernel for Narrow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let numbers = self.numbers.chunks(V::LANES);
        for (numbers, halves) in numbers.zip(self.halves.chunks_mut(V::LANES)) {
            let mut bits = [0u16; MAX_LANES];
            // SAFETY: the array has at least as many elements as a vector has lanes, and only `numbers.len()`
            // elements are loaded.
            #[expect(unsafe_code, reason = "vectors are loaded from and stored to memory")]
            unsafe {
                let loaded = V::load_partial(numbers.as_ptr(), numbers.len());
                loaded.store_f16(bits.as_mut_ptr());
            }
            halves.copy_from_slice(&bits[..halves.len()]);
        }
    }
}

struct Extend<'a> {
    numbers: &'a [f32],
    runs: &'a [(usize, usize)],
    extents: &'a mut [(f32, f32)],
}

impl Kernel for Extend<'_> {
    type Output = bool;

    #[inline(always)]
    fn run<V: Vector>(self) -> bool {
        let mut rest = self.numbers;
        let mut finite = true;
        for &(length, block) in self.runs {
            let (numbers, later) = rest.split_at(length);
            rest = later;
            let (mut least, mut most) = self.extents[block];
            let (lines, tail) = numbers.as_chunks::<LANES>();
            if !lines.is_empty() {
                let (mut low, mut high) = ([least; LANES], [most; LANES]);
                let mut strange = [false; LANES];
                for line in lines {
                    for lane in 0..LANES {
                        let number = line[lane];
                        low[lane] = if number < low[lane] { number } else { low[lane] };
                        high[lane] = if number > high[lane] { number } else { high[lane] };
                        // This is also true for NaN.
                        strange[lane] |= !(number.abs() <= f32::MAX);
                    }
                }
                least = low.into_iter().fold(least, f32::min);
                most = high.into_iter().fold(most, f32::max);
                finite &= !strange.contains(&true);
            }
            for &number in tail {
                (least, most) = (least.min(number), most.max(number));
                finite &= number.is_finite();
            }
            self.extents[block] = (least, most);
        }
        finite
    }
}

/// Rounds to the 11 significant bits of fp16. Numbers below the range of fp16 keep more bits, and numbers above it
/// stay finite; neither affects a small integer.
#[inline(always)]
fn to_half(number: f32) -> f32 {
    let bits = number.to_bits();
    let rounded = bits.wrapping_add(0xfff + (bits >> 13 & 1)) & !0x1fff;
    f32::from_bits(rounded)
}

struct Quantize<'a> {
    numbers: &'a [f32],
    runs: &'a [(usize, Affine)],
    range: (f32, f32),
    half: bool,
    codes: &'a mut [u8],
}

impl Kernel for Quantize<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let (mut numbers, mut codes) = (self.numbers, self.codes);
        let (low, high) = self.range;
        for &(length, Affine { scale, zero_point }) in self.runs {
            let (now, later) = numbers.split_at(length);
            let (to, left) = codes.split_at_mut(length);
            (numbers, codes) = (later, left);
            let code = |steps: f32| {
                let steps = steps.round_ties_even() + zero_point;
                let steps = if steps < low { low } else { steps };
                let steps = if steps > high { high } else { steps };
                // The low bits of the sum are the integer in two's complement. In a block of zeros the
                // quotient is NaN, which becomes 0.
                (steps + INTEGERS).to_bits() as u8
            };
            if self.half {
                convert(now, to, |number| code(to_half(number / scale)));
            } else {
                convert(now, to, |number| code(number / scale));
            }
        }
    }
}

/// Converts numbers one by one, in chunks of one cache line.
#[inline(always)]
fn convert(numbers: &[f32], codes: &mut [u8], code: impl Fn(f32) -> u8) {
    let (lines, tail) = numbers.as_chunks::<LANES>();
    let (to_lines, to_tail) = codes.as_chunks_mut::<LANES>();
    for (line, to) in lines.iter().zip(to_lines) {
        for lane in 0..LANES {
            to[lane] = code(line[lane]);
        }
    }
    for (&number, to) in tail.iter().zip(to_tail) {
        *to = code(number);
    }
}

struct Restore<'a> {
    codes: &'a [u8],
    runs: &'a [(usize, Affine)],
    signed: bool,
    numbers: &'a mut [f32],
}

impl Kernel for Restore<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let (mut codes, mut numbers) = (self.codes, self.numbers);
        for &(length, Affine { scale, zero_point }) in self.runs {
            let (now, later) = codes.split_at(length);
            let (to, left) = numbers.split_at_mut(length);
            (codes, numbers) = (later, left);
            if self.signed {
                for (to, &code) in to.iter_mut().zip(now) {
                    *to = scale * (f32::from(code as i8) - zero_point);
                }
            } else {
                for (to, &code) in to.iter_mut().zip(now) {
                    *to = scale * (f32::from(code) - zero_point);
                }
            }
        }
    }
}

struct RoundToHalf<'a> {
    numbers: &'a mut [f32],
}

impl Kernel for RoundToHalf<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        for numbers in self.numbers.chunks_mut(V::LANES) {
            let mut bits = [0u16; MAX_LANES];
            // SAFETY: the array has at least as many elements as a vector has lanes, and only `numbers.len()`
            // elements are loaded and stored.
            #[expect(unsafe_code, reason = "vectors are loaded from and stored to memory")]
            unsafe {
                V::load_partial(numbers.as_ptr(), numbers.len()).store_f16(bits.as_mut_ptr());
                V::load_f16(bits.as_ptr()).store_partial(numbers.as_mut_ptr(), numbers.len());
            }
        }
    }
}

struct Lost<'a> {
    numbers: &'a [f32],
    others: &'a [f32],
}

impl Kernel for Lost<'_> {
    type Output = (f64, f64);

    #[inline(always)]
    fn run<V: Vector>(self) -> (f64, f64) {
        let (mut power, mut loss) = ([0.0f64; LANES], [0.0f64; LANES]);
        let mut add = |lane: usize, number: f32, other: f32| {
            let (number, other) = (f64::from(number), f64::from(other));
            power[lane] += number * number;
            loss[lane] += (number - other) * (number - other);
        };
        let (lines, tail) = self.numbers.as_chunks::<LANES>();
        let (others, other_tail) = self.others.as_chunks::<LANES>();
        for (line, others) in lines.iter().zip(others) {
            for lane in 0..LANES {
                add(lane, line[lane], others[lane]);
            }
        }
        for (lane, (&number, &other)) in tail.iter().zip(other_tail).enumerate() {
            add(lane, number, other);
        }
        (power.iter().sum(), loss.iter().sum())
    }
}

struct Place<'a> {
    numbers: &'a [f32],
    runs: &'a [(usize, Grid)],
    steps: f32,
    half: bool,
    codes: &'a mut [u8],
}

impl Kernel for Place<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let (mut numbers, mut codes) = (self.numbers, self.codes);
        for &(length, Grid { least, extent }) in self.runs {
            let (now, later) = numbers.split_at(length);
            let (to, left) = codes.split_at_mut(length);
            (numbers, codes) = (later, left);
            let code = |place: f32| {
                let place = place.round_ties_even();
                // If all numbers are equal, the index is NaN and becomes the first one.
                let place = if place > 0.0 { place } else { 0.0 };
                let place = if place > self.steps { self.steps } else { place };
                (place + INTEGERS).to_bits() as u8
            };
            if self.half {
                let share = |number| to_half(to_half(number - least) / extent);
                convert(now, to, |number| code(to_half(share(number) * self.steps)));
            } else {
                convert(now, to, |number| code((number - least) / extent * self.steps));
            }
        }
    }
}

struct Above<'a> {
    numbers: &'a [f32],
    runs: &'a [(usize, usize)],
    limits: &'a [f32],
    count: usize,
    codes: &'a mut [u8],
}

impl Kernel for Above<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let (mut numbers, mut codes) = (self.numbers, self.codes);
        for &(length, first) in self.runs {
            let (now, later) = numbers.split_at(length);
            let (to, left) = codes.split_at_mut(length);
            (numbers, codes) = (later, left);
            let limits = &self.limits[first..first + self.count];
            let (lines, tail) = now.as_chunks::<LANES>();
            let (to_lines, to_tail) = to.as_chunks_mut::<LANES>();
            for (line, to) in lines.iter().zip(to_lines) {
                let mut counts = [0i32; LANES];
                for &limit in limits {
                    for lane in 0..LANES {
                        counts[lane] += i32::from(line[lane] > limit);
                    }
                }
                for lane in 0..LANES {
                    to[lane] = counts[lane] as u8;
                }
            }
            for (&number, to) in tail.iter().zip(to_tail) {
                *to = limits.iter().map(|&limit| u8::from(number > limit)).sum();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;
    use coremill_tensor::{DType, packed};

    /// Numbers of both signs that fp16 represents exactly, including multiples of 1/128.
    fn numbers() -> Vec<f32> {
        (0..5000u32)
            .map(|at| {
                let random = at.wrapping_mul(2_654_435_761).rotate_left(9);
                let number = (random as f32 / u32::MAX as f32 - 0.5) * 0.25;
                f16::from_f32(if at % 7 == 0 { (at % 64) as f32 / 128.0 } else { number }).to_f32()
            })
            .collect()
    }

    #[test]
    fn fp16_round_trips_through_widen_and_narrow() {
        let numbers = numbers();
        let bytes: Vec<[u8; 2]> =
            numbers.iter().map(|&number| f16::from_f32(number).to_le_bytes()).collect();
        for isa in Isa::available() {
            for length in [0, 1, 15, 16, 17, numbers.len()] {
                let mut found = vec![0.0; length];
                widen(isa, &bytes[..length], &mut found);
                assert_eq!(found, numbers[..length], "{isa}");
                let mut halves = vec![0; length];
                narrow(isa, &found, &mut halves);
                let expected: Vec<u16> =
                    bytes[..length].iter().map(|half| u16::from_le_bytes(*half)).collect();
                assert_eq!(halves, expected, "{isa}");
            }
        }
    }

    #[test]
    fn extend_tracks_block_ranges_and_finiteness() {
        let mut numbers = numbers();
        let runs = [(3, 1), (40, 0), (17, 1), (numbers.len() - 60, 2)];
        for isa in Isa::available() {
            let mut extents = [(f32::INFINITY, f32::NEG_INFINITY); 3];
            assert!(extend(isa, &numbers, &runs, &mut extents));
            let mut expected = [(f32::INFINITY, f32::NEG_INFINITY); 3];
            let mut at = 0;
            for (length, block) in runs {
                for &number in &numbers[at..at + length] {
                    let (least, most) = expected[block];
                    expected[block] = (least.min(number), most.max(number));
                }
                at += length;
            }
            assert_eq!(extents, expected, "{isa}");
        }
        for special in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in [0, 50, 100, 4999] {
                let kept = std::mem::replace(&mut numbers[at], special);
                let mut extents = [(f32::INFINITY, f32::NEG_INFINITY); 3];
                assert!(!extend(Isa::detect(), &numbers, &runs, &mut extents), "{special} {at}");
                numbers[at] = kept;
            }
        }
    }

    #[test]
    fn affine_quantizes_in_half_and_single_precision() {
        let numbers = numbers();
        let step = Affine { scale: f16::from_f32(0.00391).to_f32(), zero_point: -3.0 };
        let runs = [(100, step), (numbers.len() - 100, Affine { scale: 0.0, ..step })];
        for isa in Isa::available() {
            for half in [false, true] {
                let mut codes = vec![0; numbers.len()];
                affine(isa, &numbers, &runs, (-7.0, 7.0), half, &mut codes);
                for (at, (&number, &code)) in numbers.iter().zip(&codes).enumerate().take(100) {
                    let mut quotient = number / step.scale;
                    if half {
                        quotient = f16::from_f32(quotient).to_f32();
                    }
                    let expected = (quotient.round_ties_even() - 3.0).clamp(-7.0, 7.0) as i8;
                    assert_eq!(code as i8, expected, "{isa} {at} {number}");
                }
                let zero = numbers.iter().skip(100).position(|&number| number == 0.0);
                assert_eq!(codes[100 + zero.expect("there are zeros")], 0, "{isa}");
            }
        }
    }

    #[test]
    fn dequantizes_and_sums_squared_error() {
        let numbers = numbers();
        let steps =
            [(0.0039, -3.0), (0.02, 5.0)].map(|(scale, zero_point)| Affine { scale, zero_point });
        let runs = [(37, steps[0]), (numbers.len() - 37, steps[1])];
        for isa in Isa::available() {
            for (signed, range) in [(true, (-128.0, 127.0)), (false, (0.0, 255.0))] {
                let mut codes = vec![0; numbers.len()];
                affine(isa, &numbers, &runs, range, false, &mut codes);
                let mut found = vec![0.0; numbers.len()];
                restore(isa, &codes, &runs, signed, &mut found);
                for (at, (&code, &found)) in codes.iter().zip(&found).enumerate() {
                    let code = if signed { f32::from(code as i8) } else { f32::from(code) };
                    let Affine { scale, zero_point } = steps[usize::from(at >= 37)];
                    assert_eq!(found, scale * (code - zero_point), "{isa} {at}");
                }
                let mut rounded = found.clone();
                round_to_half(isa, &mut rounded);
                let halves: Vec<f32> =
                    found.iter().map(|&number| f16::from_f32(number).to_f32()).collect();
                assert_eq!(rounded, halves, "{isa}");
                let (power, loss) = squared_error(isa, &numbers, &rounded);
                let sum = |of: &dyn Fn(f64, f64) -> f64| -> f64 {
                    numbers.iter().zip(&rounded).map(|(&l, &r)| of(l.into(), r.into())).sum()
                };
                let expected = (sum(&|l, _| l * l), sum(&|l, r| (l - r) * (l - r)));
                assert!((power / expected.0 - 1.0).abs() < 1e-12, "{isa} {power} {expected:?}");
                assert!((loss / expected.1 - 1.0).abs() < 1e-12, "{isa} {loss} {expected:?}");
            }
        }
    }

    #[test]
    fn grid_rounds_each_step_to_half_precision() {
        let numbers = numbers();
        let bounds = Grid { least: -0.125, extent: f16::from_f32(0.6172).to_f32() };
        let round = |number: f32| f16::from_f32(number).to_f32();
        for isa in Isa::available() {
            let mut codes = vec![0; numbers.len()];
            grid(isa, &numbers, &[(numbers.len(), bounds)], 63.0, true, &mut codes);
            for (&number, &code) in numbers.iter().zip(&codes) {
                let share = round(round(number - bounds.least) / bounds.extent);
                assert_eq!(
                    f32::from(code),
                    round(share * 63.0).round_ties_even(),
                    "{isa} {number}"
                );
            }
        }
    }

    #[test]
    fn bucketize_counts_limits_below() {
        let numbers = numbers();
        let limits: Vec<f32> = (0..255).map(|at| at as f32 / 400.0 - 0.13).collect();
        for isa in Isa::available() {
            for count in [1, 15, 100] {
                let runs = [(33, 0), (numbers.len() - 33, 100)];
                let mut codes = vec![0; numbers.len()];
                bucketize(isa, &numbers, &runs, &limits, count, &mut codes);
                for (at, (&number, &code)) in numbers.iter().zip(&codes).enumerate() {
                    let first = if at < 33 { 0 } else { 100 };
                    let of = &limits[first..first + count];
                    let expected = of.iter().filter(|&&limit| number > limit).count();
                    assert_eq!(usize::from(code), expected, "{isa} {at}");
                }
            }
        }
    }

    #[test]
    fn pack_matches_tensor_packing() {
        for dtype in [DType::UInt1, DType::UInt2, DType::UInt3, DType::UInt4, DType::UInt6] {
            let bits = dtype.bits().expect("integers have bits");
            for length in [0, 1, 7, 8, 9, 31] {
                let codes: Vec<u8> =
                    (0..length).map(|at: u32| (at * 37 % (1 << bits)) as u8).collect();
                let mut packed = vec![0xff; (codes.len() * bits as usize).div_ceil(8)];
                pack(bits, &codes, &mut packed);
                let wide: Vec<i16> = codes.iter().map(|&code| code.into()).collect();
                assert_eq!(Some(packed), packed::pack(dtype, &wide), "{dtype} {length}");
            }
        }
        let mut packed = [0; 2];
        pack(4, &[0xff, 7, 0xf9], &mut packed);
        assert_eq!(packed, [0x7f, 0x09]);
    }
}
