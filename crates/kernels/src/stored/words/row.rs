//! Block parameters of a row of weights, which are read right before its integers.
//!
//! fp16, int8 and 6-bit numbers, possibly in fp16 units, are read directly, a vector at a time, and used while they are in
//! the first-level cache. [`Parameters::read`] expands numbers in other formats.

#![expect(unsafe_code, reason = "numbers are read from bytes whose extents are checked once")]

use super::super::format::Parameters;
use coremill_simd::Isa;
use coremill_simd::vector::{Int8Dot, MAX_LANES, Vector, prefetch_far};
use coremill_tensor::DType;

/// Repeats a block with the index of each vector and its number of lanes, of which only the last one may have fewer.
/// A closure might not be inlined.
macro_rules! vectors {
    ($vector:ty, $count:expr, |$at:ident, $lanes:ident| $body:block) => {
        let count = $count;
        let whole = count - count % <$vector>::LANES;
        for $at in (0..whole).step_by(<$vector>::LANES) {
            let $lanes = <$vector>::LANES;
            $body
        }
        if whole < count {
            let ($at, $lanes) = (whole, count - whole);
            $body
        }
    };
}
pub(super) use vectors;

const CACHE_LINE: usize = 64;

/// Distance in rows from which numbers are prefetched.
const ROWS_AHEAD: usize = 4;

/// The parameters of the rows of a matrix.
#[derive(Clone, Copy)]
pub(super) struct RowParameters<'a> {
    isa: Isa,
    parameters: &'a Parameters,
    form: Form,
    numbers: &'a [u8],
    /// Number of bytes of the numbers of a row.
    size: usize,
    /// Number of rows, or of groups of rows with the same numbers, of which whole vectors are readable.
    readable: usize,
    units: Units<'a>,
}

/// Form of stored numbers.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    Halves,
    Bytes,
    /// 6-bit integers that start at a byte.
    Sixes,
    /// Numbers that are left to [`Parameters::read`].
    Other,
}

/// The fp16 units of the numbers.
#[derive(Clone, Copy)]
struct Units<'a> {
    data: &'a [u8],
    /// Number of units of a row, 0 if there are none.
    across: usize,
    per_vector: UnitsPerVector,
    factor: f32,
}

#[derive(Clone, Copy)]
enum UnitsPerVector {
    Two,
    /// One for this number of vectors, a power of two whose logarithm it is.
    One(u32),
}

/// Use of the numbers of a row.
pub(super) trait Sink<V: Vector> {
    /// Takes the numbers from an index on. Lanes after the first `lanes` are undefined. Implementations must be
    /// `#[inline(always)]`.
    fn take(&mut self, at: usize, lanes: usize, numbers: V);
}

impl Form {
    fn of(parameters: &Parameters) -> Form {
        let counts = |table: &[f32]| table.iter().enumerate().all(|(at, &x)| x == at as f32);
        match (&parameters.table, parameters.dtype) {
            (None, DType::Fp16) => Form::Halves,
            (None, DType::Int8) => Form::Bytes,
            (Some(table), DType::UInt6) if parameters.across.is_multiple_of(4) && counts(table) => {
                Form::Sixes
            }
            _ => Form::Other,
        }
    }

    /// Number of bytes of `count` numbers.
    fn bytes(self, count: usize) -> usize {
        match self {
            Form::Halves => 2 * count,
            Form::Bytes | Form::Other => count,
            Form::Sixes => count * 6 / 8,
        }
    }

    /// Number of numbers that one load reads.
    fn step(self, lanes: usize) -> usize {
        if self == Form::Sixes { 4 * lanes } else { lanes }
    }
}

/// Number of rows, each of `size` bytes, from whose start `step` bytes are readable.
fn readable(data: &[u8], size: usize, step: usize) -> usize {
    data.len().checked_sub(step).map_or(0, |rest| rest / size + 1)
}

