//! torch's enumerations, with their codes in archives and operator schemas.

use std::fmt;

use coremill_tensor::DType;

/// Declares an enum whose variants have torch's names.
macro_rules! named {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$variant_doc])* $variant,)* }

        impl $name {
            /// All values.
            pub const ALL: &'static [$name] = &[$($name::$variant),*];

            /// torch's name, without `torch.`.
            pub const fn name(self) -> &'static str {
                match self { $($name::$variant => $text,)* }
            }

            /// Returns the value with this name.
            pub fn from_name(name: &str) -> Option<$name> {
                $name::ALL.iter().copied().find(|value| value.name() == name)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }
    };
}

named! {
    /// The element type of a tensor.
    ScalarType {
        /// Unsigned, 8 bits.
        UInt8 = "uint8",
        /// Signed, 8 bits.
        Int8 = "int8",
        /// Signed, 16 bits.
        Int16 = "int16",
        /// Signed, 32 bits.
        Int32 = "int32",
        /// Signed, 64 bits.
        Int64 = "int64",
        /// IEEE 754 binary16.
        Float16 = "float16",
        /// IEEE 754 binary32.
        Float32 = "float32",
        /// IEEE 754 binary64.
        Float64 = "float64",
        /// Two binary16.
        Complex32 = "complex32",
        /// Two binary32.
        Complex64 = "complex64",
        /// Two binary64.
        Complex128 = "complex128",
        /// One byte, 0 or 1.
        Bool = "bool",
        /// The upper half of a binary32.
        BFloat16 = "bfloat16",
        /// Unsigned, 16 bits.
        UInt16 = "uint16",
        /// Unsigned, 32 bits.
        UInt32 = "uint32",
        /// Unsigned, 64 bits.
        UInt64 = "uint64",
        /// 4 bits of exponent, no infinities.
        Float8E4M3Fn = "float8_e4m3fn",
        /// 5 bits of exponent.
        Float8E5M2 = "float8_e5m2",
        /// 4 bits of exponent, no infinities, no negative zero.
        Float8E4M3FnUz = "float8_e4m3fnuz",
        /// 5 bits of exponent, no infinities, no negative zero.
        Float8E5M2FnUz = "float8_e5m2fnuz",
        /// 8 bits of exponent and nothing else.
        Float8E8M0Fnu = "float8_e8m0fnu",
    }
}

named! {
    /// Memory order of a tensor's elements.
    MemoryFormat {
        /// The last dimension is contiguous.
        Contiguous = "contiguous_format",
        /// Channels are contiguous; for images.
        ChannelsLast = "channels_last",
        /// Channels are contiguous; for volumes.
        ChannelsLast3d = "channels_last_3d",
        /// The format of the input.
        Preserve = "preserve_format",
    }
}

named! {
    /// Storage layout of a tensor.
    Layout {
        /// Strided.
        Strided = "strided",
        /// Coordinates and values.
        SparseCoo = "sparse_coo",
        /// Compressed rows.
        SparseCsr = "sparse_csr",
        /// Compressed columns.
        SparseCsc = "sparse_csc",
        /// Compressed rows of blocks.
        SparseBsr = "sparse_bsr",
        /// Compressed columns of blocks.
        SparseBsc = "sparse_bsc",
        /// oneDNN's internal layout.
        Mkldnn = "_mkldnn",
    }
}

impl ScalarType {
    /// Returns the type with this code in an archive. ExecuTorch's schema, major version 5, has different
    /// codes for three types.
    pub(crate) fn from_archive(number: i64, major: u64) -> Option<ScalarType> {
        use ScalarType::*;
        const COMMON: [ScalarType; 13] = [
            UInt8, Int8, Int16, Int32, Int64, Float16, Float32, Float64, Complex32, Complex64,
            Complex128, Bool, BFloat16,
        ];
        Some(match (number, major) {
            (1..=13, _) => COMMON[usize::try_from(number - 1).ok()?],
            (14, 5) => UInt16,
            (15, 5) => Float8E5M2,
            (16, 5) => Float8E4M3Fn,
            (28, _) => UInt16,
            (29, _) => Float8E4M3Fn,
            (30, _) => Float8E5M2,
            (31, _) => Float8E4M3FnUz,
            (32, _) => Float8E5M2FnUz,
            (33, _) => Float8E8M0Fnu,
            (34, _) => UInt32,
            (35, _) => UInt64,
            _ => return None,
        })
    }

