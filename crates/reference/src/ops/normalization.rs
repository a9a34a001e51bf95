//! Reference kernels of normalizations. Means and variances are computed in `f64`.

use super::activation::inner_of_channels;
use super::reduction::{Groups, marked_axes};
use crate::array::View;
use crate::call::{Call, Results};
use crate::error::{Result, fail};
use crate::geometry::{each_offset, strides};

pub(super) fn batch_norm(call: &Call) -> Results {
    let x = call.tensor("x")?;
    let (mean, variance) = (call.tensor("mean")?.floats()?, call.tensor("variance")?.floats()?);
    let channels = mean.len();
    let inner = inner_of_channels(&x, channels)?;
    let (gamma, beta) = (scale(call, "gamma", channels)?, scale(call, "beta", channels)?);
    if variance.len() != channels {
        fail!("`variance` has {} elements for {channels} channels", variance.len());
    }
    let epsilon = f64::from(call.float("epsilon")?);
    let mut floats = x.floats()?.to_vec();
    for (row, chunk) in floats.chunks_mut(inner.max(1)).enumerate() {
        let channel = row % channels;
        let deviation = (f64::from(variance[channel]) + epsilon).sqrt();
        let factor = gamma.map_or(1.0, |gamma| f64::from(gamma[channel])) / deviation;
        let offset = beta.map_or(0.0, |beta| f64::from(beta[channel]));
        let mean = f64::from(mean[channel]);
        for x in chunk {
            *x = ((f64::from(*x) - mean) * factor + offset) as f32;
        }
    }
    call.give_floats(x.shape, floats)
}

pub(super) fn instance_norm(call: &Call) -> Results {
    let x = call.tensor("x")?;
    let Some(&channels) = x.shape.get(1) else { fail!("`x` has no channels: {:?}", x.shape) };
    let inner = inner_of_channels(&x, channels)?;
    let (gamma, beta) = (scale(call, "gamma", channels)?, scale(call, "beta", channels)?);
    let epsilon = f64::from(call.float("epsilon")?);
    let mut floats = x.floats()?.to_vec();
    for (row, chunk) in floats.chunks_mut(inner.max(1)).enumerate() {
        let channel = row % channels;
        let mean = chunk.iter().map(|&x| f64::from(x)).sum::<f64>() / inner as f64;
        let squares = chunk.iter().map(|&x| (f64::from(x) - mean).powi(2));
        let deviation = (squares.sum::<f64>() / inner as f64 + epsilon).sqrt();
        let factor = gamma.map_or(1.0, |gamma| f64::from(gamma[channel])) / deviation;
        let offset = beta.map_or(0.0, |beta| f64::from(beta[channel]));
        for x in chunk {
            *x = ((f64::from(*x) - mean) * factor + offset) as f32;
        }
    }
    call.give_floats(x.shape, floats)
}

pub(super) fn l2_norm(call: &Call) -> Results {
    let x = call.tensor("x")?;
    let Some(batch) = x.rank().checked_sub(3) else {
        fail!("`x` must have a rank of at least 3, got shape {:?}", x.shape);
    };
    let epsilon = f64::from(call.float("epsilon")?);
    let inner: usize = x.shape[batch..].iter().product();
    let mut floats = x.floats()?.to_vec();
    for chunk in floats.chunks_mut(inner.max(1)) {
        let norm = (chunk.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() + epsilon).sqrt();
        chunk.iter_mut().for_each(|x| *x = (f64::from(*x) / norm) as f32);
    }
    call.give_floats(x.shape, floats)
}

pub(super) fn layer_norm(call: &Call) -> Results {
    let x = call.tensor("x")?;
    let floats = x.floats()?;
    let marked = marked_axes(call, x.rank())?;
    let groups = Groups::new(call, x.shape, &marked, true)?;
    // One parameter per element of a group, in the order of `x`.
    let normalized: Vec<usize> = x
        .shape
        .iter()
        .zip(&marked)
        .map(|(&extent, &marked)| if marked { extent } else { 1 })
        .collect();
    let (gamma, beta) = (scale(call, "gamma", groups.size)?, scale(call, "beta", groups.size)?);
    let steps: Vec<usize> = strides(&normalized)
        .into_iter()
        .zip(&marked)
        .map(|(stride, &marked)| if marked { stride } else { 0 })
        .collect();
    let epsilon = f64::from(call.float("epsilon")?);

    let count = groups.size as f64;
    let means = groups.fold(floats, 0.0, |sum, &x| sum + f64::from(x));
    let means: Vec<f64> = means.into_iter().map(|sum| sum / count).collect();
    let mut squares = vec![0.0; groups.count];
    groups.each(|group, at| squares[group] += (f64::from(floats[at]) - means[group]).powi(2));
    let factors: Vec<f64> =
        squares.into_iter().map(|sum| 1.0 / (sum / count + epsilon).sqrt()).collect();

    let mut parameters = Vec::with_capacity(floats.len());
    each_offset(x.shape, &steps, |parameter| parameters.push(parameter));
    let mut out = Vec::with_capacity(floats.len());
    groups.each(|group, at| {
        let parameter = parameters[at];
        let normal = (f64::from(floats[at]) - means[group]) * factors[group];
        let scaled = normal * gamma.map_or(1.0, |gamma| f64::from(gamma[parameter]));
        out.push((scaled + beta.map_or(0.0, |beta| f64::from(beta[parameter]))) as f32);
    });
    call.give_floats(x.shape, out)
}

/// Divides each element by a power of the mean square over `size` channels around it. For an even
/// size the window has one more channel before than after, like torch. Channels outside count as 0.
pub(super) fn local_response_norm(call: &Call) -> Results {
    let x = call.tensor("x")?;
    let floats = x.floats()?;
    let Some(&channels) = x.shape.get(1) else { fail!("`x` has no channels: {:?}", x.shape) };
    let inner = inner_of_channels(&x, channels)?;
    let size = call.int("size")?;
    let Ok(size @ 1..) = usize::try_from(size) else {
        fail!("`size` must be positive, got {size}");
    };
    let alpha = f64::from(call.float("alpha")?) / size as f64;
    let (beta, k) = (f64::from(call.float("beta")?), f64::from(call.float("k")?));
    let (before, behind) = (size / 2, (size - 1) / 2);
    let mut out = Vec::with_capacity(floats.len());
    let sample = channels * inner;
    for (at, &value) in floats.iter().enumerate() {
        let (start, channel) = (at / sample * sample + at % inner, at % sample / inner);
        let window = channel.saturating_sub(before)..(channel + behind + 1).min(channels);
        let squares = window.map(|channel| f64::from(floats[start + channel * inner]).powi(2));
        let base = k + alpha * squares.sum::<f64>();
        out.push((f64::from(value) / base.powf(beta)) as f32);
    }
    call.give_floats(x.shape, out)
}

/// The elements of a parameter, `None` if unbound.
fn scale<'a>(call: &Call<'a>, name: &str, count: usize) -> Result<Option<&'a [f32]>> {
    let Some(view): Option<View<'a>> = call.optional(name) else { return Ok(None) };
    let floats = view.floats()?;
    if floats.len() != count {
        fail!("`{name}` must have {count} elements, got {}", floats.len());
    }
    Ok(Some(floats))
}
