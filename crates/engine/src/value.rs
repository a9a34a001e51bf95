use coremill_reference::array::Array;

/// A run-time value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A tensor.
    Array(Array),
    /// A list of tensors.
    List(Vec<Array>),
    /// The classes of a classifier, each with its score.
    Dictionary(Vec<(Key, f32)>),
}

/// A class of a classifier.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    /// A class name.
    Text(String),
    /// A class number.
    Int(i64),
}

impl Value {
    /// The tensor, `None` for other values.
    pub fn as_array(&self) -> Option<&Array> {
        match self {
            Value::Array(array) => Some(array),
            Value::List(_) | Value::Dictionary(_) => None,
        }
    }

    /// Memory of the value in bytes.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Value::Array(array) => array.view().len() * 4,
            Value::List(arrays) => arrays.iter().map(|array| array.view().len() * 4 + 64).sum(),
            Value::Dictionary(entries) => entries.len() * 64,
        }
    }
}
