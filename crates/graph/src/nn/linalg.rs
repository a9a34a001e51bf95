//! Linear algebra from matrix products and masks, since Core ML has no such operations.
//!
//! Matrices have one leading batch axis. Every step is masked arithmetic on whole matrices, so that all steps
//! have the same body: [`repeat`] unrolls a few steps and uses a `while_loop` for more.

use super::scan::repeat;
use super::{fits, has_axes, is_square, place, zeros};
use crate::graph::Graph;
use crate::ops;
use crate::tensor::Tensor;

/// Lower bound of a sum of squares, to avoid division by 0. Matrices are scaled to elements of about 1.
const TINY: f32 = 1e-7;

#[track_caller]
fn places(graph: &Graph, count: usize) -> Tensor<'_> {
    if !fits(graph, "a vector of indices", &[count]) {
        return graph.nothing();
    }
    let places: Vec<i32> = (0..place(count)).collect();
    graph.ints([count], &places)
}

#[track_caller]
fn as_float(condition: Tensor<'_>) -> Tensor<'_> {
    condition.cast(crate::DType::Fp32)
}

/// A one-hot vector.
#[track_caller]
fn mark<'g>(place: Tensor<'g>, count: usize) -> Tensor<'g> {
    as_float(places(place.graph(), count).equal(place))
}

#[track_caller]
fn identity(graph: &Graph, size: usize) -> Tensor<'_> {
    if !fits(graph, "an identity matrix", &[size, size]) {
        return graph.nothing();
    }
    let mut elements = vec![0.0; size * size];
    elements.iter_mut().step_by(size + 1).for_each(|element| *element = 1.0);
    graph.floats([size, size], &elements)
}

#[track_caller]
fn log(x: Tensor<'_>) -> Tensor<'_> {
    x.log(ops::Log::new().epsilon(0.0))
}

struct EliminationResult<'g> {
    solution: Tensor<'g>,
    determinant: Tensor<'g>,
    log_determinant: Tensor<'g>,
}

/// Gauss-Jordan elimination. The pivot is the largest element of each column among the remaining rows.
#[track_caller]
fn eliminate<'g>(a: Tensor<'g>, b: Tensor<'g>) -> EliminationResult<'g> {
    let graph = a.graph();
    let (batch, size) = (a.extent(0), a.extent(1));
    let width = size + b.extent(2);
    let start = [
        graph.concat([a, b], -1, Default::default()),
        zeros(graph, &[batch, size, size]),
        zeros(graph, &[batch, size]) + 1.0,
        zeros(graph, &[batch, 1]) + 1.0,
        zeros(graph, &[batch, 1]),
    ];
    let last = repeat(graph, size, &start, |step, carried| {
        let [rows, order, left, determinant, logarithm] =
            [carried[0], carried[1], carried[2], carried[3], carried[4]];
        let column = (rows * mark(step, width)).sum([2], false);
        let best = ((column.abs() + 1.0) * left).argmax(1).unsqueeze(1);
        let row = as_float(places(graph, size).equal(best));
        let pivot = (column * row).sum([1], true);
        let scaled = (rows * row.unsqueeze(2)).sum([1], true) / pivot.unsqueeze(2);
        // Each remaining row above the pivot's row is one exchange.
        let above = (left * as_float(places(graph, size).less(best))).sum([1], true);
        let parity = 1.0 - (above % 2.0) * 2.0;
        vec![
            rows - (column - row).unsqueeze(2) * scaled,
            order + mark(step, size).view([1, size, 1]) * row.unsqueeze(1),
            left - row,
            determinant * pivot * parity,
            logarithm + log(pivot.abs()),
        ]
    });
    let flat = ops::Squeeze::new().axes([1]);
    EliminationResult {
        solution: last[1].dot(last[0].narrow(-1, place(size)..)),
        determinant: last[3].squeeze(flat.clone()),
        log_determinant: last[4].squeeze(flat),
    }
}

