//! Numbers of the format that reader and writer use.

use coremill_tensor::DType;

/// Code of an element type in programs (`MILSpec.DataType`).
pub(crate) const fn dtype_code(dtype: DType) -> i32 {
    match dtype {
        DType::Bool => 1,
        DType::String => 2,
        DType::Fp16 => 10,
        DType::Fp32 => 11,
        DType::Fp64 => 12,
        DType::Bf16 => 13,
        DType::Int8 => 21,
        DType::Int16 => 22,
        DType::Int32 => 23,
        DType::Int64 => 24,
        DType::Int4 => 25,
        DType::UInt8 => 31,
        DType::UInt16 => 32,
        DType::UInt32 => 33,
        DType::UInt64 => 34,
        DType::UInt4 => 35,
        DType::UInt2 => 36,
        DType::UInt1 => 37,
        DType::UInt6 => 38,
        DType::UInt3 => 39,
        DType::Fp8E4M3Fn => 40,
        DType::Fp8E5M2 => 41,
    }
}

/// The element type with this code in programs.
pub(crate) fn dtype_from_code(code: i32) -> Option<DType> {
    DType::ALL.into_iter().find(|&dtype| dtype_code(dtype) == code)
}

/// The field of `TensorValue` that contains the elements of immediate values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Elements {
    Floats = 1,
    Ints = 2,
    Bools = 3,
    Strings = 4,
    LongInts = 5,
    Doubles = 6,
    Bytes = 7,
}

impl Elements {
    /// The field that writers use for an element type, and that Core ML reads.
    pub(crate) const fn of(dtype: DType) -> Elements {
        match dtype {
            DType::Bool => Elements::Bools,
            DType::String => Elements::Strings,
            DType::Fp32 => Elements::Floats,
            DType::Fp64 => Elements::Doubles,
            DType::Int16 | DType::Int32 | DType::UInt16 => Elements::Ints,
            DType::Int64 | DType::UInt64 => Elements::LongInts,
            DType::Fp16
            | DType::Bf16
            | DType::Fp8E4M3Fn
            | DType::Fp8E5M2
            | DType::Int4
            | DType::Int8
            | DType::UInt1
            | DType::UInt2
            | DType::UInt3
            | DType::UInt4
            | DType::UInt6
            | DType::UInt8
            | DType::UInt32 => Elements::Bytes,
        }
    }

    /// Returns the field with this number.
    pub(crate) const fn from_number(number: u32) -> Option<Elements> {
        Some(match number {
            1 => Elements::Floats,
            2 => Elements::Ints,
            3 => Elements::Bools,
            4 => Elements::Strings,
            5 => Elements::LongInts,
            6 => Elements::Doubles,
            7 => Elements::Bytes,
            _ => return None,
        })
    }

    /// Name in the schema.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Elements::Floats => "floats",
            Elements::Ints => "ints",
            Elements::Bools => "bools",
            Elements::Strings => "strings",
            Elements::LongInts => "longInts",
            Elements::Doubles => "doubles",
            Elements::Bytes => "bytes",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dtype_codes_round_trip() {
        for dtype in DType::ALL {
            assert_eq!(dtype_from_code(dtype_code(dtype)), Some(dtype));
        }
        assert_eq!(dtype_from_code(0), None);
    }

    #[test]
    fn element_field_numbers_round_trip() {
        for dtype in DType::ALL {
            let field = Elements::of(dtype);
            assert_eq!(Elements::from_number(field as u32), Some(field));
        }
    }
}
