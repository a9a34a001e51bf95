//! Fourier transforms as matrices, for whoever multiplies by them, and which of them a call of torch asks for.

use std::f64::consts::PI;

use coremill_pt2::Target;

use crate::error::{LoweringError, Result, refuse};

/// A matrix of more elements than this is larger than what it stands for is worth.
pub(crate) const MAX_MATRIX: u64 = 1 << 26;

/// What a transform takes and gives.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Complex,
    /// Of a real tensor, and only the half that tells all.
    FromReal,
    /// Of half a spectrum, the other half of which is its mirror image.
    ToReal,
}

/// The sign of the exponent: minus forward.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Forward,
    Backward,
}

/// A transform along one axis.
pub(crate) struct Transform {
    pub(crate) kind: Kind,
    pub(crate) way: Way,
    pub(crate) axis: usize,
    /// How many points it is of; the extent of the result, or of what a result of half of them tells. None if that is
    /// known only when the program runs: as many as the axis then has.
    pub(crate) points: Option<u64>,
    pub(crate) scale: Scale,
}

/// The factor of a transform: a number times a power of how many points there are.
#[derive(Clone, Copy)]
pub(crate) struct Scale {
    pub(crate) factor: f64,
    pub(crate) power: f64,
}

impl Scale {
    pub(crate) fn of(self, points: u64) -> f64 {
        self.factor * (points as f64).powf(self.power)
    }
}

/// The angle of output `k` at input `t` of a transform, reduced so that it keeps its precision.
pub(crate) fn angle(points: u64, k: u64, t: u64) -> f64 {
    2.0 * PI * (k * t % points) as f64 / points as f64
}

impl Transform {
    /// How many elements along the axis a transform of that many points looks at.
    pub(crate) fn inputs(&self, points: u64) -> u64 {
        if self.kind == Kind::ToReal { points / 2 + 1 } else { points }
    }

    /// The sign of the sines.
    pub(crate) fn sign(&self) -> f64 {
        if self.way == Way::Forward { 1.0 } else { -1.0 }
    }

    /// The matrix, a row for each output: of `inputs` real parts, then of as many imaginary ones.
    pub(crate) fn matrix(&self, points: u64, inputs: u64, complex: bool) -> (u64, Vec<f32>) {
        let (sign, scale) = (self.sign(), self.scale.of(points));
        let outputs = match self.kind {
            Kind::FromReal => points / 2 + 1,
            _ => points,
        };
        let mut rows = Vec::new();
        let weight = |t: u64| match self.kind {
            // What has a mirror image counts twice.
            Kind::ToReal if t != 0 && 2 * t != points => 2.0 * scale,
            _ => scale,
        };
        let mut row = |of_real: &dyn Fn(f64) -> f64, of_imaginary: &dyn Fn(f64) -> f64, k| {
            let angle = |t| angle(points, k, t);
            rows.extend((0..inputs).map(|t| (weight(t) * of_real(angle(t))) as f32));
            if complex {
                rows.extend((0..inputs).map(|t| (weight(t) * of_imaginary(angle(t))) as f32));
            }
        };
        for k in 0..outputs {
            row(&|angle| angle.cos(), &|angle| sign * angle.sin(), k);
        }
        if self.kind != Kind::ToReal {
            for k in 0..outputs {
                row(&|angle| -sign * angle.sin(), &|angle| angle.cos(), k);
            }
        }
        (outputs, rows)
    }
}

/// The power of the number of points that a transform has for factor, by the number that torch has for it.
fn power(normalization: i64) -> Result<f64> {
    Ok(match normalization {
        0 => 0.0,
        1 => -0.5,
        2 => -1.0,
        other => refuse!("normalization {other} is unknown"),
    })
}

/// The power by its name: which direction is divided by the number of points.
fn named_power(norm: Option<&str>, way: Way) -> Result<f64> {
    Ok(match (norm.unwrap_or("backward"), way) {
        ("ortho", _) => -0.5,
        ("backward", Way::Backward) | ("forward", Way::Forward) => -1.0,
        ("backward" | "forward", _) => 0.0,
        (other, _) => {
            refuse!("`norm` must be `backward`, `ortho` or `forward`, got `{other}`")
        }
    })
}

