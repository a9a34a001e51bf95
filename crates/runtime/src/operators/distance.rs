//! Distances between vectors, and triangular matrices.

use super::arguments::{float_output, same_type};
use super::{Arguments, Kernel, kernel};
use crate::error::{Result, ensure, fail};
use crate::number::{Compute, Number, compute};
use crate::view::{OutTensor, View, broadcast, broadcast_strides, walk_all};

pub(super) const TABLE: &[Kernel] = &[
    kernel("aten::_cdist_forward.out", "TTDi>T", between),
    kernel("aten::_pdist_forward.out", "TD>T", within),
    kernel("aten::tril.out", "TI>T", lower_triangle),
];

/// Distance in a norm: 0 counts differing elements, infinity returns the largest difference.
fn distance(left: &[f64], right: &[f64], norm: f64) -> f64 {
    let differences = left.iter().zip(right).map(|(left, right)| (left - right).abs());
    if norm == 0.0 {
        differences.filter(|difference| *difference != 0.0).count() as f64
    } else if norm == 1.0 {
        differences.sum()
    } else if norm == 2.0 {
        differences.map(|difference| difference * difference).sum::<f64>().sqrt()
    } else if norm.is_infinite() {
        differences.fold(0.0, f64::greatest)
    } else {
        differences.map(|difference| difference.powf(norm)).sum::<f64>().powf(1.0 / norm)
    }
}

fn norm(norm: f64) -> Result<f64> {
    ensure!(norm >= 0.0, "the norm must be at least 0, got {norm}");
    Ok(norm)
}

fn between(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let (left, right) = (x.tensor(0)?, x.tensor(1)?);
    same_type(&left, &out[0])?;
    same_type(&right, &out[0])?;
    float_output(&out[0])?;
    let norm = norm(x.double(2)?)?;
    let split = |view: &View| match *view.sizes {
        [ref outer @ .., rows, columns] => Some((outer.to_vec(), rows, columns)),
        _ => None,
    };
    let (Some((lefts, rows, columns)), Some((rights, others, depth))) =
        (split(&left), split(&right))
    else {
        fail!("the tensors have sizes {:?} and {:?}; expected matrices", left.sizes, right.sizes);
    };
    ensure!(columns == depth, "the vectors must have equal lengths, got {columns} and {depth}");
    let batch = broadcast(&lefts, &rights)?;
    let sizes: Vec<usize> = batch.iter().copied().chain([rows, others]).collect();
    out[0].resize(&sizes)?;
    let (left, right) = (left.contiguous::<f64>(), right.contiguous::<f64>());
    let strides = |outer: &[usize]| -> Result<Vec<usize>> {
        let order: Vec<u8> = (0..outer.len() as u8).collect();
        let view = View { dtype: out[0].dtype, sizes: outer, order: &order, bytes: &[] };
        broadcast_strides(&view, &batch)
    };
    let (left_strides, right_strides) = (strides(&lefts)?, strides(&rights)?);
    let mut results = Vec::with_capacity(out[0].count());
    walk_all(&batch, [&left_strides, &right_strides], |[a, b]| {
        for row in 0..rows {
            let left = &left[(a * rows + row) * columns..][..columns];
            for other in 0..others {
                let right = &right[(b * others + other) * columns..][..columns];
                results.push(distance(left, right, norm));
            }
        }
    });
    out[0].put_contiguous(&results);
    Ok(())
}

fn within(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let view = x.tensor(0)?;
    same_type(&view, &out[0])?;
    float_output(&out[0])?;
    let norm = norm(x.double(1)?)?;
    let [rows, columns] = *view.sizes else {
        fail!("the tensor has sizes {:?}; expected a matrix", view.sizes);
    };
    out[0].resize(&[rows * rows.saturating_sub(1) / 2])?;
    let numbers = view.contiguous::<f64>();
    let row = |index: usize| &numbers[index * columns..][..columns];
    let mut results = Vec::with_capacity(out[0].count());
    for first in 0..rows {
        for second in first + 1..rows {
            results.push(distance(row(first), row(second), norm));
        }
    }
    out[0].put_contiguous(&results);
    Ok(())
}

fn lower_triangle(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let view = x.tensor(0)?;
    same_type(&view, &out[0])?;
    let diagonal = i128::from(x.int(1)?);
    let [.., rows, columns] = *view.sizes else {
        fail!("the tensor has sizes {:?}; expected one or more matrices", view.sizes);
    };
    out[0].resize(view.sizes)?;
    compute!(Compute::of(view.dtype)?, N => {
        let mut numbers = view.contiguous::<N>();
        for (index, number) in numbers.iter_mut().enumerate() {
            let (row, column) = (index / columns % rows, index % columns);
            if column as i128 > row as i128 + diagonal {
                *number = N::ZERO;
            }
        }
        out[0].put_contiguous(&numbers);
        Ok(())
    })
}
