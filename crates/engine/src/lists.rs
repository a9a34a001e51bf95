//! List operations. A list contains tensors of one type; elements that were not written are zeros.

use coremill_mil::ops::OpKind;
use coremill_reference::array::{Array, Elements};
use coremill_reference::call::count_within;
use coremill_reference::error::{Error, Result, fail};
use coremill_reference::limits::Limits;
use coremill_tensor::DType;

use crate::plan::ReferenceOp;
use crate::value::Value;

/// Arguments of an operation.
pub(crate) struct Arguments<'a> {
    pub(crate) reference: &'a ReferenceOp,
    pub(crate) values: &'a [Value],
}

/// Performs a list operation. `dtypes` are the element types of its outputs.
pub(crate) fn perform(
    kind: OpKind,
    arguments: &Arguments<'_>,
    dtypes: &[DType],
    limits: &Limits,
) -> Result<Value> {
    match kind {
        OpKind::MakeList => make(arguments, limits),
        OpKind::ListLength => {
            let length = i32::try_from(arguments.list("ls")?.len()).unwrap_or(i32::MAX);
            Ok(Value::Array(Array::ints(DType::Int32, [], vec![length])))
        }
        OpKind::ListRead => {
            let list = arguments.list("ls")?;
            let at = position(arguments.int("index")?, list.len())?;
            Ok(Value::Array(list[at].clone()))
        }
        OpKind::ListGather => gather(arguments, dtypes),
        OpKind::ListWrite => {
            let mut list = arguments.list("ls")?.to_vec();
            let value = arguments.array("value")?.clone();
            write(&mut list, arguments.int("index")?, value, limits)?;
            Ok(Value::List(list))
        }
        OpKind::ListScatter => {
            let mut list = arguments.list("ls")?.to_vec();
            let value = arguments.array("value")?;
            let indices = arguments.ints("indices")?;
            for (row, &index) in indices.iter().enumerate() {
                write(&mut list, index, element(value, row)?, limits)?;
            }
            Ok(Value::List(list))
        }
        _ => fail!("`{}` is not a list operation", kind.name()),
    }
}

fn make(arguments: &Arguments<'_>, limits: &Limits) -> Result<Value> {
    let dtype = match arguments.optional("dtype") {
        Some(value) => match value.as_array().map(Array::elements) {
            Some(Elements::Texts(texts)) if texts.len() == 1 => texts[0].parse().ok(),
            _ => None,
        }
        .ok_or_else(|| Error::new("`dtype` is not an element type"))?,
        None => DType::Fp32,
    };
    // A symbolic dimension gets its size when an element is written.
    let mut shape = Vec::new();
    for extent in arguments.all("elem_shape") {
        shape.push(match extent.as_array().and_then(Array::as_ints) {
            Some([extent]) => usize::try_from(*extent).map_err(|_| {
                Error::new(format!("sizes in `elem_shape` must not be negative, got {extent}"))
            })?,
            _ => 0,
        });
    }
    let length = match arguments.optional("init_length") {
        Some(_) => arguments.int("init_length")?,
        None => 1,
    };
    let length = usize::try_from(length)
        .map_err(|_| Error::new(format!("`init_length` must be at least 0, got {length}")))?;
    let count = count_within(&shape, limits)?;
    count_within(&[length, count.max(1)], limits)?;
    let empty = if dtype.is_float() {
        Array::floats(dtype, shape, vec![0.0; count])
    } else {
        Array::ints(dtype, shape, vec![0; count])
    };
    Ok(Value::List(vec![empty; length]))
}

/// Writes a tensor to a list. The list grows if the index is past its end.
fn write(list: &mut Vec<Array>, index: i32, value: Array, limits: &Limits) -> Result<()> {
    let at = match usize::try_from(index) {
        Ok(at) => at,
        Err(_) => position(index, list.len())?,
    };
    if at >= list.len() {
        count_within(&[at + 1, value.view().len().max(1)], limits)?;
        let zeros = zeros_like(&value);
        list.resize(at + 1, zeros);
    }
    list[at] = value;
    Ok(())
}

