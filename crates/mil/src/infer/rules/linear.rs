//! Matrix products, and attention.

use coremill_tensor::DType;

use super::expect;
use crate::infer::shape::{broadcast, fixed};
use crate::infer::{InferContext, InferError, InferredValue, KnownElements, Rule, Scalar, refuse};
use crate::ir::{Binding, Dim, TensorType};

pub(super) fn einsum(site: &InferContext) -> Rule {
    let values = site.all("values");
    let [x, y] = values else {
        let message = format!("must have two tensors, got {}", values.len());
        return Err(InferError::new(message).of("values"));
    };
    let (Some(x), Some(y)) = (x.ty.as_tensor(), y.ty.as_tensor()) else {
        let message = format!("expects tensors, found `{}` and `{}`", x.ty, y.ty);
        return Err(InferError::new(message).of("values"));
    };
    let refusal = |message: String| InferError::new(message).of("values");
    if x.dtype != y.dtype || !matches!(x.dtype, DType::Fp16 | DType::Fp32) {
        return Err(refusal(format!("are `{x}` and `{y}`; expected both `fp16` or both `fp32`")));
    }
    let equation = site.text("equation")?;
    let rank = equation_rank(&equation).ok_or_else(|| {
        let message = format!(
            "must be `chw,whr->chr` or `nchw,nwhr->nchr`, with any letters, got `{equation}`"
        );
        InferError::new(message).of("equation").hint("transpose and `matmul` instead")
    })?;
    for tensor in [x, y] {
        expect::check_rank(tensor, rank, rank).map_err(|refusal| refusal.of("values"))?;
    }
    // Axes are counted from the end: `c` or `w`, `h`, `w` or `r`; batch axes precede them.
    let (contracted, rows) = (&x.shape[rank - 1], &y.shape[rank - 3]);
    if !contracted.may_equal(rows) {
        return Err(refusal(format!(
            "are `{x}` and `{y}`: the last dimension of the first, {contracted}, must equal \
             dimension {} of the second, {rows}",
            rank - 3
        )));
    }
    let shared = |axis: usize| {
        let shape = broadcast(site, &x.shape[axis..=axis], &y.shape[axis..=axis])
            .map_err(|refusal| refusal.of("values"))?;
        Ok::<_, InferError>(shape[0].clone())
    };
    let mut shape = Vec::with_capacity(rank);
    if rank == 4 {
        shape.push(shared(0)?);
    }
    shape.extend([x.shape[rank - 3].clone(), shared(rank - 2)?, y.shape[rank - 1].clone()]);
    Ok(vec![InferredValue::tensor(x.dtype, shape)])
}

/// The rank of the tensors in an equation; `None` if Core ML does not support the equation. The letters do
/// not matter.
fn equation_rank(equation: &str) -> Option<usize> {
    let (inputs, output) = equation.split_once("->")?;
    let (first, second) = inputs.split_once(',')?;
    let letters = |text: &str| text.chars().take(5).collect::<Vec<_>>();
    let (first, second, output) = (letters(first), letters(second), letters(output));
    let rank = first.len();
    let (batch, [c, h, w]) = match first[..] {
        [c, h, w] => (None, [c, h, w]),
        [n, c, h, w] => (Some(n), [c, h, w]),
        _ => return None,
    };
    let &r = second.last()?;
    let expected = |axes: [char; 3]| batch.into_iter().chain(axes).collect::<Vec<_>>();
    let mut distinct = expected([c, h, w]);
    distinct.push(r);
    distinct.sort_unstable();
    distinct.dedup();
    let known = distinct.len() == rank + 1
        && second == expected([w, h, r])
        && output == expected([c, h, r]);
    known.then_some(rank)
}

pub(super) fn linear(site: &InferContext) -> Rule {
    let x = expect::ranked(site, "x", 1, usize::MAX)?;
    let weight = expect::ranked(site, "weight", 2, 2)?;
    let [rows, columns] = [0, 1].map(|axis| weight.shape[axis].clone());
    expect::dimension(site, "x", x.rank() - 1, &columns, "the last dimension of `weight`")?;
    let why = "one element for each row of `weight`";
    expect::shape(site, "bias", std::slice::from_ref(&rows), why)?;
    let mut shape = x.shape[..x.rank() - 1].to_vec();
    shape.push(rows);
    let value = fold_linear(site, &shape);
    Ok(vec![InferredValue::tensor(x.dtype, shape).with(value)])
}

