use coremill_tensor::{Buffer, DType};
use half::f16;

use super::{Budget, Result, count, missing};
use crate::package::error::{Error, ErrorKind};
use crate::package::schema::{Elements, dtype_from_code};
use crate::package::weights;
use crate::package::wire::{Field, Reader, malformed, unknown_field};
use coremill_mil::ir::{Constant, ConstantData, Dim, TensorType, Type, Weight, WeightPlace};
use coremill_mil::limits;

/// Decodes a field with a type.
pub(super) fn ty(field: &Field<'_>, name: &str, depth: u32, budget: &mut Budget) -> Result<Type> {
    let reader = field.message(name)?;
    any_type(reader, depth, budget).map_err(|error| error.within(name))
}

fn any_type(mut reader: Reader<'_>, depth: u32, budget: &mut Budget) -> Result<Type> {
    let start = reader.offset();
    too_deep("types", depth, start)?;
    let mut found = None;
    while let Some(field) = reader.next()? {
        budget.consume_budget::<Type>(0, field.offset)?;
        let ty = match field.number {
            1 => {
                let reader = field.message("tensorType")?;
                Type::Tensor(tensor_type(reader, budget).map_err(|e| e.within("tensorType"))?)
            }
            2 => list_type(&field, depth, budget)?,
            3 => {
                let mut parts = Vec::new();
                let mut inner = field.message("tupleType")?;
                while let Some(field) = inner.next()? {
                    match field.number {
                        1 => parts.push(ty(&field, "types", depth + 1, budget)?),
                        _ => return Err(unknown_field(&field, "the type of a tuple")),
                    }
                }
                Type::Tuple(parts)
            }
            4 => {
                let (mut key, mut value) = (None, None);
                let mut inner = field.message("dictionaryType")?;
                while let Some(field) = inner.next()? {
                    let (slot, name) = match field.number {
                        1 => (&mut key, "keyType"),
                        2 => (&mut value, "valueType"),
                        _ => return Err(unknown_field(&field, "the type of a dictionary")),
                    };
                    field.once(slot, name, ty(&field, name, depth + 1, budget)?)?;
                }
                let key = key.ok_or_else(|| missing("`keyType`", field.offset))?;
                let value = value.ok_or_else(|| missing("`valueType`", field.offset))?;
                Type::Dictionary(Box::new(key), Box::new(value))
            }
            5 => {
                let mut held = None;
                let mut inner = field.message("stateType")?;
                while let Some(field) = inner.next()? {
                    match field.number {
                        1 => {
                            let ty = ty(&field, "wrappedType", depth + 1, budget)?;
                            field.once(&mut held, "wrappedType", ty)?;
                        }
                        _ => return Err(unknown_field(&field, "the type of a state")),
                    }
                }
                let held = held.ok_or_else(|| missing("`wrappedType`", field.offset))?;
                Type::State(Box::new(held))
            }
            _ => return Err(unknown_field(&field, "a type")),
        };
        field.once(&mut found, "a kind of type", ty)?;
    }
    found.ok_or_else(|| missing("the kind of a type", start))
}

fn list_type(field: &Field<'_>, depth: u32, budget: &mut Budget) -> Result<Type> {
    let (mut element, mut length) = (None, None);
    let mut inner = field.message("listType")?;
    while let Some(field) = inner.next()? {
        match field.number {
            1 => field.once(&mut element, "type", ty(&field, "type", depth + 1, budget)?)?,
            2 => field.once(&mut length, "length", dimension(&field, "length")?)?,
            _ => return Err(unknown_field(&field, "the type of a list")),
        }
    }
    let element = element.ok_or_else(|| missing("`type`", field.offset))?;
    Ok(Type::List(Box::new(element), length.unwrap_or(Dim::Unknown)))
}

fn tensor_type(mut reader: Reader<'_>, budget: &mut Budget) -> Result<TensorType> {
    let start = reader.offset();
    let (mut dtype, mut rank) = (None, None);
    let mut shape = Vec::new();
    while let Some(field) = reader.next()? {
        match field.number {
            1 => {
                let code = field.int32("dataType")?;
                let found = dtype_from_code(code).ok_or_else(|| {
                    let message = format!("unknown data type {code}");
                    Error::new(ErrorKind::Unsupported, message).at(field.offset)
                })?;
                field.once(&mut dtype, "dataType", found)?;
            }
            2 => field.once(&mut rank, "rank", field.int64("rank")?)?,
            3 => {
                budget.consume_budget::<Dim>(0, field.offset)?;
                count(&mut shape.len(), limits::RANK, "dimensions", field.offset)?;
                shape.push(dimension(&field, "dimensions")?);
            }
            4 => {
                let message = "a tensor type has attributes, which are not supported";
                return Err(Error::new(ErrorKind::Unsupported, message).at(field.offset));
            }
            _ => return Err(unknown_field(&field, "the type of a tensor")),
        }
    }
    let rank = rank.unwrap_or(0);
    if rank == -1 {
        return Err(variable_rank(start));
    }
    if usize::try_from(rank) != Ok(shape.len()) {
        let message = format!("a tensor of rank {rank} has {} dimensions", shape.len());
        return Err(malformed(message, start));
    }
    let dtype = dtype.ok_or_else(|| missing("`dataType`", start))?;
    Ok(TensorType { dtype, shape })
}

