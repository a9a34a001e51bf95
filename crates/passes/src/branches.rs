//! Merges parallel convolutions of the same value into one.
//!
//! ```text
//! a = conv(x = x, weight = v);      3 × 3
//! b = conv(x = x, weight = w);      1 × 1                 e = conv(x = x, weight = v + w + s·1, bias = …);
//! c = batch_norm(x = x, …);                    becomes
//! d = add(x = a, y = b);
//! e = add(x = d, y = c);
//! ```
//!
//! Networks such as RepVGG and MobileOne are trained with such branches. A single convolution rounds once instead of
//! once per branch and sum.

use coremill_tensor::{Buffer, DType};

use super::affine::{batch_norm, floats};
use super::{AnalyzedFunction, Editor};
use coremill_mil::ir::{Binding, Constant, Op, OpId, ValueId};
use coremill_mil::ops::OpKind;

/// Maximum number of elements of a weight; the sum is computed in memory.
const MAX_ELEMENTS: u64 = 1 << 26;

/// Runs the pass and returns the names of the sums that became convolutions.
pub fn reparameterize_conv_branches(draft: &mut AnalyzedFunction) -> Vec<String> {
    let mut editor = Editor::new(draft);
    let mut merged: Vec<String> = Vec::new();
    for id in editor.ops() {
        let Some((taken, given)) = merge(&mut editor, id) else { continue };
        merged.retain(|name| !taken.contains(name));
        merged.push(given);
    }
    merged
}

/// A convolution with constant weights.
struct Branch {
    source: ValueId,
    /// The operation; `None` for a norm of the source.
    conv: Option<OpId>,
    groups: usize,
    strides: Vec<i64>,
    dilations: Vec<i64>,
    /// Leading and trailing padding of each dimension.
    pads: Vec<[i64; 2]>,
    /// Output channels, input channels per group, and kernel size.
    shape: Vec<usize>,
    weight: Vec<f32>,
    bias: Vec<f64>,
}

/// Merges the branches of a sum. Returns the names of its operands and of its result.
fn merge(editor: &mut Editor<'_>, id: OpId) -> Option<([String; 2], String)> {
    let op = editor.op_of(id, OpKind::Add)?;
    let output = op.outputs[0];
    let (x, y) = (editor.argument(id, "x")?, editor.argument(id, "y")?);
    if editor.shape(x) != editor.shape(y) || editor.dtype(output) != Some(DType::Fp32) {
        return None;
    }
    let (left, right) = (layer(editor, x, id)?, layer(editor, y, id)?);
    let (larger, smaller) = match (left, right) {
        (Layer::Norm(norm), Layer::Conv(conv)) | (Layer::Conv(conv), Layer::Norm(norm)) => {
            let branch = convolution(editor, conv)?;
            let of_norm = normalisation(editor, norm, &branch)?;
            (branch, of_norm)
        }
        (Layer::Conv(left), Layer::Conv(right)) => {
            let (left, right) = (convolution(editor, left)?, convolution(editor, right)?);
            if left.weight.len() < right.weight.len() { (right, left) } else { (left, right) }
        }
        (Layer::Norm(_), Layer::Norm(_)) => return None,
    };
    let sum = sum(larger, &smaller)?;
    let mut new = Op { outputs: Vec::new(), ..editor.op(sum.conv?)?.clone() };
    let label = editor.name(output).to_owned();
    let extents: Vec<u64> = sum.shape.iter().map(|&extent| extent as u64).collect();
    let weight = constant(&extents, sum.weight.into_iter());
    let bias = constant(&extents[..1], sum.bias.into_iter().map(|bias| bias as f32));
    for (name, constant) in [("weight", weight), ("bias", bias)] {
        let value = editor.constant_before(id, constant, &format!("{label}_{name}"));
        new.set_input(name.into(), vec![Binding::Value(value)]);
    }
    let pads: Vec<i32> =
        sum.pads.iter().flatten().map(|&pad| i32::try_from(pad).ok()).collect::<Option<_>>()?;
    new.set_input("pad_type".into(), vec![Binding::Literal(Constant::string("custom"))]);
    new.set_input("pad".into(), vec![Binding::Literal(Constant::int32s(&pads))]);
    let taken = [x, y].map(|value| editor.name(value).to_owned());
    editor.rewrite(id, new).ok()?;
    Some((taken, label))
}

/// Operation that can be a branch.
enum Layer {
    Conv(OpId),
    Norm(OpId),
}

/// The operation that produces a value, if the sum is its only user.
fn layer(editor: &Editor<'_>, value: ValueId, sum: OpId) -> Option<Layer> {
    if editor.sole_user(value) != Some(sum) {
        return None;
    }
    let id = editor.producer(value)?;
    match editor.op(id)?.kind()? {
        OpKind::Conv => Some(Layer::Conv(id)),
        OpKind::BatchNorm => Some(Layer::Norm(id)),
        _ => None,
    }
}

