//! Programs with one or a few operations, compared with results of torch, numpy and coremltools.
//!
//! `oracle/engine` writes the cases to `cases/*.jsonl`. There is a test for each way to run a
//! program. `COREMILL_CASES=add/iOS15` selects the cases whose name contains the text.
//! `cargo test -p coremill-engine --test cases -- --nocapture` prints the number of cases per definition.

#[path = "cases/case.rs"]
mod case;
#[path = "cases/compare.rs"]
mod compare;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::Write;

use case::{Case, as_constants, model_of};
use coremill_engine::{Array, Engine, Hooks, LoadOptions, Numerics, Outputs, Session, Value};
use coremill_mil::ir::{Opset, Program};
use coremill_mil::model::Model;
use coremill_mil::ops::OpKind;
use coremill_mil::text::{self, NoWeights, PrintOptions};
use coremill_mlpackage::package;
use coremill_simd::Isa;
use coremill_verify::{RenderOptions, verify};

/// Definitions without a case, with the reason.
const WITHOUT_CASES: &[(&str, &str)] = &[
    ("_const_symbolic", "only coremltools' own tests use it; it cannot be stored in a file"),
    ("conv_quantized", "part of the neural network format; ML Programs do not have it"),
];

#[test]
fn cases_match_with_fast_numerics() {
    run_all(|case| run(case, case.program()?, options(Numerics::Fast)));
}

#[test]
fn cases_match_with_rounded_numerics() {
    run_all(|case| run(case, case.program()?, options(Numerics::Rounded)));
}

/// With an observer nothing is fused, and the observer sees the outputs.
#[test]
fn cases_match_with_observer() {
    let count = Cell::new(0);
    run_all(|case| {
        let model = model_of(case.program()?)?;
        let mut session = session(&model, &options(Numerics::Fast))?;
        let mut seen: BTreeMap<String, Value> = BTreeMap::new();
        let mut observe = |_: &str, name: &str, value: &Value| {
            seen.insert(name.to_owned(), value.clone());
        };
        let mut hooks = Hooks { observe: Some(&mut observe), ..Hooks::default() };
        let outputs = session.run_with(&inputs(case), &mut hooks);
        let outputs = outputs.map_err(|error| error.to_string())?;
        for (name, value) in &outputs.0 {
            // Folded values are not observed.
            if let Some(observed) = seen.get(name) {
                count.set(count.get() + 1);
                let (shown, given) = (format!("{observed:?}"), format!("{value:?}"));
                if shown != given {
                    return Err(format!(
                        "`{name}` was observed as {shown}, but returned as {given}"
                    ));
                }
            }
        }
        compare::outputs(case, &outputs, &case.expected)
    });
    assert!(count.get() > 0, "no output was observed");
}

#[test]
fn cases_match_with_constant_inputs() {
    run_all(|case| {
        let program = as_constants(case.program()?, &case.inputs)?;
        run(case, program, options(Numerics::Fast))
    });
}

#[test]
fn cases_match_with_constant_inputs_and_rounded_numerics() {
    run_all(|case| {
        let program = as_constants(case.program()?, &case.inputs)?;
        run(case, program, options(Numerics::Rounded))
    });
}

#[test]
fn cases_match_on_three_threads() {
    let options = LoadOptions { threads: 3, ..LoadOptions::default() };
    run_all(|case| run(case, case.program()?, options.clone()));
}

#[test]
fn cases_match_on_portable_isa() {
    let options = LoadOptions { isa: Some(Isa::Portable), ..options(Numerics::Fast) };
    run_all(|case| run(case, case.program()?, options.clone()));
}

#[test]
fn cases_match_after_package_and_text_round_trip() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("case.mlpackage");
    run_all(|case| {
        let model = model_of(case.program()?)?;
        let verified = verify(&model)
            .map_err(|report| report.render(&model.program, &RenderOptions::default()))?;
        let written = package::write(&path, &verified, &package::WriteOptions::default());
        written.map_err(|error| error.to_string())?;
        let read = package::read(&path).map_err(|error| error.to_string())?;
        let printed = text::print(&read.program, &PrintOptions::default());
        let program = text::parse(&printed.text, &NoWeights);
        let program = program.map_err(|error| error.render(&case.id))?;
        run(case, program, options(Numerics::Fast))
    });
}

#[test]
fn every_op_definition_has_cases() {
    let mut counts: BTreeMap<(&str, Opset), usize> = BTreeMap::new();
    for kind in OpKind::ALL {
        for row in kind.rows() {
            counts.insert((kind.name(), row.since), 0);
        }
    }
    let cases = case::all();
    for case in &cases {
        let function = &case.program().expect("a valid program").functions[0];
        for name in case.operations() {
            let shown = function.all_ops().any(|(_, op)| op.type_name() == name);
            assert!(shown, "{}: the program has no `{name}`", case.id);
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
    lines += &format!("{:5} cases, {shown} of {} definitions\n", cases.len(), counts.len());
    let _ = std::io::stdout().write_all(lines.as_bytes());

    let excused = |name: &str| WITHOUT_CASES.iter().any(|(excused, _)| *excused == name);
    let mut faults: Vec<String> = Vec::new();
    for ((name, since), &count) in &counts {
        match (excused(name), count) {
            (false, 0) => faults.push(format!("`{name}` of {since} has no case")),
            (true, 1..) => {
                faults.push(format!("`{name}` has cases: remove it from `WITHOUT_CASES`"))
            }
            _ => {}
        }
    }
    case::finish(&faults, counts.len());
}

/// Runs every case and reports all failures together.
fn run_all(check: impl Fn(&Case) -> Result<(), String>) {
    let wanted = std::env::var("COREMILL_CASES").unwrap_or_default();
    let cases: Vec<Case> =
        case::all().into_iter().filter(|case| case.id.contains(&wanted)).collect();
    let failures: Vec<String> = cases
        .iter()
        .filter_map(|case| Some(format!("{}: {}", case.id, check(case).err()?)))
        .collect();
    case::finish(&failures, cases.len());
}

fn options(numerics: Numerics) -> LoadOptions {
    LoadOptions { numerics, threads: 1, ..LoadOptions::default() }
}

fn run(case: &Case, program: Program, options: LoadOptions) -> Result<(), String> {
    let model = model_of(program)?;
    let mut session = session(&model, &options)?;
    let taken = inputs(case);
    let taken: Vec<_> = taken
        .into_iter()
        .filter(|(name, _)| session.inputs().iter().any(|port| port.name == *name))
        .collect();
    let once = |session: &mut Session, expected: &[Array]| {
        let outputs: Outputs = session.run(&taken).map_err(|error| error.to_string())?;
        compare::outputs(case, &outputs, expected)
    };
    let first = match (&case.faithful, options.numerics) {
        (Some(rounded), Numerics::Rounded) => rounded,
        _ => &case.expected,
    };
    once(&mut session, first)?;
    for (index, expected) in case.again.iter().enumerate() {
        once(&mut session, expected).map_err(|error| format!("run {}: {error}", index + 2))?;
    }
    Ok(())
}

fn session(model: &Model, options: &LoadOptions) -> Result<Session, String> {
    let verified =
        verify(model).map_err(|report| report.render(&model.program, &RenderOptions::default()))?;
    let engine = Engine::load(&verified, options).map_err(|error| error.to_string())?;
    engine.session("main").map_err(|error| error.to_string())
}

fn inputs(case: &Case) -> Vec<(&str, Array)> {
    case.inputs.iter().map(|(name, array)| (name.as_str(), array.clone())).collect()
}
