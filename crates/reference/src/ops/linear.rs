//! Reference kernels of matrix products and attention.

use std::borrow::Cow;

use coremill_kernels::device::Bias;
use coremill_kernels::product::{Extents, StridedMatrix};
use coremill_tensor::DType;

use crate::array::{ElementsView, View};
use crate::call::{Call, Results, saturate_int, wrap_int};
use crate::error::{Result, fail};
use crate::geometry::{broadcast, broadcast_strides, each_offset, each_offsets};

pub(super) fn matmul(call: &Call) -> Results {
    let (x, y) = (call.tensor("x")?, call.tensor("y")?);
    let transpose_x = call.bool("transpose_x")?;
    let transpose_y = call.bool("transpose_y")?;
    if x.rank() == 0 || y.rank() < 2 || (x.rank() == 1 && transpose_x) {
        fail!(
            "`x` has rank {} and `y` rank {}; expected at least 1, not transposed if 1, and at least 2",
            x.rank(),
            y.rank()
        );
    }
    let vector = x.rank() == 1;
    let one = [1, x.shape[0]];
    let (x_batch, x_matrix) =
        if vector { (&x.shape[..0], &one[..]) } else { x.shape.split_at(x.rank() - 2) };
    let (y_batch, y_matrix) = y.shape.split_at(y.rank() - 2);
    let (rows, depth) = oriented(x_matrix, transpose_x);
    let (y_rows, columns) = oriented(y_matrix, transpose_y);
    if depth != y_rows {
        fail!("`x` has {depth} columns, but `y` has {y_rows} rows; both must be the same");
    }
    let batch = broadcast(x_batch, y_batch)?;
    let mut shape = batch.clone();
    if !vector {
        shape.push(rows);
    }
    shape.push(columns);
    let count = call.count(&shape)?;
    let extents = Extents { rows, depth, columns };

    let mut starts = Vec::new();
    if count > 0 {
        let strides = [x_batch, y_batch].map(|of| broadcast_strides(of, &batch));
        // Empty matrices were handled above; only the inner dimension may be 0.
        each_offsets(&batch, [&strides[0], &strides[1]], |[x, y]| {
            starts.push((x * rows * depth, y * depth * columns));
        });
    }
    products(call, shape, [x, y], &starts, extents, [transpose_x, transpose_y], None)
}

pub(super) fn linear(call: &Call) -> Results {
    let (x, weight) = (call.tensor("x")?, call.tensor("weight")?);
    let (Some((&depth, outer)), [columns, weight_depth]) = (x.shape.split_last(), weight.shape)
    else {
        fail!(
            "`x` has rank {} and `weight` rank {}; expected at least 1, and 2",
            x.rank(),
            weight.rank()
        );
    };
    if depth != *weight_depth {
        fail!(
            "`x` has last dimension {depth}, but `weight` has {weight_depth}; both must be the same"
        );
    }
    let bias = call.optional("bias");
    if let Some(bias) = bias.filter(|bias| bias.shape != [*columns]) {
        fail!("`bias` must have shape [{columns}], got {:?}", bias.shape);
    }
    let mut shape = outer.to_vec();
    shape.push(*columns);
    let rows = call.count(outer)?;
    let count = call.count(&shape)?;
    let starts = if count > 0 { vec![(0, 0)] } else { Vec::new() };
    let extents = Extents { rows, depth, columns: *columns };
    products(call, shape, [x, weight], &starts, extents, [false, true], bias)
}

/// Rows and columns of a matrix, after an optional transposition.
fn oriented(matrix: &[usize], transposed: bool) -> (usize, usize) {
    if transposed { (matrix[1], matrix[0]) } else { (matrix[0], matrix[1]) }
}

