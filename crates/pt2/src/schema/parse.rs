//! Parser of schemas: `aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor`.

use super::{Kind, Literal, Parameter, Return, Schema};
use crate::limits::MAX_REPEATED_DEFAULT;
use crate::scalar::{MemoryFormat, ScalarType};

/// Returns `None` on a syntax error. The text is part of this crate, so the reason would never be shown.
pub(super) fn parse(line: &str) -> Option<Schema> {
    let (name, rest) = line.split_once('(')?;
    let mut cursor = Cursor { rest };
    let mut arguments = Vec::new();
    let mut keyword_only = false;
    while !cursor.take(")") {
        if !arguments.is_empty() || keyword_only {
            // The star is not an argument, but a comma follows it.
            cursor.take(",").then_some(())?;
        }
        if cursor.take("*") {
            keyword_only = true;
            continue;
        }
        arguments.push(cursor.parameter(keyword_only)?);
    }
    cursor.take("->").then_some(())?;
    let mut returns = Vec::new();
    if cursor.take("(") {
        while !cursor.take(")") {
            if !returns.is_empty() {
                cursor.take(",").then_some(())?;
            }
            returns.push(cursor.result()?);
        }
    } else {
        returns.push(cursor.result()?);
    }
    cursor.rest.trim().is_empty().then_some(())?;
    Some(Schema { name: name.to_owned(), arguments, returns })
}

struct Cursor<'a> {
    rest: &'a str,
}

/// A type with its alias annotation.
struct AnnotatedType {
    kind: Kind,
    mutated: bool,
    aliased: bool,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, token: &str) -> bool {
        self.rest = self.rest.trim_start();
        match self.rest.strip_prefix(token) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn word(&mut self) -> Option<&'a str> {
        self.rest = self.rest.trim_start();
        let named = |c: char| c == '_' || c == '.' || c.is_ascii_alphanumeric();
        let end = self.rest.find(|c| !named(c)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        (!word.is_empty()).then_some(word)
    }

    fn kind(&mut self) -> Option<AnnotatedType> {
        let mut kind = match self.word()? {
            "Tensor" => Kind::Tensor,
            "int" | "SymInt" => Kind::Int,
            "float" | "SymFloat" => Kind::Float,
            "bool" | "SymBool" => Kind::Bool,
            "Scalar" => Kind::Scalar,
            "complex" => Kind::Complex,
            "str" => Kind::Text,
            "ScalarType" => Kind::ScalarType,
            "MemoryFormat" => Kind::MemoryFormat,
            "Layout" => Kind::Layout,
            "Device" => Kind::Device,
            other => Kind::Other(other.to_owned()),
        };
        let (mut mutated, mut aliased) = (false, false);
        loop {
            if self.rest.starts_with('(') {
                let (alias, rest) = self.rest[1..].split_once(')')?;
                mutated |= alias.contains('!');
                aliased = true;
                self.rest = rest;
            } else if self.rest.starts_with('[') {
                let (length, rest) = self.rest[1..].split_once(']')?;
                let length = if length.is_empty() { None } else { Some(length.parse().ok()?) };
                kind = Kind::List(Box::new(kind), length);
                self.rest = rest;
            } else if self.rest.starts_with('?') {
                kind = Kind::Optional(Box::new(kind));
                self.rest = &self.rest[1..];
            } else {
                return Some(AnnotatedType { kind, mutated, aliased });
            }
        }
    }

    fn parameter(&mut self, keyword_only: bool) -> Option<Parameter> {
        let AnnotatedType { kind, mutated, aliased } = self.kind()?;
        let name = self.word()?.to_owned();
        let default = if self.take("=") { Some(self.default(&kind)?) } else { None };
        Some(Parameter { name, kind, default, keyword_only, mutated, aliased })
    }

    fn result(&mut self) -> Option<Return> {
        let AnnotatedType { kind, mutated, aliased } = self.kind()?;
        let named = self.rest.starts_with(' ');
        if named {
            // Several results have names, which are not used.
            self.word();
        }
        Some(Return { kind, mutated, aliased })
    }

    fn default(&mut self, kind: &Kind) -> Option<Literal> {
        let plain = match kind {
            Kind::Optional(inner) => inner,
            other => other,
        };
        if self.take("[") {
            let Kind::List(item, _) = plain else { return None };
            let mut items = Vec::new();
            while !self.take("]") {
                if !items.is_empty() {
                    self.take(",").then_some(())?;
                }
                items.push(self.default(item)?);
            }
            return Some(Literal::List(items));
        }
        if self.take("\"") {
            return self.text();
        }
        self.rest = self.rest.trim_start();
        let end = self.rest.find([',', ')', ']'])?;
        let (text, rest) = self.rest.split_at(end);
        self.rest = rest;
        if text == "None" {
            return Some(Literal::None);
        }
        if let Kind::List(item, Some(length)) = plain {
            let value = literal(text, item)?;
            let length = (*length).min(MAX_REPEATED_DEFAULT) as usize;
            return Some(Literal::List(vec![value; length]));
        }
        literal(text, plain)
    }

    /// Text after the opening quote.
    fn text(&mut self) -> Option<Literal> {
        let mut text = String::new();
        let mut characters = self.rest.char_indices();
        while let Some((at, character)) = characters.next() {
            match character {
                '"' => {
                    self.rest = &self.rest[at + 1..];
                    return Some(Literal::Text(text));
                }
                '\\' => text.push(match characters.next()?.1 {
                    'n' => '\n',
                    't' => '\t',
                    'r' => '\r',
                    'f' => '\u{c}',
                    'v' => '\u{b}',
                    other => other,
                }),
                other => text.push(other),
            }
        }
        None
    }
}

