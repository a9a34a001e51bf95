//! Losses.

use coremill_pt2::{Argument, ScalarType, Size};

use super::activation::log_softmax_of;
use crate::bounds::{At, back};
use crate::decompose::call::{Call, Made, Results, Tensor, one};
use crate::decompose::row::{Row, by};
use crate::decompose::size;
use crate::decompose::words::Maybe;
use crate::error::{Refusal, refuse};

pub(crate) const ROWS: &[Row] = &[
    by(mse, &["aten.mse_loss.default"]),
    by(l1, &["aten.l1_loss.default"]),
    by(smooth, &["aten.smooth_l1_loss.default", "aten.huber_loss.default"]),
    by(cross, &["aten.binary_cross_entropy.default"]),
    by(cross_of_logits, &["aten.binary_cross_entropy_with_logits.default"]),
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
    by(hinge, &["aten.hinge_embedding_loss.default"]),
    by(soft_margin, &["aten.soft_margin_loss.default"]),
    by(margin_ranking, &["aten.margin_ranking_loss.default"]),
    by(poisson, &["aten.poisson_nll_loss.default"]),
    by(triplet, &["aten.triplet_margin_loss.default"]),
    by(cosine_embedding, &["aten.cosine_embedding_loss.default"]),
];

/// None, the mean, or the sum.
fn reduced(call: &mut Call<'_>, x: &Tensor) -> Maybe {
    let all: Vec<usize> = (0..x.rank()).collect();
    match call.int("reduction")? {
        0 => Ok(x.clone()),
        _ if x.rank() == 0 => Ok(x.clone()),
        1 => call.mean(x, &all, false),
        2 => call.sum(x, &all, false),
        other => refuse!("{other} is not a way to reduce a loss; 0 is none, 1 the mean, 2 the sum"),
    }
}

fn difference(call: &mut Call<'_>) -> Maybe {
    let (x, target) = (call.tensor("self")?, call.tensor("target")?);
    call.subtract(&x, &target)
}

fn mse(call: &mut Call<'_>) -> Results {
    let difference = difference(call)?;
    let squared = call.multiply(&difference, &difference)?;
    one(reduced(call, &squared)?)
}

fn l1(call: &mut Call<'_>) -> Results {
    let difference = difference(call)?;
    let size = call.map("abs", &difference)?;
    one(reduced(call, &size)?)
}

/// Squares near zero, lines farther away: `m · (|d| - m / 2)` with the smaller of `|d|` and the bound for `m`.
fn smooth(call: &mut Call<'_>) -> Results {
    let difference = difference(call)?;
    let size = call.map("abs", &difference)?;
    let is_huber = call.node.target.is("aten", "huber_loss", "default");
    let bound = call.float(if is_huber { "delta" } else { "beta" })?;
    if bound == 0.0 {
        return one(reduced(call, &size)?);
    }
    let near = call.clamp(&size, None, Some(bound))?;
    let half = call.times(&near, 0.5)?;
    let rest = call.subtract(&size, &half)?;
    let mut loss = call.multiply(&near, &rest)?;
    if !is_huber && bound != 1.0 {
        loss = call.times(&loss, 1.0 / bound)?;
    }
    one(reduced(call, &loss)?)
}

fn weighted(call: &mut Call<'_>, loss: &Tensor) -> Maybe {
    match call.optional_tensor("weight")? {
        Some(weight) => call.multiply(loss, &weight),
        None => Ok(loss.clone()),
    }
}

fn cross(call: &mut Call<'_>) -> Results {
    let (x, target) = (call.tensor("self")?, call.tensor("target")?);
    let log = call.map("log", &x)?;
    let log = call.clamp(&log, Some(-100.0), None)?;
    let negated = call.map("neg", &x)?;
    let rest = call.map("log1p", &negated)?;
    let rest = call.clamp(&rest, Some(-100.0), None)?;
    let difference = call.subtract(&rest, &log)?;
    let product = call.multiply(&target, &difference)?;
    let loss = call.subtract(&product, &rest)?;
    let loss = weighted(call, &loss)?;
    one(reduced(call, &loss)?)
}

