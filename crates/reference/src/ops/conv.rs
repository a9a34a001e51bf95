//! Reference kernels of convolutions, by im2col and a matrix product.

use std::ops::Range;

use coremill_kernels::device::{Bias, fixed, number};
use coremill_kernels::product::{Extents, StridedMatrix, gemm_reference};
use half::f16;

use super::window::{PadType, Window, per_dimension, positive, windows};
use crate::array::View;
use crate::call::{Call, Results};
use crate::error::{Error, Result, fail};

/// Maximum number of im2col elements at a time, unless a single window has more.
const UNFOLDED: usize = 1 << 20;

/// Marks an element of a window that is in the padding.
const PADDING: usize = usize::MAX;

pub(super) fn conv(call: &Call) -> Results {
    let x = call.tensor("x")?;
    let weight = call.tensor("weight")?;
    let layer = Layer::of(call, x, weight)?;
    let (channels, per_group) = (weight.shape[0], weight.shape[1]);
    if !channels.is_multiple_of(layer.groups) {
        fail!(
            "`weight` has {channels} output channels, which cannot be divided into {} groups",
            layer.groups
        );
    }
    if per_group.checked_mul(layer.groups) != Some(x.shape[1]) {
        fail!(
            "`weight` expects {per_group} input channels in each of {} groups; `x` has {}",
            layer.groups,
            x.shape[1]
        );
    }
    let dilations = positive(call, "dilations", layer.spatial)?;
    let windows = windows(call, &x.shape[2..], &weight.shape[2..], &dilations, false)?;
    let mut shape = vec![x.shape[0], channels];
    shape.extend(windows.iter().map(|window| window.output));
    let count = call.count(&shape)?;
    let bias = bias(call, channels)?;
    let (x, weight) = (call.floats("x")?, call.floats("weight")?);
    if count == 0 {
        return call.give_floats(shape, Vec::new());
    }

    let plane = layer.plane;
    let positions = call.count(&shape[2..])?;
    let depth = per_group * layer.elements;
    let rows = channels / layer.groups;
    // A 1×1 window with stride 1 and no padding needs no im2col.
    let pointwise = windows.iter().all(|window| {
        window.kernel == 1 && window.stride == 1 && window.before == 0 && window.after == 0
    });
    let (arithmetic, dtype, groups) = (call.arithmetic, call.dtype(), layer.groups);
    let mut output = vec![0.0; count];
    for positions_at_once in chunks(positions, depth.max(rows).max(layer.elements)) {
        let width = positions_at_once.len();
        let sources = match pointwise {
            true => Vec::new(),
            false => sources(&windows, positions_at_once.clone()),
        };
        // A group of channels of an image is one product.
        let compute = |index: usize, output: &mut [f32]| {
            let group = index % groups;
            let first = index * per_group * plane;
            let x = &x[first..first + per_group * plane];
            let mut unfolded = Vec::new();
            let right = if pointwise {
                StridedMatrix {
                    elements: &x[positions_at_once.start.min(x.len())..],
                    rows: plane,
                    columns: 1,
                }
            } else {
                unfolded.reserve(depth * width);
                // A channel, and a zero at which all padding is read.
                let mut padded = vec![0.0; plane + 1];
                for channel in 0..per_group {
                    padded[..plane].copy_from_slice(&x[channel * plane..(channel + 1) * plane]);
                    unfolded.extend(sources.iter().map(|&at| padded[at.min(plane)]));
                }
                StridedMatrix::dense(&unfolded, width)
            };
            let left = StridedMatrix::dense(&weight[group * rows * depth..], depth);
            let extents = Extents { rows, depth, columns: width };
            let bias = bias.map(|bias| &bias[group * rows..(group + 1) * rows]);
            let bias = bias.map_or(Bias::None, Bias::OfRows);
            let mut product = vec![0.0; rows * width];
            arithmetic.multiply(dtype, &mut product, extents, [left, right], bias);
            for (row, products) in product.chunks_exact(width).enumerate() {
                let start = row * positions + positions_at_once.start;
                output[start..start + width].copy_from_slice(products);
            }
        };
        let parts = output.chunks_exact_mut(rows * positions);
        match arithmetic.machine {
            Some(machine) => machine.share(parts, |index, part| compute(index, part)),
            None => parts.enumerate().for_each(|(index, part)| compute(index, part)),
        }
    }
    call.give_floats(shape, output)
}

