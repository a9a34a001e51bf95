//! Types: `tensor<fp16, [1, ?]>`, `list<T, n>`, `tuple<T, U>`, `dict<K, V>`, `state<T>`. A scalar is just the
//! name of its element type; the older dialect writes `tensor<fp16, []>`.

use std::fmt::Write as _;

use coremill_tensor::DType;

use super::Dialect;
use super::cursor::{BufferLayout, Cursor, Result, shortened};
use super::lex::Token;
use crate::ir::{Dim, TensorType, Type};

/// Appends a type. A dimension that is not fixed is written `?`.
pub(super) fn write_type(out: &mut String, ty: &Type, dialect: Dialect) {
    match ty {
        Type::Tensor(tensor) if tensor.shape.is_empty() && dialect == Dialect::V1_3 => {
            out.push_str(tensor.dtype.name());
        }
        Type::Tensor(tensor) => {
            out.push_str("tensor<");
            out.push_str(tensor.dtype.name());
            out.push_str(", [");
            for (index, dim) in tensor.shape.iter().enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                write_dim(out, dim);
            }
            out.push_str("]>");
        }
        Type::List(element, length) => {
            out.push_str("list<");
            write_type(out, element, dialect);
            out.push_str(", ");
            write_dim(out, length);
            out.push('>');
        }
        Type::Tuple(parts) => {
            out.push_str("tuple<");
            for (index, part) in parts.iter().enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                write_type(out, part, dialect);
            }
            out.push('>');
        }
        Type::Dictionary(key, value) => {
            out.push_str("dict<");
            write_type(out, key, dialect);
            out.push_str(", ");
            write_type(out, value, dialect);
            out.push('>');
        }
        Type::State(held) => {
            out.push_str("state<");
            write_type(out, held, dialect);
            out.push('>');
        }
    }
}

fn write_dim(out: &mut String, dim: &Dim) {
    match dim.known() {
        Some(extent) => {
            let _ = write!(out, "{extent}");
        }
        None => out.push('?'),
    }
}

/// Whether a type can start with this word.
pub(super) fn begins_type(word: &str) -> bool {
    matches!(word, "tensor" | "list" | "tuple" | "dict" | "state") || word.parse::<DType>().is_ok()
}

impl Cursor<'_> {
    /// Parses a type.
    pub(super) fn ty(&mut self) -> Result<Type> {
        let Token::Word(word) = self.peek() else { return Err(self.unexpected("a type")) };
        match word {
            "tensor" => {
                self.take()?;
                self.expect('<')?;
                let dtype = self.dtype()?;
                self.expect(',')?;
                let mut shape = Vec::new();
                self.list('[', ']', |cursor| {
                    shape.push(cursor.dim()?);
                    Ok(())
                })?;
                self.expect('>')?;
                Ok(Type::Tensor(TensorType { dtype, shape }))
            }
            "tensor_buffer" if self.peek_second() == Token::Punctuation('<') => self.buffer(),
            "list" => self.nested(|cursor| {
                cursor.take()?;
                cursor.expect('<')?;
                let element = cursor.ty()?;
                cursor.expect(',')?;
                let length = cursor.dim()?;
                cursor.expect('>')?;
                Ok(Type::List(Box::new(element), length))
            }),
            "tuple" => self.nested(|cursor| {
                cursor.take()?;
                let mut parts = Vec::new();
                cursor.list('<', '>', |cursor| {
                    parts.push(cursor.ty()?);
                    Ok(())
                })?;
                Ok(Type::Tuple(parts))
            }),
            "dict" => self.nested(|cursor| {
                cursor.take()?;
                cursor.expect('<')?;
                let key = cursor.ty()?;
                cursor.expect(',')?;
                let value = cursor.ty()?;
                cursor.expect('>')?;
                Ok(Type::Dictionary(Box::new(key), Box::new(value)))
            }),
            "state" => self.nested(|cursor| {
                cursor.take()?;
                cursor.expect('<')?;
                let held = cursor.ty()?;
                cursor.expect('>')?;
                Ok(Type::State(Box::new(held)))
            }),
            _ => Ok(Type::scalar(self.dtype()?)),
        }
    }

    /// Parses `tensor_buffer<fp16, shape=[1, 4], strides=[32, 1], interleave_factors=[1, 1]>`. Returns the
    /// type of the tensor and stores the other properties for [`Cursor::take_layout`].
    fn buffer(&mut self) -> Result<Type> {
        self.take()?;
        self.expect('<')?;
        let dtype = self.dtype()?;
        let mut shape = None;
        let mut layout = BufferLayout::new();
        while self.accept(',')? {
            let Token::Word(name) = self.peek() else {
                return Err(self.unexpected("`shape`, `strides` or another part of the layout"));
            };
            self.take()?;
            self.expect('=')?;
            let mut dims = Vec::new();
            self.list('[', ']', |cursor| {
                dims.push(cursor.dim()?);
                Ok(())
            })?;
            if name == "shape" {
                shape = Some(dims);
            } else {
                layout.insert(name.to_owned(), dims.iter().map(|dim| dim.known()).collect());
            }
        }
        self.expect('>')?;
        let Some(shape) = shape else {
            return Err(self.error("a `tensor_buffer` requires `shape`".to_owned()));
        };
        self.layout = Some(layout);
        Ok(Type::Tensor(TensorType { dtype, shape }))
    }

    fn dtype(&mut self) -> Result<DType> {
        let Token::Word(word) = self.peek() else {
            return Err(self.unexpected("an element type"));
        };
        let Ok(dtype) = word.parse() else {
            let known: Vec<_> = DType::ALL.iter().map(|dtype| dtype.name()).collect();
            return Err(self
                .error(format!("`{}` is not a type", shortened(word)))
                .with_hint(format!("element types are {}", known.join(", "))));
        };
        self.take()?;
        Ok(dtype)
    }

    fn dim(&mut self) -> Result<Dim> {
        if self.accept('?')? {
            return Ok(Dim::Unknown);
        }
        let extent = match self.peek() {
            Token::Number(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                digits.parse().ok()
            }
            _ => None,
        };
        let Some(extent) = extent else {
            return Err(self.unexpected("a dimension, which is a number below 2^64 or `?`"));
        };
        self.take()?;
        Ok(Dim::Known(extent))
    }
}
