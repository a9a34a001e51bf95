use std::fmt;
use std::str::FromStr;

/// Element types of Core ML's tensors.
///
/// [`DType::name`] and [`FromStr`] use the names of MIL text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    /// One byte per element, 0 or 1.
    Bool,
    /// UTF-8 text of variable length.
    String,
    /// IEEE 754 binary16.
    Fp16,
    /// IEEE 754 binary32.
    Fp32,
    /// IEEE 754 binary64.
    Fp64,
    /// The upper half of a binary32.
    Bf16,
    /// 8-bit float with 4 exponent bits, without infinities.
    Fp8E4M3Fn,
    /// 8-bit float with 5 exponent bits.
    Fp8E5M2,
    /// Signed 4-bit integer, two in a byte.
    Int4,
    /// Signed 8-bit integer.
    Int8,
    /// Signed 16-bit integer.
    Int16,
    /// Signed 32-bit integer.
    Int32,
    /// Signed 64-bit integer.
    Int64,
    /// Unsigned 1-bit integer, eight in a byte.
    UInt1,
    /// Unsigned 2-bit integer, four in a byte.
    UInt2,
    /// Unsigned 3-bit integer; elements straddle bytes.
    UInt3,
    /// Unsigned 4-bit integer, two in a byte.
    UInt4,
    /// Unsigned 6-bit integer; elements straddle bytes.
    UInt6,
    /// Unsigned 8-bit integer.
    UInt8,
    /// Unsigned 16-bit integer.
    UInt16,
    /// Unsigned 32-bit integer.
    UInt32,
    /// Unsigned 64-bit integer.
    UInt64,
}

impl DType {
    /// Every element type.
    pub const ALL: [DType; 22] = [
        DType::Bool,
        DType::String,
        DType::Fp16,
        DType::Fp32,
        DType::Fp64,
        DType::Bf16,
        DType::Fp8E4M3Fn,
        DType::Fp8E5M2,
        DType::Int4,
        DType::Int8,
        DType::Int16,
        DType::Int32,
        DType::Int64,
        DType::UInt1,
        DType::UInt2,
        DType::UInt3,
        DType::UInt4,
        DType::UInt6,
        DType::UInt8,
        DType::UInt16,
        DType::UInt32,
        DType::UInt64,
    ];

    /// Name in MIL text.
    pub const fn name(self) -> &'static str {
        match self {
            DType::Bool => "bool",
            DType::String => "string",
            DType::Fp16 => "fp16",
            DType::Fp32 => "fp32",
            DType::Fp64 => "fp64",
            DType::Bf16 => "bf16",
            DType::Fp8E4M3Fn => "fp8e4m3fn",
            DType::Fp8E5M2 => "fp8e5m2",
            DType::Int4 => "int4",
            DType::Int8 => "int8",
            DType::Int16 => "int16",
            DType::Int32 => "int32",
            DType::Int64 => "int64",
            DType::UInt1 => "uint1",
            DType::UInt2 => "uint2",
            DType::UInt3 => "uint3",
            DType::UInt4 => "uint4",
            DType::UInt6 => "uint6",
            DType::UInt8 => "uint8",
            DType::UInt16 => "uint16",
            DType::UInt32 => "uint32",
            DType::UInt64 => "uint64",
        }
    }

    /// Number of bits of an element in storage; `None` for strings.
    pub const fn bits(self) -> Option<u32> {
        Some(match self {
            DType::String => return None,
            DType::UInt1 => 1,
            DType::UInt2 => 2,
            DType::UInt3 => 3,
            DType::Int4 | DType::UInt4 => 4,
            DType::UInt6 => 6,
            DType::Bool | DType::Int8 | DType::UInt8 | DType::Fp8E4M3Fn | DType::Fp8E5M2 => 8,
            DType::Fp16 | DType::Bf16 | DType::Int16 | DType::UInt16 => 16,
            DType::Fp32 | DType::Int32 | DType::UInt32 => 32,
            DType::Fp64 | DType::Int64 | DType::UInt64 => 64,
        })
    }

    /// Size in bytes of `count` packed elements, including padding of the last byte; `None` for strings or on
    /// overflow.
    pub const fn storage_bytes(self, count: u64) -> Option<u64> {
        let Some(bits) = self.bits() else { return None };
        match count.checked_mul(bits as u64) {
            Some(total) => Some(total.div_ceil(8)),
            None => None,
        }
    }

    /// Whether elements are narrower than a byte.
    pub const fn is_sub_byte(self) -> bool {
        matches!(self.bits(), Some(bits) if bits < 8)
    }

    /// Whether this is a floating-point type.
    pub const fn is_float(self) -> bool {
        matches!(
            self,
            DType::Fp16
                | DType::Fp32
                | DType::Fp64
                | DType::Bf16
                | DType::Fp8E4M3Fn
                | DType::Fp8E5M2
        )
    }

    /// Whether this is an integer type; `bool` is not one.
    pub const fn is_integer(self) -> bool {
        self.is_signed_integer() || self.is_unsigned_integer()
    }

    /// Whether this is a signed integer type.
    pub const fn is_signed_integer(self) -> bool {
        matches!(self, DType::Int4 | DType::Int8 | DType::Int16 | DType::Int32 | DType::Int64)
    }

    /// Whether this is an unsigned integer type.
    pub const fn is_unsigned_integer(self) -> bool {
        matches!(
            self,
            DType::UInt1
                | DType::UInt2
                | DType::UInt3
                | DType::UInt4
                | DType::UInt6
                | DType::UInt8
                | DType::UInt16
                | DType::UInt32
                | DType::UInt64
        )
    }

    /// The smallest and the largest value of an integer type or of `bool`.
    pub const fn integer_range(self) -> Option<(i128, i128)> {
        let Some(bits) = self.bits() else { return None };
        if matches!(self, DType::Bool) {
            Some((0, 1))
        } else if self.is_signed_integer() {
            Some((-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1))
        } else if self.is_unsigned_integer() {
            Some((0, (1i128 << bits) - 1))
        } else {
            None
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Error: the text is not the name of an element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownDType;

impl fmt::Display for UnknownDType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("unknown element type")
    }
}

impl std::error::Error for UnknownDType {}

impl FromStr for DType {
    type Err = UnknownDType;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        DType::ALL.into_iter().find(|dtype| dtype.name() == text).ok_or(UnknownDType)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_are_distinct() {
        for dtype in DType::ALL {
            assert_eq!(dtype.name().parse(), Ok(dtype));
        }
        assert_eq!("float32".parse::<DType>(), Err(UnknownDType));
    }

    #[test]
    fn storage_bytes_rounds_up_narrow_types() {
        assert_eq!(DType::UInt3.storage_bytes(3), Some(2));
        assert_eq!(DType::UInt6.storage_bytes(4), Some(3));
        assert_eq!(DType::UInt1.storage_bytes(9), Some(2));
        assert_eq!(DType::Fp16.storage_bytes(0), Some(0));
        assert_eq!(DType::Fp64.storage_bytes(u64::MAX), None);
        assert_eq!(DType::String.storage_bytes(1), None);
    }

    #[test]
    fn integer_range_matches_bit_width() {
        assert_eq!(DType::Int4.integer_range(), Some((-8, 7)));
        assert_eq!(DType::UInt64.integer_range(), Some((0, u64::MAX as i128)));
        assert_eq!(DType::Fp16.integer_range(), None);
    }
}