/// `log(1 + exp(-x))`.
fn soft(call: &mut Call<'_>, x: &Tensor) -> Maybe {
    let negated = call.map("neg", x)?;
    call.map("softplus", &negated)
}

fn cross_of_logits(call: &mut Call<'_>) -> Results {
    let (x, target) = (call.tensor("self")?, call.tensor("target")?);
    let mut rest = soft(call, &x)?;
    if let Some(weight) = call.optional_tensor("pos_weight")? {
        let less = call.add_number(&weight, -1.0)?;
        let scaled = call.multiply(&less, &target)?;
        let factor = call.add_number(&scaled, 1.0)?;
        rest = call.multiply(&rest, &factor)?;
    }
    let other = call.with("rsub", &target, Argument::Float(1.0))?;
    let product = call.multiply(&other, &x)?;
    let loss = call.add(&product, &rest)?;
    let loss = weighted(call, &loss)?;
    one(reduced(call, &loss)?)
}

fn divergence(call: &mut Call<'_>) -> Results {
    let (x, target) = (call.tensor("self")?, call.tensor("target")?);
    let loss = if call.bool("log_target")? {
        let power = call.map("exp", &target)?;
        let difference = call.subtract(&target, &x)?;
        call.multiply(&power, &difference)?
    } else {
        // The logarithm of the least normal number stands in for that of zero.
        let least = match target.dtype {
            ScalarType::Float16 => half::f16::MIN_POSITIVE.to_f64(),
            _ => f64::from(f32::MIN_POSITIVE),
        };
        let bounded = call.clamp(&target, Some(least), None)?;
        let log = call.map("log", &bounded)?;
        let difference = call.subtract(&log, &x)?;
        call.multiply(&target, &difference)?
    };
    one(reduced(call, &loss)?)
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
    let product = call.multiply(&found, &weights)?;
    // What is ignored may be infinite.
    let nothing = call.number_beside(Argument::Float(0.0), log)?;
    let product = call.choose(&valid, &product, &nothing)?;
    Ok(Picked { loss: call.map("neg", &product)?, weights, counts })
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
            let less = call.times(&target, 1.0 - smoothing)?;
            target = call.add_number(&less, smoothing / classes as f64)?;
        }
        let product = call.multiply(&log, &target)?;
        let product = of_classes(call, product, at)?;
        let sum = call.sum(&product, &[at], false)?;
        let loss = call.map("neg", &sum)?;
        let all: Vec<usize> = (0..loss.rank()).collect();
        let done = match call.int("reduction")? {
            0 => loss,
            _ if loss.rank() == 0 => loss,
            1 => call.mean(&loss, &all, false)?,
            _ => call.sum(&loss, &all, false)?,
        };
        return one(done);
    }
    let Picked { loss, weights, counts } = picked(call, &log, &target)?;
    if smoothing == 0.0 {
        return one(by_weights(call, &loss, &weights)?.0);
    }
    // Every class has a share of the loss.
    let all = of_classes(call, log, at)?;
    let sum = call.sum(&all, &[at], false)?;
    let flat = call.times(&sum, -smoothing / classes as f64)?;
    let flat = call.multiply(&flat, &counts)?;
    let own = call.times(&loss, 1.0 - smoothing)?;
    let both = call.add(&own, &flat)?;
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

fn hinge(call: &mut Call<'_>) -> Results {
    let (x, target) = (call.tensor("self")?, call.tensor("target")?);
    let margin = call.float("margin")?;
    let less = call.with("rsub", &x, Argument::Float(margin))?;
    let less = call.clamp(&less, Some(0.0), None)?;
    let zero = call.number_beside(Argument::Float(0.0), &x)?;
    let positive = call.compare_number("eq", &target, Argument::Int(1))?;
    let negative = call.compare_number("eq", &target, Argument::Int(-1))?;
    let left = call.choose(&negative, &less, &zero)?;
    let right = call.choose(&positive, &x, &zero)?;
    let loss = call.add(&left, &right)?;
    one(reduced(call, &loss)?)
}

