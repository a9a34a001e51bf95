//! Replaces normalizations, softmax and reductions by kernels, including decomposed RMS norms.
//!
//! ```text
//! a = pow(x = x, y = 2)
//! b = reduce_mean(x = a, axes = [-1], keep_dims = true)
//! c = add(x = b, y = epsilon)
//! d = rsqrt(x = c)
//! e = mul(x = x, y = d)
//! f = mul(x = e, y = gamma)                            f = rms_norm(x)
//! ```
//!
//! In rounded mode decomposed fp16 norms are not replaced, since intermediate results are rounded.

use std::sync::Arc;

use coremill_kernels::matmul::Rounding;
use coremill_kernels::normalize::{
    Affine, Norm, instance_norm_channels_first, normalize_rows, softmax,
};
use coremill_kernels::reduce::{Reduction, reduce};
use coremill_mil::ops::OpKind;
use coremill_reference::array::View;
use coremill_reference::error::Result;
use coremill_simd::math::round_to_fp16;
use coremill_tensor::DType;

use super::super::derived::Memoized;
use super::super::graph::{Node, NodeKind, Operand, Region};
use super::super::kernel::{Cost, CpuContext, Kernel};
use super::linear::rounding;
use super::parameters::parameters;
use super::{Editor, Work};
use crate::plan::{ConstantTensor, FunctionContext};

/// Replaces the normalizations of a region by kernels.
pub(super) fn lower(work: &mut Work<'_>, region: Region) -> Result<Region> {
    let mut editor = Editor::new(work.graph, region);
    for index in 0..editor.len() {
        let found = written_out(work, &editor, index).or_else(|| one(work, &editor, index));
        let Some((nodes, x, form)) = found else { continue };
        let mut last = None;
        for &node in &nodes {
            last = editor.take(node);
        }
        if let (Some(Node { op, outputs, .. }), Some(&place)) = (last, nodes.last()) {
            let shape = work.graph.shape(&x).unwrap_or_default().to_vec();
            let rounding = rounding(work.source, work.graph, outputs[0]);
            let kind = NodeKind::Kernel(Box::new(Normalize { form, shape, rounding }));
            editor.put(work.graph, place, Node { op, kind, inputs: vec![x], outputs });
        }
    }
    Ok(editor.finish())
}

/// The computation, on the input as a dense tensor.
enum Form {
    /// Normalizes each row of `length` elements.
    Rows {
        norm: Norm,
        length: usize,
        gamma: Option<Vector>,
        beta: Option<Vector>,
        epsilon: f32,
    },
    /// Normalizes each channel of each image.
    Instance {
        extents: [usize; 3],
        gamma: Option<Vector>,
        beta: Option<Vector>,
        epsilon: f32,
    },
    /// Softmax along the middle one of three axes.
    Softmax {
        extents: [usize; 3],
    },
    Reduce {
        reduction: Reduction,
        axes: Vec<usize>,
    },
}

type Match = (Vec<usize>, Operand, Form);

/// A constant with one element per channel.
type Vector = Memoized<Vec<f32>>;

fn vector(work: &Work<'_>, known: &Arc<ConstantTensor>) -> Option<Vector> {
    if !known.dtype.is_float() {
        return None;
    }
    let made = work.source.derived(work.machine, &[known], |source, _, known| {
        Ok(Arc::new(known[0].elements(source)?.as_floats().unwrap_or_default().to_vec()))
    });
    made.ok()
}

