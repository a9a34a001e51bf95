use std::borrow::Cow;
use std::collections::HashMap;

use super::constant::{constant, ty};
use super::{Budget, Result, count, missing};
use crate::package::error::{Error, ErrorKind, shortened};
use crate::package::wire::{Field, Reader, entry, malformed, map_entry, unknown_field};
use coremill_mil::ir::{
    Attributes, Binding, BlockId, Constant, Function, Input, Name, Op, Operator, Opset, Program,
    Type, UnknownFields, Value, ValueId,
};
use coremill_mil::limits;
use coremill_mil::ops::OpKind;

/// Version of programs; there is only one.
const PROGRAM_VERSION: i64 = 1;

/// Decodes a program. Its functions are sorted by name, because files store them in no particular order.
pub(super) fn program(mut reader: Reader<'_>, budget: &mut Budget) -> Result<Program> {
    let start = reader.offset();
    let mut program = Program::default();
    let (mut version, mut attributes) = (0, Vec::new());
    while let Some(field) = reader.next()? {
        match field.number {
            1 => version = field.int64("version")?,
            2 => {
                let (name, value) = map_entry(&field, "functions")?;
                let value = value.ok_or_else(|| missing("a function", field.offset))?;
                budget.consume_budget::<Function>(name.len(), field.offset)?;
                let known = &mut program.functions;
                count(&mut known.len(), limits::FUNCTIONS, "functions", field.offset)?;
                let reader = value.message("functions")?;
                let found = function(name, reader, budget);
                known.push(found.map_err(|error| error.within(entry("functions", name)))?);
            }
            3 => {
                let text = field.string("docString")?;
                budget.consume_budget::<()>(text.len(), field.offset)?;
                program.documentation = text.to_owned();
            }
            4 => attribute(&field, &mut attributes, budget)?,
            _ => keep(&field, &mut program.unknown, budget)?,
        }
    }
    if version != PROGRAM_VERSION {
        let message = format!("the program must have version {PROGRAM_VERSION}, got {version}");
        return Err(Error::new(ErrorKind::Unsupported, message).at(start));
    }
    program.attributes = sorted(attributes)?;
    program.functions.sort_by(|left, right| left.name.cmp(&right.name));
    let twice = program.functions.windows(2).find(|pair| pair[0].name == pair[1].name);
    if let Some([function, _]) = twice {
        let message = format!("two functions are named `{}`", shortened(&function.name));
        return Err(malformed(message, start));
    }
    Ok(program)
}

fn function(name: &str, mut reader: Reader<'_>, budget: &mut Budget) -> Result<Function> {
    let start = reader.offset();
    let (mut opset, mut attributes) = (None, Vec::new());
    let (mut inputs, mut specializations) = (Vec::new(), Vec::new());
    let mut unknown = UnknownFields::default();
    while let Some(field) = reader.next()? {
        match field.number {
            1 => inputs.push(field),
            2 => field.once(&mut opset, "opset", field.string("opset")?)?,
            3 => {
                let (key, value) = map_entry(&field, "block_specializations")?;
                specializations.push((key, value, field));
            }
            4 => attribute(&field, &mut attributes, budget)?,
            _ => keep(&field, &mut unknown, budget)?,
        }
    }
    let text = opset.ok_or_else(|| missing("`opset`", start))?;
    let opset = Opset::from_name(text).ok_or_else(|| {
        let known: Vec<String> =
            Opset::ALL.iter().map(|opset| format!("`{}`", opset.name())).collect();
        let message = format!(
            "unknown opset `{}`; the known opsets are {}",
            shortened(text),
            known.join(", ")
        );
        Error::new(ErrorKind::Unsupported, message).at(start)
    })?;

    let mut function = Function::new(name, opset);
    function.attributes = sorted(attributes)?;
    let mut body = None;
    for (key, value, field) in specializations {
        if key == opset.name() {
            let value = value.ok_or_else(|| missing("a block", field.offset))?;
            field.once(&mut body, "the block of the opset", value)?;
        } else {
            // Blocks for other opsets are kept unchanged.
            keep(&field, &mut unknown, budget)?;
        }
    }
    function.unknown = unknown;
    let segment = entry("block_specializations", text);
    let body = body.ok_or_else(|| {
        malformed(format!("the function has no block for its opset `{text}`"), start)
    })?;
    let mut decoder = FunctionDecoder { function, names: HashMap::new(), budget };
    let block = decoder.function.body;
    decoder.inputs(block, &inputs, &mut Vec::new())?;
    let reader = body.message("block_specializations")?;
    decoder.block(block, reader, 1).map_err(|error| error.within(segment))?;
    Ok(decoder.function)
}

struct FunctionDecoder<'a, 'b> {
    function: Function,
    /// The values visible at the current position.
    names: HashMap<&'a str, ValueId>,
    budget: &'b mut Budget,
}

