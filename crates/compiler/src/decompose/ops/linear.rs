//! Products of matrices.

use coremill_pt2::{Argument, Size};

use super::einsum;
use crate::bounds::{At, back};
use crate::decompose::call::{Call, Results, Tensor, one};
use crate::decompose::dtype::is_integer;
use crate::decompose::row::{Row, by};
use crate::decompose::size;
use crate::decompose::words::Maybe;
use crate::error::{Refusal, refuse};

pub(crate) const ROWS: &[Row] = &[
    by(linear, &["aten.linear.default"]),
    by(matmul_call, &["aten.matmul.default", "aten.linalg_matmul.default"]),
    by(
        addmm,
        &[
            "aten.addmm.default",
            "aten.baddbmm.default",
            "aten.addbmm.default",
            "aten.addmv.default",
            "aten.addr.default",
        ],
    ),
    by(
        vector_product,
        &["aten.mv.default", "aten.dot.default", "aten.vdot.default", "aten.linalg_vecdot.default"],
    ),
    by(inner, &["aten.inner.default"]),
    by(outer, &["aten.outer.default", "aten.ger.default"]),
    by(kron, &["aten.kron.default"]),
    by(tensordot, &["aten.tensordot.default"]),
    by(einsum::einsum, &["aten.einsum.default"]),
    by(einsum::trilinear, &["aten._trilinear.default"]),
    by(chain, &["aten.chain_matmul.default", "aten.linalg_multi_dot.default"]),
    by(cross, &["aten.cross.default", "aten.linalg_cross.default"]),
    by(bilinear, &["aten.bilinear.default"]),
    by(matrix_power, &["aten.matrix_power.default", "aten.linalg_matrix_power.default"]),
];

/// The tensor as a matrix whose columns are its last dimension.
fn flat(call: &mut Call<'_>, x: &Tensor) -> Maybe {
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
        let product = call.matmul(&x, &weight)?;
        return one(match bias {
            Some(bias) => call.add(&product, &bias)?,
            None => product,
        });
    }
    one(affine(call, &x, &weight, bias.as_ref())?)
}

/// `x @ weight.t() + bias`.
pub(crate) fn affine(
    call: &mut Call<'_>,
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
) -> Maybe {
    let rows = flat(call, x)?;
    let turned = call.turned(weight)?;
    let product = match bias {
        None => call.mm(&rows, &turned)?,
        Some(bias) => {
            let sizes = vec![rows.extent(0)?.clone(), weight.extent(0)?.clone()];
            let given =
                [("self", bias.argument()), ("mat1", rows.argument()), ("mat2", turned.argument())];
            call.emit("aten.addmm.default", &given, rows.dtype, sizes)?
        }
    };
    let mut sizes = x.sizes.clone();
    sizes.pop();
    sizes.push(weight.extent(0)?.clone());
    call.view(&product, sizes)
}

fn matmul_call(call: &mut Call<'_>) -> Results {
    let (x, y) = (call.tensor("self")?, call.tensor("other")?);
    one(matmul(call, &x, &y)?)
}

