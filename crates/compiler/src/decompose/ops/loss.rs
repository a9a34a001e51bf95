//! Losses.

use coremill_pt2::{Argument, ScalarType, Size};

use super::activation::log_softmax_of;
use crate::bounds::{At, back};
use crate::decompose::call::{Call, Made, Results, Tensor, one};
use crate::decompose::formula::calc;
use crate::decompose::row::{Row, by, formula};
use crate::decompose::size;
use crate::decompose::words::Maybe;
use crate::error::{Refusal, refuse};

pub(crate) const ROWS: &[Row] = &[
    formula("reduced(square(self - target))", &["aten.mse_loss.default"]),
    formula("reduced(abs(self - target))", &["aten.l1_loss.default"]),
    // Squares near zero, lines farther away.
    formula(
        "gap = abs(self - target); near = min(gap, delta); reduced(near * (gap - near * 0.5))",
        &["aten.huber_loss.default"],
    ),
    formula(
        "gap = abs(self - target); near = min(gap, beta); \
         reduced(where(beta == 0, gap, near * (gap - near * 0.5) * (1 / beta)))",
        &["aten.smooth_l1_loss.default"],
    ),
    formula(
        "rest = max(log1p(-self), -100); loss = target * (rest - max(log(self), -100)) - rest; \
         reduced(where(given(weight), loss * weight, loss))",
        &["aten.binary_cross_entropy.default"],
    ),
    formula(
        "rest = softplus(-self) * where(given(pos_weight), (pos_weight - 1) * target + 1, 1); \
         loss = (1 - target) * self + rest; reduced(where(given(weight), loss * weight, loss))",
        &["aten.binary_cross_entropy_with_logits.default"],
    ),
    by(divergence, &["aten.kl_div.default"]),
    by(
        likelihood,
        &[
            "aten.nll_loss_nd.default",
            "aten.nll_loss.default",
            "aten.nll_loss_forward.default",
            "aten.nll_loss2d.default",
            "aten.nll_loss2d_forward.default",
        ],
    ),
    by(cross_entropy, &["aten.cross_entropy_loss.default"]),
    formula(
        "reduced(where(target == -1, max(margin - self, 0), 0) + where(target == 1, self, 0))",
        &["aten.hinge_embedding_loss.default"],
    ),
    formula("reduced(softplus(-(self * target)))", &["aten.soft_margin_loss.default"]),
    formula(
        "reduced(max((input2 - input1) * target + margin, 0))",
        &["aten.margin_ranking_loss.default"],
    ),
    by(poisson, &["aten.poisson_nll_loss.default"]),
    by(triplet, &["aten.triplet_margin_loss.default"]),
    formula(
        "lengths = (sum(square(input1), -1) + 0.000000000001) * (sum(square(input2), -1) + 0.000000000001); \
         cosine = sum(input1 * input2, -1) / sqrt(lengths); \
         reduced(where(target == 1, 1 - cosine, 0) + where(target == -1, max(cosine - margin, 0), 0))",
        &["aten.cosine_embedding_loss.default"],
    ),
];

/// None, the mean, or the sum.
pub(crate) fn reduced(call: &mut Call<'_>, x: &Tensor) -> Maybe {
    let all: Vec<usize> = (0..x.rank()).collect();
    match call.int("reduction")? {
        0 => Ok(x.clone()),
        _ if x.rank() == 0 => Ok(x.clone()),
        1 => call.mean(x, &all, false),
        2 => call.sum(x, &all, false),
        other => refuse!("{other} is not a way to reduce a loss; 0 is none, 1 the mean, 2 the sum"),
    }
}

/// What a loss of classes is made of.
struct Picked {
    /// Minus what stands at each target, times its weight.
    loss: Tensor,
    /// The weight of each target, zero for those that do not count.
    weights: Tensor,
    /// One for each target that counts, zero for others.
    counts: Tensor,
}

fn picked(call: &mut Call<'_>, log: &Tensor, target: &Tensor) -> Result<Picked, Refusal> {
    let ignored = call.argument("ignore_index")?.clone();
    let at = usize::from(log.rank() > 1);
    let valid = call.compare_number("ne", target, ignored)?;
    let zero = call.full(Vec::new(), Argument::Int(0), target.dtype)?;
    let safe = call.choose(&valid, target, &zero)?;
    let safe = call.cast(&safe, ScalarType::Int64)?;
    let index = call.unsqueeze(&safe, at)?;
    let found = call.gather(log, at, &index)?;
    let found = call.squeeze(&found, at)?;
    let counts = call.cast(&valid, log.dtype)?;
    let mut weights = counts.clone();
    if let Some(weight) = call.optional_tensor("weight")? {
        let flat = call.view(&safe, vec![size::product(&safe.sizes)])?;
        let own = call.index_select(&weight, 0, &flat)?;
        let own = call.view(&own, safe.sizes.clone())?;
        weights = call.multiply(&weights, &own)?;
    }
    // What is ignored may be infinite.
    let loss = calc!(call, "-where(valid, found * weights, 0)", valid, found, weights)?;
    Ok(Picked { loss, weights, counts })
}

