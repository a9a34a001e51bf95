use super::{below, place};
use crate::ops;
use crate::tensor::Tensor;

/// A convolution over `[batch, channels, …]` with one to three spatial dimensions.
#[derive(Clone, Debug)]
pub struct Conv {
    outputs: usize,
    kernel: Vec<usize>,
    stride: Vec<usize>,
    padding: Vec<usize>,
    dilation: Vec<usize>,
    groups: usize,
    bias: bool,
}

/// The transpose of a [`Conv`], whose weight has shape `[inputs, outputs / groups, …]`.
#[derive(Clone, Debug)]
pub struct ConvTranspose {
    conv: Conv,
    output_padding: Vec<usize>,
}

impl Conv {
    /// Returns a convolution. The kernel has one size for each spatial dimension.
    pub fn new(outputs: usize, kernel: impl Into<Vec<usize>>) -> Conv {
        let kernel = kernel.into();
        let ones = vec![1; kernel.len()];
        let padding = vec![0; kernel.len()];
        let (stride, dilation) = (ones.clone(), ones);
        Conv { outputs, kernel, stride, padding, dilation, groups: 1, bias: true }
    }

    /// Sets the stride of each spatial dimension.
    pub fn stride(mut self, stride: impl Into<Vec<usize>>) -> Conv {
        self.stride = stride.into();
        self
    }

    /// Sets the number of zeros on both sides of each spatial dimension.
    pub fn padding(mut self, padding: impl Into<Vec<usize>>) -> Conv {
        self.padding = padding.into();
        self
    }

    /// Sets the dilation of each spatial dimension.
    pub fn dilation(mut self, dilation: impl Into<Vec<usize>>) -> Conv {
        self.dilation = dilation.into();
        self
    }

    /// Sets the number of channel groups.
    pub fn groups(mut self, groups: usize) -> Conv {
        self.groups = groups;
        self
    }

    /// Omits the bias.
    pub fn without_bias(mut self) -> Conv {
        self.bias = false;
        self
    }

    /// Applies the convolution.
    #[track_caller]
    pub fn apply<'g>(&self, name: &str, x: Tensor<'g>) -> Tensor<'g> {
        let graph = x.graph();
        let mut shape = vec![self.outputs, x.extent(1) / self.groups.max(1)];
        shape.extend(&self.kernel);
        let weight = graph.param(&below(name, "weight"), shape);
        let pad: Vec<usize> = self.padding.iter().flat_map(|&pad| [pad, pad]).collect();
        let mut options = ops::Conv::new()
            .strides(&self.stride)
            .pad_type("custom")
            .pad(pad)
            .dilations(&self.dilation)
            .groups(self.groups);
        if self.bias {
            options = options.bias(graph.param(&below(name, "bias"), [self.outputs]));
        }
        x.conv(weight, options)
    }
}

impl ConvTranspose {
    /// Returns a transposed convolution with the settings of `conv`.
    pub fn new(conv: Conv) -> ConvTranspose {
        let output_padding = vec![0; conv.kernel.len()];
        ConvTranspose { conv, output_padding }
    }

    /// Sets the additional size at the end of each spatial dimension.
    pub fn output_padding(mut self, output_padding: impl Into<Vec<usize>>) -> ConvTranspose {
        self.output_padding = output_padding.into();
        self
    }