fn variable_rank(offset: u64) -> Error {
    let message = "a tensor has a variable rank; ranks must be fixed";
    Error::new(ErrorKind::Unsupported, message).at(offset)
}

fn dimension(field: &Field<'_>, name: &str) -> Result<Dim> {
    let mut found = None;
    let mut reader = field.message(name)?;
    while let Some(field) = reader.next()? {
        let mut inner = field.message(name)?;
        let dim = match field.number {
            1 => {
                let mut size = 0;
                while let Some(field) = inner.next()? {
                    match field.number {
                        1 => size = field.uint64("size")?,
                        _ => return Err(unknown_field(&field, "a dimension")),
                    }
                }
                Dim::Known(size)
            }
            2 => {
                while let Some(field) = inner.next()? {
                    match field.number {
                        1 if !field.bool("variadic")? => {}
                        1 => return Err(variable_rank(field.offset)),
                        _ => return Err(unknown_field(&field, "a dimension")),
                    }
                }
                Dim::Unknown
            }
            _ => return Err(unknown_field(&field, "a dimension")),
        };
        field.once(&mut found, "a dimension", dim)?;
    }
    found.ok_or_else(|| missing("the kind of a dimension", field.offset))
}

fn too_deep(what: &str, depth: u32, offset: u64) -> Result<()> {
    if depth > limits::TYPE_DEPTH {
        let message = format!("{what} are nested deeper than {}", limits::TYPE_DEPTH);
        return Err(Error::new(ErrorKind::Limit, message).at(offset));
    }
    Ok(())
}

/// Decodes a field with a value.
pub(super) fn constant(field: &Field<'_>, name: &str, budget: &mut Budget) -> Result<Constant> {
    nested(field, name, 0, budget)
}

fn nested(field: &Field<'_>, name: &str, depth: u32, budget: &mut Budget) -> Result<Constant> {
    let reader = field.message(name)?;
    value(reader, depth, budget).map_err(|error| error.within(name))
}

fn value(mut reader: Reader<'_>, depth: u32, budget: &mut Budget) -> Result<Constant> {
    let start = reader.offset();
    too_deep("values", depth, start)?;
    budget.consume_budget::<Constant>(0, start)?;
    let (mut declared, mut immediate, mut blob) = (None, None, None);
    while let Some(field) = reader.next()? {
        match field.number {
            1 if field.bytes("docString")?.is_empty() => {}
            1 => {
                let message = "a value has a `docString`, which is not supported";
                return Err(Error::new(ErrorKind::Unsupported, message).at(field.offset));
            }
            2 => field.once(&mut declared, "type", ty(&field, "type", 0, budget)?)?,
            3 => field.once(&mut immediate, "immediateValue", field)?,
            5 => field.once(&mut blob, "blobFileValue", field)?,
            _ => return Err(unknown_field(&field, "a value")),
        }
    }
    let ty = declared.ok_or_else(|| missing("the type of a value", start))?;
    let data = match (immediate, blob) {
        (Some(field), None) => immediate_value(&field, &ty, depth, budget)?,
        (None, Some(field)) => {
            let weight = blob_value(field.message("blobFileValue")?, &ty);
            ConstantData::Weight(weight.map_err(|e| e.at(field.offset).within("blobFileValue"))?)
        }
        (Some(_), Some(field)) => {
            let message = "a value has both an immediate value and a location in a weight file";
            return Err(malformed(message, field.offset));
        }
        (None, None) => return Err(missing("the content of a value", start)),
    };
    Ok(Constant { ty, data })
}

fn blob_value(mut reader: Reader<'_>, ty: &Type) -> Result<Weight> {
    let (mut file, mut offset) = (None, None);
    while let Some(field) = reader.next()? {
        match field.number {
            1 => field.once(&mut file, "fileName", field.name("fileName")?)?,
            2 => field.once(&mut offset, "offset", field.uint64("offset")?)?,
            _ => return Err(unknown_field(&field, "`blobFileValue`")),
        }
    }
    let Some(tensor) = ty.as_tensor() else {
        return Err(Error::new(
            ErrorKind::ModelFile,
            format!("a `{ty}` cannot be stored in a weight file"),
        ));
    };
    if weights::code(tensor.dtype).is_none() {
        let message = format!("weight files do not support the element type of a `{tensor}`");
        return Err(Error::new(ErrorKind::ModelFile, message));
    }
    if tensor.storage_bytes().is_none() {
        let message = format!("a `{tensor}` is in a weight file, but its size is unknown");
        return Err(Error::new(ErrorKind::ModelFile, message));
    }
    let place = WeightPlace { file: file.unwrap_or_default().into(), offset: offset.unwrap_or(0) };
    Ok(Weight { data: None, place: Some(place) })
}

