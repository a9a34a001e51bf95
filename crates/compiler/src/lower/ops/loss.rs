//! Losses: how far predictions are from what they should be.

use coremill_mil::ir::ValueId;
use coremill_mil::ops::OpKind;

use crate::error::{Refusal, refuse};
use crate::lower::builder::Builder;
use crate::lower::call::{Call, Results};
use crate::lower::dtype::is_float;
use crate::lower::table::{Row, all};
use crate::lower::value::Lowered;

pub(crate) const ROWS: &[Row] = &[
    all("aten.mse_loss", |call| of_distance(call, squares)),
    all("aten.l1_loss", |call| {
        of_distance(call, |_, builder, distance| builder.unary(OpKind::Abs, distance))
    }),
    all("aten.smooth_l1_loss", |call| of_distance(call, smooth)),
    all("aten.huber_loss", |call| of_distance(call, huber)),
    all("aten.binary_cross_entropy", binary_cross_entropy),
    all("aten.binary_cross_entropy_with_logits", binary_cross_entropy_of_logits),
    all("aten.kl_div", divergence),
    all("aten.soft_margin_loss", soft_margin),
    all("aten.poisson_nll_loss", poisson),
    all("aten.hinge_embedding_loss", hinge),
    all("aten.margin_ranking_loss", ranking),
    all("aten.triplet_margin_loss", triplet),
    all("aten.cosine_embedding_loss", cosine),
    all("aten.nll_loss", nll),
    all("aten.nll_loss2d", nll),
    all("aten.nll_loss_nd", nll),
    all("aten.nll_loss_forward", nll),
    all("aten.nll_loss2d_forward", nll),
    all("aten.cross_entropy_loss", cross_entropy),
];

/// What becomes of the losses of the elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reduction {
    None,
    Mean,
    Sum,
}

impl Reduction {
    fn of(call: &mut Call<'_, '_>) -> Result<Reduction, Refusal> {
        match call.known_int("reduction")? {
            0 => Ok(Reduction::None),
            1 => Ok(Reduction::Mean),
            2 => Ok(Reduction::Sum),
            other => refuse!("`reduction` is {other}; accepted are 0, none, 1, mean, and 2, sum"),
        }
    }

    fn apply(self, builder: &mut Builder, losses: ValueId) -> Result<ValueId, Refusal> {
        let axes: Vec<_> = (0..builder.rank(losses)).collect();
        match self {
            _ if axes.is_empty() => Ok(losses),
            Reduction::None => Ok(losses),
            Reduction::Mean => builder.reduced(OpKind::ReduceMean, losses, &axes, false),
            Reduction::Sum => builder.reduced(OpKind::ReduceSum, losses, &axes, false),
        }
    }
}

/// The losses of all elements, reduced as torch says.
fn give(call: &mut Call<'_, '_>, losses: ValueId) -> Results {
    let reduction = Reduction::of(call)?;
    let loss = reduction.apply(call, losses)?;
    call.give(loss)
}

/// Two tensors in the type of the result.
fn both(call: &mut Call<'_, '_>, names: [&str; 2]) -> Result<[ValueId; 2], Refusal> {
    let dtype = call.result_dtype()?;
    if !is_float(dtype) {
        refuse!("losses of `{dtype}` are not lowered; accepted are floats");
    }
    let mut values = Vec::with_capacity(2);
    for name in names {
        let value = call.tensor(name)?.value;
        values.push(call.cast_to(value, dtype)?);
    }
    Ok([values[0], values[1]])
}

/// What a loss makes of a distance; the first argument is what it has for a threshold.
type OfDistance = fn(f64, &mut Builder, ValueId) -> Result<ValueId, Refusal>;

fn of_distance(call: &mut Call<'_, '_>, loss: OfDistance) -> Results {
    let [x, y] = both(call, ["self", "target"])?;
    let mut threshold = 0.0;
    for name in ["beta", "delta"] {
        if call.has(name) {
            threshold = call.float(name)?;
        }
    }
    let distance = call.binary(OpKind::Sub, x, y)?;
    let losses = loss(threshold, call, distance)?;
    give(call, losses)
}

fn squares(_: f64, builder: &mut Builder, distance: ValueId) -> Result<ValueId, Refusal> {
    builder.binary(OpKind::Mul, distance, distance)
}

