//! Products of matrices and vectors.

use coremill_mil::ir::ValueId;
use coremill_mil::ops::OpKind;
use coremill_pt2::ScalarType;
use coremill_tensor::DType;

use crate::bounds::At;
use crate::error::{Refusal, refuse};
use crate::lower::builder::Builder;
use crate::lower::call::{Call, Results};
use crate::lower::high_rank::MAX_RANK;
use crate::lower::row::{Row, all};
use crate::lower::value::{Int, Tensor};

pub(crate) const ROWS: &[Row] = &[
    all("aten.linear", linear),
    all("aten.matmul", |call| binary(call, "self", "other", matmul)),
    all("aten.linalg_matmul", |call| binary(call, "self", "other", matmul)),
    all("aten.mm", |call| binary(call, "self", "mat2", matmul)),
    all("aten._int_mm", integer_product),
    all("aten.bmm", |call| binary(call, "self", "mat2", matmul)),
    all("aten.addmm", |call| added(call, "mat1", "mat2", matmul)),
    all("aten._addmm_activation", added_and_activated),
    all("aten.baddbmm", |call| added(call, "batch1", "batch2", matmul)),
];

/// What multiplies two tensors.
type Product = fn(&mut Builder, ValueId, ValueId) -> Result<ValueId, Refusal>;

fn linear(call: &mut Call<'_, '_>) -> Results {
    let dtype = call.result_dtype()?;
    let x = call.tensor("input")?.value;
    let weight = call.tensor("weight")?.value;
    let bias = call.optional_tensor("bias")?.map(|bias| bias.value);
    let (x, weight) = (call.cast_to(x, dtype)?, call.cast_to(weight, dtype)?);
    let bias = bias.map(|bias| call.cast_to(bias, dtype)).transpose()?;
    if call.rank(weight) == 1 {
        let product = matmul(call, x, weight)?;
        let y = match bias {
            Some(bias) => call.binary(OpKind::Add, product, bias)?,
            None => product,
        };
        return call.give(y);
    }
    let y = affine(call, x, weight, bias)?;
    call.give(y)
}

/// A product of matrices of 8 bits, whose sums are exact in `fp32`. A constant one stays as narrow as it is.
fn integer_product(call: &mut Call<'_, '_>) -> Results {
    let (x, y) = (call.tensor("self")?, call.tensor("mat2")?);
    call.exact = true;
    let x = call.cast(x.value, DType::Fp32)?;
    let y = match call.stored_integers(y.value, y.dtype)? {
        Some(stored) => stored,
        None => call.cast(y.value, DType::Fp32)?,
    };
    let product = matmul(call, x, y)?;
    let sums = call.cast(product, DType::Int32)?;
    call.give(sums)
}

/// `x · weightᵀ + bias`.
pub(crate) fn affine(
    builder: &mut Builder,
    x: ValueId,
    weight: ValueId,
    bias: Option<ValueId>,
) -> Result<ValueId, Refusal> {
    if !is_weight(builder, weight, x) {
        let product = product(builder, x, weight, false, true)?;
        return match bias {
            Some(bias) => builder.binary(OpKind::Add, product, bias),
            None => Ok(product),
        };
    }
    let fused = bias.map(|bias| row_of(builder, bias, weight)).transpose()?.flatten();
    let y = rows_times(builder, x, weight, fused)?;
    match bias {
        Some(bias) if fused.is_none() => builder.binary(OpKind::Add, y, bias),
        _ => Ok(y),
    }
}

/// A `linear`; of a tensor of more axes than Core ML has, with its rows one below the other.
fn rows_times(
    builder: &mut Builder,
    x: ValueId,
    weight: ValueId,
    bias: Option<ValueId>,
) -> Result<ValueId, Refusal> {
    let mut rows = x;
    let many = builder.rank(x) > MAX_RANK;
    if many {
        let depth = builder.dim(weight, 1)?;
        rows = builder.reshape(x, &[Int::Known(-1), depth])?;
    }
    let arguments = [("x", rows.into()), ("weight", weight.into()), ("bias", bias.into())];
    let y = builder.emit(OpKind::Linear, arguments)?;
    if !many {
        return Ok(y);
    }
    let mut sizes = builder.dims(x)?;
    sizes.pop();
    sizes.push(builder.dim(weight, 0)?);
    builder.reshape(y, &sizes)
}

/// Whether a matrix can be the weight of a `linear` of `x`.
fn is_weight(builder: &Builder, matrix: ValueId, x: ValueId) -> bool {
    builder.is_constant(matrix) && builder.rank(matrix) == 2 && !builder.is_constant(x)
}

/// What is added to every row of `x · weightᵀ`, as the bias of a `linear`; none if it is computed, or not
/// the same for all rows.
fn row_of(
    builder: &mut Builder,
    bias: ValueId,
    weight: ValueId,
) -> Result<Option<ValueId>, Refusal> {
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
    // One element for all columns.
    let one = builder.reshape(bias, &[Int::Known(1)])?;
    let reps = [outputs as i32];
    Ok(Some(builder.emit(OpKind::Tile, [("x", one.into()), ("reps", reps.into())])?))
}

