//! Messages about names that do not exist.

use std::path::Path;

use crate::escape_truncated;

/// Maximum number of known names that a message lists.
const MAX_LISTED: usize = 8;
/// Maximum number of characters shown of a name.
const MAX_CHARS: usize = 80;
/// Maximum length in bytes of names that are compared.
const MAX_COMPARED: usize = 128;

/// Message for an unknown name: lists the known names of that kind, and suggests a similar one.
///
/// ```
/// use coremill_io::unknown_name;
///
/// assert_eq!(unknown_name("input", "z", ["x", "y"]), "unknown input `z`; the inputs are `x` and `y`");
/// assert_eq!(
///     unknown_name("input", "imgae", ["image", "mask"]),
///     "unknown input `imgae`; the inputs are `image` and `mask`; did you mean `image`?"
/// );
/// assert_eq!(unknown_name("state", "cache", [""; 0]), "unknown state `cache`; no states are defined");
/// ```
pub fn unknown_name<N: AsRef<str>>(
    kind: &str,
    name: &str,
    known: impl IntoIterator<Item = N>,
) -> String {
    let known: Vec<N> = known.into_iter().collect();
    let meant = nearest(name, known.iter().map(AsRef::as_ref));
    let mut message = format!("unknown {kind} `{}`", escape_truncated(name, MAX_CHARS));
    match (known.as_slice(), meant) {
        ([], _) => message += &format!("; no {} are defined", plural(kind)),
        ([only], _) => message += &format!("; the only {kind} is {}", quoted(only.as_ref())),
        // A long list would hide the suggestion.
        (known, Some(_)) if known.len() > MAX_LISTED => {}
        (known, _) => {
            message += &format!("; the {} are {}", plural(kind), quoted_list(known));
        }
    }
    match meant {
        Some(meant) if known.len() > 1 => {
            message += &format!("; did you mean {}?", quoted(meant));
        }
        _ => {}
    }
    message
}

/// Message for an unknown name of a kind with too many names to list; suggests a similar one.
///
/// ```
/// use coremill_io::unknown_among;
///
/// let operations = ["relu", "softmax"];
/// assert_eq!(
///     unknown_among("operation", "sofmax", operations),
///     "unknown operation `sofmax`; did you mean `softmax`?"
/// );
/// assert_eq!(unknown_among("operation", "fold", operations), "unknown operation `fold`");
/// ```
pub fn unknown_among<'n>(
    kind: &str,
    name: &str,
    known: impl IntoIterator<Item = &'n str>,
) -> String {
    let message = format!("unknown {kind} `{}`", escape_truncated(name, MAX_CHARS));
    match nearest(name, known) {
        Some(meant) => format!("{message}; did you mean {}?", quoted(meant)),
        None => message,
    }
}

/// Joins names for a message: "`x`, `y` and `z`". Further names from the ninth on are counted: "`a`, … and 3 more".
///
/// ```
/// assert_eq!(coremill_io::quoted_list(&["x", "y", "z"]), "`x`, `y` and `z`");
/// ```
pub fn quoted_list<N: AsRef<str>>(names: &[N]) -> String {
    joined(names, "and")
}

/// Joins alternatives for a message: "`x`, `y` or `z`".
///
/// ```
/// assert_eq!(coremill_io::quoted_choice(&["x", "y", "z"]), "`x`, `y` or `z`");
/// ```
pub fn quoted_choice<N: AsRef<str>>(names: &[N]) -> String {
    joined(names, "or")
}

/// Message for a path with an unsupported extension.
///
/// ```
/// use std::path::Path;
/// use coremill_io::unsupported_extension;
///
/// let supported = ["mlpackage", "mlmodelc"];
/// assert_eq!(
///     unsupported_extension(Path::new("net.onnx"), &supported),
///     "net.onnx: the extension must be `.mlpackage` or `.mlmodelc`, got `.onnx`"
/// );
/// assert!(unsupported_extension(Path::new("net"), &supported).ends_with(", got none"));
/// ```
pub fn unsupported_extension(path: &Path, supported: &[&str]) -> String {
    let supported: Vec<String> = supported.iter().map(|name| format!(".{name}")).collect();
    let found = path.extension().map(|found| format!(".{}", found.to_string_lossy()));
    let found = found.map_or_else(|| "none".to_owned(), |found| quoted(&found));
    let path = path.display();
    format!("{path}: the extension must be {}, got {found}", joined(&supported, "or"))
}

fn joined<N: AsRef<str>>(names: &[N], conjunction: &str) -> String {
    let (listed, more) = names.split_at(names.len().min(MAX_LISTED));
    let mut listed: Vec<String> = listed.iter().map(|name| quoted(name.as_ref())).collect();
    if !more.is_empty() {
        listed.push(format!("{} more", more.len()));
    }
    match listed.split_last() {
        None => "none".to_owned(),
        Some((only, [])) => only.clone(),
        Some((last, before)) => format!("{} {conjunction} {last}", before.join(", ")),
    }
}

