//! Pooling.

use coremill_pte::program::ScalarType;

use super::arguments::{float_output, same_type};
use super::{Arguments, Kernel, kernel};
use crate::error::{Result, ensure, fail};
use crate::number::{Compute, Number, compute, is_floating};
use crate::view::{OutTensor, View};

pub(super) const TABLE: &[Kernel] = &[
    kernel("aten::_adaptive_avg_pool2d.out", "TN>T", adaptive_average),
    kernel("aten::avg_pool2d.out", "TNNNBBi>T", average),
    kernel("aten::max_pool2d_with_indices.out", "TNNNNB>TT", largest),
    kernel("aten::max_pool2d_with_indices_backward.grad_input", "TTNNNNBT>T", largest_backward),
];

/// Images, with merged batch and channels, and the windows over them.
struct Windows {
    planes: usize,
    input: [usize; 2],
    output: [usize; 2],
    kernel: [usize; 2],
    stride: [usize; 2],
    padding: [usize; 2],
    dilation: [usize; 2],
}

/// Height and width of images of rank 3 or 4.
fn image(view: &View) -> Result<[usize; 2]> {
    match view.sizes {
        [.., height, width] if view.rank() == 3 || view.rank() == 4 => Ok([*height, *width]),
        sizes => fail!("the tensor has sizes {sizes:?}; expected three or four dimensions"),
    }
}

fn with_image(view: &View, [height, width]: [usize; 2]) -> Vec<usize> {
    let mut sizes = view.sizes.to_vec();
    let rank = sizes.len();
    sizes[rank - 2..].copy_from_slice(&[height, width]);
    sizes
}

impl Windows {
    /// Reads the parameters from the arguments, starting with the kernel size at index `first`. With `dilated`, a
    /// dilation is one of them.
    fn new(x: &Arguments, view: &View, first: usize, dilated: bool) -> Result<Windows> {
        let input = image(view)?;
        let kernel = x.pair(first, None)?;
        let stride = x.pair(first + 1, Some(kernel))?;
        let padding = x.pair(first + 2, Some([0, 0]))?;
        let dilation = if dilated { x.pair(first + 3, Some([1, 1]))? } else { [1, 1] };
        let ceil = x.bool(first + 3 + usize::from(dilated))?;
        let least = [(kernel, 1), (stride, 1), (padding, 0), (dilation, 1)];
        ensure!(
            least.iter().all(|(pair, least)| pair.iter().all(|n| (*least..1 << 31).contains(n))),
            "kernel {kernel:?}, stride {stride:?}, padding {padding:?} or dilation {dilation:?} is out of range"
        );
        let mut output = [0; 2];
        for axis in 0..2 {
            let (size, stride, padding) = (input[axis] as i64, stride[axis], padding[axis]);
            ensure!(
                padding <= kernel[axis] / 2,
                "the padding must be at most half the kernel size {}, got {padding}",
                kernel[axis]
            );
            let reach = i128::from(dilation[axis]) * i128::from(kernel[axis] - 1) + 1;
            let room = i128::from(size) + 2 * i128::from(padding) - reach;
            let room = if ceil { room + i128::from(stride) - 1 } else { room };
            let mut length = room.div_euclid(i128::from(stride)) + 1;
            if ceil && (length - 1) * i128::from(stride) >= i128::from(size + padding) {
                length -= 1;
            }
            let Some(length) = usize::try_from(length).ok().filter(|length| *length > 0) else {
                fail!(
                    "{size} elements are too few for windows of {reach} with a padding of {padding}"
                );
            };
            output[axis] = length;
        }
        let all = |pair: [i64; 2]| pair.map(|number| number as usize);
        let planes = view.sizes[..view.rank() - 2].iter().product();
        let [kernel, stride, padding, dilation] = [kernel, stride, padding, dilation].map(all);
        Ok(Windows { planes, input, output, kernel, stride, padding, dilation })
    }

    /// Calls a function for each window, with the offset of the plane in a contiguous tensor and the window's start
    /// in the padded plane.
    fn each<T>(&self, mut window: impl FnMut(usize, [usize; 2]) -> T) -> Vec<T> {
        let [rows, columns] = self.output;
        let mut results = Vec::with_capacity(self.planes * rows * columns);
        for plane in 0..self.planes {
            for row in 0..rows {
                for column in 0..columns {
                    let start = [row * self.stride[0], column * self.stride[1]];
                    results.push(window(plane * self.input[0] * self.input[1], start));
                }
            }
        }
        results
    }

    /// Offsets in the plane of the window's elements, without padding.
    fn places(&self, start: [usize; 2]) -> impl Iterator<Item = usize> {
        let along = move |axis: usize| {
            let (size, padding) = (self.input[axis], self.padding[axis]);
            (0..self.kernel[axis])
                .map(move |tap| (start[axis] + tap * self.dilation[axis]).wrapping_sub(padding))
                .filter(move |place| *place < size)
        };
        along(0).flat_map(move |row| along(1).map(move |column| row * self.input[1] + column))
    }
}

