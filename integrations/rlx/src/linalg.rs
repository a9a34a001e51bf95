//! Matrix factorizations, and layers on positive definite matrices. Everything is computed in `fp32`.

use coremill_graph::{DType, Error, Tensor, nn, ops};
use rlx_ir::Op;
use rlx_ir::op::{QrPart, SpdMatFn, SvdPart};

use crate::site::NodeContext;

pub(crate) fn lower<'g>(site: &NodeContext<'_, 'g>) -> Result<Option<Tensor<'g>>, Error> {
    Ok(Some(match &site.node.op {
        Op::DenseSolve | Op::BatchedDenseSolve => {
            let (a, b) = (matrices(site.arg(0)?), site.arg(1)?);
            nn::solve(a, right_side(a, b))
        }
        Op::TriangularSolve { lower, transpose } => {
            let (a, b) = (matrices(site.arg(0)?), site.arg(1)?);
            let b = right_side(a, b);
            match transpose {
                true => nn::solve_triangular(a.swap(1, 2), b, !lower),
                false => nn::solve_triangular(a, b, *lower),
            }
        }
        Op::Cholesky => nn::cholesky(matrices(site.arg(0)?)),
        Op::Det => nn::determinant(matrices(site.arg(0)?)).0,
        Op::LogDet => nn::determinant(matrices(site.arg(0)?)).1,
        Op::Svd { part } => {
            let (u, values, v) = nn::svd(matrices(site.arg(0)?));
            match part {
                SvdPart::U => u,
                SvdPart::S => values,
                SvdPart::Vt => v,
            }
        }
        Op::Qr { part } => {
            let (q, r) = nn::qr(matrices(site.arg(0)?));
            match part {
                QrPart::Q => q,
                QrPart::R => r,
            }
        }
        Op::Eigh | Op::EighBatch => {
            let a = matrices(site.arg(0)?);
            let (batch, size) = (a.extent(0), a.extent(1));
            let (values, vectors) = nn::eigh(a);
            site.joined([values, vectors.view([batch, size * size])], 1)
        }
        Op::EighBackward | Op::EighBatchBackward => {
            let size = site.last()?;
            let split = |x: Tensor<'g>| {
                let x = x.view([-1, (size + size * size) as i32]);
                let vectors = x.narrow(1, size as i32..).view([-1, size as i32, size as i32]);
                (x.narrow(1, ..size as i32), vectors)
            };
            let ((values, vectors), (of_values, of_vectors)) =
                (split(site.arg(0)?), split(site.arg(1)?));
            let gaps = values.unsqueeze(1) - values.unsqueeze(2);
            let equal = gaps.abs().less_equal(CLOSE);
            let shared = first_transposed(vectors, of_vectors);
            let middle = equal.select(shared * 0.0, shared / equal.select(gaps * 0.0 + 1.0, gaps));
            let middle = unit(site, size) * of_values.unsqueeze(1) + middle;
            symmetric(vectors.dot(middle).matmul_t(vectors))
        }
        Op::BiMap => {
            let [w, x] = site.operands()?;
            w.dot(x).matmul_t(w)
        }
        Op::ReEig { eps } => spectral(site, Function::Floor(*eps))?,
        Op::LogEig { eps } => spectral(site, Function::Log(*eps))?,
        Op::ReEigBackward { eps } => {
            let (spectrum, dy) = handed(site)?;
            spectrum.slope(Function::Floor(*eps), dy)
        }
        Op::LogEigBackward { eps } => {
            let (spectrum, dy) = handed(site)?;
            spectrum.slope(Function::Log(*eps), dy)
        }
        Op::SpdMatrixFnBatch { kind } => Spectrum::of(site.arg(0)?).map(named(*kind)),
        Op::SpdMatrixFnBatchBackward { kind } => {
            Spectrum::of(site.arg(0)?).slope(named(*kind), site.arg(1)?)
        }
        Op::SpdBatchNorm { eps } => {
            let [x, mean, bias] = site.operands()?;
            let outer = Spectrum::of(bias).map(Function::Root(*eps));
            outer.dot(centred(x, mean, *eps)).dot(outer)
        }
        Op::SpdBatchNormBackwardX { eps } => {
            let [mean, bias, dy] = site.operands()?;
            let inner = Spectrum::of(mean).map(Function::InverseRoot(*eps));
            let factor = inner.dot(Spectrum::of(bias).map(Function::Root(*eps)));
            symmetric(factor.dot(dy).matmul_t(factor))
        }
        Op::SpdBatchNormBackwardG { eps } => {
            let [x, mean, bias, dy] = site.operands()?;
            let centred = centred(x, mean, *eps);
            let spectrum = Spectrum::of(bias);
            let outer = spectrum.map(Function::Root(*eps));
            let both = dy.dot(outer).dot(centred) + centred.dot(outer).dot(dy);
            spectrum.slope(Function::Root(*eps), both.sum([0], true))
        }
        Op::SpdKarcherMean { iters, tol } => {
            let x = matrices(site.arg(0)?);
            let even = vec![1.0 / x.extent(0) as f32; x.extent(0)];
            let weights = site.graph.floats([x.extent(0)], &even);
            karcher(site, x, weights, *iters, *tol)
        }
        Op::SpdKarcherMeanWeighted { iters, tol } => {
            let (x, weights) = (matrices(site.arg(0)?), site.arg(1)?);
            karcher(site, x, weights / weights.sum([0], true), *iters, *tol)
        }
        Op::SpdLogMap => Map::new(site.arg(0)?, site.arg(1)?, LOG).value(),
        Op::SpdExpMap => Map::new(site.arg(0)?, site.arg(1)?, Function::Exp).value(),
        Op::SpdLogMapBackward => {
            let map = Map::new(site.arg(0)?, site.arg(1)?, LOG);
            site.packed(map.slopes(site.arg(2)?))
        }
        Op::SpdExpMapBackward => {
            let map = Map::new(site.arg(0)?, site.arg(1)?, Function::Exp);
            site.packed(map.slopes(site.arg(2)?))
        }
        Op::SpdParallelTransport => {
            let [from, to, x] = site.operands()?;
            let transport = Map::new(from, to, ROOT).transport();
            symmetric(transport.dot(x).matmul_t(transport))
        }
        Op::SpdParallelTransportBackward => {
            let [from, to, x, dy] = site.operands()?;
            let map = Map::new(from, to, ROOT);
            let transport = map.transport();
            let dy = symmetric(matrices(dy));
            let of_x = symmetric(first_transposed(transport, dy.dot(transport)));
            let of_transport = dy.dot(transport).dot(matrices(x)) * 2.0;
            let (root, inverse, inner) = (map.root, map.inverse, map.inner());
            let of_root = of_transport.dot(inverse).dot(inner);
            let of_inner = root.dot(of_transport).dot(inverse);
            let of_inverse = inner.dot(root).dot(of_transport);
            let of_product = map.product.slope(ROOT, of_inner);
            let of_to = symmetric(inverse.dot(of_product).dot(inverse));
            let chained = of_product.dot(inverse).dot(map.other);
            let of_inverse = of_inverse + chained + chained.swap(1, 2);
            let of_from = map.base.slope(ROOT, of_root) + map.base.slope(INVERSE_ROOT, of_inverse);
            site.packed([symmetric(of_from), of_to, of_x])
        }
        _ => return Ok(None),
    }))
}

