//! Attention as matrix products and a softmax.

use super::activation::softmax_or_zero;
use crate::decompose::prelude::*;

pub(crate) const ROWS: &[Row] = &[
    by(attention, &["aten.scaled_dot_product_attention"]),
    by(
        attention_and_more,
        &[
            "aten._scaled_dot_product_flash_attention_for_cpu",
            "aten._scaled_dot_product_attention_math",
        ],
    ),
];

fn attention(call: &mut Call<'_>) -> Results {
    one(attend(call)?)
}

/// Only the first result is supported; the others are for gradients.
fn attention_and_more(call: &mut Call<'_>) -> Results {
    if (1..call.node.outputs.len()).any(|index| call.wants(index)) {
        refuse!("no kernel returns the results of attention for gradients");
    }
    let done = attend(call)?;
    first(call, done)
}

fn attend(call: &mut Call<'_>) -> TensorResult {
    let (query, mut key) = (call.tensor("query")?, call.tensor("key")?);
    let mut value = call.tensor("value")?;
    if call.float_or("dropout_p", 0.0)? != 0.0 {
        refuse!("attention with dropout is not supported for inference");
    }
    if query.rank() < 2 || key.rank() < 2 {
        refuse!("attention requires tensors with at least 2 dimensions");
    }
    let features = query.sizes.last().cloned().unwrap_or(Size::Fixed(1));
    let scale = match (call.has("scale"), features.fixed()) {
        (true, _) => call.float("scale")?,
        (false, Some(features)) if features > 0 => 1.0 / (features as f64).sqrt(),
        _ => refuse!("the number of features of the query is unknown"),
    };
    if call.bool("enable_gqa")? {
        let heads = query.sizes.iter().rev().nth(2).cloned();
        for tensor in [&mut key, &mut value] {
            *tensor = repeated(call, tensor, heads.as_ref())?;
        }
    }
    let query = call.times(&query, scale)?;
    let turned = call.turned(&key)?;
    let mut scores = call.matmul(&query, &turned)?;
    let mut may_be_empty = false;
    if call.bool("is_causal")? {
        let ones = scores.extent(axis_from_end(scores.rank(), 2)?..)?.to_vec();
        let ones = call.full(ones, Argument::Bool(true), ScalarType::Bool)?;
        let allowed = call.map("tril", &ones)?;
        scores = masked(call, &scores, &allowed)?;
    }
    if let Some(mask) = call.optional_tensor("attn_mask")? {
        may_be_empty = true;
        scores = masked(call, &scores, &mask)?;
    }
    let at = axis_from_end(scores.rank(), 1)?;
    let weights =
        if may_be_empty { softmax_or_zero(call, &scores, at)? } else { call.softmax(&scores, at)? };
    call.matmul(&weights, &value)
}

/// Boolean masks select scores; float masks are added.
fn masked(call: &mut Call<'_>, scores: &Tensor, mask: &Tensor) -> TensorResult {
    if mask.dtype != ScalarType::Bool {
        let mask = call.cast(mask, scores.dtype)?;
        return call.add(scores, &mask);
    }
    calc!(call, "where(mask, scores, -inf)", mask, scores)
}

/// Repeats each key or value head for the query heads that share it.
fn repeated(call: &mut Call<'_>, x: &Tensor, heads: Option<&Size>) -> TensorResult {
    let at = x.rank().checked_sub(3);
    let (Some(at), Some(heads)) = (at, heads.and_then(Size::fixed)) else {
        refuse!("the number of heads is unknown");
    };
    let Some(own) = x.extent(at)?.fixed().filter(|own| *own > 0 && heads % own == 0) else {
        refuse!("the number of query heads must be a multiple of the number of key heads");
    };
    if own == heads {
        return Ok(x.clone());
    }
    let sizes = x.with_size(at, Size::Fixed(heads))?;
    call.spread(x, at, Size::Fixed(heads / own), sizes)
}