/// Recognizes a normalization operation.
fn one(work: &Work<'_>, editor: &Editor, index: usize) -> Option<Match> {
    let (source, graph) = (work.source, &*work.graph);
    let node = editor.node(index)?;
    let kind = node.operation()?;
    let x = node.bound("x").first()?;
    let shape = graph.shape(x)?;
    if !matches!(graph.dtype(x), DType::Fp16 | DType::Fp32) || shape.contains(&0) {
        return None;
    }
    graph.slot(*node.outputs.first()?).shape.as_ref()?;
    let rank = shape.len();
    // A constant vector, of the given length if there is one.
    let floats = |name: &str, length: Option<usize>| -> Option<Option<Vector>> {
        match node.bound(name) {
            [] => Some(None),
            [bound] => {
                let known = bound.constant()?;
                let found = known.shape.iter().product::<usize>();
                let fits = length.is_none_or(|length| found == length);
                if fits { vector(work, known).map(Some) } else { None }
            }
            _ => None,
        }
    };
    let epsilon = || parameters(source, graph, node, |call| call.float("epsilon"));
    let form = match kind {
        OpKind::LayerNorm => {
            let mut axes = parameters(source, graph, node, |call| call.axes_or_all("axes", rank))?;
            axes.sort_unstable();
            let first = rank.checked_sub(axes.len())?;
            if axes.is_empty() || !axes.iter().copied().eq(first..rank) {
                return None;
            }
            let length: usize = shape[first..].iter().product();
            let (gamma, beta) = (floats("gamma", Some(length))?, floats("beta", Some(length))?);
            Form::Rows { norm: Norm::Layer, length, gamma, beta, epsilon: epsilon()? }
        }
        OpKind::InstanceNorm if rank >= 3 => {
            let extents = [shape[0], shape[1], shape[2..].iter().product()];
            let (gamma, beta) = (floats("gamma", None)?, floats("beta", None)?);
            Form::Instance { extents, gamma, beta, epsilon: epsilon()? }
        }
        OpKind::Softmax => {
            let axis = parameters(source, graph, node, |call| call.axis("axis", rank))?;
            let product = |extents: &[usize]| extents.iter().product::<usize>();
            let extents = [product(&shape[..axis]), shape[axis], product(&shape[axis + 1..])];
            Form::Softmax { extents }
        }
        kind => {
            let reduction = reduction(kind)?;
            let axes = parameters(source, graph, node, |call| call.axes_or_all("axes", rank))?;
            Form::Reduce { reduction, axes }
        }
    };
    Some((vec![index], x.clone(), form))
}

fn reduction(kind: OpKind) -> Option<Reduction> {
    Some(match kind {
        OpKind::ReduceSum => Reduction::Sum,
        OpKind::ReduceMean => Reduction::Mean,
        OpKind::ReduceMax => Reduction::Max,
        OpKind::ReduceMin => Reduction::Min,
        OpKind::ReduceSumSquare => Reduction::SumSquares,
        OpKind::ReduceL1Norm => Reduction::L1,
        OpKind::ReduceL2Norm => Reduction::L2,
        _ => return None,
    })
}

/// Recognizes the decomposed RMS norm around a mean of squares.
fn written_out(work: &Work<'_>, editor: &Editor, index: usize) -> Option<Match> {
    let (source, graph) = (work.source, &*work.graph);
    let mean = editor.node(index)?;
    if mean.operation()? != OpKind::ReduceMean
        || rounding(source, graph, mean.outputs[0]) != Rounding::None
    {
        return None;
    }
    let squares = mean.bound("x").first()?;
    let shape = graph.shape(squares)?;
    let length = *shape.last()?;
    let (axes, keep) = parameters(source, graph, mean, |call| {
        Ok((call.axes_or_all("axes", shape.len())?, call.bool("keep_dims")?))
    })?;
    if axes != [shape.len() - 1] || !keep || shape.contains(&0) {
        return None;
    }
    let (square, node) = editor.writer_of(squares)?;
    editor.sole_reader(squares.slot()?)?;
    let bound = |node: &Node, name: &str| node.bound(name).first().cloned();
    let x = match node.operation()? {
        OpKind::Square => bound(node, "x")?,
        OpKind::Mul => {
            let (x, y) = (bound(node, "x")?, bound(node, "y")?);
            (x.slot()? == y.slot()?).then_some(x)?
        }
        OpKind::Pow => {
            (number(source, node.bound("y").first()?)? == 2.0).then_some(bound(node, "x")?)?
        }
        _ => return None,
    };
    let mut nodes = vec![square, index];
    let (mut at, mut reader) = editor.sole_reader(mean.outputs[0])?;
    let mut epsilon = 0.0;
    if reader.operation()? == OpKind::Add {
        let (x, y) = (reader.bound("x").first()?, reader.bound("y").first()?);
        epsilon = number(source, if y.constant().is_some() { y } else { x })?;
        nodes.push(at);
        (at, reader) = editor.sole_reader(reader.outputs[0])?;
    }
    nodes.push(at);
    let root = reader.outputs[0];
    let divides = match reader.operation()? {
        OpKind::Rsqrt => {
            epsilon += parameters(source, graph, reader, |call| call.float("epsilon"))?;
            false
        }
        OpKind::Sqrt => true,
        _ => return None,
    };
    let (at, scaled) = editor.sole_reader(root)?;
    let (left, right) = (bound(scaled, "x")?, bound(scaled, "y")?);
    let is_x = |operand: &Operand| operand.slot().is_some() && operand.slot() == x.slot();
    let fits = match scaled.operation()? {
        OpKind::Mul if !divides => is_x(&left) || is_x(&right),
        OpKind::RealDiv if divides => is_x(&left),
        _ => false,
    };
    if !fits {
        return None;
    }
    nodes.push(at);
    let mut gamma = None;
    if let Some((at, node)) = editor.sole_reader(scaled.outputs[0])
        && node.operation() == Some(OpKind::Mul)
    {
        let (left, right) = (bound(node, "x")?, bound(node, "y")?);
        let factor = if right.constant().is_some() { &right } else { &left };
        if let Some(known) = factor.constant()
            && known.shape.last() == Some(&length)
            && known.shape.iter().product::<usize>() == length
        {
            gamma = Some(vector(work, known)?);
            nodes.push(at);
        }
    }
    Some((nodes, x, Form::Rows { norm: Norm::Rms, length, gamma, beta: None, epsilon }))
}

