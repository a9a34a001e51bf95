//! Pooling over one to three spatial axes, channels last.

use std::ops::Range;

use crate::Pool;
use crate::reduce::{Reduction, reduce};
use crate::shared::SharedMut;
use coremill_simd::Isa;
use coremill_simd::vector::{Kernel, Vector, dispatch};

/// Kind of pooling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pooling {
    /// Maximum; NaN if an element is NaN, minus infinity if the window contains only padding.
    Max,
    /// Mean.
    Average {
        /// Whether padding counts as zeros; otherwise it is ignored.
        counts_padding: bool,
    },
    /// Root of the sum of squares.
    L2,
}

/// A window along an axis: its range inside the input, and its size including padding.
pub type WindowRange = (Range<usize>, usize);

/// Sizes of a pooling. With fewer than three axes, the sizes of the others are 1.
#[derive(Clone, Copy, Debug)]
pub struct PoolingExtents<'a> {
    /// Number of images.
    pub batch: usize,
    /// Size of the input.
    pub input: [usize; 3],
    /// The windows along each axis, one for each output pixel.
    pub windows: [&'a [WindowRange]; 3],
    /// Number of channels of input and output.
    pub channels: usize,
}

impl PoolingExtents<'_> {
    fn check(&self, input: &[f32], output: &[f32]) {
        let length = |size: [usize; 3]| {
            let lengths = [self.batch, size[0], size[1], size[2], self.channels];
            lengths.iter().try_fold(1usize, |product, &length| product.checked_mul(length))
        };
        let size = self.windows.map(<[WindowRange]>::len);
        assert_eq!(
            Some(input.len()),
            length(self.input),
            "the input's length does not match the sizes"
        );
        assert_eq!(
            Some(output.len()),
            length(size),
            "the output's length does not match the sizes"
        );
        for (windows, &length) in self.windows.iter().zip(&self.input) {
            assert!(
                windows.iter().all(|(inside, _)| inside.end <= length),
                "windows exceed the input"
            );
        }
    }
}

/// Pools `[batch, depth, height, width, channels]`.
///
/// # Panics
/// Panics if a length does not match the sizes.
pub fn pool_windows(
    isa: Isa,
    pool: &Pool,
    pooling: Pooling,
    extents: &PoolingExtents<'_>,
    input: &[f32],
    output: &mut [f32],
) {
    extents.check(input, output);
    if output.is_empty() {
        return;
    }
    let [depth, height, _] = extents.windows.map(<[WindowRange]>::len);
    let rows = extents.batch * depth * height;
    let covered = |axis: usize| extents.windows[axis].iter().map(|(inside, _)| inside.len());
    let most = |axis: usize| covered(axis).max().unwrap_or(0);
    let work = covered(2).sum::<usize>() * most(0) * most(1) * extents.channels;
    let shared = SharedMut::new(output);
    pool.run_ranges(rows, (32_768 / work.max(1)).max(1), |range| {
        dispatch(isa, Rows { pooling, extents, input, output: &shared, rows: range });
    });
}

/// The mean of each channel: `[batch, pixels, channels]` to `[batch, channels]`.
///
/// # Panics
/// Panics if a length does not match the sizes.
pub fn global_average(
    isa: Isa,
    pool: &Pool,
    [batch, pixels, channels]: [usize; 3],
    input: &[f32],
    output: &mut [f32],
) {
    reduce(isa, pool, Reduction::Mean, input, &[batch, pixels, channels], &[1], output);
}

struct Rows<'a> {
    pooling: Pooling,
    extents: &'a PoolingExtents<'a>,
    input: &'a [f32],
    output: &'a SharedMut<'a>,
    rows: Range<usize>,
}

impl Kernel for Rows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let Rows { pooling, extents, input, output, rows } = self;
        match pooling {
            Pooling::Max => pool_rows::<V, Max>(extents, false, input, output, rows),
            Pooling::Average { counts_padding } => {
                pool_rows::<V, Average>(extents, counts_padding, input, output, rows);
            }
            Pooling::L2 => pool_rows::<V, L2>(extents, false, input, output, rows),
        }
    }
}

