//! Convolutions.

use coremill_pt2::{Argument, Size};

use crate::bounds::{At, checked};
use crate::decompose::call::{Call, Results, Tensor, one};
use crate::decompose::row::{Row, by};
use crate::decompose::size;
use crate::decompose::words::{Maybe, list};
use crate::error::{Refusal, refuse};

pub(crate) const ROWS: &[Row] = &[
    by(
        convolved,
        &[
            "aten.conv1d.default",
            "aten.conv2d.default",
            "aten.conv3d.default",
            "aten.conv1d.padding",
            "aten.conv2d.padding",
            "aten.conv3d.padding",
            "aten.conv_transpose1d.default",
            "aten.conv_transpose2d.input",
            "aten.conv_transpose3d.input",
            "aten.convolution.default",
            "aten._convolution.default",
        ],
    ),
    by(tbc, &["aten.conv_tbc.default"]),
];

/// What a convolution does along each dimension.
struct Shape {
    stride: Vec<i64>,
    padding: Vec<i64>,
    dilation: Vec<i64>,
    output_padding: Vec<i64>,
    groups: i64,
    transposed: bool,
}

fn convolved(call: &mut Call<'_>) -> Results {
    let (input, weight) = (call.tensor("input")?, call.tensor("weight")?);
    let bias = call.optional_tensor("bias")?;
    let spatial = weight.rank().saturating_sub(2);
    if spatial == 0 {
        refuse!("the weight of a convolution has at least 3 dimensions");
    }
    let name = call.node.target.to_string();
    let transposed = name.contains("conv_transpose") || call.bool("transposed")?;
    let each = |values: Vec<i64>, default: i64| match values.as_slice() {
        [] => vec![default; spatial],
        [single] => vec![*single; spatial],
        _ => values,
    };
    let mut shape = Shape {
        stride: each(call.ints("stride")?, 1),
        padding: vec![0; spatial],
        dilation: each(call.ints("dilation")?, 1),
        output_padding: match call.node.argument("output_padding") {
            Some(_) => each(call.ints("output_padding")?, 0),
            None => vec![0; spatial],
        },
        groups: call.int("groups")?,
        transposed,
    };
    let batched = input.rank() == weight.rank();
    let mut x = if batched { input } else { call.unsqueeze(&input, 0)? };
    match call.argument("padding")? {
        Argument::Text(text) if text == "valid" => {}
        Argument::Text(text) if text == "same" => {
            let mut pads = Vec::new();
            for at in (0..spatial).rev() {
                let Some(kernel) = weight.extent(at + 2)?.fixed() else {
                    refuse!("the size of the kernel is not known");
                };
                let total = shape.dilation.at(at)?.saturating_mul(kernel - 1);
                *shape.padding.at_mut(at)? = total / 2;
                pads.extend([0, total % 2]);
            }
            x = call.pad(&x, &pads, Argument::Int(0))?;
        }
        Argument::Text(text) => refuse!("a convolution is padded with `{text}`"),
        _ => shape.padding = each(call.ints("padding")?, 0),
    }
    let mut sizes = call.result(0)?.sizes.clone();
    if !batched {
        sizes.insert(0, Size::Fixed(1));
    }
    let done = if spatial == 3 {
        volume(call, &x, &weight, bias.as_ref(), &shape, sizes)?
    } else {
        plane(call, &x, &weight, bias.as_ref(), &shape, sizes)?
    };
    one(if batched { done } else { call.squeeze(&done, 0)? })
}

fn plane(
    call: &mut Call<'_>,
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    shape: &Shape,
    sizes: Vec<Size>,
) -> Maybe {
    let given = [
        ("input", x.argument()),
        ("weight", weight.argument()),
        ("bias", bias.map_or(Argument::None, Tensor::argument)),
        ("stride", list(shape.stride.iter().copied())),
        ("padding", list(shape.padding.iter().copied())),
        ("dilation", list(shape.dilation.iter().copied())),
        ("transposed", Argument::Bool(shape.transposed)),
        ("output_padding", list(shape.output_padding.iter().copied())),
        ("groups", Argument::Int(shape.groups)),
    ];
    call.emit("aten.convolution.default", &given, x.dtype, sizes)
}

