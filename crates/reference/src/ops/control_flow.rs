//! Reference kernels of `select` and `classify`.

use super::broadcast::{expanded, joined, zip};
use crate::array::{Array, ElementsView};
use crate::call::{Call, Results};
use crate::error::fail;

/// The class with the highest score, the first one of several, and all scores.
pub(super) fn classify(call: &Call) -> Results {
    let scores = call.tensor("probabilities")?.floats()?;
    let classes = call.tensor("classes")?;
    if classes.len() != scores.len() {
        fail!("`classes` has {} elements, but `probabilities` has {}", classes.len(), scores.len());
    }
    let better = |best: usize, candidate: usize| {
        scores[candidate] > scores[best] || (scores[candidate].is_nan() && !scores[best].is_nan())
    };
    let best = (0..scores.len()).reduce(|best, at| if better(best, at) { at } else { best });
    let Some(best) = best else { fail!("`probabilities` is empty") };
    let label = match classes.elements {
        ElementsView::Texts(texts) => Array::texts([], vec![texts[best].clone()]),
        ElementsView::Ints(ints) => Array::ints(classes.dtype, [], vec![ints[best]]),
        ElementsView::Floats(_) => fail!("`classes` must hold strings or integers, got floats"),
    };
    let scores = Array::floats(coremill_tensor::DType::Fp32, [scores.len()], scores.to_vec());
    Ok(vec![label, scores])
}

pub(super) fn select(call: &Call) -> Results {
    let (cond, a, b) = (call.tensor("cond")?, call.tensor("a")?, call.tensor("b")?);
    let shape = joined(call, &[cond.shape, a.shape, b.shape])?;
    let conditions = expanded(&shape, cond.ints()?, cond.shape);
    match (a.elements, b.elements) {
        (ElementsView::Floats(from_a), ElementsView::Floats(from_b)) => {
            let pairs = zip(&shape, (from_a, a.shape), (from_b, b.shape), |a, b| (a, b));
            call.give_floats(shape, choose(&conditions, pairs))
        }
        (ElementsView::Ints(from_a), ElementsView::Ints(from_b)) => {
            let pairs = zip(&shape, (from_a, a.shape), (from_b, b.shape), |a, b| (a, b));
            call.give_ints(shape, choose(&conditions, pairs))
        }
        _ => fail!("expects `a` and `b` of the same type, found `{}` and `{}`", a.dtype, b.dtype),
    }
}

fn choose<T>(conditions: &[i32], pairs: Vec<(T, T)>) -> Vec<T> {
    let pairs = conditions.iter().zip(pairs);
    pairs.map(|(&condition, (a, b))| if condition != 0 { a } else { b }).collect()
}
