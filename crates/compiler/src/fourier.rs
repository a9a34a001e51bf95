//! Matrices of discrete Fourier transforms, and the transforms that a torch call computes.

use std::f64::consts::PI;

use coremill_pt2::Target;

use crate::error::{LoweringError, Result, refuse};

/// Maximum number of elements of a DFT matrix. Larger matrices cost more than they save.
pub(crate) const MAX_MATRIX: u64 = 1 << 26;

/// Domain and range of a transform.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Complex,
    /// From real input to the non-redundant half of the spectrum.
    FromReal,
    /// From half a Hermitian spectrum to real output.
    ToReal,
}

/// Direction, which sets the sign of the exponent: negative for the forward transform.
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
    /// Number of points of the full transform. `None` for the size of the axis at run time.
    pub(crate) points: Option<u64>,
    pub(crate) scale: Scale,
}

/// Scale factor of a transform: `factor` times a power of the number of points.
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

/// Phase angle of input `t` in output `k`, reduced modulo the period to keep precision.
pub(crate) fn angle(points: u64, k: u64, t: u64) -> f64 {
    2.0 * PI * (k * t % points) as f64 / points as f64
}

impl Transform {
    /// Number of elements that the transform reads along the axis.
    pub(crate) fn inputs(&self, points: u64) -> u64 {
        if self.kind == Kind::ToReal { points / 2 + 1 } else { points }
    }

    /// Sign of the sine terms.
    pub(crate) fn sign(&self) -> f64 {
        if self.way == Way::Forward { 1.0 } else { -1.0 }
    }

    /// The matrix, one row per output: `inputs` columns for the real parts, then as many for the imaginary parts.
    pub(crate) fn matrix(&self, points: u64, inputs: u64, complex: bool) -> (u64, Vec<f32>) {
        let (sign, scale) = (self.sign(), self.scale.of(points));
        let outputs = match self.kind {
            Kind::FromReal => points / 2 + 1,
            _ => points,
        };
        // All elements are cosines and sines of the multiples of one angle.
        let turns: Vec<_> = (0..points).map(|step| angle(points, 1, step).sin_cos()).collect();
        let weight = |t: u64| match self.kind {
            // Bins with a conjugate mirror image count twice.
            Kind::ToReal if t != 0 && 2 * t != points => 2.0 * scale,
            _ => scale,
        };
        let mut rows = Vec::new();
        let mut add = |k: u64, of_turn: &dyn Fn((f64, f64)) -> f64| {
            let turn = |t: u64| turns[(k * t % points) as usize];
            rows.extend((0..inputs).map(|t| (weight(t) * of_turn(turn(t))) as f32));
        };
        for k in 0..outputs {
            add(k, &|(_, cos)| cos);
            if complex {
                add(k, &|(sin, _)| sign * sin);
            }
        }
        if self.kind != Kind::ToReal {
            for k in 0..outputs {
                add(k, &|(sin, _)| -sign * sin);
                if complex {
                    add(k, &|(_, cos)| cos);
                }
            }
        }
        (outputs, rows)
    }
}

/// Exponent of the number of points for torch's normalization mode.
fn power(normalization: i64) -> Result<f64> {
    Ok(match normalization {
        0 => 0.0,
        1 => -0.5,
        2 => -1.0,
        other => refuse!("normalization {other} is not supported"),
    })
}

/// Exponent of the number of points for a named normalization, which selects the scaled direction.
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

/// Number of points of a transform: the requested number, or the size of the axis.
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

/// Sizes of axes; `None` if dynamic.
type Extents<'e> = &'e [Option<u64>];

pub(crate) fn unknown_extent(axis: usize) -> LoweringError {
    LoweringError::new(format!(
        "a Fourier transform along axis {axis} requires a size that is known before the program runs"
    ))
}

/// Transforms along several axes in order of execution. Only the last axis has a half spectrum.
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

/// Transforms of `_fft_r2c` and similar operators, given axes and the normalization mode. The last axis may be
/// resized.
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

/// Transforms of `fft_rfftn` and similar operators, given the number of points per axis and a named normalization.
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

/// Default axes of `fft_fftn`: as many trailing axes as there are sizes, or all axes.
pub(crate) fn last_axes(rank: usize, sizes: &[i64]) -> Vec<usize> {
    let count = if sizes.is_empty() { rank } else { sizes.len().min(rank) };
    (rank - count..rank).collect()
}

/// Kind and direction of the transform of a `fft_*` operator.
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

/// Frequencies of a transform with `count` points; `half` selects the non-negative ones.
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