fn zeros_like(array: &Array) -> Array {
    let count = array.view().len();
    match array.elements() {
        Elements::Floats(_) => Array::floats(array.dtype(), array.shape(), vec![0.0; count]),
        Elements::Ints(_) => Array::ints(array.dtype(), array.shape(), vec![0; count]),
        Elements::Texts(_) => Array::texts(array.shape(), vec![String::new(); count]),
    }
}

/// One slice along the first axis.
fn element(value: &Array, row: usize) -> Result<Array> {
    let Some((&rows, shape)) = value.shape().split_first() else {
        fail!("`value` must have at least rank 1");
    };
    if row >= rows {
        fail!(
            "the first dimension of `value` has size {rows}, which is less than the number of `indices`"
        );
    }
    let count: usize = shape.iter().product();
    let range = row * count..(row + 1) * count;
    Ok(match value.elements() {
        Elements::Floats(floats) => Array::floats(value.dtype(), shape, floats[range].to_vec()),
        Elements::Ints(ints) => Array::ints(value.dtype(), shape, ints[range].to_vec()),
        Elements::Texts(texts) => Array::texts(shape, texts[range].to_vec()),
    })
}

fn gather(arguments: &Arguments<'_>, dtypes: &[DType]) -> Result<Value> {
    let list = arguments.list("ls")?;
    let indices = arguments.ints("indices")?;
    let mut picked = Vec::with_capacity(indices.len());
    for &index in indices {
        picked.push(&list[position(index, list.len())?]);
    }
    let inner = picked.first().or(list.first().as_ref()).map_or(&[][..], |array| array.shape());
    if let Some(other) = picked.iter().find(|array| array.shape() != inner) {
        fail!("elements of shapes {inner:?} and {:?} cannot be stacked", other.shape());
    }
    let mut shape = vec![picked.len()];
    shape.extend(inner);
    let dtype = picked.first().map(|array| array.dtype()).or(dtypes.first().copied());
    let dtype = dtype.unwrap_or(DType::Fp32);
    Ok(Value::Array(if dtype.is_float() {
        let floats = picked.iter().filter_map(|array| array.as_floats()).flatten().copied();
        Array::floats(dtype, shape, floats.collect())
    } else {
        let ints = picked.iter().filter_map(|array| array.as_ints()).flatten().copied();
        Array::ints(dtype, shape, ints.collect())
    }))
}

fn position(index: i32, length: usize) -> Result<usize> {
    let shifted = if index < 0 { i64::from(index) + length as i64 } else { i64::from(index) };
    match usize::try_from(shifted) {
        Ok(at) if at < length => Ok(at),
        _ => fail!("index {index} is out of range for a list of {length} elements"),
    }
}

impl<'a> Arguments<'a> {
    fn all(&self, name: &str) -> &'a [Value] {
        let found = self.reference.parameters.iter().find(|(parameter, _)| parameter == name);
        found.map_or(&[], |(_, range)| &self.values[range.clone()])
    }

    fn optional(&self, name: &str) -> Option<&'a Value> {
        self.all(name).first()
    }

    fn list(&self, name: &str) -> Result<&'a [Array]> {
        match self.optional(name) {
            Some(Value::List(list)) => Ok(list),
            _ => fail!("`{name}` expects a list"),
        }
    }

    fn array(&self, name: &str) -> Result<&'a Array> {
        let array = self.optional(name).and_then(Value::as_array);
        array.ok_or_else(|| Error::new(format!("`{name}` expects a tensor")))
    }

    fn ints(&self, name: &str) -> Result<&'a [i32]> {
        let ints = self.array(name)?.as_ints();
        ints.ok_or_else(|| Error::new(format!("`{name}` expects integers")))
    }

    fn int(&self, name: &str) -> Result<i32> {
        match self.ints(name)? {
            [value] => Ok(*value),
            values => fail!("`{name}` expects one integer, found {}", values.len()),
        }
    }
}
