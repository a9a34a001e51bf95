use super::constant::{constant, ty};
use super::{Failure, Places};
use crate::package::wire::{Reader, Writer, entry, map_entry};
use coremill_mil::ir::{Attributes, Binding, BlockId, Function, OpId, Program, ValueId};
use coremill_mil::limits;

pub(super) fn program(
    writer: &mut Writer,
    program: &Program,
    places: Places<'_>,
    failure: &mut Failure,
) {
    writer.int64(1, 1);
    let mut functions: Vec<&Function> = program.functions.iter().collect();
    functions.sort_by(|left, right| left.name.cmp(&right.name));
    for function in functions {
        failure.within(
            || entry("functions", &function.name),
            |failure| {
                writer.message(2, |writer| {
                    writer.bytes_always(1, function.name.as_bytes());
                    writer.message(2, |writer| {
                        FunctionEncoder { function, places }.function(writer, failure);
                    });
                });
            },
        );
    }
    writer.string(3, &program.documentation);
    attributes(writer, 4, &program.attributes, places, failure);
    writer.raw(&program.unknown.0);
}

struct FunctionEncoder<'f> {
    function: &'f Function,
    places: Places<'f>,
}

impl FunctionEncoder<'_> {
    fn function(&self, writer: &mut Writer, failure: &mut Failure) {
        let function = self.function;
        let opset = function.opset.name();
        if holds_block_for(&function.unknown.0, opset) {
            failure.note(|| format!("the function has a second block for the opset `{opset}`"));
        }
        for &input in function.inputs() {
            self.named_type(writer, 1, input);
        }
        writer.string(2, opset);
        writer.message(3, |writer| {
            writer.bytes_always(1, opset.as_bytes());
            // The inputs of the body are stored with the function.
            writer.message(2, |writer| self.block(writer, function.body, &[], 1, failure));
        });
        attributes(writer, 4, &function.attributes, self.places, failure);
        writer.raw(&function.unknown.0);
    }

    fn block(
        &self,
        writer: &mut Writer,
        id: BlockId,
        inputs: &[ValueId],
        depth: u32,
        failure: &mut Failure,
    ) {
        if depth > limits::BLOCK_DEPTH {
            let depth = limits::BLOCK_DEPTH;
            failure.note(|| format!("blocks are nested deeper than {depth}"));
            return;
        }
        let block = self.function.block(id);
        for &input in inputs {
            self.named_type(writer, 1, input);
        }
        for &output in &block.outputs {
            writer.bytes_always(2, self.function.value(output).name.as_bytes());
        }
        for (index, &op) in block.ops.iter().enumerate() {
            failure.within(
                || entry("operations", index),
                |failure| writer.message(3, |writer| self.op(writer, op, depth, failure)),
            );
        }
        attributes(writer, 4, &block.attributes, self.places, failure);
        writer.raw(&block.unknown.0);
    }

    fn op(&self, writer: &mut Writer, id: OpId, depth: u32, failure: &mut Failure) {
        let op = self.function.op(id);
        writer.string(1, op.type_name());
        for input in &op.inputs {
            writer.message(2, |writer| {
                writer.bytes_always(1, input.name.as_bytes());
                writer.message(2, |writer| {
                    for binding in &input.bindings {
                        writer.message(1, |writer| match binding {
                            Binding::Value(value) => {
                                let name = &self.function.value(*value).name;
                                writer.bytes_always(1, name.as_bytes());
                            }
                            Binding::Literal(literal) => {
                                constant(writer, 2, literal, self.places, failure);
                            }
                        });
                    }
                });
            });
        }
        for &output in &op.outputs {
            self.named_type(writer, 3, output);
        }
        for &block in &op.blocks {
            let inputs = &self.function.block(block).inputs;
            writer.message(4, |writer| self.block(writer, block, inputs, depth + 1, failure));
        }
        attributes(writer, 5, &op.attributes, self.places, failure);
        writer.raw(&op.unknown.0);
    }

    fn named_type(&self, writer: &mut Writer, number: u32, value: ValueId) {
        let value = self.function.value(value);
        writer.message(number, |writer| {
            writer.string(1, &value.name);
            ty(writer, 2, &value.ty);
        });
    }
}

fn attributes(
    writer: &mut Writer,
    number: u32,
    attributes: &Attributes,
    places: Places<'_>,
    failure: &mut Failure,
) {
    for (name, value) in attributes.iter() {
        failure.within(
            || entry("attributes", name),
            |failure| {
                writer.message(number, |writer| {
                    writer.bytes_always(1, name.as_bytes());
                    constant(writer, 2, value, places, failure);
                });
            },
        );
    }
}

/// Whether the unknown fields of a function contain a block for an opset. This happens if the reader kept a
/// block of another opset and the function was then moved to this opset.
fn holds_block_for(unknown: &[u8], opset: &str) -> bool {
    let mut reader = Reader::new(unknown);
    while let Ok(Some(field)) = reader.next() {
        let key = map_entry(&field, "block_specializations");
        if field.number == 3 && key.is_ok_and(|(key, _)| key == opset) {
            return true;
        }
    }
    false
}
