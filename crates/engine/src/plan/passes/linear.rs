//! Fuses products with constant matrices and the operations on their results.
//!
//! ```text
//! a = linear(x = x, weight = w, bias = b)
//! c = gelu(x = a)
//! d = add(x = c, y = r)                       d = linear+gelu+add(x, r)
//! ```

use std::sync::Arc;

use coremill_kernels::Activation;
use coremill_kernels::Numerics;
use coremill_kernels::matmul::{Epilogue, Matrix, MatrixMut, Order, Residual, Rounding, multiply};
use coremill_kernels::stored::{QuantizedMatrix, multiply_stored, multiply_words};
use coremill_mil::ops::OpKind;
use coremill_reference::array::View;
use coremill_reference::error::Result;
use coremill_simd::Isa;
use coremill_tensor::DType;

use super::super::derived::Memoized;
use super::super::graph::{Graph, Node, NodeKind, Operand, Region, SlotId};
use super::super::kernel::{Cost, CpuContext, Kernel};
use super::super::packed::Matrix as Weights;
use super::activation::activation;
use super::parameters::parameters;
use super::{Editor, Work};
use crate::plan::{ConstantTensor, FunctionContext};

/// Replaces linear layers and products with constant matrices by kernels.
pub(super) fn lower(work: &mut Work<'_>, region: Region) -> Result<Region> {
    let mut editor = Editor::new(work.graph, region);
    for index in 0..editor.len() {
        let Some(node) = editor.node(index) else { continue };
        let Some(product) = recognise(work.source, work.graph, node) else { continue };
        let tail = Tail::after(work.source, work.graph, &editor, index);
        let factor = factor(work, &product)?;
        let bias = match &product.bias {
            Some(known) => bias(work, known)?,
            None => Memoized::fixed(None),
        };
        let mut inputs = vec![product.x];
        inputs.extend(tail.residual.clone());
        let mut label = vec![node.operation().map_or("", OpKind::name)];
        label.extend(&tail.label);
        let kernel = Linear {
            factor,
            depth: product.inputs,
            width: product.outputs,
            bias,
            rows: product.rows,
            activation: tail.activation,
            residual: tail.residual.is_some().then_some(tail.residual_after_activation),
            rounding: rounding(work.source, work.graph, node.outputs[0]),
            label: label.join("+"),
            weight_bytes: product.weights.dtype.bits().map_or(4, |bits| bits as usize / 8),
        };
        let mut last = editor.take(index);
        for &absorbed in &tail.absorbed {
            last = editor.take(absorbed);
        }
        if let Some(Node { op, outputs, .. }) = last {
            let place = tail.absorbed.last().copied().unwrap_or(index);
            let kind = NodeKind::Kernel(Box::new(kernel));
            editor.put(work.graph, place, Node { op, kind, inputs, outputs });
        }
    }
    Ok(editor.finish())
}

/// Rounding of an operation's result.
pub(crate) fn rounding(source: &FunctionContext, graph: &Graph, slot: SlotId) -> Rounding {
    let is_fp16 = graph.slot(slot).dtype == DType::Fp16;
    if source.numerics == Numerics::Rounded && is_fp16 { Rounding::Fp16 } else { Rounding::None }
}

/// Operations that are fused into the node before them.
#[derive(Default)]
pub(crate) struct Tail {
    /// Indices of the fused nodes, in order.
    pub(crate) absorbed: Vec<usize>,
    /// Names of the fused operations.
    pub(crate) label: Vec<&'static str>,
    pub(crate) activation: Activation,
    /// A residual of the same shape or an alias of it.
    pub(crate) residual: Option<Operand>,
    pub(crate) residual_after_activation: bool,
}

