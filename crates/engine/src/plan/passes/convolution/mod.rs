//! Convolutions with constant weights, fused with the operations on their results.
//!
//! ```text
//! p = pad(x = x, pad = [1, 1, 1, 1])
//! c = conv(x = p, weight = w)
//! b = batch_norm(x = c, mean = m, variance = v)
//! s = add(x = b, y = r)
//! y = relu(x = s)                                 y = conv+batch_norm+add+relu(x, r)
//! ```
//!
//! [`absorb`] removes the operations that a convolution can include from a region and describes
//! each convolution. The layout pass then chooses memory layouts and creates the kernels.

mod finish;
mod kernel;
mod tail;
mod transposed;
mod weights;

use std::collections::HashMap;
use std::sync::Arc;

use coremill_kernels::Activation;
use coremill_kernels::matmul::Rounding;
use coremill_mil::ops::OpKind;
use coremill_reference::error::fail;
use coremill_reference::ops::{conv, window};
use coremill_tensor::DType;

pub(super) use kernel::Kernels;

use super::super::graph::{Graph, Node, NodeKind, Operand, ReferenceOp, Region, SlotId};
use super::linear::rounding;
use super::parameters::parameters;
use super::{Editor, Work};
use crate::plan::{ConstantTensor, FunctionContext};

/// A convolution or transposed convolution with constant weights, and its epilogue.
///
/// Spatial sizes have three dimensions. Leading dimensions that the operation lacks are 1.
#[derive(Clone)]
pub(super) struct Convolution {
    pub(super) transposed: bool,
    pub(super) images: usize,
    pub(super) input: [usize; 3],
    pub(super) output: [usize; 3],
    pub(super) kernel: [usize; 3],
    pub(super) stride: [usize; 3],
    pub(super) dilation: [usize; 3],
    /// Padding before the input. For a transposed convolution, the number of elements cropped at
    /// the start of the output.
    pub(super) padding: [usize; 3],
    pub(super) groups: usize,
    /// Number of input channels.
    pub(super) channels: usize,
    /// Number of output channels.
    pub(super) outputs: usize,
    /// The weight in the operation's layout.
    pub(super) weight: Arc<ConstantTensor>,
    /// Factor of each output channel's weights.
    pub(super) scale: Option<Vec<f32>>,
    pub(super) bias: Option<Vec<f32>>,
    /// The constant that holds the bias, unless a fused operation has changed the bias.
    pub(super) bias_of: Option<Arc<ConstantTensor>>,
    pub(super) activation: Activation,
    /// `None` without a residual input. Otherwise true if the residual is added after the
    /// activation.
    pub(super) residual: Option<bool>,
    pub(super) rounding: Rounding,
    pub(super) label: String,
}

/// Finds the convolutions of a region and fuses the operations around them. Returns descriptions by
/// output slot. The node of a convolution keeps its input and an optional residual.
pub(super) fn absorb(
    work: &mut Work<'_>,
    region: Region,
) -> (Region, HashMap<SlotId, Convolution>) {
    let mut editor = Editor::new(work.graph, region);
    let mut found = HashMap::new();
    for index in 0..editor.len() {
        let Some(node) = editor.node(index) else { continue };
        let Some((mut convolution, mut x)) = recognise(work.source, work.graph, node) else {
            continue;
        };
        if let Some(padded) = absorb_pad(work.source, work.graph, &editor, &x, &mut convolution) {
            x = padded;
        }
        let (absorbed, residual) =
            tail::absorb(work.source, work.graph, &editor, index, &mut convolution);
        let mut last = editor.take(index);
        for &follower in &absorbed {
            last = editor.take(follower);
        }
        let Some(Node { op, outputs, .. }) = last else { continue };
        found.insert(outputs[0], convolution);
        let mut inputs = vec![x];
        inputs.extend(residual);
        let kind = match OpKind::Conv.rows() {
            [row, ..] => {
                NodeKind::Reference(ReferenceOp { function: None, row, parameters: Vec::new() })
            }
            [] => continue,
        };
        let place = absorbed.last().copied().unwrap_or(index);
        editor.put(work.graph, place, Node { op, kind, inputs, outputs });
    }
    (editor.finish(), found)
}

