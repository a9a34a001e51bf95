//! Fourier transforms as products with matrices that the program stores.

use coremill_pt2::{Argument, ScalarType, Size, Target};

use super::{Parts, Rule};
use crate::decompose::call::{Call, Results, Tensor, one, position};
use crate::decompose::ops::padded;
use crate::decompose::words::Maybe;
use crate::error::{Refusal, refuse};
use crate::fourier::{self, Kind, MAX_MATRIX, Scale, Transform, Way};

pub(super) const RULES: &[(&str, Rule)] = &[
    ("aten._fft_c2c", |call| {
        let way = if call.bool("forward")? { Way::Forward } else { Way::Backward };
        numbered(call, Kind::Complex, way, None)
    }),
    ("aten._fft_r2c", |call| {
        let kind = if call.bool("onesided")? { Kind::FromReal } else { Kind::Complex };
        numbered(call, kind, Way::Forward, None)
    }),
    ("aten._fft_c2r", |call| {
        let last = call.int("last_dim_size")?;
        numbered(call, Kind::ToReal, Way::Backward, Some(last))
    }),
    ("aten.fft_fft", one_axis),
    ("aten.fft_ifft", one_axis),
    ("aten.fft_rfft", one_axis),
    ("aten.fft_irfft", one_axis),
    ("aten.fft_hfft", one_axis),
    ("aten.fft_ihfft", one_axis),
    ("aten.fft_fft2", several_axes),
    ("aten.fft_ifft2", several_axes),
    ("aten.fft_rfft2", several_axes),
    ("aten.fft_irfft2", several_axes),
    ("aten.fft_fftn", several_axes),
    ("aten.fft_ifftn", several_axes),
    ("aten.fft_rfftn", several_axes),
    ("aten.fft_irfftn", several_axes),
    ("aten.fft_fftfreq", |call| frequencies(call, false)),
    ("aten.fft_rfftfreq", |call| frequencies(call, true)),
    ("aten.stft", short_time),
    ("aten.istft", short_time_inverse),
];

/// Whether an operator is rewritten although it may take and give nothing but reals.
pub(super) fn is_transform(target: &Target) -> bool {
    let name = super::base(target);
    RULES.iter().any(|(own, _)| *own == name)
}

fn extents(x: &Tensor) -> Vec<Option<u64>> {
    x.sizes.iter().map(|size| size.fixed().and_then(|size| u64::try_from(size).ok())).collect()
}

impl Transform {
    /// Transforms what has at least as many elements along the axis as are needed, or fewer, which counts as zeros
    /// after them.
    fn apply_to(&self, call: &mut Call<'_>, x: Parts) -> Result<Parts, Refusal> {
        let extent = fourier::known_extent(&extents(&x.real), self.axis)?;
        let points = self.known_points()?;
        let inputs = extent.min(self.inputs(points));
        let parts = [Some(x.real), x.imaginary].into_iter().flatten();
        let mut lines = Vec::with_capacity(2);
        for part in parts {
            lines.push(call.slice(&part, self.axis, 0, inputs as i64, 1)?);
        }
        if inputs.saturating_mul(points).saturating_mul(4) > MAX_MATRIX {
            refuse!(
                "a Fourier transform of {points} points would need a matrix of too many elements"
            );
        }
        let (outputs, matrix) = self.matrix(points, inputs, lines.len() == 2);
        let width = inputs * lines.len() as u64;
        let matrix = call.constant(&[matrix.len() as u64 / width.max(1), width], &matrix)?;
        let matrix = call.cast(&matrix, lines[0].dtype)?;
        let line = call.concatenate(&lines, self.axis)?;
        let last = line.rank() - 1;
        let line = call.transpose(&line, self.axis, last)?;
        let matrix = call.turned(&matrix)?;
        let y = call.matmul(&line, &matrix)?;
        let y = call.transpose(&y, self.axis, last)?;
        if self.kind == Kind::ToReal {
            return Ok(Parts { real: y, imaginary: None });
        }
        let outputs = outputs as i64;
        let real = call.slice(&y, self.axis, 0, outputs, 1)?;
        let imaginary = call.slice(&y, self.axis, outputs, outputs, 1)?;
        Ok(Parts { real, imaginary: Some(imaginary) })
    }
}

/// What is transformed, as floats.
fn signal(call: &mut Call<'_>) -> Result<Parts, Refusal> {
    let Parts { real, imaginary } = call.parts("self")?;
    let dtype = call.part_dtype();
    Ok(Parts { real: call.cast(&real, dtype)?, imaginary })
}

fn along(call: &mut Call<'_>, x: Parts, transforms: &[Transform]) -> Results {
    let mut x = x;
    for transform in transforms {
        x = transform.apply_to(call, x)?;
    }
    match x.imaginary {
        Some(imaginary) => call.pair(x.real, imaginary),
        None => one(x.real),
    }
}

