//! Normalization and softmax.

use coremill_kernels::normalize::softmax;

use super::arguments::{float_output, same_type};
use super::matmul::floats;
use super::{Arguments, Kernel, kernel};
use crate::error::{Result, ensure};
use crate::number::{Compute, Number, compute, is_floating};
use crate::view::{OutTensor, View, dense, sizes_of};

pub(super) const TABLE: &[Kernel] = &[
    kernel("aten::_log_softmax.out", "TIB>T", log_softmax),
    kernel("aten::_native_batch_norm_legit.no_stats_out", "TttBDD>TTT", batch_norm_of_batch),
    kernel("aten::_native_batch_norm_legit.out", "TttMMBDD>TTT", |x, out| {
        ensure!(!x.bool(5)?, "batch normalization in training mode is not supported");
        // The statistics are the first outputs and stay unchanged.
        let (statistics, results) = out.split_at_mut(2);
        let [mean, variance] = [statistics[0].view(), statistics[1].view()];
        batch_norm(x, [mean, variance], x.double(7)?, results)
    }),
    kernel("aten::_native_batch_norm_legit_no_training.out", "TttTTDD>TTT", |x, out| {
        batch_norm(x, [x.tensor(3)?, x.tensor(4)?], x.double(6)?, out)
    }),
    kernel("aten::_softmax.out", "TIB>T", soft_max),
    kernel("aten::native_group_norm.out", "TttIIIID>TTT", group_norm),
    kernel("aten::native_layer_norm.out", "TNttD>TTT", layer_norm),
];

/// Products of the sizes before, along and after a dimension.
fn extents(view: &View, dimension: i64) -> Result<[usize; 3]> {
    let axis = view.dimension(dimension)?;
    let size = view.sizes.get(axis).copied().unwrap_or(1);
    let inner = dense(view.sizes).get(axis).copied().unwrap_or(1);
    Ok([view.count() / (size * inner).max(1), size, inner])
}

fn float_tensor<'a>(x: &Arguments<'a>, out: &OutTensor) -> Result<View<'a>> {
    let view = x.tensor(0)?;
    float_output(out)?;
    ensure!(is_floating(view.dtype), "the tensor must have a float type, got `{:?}`", view.dtype);
    Ok(view)
}

fn soft_max(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let view = float_tensor(x, &out[0])?;
    let extents = extents(&view, x.int(1)?)?;
    out[0].resize(view.sizes)?;
    if view.count() == 0 {
        return Ok(());
    }
    if Compute::of(view.dtype)? == Compute::F32 {
        let mut results = vec![0.0; view.count()];
        softmax(x.machine.isa, &x.machine.pool, &floats(view), extents, &mut results);
        out[0].put_contiguous(&results);
        return Ok(());
    }
    let mut numbers = view.contiguous::<f64>();
    each_line(&mut numbers, extents, |line| {
        let largest = line.iter().copied().fold(f64::NEG_INFINITY, f64::greatest);
        line.iter_mut().for_each(|number| *number = (*number - largest).exp());
        let sum: f64 = line.iter().sum();
        line.iter_mut().for_each(|number| *number /= sum);
    });
    out[0].put_contiguous(&numbers);
    Ok(())
}

fn log_softmax(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let view = float_tensor(x, &out[0])?;
    let extents = extents(&view, x.int(1)?)?;
    out[0].resize(view.sizes)?;
    let mut numbers = view.contiguous::<f64>();
    each_line(&mut numbers, extents, |line| {
        let largest = line.iter().copied().fold(f64::NEG_INFINITY, f64::greatest);
        let sum: f64 = line.iter().map(|number| (number - largest).exp()).sum();
        line.iter_mut().for_each(|number| *number = *number - largest - sum.ln());
    });
    out[0].put_contiguous(&numbers);
    Ok(())
}

/// Calls `change` with the elements along the middle one of three dimensions.
fn each_line(
    numbers: &mut [f64],
    [outer, size, inner]: [usize; 3],
    mut change: impl FnMut(&mut [f64]),
) {
    let mut line = vec![0.0; size];
    for index in 0..outer * inner {
        let start = index / inner * size * inner + index % inner;
        for (place, number) in line.iter_mut().enumerate() {
            *number = numbers[start + place * inner];
        }
        change(&mut line);
        for (place, number) in line.iter().enumerate() {
            numbers[start + place * inner] = *number;
        }
    }
}

