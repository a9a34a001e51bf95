//! Conversion of elements between layouts and types. An element that does not fit is an error, never truncated.

use coremill_tensor::DType;
use half::f16;

use crate::error::{Error, Result};
use crate::tensor::{Tensor, TensorMut};

/// A number of any type, without loss.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Number {
    Int(i64),
    Float(f64),
}

/// Copies elements between tensors of one shape.
pub(crate) fn copy(from: Tensor<'_>, to: &mut TensorMut<'_>) -> Result {
    let shape = from.layout.shape;
    if shape != to.layout.shape {
        let message = format!("the shape must be {:?}, got {shape:?}", to.layout.shape);
        return Err(Error::input(message));
    }
    let (width, to_width) = (from.layout.width()?, to.layout.width()?);
    let same = from.layout.dtype == to.layout.dtype;
    let (source, target) = (from.layout.strides(), to.layout.strides());
    let (outer, row) = match shape.split_last() {
        Some((row, outer)) => (outer, *row),
        None => (shape, 1),
    };
    let (row_from, row_to) =
        (source.last().copied().unwrap_or(1), target.last().copied().unwrap_or(1));
    let dense_rows = same && row_from == 1 && row_to == 1;
    let mut coordinates = vec![0usize; outer.len()];
    loop {
        let place = |strides: &[usize]| -> usize {
            coordinates.iter().zip(strides).map(|(at, stride)| at * stride).sum()
        };
        let (start, to_start) = (place(&source), place(&target));
        if dense_rows {
            let row_bytes = &from.bytes[start * width..][..row * width];
            to.bytes[to_start * width..][..row * width].copy_from_slice(row_bytes);
        } else {
            for at in 0..row {
                let (here, there) = (start + at * row_from, to_start + at * row_to);
                let element = &from.bytes[here * width..][..width];
                let room = &mut to.bytes[there * to_width..][..to_width];
                if same {
                    room.copy_from_slice(element);
                } else if !put(load(from.layout.dtype, element), to.layout.dtype, room) {
                    let mut index = coordinates.clone();
                    index.push(at);
                    index.truncate(shape.len());
                    return Err(misfit(element, &index, from.layout.dtype, to.layout.dtype));
                }
            }
        }
        // Advances to the next row.
        let mut axis = outer.len();
        loop {
            if axis == 0 {
                return Ok(());
            }
            axis -= 1;
            coordinates[axis] += 1;
            if coordinates[axis] < outer[axis] {
                break;
            }
            coordinates[axis] = 0;
        }
    }
}

fn misfit(element: &[u8], index: &[usize], from: DType, to: DType) -> Error {
    let value = match load(from, element) {
        Number::Int(value) => value.to_string(),
        Number::Float(value) => value.to_string(),
    };
    let error = Error::input(format!(
        "element {index:?} of type `{from}` is {value}, which `{to}` cannot hold"
    ));
    match to {
        DType::Fp16 => {
            error.with_hint("clamp such elements to ±65504, or convert the model in fp32")
        }
        _ => error.with_hint("avoid such elements, or use a wider type in the model"),
    }
}

fn load(dtype: DType, bytes: &[u8]) -> Number {
    fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
        let mut array = [0; N];
        array.copy_from_slice(bytes);
        array
    }
    match dtype {
        DType::Bool => Number::Int(i64::from(bytes[0] != 0)),
        DType::Int8 => Number::Int(i64::from(bytes[0] as i8)),
        DType::UInt8 => Number::Int(i64::from(bytes[0])),
        DType::Int16 => Number::Int(i64::from(i16::from_le_bytes(array(bytes)))),
        DType::UInt16 => Number::Int(i64::from(u16::from_le_bytes(array(bytes)))),
        DType::Int32 => Number::Int(i64::from(i32::from_le_bytes(array(bytes)))),
        DType::Int64 => Number::Int(i64::from_le_bytes(array(bytes))),
        DType::Fp16 => Number::Float(f16::from_le_bytes(array(bytes)).to_f64()),
        DType::Fp32 => Number::Float(f64::from(f32::from_le_bytes(array(bytes)))),
        DType::Fp64 => Number::Float(f64::from_le_bytes(array(bytes))),
        // `Layout::width` rejects other types.
        _ => Number::Int(0),
    }
}

