//! Convolutions and linear layers on codes.

use std::sync::Arc;

use coremill_kernels::integer::{
    ChannelTarget, ChannelWeights, IndirectionTable, IntegerWeights, MAX_INPUTS, Rows, SLACK,
    Scaling, Sum, Target, codes, codes_mut, convolve_channels, floats_for, multiply,
};
use coremill_kernels::matmul::Order;
use coremill_mil::ops::OpKind;
use coremill_reference::array::View;
use coremill_reference::error::{Error, Result};

use super::super::super::graph::{Node, Operand};
use super::super::super::kernel::{Cost, CpuContext, Kernel};
use super::super::convolution::{self, Convolution};
use super::super::{Editor, Work, linear};
use super::QuantizedTensor;
use super::numbers::{Affine, Bounds, integers};
use crate::plan::ConstantTensor;
use crate::weights::Integers;

/// Input of a product.
#[derive(Clone, Copy)]
pub(super) enum Source {
    /// Rows of a matrix.
    Rows(QuantizedTensor),
    /// Images in channels-last layout.
    Pixels(QuantizedTensor),
}

/// A product of codes and constant integers.
pub(super) struct Product {
    pub(super) left: Source,
    pub(super) bounds: Bounds,
    weight: Arc<ConstantTensor>,
    integers: Integers,
    bias: Vec<f32>,
    shape: Shape,
    label: &'static str,
}

enum Shape {
    Matrix { rows: usize, inputs: usize, outputs: usize, order: Order },
    Window(Box<Convolution>),
}

impl Product {
    /// Recognizes a product whose input is dequantized codes.
    pub(super) fn recognise(
        work: &Work<'_>,
        editor: &Editor,
        index: usize,
        node: &Node,
        coded: impl Fn(&Operand) -> Option<QuantizedTensor>,
    ) -> Option<Product> {
        let (source, graph) = (work.source, &*work.graph);
        debug_assert!(editor.node(index).is_some());
        let label = node.operation()?.name();
        if node.operation()? == OpKind::Conv {
            let (mut convolution, x) = convolution::recognise(source, graph, node)?;
            let x = match coded(&x) {
                Some(coded) => coded,
                None => {
                    coded(&convolution::absorb_pad(source, graph, editor, &x, &mut convolution)?)?
                }
            };
            let taps: usize = convolution.kernel.iter().product();
            if convolution.channels / convolution.groups * taps > MAX_INPUTS {
                return None;
            }
            let weight = Arc::clone(&convolution.weight);
            let integers = integers(work, &weight, Order::OutputsFirst)?;
            convolution.bias_of.iter().for_each(|known| source.note(known));
            let bias = convolution.bias.clone();
            let bias = bias.unwrap_or_else(|| vec![0.0; convolution.outputs]);
            let (left, shape) = (Source::Pixels(x), Shape::Window(Box::new(convolution)));
            let bounds = Bounds::default();
            return finite(Product { left, bounds, weight, integers, bias, shape, label });
        }
        let linear::Product { x, weights, bias, rows, inputs, outputs, order } =
            linear::recognise(source, graph, node)?;
        let left = Source::Rows(coded(&x)?);
        if inputs > MAX_INPUTS {
            return None;
        }
        let integers = integers(work, &weights, order)?;
        let bias = match bias {
            Some(known) => known.array(source).ok()?.as_floats()?.to_vec(),
            None => vec![0.0; outputs],
        };
        if bias.len() != outputs {
            return None;
        }
        let shape = Shape::Matrix { rows, inputs, outputs, order };
        finite(Product {
            left,
            bounds: Bounds::default(),
            weight: weights,
            integers,
            bias,
            shape,
            label,
        })
    }

    fn affine(&self) -> Affine {
        match self.left {
            Source::Rows(coded) | Source::Pixels(coded) => coded.affine,
        }
    }

    /// Factors and bounds that convert the integer sums of some outputs to floats, or to steps of
    /// the result's codes.
    fn scaling(&self, first: usize, count: usize, to: Option<Affine>) -> Scaling {
        let step = to.map_or(1.0, |to| to.scale);
        // Kernels read whole vectors, so pad to the vector length.
        let mut scale = vec![0.0; count.next_multiple_of(LANES)];
        let mut shift = scale.clone();
        for at in 0..count {
            scale[at] = self.affine().scale * self.integers.scales[first + at] / step;
            shift[at] = self.bias[first + at] / step;
        }
        let (low, high) =
            to.map_or((self.bounds.low, self.bounds.high), |to| self.bounds.codes(to));
        Scaling { scale, shift, low, high }
    }
}

