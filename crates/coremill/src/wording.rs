//! Messages of the libraries in the terms of an interface, for the command and the Python package.
//!
//! Libraries name options as `` the option `target=ios18` `` and steps as "convert it first"; an interface shows its own
//! flags, arguments, commands and functions.

/// Prefix of options in messages.
const OPTION: &str = "the option `";

/// Replaces each option in a message by what `write` returns for its name and value.
pub fn with_options(text: &str, write: impl Fn(&str, Option<&str>) -> String) -> String {
    let mut parts = text.split(OPTION);
    let mut written = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (option, rest) = part.split_once('`').unwrap_or((part, ""));
        let replaced = match option.split_once('=') {
            Some((name, value)) => write(name, Some(value)),
            None => write(option, None),
        };
        written += &format!("`{replaced}`{rest}");
    }
    written
}

/// Replaces the steps in a hint by the commands or functions that perform them. A step is whole words, up to the end of a
/// clause: "unpack it first" does not contain the step "pack it first", nor does "convert it first, for example with
/// `ffmpeg`" contain "convert it first".
pub fn with_steps(hint: &str, steps: &[(&str, &str)]) -> String {
    steps.iter().fold(hint.to_owned(), |hint, (step, replacement)| match hint.split_once(step) {
        Some((before, after))
            if (before.is_empty() || before.ends_with(' '))
                && (after.is_empty() || after.starts_with(';') || step.ends_with([':', ','])) =>
        {
            format!("{before}{replacement}{after}")
        }
        _ => hint,
    })
}

#[cfg(test)]
mod tests {
    use super::{with_options, with_steps};

    #[test]
    fn rewrites_option_mentions() {
        let write = |name: &str, value: Option<&str>| format!("{name}:{}", value.unwrap_or("none"));
        let text = "the option `a=1` and the option `b` differ";
        assert_eq!(with_options(text, write), "`a:1` and `b:none` differ");
        assert_eq!(with_options("no options", write), "no options");
    }

    #[test]
    fn rewrites_hint_steps_only_as_whole_clauses() {
        let steps = [("pack it first", "`pack`"), ("as an input:", "as an input of `run`:")];
        for (hint, expected) in [
            ("pack it first", "`pack`"),
            ("either pack it first; or not", "either `pack`; or not"),
            ("unpack it first", "unpack it first"),
            ("pack it first, with care", "pack it first, with care"),
            ("as an input: x=1", "as an input of `run`: x=1"),
        ] {
            assert_eq!(with_steps(hint, &steps), expected);
        }
    }
}
