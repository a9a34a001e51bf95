use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};

use super::cursor::{BufferLayout, Cursor, Result, shortened};
use super::lex::Token;
use super::names::is_plain;
use super::types::begins_type;
use super::values::Values;
use super::{Error, OpSpan, Spans, Weights, analytics};
use crate::ir::{
    Attributes, Binding, BlockId, Constant, Function, Input, Name, Op, Operator, Opset, Program,
    Type, ValueId,
};
use crate::limits;
use crate::ops::OpKind;

/// Parses a program.
///
/// `weights` reads the elements of weights in files; [`NoWeights`](super::NoWeights) keeps only their
/// locations.
pub fn parse(text: &str, weights: &dyn Weights) -> std::result::Result<Program, Error> {
    parse_with_spans(text, weights).map(|(program, _)| program)
}

/// Parses a program, and returns the positions of its functions and operations in the text.
pub fn parse_with_spans(
    text: &str,
    weights: &dyn Weights,
) -> std::result::Result<(Program, Spans), Error> {
    parse_ordered(text, weights, &|_, _| None)
}

/// Returns the position of an input (second argument) among the inputs of a function (first argument). Inputs
/// with `None` come last.
pub type InputOrder<'o> = &'o dyn Fn(&str, &str) -> Option<usize>;

/// Parses a program, and orders the inputs of its functions by `order`.
pub fn parse_ordered(
    text: &str,
    weights: &dyn Weights,
    order: InputOrder<'_>,
) -> std::result::Result<(Program, Spans), Error> {
    let mut parser = Parser {
        cursor: Cursor::new(text)?,
        order,
        values: Values::new(weights),
        names: HashMap::new(),
        counts: Counts::default(),
        layouts: BTreeMap::new(),
        spans: Spans::default(),
    };
    let program = parser.program()?;
    let mut spans = parser.spans;
    // An operation gets its id after its blocks were parsed, so the operations of its blocks come first.
    spans.ops.sort_unstable_by_key(|span| span.range.start);
    Ok((program, spans))
}

struct Parser<'t, 'w> {
    cursor: Cursor<'t>,
    order: InputOrder<'w>,
    values: Values<'w>,
    /// Visible values: the values of the enclosing blocks that were defined so far.
    names: HashMap<String, ValueId>,
    counts: Counts,
    /// Layouts of the function's buffers, by value name.
    layouts: BTreeMap<String, BufferLayout>,
    spans: Spans,
}

/// Number of operations, values and blocks parsed so far, in all functions. The limits are the same as for
/// packages, so that every parsed program can be written.
#[derive(Default)]
struct Counts {
    ops: usize,
    values: usize,
    blocks: usize,
}

impl Parser<'_, '_> {
    fn program(&mut self) -> Result<Program> {
        self.cursor.expect_word("program")?;
        self.cursor.expect('(')?;
        match self.cursor.peek() {
            Token::Number("1.0" | "1.1" | "1.2" | "1.3") => self.cursor.take()?,
            _ => return Err(self.cursor.unexpected("a version of MIL text from 1.0 to 1.3")),
        };
        self.cursor.expect(')')?;
        let mut program = Program { attributes: self.attributes()?, ..Program::default() };
        self.cursor.expect('{')?;
        while !self.cursor.accept('}')? {
            let offset = self.cursor.offset();
            let mut functions = program.functions.len();
            count(&self.cursor, &mut functions, limits::FUNCTIONS, "functions")?;
            let function = self.function()?;
            if program.function(&function.name).is_some() {
                let message =
                    format!("function `{}` is already defined", shortened(&function.name));
                return Err(self.cursor.error_at(offset, message));
            }
            program.functions.push(function);
        }
        if self.cursor.peek() != Token::End {
            return Err(self.cursor.unexpected("the end of the text"));
        }
        Ok(program)
    }

