//! Creating tensors, and searching and sorting their elements.

use coremill_tensor::DType;

use crate::infer::rules::elements::{
    fits, informative, lines, offset, order, rearranged, tabulated, tensor,
};
use crate::infer::rules::join::agreed;
use crate::infer::rules::reshape::{Target, target};
use crate::infer::rules::slice::not_negative;
use crate::infer::{
    InferContext, InferError, InferredValue, KnownElements, Rule, Scalar, refuse, round_to,
};
use crate::ir::{Dim, Expr, Type};

pub(super) fn argsort(site: &InferContext) -> Rule {
    let x = site.tensor("x")?;
    let axis = site.axis("axis", x.rank())?;
    let ascending = site.bool("ascending")?;
    let value = site.value("x").and_then(|value| ranking(value, axis, ascending, DType::Int32));
    Ok(vec![tensor(DType::Int32, x.shape.clone(), value)])
}

/// Sorting permutation of each line along an axis. The sort is stable.
fn ranking(x: &KnownElements, axis: usize, ascending: bool, dtype: DType) -> Option<KnownElements> {
    let known = |element: &Scalar| element.int().is_some() || element.float().is_some();
    if !x.elements.iter().all(known) {
        return None;
    }
    let mut ranks = vec![Scalar::Unknown; x.elements.len()];
    for line in lines(&x.shape, axis) {
        let mut places: Vec<usize> = (0..line.len()).collect();
        places.sort_by(|&left, &right| {
            let (left, right) = (&x.elements[line[left]], &x.elements[line[right]]);
            let nan = |element: &Scalar| element.float().is_some_and(f64::is_nan);
            let turned = !ascending && !nan(left) && !nan(right);
            let (left, right) = if turned { (right, left) } else { (left, right) };
            order(left, right).unwrap_or(std::cmp::Ordering::Equal)
        });
        for (rank, place) in places.into_iter().enumerate() {
            ranks[line[rank]] = Scalar::Int(place as i64);
        }
    }
    KnownElements::new(dtype, x.shape.clone(), ranks)
}

/// A `k` of -1 sorts the whole axis.
pub(super) fn topk(site: &InferContext) -> Rule {
    let x = site.tensor("x")?;
    let axis = site.axis("axis", x.rank())?;
    let ascending = site.bool("ascending")?;
    let extent = &x.shape[axis];
    let count = match site.int("k")? {
        -1 => extent.clone(),
        k => {
            let refusal = |message: String| InferError::new(message).of("k");
            let Ok(k) = u64::try_from(k) else {
                return Err(refusal(format!(
                    "must be -1, for all, or from 0 to {extent}, got {k}"
                )));
            };
            if extent.known().is_some_and(|extent| k > extent) {
                return Err(refusal(format!(
                    "is {k}, but `x` has only {extent} elements along axis {axis}"
                )));
            }
            Dim::Known(k)
        }
    };
    let with_indices = site.row_has("return_indices").then(|| site.bool("return_indices"));
    let with_indices = with_indices.transpose()?.unwrap_or(true);
    let mut indices_dtype = DType::Int32;
    if site.has("output_indices_dtype") {
        if !with_indices {
            return Err(InferError::new("is set, but `return_indices` is false")
                .of("output_indices_dtype")
                .hint("leave it out"));
        }
        site.choice("output_indices_dtype", &["int32", "uint16"])?;
        indices_dtype = site.dtype("output_indices_dtype")?;
    }

    let mut shape = x.shape.clone();
    shape[axis] = count;
    let ranks = site.value("x").and_then(|value| ranking(value, axis, ascending, indices_dtype));
    let indices = ranks.as_ref().and_then(|ranks| {
        rearranged(ranks, &shape, |index, at| {
            at.copy_from_slice(index);
            Some(())
        })
    });
    let values = site.value("x").zip(indices.as_ref()).and_then(|(value, indices)| {
        let mut places = indices.elements.iter();
        rearranged(value, &shape, |index, at| {
            at.copy_from_slice(index);
            at[axis] = u64::try_from(places.next()?.int()?).ok()?;
            Some(())
        })
    });
    let mut outcomes = vec![tensor(x.dtype, shape.clone(), values)];
    if with_indices {
        outcomes.push(tensor(indices_dtype, shape, indices));
    }
    Ok(outcomes)
}

