//! Joining and splitting tensors along an axis.

use crate::infer::rules::elements::{
    elements_of, foldable_count, offset, rearranged, tabulated, tensor,
};
use crate::infer::shape::fixed;
use crate::infer::{InferContext, InferError, InferredValue, KnownElements, Rule, Scalar, refuse};
use crate::ir::{Dim, Expr, TensorType};

pub(super) fn concat(site: &InferContext) -> Rule {
    let parts = parts(site)?;
    let first = parts[0];
    let rank = first.rank();
    for part in &parts[1..] {
        if part.rank() != rank {
            let message =
                format!("have ranks {rank} and {}; all must have the same rank", part.rank());
            return Err(InferError::new(message).of("values"));
        }
    }
    // Scalars are joined to a vector.
    let axis = site.axis("axis", rank.max(1))?;
    let interleave = site.bool("interleave")?;

    let mut shape = Vec::with_capacity(rank.max(1));
    for at in 0..rank.max(1) {
        let extents = parts.iter().map(|part| part.shape.get(at).cloned().unwrap_or(Dim::Known(1)));
        let extents: Vec<Dim> = extents.collect();
        if at != axis || interleave {
            let mut extent = extents[0].clone();
            for other in &extents[1..] {
                extent = agreed(&extent, other).ok_or_else(|| disagreement(&parts, at, axis))?;
            }
            if at != axis {
                shape.push(extent);
                continue;
            }
        }
        let sum = extents.iter().try_fold(Expr::from(0), |sum, extent| sum.add(&extent.expr()?));
        shape.push(site.dim(sum));
    }
    let value = concat_elements(site, &shape, axis, interleave);
    Ok(vec![tensor(first.dtype, shape, value)])
}

fn concat_elements(
    site: &InferContext,
    shape: &[Dim],
    axis: usize,
    interleave: bool,
) -> Option<KnownElements> {
    foldable_count(&fixed(shape)?)?;
    let mut parts: Vec<KnownElements> =
        site.all("values").iter().map(elements_of).collect::<Option<_>>()?;
    for part in &mut parts {
        if part.shape.is_empty() {
            part.shape = vec![1];
        }
    }
    if interleave {
        let count = parts.len() as u64;
        return tabulated(parts[0].dtype, shape, |index| {
            let mut at = index.to_vec();
            at[axis] /= count;
            element(&parts[(index[axis] % count) as usize], &at)
        });
    }
    let starts = parts.iter().scan(0u64, |end, part| {
        let start = *end;
        *end = end.saturating_add(part.shape[axis]);
        Some(start)
    });
    let starts: Vec<u64> = starts.collect();
    tabulated(parts[0].dtype, shape, |index| {
        // Empty parts have the same start as the next part; take the last part with this start.
        let part = starts.partition_point(|&start| start <= index[axis]).checked_sub(1)?;
        let mut at = index.to_vec();
        at[axis] -= starts[part];
        element(&parts[part], &at)
    })
}

pub(super) fn stack(site: &InferContext) -> Rule {
    let parts = parts(site)?;
    let first = parts[0];
    let axis = site.axis("axis", first.rank() + 1)?;
    let mut shape = first.shape.clone();
    for part in &parts[1..] {
        let same = if part.rank() == shape.len() {
            shape.iter().zip(&part.shape).map(|(left, right)| agreed(left, right)).collect()
        } else {
            None
        };
        shape = same.ok_or_else(|| {
            let message = format!("are `{first}` and `{part}`; all must have the same shape");
            InferError::new(message).of("values")
        })?;
    }
    shape.insert(axis, Dim::Known(parts.len() as u64));

    let fold = || {
        foldable_count(&fixed(&shape)?)?;
        let parts: Vec<KnownElements> =
            site.all("values").iter().map(elements_of).collect::<Option<_>>()?;
        tabulated(first.dtype, &shape, |index| {
            let mut at = index.to_vec();
            let part = at.remove(axis) as usize;
            element(parts.get(part)?, &at)
        })
    };
    let value = fold();
    Ok(vec![tensor(first.dtype, shape, value)])
}

