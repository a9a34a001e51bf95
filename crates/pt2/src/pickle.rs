//! Parses pickles without executing them: a machine for the few opcodes that data needs, with a list of
//! allowed names.
//!
//! Names that are not on the list, and opcodes that build objects, are errors. For reading the tensors inside
//! a Python object, such names and the values built from them become [`Value::Opaque`] instead.

use crate::error::{Error, escape_truncated};
use crate::limits::MAX_PICKLE_VALUES;

/// Index of a value in a [`Pickle`].
pub(crate) type Id = usize;

/// The values of a pickle. They refer to each other by index, because the memo allows a value to be part of
/// several others.
#[derive(Debug)]
pub(crate) struct Pickle {
    values: Vec<Value>,
    root: Id,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    Bytes(Vec<u8>),
    Tuple(Vec<Id>),
    List(Vec<Id>),
    Dict(Vec<(Id, Id)>),
    /// `module name`.
    Global(&'static str),
    /// A function of the list, called with a tuple of arguments.
    Call(&'static str, Id),
    /// A storage, with the tuple by which torch identifies it.
    Persistent(Id),
    /// An unknown value that is not examined.
    Opaque,
}

/// Names that data may contain. None of them is executed; the reader interprets each.
const GLOBALS: &[&str] = &[
    "torch._utils _rebuild_tensor_v2",
    "torch._utils _rebuild_tensor_v3",
    "torch._utils _rebuild_parameter",
    "torch._utils _rebuild_parameter_with_state",
    "torch._tensor _rebuild_from_type_v2",
    "torch._utils _rebuild_wrapper_subclass",
    "torch.serialization _get_layout",
    "torch Tensor",
    "torch.nn.parameter Parameter",
    "torch Size",
    "torch device",
    "collections OrderedDict",
    "torch.storage UntypedStorage",
    "torch.storage TypedStorage",
    "torch ByteStorage",
    "torch CharStorage",
    "torch ShortStorage",
    "torch IntStorage",
    "torch LongStorage",
    "torch HalfStorage",
    "torch FloatStorage",
    "torch DoubleStorage",
    "torch BoolStorage",
    "torch BFloat16Storage",
    "torch ComplexFloatStorage",
    "torch ComplexDoubleStorage",
    "torch uint8",
    "torch int8",
    "torch int16",
    "torch int32",
    "torch int64",
    "torch float16",
    "torch float32",
    "torch float64",
    "torch complex32",
    "torch complex64",
    "torch complex128",
    "torch bool",
    "torch bfloat16",
    "torch uint16",
    "torch uint32",
    "torch uint64",
    "torch float8_e4m3fn",
    "torch float8_e5m2",
    "torch float8_e4m3fnuz",
    "torch float8_e5m2fnuz",
    "torch float8_e8m0fnu",
    "builtins complex",
    "__builtin__ complex",
    "_codecs encode",
];

impl Pickle {
    /// Parses a pickle that must contain only data.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Pickle, Error> {
        Pickle::run(bytes, false)
    }

    /// Parses a pickle that may contain objects as well; none of their code is executed.
    pub(crate) fn parse_with_objects(bytes: &[u8]) -> Result<Pickle, Error> {
        Pickle::run(bytes, true)
    }

    fn run(bytes: &[u8], objects: bool) -> Result<Pickle, Error> {
        Machine {
            objects,
            bytes,
            at: 0,
            values: Vec::new(),
            stack: Vec::new(),
            marks: Vec::new(),
            memo: Vec::new(),
        }
        .run()
    }

    pub(crate) fn root(&self) -> Id {
        self.root
    }

    pub(crate) fn get(&self, id: Id) -> &Value {
        &self.values[id]
    }
}

struct Machine<'a> {
    /// Whether names that are not on the list become opaque values.
    objects: bool,
    bytes: &'a [u8],
    at: usize,
    values: Vec<Value>,
    stack: Vec<Id>,
    marks: Vec<usize>,
    memo: Vec<Option<Id>>,
}

