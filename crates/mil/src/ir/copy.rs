//! Operations copied from one function to another.

use std::collections::HashMap;

use super::program::{Binding, BlockId, Function, Op, OpId, ValueId};

/// The operations of a function while they are copied to another one. Constants share their data.
///
/// ```
/// use coremill_mil::ir::{Function, FunctionCopy};
/// use coremill_mil::text::{NoWeights, parse};
///
/// let text = "program(1.3) { func main<ios17>(tensor<fp32, [2]> x) { tensor<fp32, [2]> y = relu(x = x); } -> (y); }";
/// let program = parse(text, &NoWeights).unwrap();
/// let source = &program.functions[0];
/// let mut target = Function::new("main", source.opset);
/// let x = source.inputs()[0];
/// let input = target.add_input(target.body, "input", source.value(x).ty.clone());
/// let mut copy = FunctionCopy::new(source);
/// copy.insert(x, input);
/// let body = target.body;
/// copy.block(source.body, &mut target, body, &mut |value| format!("{}_copy", source.value(value).name)).unwrap();
/// assert_eq!(target.value(target.outputs()[0]).name, "y_copy");
/// ```
#[derive(Debug)]
pub struct FunctionCopy<'f> {
    source: &'f Function,
    values: HashMap<ValueId, ValueId>,
}

/// A value that is used before it is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissingValue(pub ValueId);

impl<'f> FunctionCopy<'f> {
    /// A copy without any value.
    pub fn new(source: &'f Function) -> FunctionCopy<'f> {
        FunctionCopy { source, values: HashMap::new() }
    }

    /// Uses a value of the target in place of one of the source.
    pub fn insert(&mut self, value: ValueId, copy: ValueId) {
        self.values.insert(value, copy);
    }

    /// The value of the target in place of one of the source.
    pub fn value(&self, value: ValueId) -> Result<ValueId, MissingValue> {
        self.values.get(&value).copied().ok_or(MissingValue(value))
    }

    /// Copies the operations and the outputs of a block to the end of another one. `name` names the copies of values.
    pub fn block(
        &mut self,
        from: BlockId,
        target: &mut Function,
        to: BlockId,
        name: &mut dyn FnMut(ValueId) -> String,
    ) -> Result<(), MissingValue> {
        let block = self.source.block(from);
        target.block_mut(to).attributes = block.attributes.clone();
        for &op in &block.ops {
            self.op(op, target, to, name)?;
        }
        let outputs: Result<_, _> =
            block.outputs.iter().map(|&output| self.value(output)).collect();
        target.block_mut(to).outputs = outputs?;
        Ok(())
    }

    /// Copies an operation, with its blocks, to the end of a block.
    pub fn op(
        &mut self,
        op: OpId,
        target: &mut Function,
        to: BlockId,
        name: &mut dyn FnMut(ValueId) -> String,
    ) -> Result<(), MissingValue> {
        let source = self.source.op(op);
        let mut op = Op { blocks: Vec::new(), ..source.clone() };
        for binding in op.inputs.iter_mut().flat_map(|input| &mut input.bindings) {
            if let Binding::Value(value) = binding {
                *value = self.value(*value)?;
            }
        }
        for &inner in &source.blocks {
            let block = target.add_block();
            op.blocks.push(block);
            for &input in &self.source.block(inner).inputs {
                let ty = self.source.value(input).ty.clone();
                let copy = target.add_input(block, name(input), ty);
                self.values.insert(input, copy);
            }
            self.block(inner, target, block, name)?;
        }
        let typed = |&output: &ValueId| (name(output), self.source.value(output).ty.clone());
        let outputs: Vec<_> = source.outputs.iter().map(typed).collect();
        let added = target.add_op(to, op, outputs);
        let copies = target.op(added).outputs.iter().copied();
        self.values.extend(source.outputs.iter().copied().zip(copies));
        Ok(())
    }
}