/// Computes one product per pair of matrix offsets, with a bias per column.
fn products(
    call: &Call,
    shape: Vec<usize>,
    factors: [View; 2],
    starts: &[(usize, usize)],
    extents: Extents,
    transposed: [bool; 2],
    bias: Option<View>,
) -> Results {
    let Extents { rows, depth, columns } = extents;
    let integers = factors.iter().chain(&bias).all(|view| !view.dtype.is_float());
    if integers {
        let [x, y] = [factors[0].ints()?, factors[1].ints()?];
        let bias = bias.map(|bias| bias.ints()).transpose()?;
        let mut output = Vec::with_capacity(call.count(&shape)?);
        let at = |row, column, [rows, columns]: [usize; 2], transposed| {
            if transposed { column * rows + row } else { row * columns + column }
        };
        for &(x_start, y_start) in starts {
            for row in 0..rows {
                for column in 0..columns {
                    let start = bias.map_or(0, |bias| i64::from(bias[column]));
                    let sum = (0..depth).fold(start, |sum, k| {
                        let x = x[x_start + at(row, k, [rows, depth], transposed[0])];
                        let y = y[y_start + at(k, column, [depth, columns], transposed[1])];
                        sum.wrapping_add(i64::from(x) * i64::from(y))
                    });
                    output.push(wrap_int(DType::Int32, sum));
                }
            }
        }
        return give(call, shape, Numbers::Ints(output));
    }
    let x = as_floats(factors[0])?;
    let y = as_floats(factors[1])?;
    let bias = bias.map(as_floats).transpose()?;
    let mut output = vec![0.0; call.count(&shape)?];
    let oriented = |elements, [rows, columns]: [usize; 2], transposed| {
        if transposed {
            StridedMatrix::dense(elements, rows).transposed()
        } else {
            StridedMatrix::dense(elements, columns)
        }
    };
    for (product, &(x_start, y_start)) in
        output.chunks_exact_mut((rows * columns).max(1)).zip(starts)
    {
        let left = oriented(&x[x_start..], [rows, depth], transposed[0]);
        let right = oriented(&y[y_start..], [depth, columns], transposed[1]);
        let bias = bias.as_deref().map_or(Bias::None, Bias::OfColumns);
        call.arithmetic.multiply(call.dtype(), product, extents, [left, right], bias);
    }
    give(call, shape, Numbers::Floats(output))
}

enum Numbers {
    Floats(Vec<f32>),
    Ints(Vec<i32>),
}

/// Converts results to the output type, which is the type of one of the factors.
fn give(call: &Call, shape: Vec<usize>, numbers: Numbers) -> Results {
    match (call.dtype().is_float(), numbers) {
        (true, Numbers::Floats(floats)) => call.give_floats(shape, floats),
        (false, Numbers::Ints(ints)) => call.give_ints(shape, ints),
        (true, Numbers::Ints(ints)) => {
            call.give_floats(shape, ints.into_iter().map(|int| int as f32).collect())
        }
        (false, Numbers::Floats(floats)) => {
            let ints = floats.into_iter().map(|x| saturate_int(call.dtype(), f64::from(x)));
            call.give_ints(shape, ints.collect())
        }
    }
}