impl<'a> RowParameters<'a> {
    pub(super) fn new(isa: Isa, lanes: usize, parameters: &'a Parameters) -> RowParameters<'a> {
        let Parameters { across, rows, factor, .. } = *parameters;
        let (mut form, numbers) = (Form::of(parameters), parameters.data.as_bytes());
        let size = form.bytes(across);
        let step = form.step(lanes);
        let mut whole = readable(numbers, size, form.bytes(across.next_multiple_of(step)));
        let mut units = Units { data: &[], across: 0, per_vector: UnitsPerVector::Two, factor };
        if let Some(unit) = &parameters.units {
            let each = across / unit.across;
            units.data = unit.data.as_bytes();
            units.across = unit.across;
            units.factor *= unit.factor;
            let mut fits = Form::of(unit) == Form::Halves && unit.units.is_none();
            if each.is_multiple_of(lanes) && (each / lanes).is_power_of_two() {
                units.per_vector = UnitsPerVector::One((each / lanes).trailing_zeros());
            } else {
                fits &= 2 * each == lanes;
            }
            if !fits || unit.rows != rows {
                form = Form::Other;
            }
            let bytes = 2 * unit.across.next_multiple_of(lanes);
            whole = whole.min(readable(units.data, 2 * unit.across, bytes));
        }
        RowParameters { isa, parameters, form, numbers, size, readable: whole, units }
    }

    /// Number of elements of memory to read a row.
    pub(super) fn scratch(across: usize) -> usize {
        2 * across.next_multiple_of(MAX_LANES)
    }

    /// Reads the numbers of a row.
    #[inline(always)]
    pub(super) fn read<D: Int8Dot>(
        &self,
        row: usize,
        scratch: &mut [f32],
        sink: &mut impl Sink<D::Floats>,
    ) {
        let lanes = D::Floats::LANES;
        let (across, rows) = (self.parameters.across, self.parameters.rows);
        let group = if rows == 1 { row } else { row / rows };
        let (numbers, units) = scratch.split_at_mut(scratch.len() / 2);
        if self.form == Form::Other || group >= self.readable {
            self.parameters.read(self.isa, row..row + 1, &mut numbers[..across], units);
            vectors!(D::Floats, across, |at, count| {
                sink.take(at, count, load(&numbers[..across], at, count));
            });
            return;
        }
        let source = self.numbers.as_ptr().wrapping_add(group * self.size);
        for line in (0..self.size).step_by(CACHE_LINE) {
            prefetch_far(source.wrapping_add(ROWS_AHEAD * self.size + line));
        }
        let factor = D::Floats::splat(self.units.factor);
        let is_lower =
            load::<D::Floats>(&INDICES, 0, lanes).less(D::Floats::splat((lanes / 2) as f32));
        if self.units.across > 0 {
            let source = self.units.data.as_ptr().wrapping_add(2 * group * self.units.across);
            prefetch_far(source.wrapping_add(2 * ROWS_AHEAD * self.units.across));
            for at in (0..self.units.across).step_by(lanes) {
                // SAFETY: whole vectors are readable.
                let halves = unsafe { load_halves::<D::Floats>(source.add(2 * at)) };
                store(halves.mul(factor), units, at, lanes);
            }
        }
        /// Passes numbers, multiplied by their units, to the sink.
        macro_rules! take {
            ($at:expr, $lanes:expr, $numbers:expr) => {
                let (at, lanes, numbers): (usize, usize, D::Floats) = ($at, $lanes, $numbers);
                let unit = match self.units.per_vector {
                    _ if self.units.across == 0 => factor,
                    UnitsPerVector::One(shift) => {
                        D::Floats::splat(units[(at / D::Floats::LANES) >> shift])
                    }
                    UnitsPerVector::Two => {
                        let first = at / D::Floats::LANES * 2;
                        let (lower, higher) = (units[first], units[first + 1]);
                        let (lower, higher) = (D::Floats::splat(lower), D::Floats::splat(higher));
                        D::Floats::select(is_lower, lower, higher)
                    }
                };
                sink.take(at, lanes, numbers.mul(unit));
            };
        }
        match self.form {
            Form::Halves => {
                vectors!(D::Floats, across, |at, count| {
                    // SAFETY: whole vectors are readable.
                    let numbers = unsafe { load_halves(source.add(2 * at)) };
                    take!(at, count, numbers);
                });
            }
            Form::Sixes => {
                for step in (0..across).step_by(4 * lanes) {
                    let mut bytes = [0.0; MAX_LANES];
                    // SAFETY: whole vectors are readable, and there are as many lanes as in the widest vector.
                    unsafe {
                        let integers = D::load_six_bytes(source.add(step / 4 * 3));
                        D::Floats::from_bits(integers).store(bytes.as_mut_ptr());
                    }
                    vectors!(D::Floats, (across - step).min(4 * lanes), |at, count| {
                        // SAFETY: four bytes were stored for each lane. They are positive.
                        let numbers = unsafe { load_integers(bytes.as_ptr().cast::<u8>().add(at)) };
                        take!(step + at, count, numbers);
                    });
                }
            }
            _ => {
                vectors!(D::Floats, across, |at, count| {
                    // SAFETY: whole vectors are readable.
                    let numbers = unsafe { load_integers(source.add(at)) };
                    take!(at, count, numbers);
                });
            }
        }
    }
}

/// Copies the numbers of a row.
pub(super) struct NumberCopy<'a>(pub &'a mut [f32]);