fn immediate_value(
    field: &Field<'_>,
    ty: &Type,
    depth: u32,
    budget: &mut Budget,
) -> Result<ConstantData> {
    let mut found = None;
    let mut reader = field.message("immediateValue")?;
    while let Some(field) = reader.next()? {
        let data = match (field.number, ty) {
            (1, Type::Tensor(tensor)) => {
                let reader = field.message("tensor")?;
                elements(reader, tensor, budget).map_err(|error| error.within("tensor"))?
            }
            (2, Type::Tuple(parts)) => {
                sequence(&field, "tuple", Some(parts.len() as u64), depth, budget)?
            }
            (3, Type::List(_, length)) => sequence(&field, "list", length.known(), depth, budget)?,
            (4, Type::Dictionary(..)) => entries(&field, depth, budget)?,
            (1..=4, _) => {
                let kind =
                    ["a tensor", "a tuple", "a list", "a dictionary"][field.number as usize - 1];
                let message = format!("the value is {kind}, but its type is `{ty}`");
                return Err(malformed(message, field.offset));
            }
            _ => return Err(unknown_field(&field, "`immediateValue`")),
        };
        field.once(&mut found, "an immediate value", data)?;
    }
    found.ok_or_else(|| missing("the content of an immediate value", field.offset))
}

fn sequence(
    field: &Field<'_>,
    name: &str,
    length: Option<u64>,
    depth: u32,
    budget: &mut Budget,
) -> Result<ConstantData> {
    let mut parts = Vec::new();
    let mut reader = field.message(name)?;
    while let Some(field) = reader.next()? {
        match field.number {
            1 => parts.push(nested(&field, "values", depth + 1, budget)?),
            _ => return Err(unknown_field(&field, &format!("a {name}"))),
        }
    }
    if length.is_some_and(|length| length != parts.len() as u64) {
        let message =
            format!("a {name} must have {} values, got {}", length.unwrap_or(0), parts.len());
        return Err(malformed(message, field.offset));
    }
    Ok(ConstantData::Sequence(parts))
}

fn entries(field: &Field<'_>, depth: u32, budget: &mut Budget) -> Result<ConstantData> {
    let mut entries = Vec::new();
    let mut reader = field.message("dictionary")?;
    while let Some(field) = reader.next()? {
        if field.number != 1 {
            return Err(unknown_field(&field, "a dictionary"));
        }
        let (mut key, mut value) = (None, None);
        let mut inner = field.message("values")?;
        while let Some(field) = inner.next()? {
            let (slot, name) = match field.number {
                1 => (&mut key, "key"),
                2 => (&mut value, "value"),
                _ => return Err(unknown_field(&field, "an entry of a dictionary")),
            };
            field.once(slot, name, nested(&field, name, depth + 1, budget)?)?;
        }
        let key = key.ok_or_else(|| missing("the key of an entry", field.offset))?;
        let value = value.ok_or_else(|| missing("the value of an entry", field.offset))?;
        entries.push((key, value));
    }
    Ok(ConstantData::Entries(entries))
}

fn elements(
    mut reader: Reader<'_>,
    tensor: &TensorType,
    budget: &mut Budget,
) -> Result<ConstantData> {
    let start = reader.offset();
    let Some(expected) = tensor.element_count() else {
        let message = format!("the size of a `{tensor}` value cannot be determined");
        return Err(malformed(message, start));
    };
    let mut found = None;
    while let Some(field) = reader.next()? {
        let Some(kind) = Elements::from_number(field.number) else {
            return Err(unknown_field(&field, "the value of a tensor"));
        };
        let holder = field.message(kind.name())?;
        let data = match (kind, tensor.dtype) {
            (Elements::Strings, DType::String) => strings(holder, budget),
            (_, dtype) => numbers(holder, kind, dtype, budget),
        };
        let data = data.map_err(|error| error.at(field.offset).within(kind.name()))?;
        field.once(&mut found, "the elements of a tensor", data)?;
    }
    let data = match found {
        Some(data) => data,
        // Old writers write no elements for an empty tensor.
        None if expected == 0 && tensor.dtype == DType::String => ConstantData::Strings(Vec::new()),
        None if expected == 0 => ConstantData::Bytes(Buffer::from(Vec::new())),
        None => return Err(missing("the data of a tensor", start)),
    };
    let (found, expected, unit) = match &data {
        ConstantData::Strings(strings) => (strings.len() as u64, Some(expected), "strings"),
        ConstantData::Bytes(bytes) => (bytes.len() as u64, tensor.storage_bytes(), "bytes"),
        _ => return Err(missing("the data of a tensor", start)),
    };
    if Some(found) != expected {
        let expected = expected.map_or("more than 2^64".to_owned(), |count| count.to_string());
        let message = format!("a `{tensor}` requires {expected} {unit}, found {found}");
        return Err(malformed(message, start));
    }
    Ok(data)
}

