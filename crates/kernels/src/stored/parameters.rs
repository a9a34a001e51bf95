//! Reading of block parameters: integers and narrow floats become `f32`, and products are computed.

#![expect(unsafe_code, reason = "vectors are read from bytes whose extents are checked once")]

use std::ops::Range;

use super::format::Parameters;
use crate::matmul::source::widen;
use coremill_simd::Isa;
use coremill_simd::vector::{FIELDS_BYTES, Fields, Kernel, MAX_LANES, Vector, dispatch};
use coremill_tensor::DType;

impl Parameters {
    /// Reads the parameters of some rows. `units` is scratch memory of the same size.
    pub(super) fn read(&self, isa: Isa, rows: Range<usize>, target: &mut [f32], units: &mut [f32]) {
        let across = self.across.max(1);
        if self.rows == 1 {
            self.convert(isa, rows.start * self.across..rows.end * self.across, target);
        } else {
            for (row, target) in rows.clone().zip(target.chunks_exact_mut(across)) {
                let start = row / self.rows * self.across;
                self.convert(isa, start..start + self.across, target);
            }
        }
        let factor = self.factor;
        if let Some(unit) = &self.units {
            let units = &mut units[..rows.len() * unit.across];
            unit.read(isa, rows, units, &mut []);
            let each = across / unit.across.max(1);
            dispatch(isa, Scale { numbers: target, units, each, factor });
        } else if factor != 1.0 {
            target.iter_mut().for_each(|number| *number *= factor);
        }
    }

    /// Converts a range of stored numbers.
    fn convert(&self, isa: Isa, range: Range<usize>, target: &mut [f32]) {
        let bytes = self.data.as_bytes();
        let part = |size: usize| &bytes[range.start * size..range.end * size];
        match (&self.table, self.dtype) {
            (None, DType::Int8) => dispatch(isa, WidenInt8 { bytes: part(1), target }),
            (None, DType::Fp32) => widen(isa, self.dtype, part(4), target),
            (None, _) => widen(isa, self.dtype, part(2), target),
            (Some(table), dtype) => {
                let bits = dtype.bits().unwrap_or(8) as usize;
                dispatch(isa, LookUp { bytes, bits, start: range.start, table, target });
            }
        }
    }
}

struct WidenInt8<'a> {
    bytes: &'a [u8],
    target: &'a mut [f32],
}

impl Kernel for WidenInt8<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let mut targets = self.target.chunks_exact_mut(V::LANES);
        let mut sources = self.bytes.chunks_exact(V::LANES);
        for (target, source) in targets.by_ref().zip(sources.by_ref()) {
            // SAFETY: both have the elements of one vector.
            unsafe { V::unpack_i8(source.as_ptr()).store(target.as_mut_ptr()) };
        }
        for (target, &byte) in targets.into_remainder().iter_mut().zip(sources.remainder()) {
            *target = f32::from(byte as i8);
        }
    }
}

/// Looks up numbers by unsigned integers of 4, 6 or 8 bits.
struct LookUp<'a> {
    bytes: &'a [u8],
    bits: usize,
    /// Index of the first integer.
    start: usize,
    table: &'a [f32],
    target: &'a mut [f32],
}

impl Kernel for LookUp<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let LookUp { bytes, bits, start, table, target } = self;
        assert!(table.len() == 1 << bits && matches!(bits, 4 | 6 | 8), "an entry for each integer");
        let fields = Fields::of(bits);
        let mut at = 0;
        /// Looks whole vectors up in a table that is loaded once.
        macro_rules! look_up {
            (|$source:ident, $fields:ident| $vector:expr) => {
                while at + V::LANES <= target.len() {
                    let bit = (start + at) * bits;
                    if bit / 8 + FIELDS_BYTES > bytes.len() {
                        break;
                    }
                    // SAFETY: the bytes were checked, the table has an entry for each integer, and the target has
                    // the elements of a vector.
                    unsafe {
                        let $source = bytes.as_ptr().add(bit / 8);
                        let $fields = &fields[bit % 8];
                        let numbers: V = $vector;
                        numbers.store(target.as_mut_ptr().add(at));
                    }
                    at += V::LANES;
                }
            };
        }
        match bits {
            4 => {
                // SAFETY: the table has sixteen entries.
                let table = unsafe { V::load_table(table.as_ptr()) };
                look_up!(|source, fields| V::look_up(source, fields, table));
            }
            6 => {
                // SAFETY: the table has 64 entries.
                let table = unsafe { V::load_wide_table(table.as_ptr()) };
                look_up!(|source, fields| V::look_up_wide(source, fields, table));
            }
            _ => look_up!(|source, fields| V::gather(source, fields, table.as_ptr())),
        }
        for (index, target) in target.iter_mut().enumerate().skip(at) {
            let bit = (start + index) * bits;
            let low = u16::from(bytes[bit / 8]);
            let high = bytes.get(bit / 8 + 1).copied().map_or(0, u16::from);
            let code = ((low | high << 8) >> (bit % 8)) & ((1 << bits) - 1);
            *target = table[usize::from(code)];
        }
    }
}

/// Multiplies runs of numbers with their units and a common factor.
struct Scale<'a> {
    numbers: &'a mut [f32],
    units: &'a [f32],
    /// Length of a run.
    each: usize,
    factor: f32,
}

impl Kernel for Scale<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let Scale { numbers, units, each, factor } = self;
        let mut done = 0;
        if each.is_power_of_two() && each <= MAX_LANES {
            // A vector of units becomes vectors in which each unit is repeated, twice as often in each round.
            let sources = units.chunks_exact(V::LANES);
            let targets = numbers.chunks_exact_mut(V::LANES * each);
            for (units, numbers) in sources.zip(targets) {
                let mut vectors = [V::zero(); MAX_LANES];
                // SAFETY: the part has the elements of a vector.
                vectors[0] = unsafe { V::load(units.as_ptr()) }.mul(V::splat(factor));
                let mut count = 1;
                while count < each {
                    for at in (0..count).rev() {
                        let vector = vectors[at];
                        (vectors[2 * at], vectors[2 * at + 1]) = vector.interleave(vector);
                    }
                    count *= 2;
                }
                for (numbers, units) in numbers.chunks_exact_mut(V::LANES).zip(vectors) {
                    // SAFETY: as above.
                    unsafe {
                        let product = V::load(numbers.as_ptr()).mul(units);
                        product.store(numbers.as_mut_ptr());
                    }
                }
                done += V::LANES;
            }
        }
        let runs = numbers.chunks_exact_mut(each.max(1)).zip(units);
        for (run, &unit) in runs.skip(done) {
            let unit_lanes = V::splat(unit * factor);
            for part in run.chunks_mut(V::LANES) {
                let count = part.len();
                // SAFETY: the part has `count` elements, at most a vector.
                unsafe {
                    let numbers = V::load_partial(part.as_ptr(), count).mul(unit_lanes);
                    numbers.store_partial(part.as_mut_ptr(), count);
                }
            }
        }
    }
}
