//! Texts of values in templates, as Python writes them.

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind, Output, State, escape_formatter};

/// Depth of lists and dictionaries at which their contents are left out.
const MAX_DEPTH: usize = 64;

/// Most items of lists and dictionaries in a text. A list that holds another one twice, and so on, has more items than memory.
const MAX_ITEMS: usize = 1 << 20;

/// The text of a value.
pub(crate) fn text(value: &Value) -> Result<String, Error> {
    Ok(match value.kind() {
        ValueKind::Bool | ValueKind::None | ValueKind::Seq | ValueKind::Map => {
            count_items(value, 0, &mut { MAX_ITEMS })?;
            let mut text = String::new();
            write_literal(value, 0, &mut text);
            text
        }
        _ => value.to_string(),
    })
}

/// Refuses values that are nested too deeply for JSON, or have too many items.
pub(crate) fn check_extent(value: &Value) -> Result<(), Error> {
    match count_items(value, 0, &mut { MAX_ITEMS })? {
        true => Ok(()),
        false => {
            let message = format!("values in JSON must be nested at most {MAX_DEPTH} levels deep");
            Err(Error::new(ErrorKind::InvalidOperation, message))
        }
    }
}

/// Subtracts the items of a value from `left`, down to the depth at which contents are left out. Returns `false` if there are items
/// below it.
fn count_items(value: &Value, depth: usize, left: &mut usize) -> Result<bool, Error> {
    let kind = value.kind();
    if !matches!(kind, ValueKind::Seq | ValueKind::Map | ValueKind::Iterable) {
        return Ok(true);
    }
    if depth == MAX_DEPTH {
        return Ok(false);
    }
    let mut ends = true;
    for item in value.try_iter()? {
        let Some(less) = left.checked_sub(1) else {
            let message =
                format!("a value with more than {MAX_ITEMS} items cannot be converted to text");
            return Err(Error::new(ErrorKind::InvalidOperation, message));
        };
        *left = less;
        ends &= count_items(&item, depth + 1, left)?;
        if kind == ValueKind::Map {
            ends &= count_items(&value.get_item(&item)?, depth + 1, left)?;
        }
    }
    Ok(ends)
}

/// Writes the value of an expression.
pub(crate) fn write(
    output: &mut Output<'_>,
    state: &State<'_, '_>,
    value: &Value,
) -> Result<(), Error> {
    match value.kind() {
        ValueKind::Bool | ValueKind::None | ValueKind::Seq | ValueKind::Map => {
            output.write_str(&text(value)?).map_err(Error::from)
        }
        _ => escape_formatter(output, state, value),
    }
}

/// Whether Python iterates over a value. `None` is not iterable, unlike an undefined value.
pub(crate) fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

/// Whether a value has a length and items, as lists, dictionaries and texts have in Python.
pub(crate) fn is_sequence(value: &Value) -> bool {
    let kinds = [ValueKind::Seq, ValueKind::Map, ValueKind::String, ValueKind::Undefined];
    kinds.contains(&value.kind())
}

/// Appends the literal of a value.
fn write_literal(value: &Value, depth: usize, text: &mut String) {
    match value.kind() {
        ValueKind::None | ValueKind::Undefined => text.push_str("None"),
        ValueKind::Bool => text.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::String => write_string(value.as_str().unwrap_or_default(), text),
        ValueKind::Seq | ValueKind::Map if depth == MAX_DEPTH => text.push_str("..."),
        ValueKind::Seq => {
            text.push('[');
            for (index, item) in value.try_iter().into_iter().flatten().enumerate() {
                text.push_str(if index > 0 { ", " } else { "" });
                write_literal(&item, depth + 1, text);
            }
            text.push(']');
        }
        ValueKind::Map => {
            text.push('{');
            for (index, key) in value.try_iter().into_iter().flatten().enumerate() {
                text.push_str(if index > 0 { ", " } else { "" });
                write_literal(&key, depth + 1, text);
                text.push_str(": ");
                write_literal(&value.get_item(&key).unwrap_or_default(), depth + 1, text);
            }
            text.push('}');
        }
        _ => text.push_str(&value.to_string()),
    }
}

/// Appends the literal of a string.
fn write_string(string: &str, text: &mut String) {
    let quote = if string.contains('\'') && !string.contains('"') { '"' } else { '\'' };
    text.push(quote);
    for character in string.chars() {
        match character {
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '\t' => text.push_str("\\t"),
            '\\' => text.push_str("\\\\"),
            character if character == quote => text.extend(['\\', quote]),
            character if character.is_control() => {
                text.push_str(&format!("\\x{:02x}", u32::from(character)));
            }
            character => text.push(character),
        }
    }
    text.push(quote);
}