/// Solves `a x = b` for `[batch, n, n]` and `[batch, n, columns]`.
#[track_caller]
pub fn solve<'g>(a: Tensor<'g>, b: Tensor<'g>) -> Tensor<'g> {
    if !is_square(a, "`solve`") || !has_axes(b, "`solve`", &["batch", "n", "columns"]) {
        return a.graph().nothing();
    }
    eliminate(a, b).solution
}

/// Determinants of `[batch, n, n]`, and the logarithms of their absolute values, which do not overflow.
#[track_caller]
pub fn determinant(a: Tensor<'_>) -> (Tensor<'_>, Tensor<'_>) {
    if !is_square(a, "`determinant`") {
        return (a.graph().nothing(), a.graph().nothing());
    }
    let unit = zeros(a.graph(), &[a.extent(0), a.extent(1), 1]);
    let found = eliminate(a, unit);
    (found.determinant, found.log_determinant)
}

/// Cholesky factor: the lower triangle `l` with `a = l lᵀ` of a positive definite `[batch, n, n]`.
#[track_caller]
pub fn cholesky(a: Tensor<'_>) -> Tensor<'_> {
    let graph = a.graph();
    if !is_square(a, "`cholesky`") {
        return graph.nothing();
    }
    let size = a.extent(1);
    let start = [a, zeros(graph, &a.shape())];
    let last = repeat(graph, size, &start, |step, carried| {
        let own = mark(step, size);
        let column = (carried[0] * own).sum([2], false);
        let root = (column * own).sum([1], true).sqrt();
        let column = column * as_float(places(graph, size).greater_equal(step)) / root;
        let tall = column.unsqueeze(2);
        vec![carried[0] - tall * column.unsqueeze(1), carried[1] + tall * own]
    });
    last[1]
}

/// Solves `a x = b`, where `a` is a triangular matrix. The other triangle is ignored.
#[track_caller]
pub fn solve_triangular<'g>(a: Tensor<'g>, b: Tensor<'g>, lower: bool) -> Tensor<'g> {
    let graph = a.graph();
    let what = "`solve_triangular`";
    if !is_square(a, what) || !has_axes(b, what, &["batch", "n", "columns"]) {
        return graph.nothing();
    }
    let size = a.extent(1);
    let start = [zeros(graph, &b.shape())];
    let last = repeat(graph, size, &start, |step, carried| {
        // Unsolved elements are 0, so the other triangle has no effect.
        let step = if lower { step } else { step * -1 + (place(size) - 1) };
        let own = mark(step, size);
        let tall = own.view([size, 1]);
        let row = (a * tall).sum([1], true);
        let diagonal = (row * own).sum([2], true);
        let known = row.dot(carried[0]);
        vec![carried[0] + tall * (((b * tall).sum([1], true) - known) / diagonal)]
    });
    last[0]
}

/// QR decomposition of `[batch, m, n]` by Householder reflections: `[batch, m, k]` and `[batch, k, n]`, where
/// `k` is the smaller size. Signs are as in LAPACK.
#[track_caller]
pub fn qr(a: Tensor<'_>) -> (Tensor<'_>, Tensor<'_>) {
    let graph = a.graph();
    if !has_axes(a, "`qr`", &["batch", "m", "n"]) {
        return (graph.nothing(), graph.nothing());
    }
    let (batch, rows, columns) = (a.extent(0), a.extent(1), a.extent(2));
    let rank = rows.min(columns);
    let unit = identity(graph, rows).unsqueeze(0).broadcast_to([batch, rows, rows]);
    let last = repeat(graph, rank, &[a, unit], |step, carried| {
        let own = mark(step, rows);
        let column = (carried[0] * mark(step, columns)).sum([2], false);
        let below = column * as_float(places(graph, rows).greater(step));
        let square = below.square().sum([1], true);
        let head = (column * own).sum([1], true);
        let sign = as_float(head.greater_equal(0.0)) * 2.0 - 1.0;
        // If all elements below the diagonal are zero, nothing is reflected.
        let reflects = as_float(square.greater(0.0));
        let v = below + (head + sign * (head.square() + square).sqrt()) * own;
        let factor = (reflects * 2.0 / (v.square().sum([1], true) + (1.0 - reflects))).unsqueeze(2);
        let (tall, wide) = (v.unsqueeze(2), v.unsqueeze(1));
        vec![
            carried[0] - factor * tall * wide.dot(carried[0]),
            carried[1] - factor * carried[1].dot(tall) * wide,
        ]
    });
    let upper = last[0].narrow(1, ..place(rank));
    let upper = upper.band_part(ops::BandPart::new().lower(0).upper(-1));
    (last[1].narrow(2, ..place(rank)), upper)
}

/// Rounds of a round-robin tournament: the opponent of each player, or the player itself without an opponent.
fn rounds(size: usize) -> Vec<Vec<usize>> {
    let players = size + size % 2;
    let player = |seat: usize, round: usize| match seat {
        0 => 0,
        _ => 1 + (seat - 1 + round) % (players - 1),
    };
    (0..players.saturating_sub(1))
        .map(|round| {
            let mut met: Vec<usize> = (0..size).collect();
            for seat in 0..players / 2 {
                let (a, b) = (player(seat, round), player(players - 1 - seat, round));
                if a.max(b) < size {
                    (met[a], met[b]) = (b, a);
                }
            }
            met
        })
        .collect()
}

/// Jacobi rotations of many pairs of axes at once. The body receives the rotation for the pairs of `gram`.
struct Jacobi<'g> {
    /// `[rounds, size, size]`: 1 if the row's axis and the column's axis are a pair.
    pairs: Tensor<'g>,
    /// `[rounds, size]`: the side of an axis in its pair.
    sides: Tensor<'g>,
    rounds: usize,
    size: usize,
}

