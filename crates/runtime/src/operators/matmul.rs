//! Matrix products.

use std::borrow::Cow;

use coremill_kernels::matmul::{Batch, BatchMut, BatchShape, Epilogue, multiply_batch};
use coremill_pte::program::ScalarType;

use super::arguments::same_type;
use super::map::map;
use super::{Arguments, Kernel, Machine, kernel};
use crate::error::{Result, ensure, fail};
use crate::number::{Compute, Number, compute, is_complex};
use crate::view::{OutTensor, View, broadcast_strides};

pub(super) const TABLE: &[Kernel] = &[
    kernel("aten::addmm.out", "TTTSS>T", gemm_reference),
    kernel("aten::bmm.out", "TT>T", batch_product),
    kernel("aten::linear.out", "TTt>T", linear),
    kernel("aten::mm.out", "TT>T", product),
];

/// The elements of a tensor as floats, borrowed if possible.
pub(super) fn floats<'a>(view: View<'a>) -> Cow<'a, [f32]> {
    match bytemuck::try_cast_slice(view.bytes) {
        Ok(floats) if view.dtype == ScalarType::Float && view.is_contiguous() => floats.into(),
        _ => view.contiguous().into(),
    }
}

/// Sizes of a batch of matrix products, and whether the right matrix is transposed.
#[derive(Clone, Copy)]
struct Extents {
    batch: usize,
    rows: usize,
    inner: usize,
    columns: usize,
    transposed: bool,
}

/// Products of contiguous matrices.
fn multiply<N: Number>(extents: Extents, left: &[N], right: &[N]) -> Vec<N> {
    let Extents { batch, rows, inner, columns, transposed } = extents;
    let mut results = Vec::with_capacity(batch * rows * columns);
    for matrix in 0..batch {
        for row in 0..rows {
            let left = &left[(matrix * rows + row) * inner..][..inner];
            for column in 0..columns {
                let right = |depth: usize| {
                    let within =
                        if transposed { column * inner + depth } else { depth * columns + column };
                    right[matrix * inner * columns + within]
                };
                let terms = left.iter().enumerate();
                results.push(
                    terms.fold(N::ZERO, |sum, (depth, left)| sum.add(left.multiply(right(depth)))),
                );
            }
        }
    }
    results
}

fn multiply_floats(
    machine: &Machine,
    extents: Extents,
    left: View,
    right: View,
    bias: Option<&[f32]>,
    results: &mut [f32],
) {
    let Extents { batch, rows, inner, columns, transposed } = extents;
    let epilogue = Epilogue { bias, ..Epilogue::default() };
    if inner == 0 {
        for (index, result) in results.iter_mut().enumerate() {
            *result = bias.map_or(0.0, |bias| bias[index % columns]);
        }
        return;
    }
    multiply_batch(
        &machine.pool,
        machine.isa,
        BatchShape { batch: [1, batch], rows, inputs: inner, outputs: columns },
        1.0,
        Batch { elements: &floats(left), batch_strides: [0, rows * inner], strides: [inner, 1] },
        Batch {
            elements: &floats(right),
            batch_strides: [0, inner * columns],
            strides: if transposed { [1, inner] } else { [columns, 1] },
        },
        BatchMut { elements: results, batch_strides: [0, rows * columns], stride: columns },
        &epilogue,
    );
}

/// Multiplies matrices of any type. The output is already resized.
fn multiply_into(
    x: &Arguments,
    extents: Extents,
    left: View,
    right: View,
    bias: Option<View>,
    out: &mut OutTensor,
) -> Result {
    if out.count() == 0 {
        return Ok(());
    }
    if is_complex(out.dtype) {
        ensure!(bias.is_none(), "a bias is not supported for complex tensors");
        return multiply_complex(extents, left, right, out);
    }
    let compute = Compute::of(left.dtype)?;
    if compute == Compute::F32 {
        let bias = bias.map(floats);
        let is_plain = out.dtype == ScalarType::Float && out.is_contiguous();
        if is_plain && let Ok(results) = bytemuck::try_cast_slice_mut(out.bytes()) {
            multiply_floats(x.machine, extents, left, right, bias.as_deref(), results);
            return Ok(());
        }
        let mut results = vec![0.0; out.count()];
        multiply_floats(x.machine, extents, left, right, bias.as_deref(), &mut results);
        out.put_contiguous(&results);
        return Ok(());
    }
    compute!(compute, N => {
        let mut results = multiply::<N>(extents, &left.contiguous(), &right.contiguous());
        if let Some(bias) = bias {
            let bias = bias.contiguous::<N>();
            for (index, result) in results.iter_mut().enumerate() {
                *result = result.add(bias[index % extents.columns]);
            }
        }
        out.put_contiguous(&results);
        Ok(())
    })
}

