//! Conversion between element types and the types that kernels compute in.
//!
//! Kernels compute floats of up to 32 bits in `f32`, doubles in `f64`, and integers and booleans in `i64`. Elements
//! are converted on load and store. Conversions follow C++ on x86, which converts a float out of the integer range
//! to the smallest integer.

use coremill_pte::program::ScalarType;
use half::{bf16, f16};

use crate::error::{Result, fail};

/// A number argument of a kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Scalar {
    Int(i64),
    Bool(bool),
    Double(f64),
}

impl Scalar {
    pub(crate) fn as_f64(self) -> f64 {
        match self {
            Scalar::Int(value) => value as f64,
            Scalar::Bool(value) => f64::from(u8::from(value)),
            Scalar::Double(value) => value,
        }
    }

    pub(crate) fn as_i64(self) -> i64 {
        match self {
            Scalar::Int(value) => value,
            Scalar::Bool(value) => i64::from(value),
            Scalar::Double(value) => long(value),
        }
    }

    pub(crate) fn is_float(self) -> bool {
        matches!(self, Scalar::Double(_))
    }

    pub(crate) fn is_bool(self) -> bool {
        matches!(self, Scalar::Bool(_))
    }
}

/// `static_cast<int64_t>` of a float.
pub(crate) fn long(value: f64) -> i64 {
    const END: f64 = (1u64 << 63) as f64;
    if (-END..END).contains(&value) { value as i64 } else { i64::MIN }
}

/// `static_cast<int32_t>` of a float; narrower types use its lower bits.
fn int(value: f64) -> i32 {
    if value > -2_147_483_649.0 && value < 2_147_483_648.0 { value as i32 } else { i32::MIN }
}

pub(crate) fn is_floating(dtype: ScalarType) -> bool {
    use ScalarType::*;
    matches!(dtype, Half | Float | Double | BFloat16)
}

pub(crate) fn is_integral(dtype: ScalarType) -> bool {
    use ScalarType::*;
    matches!(dtype, Byte | Char | Short | Int | Long)
}

pub(crate) fn is_complex(dtype: ScalarType) -> bool {
    use ScalarType::*;
    matches!(dtype, ComplexHalf | ComplexFloat | ComplexDouble)
}

pub(crate) fn size_of(dtype: ScalarType) -> usize {
    dtype.bytes() as usize
}

/// PyTorch's type promotion of two tensors.
pub(crate) fn promote(left: ScalarType, right: ScalarType) -> Result<ScalarType> {
    use ScalarType::*;
    if left == right {
        return Ok(left);
    }
    let rank = |dtype| match dtype {
        Bool => Some(0),
        Byte => Some(1),
        Char => Some(2),
        Short => Some(3),
        Int => Some(4),
        Long => Some(5),
        Half => Some(6),
        BFloat16 => Some(7),
        Float => Some(8),
        Double => Some(9),
        ComplexHalf => Some(10),
        ComplexFloat => Some(11),
        ComplexDouble => Some(12),
        _ => None,
    };
    let (Some(first), Some(second)) = (rank(left), rank(right)) else {
        fail!("`{left:?}` and `{right:?}` have no common type");
    };
    let (low, high) = if first < second { (left, right) } else { (right, left) };
    Ok(match (low, high) {
        (Byte, Char) => Short,
        (Half, BFloat16) => Float,
        (BFloat16 | Float, ComplexHalf) => ComplexFloat,
        (Double, ComplexHalf | ComplexFloat) => ComplexDouble,
        _ => high,
    })
}

/// PyTorch's type promotion of a tensor and a number: the number only matters if it is of a higher category.
pub(crate) fn promote_scalar(dtype: ScalarType, scalar: Scalar) -> ScalarType {
    match scalar {
        _ if is_complex(dtype) => dtype,
        Scalar::Double(_) if !is_floating(dtype) => ScalarType::Float,
        Scalar::Int(_) if dtype == ScalarType::Bool => ScalarType::Long,
        _ => dtype,
    }
}

/// Whether elements of one type may be written as another. Conversions from complex to real, from float to integer,
/// and from numbers to booleans are not allowed.
pub(crate) fn can_cast(from: ScalarType, to: ScalarType) -> bool {
    if is_complex(from) && !is_complex(to) {
        return false;
    }
    if is_floating(from) && (is_integral(to) || to == ScalarType::Bool) {
        return false;
    }
    from == ScalarType::Bool || to != ScalarType::Bool
}