impl Machine<'_> {
    fn run(mut self) -> Result<Pickle, Error> {
        loop {
            let [opcode] = self.array()?;
            match opcode {
                b'.' => {
                    let root = self.pop()?;
                    return Ok(Pickle { values: self.values, root });
                }
                _ => self.step(opcode)?,
            }
            if self.values.len() > MAX_PICKLE_VALUES || self.stack.len() > MAX_PICKLE_VALUES {
                return Err(Error::limit(format!(
                    "the pickle has more than {MAX_PICKLE_VALUES} values"
                )));
            }
        }
    }

    fn step(&mut self, opcode: u8) -> Result<(), Error> {
        match opcode {
            0x80 => {
                let [version] = self.array()?;
                if !(2..=5).contains(&version) {
                    return Err(Error::unsupported(format!(
                        "the pickle has protocol {version}; expected 2 to 5"
                    )));
                }
            }
            // A frame contains only the length of the following data.
            0x95 => drop(self.take(8)?),
            b'(' => self.marks.push(self.stack.len()),
            b'N' => self.push(Value::None),
            0x88 => self.push(Value::Bool(true)),
            0x89 => self.push(Value::Bool(false)),
            b'K' => {
                let [value] = self.array()?;
                self.push(Value::Int(value.into()));
            }
            b'M' => {
                let value = u16::from_le_bytes(self.array()?);
                self.push(Value::Int(value.into()));
            }
            b'J' => {
                let value = i32::from_le_bytes(self.array()?);
                self.push(Value::Int(value.into()));
            }
            0x8a => self.long()?,
            b'G' => {
                let value = f64::from_be_bytes(self.array()?);
                self.push(Value::Float(value));
            }
            b'X' => {
                let length = u32::from_le_bytes(self.array()?) as usize;
                self.text(length)?;
            }
            0x8c => {
                let [length] = self.array()?;
                self.text(length.into())?;
            }
            b'B' => {
                let length = u32::from_le_bytes(self.array()?) as usize;
                let bytes = self.take(length)?.to_vec();
                self.push(Value::Bytes(bytes));
            }
            b'C' => {
                let [length] = self.array()?;
                let bytes = self.take(length.into())?.to_vec();
                self.push(Value::Bytes(bytes));
            }
            b')' => self.push(Value::Tuple(Vec::new())),
            b']' => self.push(Value::List(Vec::new())),
            b'}' => self.push(Value::Dict(Vec::new())),
            0x85 => self.tuple(1)?,
            0x86 => self.tuple(2)?,
            0x87 => self.tuple(3)?,
            b't' => {
                let items = self.marked()?;
                self.push(Value::Tuple(items));
            }
            b'a' => {
                let item = self.pop()?;
                self.append(vec![item])?;
            }
            b'e' => {
                let items = self.marked()?;
                self.append(items)?;
            }
            b's' => {
                let value = self.pop()?;
                let key = self.pop()?;
                self.insert(vec![key, value])?;
            }
            b'u' => {
                let items = self.marked()?;
                self.insert(items)?;
            }
            b'q' => {
                let [index] = self.array()?;
                self.put(index.into())?;
            }
            b'r' => {
                let index = u32::from_le_bytes(self.array()?) as usize;
                self.put(index)?;
            }
            0x94 => self.put(self.memo.len())?,
            b'h' => {
                let [index] = self.array()?;
                self.recall(index.into())?;
            }
            b'j' => {
                let index = u32::from_le_bytes(self.array()?) as usize;
                self.recall(index)?;
            }
            b'c' => {
                let module = self.line()?;
                let name = self.line()?;
                self.global(&module, &name)?;
            }
            0x93 => {
                let (name, module) = (self.pop()?, self.pop()?);
                match (self.values[module].clone(), self.values[name].clone()) {
                    (Value::Text(module), Value::Text(name)) => self.global(&module, &name)?,
                    _ => return Err(self.wrong("a global whose name is not a string")),
                }
            }
            b'R' => self.call()?,
            b'Q' => {
                let identifier = self.pop()?;
                self.push(Value::Persistent(identifier));
            }
            b'b' => self.state()?,
            // An object of a class, which becomes opaque.
            0x81 if self.objects => {
                self.pop()?;
                self.pop()?;
                self.push(Value::Opaque);
            }
            b'0' => drop(self.pop()?),
            other => {
                return Err(Error::unsupported(format!(
                    "the pickle has the opcode {other:#04x} at offset {}, which could build any object; only data is supported",
                    self.at - 1
                )));
            }
        }
        Ok(())
    }

    fn take(&mut self, length: usize) -> Result<&[u8], Error> {
        let end = self.at.checked_add(length);
        match end.and_then(|end| self.bytes.get(self.at..end)) {
            Some(taken) => {
                self.at += length;
                Ok(taken)
            }
            None => Err(self.wrong("a premature end")),
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    fn wrong(&self, what: &str) -> Error {
        Error::malformed(format!("the pickle has {what} at offset {}", self.at))
    }

    fn push(&mut self, value: Value) {
        self.values.push(value);
        self.stack.push(self.values.len() - 1);
    }

    /// Most opcodes can pop only values above the last mark. The exceptions are opcodes that remove the mark.
    fn pop(&mut self) -> Result<Id, Error> {
        let floor = self.marks.last().copied().unwrap_or(0);
        if self.stack.len() <= floor {
            return Err(self.wrong("too few values"));
        }
        self.stack.pop().ok_or_else(|| self.wrong("too few values"))
    }

    fn marked(&mut self) -> Result<Vec<Id>, Error> {
        let mark = self.marks.pop().ok_or_else(|| self.wrong("no mark"))?;
        Ok(self.stack.split_off(mark))
    }

    fn tuple(&mut self, length: usize) -> Result<(), Error> {
        let mut items = Vec::with_capacity(length);
        for _ in 0..length {
            items.push(self.pop()?);
        }
        items.reverse();
        self.push(Value::Tuple(items));
        Ok(())
    }

    fn top(&self) -> Result<Id, Error> {
        self.stack.last().copied().ok_or_else(|| self.wrong("too few values"))
    }

    fn append(&mut self, mut items: Vec<Id>) -> Result<(), Error> {
        let list = self.top()?;
        match &mut self.values[list] {
            Value::List(all) => {
                all.append(&mut items);
                Ok(())
            }
            _ => Err(self.wrong("items for a value that is not a list")),
        }
    }

    fn insert(&mut self, items: Vec<Id>) -> Result<(), Error> {
        let dict = self.top()?;
        if !items.len().is_multiple_of(2) {
            return Err(self.wrong("a key without a value"));
        }
        let pairs = items.chunks_exact(2).map(|pair| (pair[0], pair[1]));
        match &mut self.values[dict] {
            Value::Dict(all) => {
                all.extend(pairs);
                Ok(())
            }
            _ => Err(self.wrong("items for a value that is not a dictionary")),
        }
    }

    fn put(&mut self, index: usize) -> Result<(), Error> {
        let value = self.top()?;
        // Writers number the memo consecutively, so an index beyond the number of values is invalid.
        if index > self.values.len() {
            return Err(self.wrong("a memo index out of order"));
        }
        if index >= self.memo.len() {
            self.memo.resize(index + 1, None);
        }
        self.memo[index] = Some(value);
        Ok(())
    }

    fn recall(&mut self, index: usize) -> Result<(), Error> {
        match self.memo.get(index).copied().flatten() {
            Some(value) => {
                self.stack.push(value);
                Ok(())
            }
            None => Err(self.wrong("a memo index that was not stored")),
        }
    }

    fn line(&mut self) -> Result<String, Error> {
        let rest = &self.bytes[self.at..];
        let end = rest.iter().position(|&byte| byte == b'\n');
        let line = end.and_then(|end| std::str::from_utf8(&rest[..end]).ok());
        match line {
            Some(line) => {
                self.at += line.len() + 1;
                Ok(line.to_owned())
            }
            None => Err(self.wrong("an unterminated name")),
        }
    }

    fn text(&mut self, length: usize) -> Result<(), Error> {
        let text = std::str::from_utf8(self.take(length)?).map(str::to_owned);
        match text {
            Ok(text) => {
                self.push(Value::Text(text));
                Ok(())
            }
            Err(_) => Err(self.wrong("a string that is not UTF-8")),
        }
    }

    fn long(&mut self) -> Result<(), Error> {
        let [length] = self.array()?;
        let digits = self.take(length.into())?;
        let negative = digits.last().is_some_and(|last| last & 0x80 != 0);
        let mut wide = if negative { [0xff; 8] } else { [0; 8] };
        let fits = digits.len() <= 8;
        if fits {
            wide[..digits.len()].copy_from_slice(digits);
        }
        if !fits {
            return Err(self.wrong("an integer of more than 64 bits"));
        }
        self.push(Value::Int(i64::from_le_bytes(wide)));
        Ok(())
    }

    fn global(&mut self, module: &str, name: &str) -> Result<(), Error> {
        let full = format!("{module} {name}");
        match GLOBALS.iter().find(|known| **known == full) {
            Some(known) => {
                self.push(Value::Global(known));
                Ok(())
            }
            None if self.objects => {
                self.push(Value::Opaque);
                Ok(())
            }
            None => Err(Error::unsupported(format!(
                "the pickle refers to `{}.{}`, which is not in the list of allowed names; pickles are never executed",
                escape_truncated(module),
                escape_truncated(name)
            ))
            .with_hint("export with torch 2.9 or later, which stores tensors without pickles")),
        }
    }

    fn call(&mut self) -> Result<(), Error> {
        let (arguments, function) = (self.pop()?, self.pop()?);
        match (&self.values[function], &self.values[arguments]) {
            (Value::Global("collections OrderedDict"), Value::Tuple(items)) if items.is_empty() => {
                self.push(Value::Dict(Vec::new()));
            }
            (Value::Global(function), Value::Tuple(_)) => {
                let call = Value::Call(function, arguments);
                self.push(call);
            }
            (Value::Opaque, _) => self.push(Value::Opaque),
            _ => return Err(self.wrong("a call of a value that is not a function")),
        }
        Ok(())
    }

    /// `BUILD`: the state of an ordered dictionary contains only torch's `_metadata`, which is not data.
    fn state(&mut self) -> Result<(), Error> {
        self.pop()?;
        let target = self.top()?;
        match self.values[target] {
            Value::Dict(_) | Value::Opaque => Ok(()),
            _ => Err(Error::unsupported(format!(
                "the pickle sets the state of an object at offset {}; only data is supported",
                self.at
            ))),
        }
    }
}