/// Optional weight and bias.
struct Affine {
    weight: Option<Vec<f64>>,
    bias: Option<Vec<f64>>,
}

impl Affine {
    /// `(number - mean) · inverse · weight + bias`.
    fn normalized(&self, number: f64, [mean, inverse]: [f64; 2], index: usize) -> f64 {
        let [weight, bias] = self.of(index);
        (number - mean) * inverse * weight + bias
    }

    /// Weight and bias of an element.
    fn of(&self, index: usize) -> [f64; 2] {
        let weight = self.weight.as_ref().map_or(1.0, |weight| weight[index]);
        [weight, self.bias.as_ref().map_or(0.0, |bias| bias[index])]
    }
}

/// Weight and bias of `count` elements.
fn affine(x: &Arguments, first: usize, count: usize) -> Result<Affine> {
    let of = |view: Option<View>| match view {
        Some(view) => {
            ensure!(
                view.count() == count && is_floating(view.dtype),
                "the weight or bias has type `{:?}` and sizes {:?}; expected {count} floats",
                view.dtype,
                view.sizes
            );
            Ok(Some(view.contiguous::<f64>()))
        }
        None => Ok(None),
    };
    let weight = of(x.optional_tensor(first)?)?;
    Ok(Affine { weight, bias: of(x.optional_tensor(first + 1)?)? })
}

/// Mean and inverse standard deviation.
fn statistics(numbers: &[f64], epsilon: f64) -> [f64; 2] {
    let count = numbers.len() as f64;
    if numbers.is_empty() {
        return [0.0, f64::NAN];
    }
    let mean = numbers.iter().sum::<f64>() / count;
    let variance = numbers.iter().map(|number| (number - mean).powi(2)).sum::<f64>() / count;
    [mean, 1.0 / (variance + epsilon).sqrt()]
}

fn layer_norm(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let view = float_tensor(x, &out[0])?;
    same_type(&view, &out[0])?;
    let shape = sizes_of(x.ints(1)?)?;
    let epsilon = x.double(4)?;
    ensure!(
        !shape.is_empty() && view.sizes.ends_with(&shape),
        "the sizes {:?} must end with the normalized shape {shape:?}",
        view.sizes
    );
    let length: usize = shape.iter().product();
    let lead = view.rank() - shape.len();
    let affine = affine(x, 2, length)?;
    out[0].resize(view.sizes)?;
    let kept: Vec<usize> = view
        .sizes
        .iter()
        .enumerate()
        .map(|(axis, size)| if axis < lead { *size } else { 1 })
        .collect();
    out[1].resize(&kept)?;
    out[2].resize(&kept)?;
    let rows = view.sizes[..lead].iter().product();
    normalize_rows(&view, [rows, length], epsilon, &affine, |_, index| index, out);
    Ok(())
}

fn group_norm(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let view = float_tensor(x, &out[0])?;
    same_type(&view, &out[0])?;
    let sizes = sizes_of(&[x.int(3)?, x.int(4)?, x.int(5)?, x.int(6)?])?;
    let [batch, channels, pixels, groups] = [sizes[0], sizes[1], sizes[2], sizes[3]];
    let epsilon = x.double(7)?;
    let count = crate::view::count(&[batch, channels, pixels])?;
    ensure!(
        groups > 0 && channels % groups == 0 && count == view.count(),
        "batch {batch}, {channels} channels, {pixels} pixels and {groups} groups do not match a tensor of sizes {:?}",
        view.sizes
    );
    let affine = affine(x, 1, channels)?;
    out[0].resize(view.sizes)?;
    out[1].resize(&[batch, groups])?;
    out[2].resize(&[batch, groups])?;
    let width = channels / groups;
    let channel = |group, index| group % groups * width + index / pixels;
    normalize_rows(&view, [batch * groups, width * pixels], epsilon, &affine, channel, out);
    Ok(())
}