pub(super) fn split(site: &InferContext) -> Rule {
    let x = site.tensor("x")?;
    let axis = site.axis("axis", x.rank())?;
    let extent = &x.shape[axis];
    // An operation that has not been appended yet has no outputs; derive their number from its arguments.
    let outputs = match site.op().outputs.len() {
        0 if site.has("num_splits") => site.int("num_splits")?.clamp(0, 1 << 16) as usize,
        0 => site.optional_ints("split_sizes")?.map_or(0, |sizes| sizes.len()),
        named => named,
    };
    let check_count = |count: i64, name: &str| {
        if usize::try_from(count) == Ok(outputs) && count > 0 {
            return Ok(());
        }
        let message = format!("splits into {count} parts, but {outputs} outputs are declared");
        Err(InferError::new(message).of(name))
    };
    if site.has("num_splits") {
        check_count(site.int("num_splits")?, "num_splits")?;
    }

    let sizes: Vec<Dim> =
        match site.optional_ints("split_sizes")? {
            Some(sizes) => {
                check_count(sizes.len() as i64, "split_sizes")?;
                let total = sizes.iter().try_fold(0i64, |total, &size| {
                    if size < 0 { None } else { total.checked_add(size) }
                });
                let Some(total) = total else {
                    let message = format!("must not contain negative sizes, got {sizes:?}");
                    return Err(InferError::new(message).of("split_sizes"));
                };
                if extent.known().is_some_and(|extent| i64::try_from(extent) != Ok(total)) {
                    let message = format!(
                        "add up to {total}, but `x` has {extent} elements along axis {axis}"
                    );
                    return Err(InferError::new(message).of("split_sizes"));
                }
                sizes.iter().map(|&size| Dim::Known(size.unsigned_abs())).collect()
            }
            None if site.has("num_splits") => {
                let count = outputs as u64;
                if extent.known().is_some_and(|extent| extent % count != 0) {
                    refuse!(
                        "`x` has {extent} elements along axis {axis}, which cannot be split into \
                     {count} equal parts"
                    );
                }
                let size =
                    extent.expr().and_then(|extent| extent.floor_div(&Expr::from(count as i64)));
                vec![site.dim(size); outputs]
            }
            None => {
                return Err(InferError::new("needs `num_splits` or `split_sizes`; found neither")
                    .hint("bind `num_splits` for equal parts, `split_sizes` for others"));
            }
        };

    let mut start = 0u64;
    let mut outcomes = Vec::with_capacity(outputs);
    for size in sizes {
        let length = size.known();
        let mut shape = x.shape.clone();
        shape[axis] = size;
        let value = site.value("x").and_then(|value| {
            rearranged(value, &shape, |index, at| {
                at.copy_from_slice(index);
                at[axis] = at[axis].checked_add(start)?;
                Some(())
            })
        });
        outcomes.push(tensor(x.dtype, shape, value));
        start = start.saturating_add(length.unwrap_or(0));
    }
    Ok(outcomes)
}

/// The types of the joined tensors. There is at least one, and all have the same element type.
fn parts<'a>(site: &'a InferContext) -> Result<Vec<&'a TensorType>, InferError> {
    let refusal = |message: String| InferError::new(message).of("values");
    let part = |operand: &'a InferredValue| {
        let found = || refusal(format!("expects tensors, found `{}`", operand.ty));
        operand.ty.as_tensor().ok_or_else(found)
    };
    let parts: Vec<_> = site.all("values").iter().map(part).collect::<Result<_, _>>()?;
    let Some(first) = parts.first() else {
        return Err(refusal("must contain at least one tensor".to_owned()));
    };
    match parts.iter().find(|part| part.dtype != first.dtype) {
        None => Ok(parts),
        Some(other) => Err(refusal(format!(
            "have element types `{}` and `{}`; all must be the same",
            first.dtype, other.dtype
        ))
        .hint("`cast` them to one type")),
    }
}

/// The common size of two dimensions, preferring the more precise one; `None` if they cannot be equal.
pub(super) fn agreed(left: &Dim, right: &Dim) -> Option<Dim> {
    if !left.may_equal(right) {
        return None;
    }
    let better = if left.known().is_none() && right.known().is_some() { right } else { left };
    Some(better.clone())
}

fn disagreement(parts: &[&TensorType], at: usize, axis: usize) -> InferError {
    let first = parts[0];
    let differs = |part: &&&TensorType| agreed(&first.shape[at], &part.shape[at]).is_none();
    let other = parts.iter().find(differs).copied().unwrap_or(first);
    let rule = if at == axis {
        "interleaved tensors must have the same shape".to_owned()
    } else {
        format!("only axis {axis}, along which they are joined, may differ")
    };
    let message = format!("are `{first}` and `{other}`, which differ along axis {at}; {rule}");
    InferError::new(message).of("values")
}

fn element(part: &KnownElements, at: &[u64]) -> Option<Scalar> {
    let offset = offset(&part.shape, at)?;
    part.elements.get(offset).cloned()
}
