//! Fourier transforms of any length.

use std::f64::consts::TAU;

use super::arguments::float_output;
use super::complex::{parts_of, put};
use super::{Arguments, Kernel, kernel};
use crate::error::{Result, ensure};
use crate::view::{OutTensor, dense};

pub(super) const TABLE: &[Kernel] = &[
    kernel("aten::_fft_c2r.out", "TNII>T", complex_to_real),
    kernel("aten::_fft_r2c.out", "TNIB>T", real_to_complex),
];

type Complex = [f64; 2];

fn times(a: Complex, b: Complex) -> Complex {
    [a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]]
}

/// Transforms in place. `sign` is -1 for the forward and 1 for the backward transform.
///
/// Powers of two use radix-2 steps. Other lengths are computed as a convolution of such a length (Bluestein's
/// algorithm).
fn transform(elements: &mut [Complex], sign: f64) {
    let length = elements.len();
    if length < 2 {
        return;
    }
    if length.is_power_of_two() {
        return transform_power_of_two(elements, sign);
    }
    let chirp: Vec<Complex> = (0..length)
        .map(|index| {
            // Reducing the square modulo twice the length keeps the angle exact.
            let square = (index as u128 * index as u128 % (2 * length as u128)) as f64;
            let angle = sign * TAU * square / (2 * length) as f64;
            [angle.cos(), angle.sin()]
        })
        .collect();
    let padded = (2 * length - 1).next_power_of_two();
    let mut left = vec![[0.0; 2]; padded];
    let mut right = vec![[0.0; 2]; padded];
    for (index, chirp) in chirp.iter().enumerate() {
        left[index] = times(elements[index], *chirp);
        let conjugate = [chirp[0], -chirp[1]];
        right[index] = conjugate;
        right[(padded - index) % padded] = conjugate;
    }
    transform_power_of_two(&mut left, -1.0);
    transform_power_of_two(&mut right, -1.0);
    for (left, right) in left.iter_mut().zip(&right) {
        *left = times(*left, *right);
    }
    transform_power_of_two(&mut left, 1.0);
    for (index, chirp) in chirp.iter().enumerate() {
        let [real, imaginary] = times(left[index], *chirp);
        elements[index] = [real / padded as f64, imaginary / padded as f64];
    }
}

fn transform_power_of_two(elements: &mut [Complex], sign: f64) {
    let length = elements.len();
    let bits = length.trailing_zeros();
    for index in 0..length {
        let other = index.reverse_bits() >> (usize::BITS - bits);
        if index < other {
            elements.swap(index, other);
        }
    }
    let mut half = 1;
    while half < length {
        let turns: Vec<Complex> = (0..half)
            .map(|index| {
                let angle = sign * TAU * index as f64 / (2 * half) as f64;
                [angle.cos(), angle.sin()]
            })
            .collect();
        for block in elements.chunks_exact_mut(2 * half) {
            let (low, high) = block.split_at_mut(half);
            for ((low, high), turn) in low.iter_mut().zip(high).zip(&turns) {
                let turned = times(*high, *turn);
                *high = [low[0] - turned[0], low[1] - turned[1]];
                *low = [low[0] + turned[0], low[1] + turned[1]];
            }
        }
        half *= 2;
    }
}

/// Transforms a contiguous tensor along an axis.
fn transform_axis(elements: &mut [Complex], sizes: &[usize], axis: usize, sign: f64) {
    let (length, step) = (sizes[axis], dense(sizes)[axis]);
    let mut line = vec![[0.0; 2]; length];
    for start in 0..elements.len() {
        if start / step % length != 0 {
            continue;
        }
        for (index, element) in line.iter_mut().enumerate() {
            *element = elements[start + index * step];
        }
        transform(&mut line, sign);
        for (index, element) in line.iter().enumerate() {
            elements[start + index * step] = *element;
        }
    }
}

