//! Convolutions.

use crate::decompose::prelude::*;

pub(crate) const ROWS: &[Row] = &[
    by(
        convolved,
        &[
            "aten.conv{1,2,3}d",
            "aten.conv_transpose{1,2,3}d",
            "aten.convolution",
            "aten._convolution.default",
            "aten._convolution_mode",
        ],
    ),
    by(tbc, &["aten.conv_tbc"]),
];

/// Parameters of a convolution.
pub(crate) struct Convolution {
    pub(crate) weight: Tensor,
    pub(crate) bias: Option<Tensor>,
    pub(crate) stride: Vec<i64>,
    pub(crate) padding: Vec<i64>,
    pub(crate) dilation: Vec<i64>,
    pub(crate) output_padding: Vec<i64>,
    pub(crate) groups: i64,
    pub(crate) transposed: bool,
}

impl Convolution {
    /// A convolution with unit stride and dilation and without padding.
    pub(crate) fn plain(weight: &Tensor, bias: Option<&Tensor>) -> Convolution {
        let spatial = weight.rank().saturating_sub(2);
        Convolution {
            weight: weight.clone(),
            bias: bias.cloned(),
            stride: vec![1; spatial],
            padding: vec![0; spatial],
            dilation: vec![1; spatial],
            output_padding: vec![0; spatial],
            groups: 1,
            transposed: false,
        }
    }
}

fn convolved(call: &mut Call<'_>) -> Results {
    let (input, weight) = (call.tensor("input")?, call.tensor("weight")?);
    let bias = call.optional_tensor("bias")?;
    let spatial = weight.rank().saturating_sub(2);
    if spatial == 0 {
        refuse!("the weight of a convolution must have at least 3 dimensions");
    }
    let each = |values: Vec<i64>, default: i64| match values.as_slice() {
        [] => vec![default; spatial],
        [single] => vec![*single; spatial],
        _ => values,
    };
    let mut shape = Convolution {
        stride: each(call.ints("stride")?, 1),
        dilation: each(call.ints("dilation")?, 1),
        groups: call.int("groups")?,
        transposed: call.name().starts_with("conv_transpose") || call.bool("transposed")?,
        ..Convolution::plain(&weight, bias.as_ref())
    };
    if call.has("output_padding") {
        shape.output_padding = each(call.ints("output_padding")?, 0);
    }
    let batched = input.rank() == weight.rank();
    let mut x = if batched { input } else { call.unsqueeze(&input, 0)? };
    match call.argument("padding")? {
        Argument::Text(text) if text == "valid" => {}
        Argument::Text(text) if text == "same" => {
            let mut pads = Vec::new();
            for at in (0..spatial).rev() {
                let kernel = weight.known(at + 2, "the size of the kernel")?;
                let total = shape.dilation.at(at)?.saturating_mul(kernel - 1);
                *shape.padding.at_mut(at)? = total / 2;
                pads.extend([0, total % 2]);
            }
            x = call.pad(&x, &pads, Argument::Int(0))?;
        }
        Argument::Text(text) => refuse!("the padding `{text}` of a convolution is not supported"),
        _ => shape.padding = each(call.ints("padding")?, 0),
    }
    let mut sizes = call.result_sizes()?;
    if !batched {
        sizes.insert(0, Size::Fixed(1));
    }
    let done = match spatial {
        3 => volume(call, &x, &shape, sizes)?,
        _ => plane(call, &x, &shape, sizes)?,
    };
    one(if batched { done } else { call.squeeze(&done, 0)? })
}

/// A 1-D or 2-D convolution.
pub(crate) fn plane(
    call: &mut Call<'_>,
    x: &Tensor,
    shape: &Convolution,
    sizes: Vec<Size>,
) -> TensorResult {
    let given = given!(
        input = x,
        weight = shape.weight,
        bias = shape.bias,
        stride = shape.stride,
        padding = shape.padding,
        dilation = shape.dilation,
        transposed = shape.transposed,
        output_padding = shape.output_padding,
        groups = shape.groups,
    );
    call.emit("aten.convolution.default", given, x.dtype, sizes)
}

