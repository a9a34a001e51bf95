//! Image resizing and grid sampling.

use super::arguments::{float_output, same_type};
use super::map::take_by_tables;
use super::{Arguments, Kernel, kernel};
use crate::error::{Result, ensure, fail};
use crate::number::Compute;
use crate::view::{OutTensor, View};

pub(super) const TABLE: &[Kernel] = &[
    kernel("aten::_upsample_bilinear2d_aa.out", "TNBdd>T", bilinear_antialiased),
    kernel("aten::grid_sampler_2d.out", "TTIIB>T", grid_sampler),
    kernel("aten::upsample_bilinear2d.vec_out", "TnBF>T", bilinear),
    kernel("aten::upsample_nearest2d.vec_out", "TnF>T", nearest),
];

fn images(view: &View) -> Result<[usize; 4]> {
    match *view.sizes {
        [batch, channels, height, width] if height > 0 && width > 0 => {
            Ok([batch, channels, height, width])
        }
        _ => fail!(
            "the tensor has sizes {:?}; expected four dimensions and non-empty images",
            view.sizes
        ),
    }
}

/// Output size from sizes or scale factors, and the explicit factors.
fn resized(
    x: &Arguments,
    [sizes, factors]: [usize; 2],
    input: [usize; 2],
) -> Result<([usize; 2], [Option<f64>; 2])> {
    match (x.optional_ints(sizes)?, x.optional_doubles(factors)?) {
        (Some([height, width]), None) => {
            let wanted = [*height, *width];
            ensure!(
                wanted.iter().all(|size| (1..1 << 31).contains(size)),
                "the output sizes must be positive and below 2^31, got {wanted:?}"
            );
            Ok((wanted.map(|size| size as usize), [None; 2]))
        }
        (None, Some([down, right])) => {
            let scaled = |axis: usize, factor: f64| (input[axis] as f64 * factor).floor();
            let wanted = [scaled(0, *down), scaled(1, *right)];
            ensure!(
                wanted.iter().all(|size| (1.0..2e9).contains(size)),
                "the scale factors {down} and {right} are invalid for an image of {input:?} pixels"
            );
            Ok((wanted.map(|size| size as usize), [Some(*down), Some(*right)]))
        }
        _ => fail!("expected either two output sizes or two scale factors"),
    }
}

/// Input distance of one output pixel.
fn step(input: usize, output: usize, aligned: bool, factor: Option<f64>) -> f32 {
    let step = match factor {
        _ if aligned => match output {
            0 | 1 => 0.0,
            _ => (input - 1) as f64 / (output - 1) as f64,
        },
        Some(factor) if factor > 0.0 => 1.0 / factor,
        _ => input as f64 / output as f64,
    };
    step as f32
}

fn resize(view: &View, [height, width]: [usize; 2], out: &mut OutTensor) -> Result {
    same_type(view, out)?;
    out.resize(&[view.sizes[0], view.sizes[1], height, width])
}

fn nearest(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let view = x.tensor(0)?;
    let [batch, channels, height, width] = images(&view)?;
    let (output, factors) = resized(x, [1, 2], [height, width])?;
    resize(&view, output, &mut out[0])?;
    let along = |axis: usize, size: usize| -> Vec<usize> {
        let step = step(size, output[axis], false, factors[axis]);
        let place = |index: usize| ((index as f32 * step).floor() as usize).min(size - 1);
        (0..output[axis]).map(place).collect()
    };
    let all = |count: usize| (0..count).collect();
    let tables = [all(batch), all(channels), along(0, height), along(1, width)];
    take_by_tables(view, &tables, &mut out[0]);
    Ok(())
}

/// For each output position along an axis, the input positions and their weights.
type Taps = Vec<Vec<(usize, f32)>>;