/// Computation type of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compute {
    F32,
    F64,
    I64,
}

impl Compute {
    pub(crate) fn of(dtype: ScalarType) -> Result<Compute> {
        use ScalarType::*;
        Ok(match dtype {
            Half | BFloat16 | Float => Compute::F32,
            Double => Compute::F64,
            Byte | Char | Short | Int | Long | Bool => Compute::I64,
            _ => fail!("elements must be integers, floats or booleans, got `{dtype:?}`"),
        })
    }

    /// Computation type of floating-point functions.
    pub(crate) fn float_of(dtype: ScalarType) -> Compute {
        if dtype == ScalarType::Double { Compute::F64 } else { Compute::F32 }
    }
}

/// Runs code with a type alias for the computation type.
macro_rules! compute {
    ($compute:expr, $N:ident => $body:expr) => {
        match $compute {
            $crate::number::Compute::F32 => {
                type $N = f32;
                $body
            }
            $crate::number::Compute::F64 => {
                type $N = f64;
                $body
            }
            $crate::number::Compute::I64 => {
                type $N = i64;
                $body
            }
        }
    };
}
pub(crate) use compute;

/// Runs code with a type alias for the floating-point computation type.
macro_rules! compute_float {
    ($compute:expr, $N:ident => $body:expr) => {
        match $compute {
            $crate::number::Compute::F64 => {
                type $N = f64;
                $body
            }
            _ => {
                type $N = f32;
                $body
            }
        }
    };
}
pub(crate) use compute_float;

/// A computation type.
pub(crate) trait Number: Copy + Default + PartialOrd + Send + Sync + 'static {
    const ZERO: Self;
    const ONE: Self;
    /// The minimum: negative infinity for floats.
    const LEAST: Self;
    /// The maximum: infinity for floats.
    const GREATEST: Self;

    /// Converts elements to `target`, filling it.
    fn load(dtype: ScalarType, bytes: &[u8], target: &mut [Self]);
    /// Converts all elements of `source` back.
    fn store(source: &[Self], dtype: ScalarType, bytes: &mut [u8]);
    fn of(scalar: Scalar) -> Self;
    fn of_f64(value: f64) -> Self;
    fn to_f64(self) -> f64;
    fn is_nan(self) -> bool;
    fn is_true(self) -> bool;
    fn add(self, other: Self) -> Self;
    fn subtract(self, other: Self) -> Self;
    fn multiply(self, other: Self) -> Self;
    /// Quotient, truncated for integers. An integer divided by 0 is 0.
    fn divide(self, other: Self) -> Self;

    /// Wraps an integer to a narrower type. Floats are unchanged.
    fn wrap_to(self, _dtype: ScalarType) -> Self {
        self
    }

    /// Reads one element.
    fn at(dtype: ScalarType, bytes: &[u8], index: usize) -> Self {
        let size = size_of(dtype);
        let mut value = [Self::ZERO];
        Self::load(dtype, &bytes[index * size..][..size], &mut value);
        value[0]
    }

    /// Writes one element.
    fn put(self, dtype: ScalarType, bytes: &mut [u8], index: usize) {
        let size = size_of(dtype);
        Self::store(&[self], dtype, &mut bytes[index * size..][..size]);
    }

    /// The smaller number; NaN if either is NaN.
    fn least(self, other: Self) -> Self {
        if self.is_nan() || (self < other && !other.is_nan()) { self } else { other }
    }

    /// The larger number; NaN if either is NaN.
    fn greatest(self, other: Self) -> Self {
        if self.is_nan() || (self > other && !other.is_nan()) { self } else { other }
    }

    fn of_bool(value: bool) -> Self {
        if value { Self::ONE } else { Self::ZERO }
    }
}

/// Converts elements of a given width in a loop that the compiler vectorizes.
macro_rules! elements {
    ($bytes:expr, $target:expr, $E:ty, $size:literal, |$element:ident| $convert:expr) => {
        for (target, source) in $target.iter_mut().zip($bytes.chunks_exact($size)) {
            let mut raw = [0; $size];
            raw.copy_from_slice(source);
            let $element = <$E>::from_le_bytes(raw);
            *target = $convert;
        }
    };
}

macro_rules! puts {
    ($source:expr, $bytes:expr, $size:literal, |$value:ident| $convert:expr) => {
        for ($value, target) in $source.iter().copied().zip($bytes.chunks_exact_mut($size)) {
            target.copy_from_slice(&($convert).to_le_bytes());
        }
    };
}