fn multiply_complex(extents: Extents, left: View, right: View, out: &mut OutTensor) -> Result {
    let Extents { batch, rows, inner, columns, .. } = extents;
    let (left, right) = (super::complex::parts_of(left)?, super::complex::parts_of(right)?);
    let mut results = Vec::with_capacity(out.count());
    for index in 0..batch * rows * columns {
        let (row, column) = (index / columns, index % columns);
        let matrix = row / rows;
        let mut sum = [0.0; 2];
        for depth in 0..inner {
            let a = left[row * inner + depth];
            let b = right[(matrix * inner + depth) * columns + column];
            sum[0] += a[0] * b[0] - a[1] * b[1];
            sum[1] += a[0] * b[1] + a[1] * b[0];
        }
        results.push(sum);
    }
    super::complex::put(&results, out)
}

fn matrices(left: View, right: View, out: &OutTensor) -> Result {
    same_type(&left, out)?;
    same_type(&right, out)
}

fn mismatch<T>(left: View, right: View) -> Result<T> {
    fail!("matrices of sizes {:?} and {:?} cannot be multiplied", left.sizes, right.sizes)
}

fn product(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let (left, right) = (x.tensor(0)?, x.tensor(1)?);
    matrices(left, right, &out[0])?;
    let ([rows, inner], [depth, columns]) = (left.sizes, right.sizes) else {
        return mismatch(left, right);
    };
    if inner != depth {
        return mismatch(left, right);
    }
    let extents =
        Extents { batch: 1, rows: *rows, inner: *inner, columns: *columns, transposed: false };
    out[0].resize(&[*rows, *columns])?;
    multiply_into(x, extents, left, right, None, &mut out[0])
}

fn batch_product(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let (left, right) = (x.tensor(0)?, x.tensor(1)?);
    matrices(left, right, &out[0])?;
    let ([batch, rows, inner], [other, depth, columns]) = (left.sizes, right.sizes) else {
        return mismatch(left, right);
    };
    if inner != depth || batch != other {
        return mismatch(left, right);
    }
    let extents =
        Extents { batch: *batch, rows: *rows, inner: *inner, columns: *columns, transposed: false };
    out[0].resize(&[*batch, *rows, *columns])?;
    multiply_into(x, extents, left, right, None, &mut out[0])
}

fn linear(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let (left, weight, bias) = (x.tensor(0)?, x.tensor(1)?, x.optional_tensor(2)?);
    matrices(left, weight, &out[0])?;
    let (Some((&inner, outer)), [columns, depth]) = (left.sizes.split_last(), weight.sizes) else {
        return mismatch(left, weight);
    };
    if inner != *depth {
        return mismatch(left, weight);
    }
    if let Some(bias) = bias {
        same_type(&bias, &out[0])?;
        ensure!(
            bias.sizes == [*columns],
            "the bias has sizes {:?}; expected [{columns}]",
            bias.sizes
        );
    }
    let rows = outer.iter().product();
    let extents = Extents { batch: 1, rows, inner, columns: *columns, transposed: true };
    let sizes: Vec<usize> = outer.iter().chain([columns]).copied().collect();
    out[0].resize(&sizes)?;
    multiply_into(x, extents, left, weight, bias, &mut out[0])
}

/// `beta · self + alpha · product`.
fn gemm_reference(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let (addend, left, right) = (x.tensor(0)?, x.tensor(1)?, x.tensor(2)?);
    let (beta, alpha) = (x.scalar(3)?, x.scalar(4)?);
    matrices(left, right, &out[0])?;
    same_type(&addend, &out[0])?;
    let ([rows, inner], [depth, columns]) = (left.sizes, right.sizes) else {
        return mismatch(left, right);
    };
    if inner != depth {
        return mismatch(left, right);
    }
    let out = &mut out[0];
    out.resize(&[*rows, *columns])?;
    broadcast_strides(&addend, &out.sizes)?;
    let extents =
        Extents { batch: 1, rows: *rows, inner: *inner, columns: *columns, transposed: false };
    let is_plain = beta.as_f64() == 1.0 && alpha.as_f64() == 1.0;
    let is_bias = matches!(addend.sizes, [size] | [1, size] if size == columns);
    if is_plain && is_bias && Compute::of(out.dtype)? == Compute::F32 {
        return multiply_into(x, extents, left, right, Some(addend), out);
    }
    // The product keeps the computation precision until the sum is rounded.
    let compute = Compute::of(out.dtype)?;
    let wide = match compute {
        Compute::F32 => ScalarType::Float,
        Compute::F64 => ScalarType::Double,
        Compute::I64 => out.dtype,
    };
    let mut memory = vec![0u64; (out.count() * crate::number::size_of(wide)).div_ceil(8)];
    let mut product = OutTensor {
        dtype: wide,
        sizes: out.sizes.clone(),
        order: &[0, 1],
        dynamic: false,
        memory: bytemuck::cast_slice_mut(&mut memory),
        grow: None,
    };
    multiply_into(x, extents, left, right, None, &mut product)?;
    compute!(compute, N => {
        let (beta, alpha) = (N::of(beta), N::of(alpha));
        map([addend, product.view()], out, |[addend, product]: [N; 2]| {
            let scaled = alpha.multiply(product);
            // As in PyTorch, the addend is ignored if `beta` is zero.
            if beta == N::ZERO { scaled } else { beta.multiply(addend).add(scaled) }
        })
    })
}