pub(super) fn conv_quantized(_: &Call) -> Results {
    Err(Error::new("`conv_quantized` is limited to neural networks; ML Programs do not support it")
        .with_hint("use `conv` with a weight from one of the `constexpr_` operations"))
}

pub(super) fn conv_transpose(call: &Call) -> Results {
    let x = call.tensor("x")?;
    let weight = call.tensor("weight")?;
    let layer = Layer::of(call, x, weight)?;
    if weight.shape[0] != x.shape[1] || !x.shape[1].is_multiple_of(layer.groups) {
        fail!(
            "`weight` expects {} input channels in {} groups; `x` has {}",
            weight.shape[0],
            layer.groups,
            x.shape[1]
        );
    }
    let per_group = weight.shape[1];
    let Some(channels) = per_group.checked_mul(layer.groups) else {
        fail!("{per_group} output channels in each of {} groups are too many", layer.groups)
    };
    let spreads = spreads(call, x, &layer, channels)?;
    let mut shape = vec![x.shape[0], channels];
    shape.extend(spreads.iter().map(|spread| spread.output));
    let count = call.count(&shape)?;
    let bias = bias(call, channels)?;
    let inputs = weight.shape[0] / layer.groups;
    let (x, weight) = (call.floats("x")?, call.floats("weight")?);
    if count == 0 {
        return call.give_floats(shape, Vec::new());
    }

    let (plane, elements) = (layer.plane, layer.elements);
    let positions = call.count(&shape[2..])?;
    let rows = per_group * elements;
    let mut sums =
        Sums::new(call, count, |index| bias.map_or(0.0, |bias| bias[index / positions % channels]));
    for positions_at_once in chunks(plane, rows.max(elements)) {
        let width = positions_at_once.len();
        let targets = targets(&spreads, positions_at_once.clone());
        for item in 0..shape[0] {
            for group in 0..layer.groups {
                let first =
                    (item * layer.groups + group) * inputs * plane + positions_at_once.start;
                let right =
                    StridedMatrix { elements: &x[first.min(x.len())..], rows: plane, columns: 1 };
                let left =
                    StridedMatrix::dense(&weight[group * inputs * rows..], rows).transposed();
                let extents = Extents { rows, depth: inputs, columns: width };
                let start = (item * channels + group * per_group) * positions;
                // Elements of the window follow each other within a channel.
                let place = |row: usize, column: usize| {
                    let (channel, element) = (row / elements, row % elements);
                    let target = targets[element * width + column];
                    (target != PADDING).then(|| start + channel * positions + target)
                };
                sums.add(extents, [left, right], place);
            }
        }
    }
    call.give_floats(shape, sums.results())
}

/// Sums of products that several windows add to, in the arithmetic of a call.
enum Sums {
    Floats {
        sums: Vec<f32>,
        product: Vec<f32>,
    },
    /// As on the Neural Engine.
    Fixed(Vec<fixed::Sum>),
    /// As Core ML's CPU has it.
    Halves(Vec<f16>, Vec<f32>),
}

impl Sums {
    fn new(call: &Call, count: usize, bias: impl Fn(usize) -> f32) -> Sums {
        let (arithmetic, dtype) = (call.arithmetic, call.dtype());
        if arithmetic.is_ane(dtype) {
            let sum = |index| fixed::Sum::new(number::read(bias(index)));
            return Sums::Fixed((0..count).map(sum).collect());
        }
        let start = (0..count).map(&bias).collect();
        match arithmetic.is_device(dtype) {
            // The bias comes last there.
            true => Sums::Halves(vec![f16::ZERO; count], start),
            false => Sums::Floats { sums: start, product: Vec::new() },
        }
    }

