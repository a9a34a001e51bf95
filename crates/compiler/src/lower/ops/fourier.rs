//! Fourier transforms, as products with constant matrices of cosines and sines.
//!
//! A complex tensor is transformed as one real product: both parts stand side by side along the axis, and so
//! do those of the result.

use std::f64::consts::PI;

use coremill_mil::ir::ValueId;
use coremill_mil::ops::OpKind;
use coremill_tensor::DType;

use super::complex::give;
use super::linear::{affine, product};
use super::shape::{Range, full, sliced};
use crate::bounds::created;
use crate::error::{Refusal, refuse};
use crate::fourier::{self, Kind, MAX_MATRIX, Transform, Way};
use crate::lower::builder::Builder;
use crate::lower::call::{Call, Results, normalized};
use crate::lower::table::{Row, all};
use crate::lower::value::{Int, Lowered, Tensor};

pub(crate) const ROWS: &[Row] = &[
    all("aten._fft_c2c", complex_to_complex),
    all("aten._fft_r2c", real_to_complex),
    all("aten._fft_c2r", complex_to_real),
    all("aten.fft_fft", one_axis),
    all("aten.fft_ifft", one_axis),
    all("aten.fft_rfft", one_axis),
    all("aten.fft_irfft", one_axis),
    all("aten.fft_hfft", one_axis),
    all("aten.fft_ihfft", one_axis),
    all("aten.fft_fft2", several_axes),
    all("aten.fft_ifft2", several_axes),
    all("aten.fft_rfft2", several_axes),
    all("aten.fft_irfft2", several_axes),
    all("aten.fft_fftn", several_axes),
    all("aten.fft_ifftn", several_axes),
    all("aten.fft_rfftn", several_axes),
    all("aten.fft_irfftn", several_axes),
    all("aten.fft_fftfreq", |call| frequencies(call, false)),
    all("aten.fft_rfftfreq", |call| frequencies(call, true)),
    all("aten.fft_fftshift", |call| shifted(call, false)),
    all("aten.fft_ifftshift", |call| shifted(call, true)),
    all("aten.stft", short_time),
    all("aten.istft", short_time_inverse),
];

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
    /// Transforms what has at least as many elements along the axis as are needed, or fewer, which counts as
    /// zeros after them.
    fn apply(&self, builder: &mut Builder, x: Parts) -> Result<Parts, Refusal> {
        let extent = builder.extents(x.real)[self.axis];
        let (extent, points) = match (extent, self.points) {
            (Some(extent), Some(points)) => (extent, points),
            (_, None) => return self.apply_open(builder, x),
            (None, Some(_)) => return Err(fourier::unknown_extent(self.axis)),
        };
        let inputs = extent.min(self.inputs(points));
        let mut x = x;
        if inputs < extent {
            x.real = builder.slice(x.real, self.axis, 0, Some(inputs as i64))?;
            if let Some(imaginary) = x.imaginary {
                x.imaginary = Some(builder.slice(imaginary, self.axis, 0, Some(inputs as i64))?);
            }
        }
        if inputs.saturating_mul(points).saturating_mul(4) > MAX_MATRIX {
            refuse!(
                "a Fourier transform of {points} points would need a matrix of too many elements"
            );
        }
        let (outputs, matrix) = self.matrix(points, inputs, x.imaginary.is_some());
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

    /// The same with matrices that are computed when the program runs, for as many points as the axis then has.
    fn apply_open(&self, builder: &mut Builder, x: Parts) -> Result<Parts, Refusal> {
        let inputs = builder.dim(x.real, self.axis)?;
        let points = if self.kind == Kind::ToReal {
            let gaps = builder.sub_ints(inputs, Int::Known(1))?;
            builder.mul_ints(gaps, Int::Known(2))?
        } else {
            inputs
        };
        let outputs = if self.kind == Kind::FromReal {
            let half = builder.floor_div_ints(points, Int::Known(2))?;
            builder.add_ints(half, Int::Known(1))?
        } else {
            points
        };
        let (cosines, sines) = self.waves(builder, outputs, inputs, points)?;
        let rank = builder.rank(x.real);
        let mut order: Vec<_> = (0..rank).collect();
        order.swap(self.axis, rank - 1);
        let along = |builder: &mut Builder, x: ValueId, matrix: ValueId| {
            // A vector is a matrix of one row.
            let line = match rank {
                1 => builder.expand_dims(x, &[0])?,
                _ => builder.transpose(x, &order)?,
            };
            let y = product(builder, line, matrix, false, true)?;
            if rank == 1 { builder.squeeze(y, &[0]) } else { builder.transpose(y, &order) }
        };
        let mut real = along(builder, x.real, cosines)?;
        if let Some(imaginary) = x.imaginary {
            let part = along(builder, imaginary, sines)?;
            real = builder.binary(OpKind::Add, real, part)?;
        }
        if self.kind == Kind::ToReal {
            return Ok(Parts { real, imaginary: None });
        }
        let turned = along(builder, x.real, sines)?;
        let imaginary = match x.imaginary {
            Some(imaginary) => {
                let part = along(builder, imaginary, cosines)?;
                builder.binary(OpKind::Sub, part, turned)?
            }
            None => builder.scaled(turned, -1.0)?,
        };
        Ok(Parts { real, imaginary: Some(imaginary) })
    }

    /// Cosines and sines, a row for each output and a column for each input, with the factor of the transform.
    fn waves(
        &self,
        builder: &mut Builder,
        outputs: Int,
        inputs: Int,
        points: Int,
    ) -> Result<(ValueId, ValueId), Refusal> {
        let rows = counted(builder, outputs)?;
        let rows = builder.expand_dims(rows, &[1])?;
        let columns = counted(builder, inputs)?;
        // Integers, so that the angles of many points keep their precision: 46340 points still fit.
        let turns = builder.binary(OpKind::Mul, rows, columns)?;
        let points = builder.int_value(points)?;
        let turns = builder.binary(OpKind::Mod, turns, points)?;
        let turns = builder.cast(turns, DType::Fp32)?;
        let count = builder.cast(points, DType::Fp32)?;
        let turns = builder.binary(OpKind::RealDiv, turns, count)?;
        let angles = builder.scaled(turns, 2.0 * PI)?;
        let mut waves = [OpKind::Cos, OpKind::Sin].map(|kind| builder.unary(kind, angles));
        for (wave, sign) in waves.iter_mut().zip([1.0, self.sign()]) {
            let mut scaled = builder.scaled(wave.clone()?, sign * self.scale.factor)?;
            if self.scale.power != 0.0 {
                let scale = builder.binary(OpKind::Pow, count, self.scale.power as f32)?;
                scaled = builder.binary(OpKind::Mul, scaled, scale)?;
            }
            if self.kind == Kind::ToReal {
                // What has a mirror image counts twice: all but the first and the middle one.
                let first = builder.binary(OpKind::Equal, columns, 0)?;
                let twice = builder.binary(OpKind::Mul, columns, 2)?;
                let middle = builder.binary(OpKind::Equal, twice, points)?;
                let once = builder.binary(OpKind::LogicalOr, first, middle)?;
                let once = builder.cast(once, DType::Fp32)?;
                let weights = builder.scaled(once, -1.0)?;
                let weights = builder.binary(OpKind::Add, weights, 2.0f32)?;
                scaled = builder.binary(OpKind::Mul, scaled, weights)?;
            }
            *wave = Ok(scaled);
        }
        let [cosines, sines] = waves;
        Ok((cosines?, sines?))
    }
}