/// How many points a transform is of: what is asked for, or what there are.
fn wanted_points(size: Option<i64>, extent: Option<u64>, kind: Kind) -> Result<Option<u64>> {
    match size {
        Some(size @ 1..) => Ok(Some(size as u64)),
        Some(-1) | None if kind == Kind::ToReal => {
            Ok(extent.map(|extent| 2 * extent.saturating_sub(1)))
        }
        Some(-1) | None => Ok(extent),
        Some(size) => refuse!("cannot compute a {size}-point FFT"),
    }
}

/// Extents by axis, where they are known.
type Extents<'e> = &'e [Option<u64>];

pub(crate) fn unknown_extent(axis: usize) -> LoweringError {
    LoweringError::new(format!(
        "a Fourier transform along axis {axis} needs an extent that is known before the program runs"
    ))
}

/// The transforms along axes, each with its points and its factor, in the order in which they are done. Half spectra
/// are those of the last axis.
fn in_turn(axes: &[(usize, Option<u64>, f64)], kind: Kind, way: Way) -> Vec<Transform> {
    let Some((&last, others)) = axes.split_last() else { return Vec::new() };
    let transform = |kind, (axis, points, power)| {
        let scale = Scale { factor: 1.0, power };
        Transform { kind, way, axis, points, scale }
    };
    let mut all: Vec<_> = others.iter().map(|axis| transform(Kind::Complex, *axis)).collect();
    let at = if kind == Kind::FromReal { 0 } else { all.len() };
    all.insert(at, transform(kind, last));
    all
}

/// What `_fft_r2c` and its like ask for: axes, and the factor by its number. The last axis may get another extent.
pub(crate) fn numbered(
    extents: Extents<'_>,
    axes: &[usize],
    normalization: i64,
    last: Option<i64>,
    kind: Kind,
    way: Way,
) -> Result<Vec<Transform>> {
    let mut planned = Vec::with_capacity(axes.len());
    for &axis in axes {
        planned.push((axis, extents.get(axis).copied().flatten(), power(normalization)?));
    }
    if let (Some(axis), Some(points)) = (planned.last_mut(), last) {
        axis.1 = wanted_points(Some(points), axis.1, kind)?;
    }
    Ok(in_turn(&planned, kind, way))
}

/// What `fft_rfftn` and its like ask for: how many points along each axis, and the factor by its name.
pub(crate) fn named(
    extents: Extents<'_>,
    axes: &[usize],
    sizes: &[i64],
    norm: Option<&str>,
    kind: Kind,
    way: Way,
) -> Result<Vec<Transform>> {
    let mut planned = Vec::with_capacity(axes.len());
    for (index, &axis) in axes.iter().enumerate() {
        let kind = if index + 1 == axes.len() { kind } else { Kind::Complex };
        let extent = extents.get(axis).copied().flatten();
        let points = wanted_points(sizes.get(index).copied(), extent, kind)?;
        planned.push((axis, points, named_power(norm, way)?));
    }
    Ok(in_turn(&planned, kind, way))
}

/// The axes that `fft_fftn` transforms along if none are named: the last ones that sizes are given for, or all.
pub(crate) fn last_axes(rank: usize, sizes: &[i64]) -> Vec<usize> {
    let count = if sizes.is_empty() { rank } else { sizes.len().min(rank) };
    (rank - count..rank).collect()
}

/// What torch's functions of one axis and of several do.
pub(crate) fn function(target: &Target) -> Option<(Kind, Way)> {
    let Target::Operator { name, .. } = target else { return None };
    let name = name.strip_prefix("fft_")?.trim_end_matches(['2', 'n']);
    Some(match name {
        "fft" => (Kind::Complex, Way::Forward),
        "ifft" => (Kind::Complex, Way::Backward),
        "rfft" => (Kind::FromReal, Way::Forward),
        "irfft" => (Kind::ToReal, Way::Backward),
        "hfft" => (Kind::ToReal, Way::Forward),
        "ihfft" => (Kind::FromReal, Way::Backward),
        _ => return None,
    })
}

/// The frequencies of a transform of that many points; of the first half of them only.
pub(crate) fn frequencies(count: i64, distance: f64, half: bool) -> Result<Vec<f32>> {
    if !(1..=1 << 24).contains(&count) {
        refuse!("cannot compute the frequencies of {count} points");
    }
    let at = |index: i64| match half || index < (count + 1) / 2 {
        true => index,
        false => index - count,
    };
    let outputs = if half { count / 2 + 1 } else { count };
    let value = |index| (at(index) as f64 / (count as f64 * distance)) as f32;
    Ok((0..outputs).map(value).collect())
}
