//! Parser of values: `type(value)`, where `value` is a number, a string, `true`, nested brackets, or a
//! reference to a weight file.

use std::sync::Arc;

use coremill_tensor::{Buffer, DType, packed};

use super::Weights;
use super::cursor::{Cursor, Result, shortened};
use super::floats::{self, Refusal};
use super::lex::Token;
use super::types::begins_type;
use crate::ir::{Constant, ConstantData, Dim, TensorType, Type, Weight, WeightPlace};

/// Maximum rank of a tensor; Core ML supports rank 5.
const MAX_RANK: usize = 32;

/// Parser of values with data that many values share.
pub(super) struct Values<'w> {
    weights: &'w dyn Weights,
    /// The last weight file. It is shared, since most weights are in the same file.
    file: Option<Arc<str>>,
}

/// Elements of a tensor while they are parsed.
enum Elements {
    Strings(Vec<String>),
    Narrow(Vec<i16>),
    Bytes(Vec<u8>),
}

impl<'w> Values<'w> {
    pub(super) fn new(weights: &'w dyn Weights) -> Values<'w> {
        Values { weights, file: None }
    }

    /// Parses `type(value)`.
    pub(super) fn typed(&mut self, cursor: &mut Cursor<'_>) -> Result<Constant> {
        let ty = cursor.ty()?;
        cursor.expect('(')?;
        let constant = self.value(cursor, &ty)?;
        cursor.expect(')')?;
        Ok(constant)
    }

    /// Parses a value with a known type; the text may repeat the type.
    fn value(&mut self, cursor: &mut Cursor<'_>, ty: &Type) -> Result<Constant> {
        if matches!(cursor.peek(), Token::Word(word) if begins_type(word)) {
            return cursor.nested(|cursor| self.typed(cursor));
        }
        match ty {
            Type::Tensor(tensor) if cursor.peek() == Token::Word("BLOBFILE") => {
                self.weight(cursor, tensor)
            }
            Type::Tensor(tensor) => tensor_value(cursor, tensor),
            Type::List(element, length) => {
                let start = cursor.offset();
                let mut elements = Vec::new();
                cursor.nested(|cursor| {
                    cursor.list('[', ']', |cursor| {
                        elements.push(self.value(cursor, element)?);
                        Ok(())
                    })
                })?;
                if let Some(length) = length.known()
                    && length != elements.len() as u64
                {
                    let found = elements.len();
                    let message = format!("expected a list of {length} elements, found {found}");
                    return Err(cursor.error_at(start, message));
                }
                Ok(Constant { ty: ty.clone(), data: ConstantData::Sequence(elements) })
            }
            Type::Tuple(types) => {
                let start = cursor.offset();
                let mut parts = Vec::new();
                cursor.nested(|cursor| {
                    cursor.list('(', ')', |cursor| {
                        let Some(part) = types.get(parts.len()) else {
                            let message =
                                format!("expected a tuple of {} elements, found more", types.len());
                            return Err(cursor.error(message));
                        };
                        parts.push(self.value(cursor, part)?);
                        Ok(())
                    })
                })?;
                if parts.len() < types.len() {
                    let (count, found) = (types.len(), parts.len());
                    let message = format!("expected a tuple of {count} elements, found {found}");
                    return Err(cursor.error_at(start, message));
                }
                Ok(Constant { ty: ty.clone(), data: ConstantData::Sequence(parts) })
            }
            Type::Dictionary(key_type, value_type) => {
                let mut entries = Vec::new();
                cursor.nested(|cursor| {
                    cursor.list('{', '}', |cursor| {
                        cursor.expect('{')?;
                        let key = self.value(cursor, key_type)?;
                        cursor.expect(',')?;
                        let value = self.value(cursor, value_type)?;
                        cursor.expect('}')?;
                        entries.push((key, value));
                        Ok(())
                    })
                })?;
                Ok(Constant { ty: ty.clone(), data: ConstantData::Entries(entries) })
            }
            Type::State(_) => Err(cursor.error("a state cannot be written as a value".to_owned())),
        }
    }

    /// Parses `BLOBFILE(path = string("..."), offset = uint64(64))`.
    fn weight(&mut self, cursor: &mut Cursor<'_>, tensor: &TensorType) -> Result<Constant> {
        let start = cursor.offset();
        cursor.expect_word("BLOBFILE")?;
        cursor.expect('(')?;
        cursor.expect_word("path")?;
        cursor.expect('=')?;
        let path_offset = cursor.offset();
        let path = self.typed(cursor)?;
        let Some(path) = path.as_str() else {
            return Err(cursor.error_at(path_offset, "the path must be a `string`".to_owned()));
        };
        let file = match &self.file {
            Some(file) if **file == *path => Arc::clone(file),
            _ => Arc::clone(self.file.insert(Arc::from(path))),
        };
        cursor.expect(',')?;
        cursor.expect_word("offset")?;
        cursor.expect('=')?;
        let number_offset = cursor.offset();
        let offset = self.typed(cursor)?;
        let bytes = offset.elements().and_then(|bytes| <[u8; 8]>::try_from(bytes.as_bytes()).ok());
        let (true, Some(bytes)) = (offset.ty == Type::scalar(DType::UInt64), bytes) else {
            return Err(cursor.error_at(number_offset, "the offset must be a `uint64`".to_owned()));
        };
        cursor.expect(')')?;

        if tensor.dtype == DType::String {
            let message = "strings cannot be stored in a weight file".to_owned();
            return Err(cursor.error_at(start, message).with_hint("write them inline"));
        }
        if tensor.storage_bytes().is_none() {
            let message = format!("a weight of type `{tensor}` has no fixed size");
            return Err(cursor.error_at(start, message));
        }
        let place = WeightPlace { file, offset: u64::from_le_bytes(bytes) };
        let data = self.weights.elements(&place, tensor);
        let data = data.map_err(|message| cursor.error_at(start, message))?;
        Ok(Constant {
            ty: Type::Tensor(tensor.clone()),
            data: ConstantData::Weight(Weight { data, place: Some(place) }),
        })
    }
}

fn tensor_value(cursor: &mut Cursor<'_>, declared: &TensorType) -> Result<Constant> {
    if declared.rank() > MAX_RANK {
        let rank = declared.rank();
        return Err(
            cursor.limit(format!("a tensor has at most {MAX_RANK} dimensions, found {rank}"))
        );
    }
    let mut elements = match declared.dtype {
        DType::String => Elements::Strings(Vec::new()),
        dtype if dtype.is_sub_byte() => Elements::Narrow(Vec::new()),
        _ => Elements::Bytes(Vec::new()),
    };
    let start = cursor.offset();
    // Unknown dimensions of the type get the sizes of the value.
    let mut shape: Vec<Option<u64>> = declared.shape.iter().map(Dim::known).collect();
    let whole_is_empty = shape.contains(&Some(0));
    level(cursor, declared.dtype, &mut shape, 0, whole_is_empty, &mut elements)?;
    // Unknown dimensions inside an empty dimension have size 0.
    let shape: Vec<u64> = shape.into_iter().map(Option::unwrap_or_default).collect();

    let data = match elements {
        Elements::Strings(strings) => ConstantData::Strings(strings),
        Elements::Bytes(bytes) => ConstantData::Bytes(Buffer::from(bytes)),
        Elements::Narrow(values) => match packed::pack(declared.dtype, &values) {
            Some(bytes) => ConstantData::Bytes(Buffer::from(bytes)),
            None => {
                let message = format!("elements of `{}` cannot be written inline", declared.dtype);
                return Err(cursor.error_at(start, message));
            }
        },
    };
    Ok(Constant { ty: Type::tensor(declared.dtype, &shape), data })
}

/// Parses the brackets of one dimension and everything inside.
fn level(
    cursor: &mut Cursor<'_>,
    dtype: DType,
    shape: &mut [Option<u64>],
    axis: usize,
    whole_is_empty: bool,
    elements: &mut Elements,
) -> Result<()> {
    if axis == shape.len() {
        return element(cursor, dtype, elements);
    }
    let start = cursor.offset();
    let mut count = 0u64;
    cursor.list('[', ']', |cursor| {
        if let Some(extent) = shape[axis]
            && count == extent
        {
            let message =
                format!("dimension {axis} has size {extent}, but more elements are written");
            return Err(cursor.error(message));
        }
        count += 1;
        level(cursor, dtype, shape, axis + 1, whole_is_empty, elements)
    })?;
    match shape[axis] {
        None => shape[axis] = Some(count),
        Some(extent) if extent == count => {}
        // A tensor without elements may be written `[]`, even if it has several empty rows.
        Some(_) if count == 0 && whole_is_empty => {}
        Some(extent) => {
            let message =
                format!("dimension {axis} has size {extent}, but {count} elements are written");
            return Err(cursor.error_at(start, message));
        }
    }
    Ok(())
}

fn element(cursor: &mut Cursor<'_>, dtype: DType, elements: &mut Elements) -> Result<()> {
    let start = cursor.offset();
    match elements {
        Elements::Strings(strings) => strings.push(cursor.string()?),
        Elements::Narrow(values) => {
            // All types narrower than a byte fit in `i16`.
            values.push(integer(cursor, dtype)? as i16);
        }
        Elements::Bytes(bytes) if dtype == DType::Bool => {
            let value = match cursor.peek() {
                Token::Word("true") => 1,
                Token::Word("false") => 0,
                _ => return Err(cursor.unexpected("`true` or `false`")),
            };
            cursor.take()?;
            bytes.push(value);
        }
        Elements::Bytes(bytes) if dtype.is_float() => {
            let spelled = match cursor.peek() {
                Token::Number(number) => number,
                Token::Word(word @ ("inf" | "nan")) => word,
                _ => return Err(cursor.unexpected("a number")),
            };
            cursor.take()?;
            if spelled.ends_with("nan") && cursor.accept('(')? {
                cursor.take()?;
                cursor.expect(')')?;
            }
            let spelled = cursor.since(start);
            let bits = floats::parse(spelled, dtype).map_err(|refusal| {
                let number = shortened(spelled);
                let error = |message: String| cursor.error_at(start, message);
                match refusal {
                    Refusal::Malformed => error(format!("`{number}` is not a number"))
                        .with_hint("write numbers as 0x1.8p-3, 0.1875, 1e-5, inf or nan"),
                    Refusal::TooLarge => error(format!("`{number}` is too large for `{dtype}`"))
                        .with_hint("write inf if that is meant"),
                    Refusal::NoSuchValue => {
                        error(format!("`{number}` cannot be represented in `{dtype}`"))
                    }
                }
            })?;
            bytes.extend_from_slice(&bits.to_le_bytes()[..bytes_of(dtype)]);
        }
        Elements::Bytes(bytes) => {
            let value = integer(cursor, dtype)?;
            bytes.extend_from_slice(&value.to_le_bytes()[..bytes_of(dtype)]);
        }
    }
    Ok(())
}

fn bytes_of(dtype: DType) -> usize {
    dtype.bits().unwrap_or(0) as usize / 8
}

fn integer(cursor: &mut Cursor<'_>, dtype: DType) -> Result<i128> {
    let value = match cursor.peek() {
        // No integer type needs more than 20 digits and a sign.
        Token::Number(digits) if digits.len() <= 40 => digits.parse::<i128>().ok(),
        _ => None,
    };
    let Some(value) = value else { return Err(cursor.unexpected("an integer")) };
    let (low, high) = dtype.integer_range().unwrap_or((0, 0));
    if !(low..=high).contains(&value) {
        let message = format!("{value} is out of range for `{dtype}`, {low} to {high}");
        return Err(cursor.error(message));
    }
    cursor.take()?;
    Ok(value)
}