impl Tail {
    /// Follows a node's result as long as it has a single reader.
    pub(crate) fn after(
        source: &FunctionContext,
        graph: &Graph,
        editor: &Editor,
        index: usize,
    ) -> Tail {
        let mut tail = Tail::default();
        let Some(mut slot) = editor.node(index).map(|node| node.outputs[0]) else { return tail };
        let dtype = graph.slot(slot).dtype;
        // Aliases are fused only if another fused operation follows.
        let mut passed = Vec::new();
        while let Some((reader, node)) = editor.sole_reader(slot) {
            let Some(&output) = node.outputs.first() else { break };
            // The output's memory is allocated before the run, so its shape must be known.
            if graph.slot(output).dtype != dtype || graph.slot(output).shape.is_none() {
                break;
            }
            if let NodeKind::Alias = node.kind {
                passed.push(reader);
                slot = output;
                continue;
            }
            if let Some((activation, _)) = activation(source, graph, node)
                && tail.activation == Activation::None
                && !tail.residual_after_activation
            {
                tail.activation = activation;
            } else if let Some(other) = addend(graph, node, slot)
                && tail.residual.is_none()
            {
                tail.residual_after_activation = tail.activation != Activation::None;
                tail.residual = Some(other);
            } else {
                break;
            }
            tail.absorbed.append(&mut passed);
            tail.absorbed.push(reader);
            tail.label.extend(node.operation().map(OpKind::name));
            slot = output;
        }
        tail
    }
}

/// The other operand of an addition of two tensors of equal shape.
fn addend(graph: &Graph, node: &Node, slot: SlotId) -> Option<Operand> {
    if node.operation()? != OpKind::Add {
        return None;
    }
    let ([x], [y]) = (node.bound("x"), node.bound("y")) else { return None };
    let other = if x.slot() == Some(slot) { y } else { x };
    let same = graph.shape(x)? == graph.shape(y)? && graph.dtype(x) == graph.dtype(y);
    (same && other.slot() != Some(slot)).then(|| other.clone())
}

/// A product with a constant matrix.
pub(super) struct Product {
    pub(super) x: Operand,
    pub(super) weights: Arc<ConstantTensor>,
    pub(super) bias: Option<Arc<ConstantTensor>>,
    pub(super) rows: usize,
    pub(super) inputs: usize,
    pub(super) outputs: usize,
    pub(super) order: Order,
}

/// Recognizes a product with a constant matrix.
pub(super) fn recognise(source: &FunctionContext, graph: &Graph, node: &Node) -> Option<Product> {
    let kind = node.operation()?;
    let [x] = node.bound("x") else { return None };
    let shape = graph.shape(x)?;
    if !matches!(graph.dtype(x), DType::Fp16 | DType::Fp32) {
        return None;
    }
    graph.slot(*node.outputs.first()?).shape.as_ref()?;
    let (weights, bias, outputs, order) = match kind {
        OpKind::Linear => {
            let weights = node.bound("weight").first()?.constant()?;
            let bias = match node.bound("bias") {
                [] => None,
                [bias] => Some(Arc::clone(bias.constant()?)),
                _ => return None,
            };
            (weights, bias, *weights.shape.first()?, Order::OutputsFirst)
        }
        OpKind::Matmul => {
            let weights = node.bound("y").first()?.constant()?;
            let (transpose_x, transpose_y) = parameters(source, graph, node, |call| {
                Ok((call.bool("transpose_x")?, call.bool("transpose_y")?))
            })?;
            let [before @ .., rows, columns] = &weights.shape[..] else { return None };
            if transpose_x || shape.len() < 2 || before.iter().any(|&extent| extent != 1) {
                return None;
            }
            if before.len() + 2 > shape.len() {
                return None;
            }
            let order = if transpose_y { Order::OutputsFirst } else { Order::InputsFirst };
            (weights, None, if transpose_y { *rows } else { *columns }, order)
        }
        _ => return None,
    };
    // In later opsets one factor may be an integer tensor. The reference kernel handles these.
    if !weights.dtype.is_float() || bias.as_ref().is_some_and(|bias| !bias.dtype.is_float()) {
        return None;
    }
    let inputs = *shape.last()?;
    let rows = shape[..shape.len() - 1].iter().product();
    if weights.shape.iter().product::<usize>() != inputs * outputs || inputs == 0 || outputs == 0 {
        return None;
    }
    let weights = Arc::clone(weights);
    Some(Product { x: x.clone(), weights, bias, rows, inputs, outputs, order })
}

