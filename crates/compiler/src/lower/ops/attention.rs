//! Attention.

use super::linear::{in_result_type, product};
use crate::lower::prelude::*;

pub(crate) const ROWS: &[Row] = &[
    several("aten.scaled_dot_product_attention", attention),
    several("aten._scaled_dot_product_attention_math", attention),
    several("aten._scaled_dot_product_flash_attention{,_for_cpu}", attention),
    several("aten._scaled_dot_product_{efficient,cudnn}_attention", attention),
    several("aten._scaled_dot_product_fused_attention_overrideable", attention),
];

/// Operands of an attention.
struct Attention {
    /// `[..., targets, embedding]`.
    query: ValueId,
    /// `[..., sources, embedding]`.
    key: ValueId,
    /// `[..., sources, width]`.
    value: ValueId,
    /// A float mask that is added to the scores, or a boolean mask.
    mask: Option<ValueId>,
    /// Factor of the scores.
    scale: f64,
    /// Whether to decompose even if Core ML has an operation.
    decompose: bool,
}

/// Result of an attention.
struct AttentionResult {
    value: ValueId,
    /// The scores after softmax; `None` for Core ML's own operation.
    weights: Option<ValueId>,
}

fn attention(call: &mut Call<'_, '_>) -> Results {
    let dropout = if call.has("dropout_p") { call.float("dropout_p")? } else { 0.0 };
    if dropout != 0.0 {
        return Err(LoweringError::new(format!("`dropout_p` must be 0, got {dropout}"))
            .hint("export the model after `eval()`"));
    }
    if call.has("dropout_mask") {
        refuse!("`dropout_mask` is not supported");
    }
    let dtype = call.result_dtype()?;
    let [query, key, value] = in_result_type(call, ["query", "key", "value"])?;
    let mask = ["attn_mask", "attn_bias"].into_iter().find(|name| call.has(name));
    let mask = mask.map(|name| call.value(name)).transpose()?;
    let Some(embedding) = call.extents(query).last().copied().flatten() else {
        refuse!("the embedding of `query` is not known before the program runs");
    };
    let own = 1.0 / (embedding as f64).sqrt();
    let scale = call.optional_float("scale")?.unwrap_or(own);
    let mask = match (mask, call.flag("is_causal")?) {
        (Some(_), true) => {
            refuse!("a mask and `is_causal` are mutually exclusive")
        }
        (None, true) => Some(causal_mask(call, query, key)?),
        (mask, false) => mask,
    };
    let grouped = call.has("enable_gqa") && call.flag("enable_gqa")?;
    let weights = call.is_used(1);
    if weights && !call.node.target.to_string().contains("attention_math") {
        refuse!("only the first result can be used; the second is for gradients");
    }
    if (2..call.node.outputs.len()).any(|index| call.is_used(index)) {
        refuse!("only the first result can be used; the others are for gradients");
    }
    let decompose = call.lowering.options.decompose_sdpa || weights;
    let native = !decompose && call.opset() >= Opset::Ios18;
    let (mask, factors) = match mask {
        Some(mask) => {
            let (mask, factors) = bounded(call, mask, native)?;
            (Some(mask), factors)
        }
        None => (None, None),
    };
    let all = Attention { query, key, value, mask, scale, decompose };
    let attended = if grouped { grouped_attention(call, all)? } else { attend(call, all)? };
    let value = match factors {
        Some(factors) => call.binary(OpKind::Mul, attended.value, factors)?,
        None => attended.value,
    };
    let weights = attended.weights.filter(|_| weights);
    Ok([Some(value), weights]
        .into_iter()
        .flatten()
        .map(|it| LoweredValue::tensor(it, dtype))
        .collect())
}

