//! Fuses chains of elementwise operations into one kernel, which reads and writes memory once.
//!
//! ```text
//! a = add(x = x, y = y)
//! b = tanh(x = a)             b = map[add, tanh](x, y)
//! ```
//!
//! An operation is fused with the readers of its result if it has no other readers and the shapes
//! are equal. A single operation becomes a kernel, too. Kernels represent bools as floats, so an
//! operation whose bool result is used outside keeps its reference kernel.

use coremill_kernels::Activation;
use coremill_kernels::Numerics;
use coremill_kernels::map::{Binary, MapInput, MapProgram, MapValue, broadcast_strides, map};
use coremill_mil::ops::OpKind;
use coremill_reference::array::{ElementsView, View, int_range};
use coremill_reference::error::{Result, fail};
use coremill_reference::geometry::strides as dense_strides;
use coremill_simd::math::Unary;
use coremill_tensor::DType;

use super::super::graph::{Graph, Node, NodeKind, Operand, Region};
use super::super::kernel::{Cost, CpuContext, Kernel};
use super::activation::activation;
use super::parameters::parameters;
use super::strided::{StridedSlice, strided};
use super::{Editor, Work};
use crate::plan::FunctionContext;

/// Maximum number of operations in a kernel. The tiles of a longer program would exceed the L1
/// cache.
const MAX_OPERATIONS: usize = 24;

/// Fuses the elementwise operations of a region.
pub(super) fn fuse(work: &mut Work<'_>, region: Region) -> Result<Region> {
    let mut editor = Editor::new(work.graph, region);
    let groups = group(work, &editor);
    for members in groups {
        let (inputs, kernel) = {
            let nodes: Vec<&Node> =
                members.iter().filter_map(|&member| editor.node(member)).collect();
            build(work.source, work.graph, &editor, &nodes)
        };
        let Some(&last) = members.last() else { continue };
        let mut taken = None;
        for &member in &members {
            taken = editor.take(member);
        }
        if let Some(Node { op, outputs, .. }) = taken {
            let kind = NodeKind::Kernel(Box::new(kernel));
            editor.put(work.graph, last, Node { op, kind, inputs, outputs });
        }
    }
    Ok(editor.finish())
}

/// Indices of the nodes to fuse, in order, by group.
fn group(work: &Work<'_>, editor: &Editor) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut member_of: Vec<Option<usize>> = vec![None; editor.len()];
    let shape = |node: &Node| work.graph.slot(node.outputs[0]).shape.clone();
    for index in (0..editor.len()).rev() {
        let Some(node) = editor.node(index) else { continue };
        let Some(mapped) = classify(work.source, work.graph, node) else { continue };
        let output = node.outputs[0];
        let mut readers = editor.readers(output).iter().map(|&reader| member_of[reader]);
        let joined = match readers.next() {
            Some(Some(group)) if readers.all(|other| other == Some(group)) => {
                let last = editor.node(groups[group][0]).and_then(shape);
                let fits = groups[group].len() < MAX_OPERATIONS && last == shape(node);
                (fits && !editor.escapes(output)).then_some(group)
            }
            _ => None,
        };
        // The output of a kernel must be a float.
        let group = match joined {
            Some(group) => group,
            None if mapped.gives_bool => continue,
            None => {
                groups.push(Vec::new());
                groups.len() - 1
            }
        };
        groups[group].push(index);
        member_of[index] = Some(group);
    }
    groups.iter_mut().for_each(|group| group.reverse());
    groups
}

/// An elementwise operation.
struct ElementwiseOp {
    function: Function,
    /// Whether the result is a bool rather than a float.
    gives_bool: bool,
}

#[derive(Clone, Copy)]
enum Function {
    Activation(Activation),
    Unary(Unary),
    /// A function of the input plus a constant.
    Shifted(Unary, f32),
    Not,
    Binary(Binary),
    /// The maximum of the input and a constant.
    AtLeast(f32),
    ClampedRelu {
        alpha: f32,
        beta: f32,
    },
    Select,
    Cast,
}