fn fold_linear(site: &InferContext, shape: &[Dim]) -> Option<KnownElements> {
    let (x, weight) = (integers(site, "x")?, integers(site, "weight")?);
    let bias = match site.has("bias") {
        true => integers(site, "bias")?.elements,
        false => Vec::new(),
    };
    let &[outputs, depth] = weight.shape.as_slice() else { return None };
    let (outputs, depth) = (outputs as usize, depth as usize);
    let count = x.elements.len().checked_div(depth)?.checked_mul(outputs)?;
    let elements = (0..count).map(|at| {
        let (row, column) = (at / outputs, at % outputs);
        let products =
            (0..depth).map(|k| (x.elements[row * depth + k], weight.elements[column * depth + k]));
        let start = bias.get(column).copied().unwrap_or(0);
        integer(products.fold(Some(start), multiply_add))
    });
    KnownElements::new(DType::Int32, fixed(shape)?, within_limit(count, elements)?)
}

pub(super) fn matmul(site: &InferContext) -> Rule {
    let x = expect::ranked(site, "x", 1, usize::MAX)?;
    // A vector on the right is documented, but no compiler supports it.
    let y = expect::ranked(site, "y", 2, usize::MAX).map_err(|refusal| {
        refusal.hint("add a last dimension of 1 with `expand_dims`, and remove it afterwards")
    })?;
    let dtype = product_dtype(site, x, y)?;
    let [transpose_x, transpose_y] = ["transpose_x", "transpose_y"].map(|name| site.bool(name));
    let (transpose_x, transpose_y) = (transpose_x?, transpose_y?);
    if x.rank() == 1 && transpose_x {
        let message = "is true, but `x` has rank 1 and cannot be transposed";
        return Err(InferError::new(message).of("transpose_x"));
    }
    let vector = x.rank() == 1;
    let mut left = x.shape.clone();
    if vector {
        left.insert(0, Dim::Known(1));
    }
    let mut right = y.shape.clone();
    for (shape, transpose) in [(&mut left, transpose_x), (&mut right, transpose_y)] {
        if transpose {
            let rank = shape.len();
            shape.swap(rank - 1, rank - 2);
        }
    }
    let (left_batch, left_matrix) = left.split_at(left.len() - 2);
    let (right_batch, right_matrix) = right.split_at(right.len() - 2);
    if !left_matrix[1].may_equal(&right_matrix[0]) {
        refuse!(
            "`{x}` and `{y}` cannot be multiplied: {} columns on the left, {} rows on the right",
            left_matrix[1],
            right_matrix[0]
        );
    }
    let mut shape = broadcast(site, left_batch, right_batch)?;
    let value = if shape.is_empty() { fold_product(site, transpose_x, transpose_y) } else { None };
    if !vector {
        shape.push(left_matrix[0].clone());
    }
    shape.push(right_matrix[1].clone());
    let value =
        value.and_then(|elements| KnownElements::new(DType::Int32, fixed(&shape)?, elements));
    Ok(vec![InferredValue::tensor(dtype, shape).with(value)])
}

/// The element type of a product. Since iOS17 it is the type of the factor that is not constant.
fn product_dtype(site: &InferContext, x: &TensorType, y: &TensorType) -> Result<DType, InferError> {
    let stated = |name| {
        let mut bound = site.bindings(name).iter();
        bound.all(|binding: &Binding| site.function().bound_constant(binding).is_some())
    };
    match (stated("x"), stated("y")) {
        (false, true) => Ok(x.dtype),
        (true, false) => Ok(y.dtype),
        _ if x.dtype == y.dtype => Ok(x.dtype),
        (both, _) => {
            let kind = if both { "constants" } else { "computed" };
            let message = format!(
                "has element type `{}`, but `x` has `{}`; both must be the same where both are {kind}",
                y.dtype, x.dtype
            );
            Err(InferError::new(message).of("y").hint("`cast` one of them"))
        }
    }
}