    /// Returns the type with this code in c10, which operator schemas use for defaults.
    pub(crate) fn from_c10(number: i64) -> Option<ScalarType> {
        use ScalarType::*;
        Some(match number {
            0 => UInt8,
            1 => Int8,
            2 => Int16,
            3 => Int32,
            4 => Int64,
            5 => Float16,
            6 => Float32,
            7 => Float64,
            8 => Complex32,
            9 => Complex64,
            10 => Complex128,
            11 => Bool,
            15 => BFloat16,
            23 => Float8E5M2,
            24 => Float8E4M3Fn,
            25 => Float8E5M2FnUz,
            26 => Float8E4M3FnUz,
            27 => UInt16,
            28 => UInt32,
            29 => UInt64,
            44 => Float8E8M0Fnu,
            _ => return None,
        })
    }

    /// Code in c10, which ExecuTorch passes to kernels.
    pub const fn c10(self) -> i64 {
        use ScalarType::*;
        match self {
            UInt8 => 0,
            Int8 => 1,
            Int16 => 2,
            Int32 => 3,
            Int64 => 4,
            Float16 => 5,
            Float32 => 6,
            Float64 => 7,
            Complex32 => 8,
            Complex64 => 9,
            Complex128 => 10,
            Bool => 11,
            BFloat16 => 15,
            Float8E5M2 => 23,
            Float8E4M3Fn => 24,
            Float8E5M2FnUz => 25,
            Float8E4M3FnUz => 26,
            UInt16 => 27,
            UInt32 => 28,
            UInt64 => 29,
            Float8E8M0Fnu => 44,
        }
    }

    /// Size of an element in bytes.
    pub const fn bytes(self) -> u64 {
        use ScalarType::*;
        match self {
            UInt8 | Int8 | Bool | Float8E4M3Fn | Float8E5M2 | Float8E4M3FnUz | Float8E5M2FnUz
            | Float8E8M0Fnu => 1,
            Int16 | UInt16 | Float16 | BFloat16 => 2,
            Int32 | UInt32 | Float32 | Complex32 => 4,
            Int64 | UInt64 | Float64 | Complex64 => 8,
            Complex128 => 16,
        }
    }

    /// The corresponding Core ML type, if there is one.
    pub const fn dtype(self) -> Option<DType> {
        use ScalarType::*;
        Some(match self {
            UInt8 => DType::UInt8,
            Int8 => DType::Int8,
            Int16 => DType::Int16,
            Int32 => DType::Int32,
            Int64 => DType::Int64,
            Float16 => DType::Fp16,
            Float32 => DType::Fp32,
            Float64 => DType::Fp64,
            Bool => DType::Bool,
            BFloat16 => DType::Bf16,
            UInt16 => DType::UInt16,
            UInt32 => DType::UInt32,
            UInt64 => DType::UInt64,
            Float8E4M3Fn => DType::Fp8E4M3Fn,
            Float8E5M2 => DType::Fp8E5M2,
            Complex32 | Complex64 | Complex128 | Float8E4M3FnUz | Float8E5M2FnUz
            | Float8E8M0Fnu => return None,
        })
    }

    /// Whether elements are complex.
    pub const fn is_complex(self) -> bool {
        matches!(self, ScalarType::Complex32 | ScalarType::Complex64 | ScalarType::Complex128)
    }
}

impl MemoryFormat {
    pub(crate) fn from_archive(number: i64) -> Option<MemoryFormat> {
        Some(match number {
            1 => MemoryFormat::Contiguous,
            2 => MemoryFormat::ChannelsLast,
            3 => MemoryFormat::ChannelsLast3d,
            4 => MemoryFormat::Preserve,
            _ => return None,
        })
    }

    pub(crate) fn from_c10(number: i64) -> Option<MemoryFormat> {
        Some(match number {
            0 => MemoryFormat::Contiguous,
            1 => MemoryFormat::Preserve,
            2 => MemoryFormat::ChannelsLast,
            3 => MemoryFormat::ChannelsLast3d,
            _ => return None,
        })
    }
}

impl Layout {
    pub(crate) fn from_archive(number: i64) -> Option<Layout> {
        Some(match number {
            1 => Layout::SparseCoo,
            2 => Layout::SparseCsr,
            3 => Layout::SparseCsc,
            4 => Layout::SparseBsr,
            5 => Layout::SparseBsc,
            6 => Layout::Mkldnn,
            7 => Layout::Strided,
            _ => return None,
        })
    }
}
