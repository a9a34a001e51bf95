//! Summary of an ExecuTorch program.

use std::fmt::Write as _;

use coremill::executorch::{DelegateSummary, MethodSummary, ProgramSummary, ValueSummary};
use coremill::quantity;
use coremill_io::escape_truncated;

use super::render_counts;
use crate::output::{Cell, FAINT, STRONG, Table, paint};

/// Maximum length of a compile spec's value, which may be JSON of any length.
const MAX_OF_SPEC: usize = 72;

pub(super) fn render(name: &str, summary: &ProgramSummary, top: usize) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "{}", paint(STRONG, name));
    let _ = writeln!(text, "  ExecuTorch program");
    let mut table = Table::new(2);
    let sizes = [
        ("constants", summary.constant_bytes),
        ("initial values", summary.initial_bytes),
        ("for delegates", summary.delegate_bytes),
        ("named data", summary.named_bytes),
    ];
    for (what, bytes) in sizes.into_iter().filter(|(_, bytes)| *bytes > 0) {
        table.row([Cell::text(what).style(FAINT), Cell::number(quantity::bytes(bytes))]);
    }
    text += &table.render();
    for method in &summary.methods {
        text += &render_method(method, top);
    }
    for model in &summary.models {
        let _ = writeln!(text);
        text += &super::render(&format!("{name}/{}", model.name), &model.summary, top);
    }
    text
}

fn render_method(method: &MethodSummary, top: usize) -> String {
    let mut text = String::new();
    let memory = format!("({} of memory)", quantity::bytes(method.memory));
    let _ = writeln!(text, "\nmethod {} {}", paint(STRONG, &method.name), paint(FAINT, memory));
    let mut table = Table::new(2);
    for (role, values) in [("input", &method.inputs), ("output", &method.outputs)] {
        for (index, value) in values.iter().enumerate() {
            table.row([
                Cell::text(role).style(FAINT),
                Cell::text(index).style(STRONG),
                Cell::text(value.dtype.as_deref().unwrap_or(value.kind)),
                Cell::text(extent(value)),
            ]);
        }
    }
    for name in &method.external {
        table.row([Cell::text("external").style(FAINT), Cell::text(""), Cell::text(name)]);
    }
    text += &table.render();
    if method.instructions > 0 {
        let plural = if method.instructions == 1 { "" } else { "s" };
        let _ = writeln!(text, "\n  {} instruction{plural}", method.instructions);
    }
    for (index, delegate) in method.delegates.iter().enumerate() {
        let mut table = Table::new(2);
        let calls =
            if delegate.calls == 1 { String::new() } else { format!("{} calls", delegate.calls) };
        table.row([
            Cell::text(format_args!("delegate {index}")).style(FAINT),
            Cell::text(&delegate.backend).style(STRONG),
            Cell::text(model(delegate)),
            Cell::number(quantity::bytes(delegate.bytes)),
            Cell::text(calls).style(FAINT),
        ]);
        text += &table.render();
        let mut table = Table::new(4);
        for spec in &delegate.compile_specs {
            table.row([
                Cell::text(&spec.key).style(FAINT),
                Cell::text(escape_truncated(&spec.value, MAX_OF_SPEC)),
            ]);
        }
        text += &table.render();
    }
    let counts = method.kernels.iter().map(|kernel| (&*kernel.operator, kernel.count));
    text + &render_counts(counts, top)
}

/// Dimensions of a tensor, or the value of a constant.
fn extent(value: &ValueSummary) -> String {
    let Some(shape) = &value.shape else { return value.value.clone().unwrap_or_default() };
    let sizes: Vec<String> = shape.iter().map(i32::to_string).collect();
    let bound = if value.dynamic { "up to " } else { "" };
    format!("{bound}{}", sizes.join(" × "))
}

/// The model that a delegate runs.
fn model(delegate: &DelegateSummary) -> String {
    match (&delegate.model, &delegate.function) {
        (Some(model), Some(function)) => format!("{model}: {function}"),
        (Some(model), None) => model.clone(),
        (None, _) => String::new(),
    }
}