    /// Adds the elements of a product, each at its place.
    fn add(
        &mut self,
        extents: Extents,
        [left, right]: [StridedMatrix<'_>; 2],
        place: impl Fn(usize, usize) -> Option<usize>,
    ) {
        let Extents { rows, depth, columns } = extents;
        let places = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
        match self {
            Sums::Floats { sums, product } => {
                product.clear();
                product.resize(rows * columns, 0.0);
                gemm_reference(product, extents, left, right);
                for ((row, column), product) in places.zip(product) {
                    if let Some(place) = place(row, column) {
                        sums[place] += *product;
                    }
                }
            }
            Sums::Fixed(sums) => {
                for (row, column) in places {
                    let Some(place) = place(row, column) else { continue };
                    sums[place] = (0..depth).fold(sums[place], |sum, step| {
                        let (x, y) = (left.at(row, step), right.at(step, column));
                        sum.plus_product(number::read(x), number::read(y))
                    });
                }
            }
            Sums::Halves(sums, _) => {
                for (row, column) in places {
                    let Some(place) = place(row, column) else { continue };
                    sums[place] = (0..depth).fold(sums[place], |sum, step| {
                        let (x, y) = (left.at(row, step), right.at(step, column));
                        f16::from_f32(x.mul_add(y, sum.to_f32()))
                    });
                }
            }
        }
    }

    fn results(self) -> Vec<f32> {
        match self {
            Sums::Floats { sums, .. } => sums,
            Sums::Fixed(sums) => sums.into_iter().map(fixed::Sum::result).collect(),
            Sums::Halves(sums, bias) => {
                sums.into_iter().zip(bias).map(|(sum, bias)| sum.to_f32() + bias).collect()
            }
        }
    }
}

/// Number of elements that a transposed convolution crops at the start of each spatial dimension.
pub fn cut_before(call: &Call) -> Result<Vec<i64>> {
    let (x, weight) = (call.tensor("x")?, call.tensor("weight")?);
    let layer = Layer::of(call, x, weight)?;
    let Some(channels) = weight.shape[1].checked_mul(layer.groups) else {
        fail!("there are too many channels")
    };
    Ok(spreads(call, x, &layer, channels)?.iter().map(|spread| spread.before).collect())
}

/// Sizes common to both kinds of convolution.
struct Layer {
    groups: usize,
    spatial: usize,
    /// Number of elements per input channel.
    plane: usize,
    kernel: Vec<usize>,
    /// Number of elements of the window.
    elements: usize,
}

impl Layer {
    fn of(call: &Call, x: View, weight: View) -> Result<Layer> {
        if !(3..=5).contains(&x.rank()) || weight.rank() != x.rank() {
            fail!(
                "`x` has rank {} and `weight` rank {}; expected 3 to 5, the same for both",
                x.rank(),
                weight.rank()
            );
        }
        let groups = call.int("groups")?;
        let Some(groups) = usize::try_from(groups).ok().filter(|&groups| groups > 0) else {
            fail!("`groups` must be at least 1, got {groups}")
        };
        let plane = call.count(&x.shape[2..])?;
        // Check both sizes, since one may be large while the other is 0.
        let elements = call.count(&weight.shape[2..])?;
        call.count(&weight.shape[1..])?;
        let kernel = weight.shape[2..].to_vec();
        Ok(Layer { groups, spatial: x.rank() - 2, plane, kernel, elements })
    }
}

fn bias<'a>(call: &Call<'a>, channels: usize) -> Result<Option<&'a [f32]>> {
    match call.optional_floats("bias")? {
        Some(bias) if bias.len() != channels => {
            fail!("`bias` has {} elements; expected {channels}, the output channels", bias.len())
        }
        bias => Ok(bias),
    }
}

/// Splits positions into ranges whose im2col elements stay within the maximum.
fn chunks(positions: usize, rows: usize) -> impl Iterator<Item = Range<usize>> {
    let width = (UNFOLDED / rows.max(1)).max(1);
    (0..positions).step_by(width).map(move |first| first..(first + width).min(positions))
}

/// Offsets within an input channel of the window's elements at each position: all positions of the
/// first element, then of the second, and so on.
fn sources(windows: &[Window], positions: Range<usize>) -> Vec<usize> {
    let steps: Vec<usize> = windows.iter().map(|window| window.output).collect();
    let inputs: Vec<usize> = windows.iter().map(|window| window.input).collect();
    let kernel: Vec<usize> = windows.iter().map(|window| window.kernel).collect();
    meetings(&kernel, &steps, &inputs, positions, |axis, step, element| {
        windows[axis].source(step, element)
    })
}

/// Offsets within an output channel to which the window's elements scatter each input position.
fn targets(spreads: &[Spread], positions: Range<usize>) -> Vec<usize> {
    let steps: Vec<usize> = spreads.iter().map(|spread| spread.input).collect();
    let outputs: Vec<usize> = spreads.iter().map(|spread| spread.output).collect();
    let kernel: Vec<usize> = spreads.iter().map(|spread| spread.kernel).collect();
    meetings(&kernel, &steps, &outputs, positions, |axis, step, element| {
        spreads[axis].target(step, element)
    })
}