/// Normalizes `rows` rows of `length` elements. Outputs are the normalized rows, the means and the inverse standard
/// deviations. `place` returns the index of the weight and bias of an element.
fn normalize_rows(
    view: &View,
    [rows, length]: [usize; 2],
    epsilon: f64,
    affine: &Affine,
    place: impl Fn(usize, usize) -> usize,
    out: &mut [OutTensor],
) {
    let mut numbers = view.contiguous::<f64>();
    let (mut means, mut inverses) = (Vec::new(), Vec::new());
    for row in 0..rows {
        let elements = &mut numbers[row * length..][..length];
        let found = statistics(elements, epsilon);
        for (index, number) in elements.iter_mut().enumerate() {
            *number = affine.normalized(*number, found, place(row, index));
        }
        means.push(found[0]);
        inverses.push(found[1]);
    }
    out[0].put_contiguous(&numbers);
    out[1].put_contiguous(&means);
    out[2].put_contiguous(&inverses);
}

/// Number of channels, and of elements per channel in an image.
fn channels(view: &View) -> [usize; 2] {
    let axis = usize::from(view.rank() > 1);
    match view.sizes.get(axis) {
        Some(channels) => [*channels, dense(view.sizes)[axis]],
        None => [1, 1],
    }
}

fn apply_to_channels(
    x: &Arguments,
    view: View,
    statistics: impl Fn(usize) -> [f64; 2],
    out: &mut OutTensor,
) -> Result {
    let [channels, inner] = channels(&view);
    let affine = affine(x, 1, channels)?;
    compute!(Compute::of(view.dtype)?, N => {
        let mut numbers = view.contiguous::<N>();
        for (plane, numbers) in numbers.chunks_exact_mut(inner.max(1)).enumerate() {
            let channel = plane % channels;
            let ([mean, inverse], [weight, bias]) = (statistics(channel), affine.of(channel));
            let [mean, factor, bias] = [mean, inverse * weight, bias].map(N::of_f64);
            for number in numbers {
                *number = number.subtract(mean).multiply(factor).add(bias);
            }
        }
        out.put_contiguous(&numbers);
        Ok(())
    })
}

fn batch_norm(x: &Arguments, running: [View; 2], epsilon: f64, out: &mut [OutTensor]) -> Result {
    let view = float_tensor(x, &out[0])?;
    same_type(&view, &out[0])?;
    let [channels, _] = channels(&view);
    for statistic in running {
        ensure!(
            statistic.count() == channels && is_floating(statistic.dtype),
            "a running statistic has type `{:?}` and sizes {:?}; expected {channels} floats",
            statistic.dtype,
            statistic.sizes
        );
    }
    out[0].resize(view.sizes)?;
    out[1].resize(&[0])?;
    out[2].resize(&[0])?;
    let [means, variances] = running.map(|statistic| statistic.contiguous::<f64>());
    let inverses: Vec<f64> =
        variances.iter().map(|variance| 1.0 / (variance + epsilon).sqrt()).collect();
    apply_to_channels(x, view, |channel| [means[channel], inverses[channel]], &mut out[0])
}

fn batch_norm_of_batch(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let view = float_tensor(x, &out[0])?;
    same_type(&view, &out[0])?;
    let epsilon = x.double(5)?;
    ensure!(view.rank() >= 2, "the rank must be at least 2, got {}", view.rank());
    let [channels, inner] = channels(&view);
    out[0].resize(view.sizes)?;
    out[1].resize(&[channels])?;
    out[2].resize(&[channels])?;
    let mut by_channel = vec![Vec::new(); channels];
    for (index, number) in view.contiguous::<f64>().into_iter().enumerate() {
        by_channel[index / inner % channels].push(number);
    }
    let found: Vec<[f64; 2]> =
        by_channel.iter().map(|numbers| statistics(numbers, epsilon)).collect();
    apply_to_channels(x, view, |channel| found[channel], &mut out[0])?;
    out[1].put_contiguous(&found.iter().map(|[mean, _]| *mean).collect::<Vec<f64>>());
    out[2].put_contiguous(&found.iter().map(|[_, inverse]| *inverse).collect::<Vec<f64>>());
    Ok(())
}
