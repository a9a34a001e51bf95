use coremill_tensor::DType;

use super::{Failure, Places};
use crate::package::schema::{Elements, dtype_code};
use crate::package::wire::Writer;
use coremill_mil::ir::{Constant, ConstantData, Dim, TensorType, Type};

/// Encodes a type. Dimensions that are not fixed are unknown in files.
pub(super) fn ty(writer: &mut Writer, number: u32, of: &Type) {
    writer.message(number, |writer| match of {
        Type::Tensor(tensor) => writer.message(1, |writer| tensor_type(writer, tensor)),
        Type::List(element, length) => writer.message(2, |writer| {
            ty(writer, 1, element);
            dimension(writer, 2, length);
        }),
        Type::Tuple(parts) => writer.message(3, |writer| {
            parts.iter().for_each(|part| ty(writer, 1, part));
        }),
        Type::Dictionary(key, value) => writer.message(4, |writer| {
            ty(writer, 1, key);
            ty(writer, 2, value);
        }),
        Type::State(held) => writer.message(5, |writer| ty(writer, 1, held)),
    });
}

fn tensor_type(writer: &mut Writer, tensor: &TensorType) {
    writer.int64(1, i64::from(dtype_code(tensor.dtype)));
    writer.uint64(2, tensor.rank() as u64);
    tensor.shape.iter().for_each(|dim| dimension(writer, 3, dim));
}

fn dimension(writer: &mut Writer, number: u32, dim: &Dim) {
    writer.message(number, |writer| match dim {
        Dim::Known(size) => writer.message(1, |writer| writer.uint64(1, *size)),
        Dim::Unknown | Dim::Symbolic(_) => writer.message(2, |_| {}),
    });
}

/// Encodes a value.
pub(super) fn constant(
    writer: &mut Writer,
    number: u32,
    constant: &Constant,
    places: Places<'_>,
    failure: &mut Failure,
) {
    writer.message(number, |writer| {
        ty(writer, 2, &constant.ty);
        match &constant.data {
            ConstantData::Weight(weight) => match places(weight) {
                Some(place) => writer.message(5, |writer| {
                    writer.string(1, &place.file);
                    writer.uint64(2, place.offset);
                }),
                None => failure.note(|| "a weight has no location in a weight file".to_owned()),
            },
            _ => writer.message(3, |writer| immediate(writer, constant, places, failure)),
        }
    });
}

fn immediate(writer: &mut Writer, constant: &Constant, places: Places<'_>, failure: &mut Failure) {
    let mut nested = |writer: &mut Writer, number: u32, part: &Constant| {
        self::constant(writer, number, part, places, failure);
    };
    match (&constant.data, &constant.ty) {
        (ConstantData::Bytes(_) | ConstantData::Strings(_), Type::Tensor(tensor)) => {
            writer.message(1, |writer| elements(writer, tensor, &constant.data, failure));
        }
        (ConstantData::Sequence(parts), Type::Tuple(_)) => writer.message(2, |writer| {
            parts.iter().for_each(|part| nested(writer, 1, part));
        }),
        (ConstantData::Sequence(parts), Type::List(..)) => writer.message(3, |writer| {
            parts.iter().for_each(|part| nested(writer, 1, part));
        }),
        (ConstantData::Entries(entries), Type::Dictionary(..)) => writer.message(4, |writer| {
            for (key, value) in entries {
                writer.message(1, |writer| {
                    nested(writer, 1, key);
                    nested(writer, 2, value);
                });
            }
        }),
        (_, ty) => failure.note(|| format!("a constant of type `{ty}` has data of another kind")),
    }
}

fn elements(writer: &mut Writer, tensor: &TensorType, data: &ConstantData, failure: &mut Failure) {
    let field = Elements::of(tensor.dtype);
    match (data, tensor.dtype) {
        (ConstantData::Strings(strings), DType::String) => {
            if Some(strings.len() as u64) != tensor.element_count() {
                let found = strings.len();
                failure.note(|| format!("{found} strings do not fit the type `{tensor}`"));
            }
            writer.message(field as u32, |writer| {
                strings.iter().for_each(|text| writer.bytes_always(1, text.as_bytes()));
            });
        }
        (ConstantData::Bytes(buffer), dtype) => {
            let bytes = buffer.as_bytes();
            if tensor.storage_bytes() != Some(bytes.len() as u64) {
                let found = bytes.len();
                failure.note(|| format!("{found} bytes do not fit the type `{tensor}`"));
            }
            writer.message(field as u32, |writer| numbers(writer, field, dtype, bytes));
        }
        _ => failure.note(|| format!("a constant of type `{tensor}` has data of another kind")),
    }
}

fn numbers(writer: &mut Writer, field: Elements, dtype: DType, bytes: &[u8]) {
    match (field, dtype) {
        (Elements::Bools, _) => {
            writer.int64s(1, bytes.iter().map(|&byte| i64::from(byte != 0)));
        }
        (_, DType::Int16) => {
            let values = bytes.as_chunks::<2>().0.iter();
            writer.int64s(1, values.map(|&chunk| i64::from(i16::from_le_bytes(chunk))));
        }
        (_, DType::UInt16) => {
            let values = bytes.as_chunks::<2>().0.iter();
            writer.int64s(1, values.map(|&chunk| i64::from(u16::from_le_bytes(chunk))));
        }
        (_, DType::Int32) => {
            let values = bytes.as_chunks::<4>().0.iter();
            writer.int64s(1, values.map(|&chunk| i64::from(i32::from_le_bytes(chunk))));
        }
        (_, DType::Int64 | DType::UInt64) => {
            let values = bytes.as_chunks::<8>().0.iter();
            writer.int64s(1, values.map(|&chunk| i64::from_le_bytes(chunk)));
        }
        // Floats, doubles and raw bytes are stored as in memory.
        _ if !bytes.is_empty() => writer.bytes_always(1, bytes),
        _ => {}
    }
}
