//! Elementwise functions on codes, and pooling.
//!
//! These are plain loops, compiled for each instruction set.

use std::ops::Range;

use super::Sum;
use crate::Pool;
use crate::shared::SharedMut;
use coremill_simd::Isa;

/// A lookup table with a result for each code.
pub type Table = [u8; 256];

/// Minimum number of elements for a task.
const GRAIN: usize = 1 << 14;

/// Defines functions as loops that are compiled for each instruction set. The first argument selects the
/// instruction set.
macro_rules! loops {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)*) => {
        $(
            $(#[$doc])*
            fn $name(isa: Isa, $($argument: $type),*) {
                #[inline(always)]
                fn plain($($argument: $type),*) $body
                #[cfg(all(target_arch = "x86_64", not(miri)))]
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
                fn avx512($($argument: $type),*) {
                    plain($($argument),*);
                }
                #[cfg(all(target_arch = "x86_64", not(miri)))]
                #[target_feature(enable = "avx2,fma,f16c")]
                fn avx2($($argument: $type),*) {
                    plain($($argument),*);
                }
                match isa {
                    // SAFETY: callers of this module checked that the machine supports the instruction set.
                    #[cfg(all(target_arch = "x86_64", not(miri)))]
                    #[expect(unsafe_code, reason = "the required instructions are available")]
                    Isa::Avx512 => unsafe { avx512($($argument),*) },
                    // SAFETY: as above.
                    #[cfg(all(target_arch = "x86_64", not(miri)))]
                    #[expect(unsafe_code, reason = "the required instructions are available")]
                    Isa::Avx2 => unsafe { avx2($($argument),*) },
                    _ => plain($($argument),*),
                }
            }
        )*
    };
}

/// Converts to an integer, clamped to 0 to 255.
#[inline(always)]
fn byte(value: f32) -> u8 {
    // SAFETY: the clamped value fits `i32`, and `max` turns NaN into 0.
    #[expect(unsafe_code, reason = "a saturating cast is not compiled to vectors")]
    unsafe {
        value.max(0.0).min(255.0).to_int_unchecked::<i32>() as u8
    }
}

loops! {
    fn quantize_some(source: &[f32], target: &mut [u8], scale: f32, zero: f32, low: f32, none: f32) {
        for (to, x) in target.iter_mut().zip(source) {
            let steps = (x / scale).round_ties_even() + zero;
            let code = steps.max(low).min(low + 255.0) - low;
            *to = byte(if x.is_nan() { none } else { code });
        }
    }

    fn zip_three(first: &[u8], second: &[u8], third: &[u8], target: &mut [u8]) {
        let sources = first.iter().zip(second).zip(third);
        for (to, ((&a, &b), &c)) in target.as_chunks_mut::<3>().0.iter_mut().zip(sources) {
            *to = [a, b, c];
        }
    }

    fn zip_four(first: &[u8], second: &[u8], third: &[u8], fourth: &[u8], target: &mut [u8]) {
        let sources = first.iter().zip(second).zip(third.iter().zip(fourth));
        for (to, ((&a, &b), (&c, &d))) in target.as_chunks_mut::<4>().0.iter_mut().zip(sources) {
            *to = [a, b, c, d];
        }
    }

    fn dequantize_some(source: &[u8], target: &mut [f32], scale: f32, zero: i32) {
        for (to, &code) in target.iter_mut().zip(source) {
            *to = scale * (i32::from(code) - zero) as f32;
        }
    }

    fn add_some(left: &[u8], right: &[u8], target: &mut [u8], left_zero: i32, zero: f32, sum: Sum) {
        for ((to, &left), &right) in target.iter_mut().zip(left).zip(right) {
            let left = (i32::from(left) - left_zero) as f32;
            let both = left * sum.factor + (f32::from(right) * sum.other_factor + sum.shift);
            *to = byte(both.max(sum.low).min(sum.high).round_ties_even() + zero);
        }
    }

    fn multiply_some(
        left: &[u8],
        right: &[u8],
        target: &mut [u8],
        left_zero: i32,
        right_zero: i32,
        zero: f32,
        scaling: Multiple,
    ) {
        for ((to, &left), &right) in target.iter_mut().zip(left).zip(right) {
            let product = (i32::from(left) - left_zero) * (i32::from(right) - right_zero);
            let scaled = product as f32 * scaling.factor;
            *to = byte(scaled.max(scaling.low).min(scaling.high).round_ties_even() + zero);
        }
    }

    fn larger(source: &[u8], target: &mut [u8]) {
        for (to, &code) in target.iter_mut().zip(source) {
            *to = (*to).max(code);
        }
    }

    fn count_up(source: &[u8], sums: &mut [u32]) {
        for (sum, &code) in sums.iter_mut().zip(source) {
            *sum += u32::from(code);
        }
    }

    fn scale_sums(sums: &[u32], target: &mut [f32], scale: f32, shift: f32) {
        for (to, &sum) in target.iter_mut().zip(sums) {
            *to = sum as f32 * scale + shift;
        }
    }
}

