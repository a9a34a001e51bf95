//! Programs of one operation, or of a few, against what torch, numpy and coremltools say that they give.
//!
//! `oracle/engine` writes the cases to `cases/*.jsonl`. `cargo test -p coremill-engine --test cases --
//! --nocapture` prints how many there are of each definition.

#[path = "cases/case.rs"]
mod case;

use std::collections::BTreeMap;
use std::io::Write;

use case::{Case, as_constants, model_of};
use coremill_mil::ir::Opset;
use coremill_mil::ops::OpKind;
use coremill_mil::verify::verify;

#[test]
fn programs_are_sound() {
    let mut failures = Vec::new();
    let cases = case::all();
    for case in &cases {
        if let Err(error) = sound(case) {
            failures.push(format!("{}: {error}", case.id));
        }
    }
    case::finish(&failures, cases.len());
}

fn sound(case: &Case) -> Result<(), String> {
    for program in [case.program()?, as_constants(case.program()?, &case.inputs)?] {
        let model = model_of(program)?;
        verify(&model).map_err(|report| report.to_string())?;
    }
    Ok(())
}

#[test]
fn every_definition_has_cases() {
    let mut counts: BTreeMap<(&str, Opset), usize> = BTreeMap::new();
    for kind in OpKind::ALL {
        for row in kind.rows() {
            counts.insert((kind.name(), row.since), 0);
        }
    }
    for case in case::all() {
        let function = &case.program().expect("the text is a program").functions[0];
        for name in case.operations() {
            let row = OpKind::from_name(name).and_then(|kind| kind.row(function.opset));
            let row = row.unwrap_or_else(|| panic!("{}: no definition of `{name}`", case.id));
            *counts.entry((row.kind.name(), row.since)).or_default() += 1;
        }
    }
    let mut lines = String::new();
    for ((name, since), count) in &counts {
        lines += &format!("{count:5} {name} {since}\n");
    }
    let shown = counts.values().filter(|&&count| count > 0).count();
    let total: usize = counts.values().sum();
    lines += &format!("{total:5} cases of {shown} of {} definitions\n", counts.len());
    let _ = std::io::stdout().write_all(lines.as_bytes());
}
