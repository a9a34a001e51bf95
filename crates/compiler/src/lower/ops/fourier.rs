//! Fourier transforms, as products with constant matrices of cosines and sines.
//!
//! A complex tensor is transformed as one real product: both parts stand side by side along the axis, and so
//! do those of the result.

use std::f64::consts::PI;

use coremill_mil::ir::ValueId;
use coremill_mil::ops::OpKind;
use coremill_tensor::DType;

use super::complex::give;
use super::linear::affine;
use crate::error::{Refusal, refuse};
use crate::lower::builder::Builder;
use crate::lower::call::{Call, Results, normalized};
use crate::lower::table::{Row, all};
use crate::lower::value::{Lowered, Tensor};

pub(crate) const ROWS: &[Row] = &[
    all("aten._fft_c2c", complex_to_complex),
    all("aten._fft_r2c", real_to_complex),
    all("aten._fft_c2r", complex_to_real),
    all("aten.fft_fft", |call| one_axis(call, Kind::Complex, Way::Forward)),
    all("aten.fft_ifft", |call| one_axis(call, Kind::Complex, Way::Backward)),
    all("aten.fft_rfft", |call| one_axis(call, Kind::FromReal, Way::Forward)),
    all("aten.fft_irfft", |call| one_axis(call, Kind::ToReal, Way::Backward)),
    all("aten.fft_hfft", |call| one_axis(call, Kind::ToReal, Way::Forward)),
    all("aten.fft_ihfft", |call| one_axis(call, Kind::FromReal, Way::Backward)),
    all("aten.fft_fft2", |call| several_axes(call, Kind::Complex, Way::Forward)),
    all("aten.fft_ifft2", |call| several_axes(call, Kind::Complex, Way::Backward)),
    all("aten.fft_rfft2", |call| several_axes(call, Kind::FromReal, Way::Forward)),
    all("aten.fft_irfft2", |call| several_axes(call, Kind::ToReal, Way::Backward)),
    all("aten.fft_fftn", |call| several_axes(call, Kind::Complex, Way::Forward)),
    all("aten.fft_ifftn", |call| several_axes(call, Kind::Complex, Way::Backward)),
    all("aten.fft_rfftn", |call| several_axes(call, Kind::FromReal, Way::Forward)),
    all("aten.fft_irfftn", |call| several_axes(call, Kind::ToReal, Way::Backward)),
    all("aten.fft_fftfreq", |call| frequencies(call, false)),
    all("aten.fft_rfftfreq", |call| frequencies(call, true)),
    all("aten.fft_fftshift", |call| shifted(call, false)),
    all("aten.fft_ifftshift", |call| shifted(call, true)),
    all("aten.stft", short_time),
    all("aten.istft", short_time_inverse),
];

/// A matrix of more elements than this is larger than what it stands for is worth.
const MAX_MATRIX: u64 = 1 << 26;

/// What a transform takes and gives.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Complex,
    /// Of a real tensor, and only the half that tells all.
    FromReal,
    /// Of half a spectrum, the other half of which is its mirror image.
    ToReal,
}

/// The sign of the exponent: minus forward.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Forward,
    Backward,
}

/// A transform along one axis.
struct Transform {
    kind: Kind,
    way: Way,
    axis: usize,
    /// How many points it is of; the extent of the result, or of what a result of half of them tells.
    points: u64,
    scale: f64,
}

/// A tensor of one or two parts.
#[derive(Clone, Copy)]
struct Parts {
    real: ValueId,
    imaginary: Option<ValueId>,
}

impl Parts {
    fn of(builder: &mut Builder, x: Tensor) -> Result<Parts, Refusal> {
        Ok(Parts { real: builder.cast(x.value, DType::Fp32)?, imaginary: x.imaginary })
    }

    fn give(self, call: &Call<'_, '_>) -> Results {
        match self.imaginary {
            Some(imaginary) => give(call, self.real, imaginary),
            None => call.give(self.real),
        }
    }
}

impl Transform {
    /// The angle of output `k` at input `t`, reduced so that it keeps its precision.
    fn angle(&self, k: u64, t: u64) -> f64 {
        2.0 * PI * (k * t % self.points) as f64 / self.points as f64
    }