/// Parameters for quantizing floats.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Steps {
    /// Size of a quantization step.
    pub scale: f32,
    /// The code of zero, relative to the lowest code.
    pub zero: u8,
    /// Whether the program declares the codes as signed, with -128 as the lowest.
    pub signed: bool,
}

impl Steps {
    /// The lowest code in the program's type.
    fn low(&self) -> f32 {
        if self.signed { -128.0 } else { 0.0 }
    }

    fn some(&self, isa: Isa, source: &[f32], target: &mut [u8]) {
        let low = self.low();
        // NaN becomes the code 0 in the program's type.
        let none = if self.signed { 128.0 } else { 0.0 };
        quantize_some(isa, source, target, self.scale, f32::from(self.zero) + low, low, none);
    }
}

/// Quantizes floats to codes.
///
/// # Panics
/// Panics if the target is too short or the machine does not support the instruction set.
pub fn quantize(isa: Isa, pool: &Pool, steps: Steps, source: &[f32], target: &mut [u8]) {
    each(isa, pool, source.len(), &mut target[..source.len()], |range, target| {
        steps.some(isa, &source[range], target);
    });
}

/// Quantizes floats `[images, channels, pixels]` to codes with the channels last.
///
/// # Panics
/// Panics if a length does not match the sizes or the machine does not support the instruction set.
pub fn quantize_to_last(
    isa: Isa,
    pool: &Pool,
    steps: Steps,
    [images, channels, pixels]: [usize; 3],
    source: &[f32],
    target: &mut [u8],
) {
    assert!(isa.is_available(), "this machine does not support {isa}");
    assert_eq!(
        source.len(),
        images * channels * pixels,
        "the number of floats does not match the sizes"
    );
    const BLOCK: usize = 256;
    const LINES: usize = 4;
    let blocks = pixels.div_ceil(BLOCK);
    let target = SharedMut::new(&mut target[..source.len()]);
    pool.run(images * blocks, |task| {
        let (image, first) = (task / blocks, task % blocks * BLOCK);
        let count = BLOCK.min(pixels - first);
        let start = (image * pixels + first) * channels;
        // SAFETY: no two tasks have the same pixels.
        #[expect(unsafe_code, reason = "tasks write to disjoint parts of a slice")]
        let target = unsafe { target.part(start..start + count * channels) };
        for first_channel in (0..channels).step_by(LINES) {
            let mut lines = [[0; BLOCK]; LINES];
            let some = LINES.min(channels - first_channel);
            for (at, line) in lines.iter_mut().enumerate().take(some) {
                let from = (image * channels + first_channel + at) * pixels + first;
                steps.some(isa, &source[from..from + count], &mut line[..count]);
            }
            // Images have one, three or four channels.
            let [a, b, c, d] = &lines;
            match channels {
                1 => target.copy_from_slice(&a[..count]),
                3 => zip_three(isa, a, b, c, target),
                4 => zip_four(isa, a, b, c, d, target),
                _ => {
                    for (pixel, target) in target.chunks_exact_mut(channels).enumerate() {
                        for (line, to) in lines.iter().zip(&mut target[first_channel..][..some]) {
                            *to = line[pixel];
                        }
                    }
                }
            }
        }
    });
}

/// Dequantizes codes to floats.
///
/// # Panics
/// Panics if there are fewer codes than floats or the machine does not support the instruction set.
pub fn dequantize(isa: Isa, pool: &Pool, scale: f32, zero: u8, source: &[u8], target: &mut [f32]) {
    each(isa, pool, target.len(), target, |range, target| {
        dequantize_some(isa, &source[range], target, scale, i32::from(zero));
    });
}

/// Maps each code by a lookup table.
///
/// # Panics
/// Panics if the lengths differ.
pub fn look_up(pool: &Pool, table: &Table, source: &[u8], target: &mut [u8]) {
    each(Isa::Portable, pool, source.len(), &mut target[..source.len()], |range, target| {
        for (to, &code) in target.iter_mut().zip(&source[range]) {
            *to = table[usize::from(code)];
        }
    });
}

