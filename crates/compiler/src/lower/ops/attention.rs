//! Attention.

use coremill_mil::ir::{Constant, Dim, Opset, ValueId};
use coremill_mil::ops::OpKind;
use coremill_tensor::DType;

use super::linear::product;
use crate::bounds::{At, back};
use crate::error::{Refusal, refuse};
use crate::lower::builder::{Arg, Builder};
use crate::lower::call::{Call, Results};
use crate::lower::row::{Row, all};
use crate::lower::value::{Int, Lowered};

pub(crate) const ROWS: &[Row] = &[
    all("aten.scaled_dot_product_attention", |call| attention(call, Some("attn_mask"))),
    all("aten._scaled_dot_product_attention_math", |call| attention(call, Some("attn_mask"))),
    all("aten._scaled_dot_product_flash_attention_for_cpu", |call| {
        attention(call, Some("attn_mask"))
    }),
    all("aten._scaled_dot_product_flash_attention", |call| attention(call, None)),
    all("aten._scaled_dot_product_efficient_attention", |call| attention(call, Some("attn_bias"))),
    all("aten._scaled_dot_product_cudnn_attention", |call| attention(call, Some("attn_bias"))),
    all("aten._scaled_dot_product_fused_attention_overrideable", |call| {
        attention(call, Some("attn_bias"))
    }),
];

/// What attention is computed from.
pub(crate) struct Attention {
    /// `[..., targets, embedding]`.
    pub(crate) query: ValueId,
    /// `[..., sources, embedding]`.
    pub(crate) key: ValueId,
    /// `[..., sources, width]`.
    pub(crate) value: ValueId,
    /// What is added to the scores, or which of them count.
    pub(crate) mask: Option<ValueId>,
    /// What the scores are multiplied by.
    pub(crate) scale: f64,
}

/// What came of it.
pub(crate) struct Attended {
    pub(crate) value: ValueId,
    /// The scores after softmax, unless Core ML's own operation keeps them to itself.
    pub(crate) weights: Option<ValueId>,
}