/// Computes `softmax(query · keyᵀ · scale + mask) · value`.
fn attend(builder: &mut Builder, attention: Attention) -> Result<AttentionResult> {
    let Attention { query, key, value, mask, scale, decompose } = attention;
    let rank = builder.rank(query);
    if rank < 2 {
        refuse!("`query` must have a rank of at least 2, got {rank}");
    }
    let native = builder.opset() >= Opset::Ios18 && !decompose && fits(builder, &attention);
    let embedding = builder.extents(query).last().copied().flatten().unwrap_or(1);
    if native {
        // Core ML divides by the square root itself.
        let own = 1.0 / (embedding as f64).sqrt();
        let relative = scale / own;
        let query =
            if (relative - 1.0).abs() < 1e-6 { query } else { builder.scaled(query, relative)? };
        let kind = OpKind::ScaledDotProductAttention;
        let value = emit!(builder, kind, query, key, value, attn_mask = mask)?;
        return Ok(AttentionResult { value, weights: None });
    }
    let query = builder.scaled(query, scale)?;
    let mut scores = product(builder, query, key, true)?;
    if let Some(mask) = mask {
        scores = masked(builder, scores, mask)?;
    }
    let weights = emit!(builder, OpKind::Softmax, x = scores, axis = -1)?;
    let value = product(builder, weights, value, false)?;
    Ok(AttentionResult { value, weights: Some(weights) })
}

/// Adds a float mask to the scores, or replaces masked scores by the minimum.
fn masked(builder: &mut Builder, scores: ValueId, mask: ValueId) -> ValueResult {
    if builder.dtype(mask) != DType::Bool {
        let mask = builder.cast(mask, DType::Fp32)?;
        return builder.binary(OpKind::Add, scores, mask);
    }
    // With minus infinity, the softmax of a fully masked row would be NaN.
    builder.select(mask, scores, f32::MIN)
}

/// Makes a mask suitable for softmax: it contains no minus infinity, unless it is a computed float mask.
///
/// Fully masked rows then become the mean of all values; torch returns zeros. For a constant mask these rows
/// are known, and the second result contains factors that zero them.
fn bounded(
    builder: &mut Builder,
    mask: ValueId,
    native: bool,
) -> Result<(ValueId, Option<ValueId>)> {
    let is_bool = builder.dtype(mask) == DType::Bool;
    let elements = builder.known(mask).and_then(Constant::elements);
    let (Some(shape), Some(elements)) = (builder.fixed_shape(mask), elements) else {
        // A boolean mask becomes 0 or the smallest number. A computed float mask is left unchanged; it is kept in
        // fp32 because it may contain large numbers.
        let mask = if is_bool && native {
            let x = builder.cast(mask, DType::Fp32)?;
            emit!(builder, OpKind::LinearActivation, x, alpha = f32::MAX, beta = f32::MIN)?
        } else {
            mask
        };
        return Ok((mask, None));
    };
    // Boolean constants are not stored in weight files.
    let bytes = elements.as_bytes();
    let given: Vec<f32> = if is_bool {
        bytes.iter().map(|&takes| if takes != 0 { 0.0 } else { f32::NEG_INFINITY }).collect()
    } else {
        let (elements, _) = bytes.as_chunks::<4>();
        elements.iter().map(|&element| f32::from_le_bytes(element)).collect()
    };
    let terms: Vec<f32> = given.iter().map(|term| term.max(f32::MIN)).collect();
    let width = shape.last().map_or(1, |&width| width as usize).max(1);
    let counts = |row: &[f32]| row.iter().any(|&term| term != f32::MIN);
    let factors: Vec<f32> =
        terms.chunks(width).map(|row| f32::from(u8::from(counts(row)))).collect();
    let factors = (given.contains(&f32::NEG_INFINITY) && factors.contains(&0.0)).then(|| {
        let mut shape = shape.clone();
        shape.last_mut().into_iter().for_each(|last| *last = 1);
        builder.float_constant(&shape, &factors)
    });
    Ok((builder.float_constant(&shape, &terms), factors))
}

