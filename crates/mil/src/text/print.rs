use std::fmt::Write as _;
use std::io;

use coremill_tensor::{DType, packed};

use super::floats;
use super::names::{write_key, write_name, write_quoted};
use super::types::write_type;
use super::{Dialect, Listing, OpSpan, PrintOptions, Spans};
use crate::ir::{
    Attributes, Binding, BlockId, Constant, ConstantData, Dim, Function, Op, Program, TensorType,
    Type, ValueId, Weight, WeightPlace,
};

/// Prints a program.
pub fn print(program: &Program, options: &PrintOptions<'_>) -> Listing {
    let mut sink = Sink { buffer: String::new(), flushed: 0, writer: None };
    let spans = Printer { sink: &mut sink, options, spans: Spans::default() }.program(program);
    Listing { text: sink.buffer, spans: spans.unwrap_or_default() }
}

/// Writes the text of a program in parts, so that it is never completely in memory.
pub fn write(
    writer: &mut dyn io::Write,
    program: &Program,
    options: &PrintOptions<'_>,
) -> io::Result<()> {
    let mut sink = Sink { buffer: String::new(), flushed: 0, writer: Some(writer) };
    Printer { sink: &mut sink, options, spans: Spans::default() }.program(program)?;
    sink.flush()
}

/// Output buffer that is flushed to the writer when it is full enough.
struct Sink<'w> {
    buffer: String,
    flushed: usize,
    writer: Option<&'w mut dyn io::Write>,
}

const FLUSH_AT: usize = 1 << 16;

/// Number of elements after which the buffer is checked for flushing.
const ELEMENTS_PER_FLUSH: u64 = 1 << 10;

impl Sink<'_> {
    fn position(&self) -> usize {
        self.flushed + self.buffer.len()
    }

    fn flush_if_full(&mut self) -> io::Result<()> {
        if self.buffer.len() < FLUSH_AT { Ok(()) } else { self.flush() }
    }

    fn flush(&mut self) -> io::Result<()> {
        if let Some(writer) = &mut self.writer {
            writer.write_all(self.buffer.as_bytes())?;
            self.flushed += self.buffer.len();
            self.buffer.clear();
        }
        Ok(())
    }
}

struct Printer<'s, 'w, 'o> {
    sink: &'s mut Sink<'w>,
    options: &'o PrintOptions<'o>,
    spans: Spans,
}

/// Remaining work for printing a function.
enum Step {
    Ops { block: BlockId, next: usize, indent: usize },
    Block { block: BlockId, indent: usize },
    Close { block: BlockId, indent: usize },
    EndOp,
}

/// Maximum indentation. Without it, the length of the text would grow with the square of the nesting depth.
const MAX_INDENT: usize = 12 + 8 * 32;

