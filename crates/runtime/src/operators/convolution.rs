//! Convolutions and their gradients.

use std::borrow::Cow;

use coremill_kernels::depthwise::{Depthwise, convolve_depthwise, pack_depthwise_weights};
use coremill_kernels::layout::{channels_to_first, channels_to_last};
use coremill_kernels::matmul::{
    DenseSource, Epilogue, IndirectionTable, MatrixMut, Order, PackedWeights, Precision, Window,
    convolve,
};
use coremill_pte::program::ScalarType;
use coremill_tensor::{Buffer, DType};

use super::arguments::{float_output, same_type};
use super::matmul::floats;
use super::packed::PackedConvolution;
use super::{Arguments, Kernel, Machine, kernel};
use crate::error::{Result, ensure, fail};
use crate::number::{Compute, Number, compute};
use crate::view::{OutTensor, View, count};

pub(super) const TABLE: &[Kernel] = &[
    kernel("aten::convolution.out", "TTtNNNBNI>T", convolution),
    kernel("aten::convolution_backward.out", "TTTnNNNBNIA>TTT", backward),
];

/// Below this number of elements, images are addressed by 31-bit indices.
const MAX_ELEMENTS: usize = 1 << 30;

/// Parameters of a 2-D convolution. For 1-D convolutions, the first dimension is 1.
#[derive(Clone, Copy, Debug)]
struct Geometry {
    batch: usize,
    groups: usize,
    /// Channels of the input and of the output, over all groups.
    channels: [usize; 2],
    input: [usize; 2],
    output: [usize; 2],
    kernel: [usize; 2],
    stride: [usize; 2],
    padding: [usize; 2],
    dilation: [usize; 2],
}

/// Numbers for one or two dimensions; a single number applies to all. `first` fills the missing dimension of a 1-D
/// convolution.
fn numbers(list: &[i64], rank: usize, first: usize, name: &str) -> Result<[usize; 2]> {
    let accepted = list.len() == 1 || list.len() == rank;
    // Larger numbers would only overflow.
    let all = list.iter().map(|number| usize::try_from(*number).ok().filter(|n| *n < 1 << 31));
    let Some(all) = all.collect::<Option<Vec<usize>>>().filter(|_| accepted) else {
        fail!("`{name}` must be one or {rank} non-negative integers below 2^31, got {list:?}");
    };
    Ok(match (rank, all.as_slice()) {
        (1, [only, ..]) => [first, *only],
        (_, [both]) => [*both; 2],
        (_, all) => [all[0], all[1]],
    })
}

impl Geometry {
    /// Reads the parameters from the arguments: stride and the following ones start at index `settings`.
    fn new(x: &Arguments, input: View, weight: View, settings: usize) -> Result<Geometry> {
        let rank = input.rank().wrapping_sub(2);
        ensure!(
            (rank == 1 || rank == 2) && weight.rank() == input.rank(),
            "the input has sizes {:?} and the weight {:?}; expected three or four dimensions each",
            input.sizes,
            weight.sizes
        );
        let stride = numbers(x.ints(settings)?, rank, 1, "stride")?;
        let padding = numbers(x.ints(settings + 1)?, rank, 0, "padding")?;
        let dilation = numbers(x.ints(settings + 2)?, rank, 1, "dilation")?;
        let transposed = x.bool(settings + 3)?;
        let groups = usize::try_from(x.int(settings + 5)?).unwrap_or(0);
        let space = |sizes: &[usize]| match sizes {
            [_, _, width] => [1, *width],
            [_, _, height, width] => [*height, *width],
            _ => [0, 0],
        };
        let (size, kernel) = (space(input.sizes), space(weight.sizes));
        let [first, second] = [weight.sizes[0], weight.sizes[1]];
        ensure!(
            groups > 0 && first > 0 && first % groups == 0,
            "dimension 0 of the weight, {first}, is not a multiple of the {groups} groups"
        );
        let joined = count(&[second, groups])?;
        let channels = if transposed { [first, joined] } else { [joined, first] };
        ensure!(
            input.sizes[1] == channels[0],
            "the input has {} channels; the weight expects {}",
            input.sizes[1],
            channels[0]
        );
        ensure!(
            stride.iter().chain(&dilation).chain(&kernel).all(|number| *number > 0),
            "stride {stride:?}, dilation {dilation:?} and kernel {kernel:?} must be positive"
        );
        let extra = match transposed {
            true => numbers(x.ints(settings + 4)?, rank, 0, "output_padding")?,
            false => [0, 0],
        };
        let mut output = [0; 2];
        for axis in 0..2 {
            let [size, kernel, stride, padding, dilation, extra] = [
                size[axis],
                kernel[axis],
                stride[axis],
                padding[axis],
                dilation[axis],
                extra[axis],
            ]
            .map(|number| number as i128);
            let reach = dilation * (kernel - 1) + 1;
            let length = if transposed {
                (size - 1) * stride - 2 * padding + reach + extra
            } else {
                (size + 2 * padding - reach).div_euclid(stride) + 1
            };
            let Some(length) = usize::try_from(length).ok().filter(|length| *length > 0) else {
                fail!(
                    "{size} elements are too few for windows of {reach} with a padding of {padding}"
                );
            };
            output[axis] = length;
        }
        let batch = input.sizes[0];
        Ok(Geometry {
            batch,
            groups,
            channels,
            input: size,
            output,
            kernel,
            stride,
            padding,
            dilation,
        })
    }