/// A constant matrix, prepared for kernels.
enum Factor {
    Matrix(Arc<Weights>),
    /// Compressed weights for few rows. Memory bandwidth limits such products, so the kernel reads
    /// the compressed form.
    Stored(QuantizedMatrix),
    /// Stored integers, which are multiplied in 16-bit arithmetic.
    Words(QuantizedMatrix),
}

/// Maximum number of rows that are multiplied by compressed weights.
const FEW_ROWS: usize = 8;

fn factor(work: &Work<'_>, product: &Product) -> Result<Memoized<Factor>> {
    let &Product { rows, inputs, outputs, order, .. } = product;
    // 16-bit blocks are more precise than half precision, but not than single precision.
    let is_fast = work.source.numerics == Numerics::Fast && work.machine.isa != Isa::Portable;
    let words = is_fast && work.graph.dtype(&product.x) == DType::Fp16;
    work.source.derived(work.machine, &[&product.weights], move |source, machine, known| {
        let weights = &known[0];
        if (words || rows <= FEW_ROWS)
            && order == Order::OutputsFirst
            && let Some(stored) = source.weights(weights).and_then(|it| it.stored(outputs))
            && stored.columns() == inputs
        {
            if words && stored.has_words() {
                return Ok(Arc::new(Factor::Words(stored)));
            }
            if rows <= FEW_ROWS {
                return Ok(Arc::new(Factor::Stored(stored)));
            }
        }
        let matrix = source.matrix(machine, weights, inputs, outputs, order)?;
        Ok(Arc::new(Factor::Matrix(matrix)))
    })
}

/// A constant bias, `None` if all elements are 0.
pub(super) type Bias = Memoized<Option<Vec<f32>>>;

/// The bias of a constant.
pub(super) fn bias(work: &Work<'_>, known: &Arc<ConstantTensor>) -> Result<Bias> {
    work.source.derived(work.machine, &[known], |source, _, known| {
        let array = known[0].elements(source)?;
        let floats = array.as_floats().unwrap_or_default();
        Ok(Arc::new(floats.iter().any(|&element| element != 0.0).then(|| floats.to_vec())))
    })
}

struct Linear {
    factor: Memoized<Factor>,
    depth: usize,
    width: usize,
    bias: Bias,
    rows: usize,
    activation: Activation,
    /// `None` without a residual, the second input. Otherwise true if it is added after the
    /// activation.
    residual: Option<bool>,
    rounding: Rounding,
    label: String,
    /// Bytes per weight.
    weight_bytes: usize,
}

impl Kernel for Linear {
    fn run(
        &self,
        machine: &CpuContext,
        inputs: &[View<'_>],
        outputs: &mut [&mut [f32]],
        _scratch: &mut [f32],
    ) -> Result<()> {
        let (depth, width) = (self.depth, self.width);
        let left = Matrix { elements: inputs[0].floats()?, stride: depth };
        let residual = match self.residual {
            Some(after_activation) => {
                let rows = Matrix { elements: inputs[1].floats()?, stride: width };
                Some(Residual { rows, after_activation })
            }
            None => None,
        };
        let (factor, bias) = (self.factor.get(), self.bias.get());
        let epilogue = Epilogue {
            bias: (*bias).as_deref(),
            residual,
            activation: self.activation,
            rounding: self.rounding,
        };
        let output = MatrixMut { elements: outputs[0], stride: width };
        let (pool, isa) = (&machine.pool, machine.isa);
        match &*factor {
            Factor::Matrix(matrix) => {
                let weights = matrix.for_use(machine);
                multiply(pool, self.rows, left, weights, output, &epilogue);
            }
            Factor::Stored(weights) => {
                multiply_stored(pool, isa, self.rows, left, weights, output, &epilogue);
            }
            Factor::Words(weights) => {
                multiply_words(pool, isa, self.rows, left, weights, output, &epilogue);
            }
        }
        Ok(())
    }

    fn label(&self) -> String {
        self.label.clone()
    }

    fn cost(&self) -> Cost {
        let (depth, width) = (self.depth, self.width);
        Cost {
            operations: 2 * (self.rows * depth * width) as u64,
            bytes: (4 * self.rows * (depth + width) + self.weight_bytes * depth * width) as u64,
        }
    }
}