/// Squares near zero, then lines.
fn smooth(beta: f64, builder: &mut Builder, distance: ValueId) -> Result<ValueId, Refusal> {
    if beta == 0.0 {
        return builder.unary(OpKind::Abs, distance);
    }
    let losses = huber(beta, builder, distance)?;
    builder.scaled(losses, 1.0 / beta)
}

/// `m · (|d| - m / 2)` with the smaller of `|d|` and the threshold for `m`.
fn huber(delta: f64, builder: &mut Builder, distance: ValueId) -> Result<ValueId, Refusal> {
    let size = builder.unary(OpKind::Abs, distance)?;
    let near = builder.binary(OpKind::Minimum, size, delta as f32)?;
    let half = builder.scaled(near, 0.5)?;
    let rest = builder.binary(OpKind::Sub, size, half)?;
    builder.binary(OpKind::Mul, near, rest)
}

/// torch lets no logarithm fall below this.
const LEAST_LOGARITHM: f32 = -100.0;

fn binary_cross_entropy(call: &mut Call<'_, '_>) -> Results {
    let [x, target] = both(call, ["self", "target"])?;
    let one_less = |builder: &mut Builder, x: ValueId| builder.binary(OpKind::Sub, 1.0f32, x);
    let (other, rest) = (one_less(call, x)?, one_less(call, target)?);
    let mut terms = Vec::with_capacity(2);
    for (probability, share) in [(x, target), (other, rest)] {
        let logarithm = logarithm(call, probability)?;
        let bounded = call.binary(OpKind::Maximum, logarithm, LEAST_LOGARITHM)?;
        terms.push(call.binary(OpKind::Mul, bounded, share)?);
    }
    let sum = call.binary(OpKind::Add, terms[0], terms[1])?;
    let losses = call.scaled(sum, -1.0)?;
    let losses = weighted(call, losses)?;
    give(call, losses)
}

fn logarithm(builder: &mut Builder, x: ValueId) -> Result<ValueId, Refusal> {
    builder.emit(OpKind::Log, [("x", x.into()), ("epsilon", 0.0f32.into())])
}

fn weighted(call: &mut Call<'_, '_>, losses: ValueId) -> Result<ValueId, Refusal> {
    match call.optional_tensor("weight")? {
        Some(weight) => call.binary(OpKind::Mul, losses, weight.value),
        None => Ok(losses),
    }
}

/// `(1 - t) x + (1 + (p - 1) t) · log(1 + e^-x)`.
fn binary_cross_entropy_of_logits(call: &mut Call<'_, '_>) -> Results {
    let [x, target] = both(call, ["self", "target"])?;
    let positive = call.optional_tensor("pos_weight")?.map(|weight| weight.value);
    let opposite = call.scaled(x, -1.0)?;
    let mut softplus = call.unary(OpKind::Softplus, opposite)?;
    if let Some(positive) = positive {
        let more = call.binary(OpKind::Sub, positive, 1.0f32)?;
        let more = call.binary(OpKind::Mul, more, target)?;
        let factor = call.binary(OpKind::Add, more, 1.0f32)?;
        softplus = call.binary(OpKind::Mul, softplus, factor)?;
    }
    let rest = call.binary(OpKind::Sub, 1.0f32, target)?;
    let linear = call.binary(OpKind::Mul, rest, x)?;
    let losses = call.binary(OpKind::Add, linear, softplus)?;
    let losses = weighted(call, losses)?;
    give(call, losses)
}

/// `t (log t - x)`, which is nothing where `t` is.
fn divergence(call: &mut Call<'_, '_>) -> Results {
    let [x, target] = both(call, ["self", "target"])?;
    let losses = if call.flag("log_target")? {
        let share = call.unary(OpKind::Exp, target)?;
        let distance = call.binary(OpKind::Sub, target, x)?;
        call.binary(OpKind::Mul, share, distance)?
    } else {
        // The logarithm of the least normal number stands in for that of zero.
        let bounded = call.binary(OpKind::Maximum, target, f32::MIN_POSITIVE)?;
        let logarithm = logarithm(call, bounded)?;
        let distance = call.binary(OpKind::Sub, logarithm, x)?;
        call.binary(OpKind::Mul, target, distance)?
    };
    give(call, losses)
}

