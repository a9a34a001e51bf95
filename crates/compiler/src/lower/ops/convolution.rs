//! Convolutions.

use super::pooling::{with_batch, without_batch};
use crate::lower::ops::linear::{in_result_type, optional_in_result_type};
use crate::lower::prelude::*;

pub(crate) const ROWS: &[Row] = &[
    tensor("aten.conv{1,2,3}d", convolution).only(&["default", "padding"]),
    tensor("aten._convolution_mode", convolution),
    tensor("aten.{,_}convolution", either_convolution),
    tensor("aten.conv_transpose{1,2,3}d", transposed_convolution),
];

/// Arguments of a regular or transposed convolution.
struct Convolution {
    /// `[batch, channels, ...]`.
    x: ValueId,
    /// Whether torch's input has a batch axis.
    batched: bool,
    weight: ValueId,
    bias: Option<ValueId>,
    strides: Vec<i32>,
    dilations: Vec<i32>,
    groups: i32,
    /// Padding before and after each spatial dimension, or cropping of a transposed convolution.
    pad: Vec<i32>,
}

impl Convolution {
    fn of(call: &mut Call<'_, '_>) -> Result<Convolution> {
        let dtype = call.result_dtype()?;
        if !crate::lower::dtype::is_float(dtype) {
            refuse!("Core ML supports convolutions of floats only, got `{dtype}`");
        }
        let [x, weight] = in_result_type(call, ["input", "weight"])?;
        let bias = optional_in_result_type(call, "bias")?;
        let spatial = call.rank(weight).saturating_sub(2);
        if !(1..=3).contains(&spatial) {
            refuse!("`weight` must have rank 3 to 5, got {}", call.rank(weight));
        }
        let (x, batched) = with_batch(call, x, spatial)?;
        let strides = call.per_dimension("stride", spatial)?;
        let dilations = call.per_dimension("dilation", spatial)?;
        let groups = call.known_int("groups")? as i32;
        let pad = match call.text("padding") {
            Ok(Some("same")) => same_padding(call, weight, &strides, &dilations)?,
            Ok(Some("valid")) => vec![0; 2 * spatial],
            Ok(Some(other)) => {
                refuse!("`padding` must be `same`, `valid` or integers, got `{other}`")
            }
            Ok(None) | Err(_) => {
                let padding = call.per_dimension("padding", spatial)?;
                padding.iter().flat_map(|&pad| [pad, pad]).collect()
            }
        };
        Ok(Convolution { x, batched, weight, bias, strides, dilations, groups, pad })
    }

    fn spatial(&self) -> usize {
        self.strides.len()
    }

    /// Emits the operation, and the addition of the bias if it cannot be an argument.
    fn emit(&self, builder: &mut Builder, kind: OpKind) -> ValueResult {
        // Before iOS 17 the bias must be constant.
        let bindable =
            |bias: &ValueId| builder.opset() >= Opset::Ios17 || builder.is_constant(*bias);
        let bias = self.bias.filter(bindable);
        let added = self.bias.filter(|_| bias.is_none());
        let mut y = emit!(
            builder,
            kind,
            x = self.x,
            weight = self.weight,
            bias,
            strides = self.strides.as_slice(),
            dilations = self.dilations.as_slice(),
            groups = self.groups,
            pad_type = self.pad_type(),
            pad = self.pad.as_slice(),
        )?;
        if let Some(bias) = added {
            let bias = builder.before(bias, 1, self.spatial() + 2)?;
            y = builder.binary(OpKind::Add, y, bias)?;
        }
        without_batch(builder, y, self.batched)
    }

