use coremill_kernels::Activation;
use coremill_kernels::matmul::Rounding;
use coremill_mil::ops::OpKind;

use super::super::super::graph::{Graph, Node, Operand, SlotId};
use super::super::Editor;
use super::super::activation::activation;
use super::super::parameters::parameters;
use super::Convolution;
use crate::plan::FunctionContext;

/// Fuses the operations on a convolution's result, as long as each result has a single reader.
/// Returns the fused nodes in order, and the residual.
pub(super) fn absorb(
    source: &FunctionContext,
    graph: &Graph,
    editor: &Editor,
    index: usize,
    convolution: &mut Convolution,
) -> (Vec<usize>, Option<Operand>) {
    let mut absorbed = Vec::new();
    let mut residual = None;
    let Some(mut slot) = editor.node(index).map(|node| node.outputs[0]) else {
        return (absorbed, residual);
    };
    let expected = graph.slot(slot).clone();
    let mut label = vec![convolution.label.clone()];
    loop {
        let tail = FusedTail { source, graph, editor, convolution, slot };
        let Some((step, nodes)) = tail.next() else { break };
        let Some(last) = nodes.last().and_then(|&last| editor.node(last)) else { break };
        let found = graph.slot(last.outputs[0]);
        if (found.dtype, &found.shape) != (expected.dtype, &expected.shape) {
            break;
        }
        match step {
            Step::Affine { scale, shift } => {
                if let Some(known) = convolution.bias_of.take() {
                    source.note(&known);
                }
                convolution.multiply(&scale);
                convolution.add(&shift);
            }
            Step::Activation(activation) => convolution.activation = activation,
            Step::Residual(operand) => {
                convolution.residual = Some(convolution.activation != Activation::None);
                residual = Some(operand);
            }
        }
        let names = nodes.iter().filter_map(|&node| editor.node(node)?.operation());
        label.extend(names.map(|kind| kind.name().to_owned()));
        slot = last.outputs[0];
        absorbed.extend(nodes);
    }
    convolution.label = label.join("+");
    (absorbed, residual)
}

/// An operation on the result.
enum Step {
    /// A factor and an addend per channel.
    Affine {
        scale: Vec<f32>,
        shift: Vec<f32>,
    },
    Activation(Activation),
    Residual(Operand),
}

impl Convolution {
    fn multiply(&mut self, factors: &[f32]) {
        let product = |values: &mut Option<Vec<f32>>| {
            if let Some(values) = values {
                values.iter_mut().zip(factors).for_each(|(value, factor)| *value *= factor);
            }
        };
        if factors.iter().any(|&factor| factor != 1.0) {
            self.scale.get_or_insert_with(|| vec![1.0; factors.len()]);
            product(&mut self.scale);
            product(&mut self.bias);
        }
    }

    fn add(&mut self, addends: &[f32]) {
        let bias = self.bias.get_or_insert_with(|| vec![0.0; addends.len()]);
        bias.iter_mut().zip(addends).for_each(|(value, addend)| *value += addend);
    }
}

/// The state of the epilogue so far.
struct FusedTail<'t> {
    source: &'t FunctionContext,
    graph: &'t Graph,
    editor: &'t Editor,
    convolution: &'t Convolution,
    slot: SlotId,
}