pub(super) fn band_part(site: &InferContext) -> Rule {
    let x = site.tensor("x")?;
    if x.rank() < 2 {
        let message = format!("must have a rank of at least 2, got `{x}`");
        return Err(InferError::new(message).of("x"));
    }
    let (lower, upper) = (site.int("lower")?, site.int("upper")?);
    let zero = zero(x.dtype);
    let value = site.value("x").and_then(|value| {
        let mut elements = value.elements.iter();
        tabulated(x.dtype, &x.shape, |index| {
            let element = elements.next()?;
            let (row, column) = (index[index.len() - 2], index[index.len() - 1]);
            let below = i128::from(row) - i128::from(column);
            let kept = (lower < 0 || below <= i128::from(lower))
                && (upper < 0 || -below <= i128::from(upper));
            Some(if kept { element.clone() } else { zero.clone() })
        })
    });
    Ok(vec![tensor(x.dtype, x.shape.clone(), value)])
}

fn zero(dtype: DType) -> Scalar {
    match dtype {
        DType::Bool => Scalar::Bool(false),
        _ if dtype.is_float() => Scalar::Float(0.0),
        _ => Scalar::Int(0),
    }
}

/// Like coremltools, accepts -1 for the last axis but no other negative axis.
pub(super) fn cumsum(site: &InferContext) -> Rule {
    let x = site.tensor("x")?;
    let given = site.int("axis")?;
    let axis = site.axis("axis", x.rank())?;
    if given < -1 {
        let message = format!("must be from -1 to {}, got {given}", x.rank() as i64 - 1);
        return Err(InferError::new(message).of("axis").hint(format!("write it as {axis}")));
    }
    let (exclusive, reverse) = (site.bool("exclusive")?, site.bool("reverse")?);
    let value = site.value("x").and_then(|value| sums(value, axis, exclusive, reverse));
    Ok(vec![tensor(x.dtype, x.shape.clone(), value)])
}

fn sums(x: &KnownElements, axis: usize, exclusive: bool, reverse: bool) -> Option<KnownElements> {
    let mut sums = x.elements.clone();
    for mut line in lines(&x.shape, axis) {
        if reverse {
            line.reverse();
        }
        let mut sum = zero(x.dtype);
        for place in line {
            let next = added(x.dtype, &sum, &x.elements[place]);
            sums[place] = if exclusive { sum } else { next.clone() };
            sum = next;
        }
    }
    KnownElements::new(x.dtype, x.shape.clone(), sums)
}

fn added(dtype: DType, left: &Scalar, right: &Scalar) -> Scalar {
    match (left, right) {
        (Scalar::Float(left), Scalar::Float(right)) => Scalar::Float(round_to(dtype, left + right)),
        _ => {
            let sum = left.expr().zip(right.expr()).and_then(|(left, right)| left.add(&right));
            Scalar::from_expr(sum.and_then(|sum| fitting(dtype, sum)))
        }
    }
}

/// The expression; `None` if it is an integer out of the range of the element type.
fn fitting(dtype: DType, expr: Expr) -> Option<Expr> {
    expr.constant().is_none_or(|value| fits(dtype, value)).then_some(expr)
}

pub(super) fn fill(site: &InferContext) -> Rule {
    let (dtype, value) = filling(site)?;
    let shape = match target(site, "shape")? {
        Target::Length(length) => (0..length).map(|_| site.fresh()).collect(),
        Target::Elements(elements) => {
            let negative = elements.iter().filter_map(Scalar::int).find(|&extent| extent < 0);
            if let Some(negative) = negative {
                let message = format!("must contain sizes of at least 0, got {negative}");
                return Err(InferError::new(message).of("shape"));
            }
            elements.iter().map(|extent| site.dim(extent.expr())).collect::<Vec<_>>()
        }
    };
    Ok(vec![filled(dtype, shape, &value)])
}

