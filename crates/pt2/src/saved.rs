//! Reads files of `torch.save`: a zip archive with a pickle and the storages that it refers to.

use std::collections::HashMap;

use coremill_tensor::Buffer;

use crate::error::{Error, escape_truncated};
use crate::limits::{MAX_DEPTH, MAX_PICKLE_VALUES, MAX_RANK};
use crate::pickle::{Id, Pickle, Value};
use crate::scalar::ScalarType;
use crate::tensor::{StoredValue, UncheckedTensor};
use crate::zip::Archive;

/// A saved Python value.
#[derive(Clone, Debug)]
pub enum SavedValue {
    /// No value (`None` in Python).
    None,
    /// A boolean.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A float.
    Float(f64),
    /// Real and imaginary part.
    Complex(f64, f64),
    /// A string.
    Text(String),
    /// Bytes.
    Bytes(Vec<u8>),
    /// A tensor.
    Tensor(StoredValue),
    /// An element type.
    ScalarType(ScalarType),
    /// A device, as text.
    Device(String),
    /// A tuple.
    Tuple(Vec<SavedValue>),
    /// A list.
    List(Vec<SavedValue>),
    /// A dictionary, in its order.
    Dict(Vec<(SavedValue, SavedValue)>),
}

/// Number of bytes of a string that count as one value for the limit.
const TEXT_BYTES_A_VALUE: usize = 64;

/// Reads the whole value. `name` distinguishes its storages from those of other files.
pub(crate) fn read(bytes: Buffer, name: &str) -> Result<SavedValue, Error> {
    let (archive, root, pickle) = open(bytes, Pickle::parse)?;
    Reader::new(archive, root, name, &pickle).value(pickle.root(), 0)
}

/// The tensors inside a tensor of a Python class, by attribute name: quantized elements, scales and so on.
/// The class itself remains unknown.
pub fn tensor_subclass_parts(
    bytes: Buffer,
    name: &str,
) -> Result<Vec<(String, StoredValue)>, Error> {
    let (archive, root, pickle) = open(bytes, Pickle::parse_with_objects)?;
    let mut at = pickle.root();
    // `(function, class, arguments, state)`, possibly inside a parameter.
    let state = loop {
        match pickle.get(at) {
            Value::Call(function, arguments) => match (*function, pickle.get(*arguments)) {
                ("torch._utils _rebuild_parameter", Value::Tuple(arguments)) => {
                    match arguments.first() {
                        // Values refer only to earlier ones, so the loop ends.
                        Some(data) if *data < at => at = *data,
                        _ => break None,
                    }
                }
                ("torch._tensor _rebuild_from_type_v2", Value::Tuple(arguments)) => {
                    let wraps = arguments.first().is_some_and(|function| {
                        *pickle.get(*function)
                            == Value::Global("torch._utils _rebuild_wrapper_subclass")
                    });
                    break arguments.get(3).filter(|_| wraps).copied();
                }
                _ => break None,
            },
            _ => break None,
        }
    };
    let Some(Value::Dict(pairs)) = state.map(|state| pickle.get(state)) else {
        return Err(Error::unsupported("the pickle is not a tensor composed of other tensors"));
    };
    let mut reader = Reader::new(archive, root, name, &pickle);
    let mut parts = Vec::new();
    for (key, value) in pairs {
        let tensor = matches!(pickle.get(*value), Value::Call(function, _)
            if function.starts_with("torch._utils _rebuild_tensor_v"));
        if let (Value::Text(key), true) = (pickle.get(*key), tensor)
            && let SavedValue::Tensor(stored) = reader.value(*value, 0)?
        {
            parts.push((key.clone(), stored));
        }
    }
    Ok(parts)
}

/// The archive, its folder, and the parsed pickle.
fn open(
    bytes: Buffer,
    parse: fn(&[u8]) -> Result<Pickle, Error>,
) -> Result<(Archive, String, Pickle), Error> {
    let archive = Archive::open(bytes)?;
    let root = archive.names().find_map(|entry| entry.strip_suffix("/data.pkl")).map(str::to_owned);
    let Some(root) = root else {
        return Err(Error::malformed("the archive has no `data.pkl`, which `torch.save` writes"));
    };
    if let Some(order) = archive.find(&format!("{root}/byteorder"))?
        && order.as_bytes() != b"little"
    {
        return Err(Error::unsupported(
            "the storages are big-endian; only little-endian storages are supported",
        ));
    }
    let pickle = parse(archive.get(&format!("{root}/data.pkl"))?.as_bytes())?;
    Ok((archive, root, pickle))
}

struct Reader<'a> {
    archive: Archive,
    root: String,
    name: &'a str,
    pickle: &'a Pickle,
    /// Number of values that may still be created, because a memo lets few bytes represent any number of
    /// them.
    left: usize,
    storages: HashMap<String, Buffer>,
}