/// Classifies an elementwise operation of known shape.
fn classify(source: &FunctionContext, graph: &Graph, node: &Node) -> Option<ElementwiseOp> {
    let kind = node.operation()?;
    let [output] = node.outputs[..] else { return None };
    let info = graph.slot(output);
    let shape = info.shape.as_ref()?;
    let function = function_of(source, graph, node, kind)?;
    let gives_bool = info.dtype == DType::Bool;
    if !gives_bool && !matches!(info.dtype, DType::Fp16 | DType::Fp32) {
        return None;
    }
    for operand in tensor_operands(node) {
        let dtype = graph.dtype(operand);
        let usable = match dtype {
            DType::Fp16 | DType::Fp32 | DType::Bool => true,
            dtype => kind == OpKind::Cast && int_range(dtype).is_some(),
        };
        broadcast_strides(graph.shape(operand)?, shape)?;
        if !usable {
            return None;
        }
    }
    Some(ElementwiseOp { function, gives_bool })
}

/// The tensor operands of an elementwise operation, in the order of its function's arguments.
fn tensor_operands(node: &Node) -> Vec<&Operand> {
    let names: &[&str] = match node.operation() {
        Some(OpKind::Select) => &["cond", "a", "b"],
        _ => &["x", "y"],
    };
    names.iter().flat_map(|name| node.bound(name)).collect()
}

fn function_of(
    source: &FunctionContext,
    graph: &Graph,
    node: &Node,
    kind: OpKind,
) -> Option<Function> {
    if let Some((activation, _)) = activation(source, graph, node) {
        return Some(Function::Activation(activation));
    }
    let binary = |binary| Some(Function::Binary(binary));
    let unary = |unary| Some(Function::Unary(unary));
    match kind {
        OpKind::Add => binary(Binary::Add),
        OpKind::Sub => binary(Binary::Sub),
        OpKind::Mul => binary(Binary::Mul),
        OpKind::RealDiv => binary(Binary::Div),
        OpKind::Maximum => binary(Binary::Max),
        OpKind::Minimum => binary(Binary::Min),
        OpKind::Pow => binary(Binary::Pow),
        OpKind::Equal => binary(Binary::Equal),
        OpKind::NotEqual => binary(Binary::NotEqual),
        OpKind::Less => binary(Binary::Less),
        OpKind::LessEqual => binary(Binary::LessEqual),
        OpKind::Greater => binary(Binary::Greater),
        OpKind::GreaterEqual => binary(Binary::GreaterEqual),
        OpKind::LogicalAnd => binary(Binary::And),
        OpKind::LogicalOr => binary(Binary::Or),
        OpKind::LogicalXor => binary(Binary::Xor),
        OpKind::LogicalNot => Some(Function::Not),
        OpKind::Abs => unary(Unary::Abs),
        OpKind::Ceil => unary(Unary::Ceil),
        OpKind::Cos => unary(Unary::Cos),
        OpKind::Erf => unary(Unary::Erf),
        OpKind::Exp => unary(Unary::Exp),
        OpKind::Exp2 => unary(Unary::Exp2),
        OpKind::Floor => unary(Unary::Floor),
        OpKind::Round => unary(Unary::Round),
        OpKind::Sign => unary(Unary::Sign),
        OpKind::Sin => unary(Unary::Sin),
        OpKind::Sqrt => unary(Unary::Sqrt),
        OpKind::Square => unary(Unary::Square),
        OpKind::Inverse => shifted(source, graph, node, Unary::Reciprocal),
        OpKind::Log => shifted(source, graph, node, Unary::Log),
        OpKind::Rsqrt => shifted(source, graph, node, Unary::Rsqrt),
        OpKind::Threshold => {
            parameters(source, graph, node, |call| Ok(Function::AtLeast(call.float("alpha")?)))
        }
        OpKind::ClampedRelu => parameters(source, graph, node, |call| {
            Ok(Function::ClampedRelu { alpha: call.float("alpha")?, beta: call.float("beta")? })
        }),
        OpKind::Cast => graph.slot(node.outputs[0]).dtype.is_float().then_some(Function::Cast),
        OpKind::Select => (node.bound("a").len() == 1).then_some(Function::Select),
        _ => None,
    }
}

fn shifted(source: &FunctionContext, graph: &Graph, node: &Node, unary: Unary) -> Option<Function> {
    parameters(source, graph, node, |call| Ok(Function::Shifted(unary, call.float("epsilon")?)))
}