pub(super) fn fill_like(site: &InferContext) -> Rule {
    let (dtype, value) = filling(site)?;
    let shape = site.tensor("ref_tensor")?.shape.clone();
    Ok(vec![filled(dtype, shape, &value)])
}

/// The fill value; by default the fp32 zero.
fn filling(site: &InferContext) -> Result<(DType, Scalar), InferError> {
    let Some(given) = site.optional_tensor("value") else {
        return Ok((DType::Fp32, Scalar::Float(0.0)));
    };
    if given.element_count() != Some(1) {
        return Err(site.expected("value", "one element"));
    }
    let value = site.value("value").and_then(KnownElements::only);
    Ok((given.dtype, value.cloned().unwrap_or(Scalar::Unknown)))
}

fn filled(dtype: DType, shape: Vec<Dim>, value: &Scalar) -> InferredValue {
    let folded = tabulated(dtype, &shape, |_| Some(value.clone()));
    tensor(dtype, shape, folded.and_then(informative))
}

pub(super) fn identity(site: &InferContext) -> Rule {
    let Some(x) = site.operand("x") else { return Err(site.expected("x", "a value")) };
    match &x.ty {
        Type::Tensor(_) | Type::List(..) | Type::Dictionary(..) => Ok(vec![x.clone()]),
        Type::Tuple(_) | Type::State(_) => {
            Err(site.expected("x", "a tensor, a list or a dictionary"))
        }
    }
}

/// Up to iOS16, boxes are rows, there is a score threshold, and the number of found boxes is an output. Since
/// iOS17, boxes are columns.
pub(super) fn non_maximum_suppression(site: &InferContext) -> Rule {
    let (boxes, scores) = (site.tensor("boxes")?, site.tensor("scores")?);
    let rows = site.row_has("score_threshold");
    let (coordinates, places) = if rows { (2, 1) } else { (1, 2) };
    let layout = if rows { "[batch, boxes, 4]" } else { "[batch, 4, boxes]" };
    if boxes.rank() != 3 || agreed(&boxes.shape[coordinates], &Dim::Known(4)).is_none() {
        let message = format!("expects the shape {layout}, found `{boxes}`");
        return Err(InferError::new(message).of("boxes"));
    }
    if scores.rank() != 3 {
        let layout = if rows { "[batch, boxes, classes]" } else { "[batch, classes, boxes]" };
        let message = format!("expects the shape {layout}, found `{scores}`");
        return Err(InferError::new(message).of("scores"));
    }
    let batch = agreed(&scores.shape[0], &boxes.shape[0]);
    let (Some(batch), Some(_)) = (batch, agreed(&scores.shape[places], &boxes.shape[places]))
    else {
        refuse!(
            "`scores` is `{scores}` and `boxes` is `{boxes}`; batch sizes and numbers of boxes must be equal"
        );
    };
    let count = site.int("max_boxes")?;
    let Ok(count) = u64::try_from(count).map(Dim::Known) else {
        return Err(InferError::new(format!("must be at least 0, got {count}")).of("max_boxes"));
    };
    let selected = |dtype: DType, width: Dim| {
        let mut shape = vec![batch.clone(), count.clone(), count.clone()];
        shape[coordinates] = width;
        InferredValue::tensor(dtype, shape)
    };
    let classes = scores.shape[coordinates].clone();
    let mut outcomes = vec![
        selected(boxes.dtype, Dim::Known(4)),
        selected(scores.dtype, classes),
        InferredValue::tensor(DType::Int32, vec![batch.clone(), count.clone()]),
    ];
    if rows {
        outcomes.push(InferredValue::tensor(DType::Int32, vec![batch]));
    }
    Ok(outcomes)
}