impl<'a> Reader<'a> {
    fn new(archive: Archive, root: String, name: &'a str, pickle: &'a Pickle) -> Reader<'a> {
        Reader { archive, root, name, pickle, left: MAX_PICKLE_VALUES, storages: HashMap::new() }
    }

    fn value(&mut self, id: Id, depth: usize) -> Result<SavedValue, Error> {
        if depth > MAX_DEPTH {
            return Err(Error::limit(format!(
                "the pickle's values are nested deeper than {MAX_DEPTH} levels"
            )));
        }
        let pickle = self.pickle;
        let text = match pickle.get(id) {
            Value::Text(text) => text.len(),
            Value::Bytes(bytes) => bytes.len(),
            _ => 0,
        };
        let cost = 1 + text / TEXT_BYTES_A_VALUE;
        self.left = self.left.checked_sub(cost).ok_or_else(|| {
            Error::limit(format!("the pickle has more than {MAX_PICKLE_VALUES} values"))
        })?;
        Ok(match pickle.get(id) {
            Value::None => SavedValue::None,
            Value::Bool(value) => SavedValue::Bool(*value),
            Value::Int(value) => SavedValue::Int(*value),
            Value::Float(value) => SavedValue::Float(*value),
            Value::Text(text) => SavedValue::Text(text.clone()),
            Value::Bytes(bytes) => SavedValue::Bytes(bytes.clone()),
            Value::Tuple(items) => SavedValue::Tuple(self.values(items, depth)?),
            Value::List(items) => SavedValue::List(self.values(items, depth)?),
            Value::Dict(pairs) => {
                let mut read = Vec::new();
                for (key, value) in pairs {
                    read.push((self.value(*key, depth + 1)?, self.value(*value, depth + 1)?));
                }
                SavedValue::Dict(read)
            }
            Value::Global(global) => match scalar_type(global) {
                Some(dtype) => SavedValue::ScalarType(dtype),
                None => return Err(unexpected(global, "as a value")),
            },
            Value::Call(function, arguments) => match pickle.get(*arguments) {
                Value::Tuple(arguments) => self.call(function, arguments, depth)?,
                _ => return Err(unexpected(function, "as a function")),
            },
            Value::Opaque => {
                return Err(Error::unsupported(
                    "the pickle contains an object, which is not supported",
                ));
            }
            Value::Persistent(_) => {
                return Err(Error::unsupported("the pickle contains a storage outside a tensor"));
            }
        })
    }

    fn values(&mut self, items: &[Id], depth: usize) -> Result<Vec<SavedValue>, Error> {
        items.iter().map(|item| self.value(*item, depth + 1)).collect()
    }

    fn call(
        &mut self,
        function: &str,
        arguments: &[Id],
        depth: usize,
    ) -> Result<SavedValue, Error> {
        match (function, arguments) {
            ("torch._utils _rebuild_tensor_v2", [storage, offset, sizes, strides, ..]) => {
                self.tensor(*storage, [*offset, *sizes, *strides], None)
            }
            (
                "torch._utils _rebuild_tensor_v3",
                [storage, offset, sizes, strides, _, _, dtype, ..],
            ) => self.tensor(*storage, [*offset, *sizes, *strides], Some(*dtype)),
            // The state consists of attributes set by Python code; it is not data of the tensor.
            (
                "torch._utils _rebuild_parameter" | "torch._utils _rebuild_parameter_with_state",
                [data, ..],
            ) => {
                let mut data = self.value(*data, depth + 1)?;
                if let SavedValue::Tensor(StoredValue::Tensor(tensor)) = &mut data {
                    tensor.is_parameter = true;
                }
                Ok(data)
            }
            ("torch._tensor _rebuild_from_type_v2", [function, class, arguments, _]) => {
                // Attributes that were set on a tensor are not its data.
                let plain = ["torch Tensor", "torch.nn.parameter Parameter"];
                match (
                    self.pickle.get(*function),
                    self.pickle.get(*class),
                    self.pickle.get(*arguments),
                ) {
                    (Value::Global(function), Value::Global(class), Value::Tuple(arguments))
                        if plain.contains(class) && depth < MAX_DEPTH =>
                    {
                        self.call(function, arguments, depth + 1)
                    }
                    _ => Err(unexpected(
                        name_of(self.pickle.get(*class)),
                        "as the class of a tensor",
                    )),
                }
            }
            ("torch Size", [sizes]) => self.value(*sizes, depth + 1),
            ("torch device", [kind, ..]) => match self.pickle.get(*kind) {
                Value::Text(kind) => Ok(SavedValue::Device(kind.clone())),
                _ => Err(Error::malformed("the pickle has a device without a name")),
            },
            ("builtins complex" | "__builtin__ complex", [real, imaginary]) => {
                let float = |id: &Id| match self.pickle.get(*id) {
                    Value::Float(value) => Ok(*value),
                    _ => Err(Error::malformed("the pickle has a complex number without parts")),
                };
                Ok(SavedValue::Complex(float(real)?, float(imaginary)?))
            }
            ("_codecs encode", [text, _]) => match self.pickle.get(*text) {
                // Protocol 2 has no bytes type; each byte is a Latin-1 character.
                Value::Text(text) => {
                    let bytes = text.chars().map(|c| u8::try_from(u32::from(c)));
                    let bytes = bytes.collect::<Result<Vec<u8>, _>>();
                    bytes
                        .map(SavedValue::Bytes)
                        .map_err(|_| Error::malformed("the pickle has byte values above 255"))
                }
                _ => Err(Error::malformed("the pickle has encoded bytes that are not a string")),
            },
            (other, _) => Err(unexpected(other, "as a function")),
        }
    }

    fn tensor(
        &mut self,
        storage: Id,
        view: [Id; 3],
        dtype: Option<Id>,
    ) -> Result<SavedValue, Error> {
        let (stored, name, bytes) = self.storage(storage)?;
        let dtype = match dtype.map(|dtype| self.pickle.get(dtype)) {
            None => stored,
            Some(Value::Global(global)) => scalar_type(global),
            Some(_) => None,
        };
        let Some(dtype) = dtype else {
            return Err(Error::malformed("the pickle has a tensor without an element type"));
        };
        let [offset, sizes, strides] = view;
        let Value::Int(offset) = *self.pickle.get(offset) else {
            return Err(Error::malformed("the pickle has a tensor without an offset"));
        };
        let claim = UncheckedTensor {
            dtype,
            sizes: self.integers(sizes)?,
            strides: self.integers(strides)?,
            offset,
        };
        claim.check(bytes, &name, false).map(SavedValue::Tensor)
    }

    /// A storage: its element type if it has one, its name, and its bytes.
    fn storage(&mut self, id: Id) -> Result<(Option<ScalarType>, String, Buffer), Error> {
        let malformed = || Error::malformed("the pickle has a tensor without a storage");
        let Value::Persistent(identifier) = self.pickle.get(id) else { return Err(malformed()) };
        let Value::Tuple(parts) = self.pickle.get(*identifier) else { return Err(malformed()) };
        let [_, class, key, ..] = parts.as_slice() else { return Err(malformed()) };
        let (Value::Global(class), Value::Text(key)) =
            (self.pickle.get(*class), self.pickle.get(*key))
        else {
            return Err(malformed());
        };
        let name = format!("{}!{key}", self.name);
        let bytes = match self.storages.get(key) {
            Some(bytes) => bytes.clone(),
            None => {
                let bytes = self.archive.get(&format!("{}/data/{key}", self.root))?;
                self.storages.insert(key.clone(), bytes.clone());
                bytes
            }
        };
        Ok((storage_type(class), name, bytes))
    }

    fn integers(&self, id: Id) -> Result<Vec<i64>, Error> {
        let malformed = || Error::malformed("the pickle has a tensor without sizes or strides");
        let items = match self.pickle.get(id) {
            Value::Tuple(items) => items,
            Value::Call("torch Size", arguments) => match self.pickle.get(*arguments) {
                Value::Tuple(arguments) if arguments.len() == 1 => {
                    match self.pickle.get(arguments[0]) {
                        Value::Tuple(items) => items,
                        _ => return Err(malformed()),
                    }
                }
                _ => return Err(malformed()),
            },
            _ => return Err(malformed()),
        };
        if items.len() > MAX_RANK {
            return Err(Error::limit(format!("a tensor has more than {MAX_RANK} dimensions")));
        }
        let integer = |id: &Id| match self.pickle.get(*id) {
            Value::Int(value) => Ok(*value),
            _ => Err(malformed()),
        };
        items.iter().map(integer).collect()
    }
}