/// The known name with the fewest edits, if it is similar enough for a suggestion.
fn nearest<'n>(name: &str, known: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    let length = name.chars().count();
    // A single edit turns any letter into another, so short names have no suggestion.
    let bound = (length / 3).min(3);
    if bound == 0 || name.len() > MAX_COMPARED {
        return None;
    }
    let lower = name.to_lowercase();
    let near = known.into_iter().filter(|known| known.len() <= MAX_COMPARED);
    let near = near.filter_map(|known| {
        let edits = distance(&lower, &known.to_lowercase());
        (edits <= bound).then_some((edits, known))
    });
    near.min_by_key(|(edits, _)| *edits).map(|(_, known)| known)
}

/// Number of insertions, deletions, replacements and swaps of neighbors between two strings.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    // Rows of the distance matrix of prefixes: the second to last, the last and the next one.
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    let mut last_char = None;
    for (row, a_char) in a.chars().enumerate() {
        let mut next = Vec::with_capacity(last.len());
        next.push(row + 1);
        let mut diagonals = last.windows(2).enumerate();
        let mut left_char = None;
        while let (Some((column, &[diagonal, above])), Some(left)) =
            (diagonals.next(), next.last().copied())
        {
            let b_char = b.get(column).copied();
            let replaced = diagonal + usize::from(Some(a_char) != b_char);
            let mut edits = replaced.min(above + 1).min(left + 1);
            if last_char == b_char
                && left_char == Some(a_char)
                && let Some(swapped) = column.checked_sub(1).and_then(|at| before.get(at))
            {
                edits = edits.min(swapped + 1);
            }
            next.push(edits);
            left_char = b_char;
        }
        before = std::mem::replace(&mut last, next);
        last_char = Some(a_char);
    }
    last.last().copied().unwrap_or_default()
}

fn quoted(name: &str) -> String {
    format!("`{}`", escape_truncated(name, MAX_CHARS))
}

fn plural(kind: &str) -> String {
    match kind.strip_suffix('y') {
        Some(stem) if !stem.ends_with(['a', 'e', 'o', 'u']) => format!("{stem}ies"),
        _ if kind.ends_with('s') => format!("{kind}es"),
        _ => format!("{kind}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn computes_edit_distance() {
        for (a, b, edits) in [
            ("", "", 0),
            ("", "abc", 3),
            ("relu", "relu", 0),
            ("relux", "relu", 1),
            ("rlu", "relu", 1),
            ("rely", "relu", 1),
            ("reul", "relu", 1),
            ("kitten", "sitting", 3),
            ("saturday", "sunday", 3),
        ] {
            assert_eq!(distance(a, b), edits, "{a} {b}");
            assert_eq!(distance(b, a), edits, "{b} {a}");
        }
    }

    #[test]
    fn suggests_only_similar_names() {
        assert_eq!(nearest("convv", ["conv", "concat"]), Some("conv"));
        assert_eq!(nearest("Softmax", ["softmax"]), Some("softmax"));
        assert_eq!(nearest("matmlu", ["mul", "matmul"]), Some("matmul"));
        assert_eq!(nearest("pool", ["relu"]), None);
        assert_eq!(nearest("z", ["x"]), None);
        assert_eq!(nearest(&"a".repeat(129), [&*"a".repeat(128)]), None);
    }

    #[test]
    fn messages_list_known_names() {
        assert_eq!(
            unknown_name("pass", "fold", ["unroll"]),
            "unknown pass `fold`; the only pass is `unroll`"
        );
        assert_eq!(
            unknown_name("pass", "fold", ["unroll", "merge"]),
            "unknown pass `fold`; the passes are `unroll` and `merge`"
        );
        assert_eq!(
            unknown_name("entry", "a", [""; 0]),
            "unknown entry `a`; no entries are defined"
        );
        assert_eq!(unknown_name("key", "a", [""; 0]), "unknown key `a`; no keys are defined");
        let many: Vec<String> = (0..11).map(|at| format!("weight_{at}")).collect();
        let message = unknown_name("parameter", "bias", &many);
        assert!(message.ends_with("`weight_6`, `weight_7` and 3 more"), "{message}");
        assert_eq!(
            unknown_name("parameter", "wieght_9", &many),
            "unknown parameter `wieght_9`; did you mean `weight_9`?"
        );
    }

    #[test]
    fn replaces_control_characters_in_names() {
        assert_eq!(
            unknown_name("input", "a\nb", ["x\u{1b}"]),
            "unknown input `a\u{fffd}b`; the only input is `x\u{fffd}`"
        );
    }
}
