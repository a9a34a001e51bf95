//! Matrix products.

use super::einsum;
use crate::decompose::prelude::*;

pub(crate) const ROWS: &[Row] = &[
    by(linear, &["aten.linear"]),
    by(matmul_call, &["aten.matmul", "aten.linalg_matmul"]),
    by(addmm, &["aten.addmm", "aten.baddbmm", "aten.addbmm", "aten.addmv", "aten.addr"]),
    formula("matmul(self, vec)", &["aten.mv"]),
    formula("matmul(self, tensor)", &["aten.dot"]),
    formula("matmul(self, other)", &["aten.vdot"]),
    formula("sum(x * y, dim)", &["aten.linalg_vecdot"]),
    by(einsum::inner, &["aten.inner"]),
    formula("unsqueeze(self, 1) * vec2", &["aten.outer", "aten.ger"]),
    by(kron, &["aten.kron"]),
    by(einsum::tensordot, &["aten.tensordot"]),
    by(einsum::einsum, &["aten.einsum"]),
    by(einsum::trilinear, &["aten._trilinear"]),
    by(|call| chain(call, "matrices"), &["aten.chain_matmul"]),
    by(|call| chain(call, "tensors"), &["aten.linalg_multi_dot"]),
    by(cross, &["aten.cross", "aten.linalg_cross"]),
    by(bilinear, &["aten.bilinear"]),
    by(matrix_power, &["aten.matrix_power", "aten.linalg_matrix_power"]),
];

/// Flattens all but the last dimension.
fn flat(call: &mut Call<'_>, x: &Tensor) -> TensorResult {
    if x.rank() == 2 {
        return Ok(x.clone());
    }
    let Some((last, leading)) = x.sizes.split_last() else { refuse!("a number is not a matrix") };
    let rows = size::product(leading);
    call.view(x, vec![rows, last.clone()])
}

fn linear(call: &mut Call<'_>) -> Results {
    let (x, weight) = (call.tensor("input")?, call.tensor("weight")?);
    let bias = call.optional_tensor("bias")?;
    if weight.rank() == 1 {
        let formula =
            "product = matmul(input, weight); where(given(bias), product + bias, product)";
        return one(calc!(call, formula)?);
    }
    one(affine(call, &x, &weight, bias.as_ref())?)
}

/// `x @ weight.t() + bias`.
pub(crate) fn affine(
    call: &mut Call<'_>,
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
) -> TensorResult {
    let rows = flat(call, x)?;
    let turned = call.turned(weight)?;
    let product = call.addmm(bias, &rows, &turned)?;
    call.view(&product, x.with_size(axis_from_end(x.rank(), 1)?, weight.extent(0)?.clone())?)
}

fn matmul_call(call: &mut Call<'_>) -> Results {
    let (x, y) = (call.tensor("self")?, call.tensor("other")?);
    one(matmul(call, &x, &y)?)
}

/// torch's `matmul` for tensors of any rank.
pub(crate) fn matmul(call: &mut Call<'_>, x: &Tensor, y: &Tensor) -> TensorResult {
    if x.rank() == 0 || y.rank() == 0 {
        refuse!("a number is not a matrix");
    }
    if x.rank() == 1 {
        let row = call.unsqueeze(x, 0)?;
        let product = matmul(call, &row, y)?;
        let at = product.rank() - if y.rank() == 1 { 1 } else { 2 };
        return call.squeeze(&product, at);
    }
    if y.rank() == 1 {
        let column = call.unsqueeze(y, 1)?;
        let product = matmul(call, x, &column)?;
        return call.squeeze(&product, axis_from_end(product.rank(), 1)?);
    }
    if y.rank() == 2 {
        let rows = flat(call, x)?;
        let product = call.mm(&rows, y)?;
        return call
            .view(&product, x.with_size(axis_from_end(x.rank(), 1)?, y.extent(1)?.clone())?);
    }
    let ([left @ .., rows, inner], [right @ .., other, columns]) = (x.extent(..)?, y.extent(..)?)
    else {
        refuse!("cannot multiply tensors of rank {} and {}", x.rank(), y.rank());
    };
    let Some(batch) = size::broadcast(left, right) else {
        refuse!("the batches of the matrices do not broadcast");
    };
    let count = size::product(&batch);
    let mut sides = Vec::with_capacity(2);
    for (side, matrix) in
        [(x, [rows.clone(), inner.clone()]), (y, [other.clone(), columns.clone()])]
    {
        let spread = call.expand(side, [&batch[..], &matrix].concat())?;
        let mut sizes = vec![count.clone()];
        sizes.extend(matrix);
        sides.push(call.view(&spread, sizes)?);
    }
    let product = call.bmm(sides.at(0)?, sides.at(1)?)?;
    let sizes = [&batch[..], &[rows.clone(), columns.clone()]].concat();
    call.view(&product, sizes)
}

