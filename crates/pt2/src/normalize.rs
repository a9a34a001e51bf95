//! Normalizes the arguments of a call by its schema: all arguments, in order, converted to the declared
//! types.

use crate::error::{Error, escape_truncated};
use crate::limits::MAX_REPEATED_DEFAULT;
use crate::program::Argument;
use crate::schema::{Kind, Schema};

/// An argument in the archive.
#[derive(Clone, Debug)]
pub struct SuppliedArgument {
    /// Name of the parameter; empty if it is passed by position.
    pub name: String,
    /// Whether it is passed by keyword.
    pub by_keyword: bool,
    /// The value.
    pub value: Argument,
}

/// Positional and keyword arguments. There are keyword arguments only if there is no schema.
pub type Arguments = (Vec<Argument>, Vec<(String, Argument)>);

/// Returns the arguments of a call in the order of its schema, including defaults.
pub fn arguments(
    schema: Option<&Schema>,
    given: Vec<SuppliedArgument>,
) -> Result<Arguments, Error> {
    let Some(schema) = schema else {
        return Ok(as_given(given));
    };
    let parameters = &schema.arguments;
    let mut slots: Vec<Option<Argument>> = vec![None; parameters.len()];
    for (position, SuppliedArgument { name, value, .. }) in given.into_iter().enumerate() {
        let index = if name.is_empty() {
            Some(position).filter(|index| *index < parameters.len())
        } else {
            parameters.iter().position(|parameter| parameter.name == name)
        };
        let Some(index) = index else {
            return Err(Error::unsupported(format!(
                "argument `{}` at position {position} does not belong to `{}` ({})",
                escape_truncated(&name),
                schema.name,
                names(schema)
            ))
            .with_hint(
                "the archive may be from a torch version with another schema of the operator; export again",
            ));
        };
        if slots[index].replace(value).is_some() {
            return Err(Error::malformed(format!(
                "argument `{}` of `{}` is given twice",
                parameters[index].name, schema.name
            )));
        }
    }
    let mut arguments = Vec::with_capacity(slots.len());
    for (slot, parameter) in slots.into_iter().zip(parameters) {
        let value = match slot {
            Some(value) => coerce(value, &parameter.kind),
            None => parameter.default_argument().ok_or_else(|| {
                Error::malformed(format!(
                    "argument `{}` of `{}` is missing and has no default",
                    parameter.name, schema.name
                ))
            })?,
        };
        arguments.push(value);
    }
    Ok((arguments, Vec::new()))
}

/// Without a schema, keyword arguments stay keyword arguments.
fn as_given(given: Vec<SuppliedArgument>) -> Arguments {
    let mut arguments = Vec::new();
    let mut keywords = Vec::new();
    for SuppliedArgument { name, by_keyword, value } in given {
        if by_keyword {
            keywords.push((name, value));
        } else {
            arguments.push(value);
        }
    }
    (arguments, keywords)
}

fn names(schema: &Schema) -> String {
    schema.arguments.iter().map(|parameter| parameter.name.as_str()).collect::<Vec<_>>().join(", ")
}

/// Like Python, converts an integer to a float, and a single item to a list of fixed length.
fn coerce(value: Argument, kind: &Kind) -> Argument {
    match (kind, value) {
        (_, Argument::None) => Argument::None,
        (Kind::Optional(inner), value) => coerce(value, inner),
        (Kind::Float, Argument::Int(value)) => Argument::Float(value as f64),
        (Kind::List(item, _), Argument::List(items)) => {
            Argument::List(items.into_iter().map(|value| coerce(value, item)).collect())
        }
        (
            Kind::List(item, Some(length)),
            value @ (Argument::Int(_) | Argument::Float(_) | Argument::Bool(_)),
        ) => {
            let length = (*length).min(MAX_REPEATED_DEFAULT) as usize;
            Argument::List(vec![coerce(value, item); length])
        }
        (_, value) => value,
    }
}