fn convolution(editor: &Editor<'_>, id: OpId) -> Option<Branch> {
    let weight = editor.constant_argument(id, "weight")?;
    let ty = weight.tensor_type().filter(|ty| ty.dtype == DType::Fp32)?;
    ty.element_count().filter(|&count| count <= MAX_ELEMENTS)?;
    let shape: Vec<usize> = ty
        .known_shape()?
        .iter()
        .map(|&extent| usize::try_from(extent).ok())
        .collect::<Option<_>>()?;
    let kernel = shape.get(2..)?;
    let by_dimension = |name: &str, usual: i64| match editor.op(id)?.binding(name) {
        Some(_) => editor.ints(id, name),
        None => Some(vec![usual; kernel.len()]),
    };
    let (strides, dilations) = (by_dimension("strides", 1)?, by_dimension("dilations", 1)?);
    let pads = match editor.op(id)?.binding("pad_type").and(editor.text(id, "pad_type")) {
        None | Some("valid") => vec![[0; 2]; kernel.len()],
        Some("custom") => editor.ints(id, "pad")?.as_chunks::<2>().0.to_vec(),
        _ => return None,
    };
    let elements = weight.elements()?;
    let bytes = elements.with_window(0..elements.len(), <[u8]>::to_vec).ok()?;
    let bias = match editor.op(id)?.binding("bias") {
        Some(binding) => floats(editor, binding)?,
        None => vec![0.0; shape[0]],
    };
    if [strides.len(), dilations.len(), pads.len()] != [kernel.len(); 3] || bias.len() != shape[0] {
        return None;
    }
    Some(Branch {
        source: editor.argument(id, "x")?,
        conv: Some(id),
        groups: match editor.op(id)?.binding("groups") {
            Some(_) => usize::try_from(editor.number(id, "groups")? as i64).ok()?,
            None => 1,
        },
        strides,
        dilations,
        pads,
        weight: bytes.as_chunks::<4>().0.iter().map(|&raw| f32::from_le_bytes(raw)).collect(),
        bias,
        shape,
    })
}

/// A norm of the convolution's source as a convolution with a kernel of one element.
fn normalisation(editor: &Editor<'_>, id: OpId, beside: &Branch) -> Option<Branch> {
    let affine = batch_norm(editor, id)?;
    let (channels, inputs) = (beside.shape[0], beside.shape[1]);
    let rank = beside.strides.len();
    // Each output channel must correspond to the same input channel.
    if affine.x != beside.source || channels != inputs * beside.groups {
        return None;
    }
    let spread = |vector: &[f64]| (vector.len() == channels).then(|| vector.to_vec());
    let (scale, bias) = (spread(&affine.scale)?, spread(&affine.shift)?);
    let mut weight = vec![0f32; channels * inputs];
    for (channel, &scale) in scale.iter().enumerate() {
        weight[channel * inputs + channel % inputs] = scale as f32;
    }
    Some(Branch {
        source: affine.x,
        conv: None,
        groups: beside.groups,
        strides: vec![1; rank],
        dilations: vec![1; rank],
        pads: vec![[0; 2]; rank],
        shape: [vec![channels, inputs], vec![1; rank]].concat(),
        weight,
        bias,
    })
}

/// Adds a branch to a branch with a kernel at least as large.
fn sum(mut larger: Branch, smaller: &Branch) -> Option<Branch> {
    let is_alike = larger.source == smaller.source
        && larger.groups == smaller.groups
        && larger.strides == smaller.strides
        && larger.shape[..2] == smaller.shape[..2]
        && larger.shape.len() == smaller.shape.len();
    if !is_alike {
        return None;
    }
    let (outer, inner) = (larger.shape[2..].to_vec(), smaller.shape[2..].to_vec());
    let mut starts = Vec::with_capacity(inner.len());
    for at in 0..inner.len() {
        let step = larger.dilations[at];
        let before = larger.pads[at][0] - smaller.pads[at][0];
        let is_stepped = inner[at] == 1 || smaller.dilations[at] == step;
        let start = usize::try_from(before / step).ok().filter(|_| before % step == 0)?;
        if !is_stepped || start + inner[at] > outer[at] {
            return None;
        }
        starts.push(start);
    }
    let (size, part) = (outer.iter().product::<usize>(), inner.iter().product::<usize>());
    for (at, &weight) in smaller.weight.iter().enumerate() {
        let (kernel, mut within) = (at / part, at % part);
        let (mut place, mut stride) = (0, 1);
        for axis in (0..inner.len()).rev() {
            place += (starts[axis] + within % inner[axis]) * stride;
            within /= inner[axis];
            stride *= outer[axis];
        }
        larger.weight[kernel * size + place] += weight;
    }
    larger.bias.iter_mut().zip(&smaller.bias).for_each(|(sum, bias)| *sum += bias);
    Some(larger)
}

/// An `fp32` constant.
fn constant(shape: &[u64], numbers: impl Iterator<Item = f32>) -> Constant {
    let bytes: Vec<u8> = numbers.flat_map(f32::to_le_bytes).collect();
    Constant::by_size(DType::Fp32, shape, Buffer::from(bytes))
}
