//! Convolutions. Weights are `[output channels, input channels of a group, window]`. Weights of transposed
//! convolutions are `[input channels, output channels of a group, window]`.

use super::expect;
use super::window::{Padding, Window, check_pad_type, effective_kernel};
use crate::infer::{InferContext, InferError, InferredValue, Rule, refuse};
use crate::ir::{Dim, Expr, TensorType};

pub(super) fn conv(site: &InferContext) -> Rule {
    let x = expect::ranked(site, "x", 3, 5)?;
    let spatial = x.rank() - 2;
    let weight = expect::ranked(site, "weight", x.rank(), x.rank())?;
    let groups = groups(site)?;

    check_groups_divide(&weight.shape[0], groups, "output channels", "weight")?;
    expect::shape(site, "bias", &weight.shape[..1], "one element for each output channel")?;
    check_groups_divide(&x.shape[1], groups, "input channels", "x")?;
    if let Some(channels) = x.shape[1].known() {
        let why = format!("the {channels} input channels divided by {groups} groups");
        expect::dimension(site, "weight", 1, &Dim::Known(channels / groups), &why)?;
    }

    let strides = expect::positive_per_spatial_dim(site, "strides", spatial)?;
    let dilations = expect::positive_per_spatial_dim(site, "dilations", spatial)?;
    let computed = site.operand("weight").is_some_and(|weight| !weight.constant);
    if computed && dilations.iter().any(|&dilation| dilation > 1) {
        let message = "is not all ones, but `weight` is computed when the program runs";
        return Err(InferError::new(message)
            .of("dilations")
            .hint("bind `weight` to a constant, or leave `dilations` out"));
    }
    let pad_type = site.choice("pad_type", &["valid", "same", "same_lower", "custom"])?;
    check_pad_type(site, &pad_type)?;
    let padding = match &*pad_type {
        "valid" => Padding::By(vec![0; 2 * spatial]),
        "custom" => Padding::By(expect::per_spatial_dim(site, "pad", spatial, 2)?),
        _ => Padding::Same,
    };
    let window = Window { kernel: weight.shape[2..].to_vec(), strides, dilations, padding };
    let mut shape = vec![x.shape[0].clone(), weight.shape[0].clone()];
    shape.extend(window.output(site, &x.shape[2..])?);
    Ok(vec![InferredValue::tensor(x.dtype, shape)])
}

pub(super) fn conv_quantized(site: &InferContext) -> Rule {
    site.choice("quantization_type", &["linear", "lut"])?;
    let bits = site.int("nbits")?;
    if !(1..=8).contains(&bits) {
        return Err(InferError::new(format!("must be from 1 to 8, got {bits}")).of("nbits"));
    }
    conv(site)
}

pub(super) fn conv_transpose(site: &InferContext) -> Rule {
    let x = expect::ranked(site, "x", 3, 5)?;
    let spatial = x.rank() - 2;
    let weight = expect::ranked(site, "weight", x.rank(), x.rank())?;
    let groups = groups(site)?;

    expect::dimension(site, "weight", 0, &x.shape[1], "the input channels of `x`")?;
    check_groups_divide(&x.shape[1], groups, "input channels", "x")?;
    let channels = match weight.shape[1].known() {
        None => {
            let groups = i64::try_from(groups).ok().map(Expr::from);
            site.dim(groups.and_then(|groups| weight.shape[1].expr()?.mul(&groups)))
        }
        Some(per_group) => match per_group.checked_mul(groups) {
            Some(channels) => Dim::Known(channels),
            None => refuse!("{per_group} output channels in each of {groups} groups are too many"),
        },
    };
    expect::shape(
        site,
        "bias",
        std::slice::from_ref(&channels),
        "one element for each output channel",
    )?;

    let strides = expect::positive_per_spatial_dim(site, "strides", spatial)?;
    let dilations = expect::positive_per_spatial_dim(site, "dilations", spatial)?;
    let pad_type = site.choice("pad_type", &["valid", "same", "custom"])?;
    if let Some(stated) = site.optional_ints("output_shape")? {
        let shape = stated_output_shape(&stated, x, &channels)?;
        return Ok(vec![InferredValue::tensor(x.dtype, shape)]);
    }
    let pads = match &*pad_type {
        "custom" => expect::per_spatial_dim(site, "pad", spatial, 2)?,
        _ => vec![0; 2 * spatial],
    };
    let mut shape = vec![x.shape[0].clone(), channels];
    for axis in 0..spatial {
        let input = &x.shape[axis + 2];
        let stride = Expr::from(strides[axis]);
        let extent = match &*pad_type {
            "same" => input.expr().and_then(|input| input.mul(&stride)),
            _ => {
                let kernel = &weight.shape[axis + 2];
                let pads = &pads[2 * axis..2 * axis + 2];
                spread(input, kernel, &stride, dilations[axis], pads)
            }
        };
        if let Some(found) = extent.as_ref().and_then(Expr::constant)
            && found < 1
        {
            refuse!(
                "pads of {} and {} leave {found} elements along spatial dimension {axis}; expected at least 1",
                pads[2 * axis],
                pads[2 * axis + 1]
            );
        }
        shape.push(site.dim(extent));
    }
    Ok(vec![InferredValue::tensor(x.dtype, shape)])
}

/// Output size of a transposed convolution: `(input - 1) · stride + window - pads`.
fn spread(input: &Dim, kernel: &Dim, stride: &Expr, dilation: i64, pads: &[i64]) -> Option<Expr> {
    let pad = pads.iter().try_fold(0i64, |sum, &pad| sum.checked_add(pad))?;
    let reach = input.expr()?.sub(&Expr::from(1))?.mul(stride)?;
    reach.add(&effective_kernel(kernel, dilation)?)?.sub(&Expr::from(pad))
}

fn stated_output_shape(
    stated: &[i64],
    x: &TensorType,
    channels: &Dim,
) -> Result<Vec<Dim>, InferError> {
    let refusal = |message: String| InferError::new(message).of("output_shape");
    if stated.len() != x.rank() {
        let message = format!("has {} elements, but `x` has rank {}", stated.len(), x.rank());
        return Err(refusal(message));
    }
    let mut shape = Vec::with_capacity(stated.len());
    for &extent in stated {
        match u64::try_from(extent) {
            Ok(known) if known > 0 => shape.push(Dim::Known(known)),
            _ => {
                return Err(refusal(format!("must contain sizes of at least 1, got {extent}")));
            }
        }
    }
    for (axis, expected, what) in [
        (0, &x.shape[0], "the batch size of `x`"),
        (1, channels, "the output channels of `weight`"),
    ] {
        if !shape[axis].may_equal(expected) {
            let found = &shape[axis];
            let message = format!("has {found} at index {axis}; expected {expected}, {what}");
            return Err(refusal(message));
        }
    }
    Ok(shape)
}

fn groups(site: &InferContext) -> Result<u64, InferError> {
    let groups = site.int("groups")?;
    match u64::try_from(groups) {
        Ok(groups) if groups > 0 => Ok(groups),
        _ => Err(InferError::new(format!("must be at least 1, got {groups}")).of("groups")),
    }
}

fn check_groups_divide(dim: &Dim, groups: u64, what: &str, name: &str) -> Result<(), InferError> {
    match dim.known() {
        Some(channels) if channels % groups != 0 => {
            let message =
                format!("has {channels} {what}, which cannot be divided into {groups} groups");
            Err(InferError::new(message).of(name))
        }
        _ => Ok(()),
    }
}
