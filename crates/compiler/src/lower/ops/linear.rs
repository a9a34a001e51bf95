//! Matrix and vector products.

use crate::lower::high_rank::MAX_RANK;
use crate::lower::prelude::*;

pub(crate) const ROWS: &[Row] = &[
    tensor("aten.linear", linear),
    tensor("aten.{,linalg_}matmul", |call| multiplied(call, "self", "other")),
    tensor("aten.{mm,bmm}", |call| multiplied(call, "self", "mat2")),
    tensor("aten._int_mm", integer_product),
    tensor("aten.addmm", |call| weighted(call, "mat1", "mat2")),
    tensor("aten._addmm_activation", added_and_activated),
    tensor("aten.baddbmm", |call| weighted(call, "batch1", "batch2")),
];

fn linear(call: &mut Call<'_, '_>) -> ValueResult {
    let [x, weight] = in_result_type(call, ["input", "weight"])?;
    let bias = optional_in_result_type(call, "bias")?;
    if call.rank(weight) == 1 {
        let product = matmul(call, x, weight)?;
        return plus(call, product, bias);
    }
    affine(call, x, weight, bias)
}

/// Product of 8-bit integer matrices, whose sums are exact in `fp32`. A constant matrix keeps its 8-bit storage.
fn integer_product(call: &mut Call<'_, '_>) -> ValueResult {
    let (x, y) = (call.tensor("self")?, call.tensor("mat2")?);
    call.exact = true;
    let x = call.cast(x.value, DType::Fp32)?;
    let y = match call.stored_integers(y.value, y.dtype)? {
        Some(stored) => stored,
        None => call.cast(y.value, DType::Fp32)?,
    };
    let product = matmul(call, x, y)?;
    call.cast(product, DType::Int32)
}

/// `x · weightᵀ + bias`.
pub(crate) fn affine(
    builder: &mut Builder,
    x: ValueId,
    weight: ValueId,
    bias: Option<ValueId>,
) -> ValueResult {
    if !is_weight(builder, weight, x) {
        let product = product(builder, x, weight, true)?;
        return plus(builder, product, bias);
    }
    let fused = bias.map(|bias| row_of(builder, bias, weight)).transpose()?.flatten();
    let y = rows_times(builder, x, weight, fused)?;
    plus(builder, y, bias.filter(|_| fused.is_none()))
}

/// `linear`; for tensors of too high a rank, the leading axes are flattened.
fn rows_times(
    builder: &mut Builder,
    x: ValueId,
    weight: ValueId,
    bias: Option<ValueId>,
) -> ValueResult {
    if builder.rank(x) <= MAX_RANK {
        return emit!(builder, OpKind::Linear, x, weight, bias);
    }
    let depth = builder.dim(weight, 1)?;
    let rows = builder.reshape(x, &[Int::Known(-1), depth])?;
    let y = emit!(builder, OpKind::Linear, x = rows, weight, bias)?;
    let mut sizes = builder.dims(x)?;
    sizes.pop();
    sizes.push(builder.dim(weight, 0)?);
    builder.reshape(y, &sizes)
}

/// Whether a matrix can be the weight of a `linear` of `x`.
fn is_weight(builder: &Builder, matrix: ValueId, x: ValueId) -> bool {
    builder.is_constant(matrix) && builder.rank(matrix) == 2 && !builder.is_constant(x)
}

/// The addend of `x · weightᵀ` as the bias of a `linear`; `None` if it is computed or differs between rows.
fn row_of(builder: &mut Builder, bias: ValueId, weight: ValueId) -> Result<Option<ValueId>> {
    let (Some(shape), Some(weight)) = (builder.fixed_shape(bias), builder.fixed_shape(weight))
    else {
        return Ok(None);
    };
    let outputs = *weight.at(0)?;
    let leading = shape.len().saturating_sub(1);
    if !builder.is_constant(bias) || shape.part(..leading)?.iter().any(|&extent| extent != 1) {
        return Ok(None);
    }
    if shape.last() == Some(&outputs) {
        return Ok(Some(builder.reshape(bias, &[Int::Known(outputs as i64)])?));
    }
    // Repeats a single element for all columns.
    let one = builder.reshape(bias, &[Int::Known(1)])?;
    let reps = [outputs as i32];
    Ok(Some(emit!(builder, OpKind::Tile, x = one, reps)?))
}

/// `x · y` for tensors of rank 2 or higher, with the last two axes of `y` swapped if `transpose_y` is set. A
/// constant right matrix becomes the weight of a `linear`.
pub(crate) fn product(
    builder: &mut Builder,
    x: ValueId,
    y: ValueId,
    transpose_y: bool,
) -> ValueResult {
    if is_weight(builder, y, x) {
        let weight = if transpose_y { y } else { builder.transpose(y, &[1, 0])? };
        return rows_times(builder, x, weight, None);
    }
    emit!(builder, OpKind::Matmul, x, y, transpose_x = false, transpose_y)
}