impl<V: Vector> Sink<V> for NumberCopy<'_> {
    #[inline(always)]
    fn take(&mut self, at: usize, lanes: usize, numbers: V) {
        store(numbers, self.0, at, lanes);
    }
}

/// The sum of the products of a row's numbers with factors.
pub(super) struct WeightedSum<'a, V> {
    pub factors: &'a [f32],
    pub sum: V,
}

impl<V: Vector> Sink<V> for WeightedSum<'_, V> {
    #[inline(always)]
    fn take(&mut self, at: usize, lanes: usize, numbers: V) {
        let numbers = first_lanes(numbers, lanes);
        self.sum = numbers.mul_add(load(self.factors, at, lanes), self.sum);
    }
}

/// Products of a row's numbers with the scales of a left row. They are stored, and multiplied by the totals of the
/// left row if `has_zero`.
pub(super) struct ScaleProducts<'a, V> {
    pub left: &'a [f32],
    pub totals: &'a [f32],
    pub has_zero: bool,
    pub target: &'a mut [f32],
    pub sum: V,
}

impl<V: Vector> Sink<V> for ScaleProducts<'_, V> {
    #[inline(always)]
    fn take(&mut self, at: usize, lanes: usize, numbers: V) {
        let product = first_lanes(numbers, lanes).mul(load(self.left, at, lanes));
        store(product, self.target, at, lanes);
        if self.has_zero {
            self.sum = product.mul_add(load(self.totals, at, lanes), self.sum);
        }
    }
}

/// Replaces lanes after the first ones by zeros.
#[inline(always)]
fn first_lanes<V: Vector>(vector: V, lanes: usize) -> V {
    if lanes == V::LANES {
        return vector;
    }
    let is_first = load::<V>(&INDICES, 0, V::LANES).less(V::splat(lanes as f32));
    V::select(is_first, vector, V::zero())
}

/// Loads the first lanes of a vector at an index; the others are zero.
#[inline(always)]
pub(super) fn load<V: Vector>(elements: &[f32], at: usize, lanes: usize) -> V {
    assert!(lanes <= V::LANES, "at most a vector");
    let source = elements[at..at + lanes].as_ptr();
    // SAFETY: there are as many elements, at most a vector.
    unsafe { if lanes == V::LANES { V::load(source) } else { V::load_partial(source, lanes) } }
}

/// Stores the first lanes of a vector at an index.
#[inline(always)]
pub(super) fn store<V: Vector>(vector: V, elements: &mut [f32], at: usize, lanes: usize) {
    assert!(lanes <= V::LANES, "at most a vector");
    let target = elements[at..at + lanes].as_mut_ptr();
    // SAFETY: as above.
    unsafe {
        if lanes == V::LANES { vector.store(target) } else { vector.store_partial(target, lanes) }
    }
}

static INDICES: [f32; MAX_LANES] =
    [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0];

/// Loads fp16 numbers from any address.
///
/// # Safety
/// Two bytes for each lane must be readable.
#[inline(always)]
unsafe fn load_halves<V: Vector>(source: *const u8) -> V {
    let mut halves = [0; MAX_LANES];
    for (at, half) in halves.iter_mut().enumerate().take(V::LANES) {
        // SAFETY: the caller guarantees the bytes.
        *half = u16::from_le_bytes(unsafe { source.add(2 * at).cast::<[u8; 2]>().read() });
    }
    // SAFETY: there are as many elements as in the widest vector.
    unsafe { V::load_f16(halves.as_ptr()) }
}

/// Loads signed bytes.
///
/// # Safety
/// A byte for each lane must be readable.
#[inline(always)]
unsafe fn load_integers<V: Vector>(source: *const u8) -> V {
    // SAFETY: the caller guarantees the bytes.
    unsafe { V::unpack_i8(source) }
}
