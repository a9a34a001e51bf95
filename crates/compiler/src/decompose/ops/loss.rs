//! Loss functions.

use crate::decompose::prelude::*;

pub(crate) const ROWS: &[Row] = &[
    formula("reduced(square(self - target))", &["aten.mse_loss"]),
    formula("reduced(abs(self - target))", &["aten.l1_loss"]),
    // Quadratic near zero, linear farther away.
    formula(
        "gap = abs(self - target); near = min(gap, delta); reduced(near * (gap - near * 0.5))",
        &["aten.huber_loss"],
    ),
    formula(
        "gap = abs(self - target); near = min(gap, beta); \
         reduced(where(beta == 0, gap, near * (gap - near * 0.5) * (1 / beta)))",
        &["aten.smooth_l1_loss"],
    ),
    formula(
        "rest = max(log1p(-self), -100); loss = target * (rest - max(log(self), -100)) - rest; \
         reduced(where(given(weight), loss * weight, loss))",
        &["aten.binary_cross_entropy"],
    ),
    formula(
        "rest = softplus(-self) * where(given(pos_weight), (pos_weight - 1) * target + 1, 1); \
         loss = (1 - target) * self + rest; reduced(where(given(weight), loss * weight, loss))",
        &["aten.binary_cross_entropy_with_logits"],
    ),
    by(divergence, &["aten.kl_div"]),
    by(likelihood, &["aten.nll_loss{,_nd,_forward,2d,2d_forward}"]),
    by(cross_entropy, &["aten.cross_entropy_loss"]),
    formula(
        "reduced(where(target == -1, max(margin - self, 0), 0) + where(target == 1, self, 0))",
        &["aten.hinge_embedding_loss"],
    ),
    formula("reduced(softplus(-(self * target)))", &["aten.soft_margin_loss"]),
    formula("reduced(max((input2 - input1) * target + margin, 0))", &["aten.margin_ranking_loss"]),
    by(poisson, &["aten.poisson_nll_loss"]),
    formula(
        "near = norm(anchor - positive + eps, p, -1); far = norm(anchor - negative + eps, p, -1); \
         other = norm(positive - negative + eps, p, -1); \
         reduced(max(near - where(swap, min(far, other), far) + margin, 0))",
        &["aten.triplet_margin_loss"],
    ),
    formula(
        "lengths = (sum(square(input1), -1) + 0.000000000001) * (sum(square(input2), -1) + 0.000000000001); \
         cosine = sum(input1 * input2, -1) / sqrt(lengths); \
         reduced(where(target == 1, 1 - cosine, 0) + where(target == -1, max(cosine - margin, 0), 0))",
        &["aten.cosine_embedding_loss"],
    ),
];

/// Terms of a classification loss.
struct ClassLoss {
    /// Negated value at each target, times its weight.
    loss: Tensor,
    /// Weight of each target; zero for ignored targets.
    weights: Tensor,
    /// One per target, zero for ignored targets.
    counts: Tensor,
}

fn picked(call: &mut Call<'_>, log: &Tensor, target: &Tensor) -> Result<ClassLoss> {
    let ignored = call.argument("ignore_index")?.clone();
    let at = usize::from(log.rank() > 1);
    let valid = call.compare_number("ne", target, ignored)?;
    let safe = calc!(call, "where(valid, target, 0)", valid, target)?;
    let safe = call.cast(&safe, ScalarType::Int64)?;
    let formula = "squeeze(gather(log, at, unsqueeze(safe, at)), at)";
    let found = calc!(call, formula, log, at, safe)?;
    let counts = call.cast(&valid, log.dtype)?;
    let mut weights = counts.clone();
    if let Some(weight) = call.optional_tensor("weight")? {
        let flat = call.flat(&safe)?;
        let own = call.index_select(&weight, 0, &flat)?;
        let own = call.view(&own, safe.sizes.clone())?;
        weights = call.multiply(&weights, &own)?;
    }
    // Ignored values may be infinite.
    let loss = calc!(call, "-where(valid, found * weights, 0)", valid, found, weights)?;
    Ok(ClassLoss { loss, weights, counts })
}

/// Weighted mean.
fn by_weights(call: &mut Call<'_>, loss: &Tensor, weights: &Tensor) -> Result<(Tensor, Tensor)> {
    let total = calc!(call, "sum(weights)", weights)?;
    let done = match call.int("reduction")? {
        1 => calc!(call, "sum(loss) / total", loss, total)?,
        _ => call.reduced(loss)?,
    };
    Ok((done, total))
}

fn likelihood(call: &mut Call<'_>) -> Results {
    let (log, target) = (call.tensor("self")?, call.tensor("target")?);
    let ClassLoss { loss, weights, .. } = picked(call, &log, &target)?;
    let (done, total) = by_weights(call, &loss, &weights)?;
    let mut results = vec![RewriteResult::Tensor(done)];
    if call.node.outputs.len() > 1 {
        results.push(RewriteResult::Tensor(total));
    }
    Ok(results)
}

fn cross_entropy(call: &mut Call<'_>) -> Results {
    let (x, target) = (call.tensor("self")?, call.tensor("target")?);
    let smoothing = call.float_or("label_smoothing", 0.0)?;
    let at = usize::from(x.rank() > 1);
    let log = call.log_softmax(&x, at)?;
    let classes = x.known(at, "the number of classes")?;
    if target.dtype == x.dtype && target.rank() == x.rank() {
        let formula = "smooth = target * (1 - smoothing) + smoothing / classes; \
                       log * where(smoothing > 0, smooth, target)";
        let product = calc!(call, formula, log, target, smoothing, classes)?;
        let product = of_classes(call, product, at)?;
        return one(calc!(call, "reduced(-sum(product, at))", product, at)?);
    }
    let ClassLoss { loss, weights, counts } = picked(call, &log, &target)?;
    if smoothing == 0.0 {
        return one(by_weights(call, &loss, &weights)?.0);
    }
    // Label smoothing: every class contributes to the loss.
    let all = of_classes(call, log, at)?;
    let sum = call.sum(&all, &[at], false)?;
    let formula = "loss * (1 - smoothing) + sum * (-smoothing / classes) * counts";
    let both = calc!(call, formula, loss, smoothing, sum, classes, counts)?;
    one(by_weights(call, &both, &weights)?.0)
}

/// Multiplies by the class weights along this dimension.
fn of_classes(call: &mut Call<'_>, x: Tensor, at: usize) -> TensorResult {
    let Some(weight) = call.optional_tensor("weight")? else { return Ok(x) };
    let weight = call.along(&weight, 0, x.rank() - at)?;
    call.multiply(&x, &weight)
}

fn divergence(call: &mut Call<'_>) -> Results {
    // The logarithm of zero is replaced by that of the smallest normal number.
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
        refuse!("`full` is not supported: Stirling's approximation has no decomposition");
    }
    let formula = "reduced(where(log_input, exp(input) - target * input, \
                   input - target * log(input + eps)))";
    one(calc!(call, formula)?)
}