fn attention(call: &mut Call<'_, '_>, mask_name: Option<&str>) -> Results {
    let dropout = if call.has("dropout_p") { call.float("dropout_p")? } else { 0.0 };
    if dropout != 0.0 {
        return Err(Refusal::new(format!("`dropout_p` is {dropout}; accepted is 0"))
            .hint("export the model after `eval()`"));
    }
    if call.has("dropout_mask") {
        refuse!("`dropout_mask` is given, which is not lowered");
    }
    let dtype = call.result_dtype()?;
    let mut values = Vec::with_capacity(3);
    for name in ["query", "key", "value"] {
        let tensor = call.tensor(name)?.value;
        values.push(call.cast_to(tensor, dtype)?);
    }
    let (query, key, value) = (*values.at(0)?, *values.at(1)?, *values.at(2)?);
    let mask = match mask_name {
        Some(name) => call.optional_tensor(name)?,
        None => None,
    };
    let Some(embedding) = call.extents(query).last().copied().flatten() else {
        refuse!("the embedding of `query` is not known before the program runs");
    };
    let scale = match call.optional_float("scale")? {
        Some(scale) => scale,
        None => 1.0 / (embedding as f64).sqrt(),
    };
    let mask = match (mask, call.flag("is_causal")?) {
        (Some(_), true) => {
            refuse!("both a mask and `is_causal` are given; accepted is one of them")
        }
        (Some(mask), false) => Some(mask.value),
        (None, true) => causal_mask(call, query, key)?,
        (None, false) => None,
    };
    let grouped = call.has("enable_gqa") && call.flag("enable_gqa")?;
    let weights = call.is_used(1);
    if weights && !call.node.target.to_string().contains("attention_math") {
        refuse!("the second result, which is for gradients, is used; accepted is the first");
    }
    if (2..call.node.outputs.len()).any(|index| call.is_used(index)) {
        refuse!("results that are for gradients are used; accepted is the first");
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
    let all = Attention { query, key, value, mask, scale };
    let attended = if grouped {
        grouped_attention(call, all, decompose)?
    } else {
        attend(call, all, decompose)?
    };
    let value = match factors {
        Some(factors) => call.binary(OpKind::Mul, attended.value, factors)?,
        None => attended.value,
    };
    let mut results = vec![Lowered::tensor(value, dtype)];
    if let (true, Some(weights)) = (weights, attended.weights) {
        results.push(Lowered::tensor(weights, dtype));
    }
    Ok(results)
}

/// `softmax(query · keyᵀ · scale + mask) · value`.
pub(crate) fn attend(
    builder: &mut Builder,
    attention: Attention,
    decompose: bool,
) -> Result<Attended, Refusal> {
    let Attention { query, key, value, mask, scale } = attention;
    let rank = builder.rank(query);
    if rank < 2 {
        refuse!("`query` has rank {rank}; accepted are 2 and more");
    }
    let native = builder.opset() >= Opset::Ios18 && !decompose && fits(builder, &attention);
    let embedding = builder.extents(query).last().copied().flatten().unwrap_or(1);
    if native {
        // Core ML divides by the root itself.
        let own = 1.0 / (embedding as f64).sqrt();
        let relative = scale / own;
        let query =
            if (relative - 1.0).abs() < 1e-6 { query } else { builder.scaled(query, relative)? };
        let value = builder.emit(
            OpKind::ScaledDotProductAttention,
            [
                ("query", query.into()),
                ("key", key.into()),
                ("value", value.into()),
                ("attn_mask", mask.into()),
            ],
        )?;
        return Ok(Attended { value, weights: None });
    }
    let query = builder.scaled(query, scale)?;
    let mut scores = product(builder, query, key, false, true)?;
    if let Some(mask) = mask {
        scores = masked(builder, scores, mask)?;
    }
    let weights = builder.emit(OpKind::Softmax, [("x", scores.into()), ("axis", (-1).into())])?;
    let value = product(builder, weights, value, false, false)?;
    Ok(Attended { value, weights: Some(weights) })
}

/// Scores with a mask added, or with those that do not count next to nothing.
fn masked(builder: &mut Builder, scores: ValueId, mask: ValueId) -> Result<ValueId, Refusal> {
    if builder.dtype(mask) != DType::Bool {
        let mask = builder.cast(mask, DType::Fp32)?;
        return builder.binary(OpKind::Add, scores, mask);
    }
    // Not minus infinity, whose softmax is none where all of a row is masked.
    builder.select(mask, scores, f32::MIN)
}

/// A mask that lets a softmax be taken of every row: nothing in it is minus infinity, unless it is added and
/// computed.
///
/// Rows that are masked whole become means of all values, where torch has zeros; of a constant mask they
/// are known, and come with it as factors for the rows of the result.
fn bounded(
    builder: &mut Builder,
    mask: ValueId,
    native: bool,
) -> Result<(ValueId, Option<ValueId>), Refusal> {
    let is_bool = builder.dtype(mask) == DType::Bool;
    let elements = builder.known(mask).and_then(Constant::elements);
    let (Some(shape), Some(elements)) = (builder.fixed_shape(mask), elements) else {
        let mask = match (is_bool, native) {
            // Nothing where it takes a score, else the least number.
            (true, true) => {
                let takes = builder.cast(mask, DType::Fp32)?;
                let (alpha, beta) = (f32::MAX.into(), f32::MIN.into());
                let arguments = [("x", takes.into()), ("alpha", alpha), ("beta", beta)];
                builder.emit(OpKind::LinearActivation, arguments)?
            }
            // What is added stays as it is: it is kept in 32 bits where it may be large.
            _ => mask,
        };
        return Ok((mask, None));
    };
    // Constants that are `bool`s do not go to weight files.
    let bytes = elements.as_bytes();
    let terms: Vec<f32> = if is_bool {
        bytes.iter().map(|&takes| if takes != 0 { 0.0 } else { f32::MIN }).collect()
    } else {
        let (elements, _) = bytes.as_chunks::<4>();
        elements.iter().map(|&element| f32::from_le_bytes(element).max(f32::MIN)).collect()
    };
    let width = shape.last().map_or(1, |&width| width as usize).max(1);
    let whole = |row: &[f32]| row.iter().all(|&term| term == f32::MIN);
    let minus_infinity = is_bool || has_minus_infinity(bytes);
    let factors: Vec<f32> =
        terms.chunks(width).map(|row| f32::from(u8::from(!whole(row)))).collect();
    let factors = if minus_infinity && factors.contains(&0.0) {
        let mut shape = shape.clone();
        if let Some(last) = shape.last_mut() {
            *last = 1;
        }
        Some(builder.float_constant(&shape, &factors))
    } else {
        None
    };
    Ok((builder.float_constant(&shape, &terms), factors))
}

fn has_minus_infinity(bytes: &[u8]) -> bool {
    let (elements, _) = bytes.as_chunks::<4>();
    elements.iter().any(|&element| f32::from_le_bytes(element) == f32::NEG_INFINITY)
}

/// Whether Core ML's operation takes the tensors: batches are the same, and the mask has all sources.
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

/// Fewer heads of keys than of queries: each serves several, whose rows are put one below the other.
fn grouped_attention(
    builder: &mut Builder,
    attention: Attention,
    decompose: bool,
) -> Result<Attended, Refusal> {
    let Attention { query, key, value, mask, scale } = attention;
    let rank = builder.rank(query);
    let heads = |builder: &Builder, value| match rank.checked_sub(3) {
        Some(axis) => builder.extents(value).get(axis).copied().flatten(),
        None => None,
    };
    let (Some(many), Some(few)) = (heads(builder, query), heads(builder, key)) else {
        refuse!("`enable_gqa` is given, but the numbers of heads are not known");
    };
    if many == few {
        return attend(builder, attention, decompose);
    }
    if few == 0 || many % few != 0 || heads(builder, value) != Some(few) {
        refuse!("{many} heads of queries cannot share {few} heads of keys and values");
    }
    let each = (many / few) as i64;
    let sizes = builder.dims(query)?;
    let targets = *sizes.at(back(rank, 2)?)?;
    let stack = |builder: &mut Builder, x: ValueId| {
        let mut sizes = builder.dims(x)?;
        *sizes.at_mut(back(rank, 3)?)? = Int::Known(few as i64);
        *sizes.at_mut(back(rank, 2)?)? = match targets {
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
            let own_heads = extents.len() == rank && *extents.at(back(rank, 3)?)? != Some(1);
            if own_heads {
                Some(stack(builder, mask)?)
            } else if extents.iter().rev().nth(1).is_none_or(|rows| *rows == Some(1)) {
                Some(mask)
            } else {
                let again = vec![mask; each as usize];
                let axis = extents.len() as i32 - 2;
                let arguments = [
                    ("values", Arg::from(&again[..])),
                    ("axis", axis.into()),
                    ("interleave", false.into()),
                ];
                Some(builder.emit(OpKind::Concat, arguments)?)
            }
        }
    };
    let attended = attend(builder, Attention { query, key, value, mask, scale }, decompose)?;
    let mut result = sizes;
    *result.at_mut(back(rank, 1)?)? = builder.dim(value, back(rank, 1)?)?;
    let value = builder.reshape(attended.value, &result)?;
    Ok(Attended { value, weights: None })
}

/// What lets each target see the sources up to its own place; none if there is one target only, which
/// sees the first source.
fn causal_mask(
    builder: &mut Builder,
    query: ValueId,
    key: ValueId,
) -> Result<Option<ValueId>, Refusal> {
    let (rank, key_rank) = (builder.rank(query), builder.rank(key));
    if rank < 2 || key_rank < 2 {
        refuse!("`query` has rank {rank}; accepted are 2 and more");
    }
    let (targets, sources) =
        (builder.dim(query, back(rank, 2)?)?, builder.dim(key, back(key_rank, 2)?)?);
    if let (Some(targets), Some(sources)) = (targets.known(), sources.known()) {
        let rows = (0..targets).flat_map(|row| {
            (0..sources).map(move |column| if column <= row { 0.0 } else { f32::MIN })
        });
        let elements: Vec<f32> = rows.collect();
        return Ok(Some(builder.float_constant(&[targets as u64, sources as u64], &elements)));
    }
    let mut lines = Vec::with_capacity(2);
    for (extent, axis) in [(targets, 1), (sources, 0)] {
        let end = builder.int_value(extent)?;
        let range = builder.emit(
            OpKind::Range1d,
            [("end", end.into()), ("start", 0.into()), ("step", 1.into())],
        )?;
        lines.push(builder.expand_dims(range, &[axis])?);
    }
    builder.binary(OpKind::GreaterEqual, *lines.at(0)?, *lines.at(1)?).map(Some)
}