/// Builds the kernel of a group and its inputs. The last node computes the result.
fn build(
    source: &FunctionContext,
    graph: &Graph,
    editor: &Editor,
    nodes: &[&Node],
) -> (Vec<Operand>, MapKernel) {
    let last = nodes[nodes.len() - 1];
    let shape = graph.slot(last.outputs[0]).shape.clone().unwrap_or_default();
    let mut chain = Chain {
        source,
        graph,
        editor,
        program: MapProgram::new(),
        inputs: Vec::new(),
        loaded: Vec::new(),
        computed: Vec::new(),
    };
    let mut label = Vec::new();
    for node in nodes {
        if let Some(ElementwiseOp { function, .. }) = classify(source, graph, node) {
            let value = chain.append(node, function);
            chain.computed.push((node.outputs[0], value));
        }
        label.extend(node.operation().map(OpKind::name));
    }
    if let Some(&(_, value)) = chain.computed.last() {
        chain.program.output(value);
    }
    let strides = chain.inputs.iter().map(|input| broadcast_view(input, &shape)).collect();
    let offsets = chain.inputs.iter().map(|input| input.offset).collect();
    let sizes = || chain.inputs.iter().map(|input| input.shape.iter().product::<usize>());
    let converted = |input: &StridedSlice| !graph.dtype(&input.operand).is_float();
    let scratch = chain.inputs.iter().zip(sizes()).filter(|(input, _)| converted(input));
    let scratch = scratch.map(|(_, size)| size).sum();
    let reads: usize = sizes().sum();
    let writes: usize = shape.iter().product();
    let cost = Cost {
        operations: (writes * chain.program.steps().len()) as u64,
        bytes: 4 * (reads + writes) as u64,
    };
    let label = label.join("+");
    let kernel =
        MapKernel { program: chain.program, shape, offsets, strides, scratch, label, cost };
    (chain.inputs.into_iter().map(|input| input.operand).collect(), kernel)
}

/// Strides of a view that is broadcast to a shape.
fn broadcast_view(view: &StridedSlice, shape: &[usize]) -> Vec<usize> {
    let missing = shape.len() - view.shape.len();
    (0..shape.len())
        .map(|axis| match axis.checked_sub(missing) {
            Some(axis) if view.shape[axis] != 1 => view.strides[axis],
            _ => 0,
        })
        .collect()
}

/// A kernel program under construction.
struct Chain<'c> {
    source: &'c FunctionContext,
    graph: &'c Graph,
    editor: &'c Editor,
    program: MapProgram,
    inputs: Vec<StridedSlice>,
    /// The values that the inputs are loaded to.
    loaded: Vec<MapValue>,
    computed: Vec<(super::super::graph::SlotId, MapValue)>,
}