impl<'g> Jacobi<'g> {
    #[track_caller]
    fn new(graph: &'g Graph, size: usize) -> Jacobi<'g> {
        if !fits(graph, "a table of rotation rounds", &[size, size, size]) {
            let nothing = graph.nothing();
            return Jacobi { pairs: nothing, sides: nothing, rounds: 1, size };
        }
        let all = rounds(size);
        let (mut pairs, mut sides) = (Vec::new(), Vec::new());
        for met in &all {
            for (own, &other) in met.iter().enumerate() {
                pairs.extend((0..size).map(|at| f32::from(u8::from(at == other && at != own))));
                sides.push(if own < other { 1.0 } else { -1.0 });
            }
        }
        let count = all.len().max(1);
        pairs.resize(count * size * size, 0.0);
        sides.resize(count * size, 1.0);
        Jacobi {
            pairs: graph.floats([count, size, size], &pairs),
            sides: graph.floats([count, size], &sides),
            rounds: count,
            size,
        }
    }

    /// Sufficient number of steps. Convergence is quadratic, so the number of sweeps hardly grows with the
    /// size.
    fn steps(&self) -> usize {
        self.rounds * (4 + self.size.next_power_of_two().ilog2() as usize)
    }

    #[track_caller]
    fn rotation(&self, step: Tensor<'g>, gram: Tensor<'g>) -> Tensor<'g> {
        let graph = gram.graph();
        let round = (step % place(self.rounds)).expand_dims([0]);
        let own = ops::Gather::new().axis(0);
        let pairs = self.pairs.gather(round, own.clone());
        let side = self.sides.gather(round, own);
        let unit = identity(graph, self.size);
        let diagonal = (gram * unit).sum([2], false);
        let shared = (gram * pairs).sum([2], false);
        let ahead = (diagonal.unsqueeze(1) * pairs).sum([2], false) - diagonal;
        let direction = as_float(ahead.greater(0.0)) - as_float(ahead.less(0.0))
            + as_float(ahead.equal(0.0)) * side;
        let length = ahead.abs() + (ahead.square() + shared.square() * 4.0).sqrt();
        let tangent = shared * direction * 2.0 / length.maximum(1e-30);
        let cosine = 1.0 / (tangent.square() + 1.0).sqrt();
        cosine.unsqueeze(2) * unit + (tangent * cosine).unsqueeze(2) * pairs
    }
}