/// Whether Core ML's operation supports the shapes: equal batches, and a mask that covers all sources.
fn fits(builder: &Builder, attention: &Attention) -> bool {
    let shapes =
        [attention.query, attention.key, attention.value].map(|value| builder.shape(value));
    let rank = shapes[0].len();
    let alike = |other: &[Dim]| {
        let batches = shapes[0].iter().zip(other).take(rank.saturating_sub(2));
        other.len() == rank && { batches }.all(|(one, other)| one == other)
    };
    let masks = attention.mask.is_none_or(|mask| {
        let (mask, key) = (builder.shape(mask), shapes[1]);
        mask.len() <= rank
            && mask.last() == key.get(rank.wrapping_sub(2))
            && mask
                .iter()
                .rev()
                .zip(shapes[0].iter().rev())
                .skip(1)
                .all(|(mask, query)| *mask == Dim::Known(1) || mask == query)
    });
    (3..=5).contains(&rank) && alike(shapes[1]) && alike(shapes[2]) && masks
}

/// Grouped-query attention: the query heads that share a key head are stacked along the rows.
fn grouped_attention(builder: &mut Builder, attention: Attention) -> Result<AttentionResult> {
    let Attention { query, key, value, mask, .. } = attention;
    let rank = builder.rank(query);
    let heads = |builder: &Builder, value| match rank.checked_sub(3) {
        Some(axis) => builder.extents(value).get(axis).copied().flatten(),
        None => None,
    };
    let (Some(many), Some(few)) = (heads(builder, query), heads(builder, key)) else {
        refuse!("`enable_gqa` requires known numbers of heads");
    };
    if many == few {
        return attend(builder, attention);
    }
    if few == 0 || many % few != 0 || heads(builder, value) != Some(few) {
        refuse!("{many} heads of queries cannot share {few} heads of keys and values");
    }
    let each = (many / few) as i64;
    let sizes = builder.dims(query)?;
    let targets = *sizes.at(axis_from_end(rank, 2)?)?;
    let stack = |builder: &mut Builder, x: ValueId| {
        let mut sizes = builder.dims(x)?;
        *sizes.at_mut(axis_from_end(rank, 3)?)? = Int::Known(few as i64);
        *sizes.at_mut(axis_from_end(rank, 2)?)? = match targets {
            Int::Known(targets) => Int::Known(targets * each),
            Int::Computed(_) => Int::Known(-1),
        };
        builder.reshape(x, &sizes)
    };
    let query = stack(builder, query)?;
    let mask = match mask {
        None => None,
        Some(mask) => {
            let extents = builder.extents(mask);
            let own_heads =
                extents.len() == rank && *extents.at(axis_from_end(rank, 3)?)? != Some(1);
            if own_heads {
                Some(stack(builder, mask)?)
            } else if extents.iter().rev().nth(1).is_none_or(|rows| *rows == Some(1)) {
                Some(mask)
            } else {
                let again = vec![mask; each as usize];
                Some(builder.concat(&again, axis_from_end(extents.len(), 2)?)?)
            }
        }
    };
    let attended = attend(builder, Attention { query, mask, ..attention })?;
    let mut result = sizes;
    *result.at_mut(axis_from_end(rank, 1)?)? = builder.dim(value, axis_from_end(rank, 1)?)?;
    let value = builder.reshape(attended.value, &result)?;
    Ok(AttentionResult { value, weights: None })
}

/// Mask that hides sources after the target's own position.
fn causal_mask(builder: &mut Builder, query: ValueId, key: ValueId) -> ValueResult {
    let (rank, key_rank) = (builder.rank(query), builder.rank(key));
    let (targets, sources) = (
        builder.dim(query, axis_from_end(rank, 2)?)?,
        builder.dim(key, axis_from_end(key_rank, 2)?)?,
    );
    if let (Some(targets), Some(sources)) = (targets.known(), sources.known()) {
        let rows = (0..targets).flat_map(|row| {
            (0..sources).map(move |column| if column <= row { 0.0 } else { f32::MIN })
        });
        let elements: Vec<f32> = rows.collect();
        return Ok(builder.float_constant(&[targets as u64, sources as u64], &elements));
    }
    let targets = builder.counting(targets)?;
    let targets = builder.expand_dims(targets, &[1])?;
    let sources = builder.counting(sources)?;
    let sources = builder.expand_dims(sources, &[0])?;
    builder.binary(OpKind::GreaterEqual, targets, sources)
}