impl Chain<'_> {
    fn append(&mut self, node: &Node, function: Function) -> MapValue {
        let operands: Vec<MapValue> =
            tensor_operands(node).into_iter().map(|operand| self.load(operand)).collect();
        let x = operands[0];
        let result = match function {
            Function::Activation(activation) => self.program.activation(activation, x),
            Function::Unary(unary) => self.program.unary(unary, x),
            Function::Shifted(unary, shift) => {
                let shift = self.program.constant(shift);
                let shifted = self.program.binary(Binary::Add, x, shift);
                self.program.unary(unary, shifted)
            }
            Function::Not => {
                let zero = self.program.constant(0.0);
                self.program.binary(Binary::Equal, x, zero)
            }
            Function::Binary(Binary::Pow) if self.scalar(node, "y") == Some(2.0) => {
                self.program.unary(Unary::Square, x)
            }
            Function::Binary(binary) => self.program.binary(binary, x, operands[1]),
            Function::AtLeast(bound) => {
                let bound = self.program.constant(bound);
                self.program.binary(Binary::Max, x, bound)
            }
            Function::ClampedRelu { alpha, beta } => {
                let leaky = self.program.activation(Activation::LeakyRelu { alpha }, x);
                let beta = self.program.constant(beta);
                self.program.binary(Binary::Min, leaky, beta)
            }
            Function::Select => self.program.select(x, operands[1], operands[2]),
            Function::Cast => x,
        };
        let dtype = self.graph.slot(node.outputs[0]).dtype;
        if self.source.numerics == Numerics::Rounded && dtype == DType::Fp16 {
            return self.program.round_to_fp16(result);
        }
        result
    }

    fn load(&mut self, operand: &Operand) -> MapValue {
        if let Some(slot) = operand.slot()
            && let Some((_, value)) = self.computed.iter().find(|(computed, _)| *computed == slot)
        {
            return *value;
        }
        if let Some(value) = self.constant(operand) {
            return self.program.constant(value);
        }
        let view = self.view(operand);
        let same = |input: &StridedSlice| {
            let slots = (input.operand.slot(), view.operand.slot());
            matches!(slots, (Some(one), Some(other)) if one == other)
                && (input.offset, &input.shape, &input.strides)
                    == (view.offset, &view.shape, &view.strides)
        };
        if let Some(at) = self.inputs.iter().position(same) {
            return self.loaded[at];
        }
        let value = self.program.input(self.inputs.len());
        self.inputs.push(view);
        self.loaded.push(value);
        value
    }

    /// The view of an operand: the tensor behind its movements if the innermost stride is 1, else
    /// the operand itself.
    fn view(&self, operand: &Operand) -> StridedSlice {
        let shape = self.graph.shape(operand).unwrap_or_default();
        let look = strided(self.source, self.graph, self.editor, operand);
        let look = look.filter(|view| {
            let inner =
                view.shape.iter().zip(&view.strides).rev().find(|(extent, _)| **extent != 1);
            inner.is_none_or(|(_, &stride)| stride == 1)
        });
        look.unwrap_or_else(|| StridedSlice {
            operand: operand.clone(),
            offset: 0,
            shape: shape.to_vec(),
            strides: dense_strides(shape),
        })
    }

    fn scalar(&self, node: &Node, parameter: &str) -> Option<f32> {
        self.constant(node.bound(parameter).first()?)
    }

    /// The value of a constant with one element.
    fn constant(&self, operand: &Operand) -> Option<f32> {
        let known = operand.constant()?;
        if known.shape.iter().product::<usize>() != 1 {
            return None;
        }
        let array = known.array(self.source).ok()?;
        match (array.as_floats(), array.as_ints()) {
            (Some([value]), _) => Some(*value),
            (_, Some([value])) => Some(*value as f32),
            _ => None,
        }
    }
}

/// Number of inputs for which the arguments fit on the stack. Most programs have no more.
const FEW: usize = 8;

struct MapKernel {
    program: MapProgram,
    shape: Vec<usize>,
    /// Offset of each input, and its strides.
    offsets: Vec<usize>,
    strides: Vec<Vec<usize>>,
    /// Number of integer elements to convert to floats.
    scratch: usize,
    label: String,
    cost: Cost,
}

impl Kernel for MapKernel {
    fn run(
        &self,
        machine: &CpuContext,
        inputs: &[View<'_>],
        outputs: &mut [&mut [f32]],
        mut scratch: &mut [f32],
    ) -> Result<()> {
        if inputs.len() != self.strides.len() {
            fail!("requires {} tensors, found {}", self.strides.len(), inputs.len());
        }
        let (mut few, mut many) = ([MapInput { elements: &[], strides: &[] }; FEW], Vec::new());
        let read = match inputs.len() {
            count @ ..=FEW => &mut few[..count],
            count => {
                many.resize(count, few[0]);
                &mut many
            }
        };
        let places = self.strides.iter().zip(&self.offsets);
        for ((read, input), (strides, &offset)) in read.iter_mut().zip(inputs).zip(places) {
            let elements = match input.elements {
                ElementsView::Ints(ints) => {
                    let (floats, rest) = scratch.split_at_mut(ints.len());
                    scratch = rest;
                    floats.iter_mut().zip(ints).for_each(|(float, &int)| *float = int as f32);
                    &*floats
                }
                _ => input.floats()?,
            };
            *read = MapInput { elements: &elements[offset..], strides };
        }
        map(machine.isa, &machine.pool, &self.program, &self.shape, read, outputs);
        Ok(())
    }

    fn label(&self) -> String {
        self.label.clone()
    }

    fn cost(&self) -> Cost {
        self.cost
    }

    fn scratch(&self) -> usize {
        self.scratch
    }
}