/// `x · y` of tensors with two axes at least, the last two exchanged where that is asked for. A constant
/// matrix on the right becomes the weight of a `linear`.
pub(crate) fn product(
    builder: &mut Builder,
    x: ValueId,
    y: ValueId,
    transpose_x: bool,
    transpose_y: bool,
) -> Result<ValueId, Refusal> {
    if !transpose_x && is_weight(builder, y, x) {
        let weight = if transpose_y { y } else { builder.transpose(y, &[1, 0])? };
        return rows_times(builder, x, weight, None);
    }
    builder.emit(
        OpKind::Matmul,
        [
            ("x", x.into()),
            ("y", y.into()),
            ("transpose_x", transpose_x.into()),
            ("transpose_y", transpose_y.into()),
        ],
    )
}

/// torch's `matmul`: vectors are rows on the left and columns on the right.
pub(crate) fn matmul(builder: &mut Builder, x: ValueId, y: ValueId) -> Result<ValueId, Refusal> {
    match (builder.rank(x), builder.rank(y)) {
        (0, _) | (_, 0) => refuse!("a scalar is not a factor of a product of matrices"),
        (1, 1) if builder.is_constant(y) || builder.is_constant(x) => {
            let (x, y) = if builder.is_constant(y) { (x, y) } else { (y, x) };
            let row = builder.expand_dims(y, &[0])?;
            let product = product(builder, x, row, false, true)?;
            builder.squeeze(product, &[0])
        }
        (1, 1) => {
            let products = builder.binary(OpKind::Mul, x, y)?;
            builder.reduced(OpKind::ReduceSum, products, &[0], false)
        }
        (_, 1) => {
            let row = builder.expand_dims(y, &[0])?;
            let product = product(builder, x, row, false, true)?;
            builder.squeeze(product, &[-1])
        }
        (1, _) => {
            let row = builder.expand_dims(x, &[0])?;
            let product = product(builder, row, y, false, false)?;
            builder.squeeze(product, &[-2])
        }
        _ => product(builder, x, y, false, false),
    }
}

/// A product of two tensors, in the element type of the result.
fn binary(call: &mut Call<'_, '_>, left: &str, right: &str, multiply: Product) -> Results {
    // The arguments of some are called by other names.
    let left = if call.has(left) { left } else { "input" };
    let (x, y) = (call.tensor(left)?, call.tensor(right)?);
    let dtype = call.result_dtype()?;
    let product = multiplied(call, x, y, dtype, multiply)?;
    call.give(product)
}

/// A product of tensors in an element type.
pub(crate) fn multiplied(
    builder: &mut Builder,
    x: Tensor,
    y: Tensor,
    dtype: ScalarType,
    multiply: impl Fn(&mut Builder, ValueId, ValueId) -> Result<ValueId, Refusal>,
) -> Result<ValueId, Refusal> {
    let (x, y) = (builder.cast_to(x.value, dtype)?, builder.cast_to(y.value, dtype)?);
    multiply(builder, x, y)
}

/// `beta · self + alpha · product`.
fn added(call: &mut Call<'_, '_>, left: &str, right: &str, multiply: Product) -> Results {
    let y = weighted(call, left, right, multiply)?;
    call.give(y)
}

fn weighted(
    call: &mut Call<'_, '_>,
    left: &str,
    right: &str,
    multiply: Product,
) -> Result<ValueId, Refusal> {
    let dtype = call.result_dtype()?;
    let mut values = Vec::with_capacity(3);
    for name in ["self", left, right] {
        let tensor = call.tensor(name)?.value;
        values.push(call.cast_to(tensor, dtype)?);
    }
    let (bias, x, mut y) = (*values.at(0)?, *values.at(1)?, *values.at(2)?);
    let [beta, alpha] = [factor(call, "beta")?, factor(call, "alpha")?];
    // Torch looks at no element of what is added if there is nothing of it.
    let bias = if beta == 0.0 { None } else { Some(call.scaled(bias, beta)?) };
    let folded = call.is_constant(y);
    if folded {
        y = call.scaled(y, alpha)?;
    }
    if (folded || alpha == 1.0) && call.rank(x) >= 2 && is_weight(call, y, x) {
        let weight = call.transpose(y, &[1, 0])?;
        return affine(call, x, weight, bias);
    }
    let mut product = multiply(call, x, y)?;
    if !folded {
        product = call.scaled(product, alpha)?;
    }
    match bias {
        Some(bias) => call.binary(OpKind::Add, product, bias),
        None => Ok(product),
    }
}

fn factor(call: &mut Call<'_, '_>, name: &str) -> Result<f64, Refusal> {
    if !call.has(name) {
        return Ok(1.0);
    }
    let known = call.number(name)?.known();
    known.ok_or_else(|| Refusal::new(format!("`{name}` is not known before the program runs")))
}

fn added_and_activated(call: &mut Call<'_, '_>) -> Results {
    let sum = weighted(call, "mat1", "mat2", matmul)?;
    let y = if call.flag("use_gelu")? {
        call.emit(OpKind::Gelu, [("x", sum.into()), ("mode", "TANH_APPROXIMATION".into())])?
    } else {
        call.unary(OpKind::Relu, sum)?
    };
    call.give(y)
}