    /// Applies the transposed convolution.
    #[track_caller]
    pub fn apply<'g>(&self, name: &str, x: Tensor<'g>) -> Tensor<'g> {
        let graph = x.graph();
        let conv = &self.conv;
        let mut shape = vec![x.extent(1), conv.outputs / conv.groups.max(1)];
        shape.extend(&conv.kernel);
        let weight = graph.param(&below(name, "weight"), shape);
        // Core ML crops by the padding, so the additional size reduces the cropping at the end.
        let spatial = conv.padding.len();
        let less = |at: usize| self.output_padding.get(at).copied().unwrap_or(0);
        let crops = (0..spatial).all(|at| conv.padding[at] >= less(at));
        let pad: Vec<usize> = (0..spatial)
            .flat_map(|at| [conv.padding[at], conv.padding[at].saturating_sub(less(at))])
            .collect();
        let mut options = ops::ConvTranspose::new()
            .strides(&conv.stride)
            .pad_type("custom")
            .pad(pad)
            .dilations(&conv.dilation)
            .groups(conv.groups);
        if conv.bias && crops {
            options = options.bias(graph.param(&below(name, "bias"), [conv.outputs]));
        }
        let mut y = x.conv_transpose(weight, options);
        if !crops {
            let more =
                (0..spatial).flat_map(|at| [0, place(less(at).saturating_sub(conv.padding[at]))]);
            let more: Vec<i32> = [0, 0, 0, 0].into_iter().chain(more).collect();
            y = y.pad(more, ops::Pad::new());
            if conv.bias {
                let mut shape = vec![1; spatial + 2];
                shape[1] = conv.outputs;
                y = y + graph.param(&below(name, "bias"), [conv.outputs]).view(shape);
            }
        }
        y
    }
}

/// Maximum of each window.
#[track_caller]
pub fn max_pool<'g>(
    x: Tensor<'g>,
    kernel: &[usize],
    stride: &[usize],
    padding: &[usize],
) -> Tensor<'g> {
    let pad: Vec<usize> = padding.iter().flat_map(|&pad| [pad, pad]).collect();
    x.max_pool(kernel, "custom", ops::MaxPool::new().strides(stride).pad(pad))
}

/// Mean of each window. Zeros of the padding are included if `count_padding` is true.
#[track_caller]
pub fn avg_pool<'g>(
    x: Tensor<'g>,
    kernel: &[usize],
    stride: &[usize],
    padding: &[usize],
    count_padding: bool,
) -> Tensor<'g> {
    let pad: Vec<usize> = padding.iter().flat_map(|&pad| [pad, pad]).collect();
    let options = ops::AvgPool::new().strides(stride).pad(pad);
    x.avg_pool(kernel, "custom", options.exclude_padding_from_average(!count_padding))
}

/// Averages with this number of windows in each spatial dimension, which must divide the sizes.
#[track_caller]
pub fn adaptive_avg_pool<'g>(x: Tensor<'g>, windows: &[usize]) -> Tensor<'g> {
    let shape = x.shape();
    let first = shape.len().saturating_sub(windows.len());
    let extents = &shape[first..];
    let divides =
        extents.iter().zip(windows).all(|(&extent, &count)| count > 0 && extent % count == 0);
    if !divides || first == 0 {
        let message = format!(
            "adaptive pooling of {shape:?} to {windows:?}: each number of windows must divide the size of its axis"
        );
        let hint = "resize first, or pool with a fixed kernel";
        return x.graph().mistake(message, Some(hint.into()), std::panic::Location::caller());
    }
    let kernel: Vec<usize> = extents.iter().zip(windows).map(|(&e, &count)| e / count).collect();
    let zeros = vec![0; kernel.len()];
    avg_pool(x, &kernel, &kernel, &zeros, true)
}

/// Enlarges an image `[batch, channels, height, width]` by repeating its elements.
#[track_caller]
pub fn resize_nearest<'g>(x: Tensor<'g>, height: f32, width: f32) -> Tensor<'g> {
    let options = ops::UpsampleNearestNeighbor::new();
    x.upsample_nearest_neighbor(options.scale_factor_height(height).scale_factor_width(width))
}

/// Resizes an image `[batch, channels, height, width]` by linear interpolation between pixel centers.
#[track_caller]
pub fn resize_bilinear<'g>(
    x: Tensor<'g>,
    height: usize,
    width: usize,
    align_corners: bool,
) -> Tensor<'g> {
    let mode = if align_corners { "STRICT_ALIGN_CORNERS" } else { "UNALIGN_CORNERS" };
    let options = ops::ResizeBilinear::new().target_size_height(height).target_size_width(width);
    x.resize_bilinear(options.sampling_mode(mode))
}