pub(super) fn non_zero(site: &InferContext) -> Rule {
    let x = site.tensor("x")?;
    let rank = x.rank() as u64;
    if let Some(found) = site.value("x").filter(|_| rank > 0).and_then(non_zero_places) {
        return Ok(vec![found]);
    }
    Ok(vec![InferredValue::tensor(DType::Int32, vec![site.fresh(), Dim::Known(rank)])])
}

fn non_zero_places(x: &KnownElements) -> Option<InferredValue> {
    let rank = x.shape.len() as u64;
    let mut places = Vec::new();
    let mut elements = x.elements.iter();
    let shape: Vec<Dim> = x.shape.iter().copied().map(Dim::Known).collect();
    // Used only to iterate over the indices; the resulting tensor is discarded.
    tabulated(x.dtype, &shape, |index| {
        if elements.next()?.float()? != 0.0 {
            places.extend(index.iter().map(|&at| Scalar::Int(at as i64)));
        }
        Some(Scalar::Unknown)
    })?;
    let count = (places.len() as u64).checked_div(rank)?;
    let shape = vec![Dim::Known(count), Dim::Known(rank)];
    let value = KnownElements::new(DType::Int32, vec![count, rank], places);
    Some(tensor(DType::Int32, shape, value))
}

pub(super) fn one_hot(site: &InferContext) -> Rule {
    let indices = site.tensor("indices")?;
    let axis = site.axis("axis", indices.rank() + 1)?;
    let dtype_of = |name| site.optional_tensor(name).map_or(DType::Int32, |given| given.dtype);
    let (on, off) = (dtype_of("on_value"), dtype_of("off_value"));
    if on != off {
        return Err(InferError::new(format!(
            "`on_value` is `{on}` and `off_value` is `{off}`; both must have the same type"
        ))
        .hint("bind both; the default is `int32`"));
    }
    let size = match site.value("one_hot_vector_size") {
        None => site.fresh(),
        Some(value) => match value.only() {
            Some(Scalar::Int(size)) if *size < 0 => {
                let message = format!("must be at least 0, got {size}");
                return Err(InferError::new(message).of("one_hot_vector_size"));
            }
            Some(size) => site.dim(size.expr()),
            None => return Err(site.expected("one_hot_vector_size", "one integer")),
        },
    };
    let mut shape = indices.shape.clone();
    shape.insert(axis, size.clone());
    let fold = || {
        let value = site.value("indices")?;
        let given = |name, default| match site.value(name) {
            Some(value) => value.only().cloned(),
            None if site.has(name) => None,
            None => Some(Scalar::Int(default)),
        };
        let (on, off) = (given("on_value", 1)?, given("off_value", 0)?);
        size.known()?;
        tabulated(dtype_of("on_value"), &shape, |index| {
            let mut at = index.to_vec();
            let class = at.remove(axis) as i64;
            let place = offset(&value.shape, &at)?;
            let index = value.elements.get(place)?.int()?;
            Some(if index == class { on.clone() } else { off.clone() })
        })
    };
    let value = fold();
    Ok(vec![tensor(on, shape, value)])
}