/// Eigenvalues with a smaller difference are treated as equal, because `fp32` does not distinguish them.
const CLOSE: f32 = 1e-6;

const LOG: Function = Function::Log(1e-12);
const ROOT: Function = Function::Root(0.0);
const INVERSE_ROOT: Function = Function::InverseRoot(1e-12);

fn named(kind: SpdMatFn) -> Function {
    match kind {
        SpdMatFn::Logm => LOG,
        SpdMatFn::Expm => Function::Exp,
        SpdMatFn::Sqrtm => ROOT,
        SpdMatFn::Invsqrtm => INVERSE_ROOT,
    }
}

/// `[batch, rows, columns]`.
fn matrices(x: Tensor<'_>) -> Tensor<'_> {
    match x.rank() {
        2 => x.unsqueeze(0),
        _ => x,
    }
}

/// The right-hand side of an equation as `[batch, rows, columns]`.
fn right_side<'g>(a: Tensor<'g>, b: Tensor<'g>) -> Tensor<'g> {
    let (batch, size) = (a.extent(0), a.extent(1));
    b.view([batch as i32, size as i32, -1])
}

fn symmetric(x: Tensor<'_>) -> Tensor<'_> {
    (x + x.swap(-1, -2)) * 0.5
}

fn first_transposed<'g>(x: Tensor<'g>, y: Tensor<'g>) -> Tensor<'g> {
    x.matmul(y, ops::Matmul::new().transpose_x(true))
}

fn unit<'g>(site: &NodeContext<'_, 'g>, size: usize) -> Tensor<'g> {
    let mut elements = vec![0.0; size * size];
    elements.iter_mut().step_by(size + 1).for_each(|element| *element = 1.0);
    site.graph.floats([size, size], &elements)
}

/// Function of the eigenvalues, which are at least the given number.
#[derive(Clone, Copy)]
enum Function {
    Floor(f32),
    Log(f32),
    Exp,
    Root(f32),
    InverseRoot(f32),
}

impl Function {
    fn value<'g>(self, x: Tensor<'g>) -> Tensor<'g> {
        match self {
            Function::Floor(least) => x.maximum(least),
            Function::Log(least) => x.maximum(least).log(ops::Log::new().epsilon(0.0)),
            Function::Exp => x.exp(),
            Function::Root(least) => x.maximum(least).sqrt(),
            Function::InverseRoot(least) => 1.0 / x.maximum(least).sqrt(),
        }
    }

    fn slope<'g>(self, x: Tensor<'g>) -> Tensor<'g> {
        match self {
            Function::Floor(least) => x.greater(least).cast(DType::Fp32),
            Function::Log(least) => 1.0 / x.maximum(least),
            Function::Exp => x.exp(),
            Function::Root(least) => 0.5 / x.maximum(least.max(1e-12)).sqrt(),
            Function::InverseRoot(least) => {
                let x = x.maximum(least.max(1e-12));
                -0.5 / (x * x.sqrt())
            }
        }
    }
}