/// A convolution and its input.
pub(super) fn recognise(
    source: &FunctionContext,
    graph: &Graph,
    node: &Node,
) -> Option<(Convolution, Operand)> {
    let kind = node.operation()?;
    let transposed = match kind {
        OpKind::Conv => false,
        OpKind::ConvTranspose => true,
        _ => return None,
    };
    let ([x], [weight]) = (node.bound("x"), node.bound("weight")) else { return None };
    let weight = weight.constant()?;
    if !matches!(graph.dtype(x), DType::Fp16 | DType::Fp32) {
        return None;
    }
    let input = graph.shape(x)?;
    let output = graph.slot(*node.outputs.first()?).shape.as_deref()?;
    let rank = input.len();
    if !(3..=5).contains(&rank) || output.len() != rank || weight.shape.len() != rank {
        return None;
    }
    if output.contains(&0) || input.contains(&0) {
        return None;
    }
    let bias_of = match node.bound("bias") {
        [] => None,
        [bias] => Some(Arc::clone(bias.constant()?)),
        _ => return None,
    };
    let bias = match &bias_of {
        Some(known) => Some(known.elements(source).ok()?.as_floats()?.to_vec()),
        None => None,
    };
    let outputs = output[1];
    if bias.as_ref().is_some_and(|bias| bias.len() != outputs) {
        return None;
    }
    let (groups, strides, dilations, padding) = parameters(source, graph, node, |call| {
        let spatial = rank - 2;
        let groups = call.int("groups")?;
        let dilations = window::positive(call, "dilations", spatial)?;
        let strides = window::positive(call, "strides", spatial)?;
        let padding = match transposed {
            false => {
                let kernel = &weight.shape[2..];
                let windows = window::windows(call, &input[2..], kernel, &dilations, false)?;
                if windows.iter().zip(&output[2..]).any(|(window, &steps)| window.output != steps) {
                    fail!("the windows do not match the output shape");
                }
                windows.iter().map(|window| window.before).collect()
            }
            true => conv::cut_before(call)?,
        };
        Ok((groups, strides, dilations, padding))
    })?;
    let groups = usize::try_from(groups).ok().filter(|&groups| groups > 0)?;
    let (channels, expected) = (
        input[1],
        match transposed {
            false => (outputs, input[1] / groups),
            true => (input[1], outputs / groups),
        },
    );
    if (weight.shape[0], weight.shape[1]) != expected
        || channels % groups != 0
        || outputs % groups != 0
    {
        return None;
    }
    let extents = |values: &[i64], missing: usize| spatial(&to_extents(values)?, missing);
    let convolution = Convolution {
        transposed,
        images: input[0],
        input: spatial(&input[2..], 1)?,
        output: spatial(&output[2..], 1)?,
        kernel: spatial(&weight.shape[2..], 1)?,
        stride: extents(&strides, 1)?,
        dilation: extents(&dilations, 1)?,
        padding: extents(&padding, 0)?,
        groups,
        channels,
        outputs,
        weight: Arc::clone(weight),
        scale: None,
        bias,
        bias_of,
        activation: Activation::None,
        residual: None,
        rounding: rounding(source, graph, node.outputs[0]),
        label: kind.name().to_owned(),
    };
    // Indirection tables store offsets within an image in 31 bits.
    let pixels = convolution.input.iter().try_fold(1usize, |all, &one| all.checked_mul(one))?;
    (pixels.checked_mul(channels)? < 1 << 31).then(|| (convolution, x.clone()))
}

/// Converts numbers to sizes. Returns `None` if one is negative.
fn to_extents(values: &[i64]) -> Option<Vec<usize>> {
    values.iter().map(|&value| usize::try_from(value).ok()).collect()
}

/// Sizes of up to three dimensions, with `missing` for the leading dimensions that are absent.
fn spatial(extents: &[usize], missing: usize) -> Option<[usize; 3]> {
    let mut all = [missing; 3];
    all.get_mut(3usize.checked_sub(extents.len())?..)?.copy_from_slice(extents);
    Some(all)
}

/// Adds a zero padding of the input to the convolution's own padding. Returns the input of the
/// padding.
pub(super) fn absorb_pad(
    source: &FunctionContext,
    graph: &Graph,
    editor: &Editor,
    x: &Operand,
    convolution: &mut Convolution,
) -> Option<Operand> {
    let (_, node) = editor.writer_of(x)?;
    if node.operation()? != OpKind::Pad || convolution.transposed {
        return None;
    }
    let [inner] = node.bound("x") else { return None };
    node.bound("pad").first()?.constant()?;
    let shape = graph.shape(inner)?;
    let pads = parameters(source, graph, node, |call| {
        if call.text("mode")? != "constant" || call.float("constant_val")? != 0.0 {
            fail!("the padding is not zeros");
        }
        call.ints("pad", 0)
    })?;
    let mut all = vec![0; (2 * shape.len()).checked_sub(pads.len())?];
    all.extend(pads.into_iter().map(i64::from));
    if all.iter().take(4).any(|&pad| pad != 0) {
        return None;
    }
    let before: Vec<i64> = all[4..].iter().step_by(2).copied().collect();
    let before = spatial(&to_extents(&before)?, 0)?;
    convolution.input = spatial(&shape[2..], 1)?;
    for (padding, more) in convolution.padding.iter_mut().zip(before) {
        *padding += more;
    }
    convolution.label = format!("pad+{}", convolution.label);
    Some(inner.clone())
}
