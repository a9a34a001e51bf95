//! Rendering of calls that cannot be lowered, grouped by operator and reason.

use std::fmt::Write as _;

use coremill_compiler::UnsupportedOp;
use coremill_io::{printable, printable_line};

/// Maximum number of source lines per reason, and of modules per line.
const MAX_PLACES: usize = 3;
const MAX_MODULES: usize = 3;

/// Unsupported calls with the same operator and reason.
#[derive(Clone, Debug)]
pub struct Group<'r> {
    /// The operator, such as `aten.histc.default`.
    pub operator: &'r str,
    /// The reason.
    pub reason: &'r str,
    /// Suggested fix.
    pub hint: Option<&'r str>,
    /// Source lines of the calls, without duplicates, most frequent first.
    pub places: Vec<Place<'r>>,
    /// Number of calls.
    pub calls: usize,
}

/// A source line, or a call without a known line.
#[derive(Clone, Debug)]
pub struct Place<'r> {
    /// File and line.
    pub line: Option<(&'r str, u32)>,
    /// Code of the line.
    pub code: Option<&'r str>,
    /// Modules whose calls come from the line, in program order, without duplicates.
    pub modules: Vec<&'r str>,
    /// torch's name of the first call.
    pub node: &'r str,
    /// Number of calls from the line.
    pub calls: usize,
}

/// Groups unsupported calls by operator and reason, largest group first.
pub fn groups(refused: &[UnsupportedOp]) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for call in refused {
        let reason = call.refusal.reason.as_str();
        let known = groups
            .iter()
            .position(|group| group.operator == call.operator && group.reason == reason);
        let index = known.unwrap_or_else(|| {
            groups.push(Group {
                operator: &call.operator,
                reason,
                hint: call.refusal.hint.as_deref(),
                places: Vec::new(),
                calls: 0,
            });
            groups.len() - 1
        });
        groups[index].add(call);
    }
    for group in &mut groups {
        group.places.sort_by_key(|place| std::cmp::Reverse(place.calls));
    }
    groups.sort_by_key(|group| std::cmp::Reverse(group.calls));
    groups
}

impl<'r> Group<'r> {
    fn add(&mut self, call: &'r UnsupportedOp) {
        self.calls += 1;
        let line = call.source.as_ref().map(|(file, line, _)| (file.as_str(), *line));
        let known = self.places.iter().position(|place| place.line == line);
        let index = known.unwrap_or_else(|| {
            let code = call.source.as_ref().and_then(|(_, _, code)| code.as_deref());
            self.places.push(Place { line, code, modules: Vec::new(), node: &call.node, calls: 0 });
            self.places.len() - 1
        });
        let place = &mut self.places[index];
        place.calls += 1;
        let module = call.module.as_deref().filter(|module| !module.is_empty());
        if let Some(module) = module
            && !place.modules.contains(&module)
        {
            place.modules.push(module);
        }
    }
}

/// Kind of a piece of rendered text, for coloring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// `error`.
    Error,
    /// `hint`.
    Hint,
    /// A full source line.
    Code,
    /// Counts and rulers.
    Faint,
}

/// Colors a piece of text or returns it unchanged. Also truncates code.
pub type Paint<'p> = &'p dyn Fn(Part, &str) -> String;

/// Renders all unsupported calls and a total. `name` is the file that contains the calls.
pub fn render_refused(name: Option<&str>, refused: &[UnsupportedOp], paint: Paint<'_>) -> String {
    let groups = groups(refused);
    let mut text = String::new();
    let mut hints: Vec<&str> = Vec::new();
    for group in &groups {
        text += &render_group(&paint(Part::Error, "error"), group, paint);
        match group.hint {
            // Repeated hints are printed once.
            Some(hint) if !hints.contains(&hint) => {
                hints.push(hint);
                let _ = writeln!(text, "{}: {}", paint(Part::Hint, "hint"), printable(hint));
            }
            _ => {}
        }
        text += "\n";
    }
    let sum = sum_refused(name, refused.len(), groups.len());
    let _ = writeln!(text, "{}: {sum}", paint(Part::Error, "error"));
    text
}