macro_rules! load {
    ($dtype:expr, $bytes:expr, $target:expr, $N:ty) => {
        match $dtype {
            ScalarType::Byte => elements!($bytes, $target, u8, 1, |e| e as $N),
            ScalarType::Bool => elements!($bytes, $target, u8, 1, |e| u8::from(e != 0) as $N),
            ScalarType::Char => elements!($bytes, $target, i8, 1, |e| e as $N),
            ScalarType::Short => elements!($bytes, $target, i16, 2, |e| e as $N),
            ScalarType::Int => elements!($bytes, $target, i32, 4, |e| e as $N),
            ScalarType::Long => elements!($bytes, $target, i64, 8, |e| e as $N),
            ScalarType::Half => {
                elements!($bytes, $target, f16, 2, |e| <$N>::of_f64(f64::from(e.to_f32())))
            }
            ScalarType::BFloat16 => {
                elements!($bytes, $target, bf16, 2, |e| <$N>::of_f64(f64::from(e.to_f32())))
            }
            ScalarType::Float => elements!($bytes, $target, f32, 4, |e| <$N>::of_f64(f64::from(e))),
            ScalarType::Double => elements!($bytes, $target, f64, 8, |e| <$N>::of_f64(e)),
            ScalarType::UInt16 => elements!($bytes, $target, u16, 2, |e| e as $N),
            ScalarType::UInt32 => elements!($bytes, $target, u32, 4, |e| e as $N),
            ScalarType::UInt64 => elements!($bytes, $target, u64, 8, |e| e as $N),
            // Views are only created for types that can be computed with.
            _ => $target.fill(<$N>::ZERO),
        }
    };
}

impl Number for f32 {
    const ZERO: f32 = 0.0;
    const ONE: f32 = 1.0;
    const LEAST: f32 = f32::NEG_INFINITY;
    const GREATEST: f32 = f32::INFINITY;

    fn load(dtype: ScalarType, bytes: &[u8], target: &mut [f32]) {
        match dtype {
            ScalarType::Float => elements!(bytes, target, f32, 4, |e| e),
            ScalarType::Half => elements!(bytes, target, f16, 2, |e| e.to_f32()),
            ScalarType::BFloat16 => elements!(bytes, target, bf16, 2, |e| e.to_f32()),
            _ => load!(dtype, bytes, target, f32),
        }
    }

    fn store(source: &[f32], dtype: ScalarType, bytes: &mut [u8]) {
        match dtype {
            ScalarType::Float => puts!(source, bytes, 4, |v| v),
            ScalarType::Half => puts!(source, bytes, 2, |v| f16::from_f32(v)),
            ScalarType::BFloat16 => puts!(source, bytes, 2, |v| bf16::from_f32(v)),
            _ => store_float(source, dtype, bytes),
        }
    }

    fn of(scalar: Scalar) -> f32 {
        match scalar {
            Scalar::Int(value) => value as f32,
            scalar => scalar.as_f64() as f32,
        }
    }

    fn of_f64(value: f64) -> f32 {
        value as f32
    }

    fn to_f64(self) -> f64 {
        f64::from(self)
    }

    fn is_nan(self) -> bool {
        self.is_nan()
    }

    fn is_true(self) -> bool {
        self != 0.0
    }

    fn add(self, other: f32) -> f32 {
        self + other
    }

    fn subtract(self, other: f32) -> f32 {
        self - other
    }

    fn multiply(self, other: f32) -> f32 {
        self * other
    }

    fn divide(self, other: f32) -> f32 {
        self / other
    }
}

impl Number for f64 {
    const ZERO: f64 = 0.0;
    const ONE: f64 = 1.0;
    const LEAST: f64 = f64::NEG_INFINITY;
    const GREATEST: f64 = f64::INFINITY;

    fn load(dtype: ScalarType, bytes: &[u8], target: &mut [f64]) {
        load!(dtype, bytes, target, f64);
    }

    fn store(source: &[f64], dtype: ScalarType, bytes: &mut [u8]) {
        store_float(source, dtype, bytes);
    }

    fn of(scalar: Scalar) -> f64 {
        scalar.as_f64()
    }

    fn of_f64(value: f64) -> f64 {
        value
    }

    fn to_f64(self) -> f64 {
        self
    }

    fn is_nan(self) -> bool {
        self.is_nan()
    }

    fn is_true(self) -> bool {
        self != 0.0
    }

    fn add(self, other: f64) -> f64 {
        self + other
    }