    fn function(&mut self) -> Result<Function> {
        let start = self.cursor.offset();
        if self.cursor.peek() != Token::Word("func") {
            return Err(self.cursor.unexpected("`func` or `}`"));
        }
        self.cursor.take()?;
        let name = self.name("the name of a function")?;
        self.cursor.expect('<')?;
        let opset = self.opset()?;
        self.cursor.expect('>')?;

        self.names.clear();
        self.layouts.clear();
        let mut function = Function::new(name, opset);
        let body = function.body;
        let mut scope = Vec::new();
        let mut inputs = self.block_inputs()?;
        let order = self.order;
        inputs.sort_by_key(|(_, name)| order(&function.name, name).unwrap_or(usize::MAX));
        self.add_inputs(&mut function, body, inputs, &mut scope);
        function.attributes = self.attributes()?;
        self.spans.functions.push(start..self.cursor.end());
        self.block_body(&mut function, body, &mut scope)?;
        self.cursor.expect_semicolon()?;
        if !self.layouts.is_empty() {
            function.attributes.insert(analytics::LAYOUTS, analytics::layouts(&self.layouts));
        }
        Ok(function)
    }

    fn opset(&mut self) -> Result<Opset> {
        let opset = match self.cursor.peek() {
            // `ios19` was the name of the opset before iOS 19 was renamed to iOS 26.
            Token::Word("ios19") => Some(Opset::Ios26),
            Token::Word(tag) => Opset::from_tag(tag),
            _ => None,
        };
        let Some(opset) = opset else {
            return Err(self.cursor.unexpected("an opset: ios15, ios16, ios17, ios18 or ios26"));
        };
        self.cursor.take()?;
        Ok(opset)
    }

    fn block(&mut self, function: &mut Function) -> Result<BlockId> {
        count(&self.cursor, &mut self.counts.blocks, limits::BLOCKS, "blocks")?;
        let block = function.add_block();
        let mut scope = Vec::new();
        let inputs = self.block_inputs()?;
        self.add_inputs(function, block, inputs, &mut scope);
        function.block_mut(block).attributes = self.attributes()?;
        self.block_body(function, block, &mut scope)?;
        for name in scope {
            self.names.remove(&name);
        }
        Ok(block)
    }

    fn block_inputs(&mut self) -> Result<Vec<(Type, String)>> {
        let (cursor, names, counts) = (&mut self.cursor, &self.names, &mut self.counts);
        let layouts = &mut self.layouts;
        let mut inputs: Vec<(Type, String)> = Vec::new();
        let mut seen = HashSet::new();
        cursor.list('(', ')', |cursor| {
            count(cursor, &mut counts.values, limits::VALUES, "values")?;
            let ty = cursor.ty()?;
            let layout = cursor.take_layout();
            let (offset, name) = new_name(cursor, names)?;
            layouts.extend(layout.map(|layout| (name.clone(), layout)));
            if !seen.insert(name.clone()) {
                return Err(second_value(cursor, offset, &name));
            }
            inputs.push((ty, name));
            Ok(())
        })?;
        Ok(inputs)
    }

    fn add_inputs(
        &mut self,
        function: &mut Function,
        block: BlockId,
        inputs: Vec<(Type, String)>,
        scope: &mut Vec<String>,
    ) {
        for (ty, name) in inputs {
            let value = function.add_input(block, name.clone(), ty);
            self.names.insert(name.clone(), value);
            scope.push(name);
        }
    }

    fn block_body(
        &mut self,
        function: &mut Function,
        block: BlockId,
        scope: &mut Vec<String>,
    ) -> Result<()> {
        self.cursor.expect('{')?;
        while !self.cursor.accept('}')? {
            self.op(function, block, scope)?;
        }
        self.cursor.expect_arrow()?;
        let (cursor, names) = (&mut self.cursor, &self.names);
        let mut outputs = Vec::new();
        cursor.list('(', ')', |cursor| {
            outputs.push(known_value(cursor, names)?);
            Ok(())
        })?;
        function.block_mut(block).outputs = outputs;
        Ok(())
    }