/// Renders a group of unsupported calls with their source lines.
pub fn render_group(label: &str, group: &Group<'_>, paint: Paint<'_>) -> String {
    let mut text = String::new();
    let count = match group.calls {
        1 => String::new(),
        calls => format!(" {}", paint(Part::Faint, &format!("({calls} calls)"))),
    };
    let (operator, reason) = (printable_line(group.operator), printable(group.reason));
    let _ = writeln!(text, "{label}: `{operator}`: {reason}{count}");
    for place in group.places.iter().take(MAX_PLACES) {
        text += &render_place(place, paint);
    }
    if let more @ 1.. = group.places.len().saturating_sub(MAX_PLACES) {
        let lines = if more == 1 { "line" } else { "lines" };
        let more = format!("and from {more} more {lines}");
        let _ = writeln!(text, "  {}", paint(Part::Faint, &more));
    }
    text
}

/// The total, such as `model.pt2: 12 calls cannot be lowered, for 2 reasons`.
pub fn sum_refused(name: Option<&str>, calls: usize, reasons: usize) -> String {
    let name = name.map_or_else(String::new, |name| format!("{}: ", printable_line(name)));
    let calls = if calls == 1 { "1 call".to_owned() } else { format!("{calls} calls") };
    let reasons = if reasons == 1 { String::new() } else { format!(", for {reasons} reasons") };
    format!("{name}{calls} cannot be lowered{reasons}")
}

/// Renders a source line and the modules whose calls come from it.
fn render_place(place: &Place<'_>, paint: Paint<'_>) -> String {
    let mut text = String::new();
    let module = |module: &&str| format!("`{}`", printable_line(module));
    let mut modules = place.modules.iter().take(MAX_MODULES).map(module);
    let mut named = modules.by_ref().collect::<Vec<_>>().join(", ");
    if let more @ 1.. = place.modules.len().saturating_sub(MAX_MODULES) {
        named += &format!(" and {more} more");
    }
    let within = if named.is_empty() { String::new() } else { format!(" in {named}") };
    let arrow = paint(Part::Faint, "-->");
    match place.line {
        Some((file, line)) => {
            let number = line.to_string();
            let space = " ".repeat(number.len());
            let _ = writeln!(text, "{space}{arrow} {}:{line}{within}", printable_line(file));
            if let Some(code) = place.code {
                let (number, bar) = (paint(Part::Faint, &number), paint(Part::Faint, "|"));
                let _ =
                    writeln!(text, "{number} {bar} {}", paint(Part::Code, &printable_line(code)));
            }
        }
        None => {
            let _ = writeln!(text, " {arrow} node `{}`{within}", printable_line(place.node));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use coremill_compiler::LoweringError;

    use super::*;

    fn call(node: &str, operator: &str, reason: &str, line: u32, module: &str) -> UnsupportedOp {
        UnsupportedOp {
            node: node.to_owned(),
            operator: operator.to_owned(),
            refusal: LoweringError::new(reason),
            module: Some(module.to_owned()),
            source: Some(("model.py".to_owned(), line, Some("x.f()".to_owned()))),
        }
    }

    #[test]
    fn groups_unsupported_ops_by_reason_and_line() {
        let refused = [
            call("f", "aten.f", "is odd", 3, "layers.0"),
            call("g", "aten.g", "is even", 4, ""),
            call("g_1", "aten.g", "is odd", 4, "layers.0"),
            call("g_2", "aten.g", "is even", 5, "layers.1"),
            call("g_3", "aten.g", "is even", 5, "layers.2"),
            call("g_4", "aten.g", "is even", 5, "layers.1"),
        ];
        let groups = groups(&refused);
        let found: Vec<_> = groups.iter().map(|g| (g.operator, g.reason, g.calls)).collect();
        assert_eq!(
            found,
            [("aten.g", "is even", 4), ("aten.f", "is odd", 1), ("aten.g", "is odd", 1)]
        );
        let places: Vec<_> =
            groups[0].places.iter().map(|p| (p.line, p.modules.clone(), p.node, p.calls)).collect();
        assert_eq!(
            places,
            [
                (Some(("model.py", 5)), vec!["layers.1", "layers.2"], "g_2", 3),
                (Some(("model.py", 4)), vec![], "g", 1)
            ]
        );
    }
}