fn numbered(call: &mut Call<'_>, kind: Kind, way: Way, last: Option<i64>) -> Results {
    let x = signal(call)?;
    let axes = call.ints("dim")?.into_iter().map(|axis| position(axis, x.real.rank()));
    let axes = axes.collect::<Result<Vec<_>, _>>()?;
    let normalization = call.int("normalization")?;
    let transforms = fourier::numbered(&extents(&x.real), &axes, normalization, last, kind, way)?;
    along(call, x, &transforms)
}

fn named(call: &mut Call<'_>, x: Parts, axes: &[usize], sizes: &[i64]) -> Results {
    let Some((kind, way)) = fourier::function(&call.node.target) else {
        refuse!("`{}` is not a Fourier transform that is known", call.node.target);
    };
    let norm = if call.has("norm") { Some(call.text("norm")?) } else { None };
    let transforms = fourier::named(&extents(&x.real), axes, sizes, norm, kind, way)?;
    along(call, x, &transforms)
}

fn one_axis(call: &mut Call<'_>) -> Results {
    let x = signal(call)?;
    let axis = position(call.int("dim")?, x.real.rank())?;
    let size = if call.has("n") { vec![call.int("n")?] } else { Vec::new() };
    named(call, x, &[axis], &size)
}

fn several_axes(call: &mut Call<'_>) -> Results {
    let x = signal(call)?;
    let rank = x.real.rank();
    let sizes = if call.has("s") { call.ints("s")? } else { Vec::new() };
    let axes = if call.has("dim") {
        let axes = call.ints("dim")?.into_iter().map(|axis| position(axis, rank));
        axes.collect::<Result<_, _>>()?
    } else {
        fourier::last_axes(rank, &sizes)
    };
    named(call, x, &axes, &sizes)
}

fn frequencies(call: &mut Call<'_>, half: bool) -> Results {
    let values = fourier::frequencies(call.int("n")?, call.float("d")?, half)?;
    let dtype = call.result(0)?.dtype;
    let values = call.constant(&[values.len() as u64], &values)?;
    one(call.cast(&values, dtype)?)
}

/// What a short-time transform is made of.
struct Frames {
    points: i64,
    hop: i64,
    window: Option<Tensor>,
    onesided: bool,
    /// By which a forward transform is multiplied.
    scale: f64,
    center: bool,
}

impl Frames {
    fn of(call: &mut Call<'_>) -> Result<Frames, Refusal> {
        let points = call.int("n_fft")?;
        if !(1..=1 << 16).contains(&points) {
            refuse!("`n_fft` is {points}; 1 to 65536 are accepted");
        }
        let hop = call.int_or("hop_length", points / 4)?;
        let length = call.int_or("win_length", points)?;
        if hop < 1 || !(1..=points).contains(&length) {
            refuse!("`hop_length` is {hop} and `win_length` {length}, of {points} points");
        }
        let mut window = call.optional_tensor("window")?;
        if length < points {
            let given = match window {
                Some(window) => window,
                None => {
                    call.full(vec![Size::Fixed(length)], Argument::Float(1.0), ScalarType::Float32)?
                }
            };
            let before = (points - length) / 2;
            let pads = [before, points - length - before];
            window = Some(call.pad(&given, &pads, Argument::Float(0.0))?);
        }
        let normalized = call.bool("normalized")?;
        Ok(Frames {
            points,
            hop,
            window,
            onesided: !call.has("onesided") || call.bool("onesided")?,
            scale: if normalized { 1.0 / (points as f64).sqrt() } else { 1.0 },
            center: call.has("center") && call.bool("center")?,
        })
    }

    /// The transform of each frame, which is along the last axis.
    fn transform(&self, kind: Kind, way: Way, axis: usize, factor: f64) -> Transform {
        let scale = Scale { factor, power: 0.0 };
        Transform { kind, way, axis, points: Some(self.points as u64), scale }
    }
}

