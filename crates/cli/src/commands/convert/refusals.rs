//! Calls that cannot be lowered, told as `check` tells what is wrong.

use std::fmt::Write as _;
use std::path::Path;

use coremill::compiler::Refused;
use coremill::convert::{self, Group, Place};
use coremill::tensor::shown;

use crate::output::{ERROR, FAINT, GOOD, STRONG, excerpt_width, paint};

/// How many lines of the model's code are shown for one reason, and how many modules for one line.
const MOST_PLACES: usize = 3;
const MOST_MODULES: usize = 3;

/// Everything that cannot be lowered, and the sum.
pub(in crate::commands) fn render(path: &Path, refused: &[Refused]) -> String {
    let groups = convert::groups(refused);
    let mut text = String::new();
    let mut hints: Vec<&str> = Vec::new();
    for group in &groups {
        text += &render_group(&paint(ERROR, "error"), group);
        match group.hint {
            // Said once, where it is new.
            Some(hint) if !hints.contains(&hint) => {
                hints.push(hint);
                let _ = writeln!(text, "{}: {hint}", paint(GOOD, "hint"));
            }
            _ => {}
        }
        text += "\n";
    }
    let _ = writeln!(text, "{}: {}", paint(ERROR, "error"), sum(path, refused.len(), groups.len()));
    text
}

/// Calls of an operator that share a reason, and where they come from.
pub(in crate::commands) fn render_group(label: &str, group: &Group<'_>) -> String {
    let mut text = String::new();
    let count = match group.calls {
        1 => String::new(),
        calls => format!(" {}", paint(FAINT, format!("({calls} calls)"))),
    };
    let _ = writeln!(text, "{label}: `{}`: {}{count}", group.operator, group.reason);
    for place in group.places.iter().take(MOST_PLACES) {
        text += &render_place(place);
    }
    if let more @ 1.. = group.places.len().saturating_sub(MOST_PLACES) {
        let lines = if more == 1 { "line" } else { "lines" };
        let _ = writeln!(text, "  {}", paint(FAINT, format!("and from {more} more {lines}")));
    }
    text
}

/// `model.pt2: 12 calls cannot be lowered, for 2 reasons`.
pub(super) fn sum(path: &Path, calls: usize, reasons: usize) -> String {
    let calls = if calls == 1 { "1 call".to_owned() } else { format!("{calls} calls") };
    let reasons = if reasons == 1 { String::new() } else { format!(", for {reasons} reasons") };
    format!("{}: {calls} cannot be lowered{reasons}", path.display())
}

/// A line of the model's code, and the modules whose calls come from there.
fn render_place(place: &Place<'_>) -> String {
    let mut text = String::new();
    let bar = paint(FAINT, "|");
    let mut modules = place.modules.iter().take(MOST_MODULES).map(|module| format!("`{module}`"));
    let mut named = modules.by_ref().collect::<Vec<_>>().join(", ");
    if let more @ 1.. = place.modules.len().saturating_sub(MOST_MODULES) {
        named += &format!(" and {more} more");
    }
    let within = if named.is_empty() { String::new() } else { format!(" in {named}") };
    match place.line {
        Some((file, line)) => {
            let number = line.to_string();
            let space = " ".repeat(number.len());
            let arrow = paint(FAINT, "-->");
            let _ = writeln!(text, "{space}{arrow} {file}:{line}{within}");
            if let Some(code) = place.code {
                let number = paint(FAINT, number);
                let _ = writeln!(
                    text,
                    "{number} {bar} {}",
                    paint(STRONG, shown(code, excerpt_width()))
                );
            }
        }
        None => {
            let arrow = paint(FAINT, "-->");
            let _ = writeln!(text, " {arrow} node `{}`{within}", place.node);
        }
    }
    text
}