trait Window<V: Vector> {
    fn start() -> V;
    fn step(pooled: V, x: V) -> V;
    fn end(pooled: V, count: V) -> V;
}

struct Max;
struct Average;
struct L2;

impl<V: Vector> Window<V> for Max {
    #[inline(always)]
    fn start() -> V {
        V::splat(f32::NEG_INFINITY)
    }
    #[inline(always)]
    fn step(pooled: V, x: V) -> V {
        pooled.max_nan(x)
    }
    #[inline(always)]
    fn end(pooled: V, _count: V) -> V {
        pooled
    }
}

impl<V: Vector> Window<V> for Average {
    #[inline(always)]
    fn start() -> V {
        V::zero()
    }
    #[inline(always)]
    fn step(pooled: V, x: V) -> V {
        pooled.add(x)
    }
    #[inline(always)]
    fn end(pooled: V, count: V) -> V {
        pooled.div(count)
    }
}

impl<V: Vector> Window<V> for L2 {
    #[inline(always)]
    fn start() -> V {
        V::zero()
    }
    #[inline(always)]
    fn step(pooled: V, x: V) -> V {
        // Squares could overflow even if the root of their sum does not.
        let x = x.abs();
        let (most, least) = (pooled.max_nan(x), pooled.min(x));
        let ratio = least.div(most);
        let norm = most.mul(ratio.mul_add(ratio, V::splat(1.0)).sqrt());
        let divides = V::both(V::zero().less(most), most.less_equal(V::splat(f32::MAX)));
        V::select(divides, norm, pooled.add(x))
    }
    #[inline(always)]
    fn end(pooled: V, _count: V) -> V {
        pooled
    }
}

/// Number of vectors of channels that are pooled together.
const TOGETHER: usize = 4;