/// Maximum number of vector lanes.
const LANES: usize = 16;

fn finite(product: Product) -> Option<Product> {
    product.bias.iter().all(|bias| bias.is_finite()).then_some(product)
}

/// Creates kernels of products. Equal windows share an indirection table.
#[derive(Default)]
pub(super) struct Products {
    pieces: Vec<(u8, bool, Arc<IndirectionTable>)>,
}

impl Products {
    /// Creates the kernel of a product. The results are codes if `to` is set, else floats.
    pub(super) fn kernel(
        &mut self,
        work: &Work<'_>,
        product: Product,
        to: Option<Affine>,
    ) -> Result<ProductKernel> {
        let isa = work.machine.isa;
        let zero = product.affine().zero;
        let Integers { codes, zeros, .. } = &product.integers;
        let (form, label) = (format!("integer {zero} {isa}"), product.label);
        let (rows, part, outputs) = match &product.shape {
            Shape::Matrix { rows, inputs, outputs, order } => {
                let (inputs, outputs) = (*inputs, *outputs);
                let place = |output: usize, input: usize| match order {
                    Order::InputsFirst => input * outputs + output,
                    Order::OutputsFirst | Order::ChannelsFirst { .. } => output * inputs + input,
                };
                let form = format!("{form} {order:?}");
                let weights = work.source.made(&product.weight, form, || {
                    let shape = [1, inputs, outputs];
                    let weight = |output, input| codes[place(output, input)];
                    Ok(vec![IntegerWeights::pack(isa, shape, zeros, zero, weight)])
                })?;
                let scaling = vec![product.scaling(0, outputs, to)];
                (*rows, Part::Rows { weights, scaling, inputs, sum: None }, outputs)
            }
            Shape::Window(convolution) => {
                let Convolution { groups, channels, outputs, .. } = **convolution;
                let rows = convolution.images * convolution.output.iter().product::<usize>();
                let taps: usize = convolution.kernel.iter().product();
                let channelwise = groups == channels && outputs == channels && groups > 1;
                let pieces = self.pieces(convolution, zero, channelwise)?;
                if channelwise {
                    let scaling = product.scaling(0, channels, to);
                    let weight = |channel: usize, tap: usize| {
                        i32::from(codes[channel * taps + tap]) - zeros[channel]
                    };
                    let shape = [channels, taps];
                    let weights = ChannelWeights::pack(isa, shape, zero, &scaling, weight);
                    (rows, Part::Channels { pieces, weights }, channels)
                } else {
                    let (inputs, each) = (channels / groups, outputs / groups);
                    let [count, length] = pieces.shape();
                    let form = format!("{form} {groups} {count}");
                    let weights = work.source.made(&product.weight, form, || {
                        let pack = |group: usize| {
                            let first = group * each;
                            let weight = |output: usize, input: usize| {
                                let (tap, channel) = (input / inputs, input % inputs);
                                codes[((first + output) * inputs + channel) * taps + tap]
                            };
                            let zeros = &zeros[first..first + each];
                            IntegerWeights::pack(isa, [count, length, each], zeros, zero, weight)
                        };
                        Ok((0..groups).map(pack).collect())
                    })?;
                    let scaling =
                        (0..groups).map(|group| product.scaling(group * each, each, to)).collect();
                    let part = Part::Pieces { pieces, weights, scaling, inputs, sum: None };
                    (rows, part, outputs)
                }
            }
        };
        let operations = 2 * (rows * product.integers.codes.len()) as u64;
        Ok(ProductKernel { part, rows, outputs, zero: to.map(|to| to.zero), label, operations })
    }

    fn pieces(
        &mut self,
        convolution: &Convolution,
        zero: u8,
        channelwise: bool,
    ) -> Result<Arc<IndirectionTable>> {
        let groups = if channelwise { 1 } else { convolution.groups };
        let window = convolution.window(groups);
        let known = self.pieces.iter().find(|(found, pixels, pieces)| {
            (*found, *pixels) == (zero, channelwise) && *pieces.window() == window
        });
        if let Some((_, _, pieces)) = known {
            return Ok(Arc::clone(pieces));
        }
        let pieces = match channelwise {
            true => IndirectionTable::of_pixels(window, zero),
            false => IndirectionTable::new(window, zero),
        };
        let pieces =
            pieces.ok_or_else(|| Error::new("images of more than 2^31 bytes are not supported"))?;
        let pieces = Arc::new(pieces);
        self.pieces.push((zero, channelwise, Arc::clone(&pieces)));
        Ok(pieces)
    }
}