/// Adds the codes of two tensors. `left_zero` is the code of zero in the left tensor, `zero` that in the
/// result.
///
/// # Panics
/// Panics if the lengths differ or the machine does not support the instruction set.
pub fn add(
    isa: Isa,
    pool: &Pool,
    (left, left_zero): (&[u8], u8),
    right: &[u8],
    sum: &Sum,
    target: &mut [u8],
    zero: u8,
) {
    assert!(left.len() == target.len() && right.len() == target.len(), "the lengths must be equal");
    each(isa, pool, target.len(), target, |range, target| {
        let (left, right) = (&left[range.clone()], &right[range]);
        add_some(isa, left, right, target, i32::from(left_zero), f32::from(zero), *sum);
    });
}

/// Multiplication of two codes: `(left - left_zero) · (right - right_zero) · factor`, clamped to integer
/// bounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Multiple {
    /// Factor of the products.
    pub factor: f32,
    /// Lower bound of the results.
    pub low: f32,
    /// Upper bound of the results.
    pub high: f32,
}

/// Multiplies codes `[images, pixels, channels]` by codes `[images, channels]`. Each tensor comes with its
/// code of zero; `zero` is the code of zero in the result. To multiply tensors of the same shape, pass them
/// as one image with one pixel.
///
/// # Panics
/// Panics if a length does not match the sizes or the machine does not support the instruction set.
pub fn times(
    isa: Isa,
    pool: &Pool,
    [images, pixels, channels]: [usize; 3],
    (left, left_zero): (&[u8], u8),
    (right, right_zero): (&[u8], u8),
    scaling: &Multiple,
    target: &mut [u8],
    zero: u8,
) {
    assert!(isa.is_available(), "this machine does not support {isa}");
    assert_eq!(left.len(), target.len(), "the lengths must be equal");
    assert_eq!(
        left.len(),
        images * pixels * channels,
        "the number of codes does not match the sizes"
    );
    assert_eq!(right.len(), images * channels, "the number of codes does not match the sizes");
    let (left_zero, right_zero) = (i32::from(left_zero), i32::from(right_zero));
    let part = channels.min(GRAIN);
    let parts = channels.div_ceil(part.max(1));
    let target = SharedMut::new(target);
    pool.run_ranges(images * pixels * parts, (GRAIN / part.max(1)).max(1), |tasks| {
        for task in tasks {
            let (row, first) = (task / parts, task % parts * part);
            let last = channels.min(first + part);
            let (at, factors) = (row * channels, row / pixels * channels);
            // SAFETY: no two tasks have the same elements.
            #[expect(unsafe_code, reason = "tasks write to disjoint parts of a slice")]
            let target = unsafe { target.part(at + first..at + last) };
            let (left, right) =
                (&left[at + first..at + last], &right[factors + first..factors + last]);
            multiply_some(
                isa,
                left,
                right,
                target,
                left_zero,
                right_zero,
                f32::from(zero),
                *scaling,
            );
        }
    });
}

/// Concatenates codes: `rows` times a run of each source, mapped by the source's table if it has one.
///
/// # Panics
/// Panics if a source is too short, or if the target is too short.
pub fn join(
    pool: &Pool,
    rows: usize,
    sources: &[(&[u8], usize, Option<&Table>)],
    target: &mut [u8],
) {
    let row: usize = sources.iter().map(|(_, run, _)| run).sum();
    let target = SharedMut::new(&mut target[..rows * row]);
    pool.run_ranges(rows, (GRAIN / row.max(1)).max(1), |rows| {
        for at in rows {
            // SAFETY: no two tasks have the same row.
            #[expect(unsafe_code, reason = "tasks write to disjoint parts of a slice")]
            let mut target = unsafe { target.part(at * row..(at + 1) * row) };
            for (source, run, table) in sources {
                let source = &source[at * run..(at + 1) * run];
                let (to, rest) = target.split_at_mut(*run);
                match table {
                    None => to.copy_from_slice(source),
                    Some(table) => {
                        for (to, &code) in to.iter_mut().zip(source) {
                            *to = table[usize::from(code)];
                        }
                    }
                }
                target = rest;
            }
        }
    });
}