/// Offsets in a plane for each window element and position. `meet` computes the index along an
/// axis.
fn meetings(
    kernel: &[usize],
    steps: &[usize],
    plane: &[usize],
    positions: Range<usize>,
    meet: impl Fn(usize, usize, usize) -> Option<usize>,
) -> Vec<usize> {
    let elements: usize = kernel.iter().product();
    let mut places = Vec::with_capacity(elements * positions.len());
    for element in 0..elements {
        for position in positions.clone() {
            let (mut element, mut position) = (element, position);
            let (mut place, mut stride) = (0, 1);
            for axis in (0..kernel.len()).rev() {
                let met = meet(axis, position % steps[axis], element % kernel[axis]);
                let Some(met) = met else {
                    place = PADDING;
                    break;
                };
                place += met * stride;
                stride *= plane[axis];
                position /= steps[axis];
                element /= kernel[axis];
            }
            places.push(place);
        }
    }
    places
}

/// Transposed convolution along one spatial dimension.
struct Spread {
    input: usize,
    kernel: usize,
    stride: i64,
    dilation: i64,
    /// Number of elements cropped at the start of the output.
    before: i64,
    output: usize,
}

impl Spread {
    /// The output index of a window element, `None` if it is cropped.
    fn target(&self, step: usize, element: usize) -> Option<usize> {
        let at = step as i64 * self.stride + element as i64 * self.dilation - self.before;
        (0..self.output as i64).contains(&at).then_some(at as usize)
    }
}

fn spreads(call: &Call, x: View, layer: &Layer, channels: usize) -> Result<Vec<Spread>> {
    let spatial = layer.spatial;
    let strides = positive(call, "strides", spatial)?;
    let dilations = positive(call, "dilations", spatial)?;
    let pad_type = PadType::of(call)?;
    let pads = match pad_type {
        PadType::Custom => per_dimension(call, "pad", spatial, 2)?,
        _ => vec![0; 2 * spatial],
    };
    let stated = stated_output(call, x, channels)?;
    let spreads = (0..spatial).map(|axis| {
        let (input, kernel) = (x.shape[axis + 2], layer.kernel[axis]);
        let (stride, dilation) = (strides[axis], dilations[axis]);
        let checked = || {
            let reach = (kernel as i64).checked_sub(1)?.checked_mul(dilation)?.checked_add(1)?;
            let whole = (input as i64).checked_sub(1)?.checked_mul(stride)?.checked_add(reach)?;
            Some((whole, (input as i64).checked_mul(stride)?))
        };
        let Some((whole, multiple)) = checked() else {
            fail!("the output along spatial dimension {axis} is too large")
        };
        let output = match (&stated, pad_type) {
            (Some(stated), _) => stated[axis],
            (None, PadType::Same | PadType::SameLower) => multiple,
            (None, PadType::Valid | PadType::Custom) => {
                whole.saturating_sub(pads[2 * axis]).saturating_sub(pads[2 * axis + 1])
            }
        };
        if output < 1 {
            fail!(
                "the output has {output} elements along spatial dimension {axis}; expected at least 1"
            );
        }
        let before = match pad_type {
            PadType::Same | PadType::SameLower => pad_type.split((whole - output).max(0)).0,
            PadType::Valid | PadType::Custom => pads[2 * axis],
        };
        Ok(Spread { input, kernel, stride, dilation, before, output: output as usize })
    });
    spreads.collect()
}

/// The spatial sizes of the `output_shape` parameter.
fn stated_output(call: &Call, x: View, channels: usize) -> Result<Option<Vec<i64>>> {
    let Some(stated) = call.optional_ints("output_shape")? else { return Ok(None) };
    if stated.len() != x.rank() {
        fail!("`output_shape` has {} elements, but `x` has rank {}", stated.len(), x.rank());
    }
    let [batch, stated_channels] = [stated[0], stated[1]].map(i64::from);
    if batch != x.shape[0] as i64 || stated_channels != channels as i64 {
        fail!(
            "`output_shape` starts with {batch}, {stated_channels}; expected {}, {channels}, \
             the batch size of `x` and the output channels of `weight`",
            x.shape[0]
        );
    }
    Ok(Some(stated[2..].iter().map(|&extent| i64::from(extent)).collect()))
}