    fn subtract(self, other: f64) -> f64 {
        self - other
    }

    fn multiply(self, other: f64) -> f64 {
        self * other
    }

    fn divide(self, other: f64) -> f64 {
        self / other
    }
}

impl Number for i64 {
    const ZERO: i64 = 0;
    const ONE: i64 = 1;
    const LEAST: i64 = i64::MIN;
    const GREATEST: i64 = i64::MAX;

    fn load(dtype: ScalarType, bytes: &[u8], target: &mut [i64]) {
        load!(dtype, bytes, target, i64);
    }

    fn store(source: &[i64], dtype: ScalarType, bytes: &mut [u8]) {
        match dtype {
            ScalarType::Byte => puts!(source, bytes, 1, |v| v as u8),
            ScalarType::Bool => puts!(source, bytes, 1, |v| u8::from(v != 0)),
            ScalarType::Char => puts!(source, bytes, 1, |v| v as i8),
            ScalarType::Short => puts!(source, bytes, 2, |v| v as i16),
            ScalarType::Int => puts!(source, bytes, 4, |v| v as i32),
            ScalarType::Long => puts!(source, bytes, 8, |v| v),
            ScalarType::Half => puts!(source, bytes, 2, |v| f16::from_f32(v as f32)),
            ScalarType::BFloat16 => puts!(source, bytes, 2, |v| bf16::from_f32(v as f32)),
            ScalarType::Float => puts!(source, bytes, 4, |v| v as f32),
            ScalarType::Double => puts!(source, bytes, 8, |v| v as f64),
            ScalarType::UInt16 => puts!(source, bytes, 2, |v| v as u16),
            ScalarType::UInt32 => puts!(source, bytes, 4, |v| v as u32),
            ScalarType::UInt64 => puts!(source, bytes, 8, |v| v as u64),
            _ => {}
        }
    }

    fn of(scalar: Scalar) -> i64 {
        scalar.as_i64()
    }

    fn of_f64(value: f64) -> i64 {
        long(value)
    }

    fn to_f64(self) -> f64 {
        self as f64
    }

    fn is_nan(self) -> bool {
        false
    }

    fn is_true(self) -> bool {
        self != 0
    }

    fn add(self, other: i64) -> i64 {
        self.wrapping_add(other)
    }

    fn subtract(self, other: i64) -> i64 {
        self.wrapping_sub(other)
    }

    fn multiply(self, other: i64) -> i64 {
        self.wrapping_mul(other)
    }

    fn divide(self, other: i64) -> i64 {
        if other == 0 { 0 } else { self.wrapping_div(other) }
    }

    fn wrap_to(self, dtype: ScalarType) -> i64 {
        match dtype {
            ScalarType::Byte => i64::from(self as u8),
            ScalarType::Char => i64::from(self as i8),
            ScalarType::Short => i64::from(self as i16),
            ScalarType::Int => i64::from(self as i32),
            ScalarType::Bool => i64::from(self != 0),
            _ => self,
        }
    }
}

fn store_float<N: Number>(source: &[N], dtype: ScalarType, bytes: &mut [u8]) {
    match dtype {
        ScalarType::Byte => puts!(source, bytes, 1, |v| int(v.to_f64()) as u8),
        ScalarType::Bool => puts!(source, bytes, 1, |v| u8::from(v.is_true())),
        ScalarType::Char => puts!(source, bytes, 1, |v| int(v.to_f64()) as i8),
        ScalarType::Short => puts!(source, bytes, 2, |v| int(v.to_f64()) as i16),
        ScalarType::Int => puts!(source, bytes, 4, |v| int(v.to_f64())),
        ScalarType::Long => puts!(source, bytes, 8, |v| long(v.to_f64())),
        ScalarType::Half => puts!(source, bytes, 2, |v| f16::from_f32(v.to_f64() as f32)),
        ScalarType::BFloat16 => puts!(source, bytes, 2, |v| bf16::from_f32(v.to_f64() as f32)),
        ScalarType::Float => puts!(source, bytes, 4, |v| v.to_f64() as f32),
        ScalarType::Double => puts!(source, bytes, 8, |v| v.to_f64()),
        ScalarType::UInt16 => puts!(source, bytes, 2, |v| int(v.to_f64()) as u16),
        ScalarType::UInt32 => puts!(source, bytes, 4, |v| long(v.to_f64()) as u32),
        ScalarType::UInt64 => puts!(source, bytes, 8, |v| long(v.to_f64()) as u64),
        _ => {}
    }
}