/// Max pooling of images `[images, planes, lines, columns, channels]`. `windows` contains, for each axis, the
/// range of each window.
///
/// # Panics
/// Panics if a length does not match the sizes or the machine does not support the instruction set.
pub fn maximum(
    isa: Isa,
    pool: &Pool,
    (images, input, channels): (usize, [usize; 3], usize),
    windows: [&[Range<usize>]; 3],
    source: &[u8],
    target: &mut [u8],
) {
    assert!(isa.is_available(), "this machine does not support {isa}");
    let [planes, lines, columns] = windows;
    let line = columns.len() * channels;
    let rows = images * planes.len() * lines.len();
    assert!(
        source.len() >= images * input.iter().product::<usize>() * channels,
        "the source is too short"
    );
    let target = SharedMut::new(&mut target[..rows * line]);
    pool.run(rows, |row| {
        // SAFETY: no two tasks have the same line.
        #[expect(unsafe_code, reason = "tasks write to disjoint parts of a slice")]
        let target = unsafe { target.part(row * line..(row + 1) * line) };
        let (image, y) = (row / lines.len() / planes.len(), &lines[row % lines.len()]);
        let z = &planes[row / lines.len() % planes.len()];
        target.fill(0);
        for (x, target) in columns.iter().zip(target.chunks_exact_mut(channels)) {
            for z in z.clone() {
                for y in y.clone() {
                    let start = ((image * input[0] + z) * input[1] + y) * input[2];
                    for x in x.clone() {
                        larger(isa, &source[(start + x) * channels..][..channels], target);
                    }
                }
            }
        }
    });
}

/// The mean of each channel of images `[images, pixels, channels]`, minus `zero` and times `scale`.
///
/// # Panics
/// Panics if a length does not match the sizes or the machine does not support the instruction set.
pub fn mean(
    isa: Isa,
    pool: &Pool,
    [images, pixels, channels]: [usize; 3],
    (scale, zero): (f32, u8),
    source: &[u8],
    target: &mut [f32],
) {
    assert!(isa.is_available(), "this machine does not support {isa}");
    assert_eq!(target.len(), images * channels, "the number of means does not match the sizes");
    const BLOCK: usize = 256;
    let blocks = channels.div_ceil(BLOCK);
    let target = SharedMut::new(target);
    pool.run(images * blocks, |task| {
        let (image, first) = (task / blocks, task % blocks * BLOCK);
        let count = BLOCK.min(channels - first);
        let mut sums = [0; BLOCK];
        for pixel in 0..pixels {
            let from = (image * pixels + pixel) * channels + first;
            count_up(isa, &source[from..from + count], &mut sums[..count]);
        }
        let start = image * channels + first;
        // SAFETY: no two tasks have the same channels.
        #[expect(unsafe_code, reason = "tasks write to disjoint parts of a slice")]
        let target = unsafe { target.part(start..start + count) };
        scale_sums(isa, &sums[..count], target, scale / pixels as f32, -scale * f32::from(zero));
    });
}

/// Transposes a tensor of codes: axis `n` of the result is axis `axes[n]` of the source.
///
/// # Panics
/// Panics if a length does not match the shape.
pub fn permute(pool: &Pool, source: &[u8], shape: &[usize], axes: &[usize], target: &mut [u8]) {
    let mut strides = vec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis];
    }
    let (extents, steps): (Vec<_>, Vec<_>) =
        axes.iter().map(|&axis| (shape[axis], strides[axis])).unzip();
    let count: usize = shape.iter().product();
    let (Some((&inner, outer)), Some(&step)) = (extents.split_last(), steps.last()) else {
        target[..count].copy_from_slice(&source[..count]);
        return;
    };
    let rows = outer.iter().product::<usize>();
    let target = SharedMut::new(&mut target[..count]);
    pool.run_ranges(rows, (GRAIN / inner.max(1)).max(1), |rows| {
        for row in rows {
            let (mut at, mut rest) = (0, row);
            for (&extent, &step) in outer.iter().zip(&steps).rev() {
                at += rest % extent * step;
                rest /= extent;
            }
            // SAFETY: no two tasks have the same row.
            #[expect(unsafe_code, reason = "tasks write to disjoint parts of a slice")]
            let target = unsafe { target.part(row * inner..(row + 1) * inner) };
            for (to, code) in target.iter_mut().zip(source[at..].iter().step_by(step.max(1))) {
                *to = *code;
            }
        }
    });
}

/// Calls the body for disjoint ranges of the target.
fn each<T: Send>(
    isa: Isa,
    pool: &Pool,
    count: usize,
    target: &mut [T],
    body: impl Fn(Range<usize>, &mut [T]) + Sync,
) {
    assert!(isa.is_available(), "this machine does not support {isa}");
    let target = SharedMut::new(target);
    pool.run_ranges(count, GRAIN, |range| {
        // SAFETY: ranges do not overlap.
        #[expect(unsafe_code, reason = "tasks write to disjoint parts of a slice")]
        let target = unsafe { target.part(range.clone()) };
        body(range, target);
    });
}