    fn op(
        &mut self,
        function: &mut Function,
        block: BlockId,
        scope: &mut Vec<String>,
    ) -> Result<()> {
        count(&self.cursor, &mut self.counts.ops, limits::OPS, "operations")?;
        let start = self.cursor.offset();
        // A statement without outputs is a bare call; other statements start with a type.
        let mut outputs: Vec<(String, Type)> = Vec::new();
        let mut offsets = Vec::new();
        let call = match (self.cursor.peek(), self.cursor.peek_second()) {
            (Token::Word(_) | Token::Name(_), Token::Punctuation('(')) => true,
            (Token::Word(word), Token::Punctuation('<')) => {
                !begins_type(word) && word != "tensor_buffer"
            }
            (Token::Name(_), Token::Punctuation('<')) => true,
            _ => false,
        };
        if !call {
            if !matches!(self.cursor.peek(), Token::Word(_)) {
                return Err(self.cursor.unexpected("an operation or `}`"));
            }
            loop {
                count(&self.cursor, &mut self.counts.values, limits::VALUES, "values")?;
                let ty = self.cursor.ty()?;
                let layout = self.cursor.take_layout();
                let (offset, name) = new_name(&mut self.cursor, &self.names)?;
                self.layouts.extend(layout.map(|layout| (name.clone(), layout)));
                outputs.push((name, ty));
                offsets.push(offset);
                if !self.cursor.accept(',')? {
                    break;
                }
            }
            self.cursor.expect('=')?;
        }

        let name = self.name("the name of an operation")?;
        let opset = match self.cursor.accept('<')? {
            true => Some(self.opset()?),
            false => None,
        };
        if opset.is_some() {
            self.cursor.expect('>')?;
        }
        let is_conversion = analytics::is_conversion(&name);
        let operator = match is_conversion {
            true => Operator::Known(OpKind::Identity),
            false => Operator::from_name(&name),
        };
        let kind = match operator {
            Operator::Known(kind) => Some(kind),
            Operator::Unknown(_) => None,
        };
        let mut inputs = self.inputs(kind)?;
        if is_conversion {
            inputs.iter_mut().for_each(|input| input.name = Cow::Borrowed("x"));
        }
        let mut attributes = self.attributes()?;
        if let Some(opset) = opset.filter(|&opset| opset != function.opset) {
            attributes.insert(analytics::OPSET, Constant::string(opset.tag()));
        }
        let range = start..self.cursor.end();
        let mut blocks = Vec::new();
        while self.cursor.peek() == Token::Punctuation('(') {
            // `nested` borrows only the cursor, so change the depth directly.
            self.cursor.enter()?;
            blocks.push(self.block(function)?);
            self.cursor.leave();
        }
        self.cursor.expect_semicolon()?;

        let names: Vec<String> = outputs.iter().map(|(name, _)| name.clone()).collect();
        let op = Op {
            operator,
            inputs,
            outputs: Vec::new(),
            blocks,
            attributes,
            unknown: Default::default(),
        };
        let op = function.add_op(block, op, outputs);
        // The function is added to the list after it was parsed, but its header was added before.
        let index = self.spans.functions.len() - 1;
        self.spans.ops.push(OpSpan { function: index, op, range });
        let values = &function.op(op).outputs;
        for ((name, &value), offset) in names.into_iter().zip(values).zip(offsets) {
            if self.names.insert(name.clone(), value).is_some() {
                return Err(second_value(&self.cursor, offset, &name));
            }
            scope.push(name);
        }
        Ok(())
    }

    /// Parses the arguments of an operation.
    fn inputs(&mut self, kind: Option<OpKind>) -> Result<Vec<Input>> {
        let mut inputs: Vec<(Input, usize)> = Vec::new();
        let (cursor, values, names) = (&mut self.cursor, &mut self.values, &self.names);
        cursor.list('(', ')', |cursor| {
            let offset = cursor.offset();
            let name = key(cursor)?;
            cursor.expect('=')?;
            let mut bindings = Vec::new();
            if cursor.peek() == Token::Punctuation('(') {
                cursor.list('(', ')', |cursor| {
                    bindings.push(binding(cursor, values, names)?);
                    Ok(())
                })?;
            } else {
                bindings.push(binding(cursor, values, names)?);
            }
            inputs.push((Input { name: parameter_name(kind, name), bindings }, offset));
            Ok(())
        })?;
        inputs.sort_by(|left, right| (&left.0.name, left.1).cmp(&(&right.0.name, right.1)));
        let twice = inputs.windows(2).find(|pair| pair[0].0.name == pair[1].0.name);
        if let Some([_, (input, offset)]) = twice {
            let message = format!("`{}` is bound twice", shortened(&input.name));
            return Err(cursor.error_at(*offset, message));
        }
        Ok(inputs.into_iter().map(|(input, _)| input).collect())
    }