fn soft_margin(call: &mut Call<'_, '_>) -> Results {
    let [x, target] = both(call, ["self", "target"])?;
    let product = call.binary(OpKind::Mul, x, target)?;
    let opposite = call.scaled(product, -1.0)?;
    let losses = call.unary(OpKind::Softplus, opposite)?;
    give(call, losses)
}

fn poisson(call: &mut Call<'_, '_>) -> Results {
    let [x, target] = both(call, ["input", "target"])?;
    if call.flag("full")? {
        refuse!("`poisson_nll_loss` with `full` is not lowered; accepted is without");
    }
    let losses = if call.flag("log_input")? {
        let expected = call.unary(OpKind::Exp, x)?;
        let seen = call.binary(OpKind::Mul, target, x)?;
        call.binary(OpKind::Sub, expected, seen)?
    } else {
        let epsilon = call.float("eps")? as f32;
        let moved = call.binary(OpKind::Add, x, epsilon)?;
        let logarithm = logarithm(call, moved)?;
        let seen = call.binary(OpKind::Mul, target, logarithm)?;
        call.binary(OpKind::Sub, x, seen)?
    };
    give(call, losses)
}

/// What is above zero, and zero for the rest.
fn above_zero(builder: &mut Builder, x: ValueId) -> Result<ValueId, Refusal> {
    builder.unary(OpKind::Relu, x)
}

/// One loss where the target is 1, the other where it is -1.
fn by_target(
    builder: &mut Builder,
    target: ValueId,
    alike: ValueId,
    apart: ValueId,
) -> Result<ValueId, Refusal> {
    let mut terms = Vec::with_capacity(2);
    for (which, loss) in [(1.0, alike), (-1.0, apart)] {
        let is = builder.binary(OpKind::Equal, target, which as f32)?;
        let is = builder.cast(is, coremill_tensor::DType::Fp32)?;
        terms.push(builder.binary(OpKind::Mul, is, loss)?);
    }
    builder.binary(OpKind::Add, terms[0], terms[1])
}

fn missing(builder: &mut Builder, margin: f64, x: ValueId) -> Result<ValueId, Refusal> {
    let missing = builder.binary(OpKind::Sub, margin as f32, x)?;
    above_zero(builder, missing)
}

/// Elements whose target is not -1 count whole, those whose target is not 1 by what they lack.
fn hinge(call: &mut Call<'_, '_>) -> Results {
    let [x, target] = both(call, ["self", "target"])?;
    let margin = call.float("margin")?;
    let missing = missing(call, margin, x)?;
    let mut terms = Vec::with_capacity(2);
    for (which, loss) in [(1.0f32, missing), (-1.0, x)] {
        let is_not = call.binary(OpKind::NotEqual, target, which)?;
        let is_not = call.cast(is_not, coremill_tensor::DType::Fp32)?;
        terms.push(call.binary(OpKind::Mul, is_not, loss)?);
    }
    let losses = call.binary(OpKind::Add, terms[0], terms[1])?;
    give(call, losses)
}

/// What the larger of two lacks.
fn ranking(call: &mut Call<'_, '_>) -> Results {
    let [x, y] = both(call, ["input1", "input2"])?;
    let [target, _] = both(call, ["target", "target"])?;
    let margin = call.float("margin")?;
    let distance = call.binary(OpKind::Sub, x, y)?;
    let right = call.binary(OpKind::Mul, target, distance)?;
    let losses = missing(call, margin, right)?;
    give(call, losses)
}

/// How much nearer the anchor is to the wrong one than to the right one.
fn triplet(call: &mut Call<'_, '_>) -> Results {
    let [anchor, right] = both(call, ["anchor", "positive"])?;
    let [wrong, _] = both(call, ["negative", "negative"])?;
    let (power, epsilon) = (call.float("p")?, call.float("eps")?);
    let margin = call.float("margin")?;
    if power != 2.0 {
        refuse!("`p` is {power}; accepted is 2");
    }
    let to_right = length_between(call, anchor, right, epsilon)?;
    let mut to_wrong = length_between(call, anchor, wrong, epsilon)?;
    if call.flag("swap")? {
        let between = length_between(call, right, wrong, epsilon)?;
        to_wrong = call.binary(OpKind::Minimum, to_wrong, between)?;
    }
    let nearer = call.binary(OpKind::Sub, to_wrong, to_right)?;
    let losses = missing(call, margin, nearer)?;
    give(call, losses)
}