/// Weighted sums along both axes.
fn resample(view: View, taps: [Taps; 2], out: &mut OutTensor) -> Result {
    let [batch, channels, height, width] = images(&view)?;
    Compute::of(view.dtype)?;
    let numbers = view.contiguous::<f64>();
    let mut results = Vec::with_capacity(out.count());
    for plane in 0..batch * channels {
        let plane = &numbers[plane * height * width..][..height * width];
        for rows in &taps[0] {
            for columns in &taps[1] {
                let mut sum = 0.0;
                for (row, down) in rows {
                    let mut along = 0.0;
                    for (column, right) in columns {
                        along += plane[row * width + column] * f64::from(*right);
                    }
                    sum += along * f64::from(*down);
                }
                results.push(sum);
            }
        }
    }
    out.put_contiguous(&results);
    Ok(())
}

fn bilinear(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let view = x.tensor(0)?;
    let [_, _, height, width] = images(&view)?;
    let aligned = x.bool(2)?;
    let (output, factors) = resized(x, [1, 3], [height, width])?;
    resize(&view, output, &mut out[0])?;
    let along = |axis: usize, size: usize| -> Taps {
        let step = step(size, output[axis], aligned, factors[axis]);
        let tap = |index: usize| {
            if size == output[axis] {
                return vec![(index, 1.0)];
            }
            let place = if aligned {
                step * index as f32
            } else {
                (step * (index as f32 + 0.5) - 0.5).max(0.0)
            };
            let first = (place as usize).min(size - 1);
            let second = (first + 1).min(size - 1);
            let weight = (place - first as f32).clamp(0.0, 1.0);
            vec![(first, 1.0 - weight), (second, weight)]
        };
        (0..output[axis]).map(tap).collect()
    };
    resample(view, [along(0, height), along(1, width)], &mut out[0])
}

fn bilinear_antialiased(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let view = x.tensor(0)?;
    let [_, _, height, width] = images(&view)?;
    let aligned = x.bool(2)?;
    let wanted = x.ints(1)?;
    ensure!(
        wanted.len() == 2 && wanted.iter().all(|size| (1..1 << 31).contains(size)),
        "expected two output sizes, positive and below 2^31, got {wanted:?}"
    );
    let output = [wanted[0] as usize, wanted[1] as usize];
    let factors = match (x.optional_double(3)?, x.optional_double(4)?) {
        (Some(down), Some(right)) => [Some(down), Some(right)],
        _ => [None; 2],
    };
    resize(&view, output, &mut out[0])?;
    let along = |axis: usize, size: usize| -> Taps {
        let scale = step(size, output[axis], aligned, factors[axis]);
        let support = scale.max(1.0);
        let tap = |index: usize| {
            let center = scale * (index as f32 + 0.5);
            let first = (center - support + 0.5).max(0.0) as usize;
            let last = ((center + support + 0.5).max(0.0) as usize).min(size);
            let weight =
                |place: usize| (1.0 - ((place as f32 - center + 0.5) / support).abs()).max(0.0);
            let total: f32 = (first..last).map(weight).sum();
            if total <= 0.0 {
                return vec![((center.max(0.0) as usize).min(size - 1), 1.0)];
            }
            (first..last).map(|place| (place, weight(place) / total)).collect()
        };
        (0..output[axis]).map(tap).collect()
    };
    resample(view, [along(0, height), along(1, width)], &mut out[0])
}

#[derive(Clone, Copy, PartialEq)]
enum Padding {
    Zeros,
    Border,
    Reflection,
}

/// Interpretation of a grid's coordinates.
#[derive(Clone, Copy)]
struct Grid {
    padding: Padding,
    aligned: bool,
}

impl Grid {
    /// Converts a normalized coordinate from -1 to 1 to pixels.
    fn pixels(self, coordinate: f64, size: usize) -> f64 {
        let size = size as f64;
        match self.aligned {
            true => (coordinate + 1.0) / 2.0 * (size - 1.0),
            false => ((coordinate + 1.0) * size - 1.0) / 2.0,
        }
    }

    fn reflect(self, place: f64, size: usize) -> f64 {
        let (low, high) = match self.aligned {
            true => (0.0, size as f64 - 1.0),
            false => (-0.5, size as f64 - 0.5),
        };
        let span = high - low;
        if span == 0.0 {
            return 0.0;
        }
        let place = (place - low).abs();
        let (extra, flips) = (place % span, (place / span).floor());
        if flips % 2.0 == 0.0 { extra + low } else { span - extra + low }
    }