fn name_of(value: &Value) -> &str {
    match value {
        Value::Global(name) => name,
        _ => "an unnamed value",
    }
}

fn unexpected(global: &str, how: &str) -> Error {
    let name = escape_truncated(&global.replace(' ', "."));
    Error::unsupported(format!("the pickle uses `{name}` {how}, which is not supported"))
}

fn scalar_type(global: &str) -> Option<ScalarType> {
    ScalarType::from_name(global.strip_prefix("torch ")?)
}

fn storage_type(class: &str) -> Option<ScalarType> {
    Some(match class.strip_prefix("torch ")? {
        "ByteStorage" => ScalarType::UInt8,
        "CharStorage" => ScalarType::Int8,
        "ShortStorage" => ScalarType::Int16,
        "IntStorage" => ScalarType::Int32,
        "LongStorage" => ScalarType::Int64,
        "HalfStorage" => ScalarType::Float16,
        "FloatStorage" => ScalarType::Float32,
        "DoubleStorage" => ScalarType::Float64,
        "BoolStorage" => ScalarType::Bool,
        "BFloat16Storage" => ScalarType::BFloat16,
        "ComplexFloatStorage" => ScalarType::Complex64,
        "ComplexDoubleStorage" => ScalarType::Complex128,
        _ => return None,
    })
}