#[inline(always)]
fn pool_rows<V: Vector, W: Window<V>>(
    extents: &PoolingExtents<'_>,
    counts_padding: bool,
    input: &[f32],
    output: &SharedMut<'_>,
    rows: Range<usize>,
) {
    let channels = extents.channels;
    let [in_depth, in_height, in_width] = extents.input;
    let [depth, height, width] = extents.windows.map(<[WindowRange]>::len);
    for row in rows {
        let (image, z, y) = (row / height / depth, row / height % depth, row % height);
        let (planes, padded_planes) = &extents.windows[0][z];
        let (lines, padded_lines) = &extents.windows[1][y];
        for (x, (columns, padded_columns)) in extents.windows[2].iter().enumerate() {
            let count = if counts_padding {
                padded_planes.saturating_mul(*padded_lines).saturating_mul(*padded_columns)
            } else {
                planes.len() * lines.len() * columns.len()
            };
            // The mean of an empty window is not divided by zero.
            let count = V::splat(count.max(1) as f32);
            let start = (row * width + x) * channels;
            let target = output.pointer(start..start + channels);
            let mut channel = 0;
            while channel < channels {
                let many = channel + TOGETHER * V::LANES <= channels;
                let lanes =
                    if many { TOGETHER * V::LANES } else { V::LANES.min(channels - channel) };
                let mut pooled = [W::start(); TOGETHER];
                for plane in planes.clone() {
                    for line in lines.clone() {
                        let line = ((image * in_depth + plane) * in_height + line) * in_width;
                        for column in columns.clone() {
                            let pixel = (line + column) * channels + channel;
                            let pixel = &input[pixel..pixel + lanes];
                            // SAFETY: the slice has at least this many elements.
                            #[expect(unsafe_code, reason = "vectors are loaded by pointer")]
                            unsafe {
                                if many {
                                    for (at, pooled) in pooled.iter_mut().enumerate() {
                                        let x = V::load(pixel.as_ptr().add(at * V::LANES));
                                        *pooled = W::step(*pooled, x);
                                    }
                                } else {
                                    let x = V::load_partial(pixel.as_ptr(), lanes);
                                    pooled[0] = W::step(pooled[0], x);
                                }
                            }
                        }
                    }
                }
                // SAFETY: the target has `channels` elements, and each task has its own rows.
                #[expect(unsafe_code, reason = "tasks write to disjoint parts of the output")]
                unsafe {
                    if many {
                        for (at, pooled) in pooled.into_iter().enumerate() {
                            W::end(pooled, count).store(target.add(channel + at * V::LANES));
                        }
                    } else {
                        W::end(pooled[0], count).store_partial(target.add(channel), lanes);
                    }
                }
                channel += lanes;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(count: usize) -> Vec<f32> {
        let mut state = 99u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / 16_777_216.0 * 2.0 - 1.0
        };
        (0..count).map(|_| next()).collect()
    }

    /// Pooling with a window of fixed size and stride. An average with `counts_padding` counts the padding before and after the
    /// input, but not the part of a window beyond the padding.
    #[derive(Clone, Copy, Debug)]
    struct WindowParams {
        batch: usize,
        input: [usize; 3],
        output: [usize; 3],
        channels: usize,
        kernel: [usize; 3],
        stride: [usize; 3],
        before: [usize; 3],
        after: [usize; 3],
    }

    impl WindowParams {
        fn windows(&self) -> [Vec<WindowRange>; 3] {
            [0, 1, 2].map(|axis: usize| {
                let window = |at: usize| {
                    let first = at * self.stride[axis];
                    let (start, end) = (self.before[axis], self.before[axis] + self.input[axis]);
                    let last = (first + self.kernel[axis]).min(end + self.after[axis]);
                    let inside = first.clamp(start, end) - start..last.clamp(start, end) - start;
                    (inside.start..inside.end.max(inside.start), last.saturating_sub(first))
                };
                (0..self.output[axis]).map(window).collect()
            })
        }
    }

    fn reference(pooling: Pooling, extents: &WindowParams, input: &[f32]) -> Vec<f64> {
        let mut output = vec![];
        let [in_depth, in_height, in_width] = extents.input;
        let [depth, height, width] = extents.output;
        for at in 0..extents.batch * depth * height * width * extents.channels {
            let channel = at % extents.channels;
            let pixel = at / extents.channels;
            let place = [pixel / width / height % depth, pixel / width % height, pixel % width];
            let image = pixel / width / height / depth;
            let mut elements = vec![];
            let mut padded = 0;
            let taps = extents.kernel;
            for tap in 0..taps.iter().product() {
                let tap = [tap / taps[1] / taps[2], tap / taps[2] % taps[1], tap % taps[2]];
                let at = |axis: usize| {
                    (place[axis] * extents.stride[axis] + tap[axis]) as isize
                        - extents.before[axis] as isize
                };
                let beyond_padding = (0..3)
                    .any(|axis| at(axis) >= (extents.input[axis] + extents.after[axis]) as isize);
                padded += usize::from(!beyond_padding);
                if (0..3).all(|axis| (0..extents.input[axis] as isize).contains(&at(axis))) {
                    let [z, y, x] = [at(0), at(1), at(2)].map(|at| at as usize);
                    let pixel = ((image * in_depth + z) * in_height + y) * in_width + x;
                    elements.push(f64::from(input[pixel * extents.channels + channel]));
                }
            }
            output.push(match pooling {
                Pooling::Max if elements.iter().any(|x| x.is_nan()) => f64::NAN,
                Pooling::Max => elements.iter().copied().fold(f64::NEG_INFINITY, f64::max),
                Pooling::Average { counts_padding } => {
                    let count = if counts_padding { padded } else { elements.len() };
                    elements.iter().sum::<f64>() / count.max(1) as f64
                }
                Pooling::L2 => elements.iter().map(|x| x * x).sum::<f64>().sqrt(),
            });
        }
        output
    }

    #[test]
    fn pooling_matches_definition() {
        let base = WindowParams {
            batch: 1,
            input: [1, 1, 5],
            output: [1, 1, 3],
            channels: 3,
            kernel: [1, 1, 2],
            stride: [1, 1, 2],
            before: [0; 3],
            after: [0; 3],
        };
        let mut cases = vec![
            base,
            WindowParams { channels: 0, ..base },
            WindowParams { output: [0, 1, 3], ..base },
            WindowParams {
                batch: 2,
                input: [1, 4, 5],
                output: [1, 3, 3],
                channels: 17,
                kernel: [1, 3, 3],
                stride: [1, 2, 2],
                before: [0, 1, 1],
                after: [0, 0, 1],
            },
            WindowParams {
                input: [3, 4, 2],
                output: [2, 2, 2],
                kernel: [2, 3, 2],
                stride: [1, 2, 1],
                before: [0, 1, 1],
                after: [0, 0, 0],
                ..base
            },
        ];
        if !cfg!(miri) {
            cases.extend([
                WindowParams {
                    input: [1, 28, 29],
                    output: [1, 14, 15],
                    channels: 64,
                    kernel: [1, 3, 3],
                    stride: [1, 2, 2],
                    before: [0, 1, 1],
                    after: [0, 1, 1],
                    ..base
                },
                // Some windows contain only padding.
                WindowParams {
                    input: [1, 1, 3],
                    output: [1, 1, 4],
                    stride: [1, 1, 3],
                    before: [0, 0, 4],
                    after: [0, 0, 6],
                    ..base
                },
                WindowParams {
                    input: [1, 7, 7],
                    output: [1, 1, 1],
                    channels: 100,
                    kernel: [1, 7, 7],
                    ..base
                },
            ]);
        }
        for extents in cases {
            let mut input =
                numbers(extents.batch * extents.input.iter().product::<usize>() * extents.channels);
            if input.len() > 7 {
                input[5] = f32::NAN;
                input[6] = f32::NEG_INFINITY;
            }
            let length =
                extents.batch * extents.output.iter().product::<usize>() * extents.channels;
            let windows = extents.windows();
            let [planes, lines, columns] = &windows;
            let WindowParams { batch, input: size, channels, .. } = extents;
            let windows = [&planes[..], &lines[..], &columns[..]];
            let given = PoolingExtents { batch, input: size, windows, channels };
            for isa in Isa::available() {
                for threads in [1, 3] {
                    let pool = Pool::new(threads);
                    for pooling in [
                        Pooling::Max,
                        Pooling::Average { counts_padding: false },
                        Pooling::Average { counts_padding: true },
                        Pooling::L2,
                    ] {
                        let mut output = vec![9.0; length];
                        pool_windows(isa, &pool, pooling, &given, &input, &mut output);
                        let expected = reference(pooling, &extents, &input);
                        for (at, (&result, &expected)) in output.iter().zip(&expected).enumerate() {
                            assert!(
                                (f64::from(result) - expected).abs() < 1e-5
                                    || f64::from(result) == expected
                                    || result.is_nan() && expected.is_nan(),
                                "{isa} {pooling:?} {extents:?} at {at}: {result}, not {expected}"
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn l2_pooling_avoids_premature_overflow() {
        let windows: [&[WindowRange]; 3] = [&[(0..1, 1)], &[(0..1, 1)], &[(0..3, 3)]];
        let extents = PoolingExtents { batch: 1, input: [1, 1, 3], windows, channels: 4 };
        let (large, infinite) = (1e30, f32::INFINITY);
        let input = [large, 0.0, infinite, 1e-30, large, 0.0, infinite, 1e-30, 0.0, 0.0, 1.0, 0.0];
        for isa in Isa::available() {
            let mut output = [0.0; 4];
            pool_windows(isa, &Pool::new(1), Pooling::L2, &extents, &input, &mut output);
            let expected = [large * 2f32.sqrt(), 0.0, infinite, 1e-30 * 2f32.sqrt()];
            for (result, expected) in output.into_iter().zip(expected) {
                assert!(
                    (result / expected - 1.0).abs() < 1e-6 || result == expected,
                    "{isa} {result}"
                );
            }
        }
    }

    #[test]
    fn computes_global_average() {
        let mut output = [0.0; 4];
        let input = [1.0, 2.0, 3.0, 6.0, -1.0, 0.0, 5.0, 0.0];
        for isa in Isa::available() {
            global_average(isa, &Pool::new(1), [2, 2, 2], &input, &mut output);
            assert_eq!(output, [2.0, 4.0, 2.0, 0.0]);
        }
    }
}
