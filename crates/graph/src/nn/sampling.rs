use std::panic::Location;

use super::place;
use crate::ops::{Cumsum, GatherAlongAxis, RandomCategorical, Topk};
use crate::tensor::Tensor;

/// Score of an excluded token: small enough to have probability 0, and within the range of `fp16`.
const NEVER: f32 = -3e4;

/// Excludes all scores of `[batch, vocabulary]` except the `k` largest.
#[track_caller]
pub fn top_k_filter(logits: Tensor<'_>, k: usize) -> Tensor<'_> {
    let size = logits.last_extent();
    if k == 0 || (logits.is_valid() && k > size) {
        let message = match k {
            0 => "`k` must be at least 1, got 0".to_owned(),
            _ => {
                format!("`k` must be at most {size}, the number of scores, got {k}")
            }
        };
        return logits.graph().mistake(message, None, Location::caller());
    }
    let (largest, _) = logits.topk(Topk::new().k(place(k)).axis(-1));
    let least = largest.narrow(-1, -1..);
    logits.graph().select_or(logits.greater_equal(least), logits, NEVER)
}

/// Excludes scores of `[batch, vocabulary]` outside the smallest set of most likely tokens with a total
/// probability of at least `p`.
#[track_caller]
pub fn top_p_filter(logits: Tensor<'_>, p: f32) -> Tensor<'_> {
    if !(p > 0.0 && p <= 1.0) {
        let message = format!("`p` must be greater than 0 and at most 1, got {p}");
        return logits.graph().mistake(message, None, Location::caller());
    }
    let size = logits.last_extent();
    let (sorted, _) = logits.topk(Topk::new().k(place(size)).axis(-1));
    let probabilities = sorted.softmax_on(-1);
    let before = probabilities.cumsum(Cumsum::new().axis(-1)) - probabilities;
    // The smallest kept score is at the last position where the sum of the previous probabilities is below
    // `p`.
    let kept = before.less(p).cast(crate::DType::Int32).sum([-1], true) - 1;
    let least = sorted.gather_along_axis(kept, GatherAlongAxis::new().axis(-1));
    logits.graph().select_or(logits.greater_equal(least), logits, NEVER)
}

/// Samples a token for each row of `[batch, vocabulary]`, after dividing the scores by the temperature. The
/// result is an `int32` tensor of shape `[batch, 1]`. At temperature 0 the most likely token is selected, and
/// the shape is `[batch]`. A seed makes the samples reproducible.
#[track_caller]
pub fn sample(logits: Tensor<'_>, temperature: f32, seed: Option<i32>) -> Tensor<'_> {
    if temperature == 0.0 {
        return logits.argmax(-1);
    }
    if !(temperature > 0.0 && temperature.is_finite()) {
        let message = format!("the temperature must be at least 0, got {temperature}");
        return logits.graph().mistake(message, None, Location::caller());
    }
    let options = RandomCategorical::new().mode("logits").size(1);
    let options = match seed {
        Some(seed) => options.seed(seed),
        None => options,
    };
    (logits / temperature).random_categorical(options).cast(crate::DType::Int32)
}