fn largest(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let view = x.tensor(0)?;
    same_type(&view, &out[0])?;
    let dtype = out[1].dtype;
    ensure!(dtype == ScalarType::Long, "the indices must be `Long`, got `{dtype:?}`");
    let windows = Windows::new(x, &view, 1, true)?;
    let sizes = with_image(&view, windows.output);
    out[0].resize(&sizes)?;
    out[1].resize(&sizes)?;
    compute!(Compute::of(view.dtype)?, N => {
        let numbers = view.contiguous::<N>();
        let found = windows.each(|plane, start| {
            let mut best: Option<(N, usize)> = None;
            for place in windows.places(start) {
                let number = numbers[plane + place];
                if best.is_none_or(|(best, _)| number > best || number.is_nan()) {
                    best = Some((number, place));
                }
            }
            best.unwrap_or((N::LEAST, 0))
        });
        out[0].put_contiguous(&found.iter().map(|(number, _)| *number).collect::<Vec<N>>());
        out[1].put_contiguous(&found.iter().map(|(_, place)| *place as i64).collect::<Vec<i64>>());
        Ok(())
    })
}

fn largest_backward(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let (gradient, view, indices) = (x.tensor(0)?, x.tensor(1)?, x.tensor(7)?);
    same_type(&view, &out[0])?;
    same_type(&gradient, &out[0])?;
    float_output(&out[0])?;
    let windows = Windows::new(x, &view, 2, true)?;
    let sizes = with_image(&view, windows.output);
    ensure!(
        gradient.sizes == sizes && indices.sizes == sizes && indices.dtype == ScalarType::Long,
        "gradient and indices must have sizes {sizes:?}, got {:?} and {:?} of type `{:?}`",
        gradient.sizes,
        indices.sizes,
        indices.dtype
    );
    out[0].resize(view.sizes)?;
    let (gradients, indices) = (gradient.contiguous::<f64>(), indices.contiguous::<i64>());
    let [pixels, results] = [windows.input, windows.output].map(|[height, width]| height * width);
    let mut sums = vec![0.0; view.count()];
    for (place, (gradient, index)) in gradients.iter().zip(indices).enumerate() {
        let Some(index) = usize::try_from(index).ok().filter(|index| *index < pixels) else {
            ensure!(index == -1, "pixel {index} is out of range; the image has {pixels} pixels");
            continue;
        };
        sums[place / results * pixels + index] += gradient;
    }
    out[0].put_contiguous(&sums);
    Ok(())
}

/// Averages support floats and 64-bit integers.
fn averaged(view: &View, out: &OutTensor) -> Result {
    same_type(view, out)?;
    let dtype = view.dtype;
    ensure!(
        is_floating(dtype) || dtype == ScalarType::Long,
        "the tensor must have a float type or `Long`, got `{dtype:?}`"
    );
    Ok(())
}

fn average(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let view = x.tensor(0)?;
    averaged(&view, &out[0])?;
    let windows = Windows::new(x, &view, 1, false)?;
    let (counts_padding, divisor) = (x.bool(5)?, x.optional_int(6)?);
    ensure!(divisor != Some(0), "`divisor_override` must not be 0");
    out[0].resize(&with_image(&view, windows.output))?;
    compute!(Compute::of(view.dtype)?, N => {
        let numbers = view.contiguous::<N>();
        let means = windows.each(|plane, start| {
            let places = windows.places(start);
            let (sum, count) = places.fold((N::ZERO, 0), |(sum, count), place| {
                (sum.add(numbers[plane + place]), count + 1)
            });
            // Windows are cut off at the end of the padding.
            let whole = |axis: usize| {
                let end = windows.input[axis] + 2 * windows.padding[axis];
                windows.kernel[axis].min(end.saturating_sub(start[axis]))
            };
            let count = if counts_padding { whole(0) * whole(1) } else { count };
            sum.divide(N::of_f64(divisor.map_or(count as f64, |divisor| divisor as f64)))
        });
        out[0].put_contiguous(&means);
        Ok(())
    })
}

fn adaptive_average(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let view = x.tensor(0)?;
    averaged(&view, &out[0])?;
    let input = image(&view)?;
    let wanted = x.pair(1, None)?;
    ensure!(
        wanted.iter().all(|size| (1..1 << 31).contains(size)) && !view.sizes[1..].contains(&0),
        "an image of {input:?} pixels cannot be averaged to {wanted:?}"
    );
    let output = wanted.map(|size| size as usize);
    out[0].resize(&with_image(&view, output))?;
    let bounds = |axis: usize, index: usize| {
        let (size, count) = (input[axis], output[axis]);
        (index * size / count, ((index + 1) * size).div_ceil(count))
    };
    let numbers = view.contiguous::<f64>();
    let planes: usize = view.sizes[..view.rank() - 2].iter().product();
    let mut means = Vec::with_capacity(out[0].count());
    for plane in 0..planes {
        for row in 0..output[0] {
            let (top, bottom) = bounds(0, row);
            for column in 0..output[1] {
                let (left, right) = bounds(1, column);
                let mut sum = 0.0;
                for y in top..bottom {
                    let start = (plane * input[0] + y) * input[1];
                    sum += numbers[start + left..start + right].iter().sum::<f64>();
                }
                means.push(sum / ((bottom - top) * (right - left)) as f64);
            }
        }
    }
    out[0].put_contiguous(&means);
    Ok(())
}