    fn output_sizes(&self, rank: usize) -> Vec<usize> {
        let [height, width] = self.output;
        match rank {
            3 => vec![self.batch, self.channels[1], width],
            _ => vec![self.batch, self.channels[1], height, width],
        }
    }

    fn pixels(&self) -> [usize; 2] {
        [self.input, self.output].map(|[height, width]| height * width)
    }

    /// Whether each filter applies to a single channel.
    fn is_depthwise(&self) -> bool {
        self.groups == self.channels[0] && self.groups > 1
    }

    fn taps(&self) -> usize {
        self.kernel[0] * self.kernel[1]
    }

    /// Calls `visit` with the offsets of input, weight and output of every multiplication, in contiguous tensors.
    fn visit(&self, transposed: bool, mut visit: impl FnMut(usize, usize, usize)) {
        let [in_channels, out_channels] = self.channels;
        // For transposed convolutions, windows slide over the output, and filters belong to input channels.
        let (windows, whole) =
            if transposed { (self.input, self.output) } else { (self.output, self.input) };
        let (per_filter, filters) = match transposed {
            true => (out_channels / self.groups, in_channels),
            false => (in_channels / self.groups, out_channels),
        };
        let in_group = filters / self.groups;
        for image in 0..self.batch {
            for filter in 0..filters {
                for channel in 0..per_filter {
                    let other = filter / in_group * per_filter + channel;
                    for tap in 0..self.taps() {
                        let [down, right] = [tap / self.kernel[1], tap % self.kernel[1]];
                        let weight = (filter * per_filter + channel) * self.taps() + tap;
                        for row in 0..windows[0] {
                            let y = (row * self.stride[0] + down * self.dilation[0])
                                .wrapping_sub(self.padding[0]);
                            if y >= whole[0] {
                                continue;
                            }
                            for column in 0..windows[1] {
                                let x = (column * self.stride[1] + right * self.dilation[1])
                                    .wrapping_sub(self.padding[1]);
                                if x >= whole[1] {
                                    continue;
                                }
                                let small = ((image * filters + filter) * windows[0] + row)
                                    * windows[1]
                                    + column;
                                let others = per_filter * self.groups;
                                let large =
                                    ((image * others + other) * whole[0] + y) * whole[1] + x;
                                if transposed {
                                    visit(small, weight, large);
                                } else {
                                    visit(large, weight, small);
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn convolution(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let (input, weight, bias) = (x.tensor(0)?, x.tensor(1)?, x.optional_tensor(2)?);
    same_type(&input, &out[0])?;
    same_type(&weight, &out[0])?;
    let geometry = Geometry::new(x, input, weight, 3)?;
    let transposed = x.bool(6)?;
    let channels = geometry.channels[1];
    if let Some(bias) = bias {
        ensure!(
            bias.sizes == [channels],
            "the bias has sizes {:?}; expected [{channels}]",
            bias.sizes
        );
        Compute::of(bias.dtype)?;
    }
    out[0].resize(&geometry.output_sizes(input.rank()))?;
    if out[0].count() == 0 {
        return Ok(());
    }
    let compute = Compute::of(input.dtype)?;
    let [pixels, results] = geometry.pixels();
    let is_small = [pixels * geometry.channels[0], results * channels]
        .iter()
        .all(|elements| *elements < MAX_ELEMENTS);
    if compute == Compute::F32 && !transposed && is_small && input.count() > 0 {
        let bias: Option<Vec<f32>> = bias.map(|bias| bias.numbers());
        let packed = x
            .machine
            .packed
            .get(x.origin(1), weight, geometry.groups, || pack(x.machine, &geometry, weight));
        convolve_floats(x.machine, geometry, input, &packed, bias.as_deref(), &mut out[0]);
        return Ok(());
    }
    compute!(compute, N => {
        let bias: Option<Vec<N>> = bias.map(|bias| bias.numbers());
        let (input, weight) = (input.contiguous::<N>(), weight.contiguous::<N>());
        let mut sums = vec![N::ZERO; out[0].count()];
        if let Some(bias) = bias {
            for (index, sum) in sums.iter_mut().enumerate() {
                *sum = bias[index / results % channels];
            }
        }
        geometry.visit(transposed, |from, by, to| {
            sums[to] = sums[to].add(input[from].multiply(weight[by]));
        });
        out[0].put_contiguous(&sums);
        Ok(())
    })
}

/// Weights in the layout of the kernels in `kernels`.
fn pack(machine: &Machine, geometry: &Geometry, weight: View) -> PackedConvolution {
    let weight = floats(weight);
    if geometry.is_depthwise() {
        return PackedConvolution::Depthwise(pack_depthwise_weights(&weight, geometry.kernel));
    }
    let taps = geometry.taps();
    let [inputs, outputs] = geometry.channels.map(|channels| channels / geometry.groups);
    let matrix = |weight: &[f32]| {
        let data = Buffer::from(bytemuck::cast_slice::<f32, u8>(weight).to_vec());
        let order = Order::ChannelsFirst { taps };
        let source =
            DenseSource::new(machine.isa, data, DType::Fp32, inputs * taps, outputs, order);
        let (pool, isa) = (&machine.pool, machine.isa);
        PackedWeights::pack(pool, isa, inputs * taps, outputs, Precision::F32, &source)
    };
    PackedConvolution::Groups(weight.chunks_exact(outputs * inputs * taps).map(matrix).collect())
}

/// Elements in channels-last layout.
fn with_channels_last<'a>(
    machine: &Machine,
    view: View<'a>,
    [batch, channels, pixels]: [usize; 3],
) -> Cow<'a, [f32]> {
    if view.order == [0, 2, 3, 1] {
        return match bytemuck::try_cast_slice(view.bytes) {
            Ok(floats) if view.dtype == ScalarType::Float => floats.into(),
            _ => view.numbers().into(),
        };
    }
    let elements = floats(view);
    let mut moved = vec![0.0; elements.len()];
    channels_to_last(&machine.pool, [batch, channels, pixels], &elements, &mut moved);
    moved.into()
}

fn convolve_floats(
    machine: &Machine,
    geometry: Geometry,
    input: View,
    weight: &PackedConvolution,
    bias: Option<&[f32]>,
    out: &mut OutTensor,
) {
    let Geometry { batch, groups, channels, kernel, stride, padding, dilation, .. } = geometry;
    let [in_channels, out_channels] = channels;
    let [pixels, results] = geometry.pixels();
    let elements = with_channels_last(machine, input, [batch, in_channels, pixels]);
    let mut sums = vec![0.0; batch * results * out_channels];
    let epilogue = Epilogue { bias, ..Epilogue::default() };
    match weight {
        PackedConvolution::Depthwise(weights) => {
            let extents = Depthwise {
                batch,
                input: geometry.input,
                output: geometry.output,
                channels: in_channels,
                multiplier: out_channels / in_channels,
                kernel,
                stride,
                dilation,
                pad: padding,
            };
            let (isa, pool) = (machine.isa, &machine.pool);
            convolve_depthwise(isa, pool, &extents, &elements, weights, &epilogue, &mut sums);
        }
        PackedConvolution::Groups(weights) => {
            let with_depth = |[height, width]: [usize; 2], depth| [depth, height, width];
            let table = IndirectionTable::new(Window {
                images: batch,
                input: with_depth(geometry.input, 1),
                output: with_depth(geometry.output, 1),
                kernel: with_depth(kernel, 1),
                stride: with_depth(stride, 1),
                dilation: with_depth(dilation, 1),
                padding: with_depth(padding, 0),
                channels: in_channels / groups,
                groups,
                pixel_stride: in_channels,
            });
            let output = MatrixMut { elements: &mut sums, stride: out_channels };
            convolve(&machine.pool, &table, &elements, weights, output, &epilogue);
        }
    }
    if out.order == [0, 2, 3, 1] {
        return out.put_all(&sums);
    }
    let extents = [batch, results, out_channels];
    let is_plain = out.dtype == ScalarType::Float && out.is_contiguous();
    if is_plain && let Ok(target) = bytemuck::try_cast_slice_mut(out.bytes()) {
        return channels_to_first(&machine.pool, extents, &sums, target);
    }
    let mut moved = vec![0.0; sums.len()];
    channels_to_first(&machine.pool, extents, &sums, &mut moved);
    out.put_contiguous(&moved);
}

/// Gradients of input, weight and bias, as selected by a mask.
fn backward(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let (gradient, input, weight) = (x.tensor(0)?, x.tensor(1)?, x.tensor(2)?);
    let wanted = x.bools(10)?;
    ensure!(wanted.len() == 3, "`output_mask` must have 3 elements, got {}", wanted.len());
    ensure!(
        !x.bool(7)? && weight.rank() == 4,
        "gradients are only supported for 2-D convolutions that are not transposed"
    );
    let geometry = Geometry::new(x, input, weight, 4)?;
    let expected = geometry.output_sizes(4);
    ensure!(
        gradient.sizes == expected,
        "the gradient has sizes {:?}; the convolution returns {expected:?}",
        gradient.sizes
    );
    ensure!(
        gradient.dtype == input.dtype && weight.dtype == input.dtype,
        "gradient, input and weight must have the same type, got `{:?}`, `{:?}` and `{:?}`",
        gradient.dtype,
        input.dtype,
        weight.dtype
    );
    let channels = [geometry.channels[1]];
    for (index, sizes) in [input.sizes, weight.sizes, &channels].into_iter().enumerate() {
        if wanted[index] {
            float_output(&out[index])?;
            same_type(&input, &out[index])?;
            out[index].resize(sizes)?;
        }
    }
    let gradients = gradient.contiguous::<f64>();
    let (inputs, weights) = (input.contiguous::<f64>(), weight.contiguous::<f64>());
    let (mut of_input, mut of_weight) = (vec![0.0; inputs.len()], vec![0.0; weights.len()]);
    if wanted[0] || wanted[1] {
        geometry.visit(false, |from, by, to| {
            of_input[from] += gradients[to] * weights[by];
            of_weight[by] += gradients[to] * inputs[from];
        });
    }
    if wanted[0] {
        out[0].put_contiguous(&of_input);
    }
    if wanted[1] {
        out[1].put_contiguous(&of_weight);
    }
    if wanted[2] {
        let mut sums = vec![0.0; channels[0]];
        let [_, results] = geometry.pixels();
        for (index, gradient) in gradients.iter().enumerate() {
            sums[index / results % channels[0]] += gradient;
        }
        out[2].put_contiguous(&sums);
    }
    Ok(())
}
