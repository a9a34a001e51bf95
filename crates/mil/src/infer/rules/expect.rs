//! Common checks of parameters, with their messages.

use crate::infer::{InferContext, InferError, KnownElements, Scalar};
use crate::ir::{Dim, TensorType};

/// The type of the tensor bound to a parameter, which must have one of these ranks.
pub(super) fn ranked<'s>(
    site: &'s InferContext,
    name: &str,
    least: usize,
    most: usize,
) -> Result<&'s TensorType, InferError> {
    let tensor = site.tensor(name)?;
    check_rank(tensor, least, most).map_err(|refusal| refusal.of(name))?;
    Ok(tensor)
}

/// Checks that the rank is in `least..=most`.
pub(super) fn check_rank(tensor: &TensorType, least: usize, most: usize) -> Result<(), InferError> {
    if (least..=most).contains(&tensor.rank()) {
        return Ok(());
    }
    let accepted = match (least, most) {
        _ if least == most => format!("rank {least}"),
        (_, usize::MAX) => format!("rank {least} or more"),
        _ => format!("rank {least} to {most}"),
    };
    let message = format!("has rank {} (`{tensor}`); expected {accepted}", tensor.rank());
    Err(InferError::new(message))
}

/// Checks that a parameter has exactly one element if it is bound.
pub(super) fn one_element(site: &InferContext, name: &str) -> Result<(), InferError> {
    match site.optional_tensor(name) {
        Some(tensor) if tensor.element_count() != Some(1) => Err(site.expected(name, "one number")),
        _ => Ok(()),
    }
}

/// The value of a numeric parameter; `None` if it is unbound or its element is unknown.
pub(super) fn number(site: &InferContext, name: &str) -> Result<Option<f64>, InferError> {
    one_element(site, name)?;
    Ok(site.value(name).and_then(KnownElements::only).and_then(Scalar::float))
}

/// Checks one dimension of a parameter. Unknown dimensions are valid.
pub(super) fn dimension(
    site: &InferContext,
    name: &str,
    axis: usize,
    expected: &Dim,
    why: &str,
) -> Result<(), InferError> {
    let Some(tensor) = site.optional_tensor(name) else { return Ok(()) };
    match tensor.shape.get(axis) {
        Some(found) if found.may_equal(expected) => Ok(()),
        Some(found) => {
            let message = format!(
                "has size {found} along axis {axis} (`{tensor}`); expected {expected}, {why}"
            );
            Err(InferError::new(message).of(name))
        }
        None => {
            let message =
                format!("has no axis {axis} (`{tensor}`); its size must be {expected}, {why}");
            Err(InferError::new(message).of(name))
        }
    }
}

/// Checks the shape of a parameter if it is bound.
pub(super) fn shape(
    site: &InferContext,
    name: &str,
    expected: &[Dim],
    why: &str,
) -> Result<(), InferError> {
    if !site.has(name) {
        return Ok(());
    }
    let tensor = site.tensor(name)?;
    let fits = tensor.rank() == expected.len()
        && tensor.shape.iter().zip(expected).all(|(found, expected)| found.may_equal(expected));
    if fits {
        return Ok(());
    }
    let expected: Vec<_> = expected.iter().map(Dim::to_string).collect();
    let message = format!("must have shape [{}], {why}, got `{tensor}`", expected.join(", "));
    Err(InferError::new(message).of(name))
}

/// The integers of a parameter with one integer, or a fixed number of integers, for each spatial dimension.
pub(super) fn per_spatial_dim(
    site: &InferContext,
    name: &str,
    spatial: usize,
    times: usize,
) -> Result<Vec<i64>, InferError> {
    let values = site.ints(name, spatial)?;
    if values.len() == spatial * times {
        return Ok(values);
    }
    let each = if times == 1 { "one" } else { "two" };
    let message = format!(
        "has {} elements; expected {}, {each} for each of the {spatial} spatial dimensions",
        values.len(),
        spatial * times
    );
    Err(InferError::new(message).of(name))
}

/// Like [`per_spatial_dim`], but every integer must be at least 1.
pub(super) fn positive_per_spatial_dim(
    site: &InferContext,
    name: &str,
    spatial: usize,
) -> Result<Vec<i64>, InferError> {
    let values = per_spatial_dim(site, name, spatial, 1)?;
    match values.iter().find(|&&value| value < 1) {
        None => Ok(values),
        Some(value) => {
            let message = format!("must contain values of at least 1, got {value}");
            Err(InferError::new(message).of(name))
        }
    }
}

/// The value of a parameter that is a size.
pub(super) fn extent(site: &InferContext, name: &str) -> Result<Dim, InferError> {
    let value = site.int(name)?;
    match u64::try_from(value) {
        Ok(extent) if extent > 0 => Ok(Dim::Known(extent)),
        _ => Err(InferError::new(format!("must be at least 1, got {value}")).of(name)),
    }
}

/// The string value of a parameter, compared with `known` without case. Returns the spelling of `known`.
pub(super) fn choice_in_any_case<'k>(
    site: &InferContext,
    name: &str,
    known: &[&'k str],
) -> Result<&'k str, InferError> {
    let text = site.text(name)?;
    let found = known.iter().find(|choice| choice.eq_ignore_ascii_case(&text));
    match found {
        Some(choice) => Ok(choice),
        // Report the same message as for case-sensitive choices.
        None => Err(site.choice(name, known).err().unwrap_or_else(|| site.expected(name, "text"))),
    }
}
