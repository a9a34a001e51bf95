//! Builds the graph of a function for given input shapes, one node per operation.

use std::collections::HashMap;

use coremill_mil::infer::{Analysis, analyze};
use coremill_mil::ir::{Binding, BlockId, Dim, Op, OpId, Symbol, Type, ValueId};
use coremill_mil::ops::OpKind;
use coremill_reference::error::{Error, Result};
use coremill_reference::ops;
use coremill_tensor::DType;

use super::graph::{Graph, Node, NodeKind, Operand, ReferenceOp, Region, Slot, SlotId, SlotKind};
use super::source::FunctionContext;

/// A function's graph, and whether its shapes are known.
pub(super) struct BuiltGraph {
    pub(super) graph: Graph,
    /// Whether inference succeeds for these input shapes. If not, no slot has a shape, and every
    /// operation checks its operands at run time.
    pub(super) sound: bool,
}

/// Builds a function's graph. `shapes` are the shapes of its inputs, without states.
pub(super) fn build(source: &FunctionContext, shapes: &[Vec<usize>]) -> Result<BuiltGraph> {
    let function = &source.function;
    let is_state = |value: &&ValueId| matches!(function.value(**value).ty, Type::State(_));
    let states = function.inputs().iter().filter(is_state).copied().collect();
    let inputs: Vec<_> =
        function.inputs().iter().filter(|value| !is_state(value)).copied().collect();
    let extents = inputs.iter().copied().zip(shapes.iter().cloned()).collect();
    let concrete = analyze_for(source, &inputs, shapes);
    let sound = concrete.as_ref().is_none_or(|(_, sound)| *sound);
    let analysis = concrete.as_ref().map_or(&source.analysis, |(analysis, _)| analysis);
    let (graph, slots) = (Graph::default(), HashMap::new());
    let mut builder = Builder { source, analysis, sound, states, extents, graph, slots };
    let inputs = inputs.into_iter().map(|input| builder.define(input)).collect();
    builder.graph.body = builder.region(function.body, inputs)?;
    Ok(BuiltGraph { graph: builder.graph, sound })
}

/// Infers types for these input shapes, if an input has an unknown dimension. The flag is false if
/// inference rejects an operation; the run then reports the error if it reaches the operation.
fn analyze_for(
    source: &FunctionContext,
    inputs: &[ValueId],
    shapes: &[Vec<usize>],
) -> Option<(Analysis, bool)> {
    let is_open = |&input: &ValueId| {
        let ty = source.function.value(input).ty.as_tensor();
        ty.is_some_and(|ty| ty.known_shape().is_none())
    };
    if !inputs.iter().any(is_open) {
        return None;
    }
    let mut function = source.function.clone();
    for (&input, shape) in inputs.iter().zip(shapes) {
        if let Type::Tensor(ty) = &mut function.value_mut(input).ty {
            ty.shape = shape.iter().map(|&extent| Dim::Known(extent as u64)).collect();
        }
    }
    let (analysis, problems) = analyze(&function);
    Some((analysis, problems.is_empty()))
}

struct Builder<'s> {
    source: &'s FunctionContext,
    analysis: &'s Analysis,
    /// Whether the shapes of the analysis apply to this run.
    sound: bool,
    /// The function's states.
    states: Vec<ValueId>,
    /// Shapes of the other inputs.
    extents: HashMap<ValueId, Vec<usize>>,
    graph: Graph,
    slots: HashMap<ValueId, SlotId>,
}