pub(super) fn pad(site: &InferContext) -> Rule {
    let x = site.tensor("x")?;
    let pads = site.tensor("pad")?;
    let mode = site.choice("mode", &["constant", "reflect", "replicate"])?;
    let refusal = |message: String| InferError::new(message).of("pad");
    let [length] = pads.shape.as_slice() else {
        return Err(site.expected("pad", "a vector with two elements for each padded axis"));
    };
    let rank = x.rank();
    let computed = vec![Scalar::Unknown; 2 * rank];
    let elements = site.value("pad").map_or(&computed, |value| &value.elements);
    let whole = elements.iter().all(|element| element.int().is_some());
    if !whole || site.value("pad").is_none() {
        let both = 2 * rank as u64;
        if length.known().is_some_and(|length| length != both) {
            let message = format!("is computed, so it must have {both} elements, got {length}");
            return Err(refusal(message));
        }
    }
    let axes = elements.len() / 2;
    if !elements.len().is_multiple_of(2) || axes > rank {
        return Err(refusal(format!(
            "has {} elements; expected two for each of up to {rank} axes",
            elements.len()
        )));
    }
    let mut shape = x.shape.clone();
    for (at, pair) in elements.chunks_exact(2).enumerate() {
        let axis = rank - axes + at;
        let extent = &x.shape[axis];
        let most = match &*mode {
            "reflect" => extent.known().map(|extent| i128::from(extent) - 1),
            "replicate" => extent.known().map(i128::from),
            _ => None,
        };
        for amount in pair.iter().filter_map(Scalar::int) {
            if amount < 0 {
                return Err(refusal(format!("must not be negative, got {amount} for axis {axis}"))
                    .hint("use `slice_by_index` to remove elements"));
            }
            if most.is_some_and(|most| i128::from(amount) > most) {
                return Err(refusal(format!(
                    "has {amount} for axis {axis} of `x`, which has {extent} elements; the maximum for \
                     `{mode}` is {}",
                    most.unwrap_or_default()
                )));
            }
        }
        if pair.iter().all(|amount| amount.int() == Some(0)) {
            continue;
        }
        let sum = || extent.expr()?.add(&pair[0].expr()?)?.add(&pair[1].expr()?);
        shape[axis] = site.dim(sum());
    }
    let fold = || {
        let value = site.value("x")?;
        let mut before = vec![0; rank - axes];
        before.extend(site.value("pad")?.ints()?.chunks_exact(2).map(|pair| pair[0]));
        padded(value, &shape, &before, &mode, &filling_of(site, x.dtype))
    };
    let value = fold();
    Ok(vec![tensor(x.dtype, shape, value)])
}

fn filling_of(site: &InferContext, dtype: DType) -> Scalar {
    if !site.has("constant_val") {
        return zero(dtype);
    }
    site.value("constant_val").and_then(KnownElements::only).cloned().unwrap_or(Scalar::Unknown)
}

/// Pads the elements; `before` is the number of elements added in front along each axis.
fn padded(
    x: &KnownElements,
    shape: &[Dim],
    before: &[i64],
    mode: &str,
    filling: &Scalar,
) -> Option<KnownElements> {
    let mut at = vec![0; x.shape.len()];
    tabulated(x.dtype, shape, |index| {
        for (axis, at) in at.iter_mut().enumerate() {
            let last = i64::try_from(x.shape[axis]).ok()?.checked_sub(1)?;
            let place = i64::try_from(index[axis]).ok()?.checked_sub(before[axis])?;
            let within = match mode {
                "reflect" if place < 0 => -place,
                "reflect" if place > last => last.checked_mul(2)?.checked_sub(place)?,
                "replicate" => place.clamp(0, last.max(0)),
                _ if (0..=last).contains(&place) => place,
                _ => return Some(filling.clone()),
            };
            *at = u64::try_from(within).ok()?;
        }
        x.elements.get(offset(&x.shape, &at)?).cloned()
    })
}

pub(super) fn range_1d(site: &InferContext) -> Rule {
    let dtype = site.tensor("start")?.dtype;
    let bound = |name| {
        let known = site.tensor(name)?.element_count();
        if known.is_some_and(|count| count != 1) {
            return Err(site.expected(name, "one number"));
        }
        Ok(site.value(name).and_then(KnownElements::only).cloned().unwrap_or(Scalar::Unknown))
    };
    let (start, end, step) = (bound("start")?, bound("end")?, bound("step")?);
    if step.float() == Some(0.0) {
        return Err(InferError::new("must not be 0").of("step"));
    }
    if dtype.is_float() {
        return float_range(site, dtype, [start.float(), end.float(), step.float()]);
    }
    let count = || {
        let (start, end, step) = (start.expr()?, end.expr()?, step.expr()?);
        // The count depends on the sign of the stride, so the sign must be known.
        step.constant().or_else(|| step.lower_bound().filter(|&bound| bound >= 0))?;
        not_negative(end.sub(&start)?.ceil_div(&step)?)
    };
    let count = site.dim(count());
    let shape = vec![count];
    let value = start.expr().zip(step.expr()).and_then(|(start, step)| {
        tabulated(dtype, &shape, |index| {
            let at = step.mul(&Expr::from(index[0] as i64))?.add(&start)?;
            Some(Scalar::from_expr(fitting(dtype, at)))
        })
    });
    Ok(vec![tensor(dtype, shape, value)])
}

