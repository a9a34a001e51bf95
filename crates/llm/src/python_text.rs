//! Texts of values in templates, as Python writes them.

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, Output, State, escape_formatter};

/// Depth of lists and dictionaries at which their contents are left out.
const MAX_DEPTH: usize = 64;

/// The text of a value.
pub(crate) fn text(value: &Value) -> String {
    match value.kind() {
        ValueKind::Bool | ValueKind::None | ValueKind::Seq | ValueKind::Map => {
            let mut text = String::new();
            write_literal(value, 0, &mut text);
            text
        }
        _ => value.to_string(),
    }
}

/// Writes the value of an expression.
pub(crate) fn write(
    output: &mut Output<'_>,
    state: &State<'_, '_>,
    value: &Value,
) -> Result<(), Error> {
    match value.kind() {
        ValueKind::Bool | ValueKind::None | ValueKind::Seq | ValueKind::Map => {
            output.write_str(&text(value)).map_err(Error::from)
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