fn strings(mut reader: Reader<'_>, budget: &mut Budget) -> Result<ConstantData> {
    let mut strings = Vec::new();
    while let Some(field) = reader.next()? {
        if field.number != 1 {
            return Err(unknown_field(&field, "`strings`"));
        }
        let text = field.string("values")?;
        budget.consume_budget::<String>(text.len(), field.offset)?;
        strings.push(text.to_owned());
    }
    Ok(ConstantData::Strings(strings))
}

/// The packed elements from the field that contains them. Writers use different fields; every field is
/// accepted if its numbers are representable in the element type.
fn numbers(
    mut reader: Reader<'_>,
    kind: Elements,
    dtype: DType,
    budget: &mut Budget,
) -> Result<ConstantData> {
    let start = reader.offset();
    let mut bytes = Vec::new();
    let mut narrow = Vec::new();
    while let Some(field) = reader.next()? {
        if field.number != 1 {
            return Err(unknown_field(&field, &format!("`{}`", kind.name())));
        }
        match (kind, dtype) {
            (Elements::Bytes, DType::String) => return Err(wrong_field(kind, dtype, field.offset)),
            (Elements::Bytes, _) => bytes.extend_from_slice(field.bytes("values")?),
            (Elements::Floats, DType::Fp32) => field.floats("values", &mut bytes)?,
            (Elements::Floats, DType::Fp16) => {
                let mut wide = Vec::new();
                field.floats("values", &mut wide)?;
                for chunk in wide.as_chunks::<4>().0 {
                    let value = f32::from_le_bytes(*chunk);
                    let rounded = f16::from_f32(value);
                    if rounded.to_f32() != value && !value.is_nan() {
                        let message = format!("{value} is not exactly representable in `fp16`");
                        return Err(malformed(message, field.offset));
                    }
                    bytes.extend_from_slice(&rounded.to_le_bytes());
                }
            }
            (Elements::Doubles, DType::Fp64) => field.doubles("values", &mut bytes)?,
            (Elements::Ints | Elements::LongInts | Elements::Bools, _)
                if dtype.integer_range().is_some() =>
            {
                field.int64s("values", &mut |value| {
                    budget.consume_budget::<u64>(0, field.offset)?;
                    integer(value, kind, dtype, &mut bytes, &mut narrow)
                })?;
            }
            _ => return Err(wrong_field(kind, dtype, field.offset)),
        }
    }
    if !narrow.is_empty() {
        bytes = coremill_tensor::packed::pack(dtype, &narrow)
            .ok_or_else(|| wrong_field(kind, dtype, start))?;
    }
    if dtype == DType::Bool
        && let Some(byte) = bytes.iter().find(|&&byte| byte > 1)
    {
        return Err(malformed(format!("a `bool` must be 0 or 1, got {byte}"), start));
    }
    budget.consume_budget::<Buffer>(bytes.len() + size_of::<Vec<u8>>(), start)?;
    Ok(ConstantData::Bytes(Buffer::from(bytes)))
}

fn integer(
    value: i64,
    kind: Elements,
    dtype: DType,
    bytes: &mut Vec<u8>,
    narrow: &mut Vec<i16>,
) -> Result<()> {
    // `longInts` are signed; the upper half of `uint64` is stored as negative numbers.
    let wide = match dtype {
        DType::UInt64 => i128::from(value.cast_unsigned()),
        _ => i128::from(value),
    };
    let (low, high) = dtype.integer_range().unwrap_or((0, -1));
    let narrowed = i32::try_from(value).is_ok() || kind == Elements::LongInts;
    if !narrowed || !(low..=high).contains(&wide) {
        let message = format!("{wide} is out of range for `{dtype}`");
        return Err(Error::new(ErrorKind::ModelFile, message));
    }
    if dtype.is_sub_byte() {
        narrow.push(value as i16);
    } else {
        let width = dtype.bits().unwrap_or(0) as usize / 8;
        bytes.extend_from_slice(&value.to_le_bytes()[..width]);
    }
    Ok(())
}

fn wrong_field(kind: Elements, dtype: DType, offset: u64) -> Error {
    let expected = Elements::of(dtype).name();
    let message = format!(
        "elements of type `{dtype}` are in the field `{}`; expected `{expected}`",
        kind.name()
    );
    malformed(message, offset)
}