    /// Applies the padding mode to a coordinate.
    fn padded(self, place: f64, size: usize) -> f64 {
        let most = size as f64 - 1.0;
        match self.padding {
            Padding::Zeros => place,
            Padding::Border => place.max(0.0).min(most),
            Padding::Reflection => self.reflect(place, size).max(0.0).min(most),
        }
    }

    /// Pixel at an integer coordinate; `None` for zero padding.
    fn pixel(self, place: f64, size: usize) -> Option<usize> {
        match self.padding {
            Padding::Zeros => (place >= 0.0 && place < size as f64).then_some(place as usize),
            _ => Some(place.max(0.0).min(size as f64 - 1.0) as usize),
        }
    }

    /// Pixel positions and weights of a coordinate along an axis.
    fn taps(self, mode: i64, coordinate: f64, size: usize) -> Vec<(Option<usize>, f64)> {
        let place = self.pixels(coordinate, size);
        match mode {
            0 => {
                let place = self.padded(place, size);
                let first = place.floor();
                let weight = place - first;
                vec![
                    (self.pixel(first, size), 1.0 - weight),
                    (self.pixel(first + 1.0, size), weight),
                ]
            }
            1 => {
                let place = self.padded(place, size).round_ties_even();
                vec![(self.pixel(place, size), 1.0)]
            }
            _ => {
                let first = place.floor();
                let weights = cubic(place - first);
                let tap = |(index, weight): (usize, f64)| {
                    let place = self.padded(first + index as f64 - 1.0, size);
                    (self.pixel(place, size), weight)
                };
                weights.into_iter().enumerate().map(tap).collect()
            }
        }
    }
}

/// Cubic weights of four pixels for an offset between the middle two.
fn cubic(offset: f64) -> [f64; 4] {
    const A: f64 = -0.75;
    let near = |x: f64| ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0;
    let far = |x: f64| ((A * x - 5.0 * A) * x + 8.0 * A) * x - 4.0 * A;
    [far(offset + 1.0), near(offset), near(1.0 - offset), far(2.0 - offset)]
}

fn grid_sampler(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let (view, grid) = (x.tensor(0)?, x.tensor(1)?);
    let [batch, channels, height, width] = images(&view)?;
    same_type(&grid, &out[0])?;
    float_output(&out[0])?;
    let [grids, rows, columns, 2] = *grid.sizes else {
        fail!("the grid has sizes {:?}; expected four dimensions, the last of size 2", grid.sizes);
    };
    ensure!(
        grids == batch,
        "the numbers of images and grids must be equal, got {batch} and {grids}"
    );
    resize(&view, [rows, columns], &mut out[0])?;
    let (mode, aligned) = (x.int(2)?, x.bool(4)?);
    ensure!((0..3).contains(&mode), "`interpolation_mode` must be 0, 1 or 2, got {mode}");
    let padding = match x.int(3)? {
        0 => Padding::Zeros,
        1 => Padding::Border,
        2 => Padding::Reflection,
        other => fail!("`padding_mode` must be 0, 1 or 2, got {other}"),
    };
    let how = Grid { padding, aligned };
    let (numbers, grid) = (view.contiguous::<f64>(), grid.contiguous::<f64>());
    let mut results = vec![0.0; out[0].count()];
    for (index, point) in grid.chunks_exact(2).enumerate() {
        let (image, place) = (index / (rows * columns), index % (rows * columns));
        let right = how.taps(mode, point[0], width);
        let down = how.taps(mode, point[1], height);
        for channel in 0..channels {
            let plane = image * channels + channel;
            let mut sum = 0.0;
            for (row, down) in &down {
                for (column, right) in &right {
                    if let (Some(row), Some(column)) = (row, column) {
                        sum += numbers[(plane * height + row) * width + column] * down * right;
                    }
                }
            }
            results[plane * rows * columns + place] = sum;
        }
    }
    out[0].put_contiguous(&results);
    Ok(())
}