/// A convolution of volumes is one of planes: what the kernel sees along the depth becomes channels.
fn volume(
    call: &mut Call<'_>,
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    shape: &Shape,
    sizes: Vec<Size>,
) -> Maybe {
    if shape.transposed {
        return transposed_volume(call, x, weight, bias, shape, sizes);
    }
    let x =
        call.pad(x, &[0, 0, 0, 0, *shape.padding.at(0)?, *shape.padding.at(0)?], Argument::Int(0))?;
    let depth = size::at(&sizes, 2)?.fixed();
    let (Some(depth), Some(kernel)) = (depth, weight.extent(2)?.fixed()) else {
        refuse!("the depth of a convolution of volumes is not known");
    };
    let mut layers = Vec::new();
    for at in 0..kernel {
        let start = (checked(at) * *shape.dilation.at(0)?).get()?;
        layers.push(call.slice(&x, 2, start, depth, *shape.stride.at(0)?)?);
    }
    // Batch, channels, kernel, depth, height, width.
    let stack = call.stack(&layers, 2)?;
    let turned = call.permute(&stack, &[0, 3, 1, 2, 4, 5])?;
    let channels = size::multiply(x.extent(1)?, &Size::Fixed(kernel));
    let images = size::multiply(x.extent(0)?, &Size::Fixed(depth));
    let flat = call.view(
        &turned,
        vec![images.clone(), channels, x.extent(3)?.clone(), x.extent(4)?.clone()],
    )?;
    let inner = size::multiply(weight.extent(1)?, &Size::Fixed(kernel));
    let flat_weight = call.view(
        weight,
        vec![
            weight.extent(0)?.clone(),
            inner,
            weight.extent(3)?.clone(),
            weight.extent(4)?.clone(),
        ],
    )?;
    let rest = Shape {
        stride: shape.stride.part(1..)?.to_vec(),
        padding: shape.padding.part(1..)?.to_vec(),
        dilation: shape.dilation.part(1..)?.to_vec(),
        output_padding: vec![0; 2],
        groups: shape.groups,
        transposed: false,
    };
    let found = vec![
        images,
        size::at(&sizes, 1)?.clone(),
        size::at(&sizes, 3)?.clone(),
        size::at(&sizes, 4)?.clone(),
    ];
    let done = plane(call, &flat, &flat_weight, bias, &rest, found)?;
    let apart = call.view(
        &done,
        vec![
            size::at(&sizes, 0)?.clone(),
            size::at(&sizes, 2)?.clone(),
            size::at(&sizes, 1)?.clone(),
            size::at(&sizes, 3)?.clone(),
            size::at(&sizes, 4)?.clone(),
        ],
    )?;
    call.permute(&apart, &[0, 2, 1, 3, 4])
}

/// The transpose of a convolution of volumes is a plain one, of an image with zeros in between, by the kernel from its
/// other end.
fn transposed_volume(
    call: &mut Call<'_>,
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    shape: &Shape,
    sizes: Vec<Size>,
) -> Maybe {
    let mut spread = x.clone();
    let mut pads = Vec::with_capacity(6);
    for at in 0..3 {
        let (Some(length), Some(kernel)) =
            (x.extent(at + 2)?.fixed(), weight.extent(at + 2)?.fixed())
        else {
            refuse!("the sizes of a convolution of volumes are not known");
        };
        let stride = *shape.stride.at(at)?;
        if stride > 1 {
            // Zeros behind each place; those behind the last one go.
            let apart = call.unsqueeze(&spread, at + 3)?;
            let behind = apart.rank() - (at + 3) - 1;
            let mut wide = vec![0; 2 * behind];
            wide.extend([0, stride - 1]);
            let padded = call.pad(&apart, &wide, Argument::Int(0))?;
            let mut joined = spread.sizes.clone();
            *joined.at_mut(at + 2)? = Size::Fixed((checked(length) * stride).get()?);
            let joined = call.view(&padded, joined)?;
            let reach = ((checked(length) - 1) * stride + 1).get()?;
            spread = call.slice(&joined, at + 2, 0, reach, 1)?;
        }
        let reach = checked(*shape.dilation.at(at)?) * (kernel - 1) - *shape.padding.at(at)?;
        pads.splice(0..0, [reach.get()?, (reach + *shape.output_padding.at(at)?).get()?]);
    }
    let padded = call.pad(&spread, &pads, Argument::Int(0))?;
    let turned = call.flip(weight, &[2, 3, 4])?;
    // Input channels by groups, output channels of each: to output channels, input channels of each.
    let groups = Size::Fixed(shape.groups);
    let (inner, outer) = (weight.extent(0)?, weight.extent(1)?);
    let Some(inner) = inner.fixed().map(|inner| Size::Fixed(inner / shape.groups.max(1))) else {
        refuse!("the number of channels is not known");
    };
    let rest = weight.extent(2..)?;
    let apart =
        call.view(&turned, [&[groups.clone(), inner.clone(), outer.clone()], rest].concat())?;
    let swapped = call.transpose(&apart, 1, 2)?;
    let joined = [&[size::multiply(&groups, outer), inner], rest].concat();
    let weight = call.view(&swapped, joined)?;
    let plain = Shape {
        stride: vec![1; 3],
        padding: vec![0; 3],
        dilation: shape.dilation.clone(),
        output_padding: vec![0; 3],
        groups: shape.groups,
        transposed: false,
    };
    volume(call, &padded, &weight, bias, &plain, sizes)
}

/// Time, batch, channels.
fn tbc(call: &mut Call<'_>) -> Result<Vec<crate::decompose::call::Made>, Refusal> {
    let (x, weight) = (call.tensor("self")?, call.tensor("weight")?);
    let bias = call.tensor("bias")?;
    let pad = call.int("pad")?;
    let x = call.permute(&x, &[1, 2, 0])?;
    let weight = call.permute(&weight, &[2, 1, 0])?;
    let noted = call.result(0)?.sizes.clone();
    let sizes = vec![
        size::at(&noted, 1)?.clone(),
        size::at(&noted, 2)?.clone(),
        size::at(&noted, 0)?.clone(),
    ];
    let shape = Shape {
        stride: vec![1],
        padding: vec![pad],
        dilation: vec![1],
        output_padding: vec![0],
        groups: 1,
        transposed: false,
    };
    let done = plane(call, &x, &weight, Some(&bias), &shape, sizes)?;
    one(call.permute(&done, &[2, 0, 1])?)
}
