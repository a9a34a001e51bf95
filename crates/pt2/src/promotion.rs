//! Type promotion by torch's rules.

use crate::ScalarType;

/// Category of a type in the order of promotion: 0 for booleans, then integers, floats, complex numbers.
pub fn category(dtype: ScalarType) -> u8 {
    use ScalarType::*;
    match dtype {
        Bool => 0,
        UInt8 | Int8 | Int16 | Int32 | Int64 | UInt16 | UInt32 | UInt64 => 1,
        Float16 | Float32 | Float64 | BFloat16 | Float8E4M3Fn | Float8E5M2 | Float8E4M3FnUz
        | Float8E5M2FnUz | Float8E8M0Fnu => 2,
        Complex32 | Complex64 | Complex128 => 3,
    }
}

/// Whether the type is a real float type.
pub fn is_float(dtype: ScalarType) -> bool {
    category(dtype) == 2
}

/// Whether the type is an integer type; booleans are not.
pub fn is_integer(dtype: ScalarType) -> bool {
    category(dtype) == 1
}

/// Whether the type is complex.
pub fn is_complex(dtype: ScalarType) -> bool {
    category(dtype) == 3
}

/// The common type of two types, ignoring ranks.
pub fn promote(left: ScalarType, right: ScalarType) -> ScalarType {
    use ScalarType::*;
    if left == right {
        return left;
    }
    let (low, high) = if category(left) <= category(right) { (left, right) } else { (right, left) };
    match (category(low), category(high)) {
        (3, _) if low.bytes() > high.bytes() => low,
        (3, _) => high,
        (2, 3) => match (low, high) {
            (Float64, _) => Complex128,
            (Float32 | BFloat16, Complex32) => Complex64,
            _ => high,
        },
        (2, _) => match (low, high) {
            (Float16, BFloat16) | (BFloat16, Float16) => Float32,
            _ if low.bytes() > high.bytes() => low,
            _ => high,
        },
        (1, 1) => match (low, high) {
            (UInt8, other) | (other, UInt8) if other == Int8 => Int16,
            _ if low.bytes() > high.bytes() => low,
            _ => high,
        },
        _ => high,
    }
}

/// The common type of operands with these types and ranks. Operands with dimensions take precedence over
/// scalars.
pub fn promote_ranked(
    operands: impl IntoIterator<Item = (ScalarType, usize)>,
) -> Option<ScalarType> {
    let (mut ranked, mut bare) = (None, None);
    for (dtype, rank) in operands {
        let slot = if rank == 0 { &mut bare } else { &mut ranked };
        *slot = Some(slot.map_or(dtype, |known| promote(known, dtype)));
    }
    match (ranked, bare) {
        (Some(ranked), Some(bare)) if category(bare) > category(ranked) => Some(bare),
        (Some(ranked), _) => Some(ranked),
        (None, bare) => bare,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn type_promotion_matches_torch() {
        use ScalarType::*;
        assert_eq!(promote(Float16, BFloat16), Float32);
        assert_eq!(promote(Int8, UInt8), Int16);
        assert_eq!(promote(Bool, UInt8), UInt8);
        assert_eq!(promote(Int64, Float16), Float16);
        assert_eq!(promote(Float64, Complex64), Complex128);
        assert_eq!(promote(Int32, Int64), Int64);
    }

    #[test]
    fn promotion_prefers_ranked_tensors_over_scalars() {
        use ScalarType::*;
        assert_eq!(promote_ranked([(Float16, 2), (Float32, 0)]), Some(Float16));
        assert_eq!(promote_ranked([(Int64, 2), (Float16, 0)]), Some(Float16));
        assert_eq!(promote_ranked([(Int8, 0), (UInt8, 0)]), Some(Int16));
        assert_eq!(promote_ranked([]), None);
    }
}