/// Numbers from zero on.
fn counted(builder: &mut Builder, count: Int) -> Result<ValueId, Refusal> {
    let end = builder.int_value(count)?;
    builder.emit(OpKind::Range1d, [("end", end.into()), ("start", 0.into()), ("step", 1.into())])
}

/// All transforms in turn.
fn along(call: &mut Call<'_, '_>, x: Tensor, transforms: &[Transform]) -> Result<Parts, Refusal> {
    let mut x = Parts::of(call, x)?;
    for transform in transforms {
        x = transform.apply(call, x)?;
    }
    Ok(x)
}

/// Transforms along the axes that `dim` names, the factor by its number.
fn numbered_axes(call: &mut Call<'_, '_>, kind: Kind, way: Way, last: Option<i64>) -> Results {
    let x = call.any_tensor("self")?;
    let rank = call.rank(x.value);
    let axes = call.known_ints("dim")?.into_iter().map(|axis| normalized(axis, rank));
    let axes = axes.collect::<Result<Vec<_>, _>>()?;
    let normalization = call.known_int("normalization")?;
    let extents = call.extents(x.value);
    let transforms = fourier::numbered(&extents, &axes, normalization, last, kind, way)?;
    along(call, x, &transforms)?.give(call)
}

fn complex_to_complex(call: &mut Call<'_, '_>) -> Results {
    let way = if call.flag("forward")? { Way::Forward } else { Way::Backward };
    numbered_axes(call, Kind::Complex, way, None)
}