/// Writes a number, and returns whether it fits. Floats are rounded; a float that would become infinite does not
/// fit.
fn put(number: Number, dtype: DType, room: &mut [u8]) -> bool {
    fn whole(number: Number) -> Option<i64> {
        match number {
            Number::Int(value) => Some(value),
            // -2^63 is representable as a float, 2^63 - 1 is not.
            Number::Float(value) => {
                let fits =
                    value.fract() == 0.0 && (-(2f64.powi(63))..2f64.powi(63)).contains(&value);
                fits.then_some(value as i64)
            }
        }
    }
    fn narrow<T: TryFrom<i64>, const N: usize>(
        number: Number,
        bytes: impl Fn(T) -> [u8; N],
        room: &mut [u8],
    ) -> bool {
        let value = whole(number).and_then(|value| T::try_from(value).ok());
        value.map(|value| room.copy_from_slice(&bytes(value))).is_some()
    }
    let float = match number {
        Number::Int(value) => value as f64,
        Number::Float(value) => value,
    };
    match dtype {
        DType::Bool => {
            room[0] = u8::from(float != 0.0);
            true
        }
        DType::Int8 => narrow(number, i8::to_le_bytes, room),
        DType::UInt8 => narrow(number, u8::to_le_bytes, room),
        DType::Int16 => narrow(number, i16::to_le_bytes, room),
        DType::UInt16 => narrow(number, u16::to_le_bytes, room),
        DType::Int32 => narrow(number, i32::to_le_bytes, room),
        DType::Int64 => narrow(number, i64::to_le_bytes, room),
        DType::Fp16 => {
            let value = f16::from_f64(float);
            room.copy_from_slice(&value.to_le_bytes());
            value.is_finite() || !float.is_finite()
        }
        DType::Fp32 => {
            let value = float as f32;
            room.copy_from_slice(&value.to_le_bytes());
            value.is_finite() || !float.is_finite()
        }
        DType::Fp64 => {
            room.copy_from_slice(&float.to_le_bytes());
            true
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn floats(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    #[test]
    fn copies_and_converts_strided_tensors() {
        let padded = floats(&[1.0, 2.0, 3.0, -1.0, 4.0, 5.0, 6.0, -1.0]);
        let from = Tensor::strided(DType::Fp32, &[2, 3], &[4, 1], &padded).expect("fits");
        let mut dense = vec![0; 24];
        let mut to = TensorMut::contiguous(DType::Fp32, &[2, 3], &mut dense).expect("fits");
        copy(from, &mut to).expect("copied");
        assert_eq!(dense, floats(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]));
        // Transposed and converted to another type.
        let from = Tensor::strided(DType::Fp32, &[3, 2], &[1, 4], &padded).expect("fits");
        let mut wide = vec![0; 48];
        let mut to = TensorMut::contiguous(DType::Int64, &[3, 2], &mut wide).expect("fits");
        copy(from, &mut to).expect("copied");
        let expected: Vec<u8> =
            [1i64, 4, 2, 5, 3, 6].iter().flat_map(|value| value.to_le_bytes()).collect();
        assert_eq!(wide, expected);
        // A scalar has one element.
        let from = Tensor::contiguous(DType::Fp32, &[], &padded[..4]).expect("fits");
        let mut byte = [0];
        let mut to = TensorMut::contiguous(DType::Bool, &[], &mut byte).expect("fits");
        copy(from, &mut to).expect("copied");
        assert_eq!(byte, [1]);
    }

    #[test]
    fn rejects_values_the_dtype_cannot_hold() {
        let fits = |value: Number, dtype: DType| {
            let width = crate::tensor::Layout { dtype, shape: &[], strides: None }.width();
            put(value, dtype, &mut vec![0; width.expect("a type of arrays")])
        };
        use Number::{Float, Int};
        for (value, dtype, expected) in [
            (Int(1 << 31), DType::Int32, false),
            (Int((1 << 31) - 1), DType::Int32, true),
            (Int(-(1 << 31)), DType::Int32, true),
            (Int(-1), DType::UInt8, false),
            (Int(-128), DType::Int8, true),
            (Float(1.5), DType::Int32, false),
            (Float(f64::NAN), DType::Int64, false),
            (Float(9.3e18), DType::Int64, false),
            (Float(65504.0), DType::Fp16, true),
            (Float(65520.0), DType::Fp16, false),
            (Float(f64::NEG_INFINITY), DType::Fp16, true),
            (Float(-3.4e38), DType::Fp16, false),
            (Float(f64::NAN), DType::Fp32, true),
            (Float(1e39), DType::Fp32, false),
            (Int(i64::MAX), DType::Fp64, true),
        ] {
            assert_eq!(fits(value, dtype), expected, "{value:?} as {dtype}");
        }
        let values: Vec<u8> =
            [7i64, 1 << 40].iter().flat_map(|value| value.to_le_bytes()).collect();
        let from = Tensor::contiguous(DType::Int64, &[2], &values).expect("fits");
        let mut room = [0; 8];
        let mut to = TensorMut::contiguous(DType::Int32, &[2], &mut room).expect("fits");
        let error = copy(from, &mut to).expect_err("too large");
        assert_eq!(
            error.to_string(),
            "element [1] of type `int64` is 1099511627776, which `int32` cannot hold"
        );
    }

    #[test]
    fn rejects_invalid_shapes_and_strides() {
        for (shape, strides, bytes) in [
            (&[2, 3][..], &[4, 1][..], 27),
            (&[2, 3], &[1], 100),
            (&[0, 3], &[3, 1], 100),
            (&[2, 2], &[usize::MAX, 1], 100),
            (&[usize::MAX, usize::MAX], &[usize::MAX, 1], 100),
        ] {
            let bytes = vec![0; bytes];
            let refused = Tensor::strided(DType::Fp32, shape, strides, &bytes);
            assert!(refused.is_err(), "{shape:?} {strides:?}");
        }
        assert!(Tensor::strided(DType::Fp32, &[2, 3], &[4, 1], &[0; 28]).is_ok());
        assert!(Tensor::contiguous(DType::Int4, &[2], &[0]).is_err());
    }
}