/// The length along the last axis of a difference, which torch moves a bit off zero.
fn length_between(
    builder: &mut Builder,
    x: ValueId,
    y: ValueId,
    epsilon: f64,
) -> Result<ValueId, Refusal> {
    let distance = builder.binary(OpKind::Sub, x, y)?;
    let distance = builder.binary(OpKind::Add, distance, epsilon as f32)?;
    let last = builder.rank(distance).saturating_sub(1);
    builder.reduced(OpKind::ReduceL2Norm, distance, &[last], false)
}

/// How far vectors are from pointing the same way, or how much they do.
fn cosine(call: &mut Call<'_, '_>) -> Results {
    let [x, y] = both(call, ["input1", "input2"])?;
    let [target, _] = both(call, ["target", "target"])?;
    let margin = call.float("margin")?;
    let last = call.rank(x).saturating_sub(1);
    let dot = |call: &mut Call<'_, '_>, x: ValueId, y: ValueId| {
        let products = call.binary(OpKind::Mul, x, y)?;
        call.reduced(OpKind::ReduceSum, products, &[last], false)
    };
    // torch's own distance from zero.
    const EPSILON: f32 = 1e-12;
    let product = dot(call, x, y)?;
    let mut squares = Vec::with_capacity(2);
    for side in [x, y] {
        let square = dot(call, side, side)?;
        squares.push(call.binary(OpKind::Add, square, EPSILON)?);
    }
    let both_squares = call.binary(OpKind::Mul, squares[0], squares[1])?;
    let lengths = call.unary(OpKind::Sqrt, both_squares)?;
    let cosine = call.binary(OpKind::RealDiv, product, lengths)?;
    let alike = call.binary(OpKind::Sub, 1.0f32, cosine)?;
    let beyond = call.binary(OpKind::Sub, cosine, margin as f32)?;
    let apart = above_zero(call, beyond)?;
    let losses = by_target(call, target, alike, apart)?;
    give(call, losses)
}

/// Losses of classes, by the weights that they count with.
struct OfClasses {
    losses: ValueId,
    /// The weight of each, nothing for targets that do not count.
    weights: ValueId,
}

impl OfClasses {
    fn reduce(&self, builder: &mut Builder, reduction: Reduction) -> Result<ValueId, Refusal> {
        let sum = |builder: &mut Builder, value| Reduction::Sum.apply(builder, value);
        match reduction {
            Reduction::None => Ok(self.losses),
            Reduction::Sum => sum(builder, self.losses),
            Reduction::Mean => {
                let (losses, weights) = (sum(builder, self.losses)?, sum(builder, self.weights)?);
                builder.binary(OpKind::RealDiv, losses, weights)
            }
        }
    }
}

/// The axis of the classes: after the batch, or the only one.
fn classes(builder: &Builder, x: ValueId) -> usize {
    usize::from(builder.rank(x) > 1)
}

/// Which class each target is, as zeros and ones along the axis of the classes, and which targets count.
fn chosen(
    call: &mut Call<'_, '_>,
    x: ValueId,
    target: ValueId,
) -> Result<(ValueId, ValueId), Refusal> {
    let axis = classes(call, x);
    let Some(Some(count)) = call.extents(x).get(axis).copied() else {
        refuse!("the number of classes is not known before the program runs");
    };
    let ignored = crate::lower::builder::int32(call.known_int("ignore_index")?)?;
    let target = call.cast(target, coremill_tensor::DType::Int32)?;
    let counts = call.binary(OpKind::NotEqual, target, ignored)?;
    let counts = call.cast(counts, coremill_tensor::DType::Fp32)?;
    let numbers: Vec<i32> = (0..count as i32).collect();
    let mut shape = vec![1; call.rank(x)];
    shape[axis] = count;
    let numbers = call.int_constant(&shape, &numbers);
    let target = call.expand_dims(target, &[axis as i32])?;
    let is_class = call.binary(OpKind::Equal, target, numbers)?;
    Ok((call.cast(is_class, coremill_tensor::DType::Fp32)?, counts))
}

/// The weights of classes along their axis.
fn class_weights(call: &mut Call<'_, '_>, x: ValueId) -> Result<Option<ValueId>, Refusal> {
    let Some(weight) = call.optional_tensor("weight")? else { return Ok(None) };
    let rank = call.rank(x);
    if rank < 3 {
        return Ok(Some(weight.value));
    }
    call.along_channels(weight.value, rank).map(Some)
}