fn real_to_complex(call: &mut Call<'_, '_>) -> Results {
    let kind = if call.flag("onesided")? { Kind::FromReal } else { Kind::Complex };
    numbered_axes(call, kind, Way::Forward, None)
}

fn complex_to_real(call: &mut Call<'_, '_>) -> Results {
    let size = call.known_int("last_dim_size")?;
    numbered_axes(call, Kind::ToReal, Way::Backward, Some(size))
}

/// Transforms of named factors.
fn transformed(call: &mut Call<'_, '_>, x: Tensor, axes: &[usize], sizes: &[i64]) -> Results {
    let Some((kind, way)) = fourier::function(&call.node.target) else {
        refuse!("`{}` is not a Fourier transform that is known", call.node.target);
    };
    let extents = call.extents(x.value);
    let transforms = fourier::named(&extents, axes, sizes, call.text("norm")?, kind, way)?;
    along(call, x, &transforms)?.give(call)
}

fn one_axis(call: &mut Call<'_, '_>) -> Results {
    let x = call.any_tensor("self")?;
    let axis = call.axis("dim", call.rank(x.value))?;
    let size = if call.has("n") { vec![call.known_int("n")?] } else { Vec::new() };
    transformed(call, x, &[axis], &size)
}

fn several_axes(call: &mut Call<'_, '_>) -> Results {
    let x = call.any_tensor("self")?;
    let rank = call.rank(x.value);
    let sizes = call.known_ints("s")?;
    let named = call.known_ints("dim")?;
    let axes: Vec<usize> = if named.is_empty() {
        fourier::last_axes(rank, &sizes)
    } else {
        named.into_iter().map(|axis| normalized(axis, rank)).collect::<Result<_, _>>()?
    };
    transformed(call, x, &axes, &sizes)
}

fn frequencies(call: &mut Call<'_, '_>, half: bool) -> Results {
    let (count, distance) = (call.known_int("n")?, call.float("d")?);
    let values = fourier::frequencies(count, distance, half)?;
    let y = call.float_constant(&[values.len() as u64], &values);
    call.give(y)
}

