use std::io;

use super::error::misfit;
use super::{LazyTensor, Overflow, RecipeError};
use crate::packed::pack;
use crate::produce::{ByteSource, Fingerprint};
use crate::{Buffer, DType};

/// Number of elements that are packed together, a multiple of 8, so that each chunk fills whole bytes.
const CHUNK: usize = 1 << 13;

/// Size in bytes of the integers that are read.
const WIDTH: usize = 4;

impl LazyTensor {
    /// Adds `shift` to each integer and packs the results in a type of at most 8 bits, as Core ML stores
    /// them. The elements are read once to check their range.
    pub fn to_packed(self, dtype: DType, shift: i32) -> Result<Buffer, RecipeError> {
        let (Some(bits), Some((low, high))) = (dtype.bits(), dtype.integer_range()) else {
            return misfit!("integers cannot be packed as `{dtype}`");
        };
        if bits > 8 || !self.dtype().is_integer() {
            return misfit!("elements of `{}` cannot be packed as `{dtype}`", self.dtype());
        }
        let count = self.count() as usize;
        let source = self.cast_with(DType::Int32, Overflow::Refuse)?.to_buffer();
        let mut at = 0;
        let mut outside = None;
        let looked = source.for_each_window(0..count * WIDTH, CHUNK * WIDTH, &mut |bytes| {
            let (integers, _) = bytes.as_chunks::<WIDTH>();
            for &integer in integers {
                let value = i128::from(i32::from_le_bytes(integer)) + i128::from(shift);
                if outside.is_none() && !(low..=high).contains(&value) {
                    outside = Some((at, value));
                }
                at += 1;
            }
            Ok(())
        });
        looked.map_err(|error| RecipeError::Unreadable(error.to_string()))?;
        if let Some((index, value)) = outside {
            return Err(RecipeError::OutOfRange { index, value, dtype });
        }
        Ok(Buffer::deferred(std::sync::Arc::new(PackedIntegers {
            source,
            count,
            shift,
            dtype,
            bits,
        })))
    }
}

/// Integers of few bits side by side.
struct PackedIntegers {
    /// The integers, `int32`.
    source: Buffer,
    count: usize,
    shift: i32,
    dtype: DType,
    bits: u32,
}

impl ByteSource for PackedIntegers {
    fn length(&self) -> usize {
        (self.count * self.bits as usize).div_ceil(8)
    }

    /// Eight elements fill as many bytes as an element has bits.
    fn granule(&self) -> usize {
        self.bits as usize
    }

    fn produce(&self, offset: usize, target: &mut [u8]) -> io::Result<()> {
        let bits = self.bits as usize;
        let first = offset / bits * 8;
        let last = self.count.min(first + target.len().div_ceil(bits) * 8);
        let mut integers = Vec::with_capacity(CHUNK.min(last - first));
        let mut place = 0;
        let range = first * WIDTH..last * WIDTH;
        self.source.for_each_window(range, CHUNK * WIDTH, &mut |bytes| {
            let (elements, _) = bytes.as_chunks::<WIDTH>();
            let shifted = elements.iter().map(|&element| i32::from_le_bytes(element) + self.shift);
            integers.clear();
            integers.extend(shifted.map(|integer| integer as i16));
            let Some(bytes) = pack(self.dtype, &integers) else {
                return Err(io::Error::other(
                    "an integer is out of range for the type that it is packed as",
                ));
            };
            target[place..place + bytes.len()].copy_from_slice(&bytes);
            place += bytes.len();
            Ok(())
        })
    }

    fn identity(&self) -> Option<Fingerprint> {
        let identity = Fingerprint::new("packed integers").with_part(&self.source.identity());
        Some(identity.with(self.count as u64).with(self.shift as u64).with(self.dtype as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packed::unpack;

    fn integers(count: usize, low: i32, high: i32) -> (LazyTensor, Vec<i16>) {
        let all: Vec<i32> =
            (0..count as i32).map(|at| low + (at * 7 + at / 5) % (high - low + 1)).collect();
        let bytes: Vec<u8> = all.iter().map(|&integer| integer as i8 as u8).collect();
        let recipe = LazyTensor::new(Buffer::from(bytes), DType::Int8, &[count as u64]);
        (recipe.expect("as many bytes"), all.iter().map(|&integer| integer as i16).collect())
    }

    #[test]
    fn packs_every_bit_width_across_chunks() {
        for (dtype, low, high) in [
            (DType::Int4, -8, 7),
            (DType::UInt2, 0, 3),
            (DType::UInt3, -4, 3),
            (DType::UInt6, 0, 63),
            (DType::UInt1, -1, 0),
            (DType::Int8, -128, 127),
        ] {
            let (recipe, expected) = integers(3 * CHUNK + 5, low, high);
            let shift = if dtype.is_signed_integer() { 0 } else { -low };
            let buffer = recipe.to_packed(dtype, shift).expect("all fit");
            let unpacked = unpack(dtype, buffer.as_bytes(), expected.len()).expect("enough bytes");
            let shifted: Vec<i16> =
                expected.iter().map(|&integer| integer + shift as i16).collect();
            assert_eq!(unpacked, shifted, "{dtype}");
            // A separately computed range has the same bytes.
            let (start, end) = (5 * dtype.bits().expect("an integer") as usize, buffer.len());
            let mut part = vec![0; end - start];
            buffer.read_at(start, &mut part).expect("in memory");
            assert_eq!(part, buffer.as_bytes()[start..end], "{dtype}");
        }
    }

    #[test]
    fn reports_integer_out_of_range_for_dtype() {
        let (recipe, _) = integers(100, -8, 8);
        let error = recipe.to_packed(DType::Int4, 0).err();
        assert!(matches!(
            error,
            Some(RecipeError::OutOfRange { value: 8, dtype: DType::Int4, .. })
        ));
    }
}