impl Builder<'_> {
    fn region(&mut self, block: BlockId, inputs: Vec<SlotId>) -> Result<Region> {
        let block = self.source.function.block(block);
        let mut nodes = Vec::with_capacity(block.ops.len());
        for &op in &block.ops {
            let node = self.node(op).map_err(|error| self.source.place(op, error))?;
            nodes.extend(node);
        }
        let outputs = block.outputs.iter();
        let outputs =
            outputs.map(|&value| self.operand(&Binding::Value(value))).collect::<Result<_>>()?;
        Ok(Region { inputs, nodes, outputs, releases: Vec::new() })
    }

    /// Builds the node of an operation. Returns `None` if its outputs are constant.
    fn node(&mut self, id: OpId) -> Result<Option<Node>> {
        let function = &self.source.function;
        let op = function.op(id);
        if op.outputs.iter().any(|&output| self.source.is_constant(output)) {
            return Ok(None);
        }
        let kind = op
            .kind()
            .ok_or_else(|| Error::new("is not a Core ML operation; custom layers cannot be run"))?;
        let (kind, inputs) = match kind {
            OpKind::Const | OpKind::ConstSymbolic => return Ok(None),
            OpKind::Cond => {
                let inputs = self.operands(op, &["pred"])?;
                (NodeKind::Cond(Box::new(self.two_regions(op)?)), inputs)
            }
            OpKind::WhileLoop => {
                let inputs = self.operands(op, &["loop_vars"])?;
                (NodeKind::Loop(Box::new(self.two_regions(op)?)), inputs)
            }
            OpKind::ReadState => (NodeKind::ReadState(self.state(op)?), Vec::new()),
            OpKind::WriteState => {
                (NodeKind::WriteState(self.state(op)?), self.operands(op, &["data"])?)
            }
            OpKind::MakeList
            | OpKind::ListGather
            | OpKind::ListLength
            | OpKind::ListRead
            | OpKind::ListScatter
            | OpKind::ListWrite => {
                let (reference, inputs) = self.reference(op, kind)?;
                (NodeKind::List(reference, kind), inputs)
            }
            OpKind::Identity
            | OpKind::Reshape
            | OpKind::ReshapeLike
            | OpKind::ExpandDims
            | OpKind::Squeeze
            | OpKind::Flatten2d
                if self.is_alias(op) =>
            {
                (NodeKind::Alias, self.operands(op, &["x"])?)
            }
            kind => {
                let (reference, inputs) = self.reference(op, kind)?;
                (NodeKind::Reference(reference), inputs)
            }
        };
        let outputs = op.outputs.iter().map(|&output| self.define(output)).collect();
        Ok(Some(Node { op: id, kind, inputs, outputs }))
    }

    /// Whether the result has the elements of `x` in a known shape, so that nothing has to be copied. If the program
    /// computes the shape, the kernel must check it.
    fn is_alias(&self, op: &Op) -> bool {
        let [output] = op.outputs[..] else { return false };
        let is_fixed = op.binding("shape").is_none_or(|shape| self.source.is_known(shape));
        is_fixed && self.ty(output).as_tensor().is_some() && self.shape(output).is_some()
    }

    fn reference(&mut self, op: &Op, kind: OpKind) -> Result<(ReferenceOp, Vec<Operand>)> {
        let row = kind.row(self.source.function.opset);
        let row = row.ok_or_else(|| Error::new("is not available in the function's opset"))?;
        let mut inputs = Vec::new();
        let mut parameters = Vec::new();
        for input in &op.inputs {
            let start = inputs.len();
            for binding in &input.bindings {
                inputs.push(self.operand(binding)?);
            }
            parameters.push((input.name.to_string(), start..inputs.len()));
        }
        Ok((ReferenceOp { function: ops::kernel(kind), row, parameters }, inputs))
    }

    fn two_regions(&mut self, op: &Op) -> Result<[Region; 2]> {
        let [first, second] = op.blocks[..] else {
            return Err(Error::new(format!("must have 2 blocks, got {}", op.blocks.len())));
        };
        let mut region = |block: BlockId| {
            let inputs = &self.source.function.block(block).inputs;
            let inputs = inputs.iter().map(|&input| self.define(input)).collect();
            self.region(block, inputs)
        };
        Ok([region(first)?, region(second)?])
    }

    fn state(&self, op: &Op) -> Result<usize> {
        let position = match op.binding("input") {
            Some(Binding::Value(value)) => self.states.iter().position(|state| state == value),
            Some(Binding::Literal(_)) | None => None,
        };
        position.ok_or_else(|| Error::new("`input` is not bound to a state of the function"))
    }

    fn operands(&mut self, op: &Op, parameters: &[&str]) -> Result<Vec<Operand>> {
        let bindings = parameters.iter().flat_map(|parameter| op.bindings(parameter));
        bindings.map(|binding| self.operand(binding)).collect()
    }

    fn operand(&mut self, binding: &Binding) -> Result<Operand> {
        if let Some(known) = self.source.known_binding(binding)? {
            return Ok(Operand::Constant(known));
        }
        let Binding::Value(value) = binding else {
            return Err(Error::new("a literal is not a constant"));
        };
        let slot = self.slots.get(value).ok_or_else(|| {
            let name = &self.source.function.value(*value).name;
            Error::new(format!("`{name}` is used before it is computed"))
        })?;
        Ok(Operand::Slot(*slot))
    }

    /// Adds a slot for a value.
    fn define(&mut self, value: ValueId) -> SlotId {
        let ty = self.ty(value);
        let holds = match ty {
            Type::Tensor(_) | Type::State(_) | Type::Tuple(_) => SlotKind::Tensor,
            Type::List(..) => SlotKind::List,
            Type::Dictionary(..) => SlotKind::Dictionary,
        };
        let dtype = ty.as_tensor().map_or(DType::String, |ty| ty.dtype);
        let shape = self.shape(value);
        let slot = self.graph.add_slot(Slot { holds, dtype, shape, value: Some(value) });
        self.slots.insert(value, slot);
        slot
    }

    fn ty(&self, value: ValueId) -> &Type {
        let inferred = self.analysis.ty(value);
        inferred.unwrap_or(&self.source.function.value(value).ty)
    }

    /// The shape of a value, `None` if it is unknown before the run.
    fn shape(&self, value: ValueId) -> Option<Vec<usize>> {
        if let Some(shape) = self.extents.get(&value) {
            return Some(shape.clone());
        }
        if !self.sound {
            return None;
        }
        let extent = |dim: &Dim| -> Option<usize> {
            match dim {
                Dim::Known(extent) => usize::try_from(*extent).ok(),
                Dim::Unknown => None,
                Dim::Symbolic(expr) => {
                    let assign = |symbol: Symbol| {
                        let (input, axis) = self.analysis.origin(symbol)?;
                        i64::try_from(*self.extents.get(&input)?.get(axis)?).ok()
                    };
                    usize::try_from(expr.evaluate(&assign)?).ok()
                }
            }
        };
        self.ty(value).as_tensor()?.shape.iter().map(extent).collect()
    }
}