/// The value of a constant with one element.
fn number(source: &FunctionContext, operand: &Operand) -> Option<f32> {
    match operand.constant()?.array(source).ok()?.as_floats() {
        Some([number]) => Some(*number),
        _ => None,
    }
}

fn affine<'v>(gamma: &'v Option<Arc<Vec<f32>>>, beta: &'v Option<Arc<Vec<f32>>>) -> Affine<'v> {
    let floats =
        |vector: &'v Option<Arc<Vec<f32>>>| vector.as_ref().map(|vector| vector.as_slice());
    Affine { gamma: floats(gamma), beta: floats(beta) }
}

struct Normalize {
    form: Form,
    shape: Vec<usize>,
    rounding: Rounding,
}

impl Kernel for Normalize {
    fn run(
        &self,
        machine: &CpuContext,
        inputs: &[View<'_>],
        outputs: &mut [&mut [f32]],
        _scratch: &mut [f32],
    ) -> Result<()> {
        let (isa, pool) = (machine.isa, &machine.pool);
        let x = inputs[0].floats()?;
        let target = &mut *outputs[0];
        match &self.form {
            Form::Rows { norm, length, gamma, beta, epsilon } => {
                let [gamma, beta] = [gamma, beta].map(|it| it.as_ref().map(Memoized::get));
                let affine = affine(&gamma, &beta);
                normalize_rows(isa, pool, *norm, x, *length, affine, *epsilon, target);
            }
            Form::Instance { extents, gamma, beta, epsilon } => {
                let [gamma, beta] = [gamma, beta].map(|it| it.as_ref().map(Memoized::get));
                let affine = affine(&gamma, &beta);
                instance_norm_channels_first(isa, pool, x, *extents, affine, *epsilon, target);
            }
            Form::Softmax { extents } => softmax(isa, pool, x, *extents, target),
            Form::Reduce { reduction, axes } => {
                reduce(isa, pool, *reduction, x, &self.shape, axes, target);
            }
        }
        if self.rounding == Rounding::Fp16 {
            round_to_fp16(isa, target);
        }
        Ok(())
    }

    fn label(&self) -> String {
        match &self.form {
            Form::Rows { norm: Norm::Layer, .. } => "layer_norm",
            Form::Rows { norm: Norm::Rms, .. } => "rms_norm",
            Form::Rows { norm: Norm::L2, .. } => "l2_norm",
            Form::Instance { .. } => "instance_norm",
            Form::Softmax { .. } => "softmax",
            Form::Reduce { reduction, .. } => match reduction {
                Reduction::Sum => "reduce_sum",
                Reduction::Mean => "reduce_mean",
                Reduction::Max => "reduce_max",
                Reduction::Min => "reduce_min",
                Reduction::SumSquares => "reduce_sum_square",
                Reduction::L1 => "reduce_l1_norm",
                Reduction::L2 => "reduce_l2_norm",
                _ => "reduce",
            },
        }
        .to_owned()
    }

    fn cost(&self) -> Cost {
        let count: usize = self.shape.iter().product();
        Cost { operations: 5 * count as u64, bytes: 8 * count as u64 }
    }
}