fn float_range(site: &InferContext, dtype: DType, bounds: [Option<f64>; 3]) -> Rule {
    let [Some(start), Some(end), Some(step)] = bounds else {
        return Ok(vec![InferredValue::tensor(dtype, vec![site.fresh()])]);
    };
    let count = round_to(dtype, round_to(dtype, end - start) / step).ceil();
    if !count.is_finite() || count > u32::MAX.into() {
        refuse!(
            "the range from {start} to {end} in steps of {step} has {count} elements; the maximum is {}",
            u32::MAX
        );
    }
    // The count is now an integer and not negative.
    let shape = vec![Dim::Known(count.max(0.0) as u64)];
    let width = round_to(dtype, round_to(dtype, start + step) - start);
    let value = tabulated(dtype, &shape, |index| {
        let element = match index[0] {
            0 => start,
            1 => round_to(dtype, start + step),
            at => round_to(dtype, start + round_to(dtype, at as f64 * width)),
        };
        Some(Scalar::Float(element))
    });
    Ok(vec![tensor(dtype, shape, value)])
}

pub(super) fn shape(site: &InferContext) -> Rule {
    let x = site.tensor("x")?;
    let fitting = |dim: &Dim| dim.known().is_none_or(|extent| i32::try_from(extent).is_ok());
    let extents = x.shape.iter().map(|dim| match fitting(dim) {
        true => Scalar::from_dim(dim),
        false => Scalar::Unknown,
    });
    let extents: Vec<Scalar> = extents.collect();
    let shape = vec![Dim::Known(x.rank() as u64)];
    let value = KnownElements::new(DType::Int32, vec![x.rank() as u64], extents);
    Ok(vec![tensor(DType::Int32, shape, value)])
}

pub(super) fn tile(site: &InferContext) -> Rule {
    let x = site.tensor("x")?;
    let reps = site.tensor("reps")?;
    let [length] = reps.shape.as_slice() else {
        return Err(site.expected("reps", "a vector with one element for each axis of `x`"));
    };
    if x.rank() == 0 || length.known().is_some_and(|length| length != x.rank() as u64) {
        let message =
            format!("has {length} elements; expected one for each axis of `x`, which is `{x}`");
        return Err(InferError::new(message).of("reps"));
    }
    let Some(reps) = site.value("reps") else {
        let shape = x.shape.iter().map(|_| site.fresh()).collect();
        return Ok(vec![InferredValue::tensor(x.dtype, shape)]);
    };
    if let Some(rep) = reps.elements.iter().filter_map(Scalar::int).find(|&rep| rep <= 0) {
        let message = format!("must contain values of at least 1, got {rep}");
        return Err(InferError::new(message).of("reps"));
    }
    let repeated = |(dim, rep): (&Dim, &Scalar)| {
        site.dim(dim.expr().zip(rep.expr()).and_then(|(extent, rep)| extent.mul(&rep)))
    };
    let shape: Vec<Dim> = x.shape.iter().zip(&reps.elements).map(repeated).collect();
    let value = site.value("x").and_then(|value| {
        rearranged(value, &shape, |index, at| {
            for ((at, place), extent) in at.iter_mut().zip(index).zip(&value.shape) {
                *at = place.checked_rem(*extent)?;
            }
            Some(())
        })
    });
    Ok(vec![tensor(x.dtype, shape, value)])
}