impl Printer<'_, '_, '_> {
    fn program(mut self, program: &Program) -> io::Result<Spans> {
        self.sink.buffer.push_str(match self.options.dialect {
            Dialect::V1_0 => "program(1.0)\n",
            Dialect::V1_3 => "program(1.3)\n",
        });
        let added = self.options.added.map(|added| &added.program);
        if self.attributes(&program.attributes, added, "")? {
            self.sink.buffer.push('\n');
        }
        self.sink.buffer.push_str("{\n");
        for (index, function) in program.functions.iter().enumerate() {
            self.function(index, function)?;
        }
        self.sink.buffer.push('}');
        Ok(self.spans)
    }

    fn function(&mut self, index: usize, function: &Function) -> io::Result<()> {
        self.sink.buffer.push_str("    ");
        let start = self.sink.position();
        self.sink.buffer.push_str("func ");
        write_name(&mut self.sink.buffer, &function.name);
        let _ = write!(self.sink.buffer, "<{}>", function.opset.tag());
        let mut inputs = function.inputs().to_vec();
        if self.options.sorted_inputs {
            inputs.sort_by_key(|&input| &function.value(input).name);
        }
        self.inputs(function, &inputs);
        let added = self.options.added.and_then(|added| added.functions.get(&function.name));
        self.attributes(&function.attributes, added, " ")?;
        if self.sink.writer.is_none() {
            self.spans.functions.push(start..self.sink.position());
        }
        self.sink.buffer.push_str(" {\n");
        self.ops_of(index, function)?;
        self.sink.buffer.push_str("        }");
        self.outputs_of_block(function, function.body);
        self.sink.buffer.push_str(";\n");
        Ok(())
    }

    /// Prints the body. Nested blocks are processed with an explicit stack, because programs in memory may
    /// nest to any depth.
    ///
    /// No text of Apple's with nested blocks is available. The output follows `mlmodelc-export`, whose
    /// authors tested it on devices: each block is on a line of its own after the operation's attributes.
    fn ops_of(&mut self, index: usize, function: &Function) -> io::Result<()> {
        let mut steps = vec![Step::Ops { block: function.body, next: 0, indent: 12 }];
        while let Some(step) = steps.pop() {
            match step {
                Step::Ops { block, next, indent } => {
                    let Some(&id) = function.block(block).ops.get(next) else { continue };
                    steps.push(Step::Ops { block, next: next + 1, indent });
                    let op = function.op(id);
                    self.pad(indent);
                    let start = self.sink.position();
                    self.op(function, op)?;
                    let range = start..self.sink.position();
                    if self.sink.writer.is_none() {
                        self.spans.ops.push(OpSpan { function: index, op: id, range });
                    }
                    steps.push(Step::EndOp);
                    for &inner in op.blocks.iter().rev() {
                        steps.push(Step::Block { block: inner, indent });
                    }
                }
                Step::Block { block, indent } => {
                    self.sink.buffer.push('\n');
                    self.pad(indent + 4);
                    self.inputs(function, &function.block(block).inputs);
                    self.attributes(&function.block(block).attributes, None, " ")?;
                    self.sink.buffer.push_str(" {\n");
                    steps.push(Step::Close { block, indent });
                    steps.push(Step::Ops { block, next: 0, indent: (indent + 8).min(MAX_INDENT) });
                }
                Step::Close { block, indent } => {
                    self.pad(indent + 4);
                    self.sink.buffer.push('}');
                    self.outputs_of_block(function, block);
                }
                Step::EndOp => {
                    self.sink.buffer.push_str(";\n");
                    self.sink.flush_if_full()?;
                }
            }
        }
        Ok(())
    }

    fn pad(&mut self, spaces: usize) {
        let _ = write!(self.sink.buffer, "{:spaces$}", "");
    }

    fn inputs(&mut self, function: &Function, inputs: &[ValueId]) {
        self.sink.buffer.push('(');
        for (index, &input) in inputs.iter().enumerate() {
            let value = function.value(input);
            self.comma(index);
            write_type(&mut self.sink.buffer, &value.ty, self.options.dialect);
            self.sink.buffer.push(' ');
            write_name(&mut self.sink.buffer, &value.name);
        }
        self.sink.buffer.push(')');
    }

    fn outputs_of_block(&mut self, function: &Function, block: BlockId) {
        self.sink.buffer.push_str(" -> (");
        for (index, &output) in function.block(block).outputs.iter().enumerate() {
            self.comma(index);
            write_name(&mut self.sink.buffer, &function.value(output).name);
        }
        self.sink.buffer.push(')');
    }

    fn op(&mut self, function: &Function, op: &Op) -> io::Result<()> {
        for (index, &output) in op.outputs.iter().enumerate() {
            let value = function.value(output);
            self.comma(index);
            write_type(&mut self.sink.buffer, &value.ty, self.options.dialect);
            self.sink.buffer.push(' ');
            write_name(&mut self.sink.buffer, &value.name);
        }
        if !op.outputs.is_empty() {
            self.sink.buffer.push_str(" = ");
        }
        write_name(&mut self.sink.buffer, op.type_name());
        self.sink.buffer.push('(');
        for (index, input) in op.inputs.iter().enumerate() {
            self.comma(index);
            write_key(&mut self.sink.buffer, &input.name);
            self.sink.buffer.push_str(" = ");
            match input.bindings.as_slice() {
                [binding] => self.binding(function, binding)?,
                bindings => {
                    self.sink.buffer.push('(');
                    for (index, binding) in bindings.iter().enumerate() {
                        self.comma(index);
                        self.binding(function, binding)?;
                    }
                    self.sink.buffer.push(')');
                }
            }
        }
        self.sink.buffer.push(')');
        self.attributes(&op.attributes, None, "")?;
        Ok(())
    }

    fn binding(&mut self, function: &Function, binding: &Binding) -> io::Result<()> {
        match binding {
            Binding::Value(id) => {
                write_name(&mut self.sink.buffer, &function.value(*id).name);
                Ok(())
            }
            Binding::Literal(constant) => self.typed(constant),
        }
    }

    /// Prints attributes between brackets after `separator`; returns whether there are any.
    fn attributes(
        &mut self,
        attributes: &Attributes,
        added: Option<&Attributes>,
        separator: &str,
    ) -> io::Result<bool> {
        let kept =
            attributes.iter().filter(|(name, _)| added.is_none_or(|a| a.get(name).is_none()));
        let mut all: Vec<(&str, &Constant)> = kept.collect();
        if let Some(added) = added {
            all.extend(added.iter());
            all.sort_by_key(|(name, _)| *name);
        }
        if all.is_empty() {
            return Ok(false);
        }
        self.sink.buffer.push_str(separator);
        self.sink.buffer.push('[');
        for (index, (name, constant)) in all.into_iter().enumerate() {
            self.comma(index);
            write_key(&mut self.sink.buffer, name);
            self.sink.buffer.push_str(" = ");
            self.typed(constant)?;
        }
        self.sink.buffer.push(']');
        Ok(true)
    }

    fn typed(&mut self, constant: &Constant) -> io::Result<()> {
        write_type(&mut self.sink.buffer, &constant.ty, self.options.dialect);
        self.sink.buffer.push('(');
        self.value(constant)?;
        self.sink.buffer.push(')');
        Ok(())
    }

    /// Prints a part of a list, tuple or dictionary. The part's own type is printed only if it differs from
    /// the declared type.
    fn part(&mut self, declared: Option<&Type>, constant: &Constant) -> io::Result<()> {
        if declared.is_some_and(|declared| implies(declared, &constant.ty)) {
            self.value(constant)
        } else {
            self.typed(constant)
        }
    }

    fn value(&mut self, constant: &Constant) -> io::Result<()> {
        match &constant.data {
            ConstantData::Weight(weight) => {
                self.weight(weight);
                Ok(())
            }
            ConstantData::Bytes(bytes) => match constant.tensor_type() {
                Some(tensor) => self.elements(tensor, bytes.as_bytes()),
                None => self.misfit(),
            },
            ConstantData::Strings(strings) => {
                let tensor = constant.tensor_type().filter(|tensor| {
                    tensor.dtype == DType::String
                        && tensor.element_count() == Some(strings.len() as u64)
                });
                let Some(tensor) = tensor else { return self.misfit() };
                self.nest(tensor, |out, index| write_quoted(out, &strings[index], '"'))
            }
            ConstantData::Sequence(parts) => {
                let tuple = matches!(constant.ty, Type::Tuple(_));
                self.sink.buffer.push(if tuple { '(' } else { '[' });
                for (index, part) in parts.iter().enumerate() {
                    self.comma(index);
                    let declared = match &constant.ty {
                        Type::List(element, _) => Some(&**element),
                        Type::Tuple(types) => types.get(index),
                        _ => None,
                    };
                    self.part(declared, part)?;
                }
                self.sink.buffer.push(if tuple { ')' } else { ']' });
                Ok(())
            }
            ConstantData::Entries(entries) => {
                let (key_type, value_type) = match &constant.ty {
                    Type::Dictionary(key, value) => (Some(&**key), Some(&**value)),
                    _ => (None, None),
                };
                self.sink.buffer.push('{');
                for (index, (key, value)) in entries.iter().enumerate() {
                    self.comma(index);
                    self.sink.buffer.push('{');
                    self.part(key_type, key)?;
                    self.sink.buffer.push_str(", ");
                    self.part(value_type, value)?;
                    self.sink.buffer.push('}');
                }
                self.sink.buffer.push('}');
                Ok(())
            }
        }
    }

    fn weight(&mut self, weight: &Weight) {
        let laid_out = self.options.places.and_then(|places| places(weight));
        let unplaced = || WeightPlace { file: UNPLACED.into(), offset: 0 };
        let place = laid_out.or_else(|| weight.place.clone()).unwrap_or_else(unplaced);
        let out = &mut self.sink.buffer;
        out.push_str("BLOBFILE(path = ");
        write_type(out, &Type::scalar(DType::String), self.options.dialect);
        out.push('(');
        write_quoted(out, &place.file, '"');
        out.push_str("), offset = ");
        write_type(out, &Type::scalar(DType::UInt64), self.options.dialect);
        let _ = write!(out, "({}))", place.offset);
    }

    fn elements(&mut self, tensor: &TensorType, bytes: &[u8]) -> io::Result<()> {
        let dtype = tensor.dtype;
        let (Some(count), Some(size)) = (tensor.element_count(), tensor.storage_bytes()) else {
            return self.misfit();
        };
        if size != bytes.len() as u64 {
            return self.misfit();
        }
        if dtype.is_sub_byte() {
            let Some(values) = packed::unpack(dtype, bytes, count as usize) else {
                return self.misfit();
            };
            return self.nest(tensor, |out, index| {
                let _ = write!(out, "{}", values[index]);
            });
        }
        let width = dtype.bits().unwrap_or(8) as usize / 8;
        let bits = |index: usize| {
            let mut word = [0u8; 8];
            word[..width].copy_from_slice(&bytes[index * width..(index + 1) * width]);
            u64::from_le_bytes(word)
        };
        if dtype == DType::Bool {
            self.nest(tensor, |out, i| out.push_str(if bits(i) != 0 { "true" } else { "false" }))
        } else if dtype.is_float() {
            self.nest(tensor, |out, index| floats::write(out, dtype, bits(index)))
        } else if dtype.is_signed_integer() {
            let unused = 64 - 8 * width as u32;
            self.nest(tensor, |out, index| {
                let _ = write!(out, "{}", (bits(index) << unused) as i64 >> unused);
            })
        } else {
            self.nest(tensor, |out, index| {
                let _ = write!(out, "{}", bits(index));
            })
        }
    }

    /// Prints the elements of a tensor with fixed dimensions, with nested brackets.
    fn nest(
        &mut self,
        tensor: &TensorType,
        mut element: impl FnMut(&mut String, usize),
    ) -> io::Result<()> {
        let shape = tensor.known_shape().unwrap_or_default();
        let empty = shape.iter().position(|&extent| extent == 0);
        let (axes, count) = match empty {
            None => (&shape[..], tensor.element_count().unwrap_or(0)),
            Some(axis) => {
                // Print the rows down to the first empty dimension. Their number is unbounded, so above a
                // limit the whole tensor is `[]`.
                let rows = shape[..axis].iter().try_fold(1u64, |n, &extent| n.checked_mul(extent));
                match rows.filter(|&rows| rows <= MAX_EMPTY_ROWS) {
                    Some(rows) => (&shape[..axis], rows),
                    None => (&[][..], 1),
                }
            }
        };
        // Number of elements between the brackets of each dimension, innermost first.
        let mut strides = Vec::with_capacity(axes.len());
        let mut stride = 1u64;
        for &extent in axes.iter().rev() {
            stride = stride.saturating_mul(extent);
            strides.push(stride);
        }
        let whole = |at: u64| strides.iter().take_while(move |&&stride| at.is_multiple_of(stride));
        for index in 0..count {
            let out = &mut self.sink.buffer;
            out.push_str(if index > 0 { ", " } else { "" });
            out.extend(std::iter::repeat_n('[', whole(index).count()));
            match empty {
                Some(_) => out.push_str("[]"),
                None => element(out, index as usize),
            }
            out.extend(std::iter::repeat_n(']', whole(index + 1).count()));
            if index % ELEMENTS_PER_FLUSH == 0 {
                self.sink.flush_if_full()?;
            }
        }
        Ok(())
    }

    /// Prints a placeholder for a value that does not match its type. The verifier shows it in diagnostics;
    /// it cannot be parsed.
    fn misfit(&mut self) -> io::Result<()> {
        self.sink.buffer.push_str("<a value that does not fit the type>");
        Ok(())
    }

    fn comma(&mut self, index: usize) {
        self.sink.buffer.push_str(if index > 0 { ", " } else { "" });
    }
}

/// File name of weights without a location.
const UNPLACED: &str = "@unplaced";

/// Maximum number of empty rows that are printed individually.
const MAX_EMPTY_ROWS: u64 = 1 << 10;

/// Whether parsing the text of a value with the declared type results in the type `actual`.
fn implies(declared: &Type, actual: &Type) -> bool {
    match (declared, actual) {
        (Type::Tensor(declared), Type::Tensor(actual)) => {
            let seen = |dims: &[Dim]| !dims.contains(&Dim::Known(0));
            declared.dtype == actual.dtype
                && declared.rank() == actual.rank()
                && declared.shape.iter().zip(&actual.shape).enumerate().all(|(axis, dims)| {
                    match dims {
                        (Dim::Known(left), Dim::Known(right)) => left == right,
                        // The text shows an unknown dimension unless it is inside an empty one.
                        (Dim::Unknown, Dim::Known(_)) => seen(&actual.shape[..axis]),
                        _ => false,
                    }
                })
        }
        _ => declared == actual,
    }
}