/// The kernel of a product.
pub(super) struct ProductKernel {
    part: Part,
    rows: usize,
    outputs: usize,
    /// Zero point of the results, `None` if they are floats.
    zero: Option<u8>,
    label: &'static str,
    operations: u64,
}

enum Part {
    Rows {
        weights: Arc<Vec<IntegerWeights>>,
        scaling: Vec<Scaling>,
        inputs: usize,
        sum: Option<Sum>,
    },
    Pieces {
        pieces: Arc<IndirectionTable>,
        weights: Arc<Vec<IntegerWeights>>,
        scaling: Vec<Scaling>,
        /// Number of input channels per group.
        inputs: usize,
        sum: Option<Sum>,
    },
    Channels {
        pieces: Arc<IndirectionTable>,
        weights: ChannelWeights,
    },
}

impl ProductKernel {
    /// Returns true if the kernel can add a residual of codes.
    pub(super) fn may_add(&self) -> bool {
        self.zero.is_some() && !matches!(self.part, Part::Channels { .. })
    }

    /// Adds a residual of codes and sets the zero point of the results.
    pub(super) fn add(&mut self, added: Sum, to: Affine) {
        self.zero = Some(to.zero);
        match &mut self.part {
            Part::Rows { sum, .. } | Part::Pieces { sum, .. } => *sum = Some(added),
            Part::Channels { .. } => {}
        }
    }

    /// The indirection table, if the kernel needs a padded copy of the input.
    fn padded(&self) -> Option<&IndirectionTable> {
        match &self.part {
            Part::Pieces { pieces, .. } => Some(&**pieces).filter(|pieces| pieces.scratch() > 0),
            Part::Rows { .. } | Part::Channels { .. } => None,
        }
    }
}

impl Kernel for ProductKernel {
    fn run(
        &self,
        machine: &CpuContext,
        inputs: &[View<'_>],
        outputs: &mut [&mut [f32]],
        scratch: &mut [f32],
    ) -> Result<()> {
        let pool = &machine.pool;
        let input = codes(inputs[0].floats()?);
        let output = &mut *outputs[0];
        let other = match inputs.get(1) {
            Some(other) => Some(codes(other.floats()?)),
            None => None,
        };
        let stride = self.outputs;
        // Results of a group start at its first output.
        let target = |floats: &mut [f32],
                      first: usize,
                      sum: &Option<Sum>,
                      run: &mut dyn FnMut(Target<'_>)| {
            let Some(zero) = self.zero else { return run(Target::Floats(&mut floats[first..])) };
            let sum = other.zip(*sum).map(|(other, sum)| (&other[first..], sum));
            let codes = &mut codes_mut(floats)[first..];
            run(Target::Codes { codes, zero: i32::from(zero), sum });
        };
        match &self.part {
            Part::Rows { weights, scaling, inputs, sum } => {
                let rows = Rows::Dense { codes: input, stride: *inputs, rows: self.rows };
                target(output, 0, sum, &mut |target| {
                    multiply(pool, rows, &weights[0], &scaling[0], target, stride);
                });
            }
            Part::Pieces { pieces, weights, scaling, inputs, sum } => {
                let input = pieces.padded(input, codes_mut(scratch));
                for (group, (weights, scaling)) in weights.iter().zip(scaling).enumerate() {
                    let rows = Rows::Pieces(&input[group * inputs..], pieces);
                    target(output, group * weights.outputs(), sum, &mut |target| {
                        multiply(pool, rows, weights, scaling, target, stride);
                    });
                }
            }
            Part::Channels { pieces, weights } => {
                let target = match self.zero {
                    Some(zero) => ChannelTarget::Codes(codes_mut(output), i32::from(zero)),
                    None => ChannelTarget::Floats(output),
                };
                convolve_channels(pool, pieces, input, weights, target);
            }
        }
        Ok(())
    }

    fn label(&self) -> String {
        let kind = if matches!(self.part, Part::Channels { .. }) { "depthwise " } else { "" };
        let added = match &self.part {
            Part::Rows { sum: Some(_), .. } | Part::Pieces { sum: Some(_), .. } => "+add",
            _ => "",
        };
        format!("{kind}{}{added} int8", self.label)
    }

    fn cost(&self) -> Cost {
        let weights = self.operations / 2 / self.rows.max(1) as u64;
        Cost { operations: self.operations, bytes: weights + (self.rows * self.outputs) as u64 }
    }

    fn scratch(&self) -> usize {
        self.padded().map_or(0, |pieces| floats_for(pieces.scratch() + SLACK))
    }
}