/// torch's `matmul` of tensors of any rank.
pub(crate) fn matmul(call: &mut Call<'_>, x: &Tensor, y: &Tensor) -> Maybe {
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
        return call.squeeze(&product, back(product.rank(), 1)?);
    }
    if y.rank() == 2 {
        let rows = flat(call, x)?;
        let product = call.mm(&rows, y)?;
        let mut sizes = x.sizes.clone();
        sizes.pop();
        sizes.push(y.extent(1)?.clone());
        return call.view(&product, sizes);
    }
    let ([left @ .., rows, inner], [right @ .., other, columns]) = (x.extent(..)?, y.extent(..)?)
    else {
        refuse!("multiplies tensors of rank {} and {}", x.rank(), y.rank());
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

/// Whether a factor is 1.
fn is_one(number: &Argument) -> bool {
    matches!(number, Argument::Int(1)) || matches!(number, Argument::Float(one) if *one == 1.0)
}

fn is_zero(number: &Argument) -> bool {
    matches!(number, Argument::Int(0)) || matches!(number, Argument::Float(zero) if *zero == 0.0)
}

/// A number as one that keeps the type of integers.
fn factor(number: Argument, x: &Tensor) -> Argument {
    match number {
        Argument::Float(value) if is_integer(x.dtype) && value.fract() == 0.0 => {
            Argument::Int(value as i64)
        }
        number => number,
    }
}

fn addmm(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let name = call.node.target.to_string();
    let product = match name.split('.').nth(1) {
        Some("addmm") => {
            let (left, right) = (call.tensor("mat1")?, call.tensor("mat2")?);
            call.mm(&left, &right)?
        }
        Some("baddbmm") => {
            let (left, right) = (call.tensor("batch1")?, call.tensor("batch2")?);
            call.bmm(&left, &right)?
        }
        Some("addbmm") => {
            let (left, right) = (call.tensor("batch1")?, call.tensor("batch2")?);
            let all = call.bmm(&left, &right)?;
            let sum = call.sum(&all, &[0], false)?;
            call.cast(&sum, all.dtype)?
        }
        Some("addmv") => {
            let (left, right) = (call.tensor("mat")?, call.tensor("vec")?);
            call.matmul(&left, &right)?
        }
        _ => {
            let (left, right) = (call.tensor("vec1")?, call.tensor("vec2")?);
            let left = call.unsqueeze(&left, 1)?;
            call.multiply(&left, &right)?
        }
    };
    let (beta, alpha) = (call.number("beta")?, call.number("alpha")?);
    if name == "aten.addmm.default" && is_one(&beta) && is_one(&alpha) {
        return call.renamed(&name);
    }
    let alpha = factor(alpha, &product);
    let product = if is_one(&alpha) { product } else { call.with("mul", &product, alpha)? };
    // What is multiplied by 0 may be infinite or no number, and does not count.
    if is_zero(&beta) {
        return one(call.cast(&product, x.dtype)?);
    }
    let beta = factor(beta, &x);
    let x = if is_one(&beta) { x } else { call.with("mul", &x, beta)? };
    one(call.add(&x, &product)?)
}

fn vector_product(call: &mut Call<'_>) -> Results {
    if call.has("vec") {
        let (x, y) = (call.tensor("self")?, call.tensor("vec")?);
        return one(call.matmul(&x, &y)?);
    }
    if call.has("tensor") {
        let (x, y) = (call.tensor("self")?, call.tensor("tensor")?);
        return one(call.matmul(&x, &y)?);
    }
    let first = if call.has("self") { "self" } else { "x" };
    let second = if call.has("other") { "other" } else { "y" };
    let (x, y) = (call.tensor(first)?, call.tensor(second)?);
    if crate::decompose::dtype::is_complex(x.dtype) {
        refuse!("products of complex vectors have no kernel");
    }
    if call.has("dim") {
        let product = call.multiply(&x, &y)?;
        let at = product.dimension(call.int("dim")?)?;
        let sum = call.sum(&product, &[at], false)?;
        return one(call.cast(&sum, product.dtype)?);
    }
    one(call.matmul(&x, &y)?)
}

fn inner(call: &mut Call<'_>) -> Results {
    let (x, y) = (call.tensor("self")?, call.tensor("other")?);
    if x.rank() == 0 || y.rank() == 0 {
        return one(call.multiply(&x, &y)?);
    }
    if y.rank() == 1 {
        return one(call.matmul(&x, &y)?);
    }
    let rows = flat(call, &y)?;
    let turned = call.turned(&rows)?;
    let product = call.matmul(&x, &turned)?;
    let sizes = [x.sizes.part(..back(x.rank(), 1)?)?, y.sizes.part(..back(y.rank(), 1)?)?].concat();
    one(call.view(&product, sizes)?)
}

fn outer(call: &mut Call<'_>) -> Results {
    let (x, y) = (call.tensor("self")?, call.tensor("vec2")?);
    let column = call.unsqueeze(&x, 1)?;
    one(call.multiply(&column, &y)?)
}

fn kron(call: &mut Call<'_>) -> Results {
    let (x, y) = (call.tensor("self")?, call.tensor("other")?);
    let rank = x.rank().max(y.rank());
    let padded = |tensor: &Tensor| {
        let mut sizes = vec![Size::Fixed(1); rank - tensor.rank()];
        sizes.extend(tensor.sizes.iter().cloned());
        sizes
    };
    let (x_sizes, y_sizes) = (padded(&x), padded(&y));
    let spread = |sizes: &[Size], first: bool| -> Vec<Size> {
        let pair = |size: &Size| {
            if first { [size.clone(), Size::Fixed(1)] } else { [Size::Fixed(1), size.clone()] }
        };
        sizes.iter().flat_map(pair).collect()
    };
    let left = call.view(&x, spread(&x_sizes, true))?;
    let right = call.view(&y, spread(&y_sizes, false))?;
    let product = call.multiply(&left, &right)?;
    let sizes = x_sizes.iter().zip(&y_sizes).map(|(x, y)| size::multiply(x, y)).collect();
    one(call.view(&product, sizes)?)
}

fn tensordot(call: &mut Call<'_>) -> Results {
    let (x, y) = (call.tensor("self")?, call.tensor("other")?);
    let places = |call: &Call<'_>, name: &str, rank: usize| -> Result<Vec<usize>, _> {
        call.ints(name)?.into_iter().map(|at| crate::decompose::call::position(at, rank)).collect()
    };
    let (left, right) =
        (places(call, "dims_self", x.rank())?, places(call, "dims_other", y.rank())?);
    let rest = |rank: usize, taken: &[usize]| -> Vec<usize> {
        (0..rank).filter(|at| !taken.contains(at)).collect()
    };
    let (x_rest, y_rest) = (rest(x.rank(), &left), rest(y.rank(), &right));
    let turned_x = call.permute(&x, &[x_rest.clone(), left.clone()].concat())?;
    let turned_y = call.permute(&y, &[right.clone(), y_rest.clone()].concat())?;
    let of = |tensor: &Tensor, places: &[usize]| -> Result<Vec<Size>, Refusal> {
        places.iter().map(|at| tensor.extent(*at).cloned()).collect()
    };
    let product =
        |tensor: &Tensor, places: &[usize]| of(tensor, places).map(|sizes| size::product(&sizes));
    let shared = product(&x, &left)?;
    let rows = call.view(&turned_x, vec![product(&x, &x_rest)?, shared.clone()])?;
    let columns = call.view(&turned_y, vec![shared, product(&y, &y_rest)?])?;
    let found = call.mm(&rows, &columns)?;
    one(call.view(&found, [of(&x, &x_rest)?, of(&y, &y_rest)?].concat())?)
}