    /// The matrix, a row for each output: of `inputs` real parts, then of as many imaginary ones.
    fn matrix(&self, inputs: u64, complex: bool) -> (u64, Vec<f32>) {
        let sign = if self.way == Way::Forward { 1.0 } else { -1.0 };
        let outputs = match self.kind {
            Kind::FromReal => self.points / 2 + 1,
            _ => self.points,
        };
        let mut rows = Vec::new();
        let weight = |t: u64| match self.kind {
            // What has a mirror image counts twice.
            Kind::ToReal if t != 0 && 2 * t != self.points => 2.0 * self.scale,
            _ => self.scale,
        };
        let mut row = |of_real: &dyn Fn(f64) -> f64, of_imaginary: &dyn Fn(f64) -> f64, k| {
            rows.extend((0..inputs).map(|t| (weight(t) * of_real(self.angle(k, t))) as f32));
            if complex {
                rows.extend(
                    (0..inputs).map(|t| (weight(t) * of_imaginary(self.angle(k, t))) as f32),
                );
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

    /// Transforms what has at least as many elements along the axis as are needed, or fewer, which counts as
    /// zeros after them.
    fn apply(&self, builder: &mut Builder, x: Parts) -> Result<Parts, Refusal> {
        let Some(extent) = builder.extents(x.real)[self.axis] else {
            refuse!(
                "a Fourier transform along axis {} needs an extent that is known before the program \
                 runs",
                self.axis
            );
        };
        let needed = if self.kind == Kind::ToReal { self.points / 2 + 1 } else { self.points };
        let inputs = extent.min(needed);
        let mut x = x;
        if inputs < extent {
            x.real = builder.slice(x.real, self.axis, 0, Some(inputs as i64))?;
            if let Some(imaginary) = x.imaginary {
                x.imaginary = Some(builder.slice(imaginary, self.axis, 0, Some(inputs as i64))?);
            }
        }
        if inputs.saturating_mul(self.points).saturating_mul(4) > MAX_MATRIX {
            refuse!(
                "a Fourier transform of {} points would need a matrix of too many elements",
                self.points
            );
        }
        let (outputs, matrix) = self.matrix(inputs, x.imaginary.is_some());
        let rank = builder.rank(x.real);
        let mut order: Vec<_> = (0..rank).collect();
        order.swap(self.axis, rank - 1);
        let mut line = match x.imaginary {
            Some(imaginary) => builder.concat(&[x.real, imaginary], self.axis)?,
            None => x.real,
        };
        line = builder.transpose(line, &order)?;
        let width = inputs * if x.imaginary.is_some() { 2 } else { 1 };
        let rows = matrix.len() as u64 / width.max(1);
        let matrix = builder.float_constant(&[rows, width], &matrix);
        // A vector is a matrix of one row to `linear`.
        let y = if rank == 1 {
            let line = builder.expand_dims(line, &[0])?;
            let y = affine(builder, line, matrix, None)?;
            builder.squeeze(y, &[0])?
        } else {
            affine(builder, line, matrix, None)?
        };
        let y = builder.transpose(y, &order)?;
        if self.kind == Kind::ToReal {
            return Ok(Parts { real: y, imaginary: None });
        }
        let real = builder.slice(y, self.axis, 0, Some(outputs as i64))?;
        let imaginary = builder.slice(y, self.axis, outputs as i64, None)?;
        Ok(Parts { real, imaginary: Some(imaginary) })
    }
}

/// The factor of a transform of that many points, by the number that torch has for it.
fn factor(normalization: i64, points: f64) -> Result<f64, Refusal> {
    Ok(match normalization {
        0 => 1.0,
        1 => 1.0 / points.sqrt(),
        2 => 1.0 / points,
        other => refuse!("normalization {other} is none that is known"),
    })
}

/// The factor by its name: which direction is divided by the number of points.
fn named_factor(norm: Option<&str>, way: Way, points: f64) -> Result<f64, Refusal> {
    Ok(match (norm.unwrap_or("backward"), way) {
        ("ortho", _) => 1.0 / points.sqrt(),
        ("backward", Way::Backward) | ("forward", Way::Forward) => 1.0 / points,
        ("backward" | "forward", _) => 1.0,
        (other, _) => {
            refuse!("`norm` is `{other}`; `backward`, `ortho` and `forward` are accepted")
        }
    })
}

/// Transforms along each of the axes in turn. Half spectra are those of the last one.
fn along(
    builder: &mut Builder,
    x: Parts,
    axes: &[(usize, u64, f64)],
    kind: Kind,
    way: Way,
) -> Result<Parts, Refusal> {
    let Some((&last, others)) = axes.split_last() else { return Ok(x) };
    let complex = |&(axis, points, scale): &(usize, u64, f64)| Transform {
        kind: Kind::Complex,
        way,
        axis,
        points,
        scale,
    };
    let (axis, points, scale) = last;
    let last = Transform { kind, way, axis, points, scale };
    let mut x = x;
    if kind == Kind::FromReal {
        x = last.apply(builder, x)?;
    }
    for axis in others {
        x = complex(axis).apply(builder, x)?;
    }
    if kind != Kind::FromReal { last.apply(builder, x) } else { Ok(x) }
}

/// An extent that has to be known.
fn points(builder: &Builder, x: ValueId, axis: usize) -> Result<u64, Refusal> {
    match builder.extents(x).get(axis) {
        Some(Some(extent)) => Ok(*extent),
        _ => refuse!(
            "a Fourier transform along axis {axis} needs an extent that is known before the program runs"
        ),
    }
}

/// The axes that `dim` names, each with its points and its share of the factor.
fn planned(call: &mut Call<'_, '_>, x: ValueId) -> Result<Vec<(usize, u64, f64)>, Refusal> {
    let rank = call.rank(x);
    let normalization = call.known_int("normalization")?;
    let mut axes = Vec::new();
    for axis in call.known_ints("dim")? {
        let axis = normalized(axis, rank)?;
        let points = points(call, x, axis)?;
        axes.push((axis, points, factor(normalization, points as f64)?));
    }
    Ok(axes)
}

fn complex_to_complex(call: &mut Call<'_, '_>) -> Results {
    let x = call.any_tensor("self")?;
    let axes = planned(call, x.value)?;
    let way = if call.flag("forward")? { Way::Forward } else { Way::Backward };
    let x = Parts::of(call, x)?;
    let y = along(call, x, &axes, Kind::Complex, way)?;
    y.give(call)
}

fn real_to_complex(call: &mut Call<'_, '_>) -> Results {
    let x = call.any_tensor("self")?;
    let axes = planned(call, x.value)?;
    let kind = if call.flag("onesided")? { Kind::FromReal } else { Kind::Complex };
    let x = Parts::of(call, x)?;
    let y = along(call, x, &axes, kind, Way::Forward)?;
    y.give(call)
}

fn complex_to_real(call: &mut Call<'_, '_>) -> Results {
    let x = call.any_tensor("self")?;
    let mut axes = planned(call, x.value)?;
    if let Some(last) = axes.last_mut() {
        let size = call.known_int("last_dim_size")?;
        last.1 = size as u64;
        last.2 = factor(call.known_int("normalization")?, size as f64)?;
    }
    let x = Parts::of(call, x)?;
    let y = along(call, x, &axes, Kind::ToReal, Way::Backward)?;
    y.give(call)
}

/// How many points a transform is of: what is asked for, or what there are.
fn wanted_points(size: Option<i64>, extent: u64, kind: Kind) -> Result<u64, Refusal> {
    match size {
        Some(size @ 1..) => Ok(size as u64),
        Some(-1) | None if kind == Kind::ToReal => Ok(2 * extent.saturating_sub(1)),
        Some(-1) | None => Ok(extent),
        Some(size) => refuse!("a Fourier transform of {size} points is none"),
    }
}

fn one_axis(call: &mut Call<'_, '_>, kind: Kind, way: Way) -> Results {
    let x = call.any_tensor("self")?;
    let axis = call.axis("dim", call.rank(x.value))?;
    let size = if call.has("n") { Some(call.known_int("n")?) } else { None };
    let extent = points(call, x.value, axis)?;
    let points = wanted_points(size, extent, kind)?;
    let scale = named_factor(call.text("norm")?, way, points as f64)?;
    let x = Parts::of(call, x)?;
    let y = along(call, x, &[(axis, points, scale)], kind, way)?;
    y.give(call)
}

fn several_axes(call: &mut Call<'_, '_>, kind: Kind, way: Way) -> Results {
    let x = call.any_tensor("self")?;
    let rank = call.rank(x.value);
    let sizes = call.known_ints("s")?;
    let named = call.known_ints("dim")?;
    let axes: Vec<usize> = if named.is_empty() {
        let count = if sizes.is_empty() { rank } else { sizes.len().min(rank) };
        (rank - count..rank).collect()
    } else {
        named.into_iter().map(|axis| normalized(axis, rank)).collect::<Result<_, _>>()?
    };
    let mut planned = Vec::new();
    for (index, &axis) in axes.iter().enumerate() {
        let last = index + 1 == axes.len();
        let extent = points(call, x.value, axis)?;
        let kind = if last { kind } else { Kind::Complex };
        let points = wanted_points(sizes.get(index).copied(), extent, kind)?;
        planned.push((axis, points, named_factor(call.text("norm")?, way, points as f64)?));
    }
    let x = Parts::of(call, x)?;
    let y = along(call, x, &planned, kind, way)?;
    y.give(call)
}

fn frequencies(call: &mut Call<'_, '_>, half: bool) -> Results {
    let (count, distance) = (call.known_int("n")?, call.float("d")?);
    if !(1..=1 << 24).contains(&count) {
        refuse!("frequencies of {count} points are none");
    }
    let at = |index: i64| match half || index < (count + 1) / 2 {
        true => index,
        false => index - count,
    };
    let outputs = if half { count / 2 + 1 } else { count };
    let values: Vec<f32> =
        (0..outputs).map(|index| (at(index) as f64 / (count as f64 * distance)) as f32).collect();
    let y = call.float_constant(&[outputs as u64], &values);
    call.give(y)
}

/// Turns each axis by half its extent.
fn shifted(call: &mut Call<'_, '_>, back: bool) -> Results {
    let x = call.any_tensor("self")?;
    let rank = call.rank(x.value);
    let mut y = Tensor { dtype: call.result_dtype()?, ..x };
    for axis in call.axes("dim", rank)? {
        let extent = points(call, x.value, axis)? as i64;
        let cut = if back { extent / 2 } else { (extent + 1) / 2 };
        let turn = |builder: &mut Builder, part: ValueId| {
            let end = builder.slice(part, axis, cut, None)?;
            let begin = builder.slice(part, axis, 0, Some(cut))?;
            builder.concat(&[end, begin], axis)
        };
        if extent > 1 {
            y.value = turn(call, y.value)?;
            if let Some(imaginary) = y.imaginary {
                y.imaginary = Some(turn(call, imaginary)?);
            }
        }
    }
    Ok(vec![Lowered::Tensor(y)])
}

/// What a short-time transform is made of.
struct Frames {
    points: u64,
    hop: i64,
    /// The window, with zeros at both sides up to as many elements as there are points.
    window: Vec<f64>,
    /// How many frequencies there are.
    outputs: u64,
    scale: f64,
    center: bool,
}

impl Frames {
    fn of(call: &mut Call<'_, '_>) -> Result<Frames, Refusal> {
        let points = call.known_int("n_fft")?;
        if !(1..=1 << 16).contains(&points) {
            refuse!("`n_fft` is {points}; 1 to 65536 are accepted");
        }
        let hop = match call.optional_int("hop_length")? {
            Some(_) => call.known_int("hop_length")?,
            None => points / 4,
        };
        let length = match call.optional_int("win_length")? {
            Some(_) => call.known_int("win_length")?,
            None => points,
        };
        if hop < 1 || !(1..=points).contains(&length) {
            refuse!("`hop_length` is {hop} and `win_length` {length}, of {points} points");
        }
        let given = match call.optional_tensor("window")? {
            None => vec![1.0; length as usize],
            Some(window) => match call.known_floats(window.value) {
                Some(window) => window,
                None => refuse!("`window` is not known before the program runs"),
            },
        };
        let mut window = vec![0.0; ((points - length) / 2) as usize];
        window.extend(given);
        window.resize(points as usize, 0.0);
        let onesided = !call.has("onesided") || call.flag("onesided")?;
        let normalized = call.flag("normalized")?;
        Ok(Frames {
            points: points as u64,
            hop,
            window,
            outputs: if onesided { points as u64 / 2 + 1 } else { points as u64 },
            scale: if normalized { 1.0 / (points as f64).sqrt() } else { 1.0 },
            center: call.node.argument("center").is_some() && call.flag("center")?,
        })
    }

    fn angle(&self, k: u64, t: u64) -> f64 {
        2.0 * PI * (k * t % self.points) as f64 / self.points as f64
    }
}

impl Builder {
    /// The elements of a constant of floats.
    pub(crate) fn known_floats(&self, value: ValueId) -> Option<Vec<f64>> {
        let constant = self.known(value)?;
        if constant.tensor_type()?.dtype != DType::Fp32 {
            return None;
        }
        let (elements, _) = constant.elements()?.as_bytes().as_chunks::<4>();
        Some(elements.iter().map(|&raw| f64::from(f32::from_le_bytes(raw))).collect())
    }
}

/// A convolution: each filter is a wave under the window.
fn short_time(call: &mut Call<'_, '_>) -> Results {
    let x = call.tensor("self")?.value;
    let frames = Frames::of(call)?;
    let rank = call.rank(x);
    let mut x = call.expand_dims(x, if rank == 1 { &[0, 1] } else { &[1] })?;
    if frames.center {
        let mode = match call.text("pad_mode")? {
            Some(mode @ ("reflect" | "constant" | "replicate")) => mode,
            other => refuse!("`pad_mode` is {other:?}, which is not lowered for a transform"),
        };
        let side = (frames.points / 2) as i32;
        x = call.emit(
            OpKind::Pad,
            [
                ("x", x.into()),
                ("pad", [0, 0, 0, 0, side, side].into()),
                ("mode", mode.into()),
                ("constant_val", 0.0_f32.into()),
            ],
        )?;
    }
    let mut filters = Vec::new();
    for sine in [false, true] {
        for k in 0..frames.outputs {
            for (t, &weight) in frames.window.iter().enumerate() {
                let angle = frames.angle(k, t as u64);
                let wave = if sine { -angle.sin() } else { angle.cos() };
                filters.push((frames.scale * weight * wave) as f32);
            }
        }
    }
    let filters = call.float_constant(&[2 * frames.outputs, 1, frames.points], &filters);
    let mut y = call.emit(
        OpKind::Conv,
        [
            ("x", x.into()),
            ("weight", filters.into()),
            ("strides", [frames.hop as i32].into()),
            ("pad_type", "valid".into()),
            ("pad", [0, 0].into()),
            ("dilations", [1].into()),
            ("groups", 1.into()),
        ],
    )?;
    if rank == 1 {
        y = call.squeeze(y, &[0])?;
    }
    let axis = rank - 1;
    let values = call.emit_many(
        OpKind::Split,
        [("x", y.into()), ("num_splits", 2.into()), ("axis", (axis as i32).into())],
    )?;
    if call.result_dtype()?.is_complex() {
        return give(call, values[0], values[1]);
    }
    let y =
        call.emit(OpKind::Stack, [("values", values.as_slice().into()), ("axis", (-1).into())])?;
    call.give(y)
}

/// A transposed convolution, which adds frames up where they overlap, over the sum of the squared windows.
fn short_time_inverse(call: &mut Call<'_, '_>) -> Results {
    let x = call.any_tensor("self")?;
    let Some(imaginary) = x.imaginary else { refuse!("`self` is real") };
    if call.result_dtype()?.is_complex() {
        refuse!("an inverse transform to a complex signal is not lowered");
    }
    let frames = Frames::of(call)?;
    let rank = call.rank(x.value);
    let count = points(call, x.value, rank - 1)?;
    let axis = rank - 2;
    let mut y = call.concat(&[x.value, imaginary], axis)?;
    if rank == 2 {
        y = call.expand_dims(y, &[0])?;
    }
    let onesided = frames.outputs != frames.points || frames.points == 1;
    let scale = 1.0 / (frames.points as f64 * frames.scale);
    let mut filters = Vec::new();
    for sine in [false, true] {
        for k in 0..frames.outputs {
            let mirrored = onesided && k != 0 && 2 * k != frames.points;
            let weight = scale * if mirrored { 2.0 } else { 1.0 };
            for (t, &window) in frames.window.iter().enumerate() {
                let angle = frames.angle(k, t as u64);
                let wave = if sine { -angle.sin() } else { angle.cos() };
                filters.push((weight * window * wave) as f32);
            }
        }
    }
    let filters = call.float_constant(&[2 * frames.outputs, 1, frames.points], &filters);
    let y = call.emit(
        OpKind::ConvTranspose,
        [
            ("x", y.into()),
            ("weight", filters.into()),
            ("strides", [frames.hop as i32].into()),
            ("pad_type", "valid".into()),
            ("pad", [0, 0].into()),
            ("dilations", [1].into()),
            ("groups", 1.into()),
        ],
    )?;
    let total = frames.points as usize + frames.hop as usize * (count as usize - 1);
    let mut envelope = vec![0.0; total];
    for frame in 0..count as usize {
        for (t, &window) in frames.window.iter().enumerate() {
            envelope[frame * frames.hop as usize + t] += window * window;
        }
    }
    let start = if frames.center { frames.points as usize / 2 } else { 0 };
    let end = match call.optional_int("length")? {
        Some(_) => start + call.known_int("length")? as usize,
        None if frames.center => total - frames.points as usize / 2,
        None => total,
    };
    if end > total || start >= end {
        refuse!("`length` asks for more than the {} elements that there are", total - start);
    }
    let inverse: Vec<f32> = envelope[start..end].iter().map(|sum| (1.0 / sum) as f32).collect();
    let inverse = call.float_constant(&[inverse.len() as u64], &inverse);
    let y = call.slice(y, 2, start as i64, Some(end as i64))?;
    let y = call.squeeze(y, if rank == 2 { &[0, 1] } else { &[1] })?;
    let y = call.binary(OpKind::Mul, y, inverse)?;
    call.give(y)
}