fn soft_margin(call: &mut Call<'_>) -> Results {
    let (x, target) = (call.tensor("self")?, call.tensor("target")?);
    let product = call.multiply(&x, &target)?;
    let loss = soft(call, &product)?;
    one(reduced(call, &loss)?)
}

fn margin_ranking(call: &mut Call<'_>) -> Results {
    let (x, y) = (call.tensor("input1")?, call.tensor("input2")?);
    let target = call.tensor("target")?;
    let margin = call.float("margin")?;
    let difference = call.subtract(&y, &x)?;
    let product = call.multiply(&difference, &target)?;
    let moved = call.add_number(&product, margin)?;
    let loss = call.clamp(&moved, Some(0.0), None)?;
    one(reduced(call, &loss)?)
}

fn poisson(call: &mut Call<'_>) -> Results {
    let (x, target) = (call.tensor("input")?, call.tensor("target")?);
    let epsilon = call.float("eps")?;
    if call.bool("full")? {
        refuse!("the term of Stirling's approximation has no decomposition");
    }
    let loss = if call.bool("log_input")? {
        let power = call.map("exp", &x)?;
        let product = call.multiply(&target, &x)?;
        call.subtract(&power, &product)?
    } else {
        let safe = call.add_number(&x, epsilon)?;
        let log = call.map("log", &safe)?;
        let product = call.multiply(&target, &log)?;
        call.subtract(&x, &product)?
    };
    one(reduced(call, &loss)?)
}

/// The distance between the rows of two matrices.
fn apart(call: &mut Call<'_>, x: &Tensor, y: &Tensor, degree: f64, epsilon: f64) -> Maybe {
    let difference = call.subtract(x, y)?;
    let moved = call.add_number(&difference, epsilon)?;
    call.norm(&moved, degree, &[back(moved.rank(), 1)?], false)
}

fn triplet(call: &mut Call<'_>) -> Results {
    let (anchor, positive) = (call.tensor("anchor")?, call.tensor("positive")?);
    let negative = call.tensor("negative")?;
    let (margin, degree, epsilon) = (call.float("margin")?, call.float("p")?, call.float("eps")?);
    let near = apart(call, &anchor, &positive, degree, epsilon)?;
    let mut far = apart(call, &anchor, &negative, degree, epsilon)?;
    if call.bool("swap")? {
        let other = apart(call, &positive, &negative, degree, epsilon)?;
        far = call.join("aten.minimum.default", &far, &other)?;
    }
    let difference = call.subtract(&near, &far)?;
    let moved = call.add_number(&difference, margin)?;
    let loss = call.clamp(&moved, Some(0.0), None)?;
    one(reduced(call, &loss)?)
}

fn cosine_embedding(call: &mut Call<'_>) -> Results {
    const EPSILON: f64 = 1e-12;
    let (x, y) = (call.tensor("input1")?, call.tensor("input2")?);
    let target = call.tensor("target")?;
    let margin = call.float("margin")?;
    let at = back(x.rank(), 1)?;
    let mut products = Vec::with_capacity(3);
    for (left, right) in [(&x, &y), (&x, &x), (&y, &y)] {
        let product = call.multiply(left, right)?;
        products.push(call.sum(&product, &[at], false)?);
    }
    let first = call.add_number(products.at(1)?, EPSILON)?;
    let second = call.add_number(products.at(2)?, EPSILON)?;
    let squared = call.multiply(&first, &second)?;
    let below = call.map("sqrt", &squared)?;
    let cosine = call.divide(products.at(0)?, &below)?;
    let near = call.with("rsub", &cosine, Argument::Float(1.0))?;
    let moved = call.add_number(&cosine, -margin)?;
    let far = call.clamp(&moved, Some(0.0), None)?;
    let zero = call.number_beside(Argument::Float(0.0), &cosine)?;
    let positive = call.compare_number("eq", &target, Argument::Int(1))?;
    let negative = call.compare_number("eq", &target, Argument::Int(-1))?;
    let left = call.choose(&positive, &near, &zero)?;
    let right = call.choose(&negative, &far, &zero)?;
    let loss = call.add(&left, &right)?;
    one(reduced(call, &loss)?)
}