/// Turns each axis by half its extent.
fn shifted(call: &mut Call<'_, '_>, back: bool) -> Results {
    let x = call.any_tensor("self")?;
    let rank = call.rank(x.value);
    let mut y = Tensor { dtype: call.result_dtype()?, ..x };
    for axis in call.axes("dim", rank)? {
        let extent = fourier::known_extent(&call.extents(x.value), axis)? as i64;
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

    /// A convolution, or a transposed one, with a filter for the cosine of each frequency and one for its sine:
    /// the wave under the window, times the factor of the frequency.
    fn convolved(
        &self,
        builder: &mut Builder,
        kind: OpKind,
        x: ValueId,
        factor: impl Fn(u64) -> f64,
    ) -> Result<ValueId, Refusal> {
        created(&[2 * self.outputs, self.points])?;
        let mut filters = Vec::new();
        for sine in [false, true] {
            for k in 0..self.outputs {
                let factor = factor(k);
                for (t, &weight) in self.window.iter().enumerate() {
                    let angle = fourier::angle(self.points, k, t as u64);
                    let wave = if sine { -angle.sin() } else { angle.cos() };
                    filters.push((factor * weight * wave) as f32);
                }
            }
        }
        let filters = builder.float_constant(&[2 * self.outputs, 1, self.points], &filters);
        self.convolution(builder, kind, x, filters)
    }

    fn convolution(
        &self,
        builder: &mut Builder,
        kind: OpKind,
        x: ValueId,
        filters: ValueId,
    ) -> Result<ValueId, Refusal> {
        builder.emit(
            kind,
            [
                ("x", x.into()),
                ("weight", filters.into()),
                ("strides", [self.hop as i32].into()),
                ("pad_type", "valid".into()),
                ("pad", [0, 0].into()),
                ("dilations", [1].into()),
                ("groups", 1.into()),
            ],
        )
    }
}

impl Frames {
    /// The sums of the squared windows of that many frames.
    fn envelope(&self, count: i64, total: i64) -> Result<Vec<f64>, Refusal> {
        created(&[count, self.points as i64])?;
        let mut envelope = vec![0.0; created(&[total])?];
        for frame in 0..count as usize {
            for (t, &window) in self.window.iter().enumerate() {
                envelope[frame * self.hop as usize + t] += window * window;
            }
        }
        Ok(envelope)
    }

    /// The same for frames that are counted when the program runs: squared windows, added up as the frames are.
    fn computed_envelope(&self, builder: &mut Builder, count: Int) -> Result<ValueId, Refusal> {
        let ones = full(builder, &[Int::Known(1), Int::Known(1), count], DType::Fp32, 1.0)?;
        let squares: Vec<f32> = self.window.iter().map(|it| (it * it) as f32).collect();
        let filter = builder.float_constant(&[1, 1, self.points], &squares);
        let envelope = self.convolution(builder, OpKind::ConvTranspose, ones, filter)?;
        builder.squeeze(envelope, &[0, 1])
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
    let mut y = frames.convolved(call, OpKind::Conv, x, |_| frames.scale)?;
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
    let axis = rank - 2;
    let mut y = call.concat(&[x.value, imaginary], axis)?;
    if rank == 2 {
        y = call.expand_dims(y, &[0])?;
    }
    let onesided = frames.outputs != frames.points || frames.points == 1;
    let scale = 1.0 / (frames.points as f64 * frames.scale);
    let y = frames.convolved(call, OpKind::ConvTranspose, y, |k| {
        let mirrored = onesided && k != 0 && 2 * k != frames.points;
        scale * if mirrored { 2.0 } else { 1.0 }
    })?;
    let y = call.squeeze(y, if rank == 2 { &[0, 1] } else { &[1] })?;
    let count = call.dim(x.value, rank - 1)?;
    let hops = call.mul_ints(count, Int::Known(frames.hop))?;
    let total = call.add_ints(hops, Int::Known(frames.points as i64 - frames.hop))?;
    let side = if frames.center { frames.points as i64 / 2 } else { 0 };
    let end = match call.optional_int("length")? {
        Some(length) => call.add_ints(length, Int::Known(side))?,
        None => call.sub_ints(total, Int::Known(side))?,
    };
    if let (Int::Known(end), Int::Known(total)) = (end, total)
        && (end > total || side >= end)
    {
        refuse!("`length` asks for more than the {} elements that there are", total - side);
    }
    let inverse = match (count.known(), total.known(), end.known()) {
        (Some(count), Some(total), Some(end)) => {
            let envelope = frames.envelope(count, total)?;
            let kept = &envelope[side as usize..end as usize];
            let inverse: Vec<f32> = kept.iter().map(|sum| (1.0 / sum) as f32).collect();
            call.float_constant(&[inverse.len() as u64], &inverse)
        }
        _ => {
            let envelope = frames.computed_envelope(call, count)?;
            let kept = sliced(call, envelope, 0, Range::between(Int::Known(side), end))?;
            call.reciprocal(kept)?
        }
    };
    let axis = rank - 2;
    let y = sliced(call, y, axis, Range::between(Int::Known(side), end))?;
    let y = call.binary(OpKind::Mul, y, inverse)?;
    call.give(y)
}