fn literal(text: &str, kind: &Kind) -> Option<Literal> {
    let integer = || text.parse::<i64>().ok();
    Some(match kind {
        Kind::ScalarType => Literal::ScalarType(ScalarType::from_c10(integer()?)?),
        Kind::MemoryFormat => Literal::MemoryFormat(MemoryFormat::from_c10(integer()?)?),
        Kind::Float => Literal::Float(text.parse().ok()?),
        _ => match text {
            "True" => Literal::Bool(true),
            "False" => Literal::Bool(false),
            _ => match integer() {
                Some(value) => Literal::Int(value),
                None => Literal::Float(text.parse().ok()?),
            },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_operator_schemas() {
        let schema = parse(
            "aten::conv2d(Tensor input, Tensor? bias=None, SymInt[2] stride=1, int[] axes=[0, -1], *, \
             Scalar alpha=1, str mode=\"a\\\"b\", ScalarType? dtype=4, float eps=1e-5) -> (Tensor(a!), Tensor[] rest)",
        )
        .expect("a schema");
        let defaults: Vec<_> =
            schema.arguments.iter().map(|argument| argument.default.clone()).collect();
        let ints = |values: &[i64]| {
            Some(Literal::List(values.iter().copied().map(Literal::Int).collect()))
        };
        assert_eq!(
            defaults,
            [
                None,
                Some(Literal::None),
                ints(&[1, 1]),
                ints(&[0, -1]),
                Some(Literal::Int(1)),
                Some(Literal::Text("a\"b".to_owned())),
                Some(Literal::ScalarType(ScalarType::Int64)),
                Some(Literal::Float(1e-5)),
            ]
        );
        assert!(schema.arguments[4].keyword_only && !schema.arguments[3].keyword_only);
        assert!(schema.returns[0].mutated && !schema.returns[1].mutated);
        assert_eq!(schema.returns[1].kind, Kind::List(Box::new(Kind::Tensor), None));
        assert!(!schema.mutates());
        assert!(parse("aten::relu_(Tensor(a!) self) -> Tensor(a!)").expect("a schema").mutates());
        assert_eq!(parse("aten::relu(Tensor self"), None);
    }
}