/// Frames under the window, each transformed.
fn short_time(call: &mut Call<'_>) -> Results {
    let mut x = call.tensor("self")?;
    let frames = Frames::of(call)?;
    if frames.center {
        let mode = if call.has("pad_mode") { call.text("pad_mode")? } else { "reflect" };
        let pads = [frames.points / 2; 2];
        x = padded(call, &x, &pads, mode)?;
    }
    let at = x.rank() - 1;
    let length = fourier::known_extent(&extents(&x), at)? as i64;
    if length < frames.points {
        refuse!("the signal has {length} elements, which are no frame of {}", frames.points);
    }
    let count = (length - frames.points) / frames.hop + 1;
    let mut sizes = x.sizes.clone();
    sizes[at] = Size::Fixed(count);
    sizes.push(Size::Fixed(frames.points));
    let given = [
        ("self", x.argument()),
        ("dimension", Argument::Int(at as i64)),
        ("size", Argument::Int(frames.points)),
        ("step", Argument::Int(frames.hop)),
    ];
    let mut y = call.emit("aten.unfold_copy.default", &given, x.dtype, sizes)?;
    if let Some(window) = &frames.window {
        y = call.multiply(&y, window)?;
    }
    let kind = if frames.onesided { Kind::FromReal } else { Kind::Complex };
    let transform = frames.transform(kind, Way::Forward, at + 1, frames.scale);
    let y = transform.apply_to(call, Parts { real: y, imaginary: None })?;
    let real = call.turned(&y.real)?;
    let imaginary = match &y.imaginary {
        Some(imaginary) => call.turned(imaginary)?,
        None => refuse!("a spectrum lacks a part"),
    };
    let is_complex = crate::decompose::dtype::is_complex(call.result(0)?.dtype);
    if is_complex {
        return call.pair(real, imaginary);
    }
    let rank = real.rank();
    one(call.stack(&[real, imaginary], rank)?)
}

/// Adds frames, the last axis, where they overlap.
fn overlapped(call: &mut Call<'_>, x: &Tensor, hop: i64) -> Maybe {
    let known = extents(x);
    let at = x.rank() - 2;
    let (count, points) =
        (fourier::known_extent(&known, at)? as i64, fourier::known_extent(&known, at + 1)? as i64);
    let total = points + hop * (count - 1);
    let mut sizes = x.sizes[..at].to_vec();
    sizes.push(Size::Fixed(count * points));
    let flat = call.view(x, sizes.clone())?;
    let starts = call.count(&Size::Fixed(count), ScalarType::Int64)?;
    let starts = call.with("mul", &starts, Argument::Int(hop))?;
    let starts = call.unsqueeze(&starts, 1)?;
    let places = call.count(&Size::Fixed(points), ScalarType::Int64)?;
    let index = call.add(&starts, &places)?;
    let index = call.view(&index, vec![Size::Fixed(count * points)])?;
    let index = call.expand(&index, sizes.clone())?;
    sizes[at] = Size::Fixed(total);
    let blank = call.full(sizes, Argument::Float(0.0), x.dtype)?;
    let given = [
        ("self", blank.argument()),
        ("dim", Argument::Int(at as i64)),
        ("index", index.argument()),
        ("src", flat.argument()),
    ];
    call.emit("aten.scatter_add.default", &given, x.dtype, blank.sizes)
}

/// Frames added where they overlap, over the sum of the squared windows.
fn short_time_inverse(call: &mut Call<'_>) -> Results {
    let x = call.both_parts("self")?;
    if crate::decompose::dtype::is_complex(call.result(0)?.dtype) {
        refuse!("an inverse transform to a complex signal is not written with real numbers");
    }
    let frames = Frames::of(call)?;
    let dtype = x[0].dtype;
    let [real, imaginary] = [call.turned(&x[0])?, call.turned(&x[1])?];
    let at = real.rank() - 1;
    let kind = if frames.onesided { Kind::ToReal } else { Kind::Complex };
    let scale = 1.0 / (frames.points as f64 * frames.scale);
    let transform = frames.transform(kind, Way::Backward, at, scale);
    let count = real.sizes[at - 1].clone();
    let signal = Parts { real, imaginary: Some(imaginary) };
    let mut y = transform.apply_to(call, signal)?.real;
    let window = match &frames.window {
        Some(window) => call.cast(window, dtype)?,
        None => call.full(vec![Size::Fixed(frames.points)], Argument::Float(1.0), dtype)?,
    };
    y = call.multiply(&y, &window)?;
    let y = overlapped(call, &y, frames.hop)?;
    let square = call.multiply(&window, &window)?;
    let square = call.expand(&square, vec![count, Size::Fixed(frames.points)])?;
    let envelope = overlapped(call, &square, frames.hop)?;
    let last = y.rank() - 1;
    let total = fourier::known_extent(&extents(&y), last)? as i64;
    let start = if frames.center { frames.points / 2 } else { 0 };
    let length = if call.has("length") {
        call.int("length")?
    } else {
        total - start - if frames.center { frames.points / 2 } else { 0 }
    };
    if length < 1 || start + length > total {
        refuse!("`length` is {length}, of the {} elements that there are", total - start);
    }
    let y = call.slice(&y, last, start, length, 1)?;
    let envelope = call.slice(&envelope, 0, start, length, 1)?;
    one(call.divide(&y, &envelope)?)
}