fn addmm(call: &mut Call<'_>) -> Results {
    let product = match call.name() {
        "addmm" => calc!(call, "mm(mat1, mat2)")?,
        "baddbmm" => calc!(call, "bmm(batch1, batch2)")?,
        "addbmm" => calc!(call, "number(sum(bmm(batch1, batch2), 0))")?,
        "addmv" => calc!(call, "matmul(mat, vec)")?,
        _ => calc!(call, "unsqueeze(vec1, 1) * vec2")?,
    };
    if call.name() == "addmm" && (call.float("beta")?, call.float("alpha")?) == (1.0, 1.0) {
        return call.renamed("aten.addmm.default");
    }
    let product = calc!(call, "product * alpha", product)?;
    // A factor of 0 must ignore infinities and NaN.
    one(calc!(call, "where(beta == 0, product, self * beta + product)", product)?)
}

fn kron(call: &mut Call<'_>) -> Results {
    let (x, y) = (call.tensor("self")?, call.tensor("other")?);
    let rank = x.rank().max(y.rank());
    let padded = |tensor: &Tensor| {
        [vec![Size::Fixed(1); rank - tensor.rank()], tensor.sizes.clone()].concat()
    };
    let (x_sizes, y_sizes) = (padded(&x), padded(&y));
    // Interleaves unit dimensions, so that every element meets every other.
    let left = x_sizes.iter().flat_map(|size| [size.clone(), Size::Fixed(1)]).collect();
    let right = y_sizes.iter().flat_map(|size| [Size::Fixed(1), size.clone()]).collect();
    let (left, right) = (call.view(&x, left)?, call.view(&y, right)?);
    let product = call.multiply(&left, &right)?;
    one(call.viewed(&product)?)
}

fn chain(call: &mut Call<'_>, name: &str) -> Results {
    let all = call.tensors(name)?;
    let [first, rest @ ..] = all.as_slice() else {
        refuse!("expected at least one tensor to multiply")
    };
    let mut product = first.clone();
    for next in rest {
        product = call.matmul(&product, next)?;
    }
    one(product)
}

fn cross(call: &mut Call<'_>) -> Results {
    let (x, y) = (call.tensor("self")?, call.tensor("other")?);
    let Some(sizes) = size::broadcast(&x.sizes, &y.sizes) else {
        refuse!("the operands do not broadcast");
    };
    let at = match call.has("dim") {
        true => Some(call.dimension("dim", sizes.len())?),
        false => sizes.iter().position(|size| *size == Size::Fixed(3)),
    };
    let Some(at) = at else { refuse!("no dimension has size 3") };
    let (x, y) = (call.expand(&x, sizes.clone())?, call.expand(&y, sizes)?);
    // Rolls so that index `i` holds the element of index `i + 1` or `i + 2`.
    let formula = "roll(x, 2, at) * roll(y, 1, at) - roll(x, 1, at) * roll(y, 2, at)";
    one(calc!(call, formula, x, y, at)?)
}

fn bilinear(call: &mut Call<'_>) -> Results {
    let (x, y) = (call.tensor("input1")?, call.tensor("input2")?);
    let weight = call.tensor("weight")?;
    let bias = call.optional_tensor("bias")?;
    let (rows, columns) = (flat(call, &x)?, flat(call, &y)?);
    // All products of feature pairs, with one weight row for each output.
    let pairs = calc!(call, "unsqueeze(rows, 2) * unsqueeze(columns, 1)", rows, columns)?;
    let count = size::multiply(rows.extent(1)?, columns.extent(1)?);
    let pairs = call.view(&pairs, vec![rows.extent(0)?.clone(), count.clone()])?;
    let weight = call.view(&weight, vec![weight.extent(0)?.clone(), count])?;
    let product = affine(call, &pairs, &weight, bias.as_ref())?;
    one(call.viewed(&product)?)
}

fn matrix_power(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let exponent = call.int("n")?;
    if !(1..=64).contains(&exponent) {
        refuse!("the power of a matrix must be from 1 to 64, got {exponent}");
    }
    let mut product = x.clone();
    for _ in 1..exponent {
        product = call.matmul(&product, &x)?;
    }
    one(product)
}