impl<'a> FunctionDecoder<'a, '_> {
    fn block(&mut self, block: BlockId, mut reader: Reader<'a>, depth: u32) -> Result<()> {
        let start = reader.offset();
        if depth > limits::BLOCK_DEPTH {
            let message = format!("blocks are nested deeper than {}", limits::BLOCK_DEPTH);
            return Err(Error::new(ErrorKind::Limit, message).at(start));
        }
        self.budget.consume_budget::<coremill_mil::ir::Block>(0, start)?;
        count(&mut self.budget.blocks, limits::BLOCKS, "blocks", start)?;
        let (mut inputs, mut outputs, mut ops) = (Vec::new(), Vec::new(), Vec::new());
        let mut attributes = Vec::new();
        let mut unknown = UnknownFields::default();
        while let Some(field) = reader.next()? {
            match field.number {
                1 => inputs.push(field),
                2 => outputs.push(field),
                3 => {
                    self.budget.consume_budget::<Op>(0, field.offset)?;
                    count(&mut self.budget.ops, limits::OPS, "operations", field.offset)?;
                    ops.push(field);
                }
                4 => attribute(&field, &mut attributes, self.budget)?,
                _ => keep(&field, &mut unknown, self.budget)?,
            }
        }
        self.function.block_mut(block).attributes = sorted(attributes)?;
        self.function.block_mut(block).unknown = unknown;
        if let (1, Some(field)) = (depth, inputs.first()) {
            let message = "the body of a function has inputs of its own, which is not supported";
            return Err(Error::new(ErrorKind::Unsupported, message).at(field.offset));
        }

        let mut scope = Vec::new();
        self.inputs(block, &inputs, &mut scope)?;
        for (index, field) in ops.iter().enumerate() {
            let reader = field.message("operations")?;
            self.op(block, reader, depth, &mut scope)
                .map_err(|error| error.within(entry("operations", index)))?;
        }
        for field in outputs {
            let name = field.name("outputs")?;
            self.budget.consume_budget::<ValueId>(0, field.offset)?;
            let value = self.known(name, field.offset).map_err(|e| e.within("outputs"))?;
            self.function.block_mut(block).outputs.push(value);
        }
        for name in scope {
            self.names.remove(name);
        }
        Ok(())
    }

    fn inputs(
        &mut self,
        block: BlockId,
        fields: &[Field<'a>],
        scope: &mut Vec<&'a str>,
    ) -> Result<()> {
        for (index, field) in fields.iter().enumerate() {
            let within = |error: Error| error.within(entry("inputs", index));
            let (name, ty) = self.named_type(field, "inputs").map_err(within)?;
            let value = self.function.add_input(block, name, ty);
            self.define(name, value, field.offset, scope).map_err(within)?;
        }
        Ok(())
    }

    fn op(
        &mut self,
        block: BlockId,
        mut reader: Reader<'a>,
        depth: u32,
        scope: &mut Vec<&'a str>,
    ) -> Result<()> {
        let start = reader.offset();
        let mut operator = None;
        let (mut inputs, mut outputs, mut blocks) = (Vec::new(), Vec::new(), Vec::new());
        let mut attributes = Vec::new();
        let mut unknown = UnknownFields::default();
        while let Some(field) = reader.next()? {
            match field.number {
                1 => field.once(&mut operator, "type", field.name("type")?)?,
                2 => {
                    let (name, value) = map_entry(&field, "inputs")?;
                    count(&mut inputs.len(), limits::ENTRIES, "arguments", field.offset)?;
                    self.budget.consume_budget::<Input>(name.len(), field.offset)?;
                    let bindings = match value {
                        Some(value) => self
                            .bindings(value.message("inputs")?)
                            .map_err(|error| error.within(entry("inputs", name)))?,
                        None => Vec::new(),
                    };
                    inputs.push((name, bindings, field.offset));
                }
                3 => outputs.push(field),
                4 => blocks.push(field),
                5 => attribute(&field, &mut attributes, self.budget)?,
                _ => keep(&field, &mut unknown, self.budget)?,
            }
        }
        let operator = operator.filter(|name| !name.is_empty());
        let operator = operator.ok_or_else(|| missing("`type`", start))?;
        let operator = Operator::from_name(operator);
        let kind = match operator {
            Operator::Known(kind) => Some(kind),
            Operator::Unknown(_) => None,
        };

        inputs.sort_by(|left, right| left.0.cmp(right.0));
        let twice = inputs.windows(2).find(|pair| pair[0].0 == pair[1].0);
        if let Some([(name, ..), (.., offset)]) = twice {
            return Err(malformed(format!("`{}` is bound twice", shortened(name)), *offset));
        }
        let inputs = inputs
            .into_iter()
            .map(|(name, bindings, _)| Input { name: parameter_name(kind, name), bindings })
            .collect();

        let mut nested = Vec::new();
        for (index, field) in blocks.iter().enumerate() {
            let reader = field.message("blocks")?;
            let inner = self.function.add_block();
            self.block(inner, reader, depth + 1)
                .map_err(|error| error.within(entry("blocks", index)))?;
            nested.push(inner);
        }

        let mut declared = Vec::new();
        for (index, field) in outputs.iter().enumerate() {
            let output = self.named_type(field, "outputs");
            declared.push(output.map_err(|error| error.within(entry("outputs", index)))?);
        }
        let op = Op {
            operator,
            inputs,
            outputs: Vec::new(),
            blocks: nested,
            attributes: sorted(attributes)?,
            unknown,
        };
        let names: Vec<&str> = declared.iter().map(|&(name, _)| name).collect();
        let declared = declared.into_iter().map(|(name, ty)| (name.to_owned(), ty));
        let op = self.function.add_op(block, op, declared);
        for (index, (name, field)) in names.into_iter().zip(&outputs).enumerate() {
            let value = self.function.op(op).outputs[index];
            self.define(name, value, field.offset, scope)?;
        }
        Ok(())
    }

    fn bindings(&mut self, mut reader: Reader<'a>) -> Result<Vec<Binding>> {
        let mut bindings = Vec::new();
        while let Some(field) = reader.next()? {
            if field.number != 1 {
                return Err(unknown_field(&field, "an argument"));
            }
            self.budget.consume_budget::<Binding>(0, field.offset)?;
            let mut found = None;
            let mut inner = field.message("arguments")?;
            while let Some(field) = inner.next()? {
                let binding = match field.number {
                    1 => Binding::Value(self.known(field.name("name")?, field.offset)?),
                    2 => Binding::Literal(constant(&field, "value", self.budget)?),
                    _ => return Err(unknown_field(&field, "a binding")),
                };
                field.once(&mut found, "a binding", binding)?;
            }
            bindings.push(found.ok_or_else(|| missing("the content of a binding", field.offset))?);
        }
        Ok(bindings)
    }

    fn named_type(&mut self, field: &Field<'a>, list: &str) -> Result<(&'a str, Type)> {
        self.budget.consume_budget::<Value>(0, field.offset)?;
        count(&mut self.budget.values, limits::VALUES, "values", field.offset)?;
        let (mut name, mut found) = (None, None);
        let mut reader = field.message(list)?;
        while let Some(field) = reader.next()? {
            match field.number {
                1 => field.once(&mut name, "name", field.name("name")?)?,
                2 => field.once(&mut found, "type", ty(&field, "type", 0, self.budget)?)?,
                _ => return Err(unknown_field(&field, "a value's declaration")),
            }
        }
        let name = name.ok_or_else(|| missing("the name of a value", field.offset))?;
        // Includes the entry in the table of names.
        self.budget.consume_budget::<(&str, ValueId)>(name.len(), field.offset)?;
        let ty = found
            .ok_or_else(|| missing(&format!("the type of `{}`", shortened(name)), field.offset))?;
        Ok((name, ty))
    }

    fn define(
        &mut self,
        name: &'a str,
        value: ValueId,
        offset: u64,
        scope: &mut Vec<&'a str>,
    ) -> Result<()> {
        if self.names.insert(name, value).is_some() {
            return Err(malformed(format!("two values are named `{}`", shortened(name)), offset));
        }
        scope.push(name);
        Ok(())
    }

    fn known(&self, name: &str, offset: u64) -> Result<ValueId> {
        self.names.get(name).copied().ok_or_else(|| {
            let message = format!("the value `{}` is not defined before its use", shortened(name));
            malformed(message, offset)
        })
    }
}