/// Eigenvalues and eigenvectors of symmetric matrices.
#[derive(Clone, Copy)]
struct Spectrum<'g> {
    values: Tensor<'g>,
    vectors: Tensor<'g>,
}

impl<'g> Spectrum<'g> {
    fn of(x: Tensor<'g>) -> Spectrum<'g> {
        let (values, vectors) = nn::eigh(matrices(x));
        Spectrum { values, vectors }
    }

    /// The matrix with a function applied to its eigenvalues.
    fn map(self, function: Function) -> Tensor<'g> {
        (self.vectors * function.value(self.values).unsqueeze(1)).matmul_t(self.vectors)
    }

    /// The gradient of `map` by the formula of Daleckii and Krein: differences of values divided by
    /// differences of eigenvalues.
    fn slope(self, function: Function, dy: Tensor<'g>) -> Tensor<'g> {
        let dy = symmetric(matrices(dy));
        let inner = first_transposed(self.vectors, dy.dot(self.vectors));
        let across = |x: Tensor<'g>| x.unsqueeze(2) - x.unsqueeze(1);
        let gaps = across(self.values);
        let near = self.values.abs().max([1], true).maximum(1.0) * CLOSE;
        let equal = gaps.abs().less_equal(near.unsqueeze(2));
        let steps = across(function.value(self.values)) / equal.select(gaps * 0.0 + 1.0, gaps);
        let slopes = function.slope(self.values).unsqueeze(2) + gaps * 0.0;
        let middle = inner * equal.select(slopes, steps);
        symmetric(self.vectors.dot(middle).matmul_t(self.vectors))
    }
}

/// A function of eigenvalues: the matrix, then the eigenvalues and the eigenvectors as rows if the node's
/// result includes them.
fn spectral<'g>(site: &NodeContext<'_, 'g>, function: Function) -> Result<Tensor<'g>, Error> {
    let found = Spectrum::of(site.arg(0)?);
    let matrix = found.map(function);
    let (size, room) = (matrix.extent(1), site.shape()?.iter().product::<usize>());
    match room {
        _ if room == size * size => Ok(matrix),
        _ if room == 2 * size * size + size => {
            Ok(site.packed([matrix, found.values, found.vectors.swap(1, 2)]))
        }
        _ => site.refuse(format!(
            "has a result of {room} elements, which does not match a matrix with {size} rows"
        )),
    }
}

/// Eigenvalues and eigenvectors of the forward pass, and a gradient. Three operands contain them, with the
/// eigenvectors as rows. Two operands are the matrix itself and the gradient.
fn handed<'g>(site: &NodeContext<'_, 'g>) -> Result<(Spectrum<'g>, Tensor<'g>), Error> {
    if site.args.len() < 3 {
        return Ok((Spectrum::of(site.arg(0)?), site.arg(1)?));
    }
    let [values, vectors, dy] = site.operands()?;
    let size = values.shape().iter().product::<usize>();
    let vectors = vectors.view([1, size, size]).swap(1, 2);
    Ok((Spectrum { values: values.view([1, size]), vectors }, dy.view([1, size, size])))
}

