//! `docs/ops.md`, the op table for people.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use coremill_mil::ir::Opset;
use coremill_mil::ops::{Accepts, DefaultValue, OpKind, OpRow, Parameter};

const HEAD: &str = "\
<!-- GeneratedFile by `cargo xtask ops --docs`; do not edit. -->

# The operations of MIL

What ML Programs are made of: every operation, the opset that brought it, and what each later opset changed. An opset is
named after the iOS release that runs it; a definition holds until the next one of the same operation.

A parameter is shown as `name`: *type* = *default*.

- **const**: what is bound must be known when the program is compiled.
- `T`, `U` and the like stand for an element type: parameters of an operation with the same letter have the same one.
- Without a default a parameter is required; *absent* means that the operation does without.
";

/// The whole text.
pub(super) fn table() -> String {
    let mut families: BTreeMap<&str, Vec<OpKind>> = BTreeMap::new();
    let mut rows = 0;
    for kind in OpKind::ALL {
        families.entry(kind.family()).or_default().push(kind);
        rows += kind.rows().len();
    }
    let mut text = HEAD.to_owned();
    append(&mut text, format_args!("\n{} operations, {rows} definitions.\n", OpKind::ALL.len()));
    append(
        &mut text,
        format_args!("\n| opset | operations | new | revised |\n|---|---|---|---|\n"),
    );
    for opset in Opset::ALL {
        let kinds = || OpKind::ALL.into_iter();
        let new = kinds().filter(|kind| kind.introduced() == opset).count();
        let changed =
            kinds().filter(|kind| kind.rows().iter().any(|row| row.since == opset)).count();
        append(
            &mut text,
            format_args!(
                "| {} | {} | {new} | {} |\n",
                name(opset),
                kinds().filter(|kind| kind.row(opset).is_some()).count(),
                changed - new
            ),
        );
    }
    for (family, kinds) in families {
        append(
            &mut text,
            format_args!(
                "\n## {}\n\n| operation | opset | parameters |\n|---|---|---|\n",
                family.replace('_', " ")
            ),
        );
        for kind in kinds {
            let mut older: Option<&OpRow> = None;
            for row in kind.rows() {
                let operation =
                    if older.is_none() { format!("`{}`", kind.name()) } else { String::new() };
                let cell = older.map_or_else(|| first(row), |older| changes(older, row));
                append(
                    &mut text,
                    format_args!("| {operation} | {} | {} |\n", name(row.since), cell.join("<br>")),
                );
                older = Some(row);
            }
        }
    }
    text
}

fn name(opset: Opset) -> String {
    opset.tag().replace("ios", "iOS")
}

/// What the oldest definition takes.
fn first(row: &OpRow) -> Vec<String> {
    let mut lines: Vec<String> = row.parameters.iter().map(line).collect();
    if !row.blocks.is_empty() {
        lines.push(format!("blocks: {}", row.blocks.join(", ")));
    }
    if lines.is_empty() {
        lines.push("none".to_owned());
    }
    lines
}

/// What a definition does otherwise than the one before.
fn changes(older: &OpRow, row: &OpRow) -> Vec<String> {
    let mut lines = Vec::new();
    for parameter in row.parameters {
        let now = line(parameter);
        match older.parameter(parameter.name).map(line) {
            None => lines.push(format!("new {now}")),
            Some(before) if before != now => lines.push(format!("now {now}")),
            Some(_) => {}
        }
    }
    for parameter in older.parameters {
        if row.parameter(parameter.name).is_none() {
            lines.push(format!("no `{}`", parameter.name));
        }
    }
    if lines.is_empty() {
        lines.push("the same parameters, other rules".to_owned());
    }
    lines
}

fn line(parameter: &Parameter) -> String {
    let constant = if parameter.constant { "**const** " } else { "" };
    let accepts = match parameter.accepts {
        Accepts::Tensor { variable, dtypes } => {
            let dtypes = dtypes.iter().map(|dtype| dtype.name()).collect::<Vec<_>>().join(", ");
            variable.map_or_else(|| dtypes.clone(), |variable| format!("`{variable}` of {dtypes}"))
        }
        Accepts::Values => "several values".to_owned(),
        Accepts::List => "a list".to_owned(),
        Accepts::State => "a state".to_owned(),
        Accepts::Any => "a tensor, a list or a dictionary".to_owned(),
    };
    let default = if parameter.required { String::new() } else { default(parameter.default) };
    format!("`{}`: {constant}{accepts}{default}", parameter.name)
}

fn default(default: DefaultValue) -> String {
    match default {
        DefaultValue::Absent => " = *absent*".to_owned(),
        DefaultValue::Bool(value) => format!(" = {value}"),
        DefaultValue::Int(value) => format!(" = {value}"),
        DefaultValue::Float(value) => format!(" = {value:?}"),
        DefaultValue::Text(text) => format!(" = \"{text}\""),
        DefaultValue::Ints(values) => format!(" = {values:?}"),
        DefaultValue::PerSpatialDim { value, times: 1 } => {
            format!(" = {value} for each spatial dimension")
        }
        DefaultValue::PerSpatialDim { value, times } => {
            format!(" = {value}, {times} for each spatial dimension")
        }
        DefaultValue::FloatByType { fp16, fp32 } => format!(" = {fp32:?}, in fp16 {fp16:?}"),
        DefaultValue::AllAxes => " = all axes".to_owned(),
        DefaultValue::IndexPerBox => " = 0, 1, 2, …, one for each box".to_owned(),
        DefaultValue::ZeroPerOutput => " = zeros".to_owned(),
    }
}

fn append(text: &mut String, more: std::fmt::Arguments) {
    // Writing to a string does not fail.
    let _ = text.write_fmt(more);
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::DOCS;
    use crate::workspace::root;

    #[test]
    fn the_committed_text_is_that_of_the_table() {
        let committed = fs::read_to_string(root().join(DOCS)).unwrap_or_default();
        assert!(committed == super::table(), "{DOCS} is out of date; run `cargo xtask ops --docs`");
    }
}