fn chain(call: &mut Call<'_>) -> Results {
    let name = if call.has("tensors") { "tensors" } else { "matrices" };
    let all = call.tensors(name)?;
    let [first, rest @ ..] = all.as_slice() else { refuse!("there is nothing to multiply") };
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
    let at = if call.has("dim") {
        crate::decompose::call::position(call.int("dim")?, sizes.len())?
    } else {
        match sizes.iter().position(|size| *size == Size::Fixed(3)) {
            Some(at) => at,
            None => refuse!("no dimension has 3 elements"),
        }
    };
    let (x, y) = (call.expand(&x, sizes.clone())?, call.expand(&y, sizes)?);
    let mut rolled = Vec::with_capacity(4);
    for (tensor, by) in [(&x, 2), (&y, 1), (&x, 1), (&y, 2)] {
        // Place `i` holds what was at `i + 1`, or at `i + 2`.
        let given = [
            ("self", tensor.argument()),
            ("shifts", crate::decompose::words::list([by])),
            ("dims", crate::decompose::words::list([at as i64])),
        ];
        rolled.push(call.emit("aten.roll.default", &given, tensor.dtype, tensor.sizes.clone())?);
    }
    let left = call.multiply(rolled.at(0)?, rolled.at(1)?)?;
    let right = call.multiply(rolled.at(2)?, rolled.at(3)?)?;
    one(call.subtract(&left, &right)?)
}

fn bilinear(call: &mut Call<'_>) -> Results {
    let (x, y) = (call.tensor("input1")?, call.tensor("input2")?);
    let weight = call.tensor("weight")?;
    let bias = call.optional_tensor("bias")?;
    let (rows, columns) = (flat(call, &x)?, flat(call, &y)?);
    // Every pair of features, and a row of the weight for each.
    let left = call.unsqueeze(&rows, 2)?;
    let right = call.unsqueeze(&columns, 1)?;
    let pairs = call.multiply(&left, &right)?;
    let count = size::multiply(rows.extent(1)?, columns.extent(1)?);
    let pairs = call.view(&pairs, vec![rows.extent(0)?.clone(), count.clone()])?;
    let weight = call.view(&weight, vec![weight.extent(0)?.clone(), count])?;
    let product = affine(call, &pairs, &weight, bias.as_ref())?;
    let mut sizes = x.sizes.clone();
    sizes.pop();
    sizes.push(weight.extent(0)?.clone());
    one(call.view(&product, sizes)?)
}

fn matrix_power(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let exponent = call.int("n")?;
    if !(1..=64).contains(&exponent) {
        refuse!("the power {exponent} of a matrix is not from 1 to 64");
    }
    let mut product = x.clone();
    for _ in 1..exponent {
        product = call.matmul(&product, &x)?;
    }
    one(product)
}