/// torch's `matmul`: vectors are rows on the left and columns on the right.
pub(crate) fn matmul(builder: &mut Builder, x: ValueId, y: ValueId) -> ValueResult {
    match (builder.rank(x), builder.rank(y)) {
        (0, _) | (_, 0) => refuse!("an operand of a matrix product is a scalar"),
        (1, 1) if builder.is_constant(y) || builder.is_constant(x) => {
            let (x, y) = if builder.is_constant(y) { (x, y) } else { (y, x) };
            let row = builder.expand_dims(y, &[0])?;
            let product = product(builder, x, row, true)?;
            builder.squeeze(product, &[0])
        }
        (1, 1) => {
            let products = builder.binary(OpKind::Mul, x, y)?;
            builder.reduced(OpKind::ReduceSum, products, &[0], false)
        }
        (_, 1) => {
            let row = builder.expand_dims(y, &[0])?;
            let product = product(builder, x, row, true)?;
            builder.squeeze(product, &[-1])
        }
        (1, _) => {
            let row = builder.expand_dims(x, &[0])?;
            let product = product(builder, row, y, false)?;
            builder.squeeze(product, &[-2])
        }
        _ => product(builder, x, y, false),
    }
}

/// Product of two arguments in the result type.
fn multiplied(call: &mut Call<'_, '_>, left: &str, right: &str) -> ValueResult {
    // Some operators use other argument names.
    let left = if call.has(left) { left } else { "input" };
    let [x, y] = in_result_type(call, [left, right])?;
    matmul(call, x, y)
}

/// Arguments cast to the result type.
pub(crate) fn in_result_type<const N: usize>(
    call: &mut Call<'_, '_>,
    names: [&str; N],
) -> Result<[ValueId; N]> {
    let dtype = call.result_dtype()?;
    let mut values = [ValueId::from_index(0); N];
    for (value, name) in values.iter_mut().zip(names) {
        let tensor = call.value(name)?;
        *value = call.cast_to(tensor, dtype)?;
    }
    Ok(values)
}

/// An optional argument cast to the result type.
pub(crate) fn optional_in_result_type(
    call: &mut Call<'_, '_>,
    name: &str,
) -> Result<Option<ValueId>> {
    if call.has(name) { Ok(Some(in_result_type(call, [name])?[0])) } else { Ok(None) }
}

/// `beta · self + alpha · product`.
fn weighted(call: &mut Call<'_, '_>, left: &str, right: &str) -> ValueResult {
    let [bias, x, mut y] = in_result_type(call, ["self", left, right])?;
    let [beta, alpha] = [factor(call, "beta")?, factor(call, "alpha")?];
    // With a factor of 0, torch does not read the addend.
    let bias = if beta == 0.0 { None } else { Some(call.scaled(bias, beta)?) };
    let folded = call.is_constant(y);
    if folded {
        y = call.scaled(y, alpha)?;
    }
    if (folded || alpha == 1.0) && call.rank(x) >= 2 && is_weight(call, y, x) {
        let weight = call.transpose(y, &[1, 0])?;
        return affine(call, x, weight, bias);
    }
    let mut product = matmul(call, x, y)?;
    if !folded {
        product = call.scaled(product, alpha)?;
    }
    plus(call, product, bias)
}

/// Adds an optional bias.
pub(super) fn plus(builder: &mut Builder, x: ValueId, bias: Option<ValueId>) -> ValueResult {
    match bias {
        Some(bias) => builder.binary(OpKind::Add, x, bias),
        None => Ok(x),
    }
}

fn factor(call: &mut Call<'_, '_>, name: &str) -> Result<f64> {
    if call.has(name) { call.float(name) } else { Ok(1.0) }
}

fn added_and_activated(call: &mut Call<'_, '_>) -> ValueResult {
    let sum = weighted(call, "mat1", "mat2")?;
    Ok(if call.flag("use_gelu")? {
        emit!(call, OpKind::Gelu, x = sum, mode = "TANH_APPROXIMATION")?
    } else {
        call.unary(OpKind::Relu, sum)?
    })
}

/// Multiplies a constant matrix with each line along an axis.
pub(crate) fn times_along(
    builder: &mut Builder,
    x: ValueId,
    axis: usize,
    matrix: ValueId,
) -> ValueResult {
    let rank = builder.rank(x);
    if axis + 1 == rank {
        return product(builder, x, matrix, true);
    }
    if axis + 2 == rank {
        return builder.binary(OpKind::Matmul, matrix, x);
    }
    // Merges the axes after it.
    let rows = builder.shape(matrix).at(0)?.known();
    let mut sizes = builder.dims(x)?;
    let joined: Vec<_> = sizes.part(..=axis)?.iter().copied().chain([Int::Known(-1)]).collect();
    let lines = builder.reshape(x, &joined)?;
    let product = builder.binary(OpKind::Matmul, matrix, lines)?;
    *sizes.at_mut(axis)? = Int::Known(rows.unwrap_or(1) as i64);
    builder.reshape(product, &sizes)
}