fn as_floats(view: View<'_>) -> Result<Cow<'_, [f32]>> {
    match view.elements {
        ElementsView::Floats(floats) => Ok(floats.into()),
        ElementsView::Ints(ints) => Ok(ints.iter().map(|&int| int as f32).collect()),
        ElementsView::Texts(_) => fail!("expects numbers, found `{}`", view.dtype),
    }
}

pub(super) fn einsum(call: &Call) -> Results {
    let &[x, y] = call.all("values") else {
        fail!("`values` must have two tensors, got {}", call.all("values").len())
    };
    let equation = call.text("equation")?;
    let Some(rank) = equation_rank(equation) else {
        fail!(
            "`equation` must be `chw,whr->chr` or `nchw,nwhr->nchr`, with any letters, got `{equation}`"
        )
    };
    if x.rank() != rank || y.rank() != rank {
        fail!("`values` have rank {} and {}; expected {rank}", x.rank(), y.rank());
    }
    let with_batch = |shape: &[usize]| {
        let mut extents = [1; 4];
        extents[4 - rank..].copy_from_slice(shape);
        extents
    };
    let ([xn, c, xh, w], [yn, y_rows, yh, r]) = (with_batch(x.shape), with_batch(y.shape));
    if w != y_rows {
        fail!(
            "`values` have shapes {:?} and {:?}: {w} and {y_rows} must be equal",
            x.shape,
            y.shape
        );
    }
    let shared = broadcast(&[xn, xh], &[yn, yh])?;
    let shape = [shared[0], c, shared[1], r];
    let count = call.count(&shape)?;
    let (x, y) = (x.floats()?, y.floats()?);
    let mut output = vec![0.0; count];
    if count > 0 {
        let mut product = Vec::new();
        for n in 0..shape[0] {
            for h in 0..shape[2] {
                // Broadcast axes of size 1.
                let (x_n, x_h) = (n.min(xn - 1), h.min(xh - 1));
                let (y_n, y_h) = (n.min(yn - 1), h.min(yh - 1));
                let left = (x_n * c * xh + x_h) * w;
                let right = (y_n * w * yh + y_h) * r;
                let left =
                    StridedMatrix { elements: &x[left.min(x.len())..], rows: xh * w, columns: 1 };
                let right =
                    StridedMatrix { elements: &y[right.min(y.len())..], rows: yh * r, columns: 1 };
                product.clear();
                product.resize(c * r, 0.0);
                let extents = Extents { rows: c, depth: w, columns: r };
                let factors = [left, right];
                call.arithmetic.multiply(call.dtype(), &mut product, extents, factors, Bias::None);
                for (channel, row) in product.chunks_exact(r).enumerate() {
                    let start = ((n * c + channel) * shape[2] + h) * r;
                    output[start..start + r].copy_from_slice(row);
                }
            }
        }
    }
    call.give_floats(&shape[4 - rank..], output)
}

/// The rank of the tensors of an einsum equation. `None` if the equation is not supported.
fn equation_rank(equation: &str) -> Option<usize> {
    let (inputs, output) = equation.split_once("->")?;
    let (first, second) = inputs.split_once(',')?;
    let letters = |text: &str| text.chars().take(5).collect::<Vec<_>>();
    let (first, second, output) = (letters(first), letters(second), letters(output));
    let (batch, c, h, w) = match first[..] {
        [c, h, w] => (None, c, h, w),
        [n, c, h, w] => (Some(n), c, h, w),
        _ => return None,
    };
    let &r = second.last()?;
    let with_batch = |axes: [char; 3]| batch.into_iter().chain(axes).collect::<Vec<_>>();
    (second == with_batch([w, h, r]) && output == with_batch([c, h, r])).then_some(first.len())
}

pub(super) fn scaled_dot_product_attention(call: &Call) -> Results {
    let (query, key, value) = (call.tensor("query")?, call.tensor("key")?, call.tensor("value")?);
    let rank = query.rank();
    if rank < 3 || key.rank() != rank || value.rank() != rank {
        fail!(
            "`query`, `key` and `value` have rank {rank}, {} and {}; expected the same rank, at least 3",
            key.rank(),
            value.rank()
        );
    }
    let (batch, [targets, embedding]) = split_matrix(query.shape);
    let (key_batch, [sources, key_embedding]) = split_matrix(key.shape);
    let (value_batch, [value_sources, width]) = split_matrix(value.shape);
    if key_batch != batch
        || value_batch != batch
        || key_embedding != embedding
        || value_sources != sources
    {
        fail!(
            "`query`, `key` and `value` have shapes {:?}, {:?} and {:?}, which do not match",
            query.shape,
            key.shape,
            value.shape
        );
    }
    let mut shape = query.shape[..rank - 1].to_vec();
    shape.push(width);
    let count = call.count(&shape)?;
    let mut scores_shape = query.shape[..rank - 1].to_vec();
    scores_shape.push(sources);
    let [query, key, value] = [query.floats()?, key.floats()?, value.floats()?];
    if count == 0 {
        return call.give_floats(shape, Vec::new());
    }
    let mask = match call.optional("attn_mask") {
        Some(mask) => Some(Mask::of(mask, &scores_shape)?),
        None => None,
    };
    let score_count = call.count(&[targets, sources])?;

    let scale = (embedding as f64).sqrt();
    let (dtype, arithmetic) = (call.dtype(), call.arithmetic);
    let mut output = vec![0.0; count];
    let mut scores = Vec::new();
    for (index, output) in output.chunks_exact_mut(targets * width).enumerate() {
        let query = &query[index * targets * embedding..];
        let key = &key[index * sources * embedding..];
        let value = &value[index * sources * width..];
        scores.clear();
        scores.resize(score_count, 0.0);
        let extents = Extents { rows: targets, depth: embedding, columns: sources };
        let key = StridedMatrix::dense(key, embedding).transposed();
        let factors = [StridedMatrix::dense(query, embedding), key];
        arithmetic.multiply(dtype, &mut scores, extents, factors, Bias::None);
        scores.iter_mut().for_each(|score| *score = (f64::from(*score) / scale) as f32);
        arithmetic.round_inside(dtype, &mut scores);
        if let Some(mask) = &mask {
            mask.add(index, &mut scores);
            arithmetic.round_inside(dtype, &mut scores);
        }
        for row in scores.chunks_exact_mut(sources.max(1)) {
            softmax(row, |x| arithmetic.exp(dtype, x));
        }
        arithmetic.round_inside(dtype, &mut scores);
        let extents = Extents { rows: targets, depth: sources, columns: width };
        let factors = [StridedMatrix::dense(&scores, sources), StridedMatrix::dense(value, width)];
        arithmetic.multiply(dtype, output, extents, factors, Bias::None);
    }
    call.give_floats(shape, output)
}

fn split_matrix(shape: &[usize]) -> (&[usize], [usize; 2]) {
    let (batch, matrix) = shape.split_at(shape.len() - 2);
    (batch, [matrix[0], matrix[1]])
}

/// A row of -inf becomes NaN, as in `softmax`.
fn softmax(row: &mut [f32], exp: impl Fn(f32) -> f32) {
    let most = row.iter().fold(f32::NEG_INFINITY, |most, &x| if x > most { x } else { most });
    let mut sum = 0.0f64;
    for x in row.iter_mut() {
        *x = exp(*x - most);
        sum += f64::from(*x);
    }
    row.iter_mut().for_each(|x| *x = (f64::from(*x) / sum) as f32);
}

/// The mask of an attention: its elements, and the offset of each batch.
struct Mask {
    terms: Vec<f32>,
    starts: Vec<usize>,
    /// Sizes of one batch of scores, and the mask's strides along them.
    matrix: [usize; 2],
    strides: [usize; 2],
}

impl Mask {
    fn of(mask: View, scores: &[usize]) -> Result<Mask> {
        let rank = scores.len();
        let fits = mask.rank() <= rank
            && broadcast(mask.shape, scores).is_ok_and(|shape| shape == scores)
            && mask.shape.last() == scores.last();
        if !fits {
            fail!(
                "`attn_mask` has shape {:?}; expected a shape that broadcasts to {scores:?}, with the same last dimension",
                mask.shape
            );
        }
        let terms = match mask.elements {
            ElementsView::Floats(floats) => floats.to_vec(),
            ElementsView::Ints(bools) => bools
                .iter()
                .map(|&takes| if takes != 0 { 0.0 } else { f32::NEG_INFINITY })
                .collect(),
            ElementsView::Texts(_) => fail!("`attn_mask` expects bools or floats"),
        };
        let strides = broadcast_strides(mask.shape, scores);
        let (batch, matrix) = split_matrix(scores);
        let mut starts = Vec::new();
        if !scores.contains(&0) {
            each_offset(batch, &strides[..rank - 2], |start| starts.push(start));
        }
        Ok(Mask { terms, starts, matrix, strides: [strides[rank - 2], strides[rank - 1]] })
    }

    fn add(&self, batch: usize, scores: &mut [f32]) {
        let mut scores = scores.iter_mut();
        let terms = &self.terms[self.starts[batch]..];
        each_offset(&self.matrix, &self.strides, |at| {
            if let Some(score) = scores.next() {
                *score += terms[at];
            }
        });
    }
}