/// The negated logarithm of each target's class, times the weight of the class.
fn of_classes(call: &mut Call<'_, '_>, x: ValueId, target: ValueId) -> Result<OfClasses, Refusal> {
    let axis = classes(call, x);
    let (is_class, counts) = chosen(call, x, target)?;
    let taken = match class_weights(call, x)? {
        Some(weight) => call.binary(OpKind::Mul, is_class, weight)?,
        None => is_class,
    };
    let weights = call.reduced(OpKind::ReduceSum, taken, &[axis], false)?;
    let weights = call.binary(OpKind::Mul, weights, counts)?;
    let products = call.binary(OpKind::Mul, x, is_class)?;
    let sum = call.reduced(OpKind::ReduceSum, products, &[axis], false)?;
    let sum = call.binary(OpKind::Mul, sum, weights)?;
    Ok(OfClasses { losses: call.scaled(sum, -1.0)?, weights })
}

fn nll(call: &mut Call<'_, '_>) -> Results {
    let x = call.tensor("self")?.value;
    let target = call.tensor("target")?.value;
    let reduction = Reduction::of(call)?;
    let of_classes = of_classes(call, x, target)?;
    let loss = of_classes.reduce(call, reduction)?;
    let mut results = vec![Lowered::tensor(loss, call.result_dtype()?)];
    if call.is_used(1) {
        let total = match reduction {
            Reduction::None => refuse!("the total weight is used, of which there is none"),
            _ => Reduction::Sum.apply(call, of_classes.weights)?,
        };
        results.push(Lowered::tensor(total, call.result_tensor(1)?.dtype));
    }
    Ok(results)
}

fn cross_entropy(call: &mut Call<'_, '_>) -> Results {
    let tensor = call.tensor("self")?;
    let target = call.tensor("target")?;
    let reduction = Reduction::of(call)?;
    let smoothing = call.float("label_smoothing")?;
    let axis = classes(call, tensor.value);
    let x = log_softmax(call, tensor.value, axis)?;
    let Some(count) = call.extents(x)[axis] else {
        refuse!("the number of classes is not known before the program runs");
    };
    if is_float(target.dtype) {
        let shares = call.scaled(target.value, 1.0 - smoothing)?;
        let shares = match smoothing {
            0.0 => shares,
            _ => call.binary(OpKind::Add, shares, (smoothing / count as f64) as f32)?,
        };
        let mut products = call.binary(OpKind::Mul, x, shares)?;
        if let Some(weight) = class_weights(call, x)? {
            products = call.binary(OpKind::Mul, products, weight)?;
        }
        let sum = call.reduced(OpKind::ReduceSum, products, &[axis], false)?;
        let losses = call.scaled(sum, -1.0)?;
        let loss = reduction.apply(call, losses)?;
        return call.give(loss);
    }
    let of_classes = of_classes(call, x, target.value)?;
    let loss = of_classes.reduce(call, reduction)?;
    if smoothing == 0.0 {
        return call.give(loss);
    }
    // Every class has a share of the loss.
    let (_, counts) = chosen(call, x, target.value)?;
    let all = match class_weights(call, x)? {
        Some(weight) => call.binary(OpKind::Mul, x, weight)?,
        None => x,
    };
    let sum = call.reduced(OpKind::ReduceSum, all, &[axis], false)?;
    let sum = call.binary(OpKind::Mul, sum, counts)?;
    let losses = call.scaled(sum, -1.0)?;
    let even = OfClasses { losses, weights: of_classes.weights }.reduce(call, reduction)?;
    let main = call.scaled(loss, 1.0 - smoothing)?;
    let even = call.scaled(even, smoothing / count as f64)?;
    let loss = call.binary(OpKind::Add, main, even)?;
    call.give(loss)
}

/// `x - max - log Σ e^(x - max)`.
fn log_softmax(builder: &mut Builder, x: ValueId, axis: usize) -> Result<ValueId, Refusal> {
    let most = builder.reduced(OpKind::ReduceMax, x, &[axis], true)?;
    let below = builder.binary(OpKind::Sub, x, most)?;
    let total = builder.reduced(OpKind::ReduceLogSumExp, below, &[axis], true)?;
    builder.binary(OpKind::Sub, below, total)
}