/// Reorders columns.
#[track_caller]
fn columns<'g>(matrix: Tensor<'g>, order: Tensor<'g>) -> Tensor<'g> {
    let chosen = order.one_hot(place(matrix.extent(2)), ops::OneHot::new().axis(-1));
    matrix.matmul_t(as_float(chosen))
}

/// The largest absolute value of each matrix, with a small lower bound.
#[track_caller]
fn magnitude(a: Tensor<'_>) -> Tensor<'_> {
    a.abs().max([1, 2], true).maximum(TINY)
}

/// Eigenvalues `[batch, n]` of symmetric `[batch, n, n]`, in ascending order, with the eigenvectors as
/// columns, by Jacobi rotations. The signs of the vectors are unspecified.
#[track_caller]
pub fn eigh(a: Tensor<'_>) -> (Tensor<'_>, Tensor<'_>) {
    let graph = a.graph();
    if !is_square(a, "`eigh`") {
        return (graph.nothing(), graph.nothing());
    }
    let (batch, size) = (a.extent(0), a.extent(1));
    let scale = magnitude(a);
    let jacobi = Jacobi::new(graph, size);
    let unit = identity(graph, size).unsqueeze(0).broadcast_to([batch, size, size]);
    let last = repeat(graph, jacobi.steps(), &[a / scale, unit], |step, carried| {
        let turn = jacobi.rotation(step, carried[0]);
        let turned = carried[0].dot(turn);
        let turned = turn.matmul(turned, ops::Matmul::new().transpose_x(true));
        vec![turned, carried[1].dot(turn)]
    });
    let values = (last[0] * identity(graph, size)).sum([2], false);
    let options = ops::Topk::new().k(place(size)).axis(1).ascending(true);
    let (values, order) = values.topk(options);
    (values * scale.view([batch, 1]), columns(last[1], order))
}

/// Thin singular value decomposition of `[batch, m, n]`: `[batch, m, k]`, `[batch, k]` in descending order,
/// and `[batch, k, n]`, by rotations of columns. Vectors for singular values of 0 are 0; signs are
/// unspecified.
#[track_caller]
pub fn svd(a: Tensor<'_>) -> (Tensor<'_>, Tensor<'_>, Tensor<'_>) {
    if !has_axes(a, "`svd`", &["batch", "m", "n"]) {
        return (a.graph().nothing(), a.graph().nothing(), a.graph().nothing());
    }
    let (batch, rows, wide) = (a.extent(0), a.extent(1), a.extent(2));
    if rows < wide {
        let (u, values, v) = svd(a.swap(1, 2));
        return (v.swap(1, 2), values, u.swap(1, 2));
    }
    let graph = a.graph();
    let scale = magnitude(a);
    let jacobi = Jacobi::new(graph, wide);
    let unit = identity(graph, wide).unsqueeze(0).broadcast_to([batch, wide, wide]);
    let last = repeat(graph, jacobi.steps(), &[a / scale, unit], |step, carried| {
        let gram = carried[0].matmul(carried[0], ops::Matmul::new().transpose_x(true));
        let turn = jacobi.rotation(step, gram);
        vec![carried[0].dot(turn), carried[1].dot(turn)]
    });
    let lengths = last[0].square().sum([1], false).sqrt();
    let options = ops::Topk::new().k(place(wide)).axis(1);
    let (values, order) = lengths.topk(options);
    let u = columns(last[0], order) / values.unsqueeze(1).maximum(TINY);
    (u, values * scale.view([batch, 1]), columns(last[1], order).swap(1, 2))
}