    fn pad_type(&self) -> &'static str {
        if self.pad.iter().all(|&pad| pad == 0) { "valid" } else { "custom" }
    }

    fn lower(mut self, builder: &mut Builder) -> ValueResult {
        if !builder.is_constant(self.weight) {
            // Core ML supports dilation for constant weights only.
            self.weight = spread(builder, self.weight, &self.dilations)?;
            self.dilations.fill(1);
        }
        self.emit(builder, OpKind::Conv)
    }

    /// Lowers a transposed convolution. `output_padding` extends the output at the end of each dimension.
    fn lower_transposed(mut self, builder: &mut Builder, output_padding: &[i32]) -> ValueResult {
        if !builder.is_constant(self.weight) {
            return self.lower_as_convolution(builder, output_padding);
        }
        // Cropping less makes the output longer. If that is not enough, zeros are appended to the input, and the
        // excess is cropped.
        let spatial = self.spatial();
        let mut zeros = vec![0; 2 * spatial];
        for axis in 0..spatial {
            let stride = *self.strides.at(axis)?;
            let cut = checked(*self.pad.at(2 * axis + 1)?) - *output_padding.at(axis)?;
            let lacking = (checked(0) - cut).get()?.max(0);
            let steps = (checked(lacking) + stride - 1).over(stride.into());
            *zeros.at_mut(2 * axis + 1)? = steps.int32()?;
            *self.pad.at_mut(2 * axis + 1)? = (cut + steps * stride).int32()?;
        }
        if zeros.iter().any(|&zeros| zeros != 0) {
            self.x = builder.padded(self.x, &[&[0; 4], zeros.as_slice()].concat(), 0.0)?;
        }
        self.emit(builder, OpKind::ConvTranspose)
    }

    /// A transposed convolution with a computed weight, which Core ML does not support. It becomes a convolution
    /// with the flipped weight over the input with zeros inserted between elements.
    fn lower_as_convolution(
        mut self,
        builder: &mut Builder,
        output_padding: &[i32],
    ) -> ValueResult {
        let spatial = self.spatial();
        let Some(weight) = builder.fixed_shape(self.weight) else {
            refuse!("the sizes of `weight` are not known before the program runs");
        };
        let weight: Vec<_> = weight.into_iter().map(|extent| extent as i64).collect();
        for (axis, more) in output_padding.iter().enumerate() {
            let reach = (checked(*weight.at(axis + 2)?) - 1) * *self.dilations.at(axis)?;
            for (at, more) in [(2 * axis, 0), (2 * axis + 1, *more)] {
                *self.pad.at_mut(at)? = (reach - *self.pad.at(at)? + more).int32()?;
                if *self.pad.at(at)? < 0 {
                    refuse!(
                        "a transposed convolution with a computed weight has too large a `padding`"
                    );
                }
            }
        }
        let groups = i64::from(self.groups);
        let (inputs, outputs) = (*weight.at(0)? / groups, *weight.at(1)?);
        let window = product(weight.part(2..)?).get()?;
        let apart = [groups, inputs, outputs, window].map(Int::Known);
        let turned = builder.reshape(self.weight, &apart)?;
        let turned = builder.transpose(turned, &[0, 2, 1, 3])?;
        let mut sizes = vec![(checked(groups) * outputs).get()?, inputs];
        sizes.extend(weight.part(2..)?);
        let sizes: Vec<_> = sizes.into_iter().map(Int::Known).collect();
        let turned = builder.reshape(turned, &sizes)?;
        let axes: Vec<_> = (2..spatial as i32 + 2).collect();
        self.weight = emit!(builder, OpKind::Reverse, x = turned, axes = axes.as_slice())?;
        self.x = spread(builder, self.x, &self.strides)?;
        self.strides.fill(1);
        self.lower(builder)
    }
}

fn convolution(call: &mut Call<'_, '_>) -> ValueResult {
    let convolution = Convolution::of(call)?;
    convolution.lower(call)
}

fn transposed_convolution(call: &mut Call<'_, '_>) -> ValueResult {
    let convolution = Convolution::of(call)?;
    let more = call.per_dimension("output_padding", convolution.spatial())?;
    convolution.lower_transposed(call, &more)
}

fn either_convolution(call: &mut Call<'_, '_>) -> ValueResult {
    if call.flag("transposed")? { transposed_convolution(call) } else { convolution(call) }
}

/// Padding that preserves the size; an odd element goes to the end.
fn same_padding(
    builder: &Builder,
    weight: ValueId,
    strides: &[i32],
    dilations: &[i32],
) -> Result<Vec<i32>> {
    if strides.iter().any(|&stride| stride != 1) {
        refuse!("`padding` is `same`, but `stride` must be 1, got {strides:?}");
    }
    let mut pad = Vec::new();
    for (kernel, &dilation) in builder.extents(weight).part(2..)?.iter().zip(dilations) {
        let Some(kernel) = kernel.and_then(|kernel| i32::try_from(kernel).ok()) else {
            refuse!("`padding` is `same`, but the window is not known before the program runs");
        };
        let total = dilation.saturating_mul(kernel - 1);
        pad.extend([total / 2, total - total / 2]);
    }
    Ok(pad)
}

/// Inserts zeros between elements along the spatial dimensions.
fn spread(builder: &mut Builder, mut weight: ValueId, dilations: &[i32]) -> ValueResult {
    for (axis, &dilation) in dilations.iter().enumerate() {
        if dilation == 1 {
            continue;
        }
        let axis = axis + 2;
        let dims = builder.dims(weight)?;
        let Some(kernel) = dims.at(axis)?.known() else {
            refuse!(
                "`dilation` is {dilation}, but the window is not known before the program runs"
            );
        };
        // Pads rows of one element with zeros and joins them, then drops the zeros after the last element.
        let before = builder.product(dims.part(..axis)?)?;
        let after = builder.product(dims.part(axis + 1..)?)?;
        if before.known().is_none() || after.known().is_none() {
            refuse!(
                "inserting zeros requires a tensor whose sizes are known before the program runs"
            );
        }
        let step = i64::from(dilation);
        let [one, row] = [1, kernel].map(Int::Known);
        let rows = builder.reshape(weight, &[before, row, one, after])?;
        let rows = builder.padded(rows, &[0, 0, 0, 0, 0, dilation - 1, 0, 0], 0.0)?;
        let spaced = (checked(kernel) * step).get()?;
        let joined = builder.reshape(rows, &[before, Int::Known(spaced), after])?;
        let reach = ((checked(kernel) - 1) * step + 1).get()?;
        let cut = builder.slice(joined, 1, 0, Some(reach))?;
        let mut sizes = dims;
        *sizes.at_mut(axis)? = Int::Known(reach);
        weight = builder.reshape(cut, &sizes)?;
    }
    Ok(weight)
}