/// Name of a parameter, borrowed from the op table if it has the parameter.
fn parameter_name(kind: Option<OpKind>, name: &str) -> Name {
    let mut rows = kind.map_or(&[][..], OpKind::rows).iter();
    let known = rows.find_map(|row| row.parameter(name));
    known.map_or_else(|| Cow::Owned(name.to_owned()), |parameter| Cow::Borrowed(parameter.name))
}

fn attribute(
    field: &Field<'_>,
    to: &mut Vec<(String, Constant)>,
    budget: &mut Budget,
) -> Result<()> {
    let (name, value) = map_entry(field, "attributes")?;
    count(&mut to.len(), limits::ENTRIES, "attributes", field.offset)?;
    budget.consume_budget::<(String, Constant)>(name.len(), field.offset)?;
    let value = value.ok_or_else(|| missing("the value of an attribute", field.offset))?;
    let value = constant(&value, "value", budget);
    to.push((name.to_owned(), value.map_err(|error| error.within(entry("attributes", name)))?));
    Ok(())
}

/// Sorts attributes by name; each is then inserted at the end.
fn sorted(mut attributes: Vec<(String, Constant)>) -> Result<Attributes> {
    attributes.sort_by(|left, right| left.0.cmp(&right.0));
    let mut found = Attributes::default();
    for (name, constant) in attributes {
        let message = format!("two attributes are named `{}`", shortened(&name));
        if found.insert(name, constant).is_some() {
            return Err(Error::new(ErrorKind::ModelFile, message));
        }
    }
    Ok(found)
}

fn keep(field: &Field<'_>, to: &mut UnknownFields, budget: &mut Budget) -> Result<()> {
    budget.consume_budget::<()>(field.raw.len(), field.offset)?;
    to.0.extend_from_slice(field.raw);
    Ok(())
}
