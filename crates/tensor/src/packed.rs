//! Elements narrower than a byte.
//!
//! Core ML packs them with the first element in the lowest bits. Elements of 3 and 6 bits may span two bytes,
//! and the last byte is padded with zeros.

use crate::DType;

/// Packs integers into the storage of `dtype`. Returns `None` if the type is not an integer type of at most 8
/// bits, or if a value is out of range.
pub fn pack(dtype: DType, values: &[i16]) -> Option<Vec<u8>> {
    let bits = narrow_bits(dtype)?;
    let (low, high) = dtype.integer_range()?;
    let mut bytes = vec![0u8; dtype.storage_bytes(values.len() as u64)? as usize];
    for (index, &value) in values.iter().enumerate() {
        if !(low..=high).contains(&i128::from(value)) {
            return None;
        }
        let element = (value as u16) & ((1 << bits) - 1);
        let position = index * bits as usize;
        let shifted = element << (position % 8);
        bytes[position / 8] |= shifted as u8;
        if shifted >> 8 != 0 {
            bytes[position / 8 + 1] |= (shifted >> 8) as u8;
        }
    }
    Some(bytes)
}

/// Unpacks `count` integers. Returns `None` if the type is not an integer type of at most 8 bits, or if there
/// are too few bytes.
pub fn unpack(dtype: DType, bytes: &[u8], count: usize) -> Option<Vec<i16>> {
    let bits = narrow_bits(dtype)?;
    if dtype.storage_bytes(count as u64)? > bytes.len() as u64 {
        return None;
    }
    let mask = (1u16 << bits) - 1;
    let sign = 1u16 << (bits - 1);
    let element = |index: usize| {
        let position = index * bits as usize;
        let low = u16::from(bytes[position / 8]);
        let high = bytes.get(position / 8 + 1).copied().map_or(0, u16::from);
        let raw = ((low | high << 8) >> (position % 8)) & mask;
        if dtype.is_signed_integer() && raw & sign != 0 { (raw | !mask) as i16 } else { raw as i16 }
    };
    Some((0..count).map(element).collect())
}

fn narrow_bits(dtype: DType) -> Option<u32> {
    dtype.bits().filter(|&bits| bits <= 8 && dtype.is_integer())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_narrow_type_round_trips_its_whole_range() {
        for dtype in DType::ALL.into_iter().filter(|&dtype| narrow_bits(dtype).is_some()) {
            let (low, high) = dtype.integer_range().expect("integer");
            let values: Vec<i16> = (low as i16..=high as i16).chain([low as i16]).collect();
            let bytes = pack(dtype, &values).expect("in range");
            assert_eq!(bytes.len() as u64, dtype.storage_bytes(values.len() as u64).expect("fits"));
            assert_eq!(unpack(dtype, &bytes, values.len()), Some(values));
        }
    }

    #[test]
    fn packs_first_element_into_lowest_bits() {
        assert_eq!(pack(DType::UInt4, &[1, 2, 3]), Some(vec![0x21, 0x03]));
        assert_eq!(pack(DType::UInt3, &[1, 2, 7]), Some(vec![0b11_010_001, 0b1]));
        assert_eq!(pack(DType::Int4, &[-1, 7]), Some(vec![0x7f]));
    }

    #[test]
    fn rejects_out_of_range_values_and_short_input() {
        assert_eq!(pack(DType::UInt1, &[2]), None);
        assert_eq!(pack(DType::Int4, &[8]), None);
        assert_eq!(pack(DType::Fp16, &[1]), None);
        assert_eq!(unpack(DType::UInt6, &[0, 0], 3), None);
    }
}