/// The mean counts by the weights.
fn by_weights(
    call: &mut Call<'_>,
    loss: &Tensor,
    weights: &Tensor,
) -> Result<(Tensor, Tensor), Refusal> {
    let all: Vec<usize> = (0..loss.rank()).collect();
    let sum_of = |call: &mut Call<'_>, x: &Tensor| {
        if x.rank() == 0 { Ok(x.clone()) } else { call.sum(x, &all, false) }
    };
    let total = sum_of(call, weights)?;
    let done = match call.int("reduction")? {
        0 => loss.clone(),
        1 => {
            let sum = sum_of(call, loss)?;
            call.divide(&sum, &total)?
        }
        2 => sum_of(call, loss)?,
        other => refuse!("{other} is not a way to reduce a loss; 0 is none, 1 the mean, 2 the sum"),
    };
    Ok((done, total))
}

fn likelihood(call: &mut Call<'_>) -> Results {
    let (log, target) = (call.tensor("self")?, call.tensor("target")?);
    let Picked { loss, weights, .. } = picked(call, &log, &target)?;
    let (done, total) = by_weights(call, &loss, &weights)?;
    let mut results = vec![Made::Tensor(done)];
    if call.node.outputs.len() > 1 {
        results.push(Made::Tensor(total));
    }
    Ok(results)
}

fn cross_entropy(call: &mut Call<'_>) -> Results {
    let (x, target) = (call.tensor("self")?, call.tensor("target")?);
    let smoothing = call.float_or("label_smoothing", 0.0)?;
    let at = usize::from(x.rank() > 1);
    let log = log_softmax_of(call, &x, at)?;
    let Some(classes) = x.extent(at)?.fixed() else {
        refuse!("the number of classes is unknown at compile time");
    };
    if target.dtype == x.dtype && target.rank() == x.rank() {
        let mut target = target;
        if smoothing > 0.0 {
            target = calc!(
                call,
                "target * (1 - smoothing) + smoothing / classes",
                target,
                smoothing,
                classes
            )?;
        }
        let product = call.multiply(&log, &target)?;
        let product = of_classes(call, product, at)?;
        let sum = call.sum(&product, &[at], false)?;
        return one(calc!(call, "reduced(-sum)", sum)?);
    }
    let Picked { loss, weights, counts } = picked(call, &log, &target)?;
    if smoothing == 0.0 {
        return one(by_weights(call, &loss, &weights)?.0);
    }
    // Every class has a share of the loss.
    let all = of_classes(call, log, at)?;
    let sum = call.sum(&all, &[at], false)?;
    let formula = "loss * (1 - smoothing) + sum * (-smoothing / classes) * counts";
    let both = calc!(call, formula, loss, smoothing, sum, classes, counts)?;
    one(by_weights(call, &both, &weights)?.0)
}

/// Times the weights of the classes, which are along this dimension.
fn of_classes(call: &mut Call<'_>, x: Tensor, at: usize) -> Maybe {
    let Some(weight) = call.optional_tensor("weight")? else { return Ok(x) };
    let mut sizes = vec![Size::Fixed(1); x.rank() - at];
    *sizes.at_mut(0)? = weight.extent(0)?.clone();
    let weight = call.view(&weight, sizes)?;
    call.multiply(&x, &weight)
}

fn divergence(call: &mut Call<'_>) -> Results {
    // The logarithm of the least normal number stands in for that of zero.
    let least = match call.tensor("target")?.dtype {
        ScalarType::Float16 => half::f16::MIN_POSITIVE.to_f64(),
        _ => f64::from(f32::MIN_POSITIVE),
    };
    let formula = "reduced(where(log_target, exp(target) * (target - self), \
                   target * (log(max(target, least)) - self)))";
    one(calc!(call, formula, least)?)
}

fn poisson(call: &mut Call<'_>) -> Results {
    if call.bool("full")? {
        refuse!("the term of Stirling's approximation has no decomposition");
    }
    let formula = "reduced(where(log_input, exp(input) - target * input, \
                   input - target * log(input + eps)))";
    one(calc!(call, formula)?)
}

/// The distance between the rows of two matrices.
fn apart(call: &mut Call<'_>, x: &str, y: &str) -> Maybe {
    let (x, y) = (call.tensor(x)?, call.tensor(y)?);
    let moved = calc!(call, "x - y + eps", x, y)?;
    let degree = call.float("p")?;
    call.norm(&moved, degree, &[back(moved.rank(), 1)?], false)
}

fn triplet(call: &mut Call<'_>) -> Results {
    let near = apart(call, "anchor", "positive")?;
    let mut far = apart(call, "anchor", "negative")?;
    if call.bool("swap")? {
        let other = apart(call, "positive", "negative")?;
        far = calc!(call, "min(far, other)", far, other)?;
    }
    one(calc!(call, "reduced(max(near - far + margin, 0))", near, far)?)
}
