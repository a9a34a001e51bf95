//! Findings and marks on operations, from diagnostics and unsupported calls.

use std::collections::BTreeMap;

use coremill::convert;
use coremill_compiler::UnsupportedOp;
use coremill_verify::{self as verify, Diagnostic};

use crate::Report;
use crate::data::{Finding, Model, Place, Severity};

impl Report {
    /// Adds findings for unsupported calls, grouped by operator and reason, with their source
    /// lines.
    pub fn add_refused(&mut self, severity: Severity, refused: &[UnsupportedOp]) {
        for group in convert::groups(refused) {
            let place = |place: &convert::Place<'_>| {
                let line = place.line.map(|(file, line)| format!("`{file}:{line}`"));
                let code = place.code.map(|code| format!("`{}`", code.trim()));
                let module = place
                    .modules
                    .first()
                    .filter(|module| !module.is_empty())
                    .map(|module| format!("in `{module}`"));
                let parts: Vec<String> = [line, code, module].into_iter().flatten().collect();
                parts.join(" ")
            };
            let places: Vec<_> =
                group.places.iter().map(place).filter(|place| !place.is_empty()).collect();
            let hint = group.hint.map(|hint| format!(" Hint: {hint}.")).unwrap_or_default();
            let calls = if group.calls == 1 { "call" } else { "calls" };
            self.finding(Finding {
                severity,
                title: format!("`{}`: {} ({} {calls})", group.operator, group.reason, group.calls),
                detail: format!("{}.{hint}", places.join("; ")),
                place: None,
            });
        }
    }
}

/// Marks the operations of a model. Returns one finding per violated rule.
pub(crate) fn attach(model: &mut Model, index: usize, report: &verify::Report) -> Vec<Finding> {
    let mut by_code: BTreeMap<&str, Vec<(&Diagnostic, Option<Place>)>> = BTreeMap::new();
    for diagnostic in &report.diagnostics {
        let place = place(model, index, diagnostic);
        if let Some(place) = place {
            let op = &mut model.functions[place.function].ops[place.op];
            let mut text = diagnostic.message.clone();
            if let Some(hint) = &diagnostic.hint {
                text += &format!(" — {hint}");
            }
            op.marks.push((severity(diagnostic), text));
        }
        by_code.entry(diagnostic.code.name()).or_default().push((diagnostic, place));
    }
    let finding = |(code, found): (&str, Vec<(&Diagnostic, Option<Place>)>)| {
        let (first, _) = found.first()?;
        let place = found.iter().find_map(|(_, place)| *place);
        let times = match found.len() {
            1 => String::new(),
            count => format!(" ({count} times)"),
        };
        let hint = first.hint.as_deref().map(|hint| format!(" Hint: {hint}.")).unwrap_or_default();
        let subject = place.map_or_else(String::new, |place| {
            let op = &model.functions[place.function].ops[place.op];
            format!("`{}` ({}) ", op.name, op.kind)
        });
        Some(Finding {
            severity: severity(first),
            title: format!("{subject}{}{times}", first.message),
            detail: format!("Rule {code}.{hint}"),
            place,
        })
    };
    by_code.into_iter().filter_map(finding).collect()
}

fn severity(diagnostic: &Diagnostic) -> Severity {
    match diagnostic.severity() {
        verify::Severity::Error => Severity::Error,
        verify::Severity::Warning => Severity::Warning,
    }
}

/// The operation that a diagnostic refers to.
fn place(model: &Model, index: usize, diagnostic: &Diagnostic) -> Option<Place> {
    let location = &diagnostic.location;
    let function = location.function.as_ref()?.index;
    let of_op = location.op.as_ref().and_then(|op| op.name.as_deref());
    let name = of_op.or(location.value.as_ref().map(|value| value.name.as_str()))?;
    let op = model.functions.get(function)?.ops.iter().position(|op| op.name == name)?;
    Some(Place { model: index, function, op })
}