    /// Parses optional attributes: `[name = value, ...]`.
    fn attributes(&mut self) -> Result<Attributes> {
        let mut attributes = Vec::new();
        if self.cursor.peek() != Token::Punctuation('[') {
            return Ok(Attributes::default());
        }
        let (cursor, values) = (&mut self.cursor, &mut self.values);
        cursor.list('[', ']', |cursor| {
            let offset = cursor.offset();
            let name = key(cursor)?;
            cursor.expect('=')?;
            attributes.push((name, values.typed(cursor)?, offset));
            Ok(())
        })?;
        // Sort first, so that each attribute is inserted at the end.
        attributes.sort_by(|left, right| (&left.0, left.2).cmp(&(&right.0, right.2)));
        let mut sorted = Attributes::default();
        for (name, constant, offset) in attributes {
            let message = format!("attribute `{}` is already set", shortened(&name));
            if sorted.insert(name, constant).is_some() {
                return Err(self.cursor.error_at(offset, message));
            }
        }
        Ok(sorted)
    }

    fn name(&mut self, what: &str) -> Result<String> {
        name(&mut self.cursor, what)
    }
}

/// Counts an item of which a program may have at most `limit`.
fn count(cursor: &Cursor<'_>, counter: &mut usize, limit: usize, what: &str) -> Result<()> {
    *counter += 1;
    if *counter > limit {
        return Err(cursor.limit(format!("the program has more than {limit} {what}")));
    }
    Ok(())
}

/// Parses the binding of an argument.
fn binding(
    cursor: &mut Cursor<'_>,
    values: &mut Values<'_>,
    names: &HashMap<String, ValueId>,
) -> Result<Binding> {
    match cursor.peek() {
        Token::Word(word) if begins_type(word) => values.typed(cursor).map(Binding::Literal),
        Token::Word(_) if cursor.peek_second() == Token::Punctuation('(') => {
            // This looks like a literal of an unknown type; the parser of types reports it.
            values.typed(cursor).map(Binding::Literal)
        }
        _ => known_value(cursor, names).map(Binding::Value),
    }
}

/// Parses the name of a value that must be defined.
fn known_value(cursor: &mut Cursor<'_>, names: &HashMap<String, ValueId>) -> Result<ValueId> {
    let offset = cursor.offset();
    let name = name(cursor, "a value")?;
    names.get(&name).copied().ok_or_else(|| {
        let message = format!("value `{}` is not defined before this use", shortened(&name));
        cursor.error_at(offset, message)
    })
}

/// Parses the name of a new value; returns its offset and the name.
fn new_name(cursor: &mut Cursor<'_>, names: &HashMap<String, ValueId>) -> Result<(usize, String)> {
    let offset = cursor.offset();
    let name = name(cursor, "the name of a value")?;
    if names.contains_key(&name) {
        return Err(second_value(cursor, offset, &name));
    }
    Ok((offset, name))
}

fn second_value(cursor: &Cursor<'_>, offset: usize, name: &str) -> Error {
    cursor.error_at(offset, format!("value `{}` is already defined", shortened(name)))
}

/// Parses a name, which may be quoted.
fn name(cursor: &mut Cursor<'_>, what: &str) -> Result<String> {
    let name = match cursor.peek() {
        Token::Word(word) if is_plain(word) => word.to_owned(),
        Token::Word(word) => {
            return Err(cursor
                .error(format!("expected {what}, found the reserved word `{word}`"))
                .with_hint(format!("to use it as a name, put it in backticks: `{word}`")));
        }
        Token::Name(escaped) => cursor.unescaped(escaped)?,
        _ => return Err(cursor.unexpected(what)),
    };
    cursor.take()?;
    Ok(name)
}

/// Parses the name of a parameter or an attribute.
fn key(cursor: &mut Cursor<'_>) -> Result<String> {
    let key = match cursor.peek() {
        Token::Word(word) => word.to_owned(),
        Token::Name(escaped) => cursor.unescaped(escaped)?,
        _ => return Err(cursor.unexpected("a name")),
    };
    cursor.take()?;
    Ok(key)
}

/// The name of a parameter, borrowed from the op table if it has the parameter.
fn parameter_name(kind: Option<OpKind>, name: String) -> Name {
    let mut rows = kind.map_or(&[][..], OpKind::rows).iter();
    let known = rows.find_map(|row| row.parameter(&name));
    known.map_or(Cow::Owned(name), |parameter| Cow::Borrowed(parameter.name))
}