impl FusedTail<'_> {
    /// The next operation of the epilogue, and its nodes.
    fn next(&self) -> Option<(Step, Vec<usize>)> {
        let is_linear =
            self.convolution.activation == Activation::None && self.convolution.residual.is_none();
        if let Some((index, node)) = self.editor.sole_reader(self.slot) {
            // Folding into the weights would change the results if every operation rounds.
            if is_linear
                && self.convolution.rounding == Rounding::None
                && let Some(step) = self.affine(node)
            {
                return Some((step, vec![index]));
            }
            if self.convolution.residual.is_none()
                && let Some(addend) = self.addend(node)
            {
                return Some((Step::Residual(addend), vec![index]));
            }
        }
        if self.convolution.activation == Activation::None
            && self.convolution.residual != Some(true)
        {
            let (activation, nodes) = self.activation()?;
            return Some((Step::Activation(activation), nodes));
        }
        None
    }

    /// Recognizes a factor and an addend per channel.
    fn affine(&self, node: &Node) -> Option<Step> {
        let kind = node.operation()?;
        let channels = self.convolution.outputs;
        if kind == OpKind::BatchNorm {
            let floats = |name: &str| -> Option<Vec<f32>> {
                let floats = node.bound(name).first()?.constant()?.array(self.source).ok()?;
                floats.as_floats().filter(|floats| floats.len() == channels).map(<[f32]>::to_vec)
            };
            let or_all = |name: &str, value: f32| match node.bound(name) {
                [] => Some(vec![value; channels]),
                _ => floats(name),
            };
            let (mean, variance) = (floats("mean")?, floats("variance")?);
            let (gamma, beta) = (or_all("gamma", 1.0)?, or_all("beta", 0.0)?);
            let epsilon = parameters(self.source, self.graph, node, |call| call.float("epsilon"))?;
            let scale: Vec<f32> = gamma
                .iter()
                .zip(&variance)
                .map(|(gamma, variance)| gamma / (variance + epsilon).sqrt())
                .collect();
            let shift = beta.iter().zip(&mean).zip(&scale);
            let shift = shift.map(|((beta, mean), scale)| beta - mean * scale).collect();
            return Some(Step::Affine { scale, shift });
        }
        let ([x], [y]) = (node.bound("x"), node.bound("y")) else { return None };
        let is_first = x.slot() == Some(self.slot);
        let constant = self.per_channel(if is_first { y } else { x })?;
        let (ones, zeros) = (vec![1.0; channels], vec![0.0; channels]);
        let negated = || constant.iter().map(|value| -value).collect();
        let (scale, shift) = match (kind, is_first) {
            (OpKind::Add, _) => (ones, constant),
            (OpKind::Mul, _) => (constant, zeros),
            (OpKind::Sub, true) => (ones, negated()),
            (OpKind::Sub, false) => (vec![-1.0; channels], constant),
            (OpKind::RealDiv, true) => (constant.iter().map(|value| 1.0 / value).collect(), zeros),
            _ => return None,
        };
        Some(Step::Affine { scale, shift })
    }

    /// The elements of a constant with one element per channel, or one for all channels.
    fn per_channel(&self, operand: &Operand) -> Option<Vec<f32>> {
        let known = operand.constant()?;
        let channels = self.convolution.outputs;
        let rank = self.graph.slot(self.slot).shape.as_ref()?.len();
        let after = known.shape.len().checked_sub(1)?;
        let channel_axis = (known.shape.len() + 1).checked_sub(rank);
        let varies = |axis: usize| known.shape[axis] != 1;
        if known.shape.len() > rank
            || (0..=after).any(|axis| varies(axis) && Some(axis) != channel_axis)
        {
            return None;
        }
        match known.array(self.source).ok()?.as_floats()? {
            [value] => Some(vec![*value; channels]),
            values if values.len() == channels => Some(values.to_vec()),
            _ => None,
        }
    }

    /// The other operand of an addition, if its shape is the same.
    fn addend(&self, node: &Node) -> Option<Operand> {
        if node.operation()? != OpKind::Add {
            return None;
        }
        let ([x], [y]) = (node.bound("x"), node.bound("y")) else { return None };
        let other = if x.slot() == Some(self.slot) { y } else { x };
        let slot = self.graph.slot(self.slot);
        let same = self.graph.shape(other)? == slot.shape.as_deref()?
            && self.graph.dtype(other) == slot.dtype
            && other.slot().is_some_and(|other| other != self.slot);
        same.then(|| other.clone())
    }

    /// The next activation, which may consist of several operations.
    fn activation(&self) -> Option<(Activation, Vec<usize>)> {
        if let Some((index, node)) = self.editor.sole_reader(self.slot) {
            if let Some((activation, _)) = activation(self.source, self.graph, node) {
                return Some((activation, vec![index]));
            }
            // hardswish(x) as t = x > a ? x : 0 and t · hard_sigmoid(t), which is 0 below a.
            let cut = node.outputs[0];
            if node.operation()? == OpKind::ThresholdedRelu {
                let bound = parameters(self.source, self.graph, node, |call| call.float("alpha"))?;
                let (gated, mut nodes) = self.gate(cut)?;
                if let Activation::HardSwish { alpha, beta } = gated
                    && (alpha * bound + beta).abs() < 1e-4
                {
                    nodes.insert(0, index);
                    return Some((gated, nodes));
                }
            }
            return None;
        }
        self.gate(self.slot)
    }

    /// Recognizes `x · sigmoid(x)` or `x · hard_sigmoid(x)`.
    fn gate(&self, x: SlotId) -> Option<(Activation, Vec<usize>)> {
        if self.convolution.rounding != Rounding::None || self.editor.escapes(x) {
            return None;
        }
        let &[one, other] = self.editor.readers(x) else { return None };
        let (first, last) = (one.min(other), one.max(other));
        let (gate, product) = (self.editor.node(first)?, self.editor.node(last)?);
        let gated = match activation(self.source, self.graph, gate)?.0 {
            Activation::Sigmoid => Activation::Silu,
            Activation::HardSigmoid { alpha, beta } => Activation::HardSwish { alpha, beta },
            _ => return None,
        };
        let (reader, _) = self.editor.sole_reader(gate.outputs[0])?;
        (reader == last && product.operation()? == OpKind::Mul).then(|| (gated, vec![first, last]))
    }
}