/// Normalization factor: 1 for mode 0, one over the square root of the element count for 1, one over the count
/// for 2.
fn factor(normalization: i64, count: f64) -> Result<f64> {
    Ok(match normalization {
        0 => 1.0,
        1 => 1.0 / count.sqrt(),
        2 => 1.0 / count,
        _ => crate::error::fail!("`normalization` must be 0, 1 or 2, got {normalization}"),
    })
}

fn axes(x: &Arguments, rank: usize) -> Result<Vec<usize>> {
    let dims = x.ints(1)?;
    ensure!(!dims.is_empty() && rank > 0, "expected at least one dimension to transform");
    let mut axes = Vec::new();
    for &dim in dims {
        let axis = crate::view::wrap_dimension(dim, rank)?;
        ensure!(!axes.contains(&axis), "dimension {axis} is repeated");
        axes.push(axis);
    }
    Ok(axes)
}

/// With `onesided`, the result has the non-redundant half of the spectrum along the last axis.
fn real_to_complex(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let view = x.tensor(0)?;
    let axes = axes(x, view.rank())?;
    let (normalization, onesided) = (x.int(2)?, x.bool(3)?);
    crate::number::Compute::of(view.dtype)?;
    let last = axes[axes.len() - 1];
    let mut sizes = view.sizes.to_vec();
    if onesided {
        sizes[last] = sizes[last] / 2 + 1;
    }
    out[0].resize(&sizes)?;
    if view.count() == 0 {
        return Ok(());
    }
    let mut elements: Vec<Complex> =
        view.contiguous::<f64>().into_iter().map(|real| [real, 0.0]).collect();
    for &axis in &axes {
        transform_axis(&mut elements, view.sizes, axis, -1.0);
    }
    let count: f64 = axes.iter().map(|axis| view.sizes[*axis] as f64).product();
    let factor = factor(normalization, count)?;
    let mut results = Vec::with_capacity(out[0].count());
    crate::view::walk(&sizes, &dense(view.sizes), |place| {
        results.push(elements[place].map(|part| part * factor));
    });
    put(&results, &mut out[0])
}

/// The missing half of the spectrum along the last axis is the conjugate mirror image.
fn complex_to_real(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let view = x.tensor(0)?;
    let axes = axes(x, view.rank())?;
    let (normalization, length) = (x.int(2)?, x.int(3)?);
    float_output(&out[0])?;
    let last = axes[axes.len() - 1];
    let length = usize::try_from(length).unwrap_or(0);
    ensure!(
        length > 0 && view.sizes[last] > length / 2,
        "dimension {last} has {} elements; an output length of {length} requires {}",
        view.sizes[last],
        length / 2 + 1
    );
    let mut sizes = view.sizes.to_vec();
    sizes[last] = length;
    out[0].resize(&sizes)?;
    if out[0].count() == 0 {
        return Ok(());
    }
    let mut elements = parts_of(view)?;
    for &axis in &axes[..axes.len() - 1] {
        transform_axis(&mut elements, view.sizes, axis, 1.0);
    }
    let count: f64 = axes.iter().map(|axis| sizes[*axis] as f64).product();
    let factor = factor(normalization, count)?;
    let (from, to) = (dense(view.sizes)[last], dense(&sizes)[last]);
    let mut results = vec![0.0; out[0].count()];
    let mut line = vec![[0.0; 2]; length];
    for outer in 0..results.len() / (length * to) {
        for inner in 0..to {
            for (index, element) in line.iter_mut().enumerate() {
                let mirrored = index > length / 2;
                let source = if mirrored { length - index } else { index };
                let found = elements[outer * view.sizes[last] * from + source * from + inner];
                *element = if mirrored { [found[0], -found[1]] } else { found };
            }
            // The bins that mirror themselves are real.
            line[0][1] = 0.0;
            if length % 2 == 0 {
                line[length / 2][1] = 0.0;
            }
            transform(&mut line, 1.0);
            for (index, element) in line.iter().enumerate() {
                results[outer * length * to + index * to + inner] = element[0] * factor;
            }
        }
    }
    out[0].put_contiguous(&results);
    Ok(())
}