fn centred<'g>(x: Tensor<'g>, mean: Tensor<'g>, least: f32) -> Tensor<'g> {
    let inner = Spectrum::of(mean).map(Function::InverseRoot(least));
    inner.dot(matrices(x)).dot(inner)
}

/// The square root and the inverse square root of a base matrix, and another matrix multiplied by the latter
/// on both sides.
struct Map<'g> {
    base: Spectrum<'g>,
    root: Tensor<'g>,
    inverse: Tensor<'g>,
    other: Tensor<'g>,
    product: Spectrum<'g>,
    function: Function,
}

impl<'g> Map<'g> {
    fn new(base: Tensor<'g>, other: Tensor<'g>, function: Function) -> Map<'g> {
        let base = Spectrum::of(base);
        let (root, inverse) = (base.map(ROOT), base.map(INVERSE_ROOT));
        let other = matrices(other);
        let product = Spectrum::of(inverse.dot(other).dot(inverse));
        Map { base, root, inverse, other, product, function }
    }

    fn inner(&self) -> Tensor<'g> {
        self.product.map(self.function)
    }

    fn value(&self) -> Tensor<'g> {
        self.root.dot(self.inner()).dot(self.root)
    }

    fn transport(&self) -> Tensor<'g> {
        self.root.dot(self.inner()).dot(self.inverse)
    }

    /// The gradients of the base and of the other matrix.
    fn slopes(&self, dy: Tensor<'g>) -> [Tensor<'g>; 2] {
        let dy = symmetric(matrices(dy));
        let of_inner = self.root.dot(dy).dot(self.root);
        let of_product = self.product.slope(self.function, of_inner);
        let of_other = symmetric(self.inverse.dot(of_product).dot(self.inverse));
        let with_transposed = |x: Tensor<'g>| x + x.swap(1, 2);
        let of_root = with_transposed(dy.dot(self.root).dot(self.inner()));
        let of_inverse = with_transposed(of_product.dot(self.inverse).dot(self.other));
        let of_base = self.base.slope(ROOT, of_root) + self.base.slope(INVERSE_ROOT, of_inverse);
        [symmetric(of_base), of_other]
    }
}

/// The mean for which the tangents to all matrices sum to zero. Steps after convergence have no effect, so
/// all of them are executed.
fn karcher<'g>(
    site: &NodeContext<'_, 'g>,
    x: Tensor<'g>,
    weights: Tensor<'g>,
    steps: u32,
    tolerance: f32,
) -> Tensor<'g> {
    let weights = weights.view([-1, 1, 1]);
    let start = (x * weights).sum([0], true);
    let going = site.graph.floats([1, 1, 1], &[1.0]);
    let last = nn::repeat(site.graph, steps as usize, &[start, going], |_, carried| {
        let mean = Spectrum::of(carried[0]);
        let (root, inverse) = (mean.map(ROOT), mean.map(INVERSE_ROOT));
        let tangents = Spectrum::of(inverse.dot(x).dot(inverse)).map(LOG);
        let tangent = (tangents * weights).sum([0], true);
        let next = root.dot(Spectrum::of(tangent).map(Function::Exp)).dot(root);
        let size = tangent.square().sum([1, 2], true).sqrt();
        let next = carried[0] + (next - carried[0]) * carried[1];
        vec![next, carried[1] * size.greater_equal(tolerance).cast(DType::Fp32)]
    });
    last[0]
}