/// 3-D convolution as a 2-D one: the depth of the kernel is unrolled into channels.
fn volume(call: &mut Call<'_>, x: &Tensor, shape: &Convolution, sizes: Vec<Size>) -> TensorResult {
    if shape.transposed {
        return transposed_volume(call, x, shape, sizes);
    }
    let (weight, pad) = (&shape.weight, *shape.padding.at(0)?);
    let x = call.pad(x, &[0, 0, 0, 0, pad, pad], Argument::Int(0))?;
    let ([batch, inputs, _, height, width], [outputs, inner, _, tall, wide]) =
        (x.extent(..)?, weight.extent(..)?)
    else {
        refuse!(
            "a 3D convolution does not support tensors of rank {} and {}",
            x.rank(),
            weight.rank()
        );
    };
    let [new_batch, channels, new_depth, new_height, new_width] = &sizes[..] else {
        refuse!("a 3D convolution returns a tensor of rank {}", sizes.len());
    };
    let depth = size::known(new_depth, "the depth of a 3D convolution")?;
    let kernel = weight.known(2, "the depth of a 3D convolution")?;
    let mut layers = Vec::new();
    for at in 0..kernel {
        let start = (checked(at) * *shape.dilation.at(0)?).get()?;
        layers.push(call.slice(&x, 2, start, depth, *shape.stride.at(0)?)?);
    }
    // Dimensions: batch, channels, kernel, depth, height, width.
    let stack = call.stack(&layers, 2)?;
    let turned = call.permute(&stack, &[0, 3, 1, 2, 4, 5])?;
    let images = size::multiply(batch, new_depth);
    let of_kernel = |channels| size::multiply(channels, &Size::Fixed(kernel));
    let flat = vec![images.clone(), of_kernel(inputs), height.clone(), width.clone()];
    let flat = call.view(&turned, flat)?;
    let flat_weight = vec![outputs.clone(), of_kernel(inner), tall.clone(), wide.clone()];
    let flat_weight = call.view(weight, flat_weight)?;
    let rest = Convolution {
        stride: shape.stride.part(1..)?.to_vec(),
        padding: shape.padding.part(1..)?.to_vec(),
        dilation: shape.dilation.part(1..)?.to_vec(),
        groups: shape.groups,
        ..Convolution::plain(&flat_weight, shape.bias.as_ref())
    };
    let found = vec![images, channels.clone(), new_height.clone(), new_width.clone()];
    let done = plane(call, &flat, &rest, found)?;
    let apart = [new_batch, new_depth, channels, new_height, new_width].map(Size::clone);
    let apart = call.view(&done, apart.to_vec())?;
    call.permute(&apart, &[0, 2, 1, 3, 4])
}

/// Transposed 3-D convolution as a plain convolution with the flipped kernel over an image with inserted zeros.
fn transposed_volume(
    call: &mut Call<'_>,
    x: &Tensor,
    shape: &Convolution,
    sizes: Vec<Size>,
) -> TensorResult {
    let (mut spread, weight) = (x.clone(), &shape.weight);
    let mut pads = Vec::with_capacity(6);
    for at in 0..3 {
        let length = x.known(at + 2, "a size of a 3D convolution")?;
        let kernel = weight.known(at + 2, "a size of a 3D convolution")?;
        let stride = *shape.stride.at(at)?;
        if stride > 1 {
            // Inserts zeros after each element, then drops the trailing ones.
            let apart = call.unsqueeze(&spread, at + 3)?;
            let behind = apart.rank() - (at + 3) - 1;
            let mut wide = vec![0; 2 * behind];
            wide.extend([0, stride - 1]);
            let padded = call.pad(&apart, &wide, Argument::Int(0))?;
            let joined = Size::Fixed((checked(length) * stride).get()?);
            let joined = call.view(&padded, spread.with_size(at + 2, joined)?)?;
            let reach = ((checked(length) - 1) * stride + 1).get()?;
            spread = call.slice(&joined, at + 2, 0, reach, 1)?;
        }
        let reach = checked(*shape.dilation.at(at)?) * (kernel - 1) - *shape.padding.at(at)?;
        pads.splice(0..0, [reach.get()?, (reach + *shape.output_padding.at(at)?).get()?]);
    }
    let padded = call.pad(&spread, &pads, Argument::Int(0))?;
    let turned = call.flip(weight, &[2, 3, 4])?;
    // From input channels by group and output channels per group to output channels and input channels per group.
    let groups = Size::Fixed(shape.groups);
    let outer = weight.extent(1)?;
    let inner = weight.known(0, "the number of channels")?;
    let inner = Size::Fixed(inner / shape.groups.max(1));
    let rest = weight.extent(2..)?;
    let apart =
        call.view(&turned, [&[groups.clone(), inner.clone(), outer.clone()], rest].concat())?;
    let swapped = call.transpose(&apart, 1, 2)?;
    let joined = [&[size::multiply(&groups, outer), inner], rest].concat();
    let weight = call.view(&swapped, joined)?;
    let dilation = shape.dilation.clone();
    let plain = Convolution::plain(&weight, shape.bias.as_ref());
    let plain = Convolution { dilation, groups: shape.groups, ..plain };
    volume(call, &padded, &plain, sizes)
}

/// Convolution with time, batch, channels layout.
fn tbc(call: &mut Call<'_>) -> Results {
    let (x, weight) = (call.tensor("self")?, call.tensor("weight")?);
    let bias = call.tensor("bias")?;
    let x = call.permute(&x, &[1, 2, 0])?;
    let weight = call.permute(&weight, &[2, 1, 0])?;
    let sizes = call.result_sizes()?;
    let [time, batch, channels] = &sizes[..] else {
        refuse!("the result must have rank 3, got {}", sizes.len());
    };
    let sizes = vec![batch.clone(), channels.clone(), time.clone()];
    let plain = Convolution::plain(&weight, Some(&bias));
    let shape = Convolution { padding: vec![call.int("pad")?], ..plain };
    let done = plane(call, &x, &shape, sizes)?;
    one(call.permute(&done, &[2, 0, 1])?)
}