/// The product of two matrices of known integers. A vector on the left is a matrix with one row.
fn fold_product(site: &InferContext, transpose_x: bool, transpose_y: bool) -> Option<Vec<Scalar>> {
    let (x, y) = (integers(site, "x")?, integers(site, "y")?);
    let matrix = |shape: &[u64]| match *shape {
        [columns] => Some((1, columns as usize)),
        [rows, columns] => Some((rows as usize, columns as usize)),
        _ => None,
    };
    let ((x_rows, x_columns), (y_rows, y_columns)) = (matrix(&x.shape)?, matrix(&y.shape)?);
    let (rows, depth) = if transpose_x { (x_columns, x_rows) } else { (x_rows, x_columns) };
    let columns = if transpose_y { y_rows } else { y_columns };
    let x_at = |i: usize, k: usize| if transpose_x { k * x_columns + i } else { i * x_columns + k };
    let y_at = |k: usize, j: usize| if transpose_y { j * y_columns + k } else { k * y_columns + j };
    let count = rows.checked_mul(columns)?;
    let elements = (0..count).map(|at| {
        let (i, j) = (at / columns, at % columns);
        let products = (0..depth).map(|k| (x.elements[x_at(i, k)], y.elements[y_at(k, j)]));
        integer(products.fold(Some(0), multiply_add))
    });
    within_limit(count, elements)
}

/// Known integers bound to a parameter.
struct Integers {
    shape: Vec<u64>,
    elements: Vec<i64>,
}

/// The known integers bound to a parameter. Floats are not folded, because shapes and indices are integers.
fn integers(site: &InferContext, name: &str) -> Option<Integers> {
    let value = site.value(name).filter(|value| value.dtype == DType::Int32)?;
    Some(Integers { shape: value.shape.clone(), elements: value.ints()? })
}

fn multiply_add(sum: Option<i64>, (left, right): (i64, i64)) -> Option<i64> {
    sum?.checked_add(left.checked_mul(right)?)
}

/// Converts an element; it is unknown if it may have overflowed its type.
fn integer(value: Option<i64>) -> Scalar {
    match value {
        Some(value) if i32::try_from(value).is_ok() => Scalar::Int(value),
        _ => Scalar::Unknown,
    }
}

fn within_limit(count: usize, elements: impl Iterator<Item = Scalar>) -> Option<Vec<Scalar>> {
    (count as u64 <= crate::infer::MAX_FOLDED_ELEMENTS).then(|| elements.collect())
}

pub(super) fn scaled_dot_product_attention(site: &InferContext) -> Rule {
    let query = expect::ranked(site, "query", 3, usize::MAX)?;
    let rank = query.rank();
    let key = expect::ranked(site, "key", rank, rank)?;
    let value = expect::ranked(site, "value", rank, rank)?;
    for name in ["key", "value"] {
        for (axis, batch) in query.shape[..rank - 2].iter().enumerate() {
            expect::dimension(site, name, axis, batch, "the batch size of `query`")?;
        }
    }
    let embedding = &query.shape[rank - 1];
    expect::dimension(site, "key", rank - 1, embedding, "the embedding size of `query`")?;
    let length = &key.shape[rank - 2];
    expect::dimension(site, "value", rank - 2, length, "the sequence length of `key`")?;
    if site.has("attn_mask") {
        let mask = expect::ranked(site, "attn_mask", 1, rank)?;
        let last = mask.rank() - 1;
        expect::dimension(site, "attn_mask", last, length, "the sequence length of `key`")?;
        let aligned = query.shape[rank - mask.rank()..].iter();
        for (axis, (found, expected)) in mask.shape[..last].iter().zip(aligned).enumerate() {
            if *found != Dim::Known(1) {
                let why = "the size of `query`, or 1";
                expect::dimension(site, "attn_mask", axis, expected, why)?;
            }
        }
    }
    let mut shape = query.shape[..rank - 1].to_vec();
    shape.push(value.shape[rank - 1].clone());
    Ok(vec![InferredValue::tensor(query.dtype, shape)])
}
