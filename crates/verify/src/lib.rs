//! Diagnostics for everything that Core ML would reject or run badly.
//!
//! [`verify`] returns [`Verified`], a proof that the model is valid, which writers require. [`check`] returns
//! all [`Diagnostic`]s, including warnings, in the order of the program. Passes, which have only a program,
//! use [`verify_program`]. The table [`CODES`] contains the names and reasons of all rules; `docs/check.md`
//! repeats it.
//!
//! | file | checks |
//! |---|---|
//! | `structure` | ids, blocks, names, scopes, operators; an error stops the other checks of the function |
//! | `types` | operations against [`infer`](coremill_mil::infer), declared against inferred types, ranks |
//! | `values` | constants, attributes, weights |
//! | `interface` | inputs, outputs and states of a function |
//! | `description`, `features` | the model's description against its functions, versions |
//! | `hazards` | warnings: operations that leave the Neural Engine, and known bugs of Core ML's engines, by chip |
//!
//! No function here panics or recurses over nested blocks, for any program.

mod codes;
mod description;
mod diagnostic;
mod features;
mod hazards;
mod interface;
mod json;
mod render;
mod severity;
mod structure;
mod types;
mod values;
mod work;

use std::collections::HashSet;

use coremill_device::{CHIPS, Chip};

pub use codes::{CODES, Code, CodeRow};
pub use diagnostic::{
    Diagnostic, FeaturePlace, FeatureRole, FunctionPlace, Location, MAX_DIAGNOSTICS, OpPlace,
    Report, ValuePlace,
};
use diagnostic::{Findings, FunctionContext};
pub use json::{JSON_VERSION, JsonDiagnostic, JsonEvidence, JsonReport};
pub use render::RenderOptions;
pub use severity::Severity;
pub use work::{contracted, work};

use coremill_mil::infer::Analysis;
use coremill_mil::ir::{Function, Opset, Program};
use coremill_mil::model::Model;

/// A verified model. Only [`verify`] creates it.
#[derive(Clone, Debug)]
pub struct Verified<'m> {
    model: &'m Model,
    analyses: Vec<Analysis>,
}

/// A verified program. Only [`verify_program`] creates it.
#[derive(Clone, Debug)]
pub struct VerifiedProgram<'p> {
    program: &'p Program,
    analyses: Vec<Analysis>,
}

impl<'m> Verified<'m> {
    /// The model.
    pub fn model(&self) -> &'m Model {
        self.model
    }

    /// Inference results of a function, by its index in the program.
    pub fn analysis(&self, function: usize) -> &Analysis {
        &self.analyses[function]
    }
}

impl<'p> VerifiedProgram<'p> {
    /// The program.
    pub fn program(&self) -> &'p Program {
        self.program
    }

    /// Inference results of a function, by its index in the program.
    pub fn analysis(&self, function: usize) -> &Analysis {
        &self.analyses[function]
    }

    /// Inference results of all functions, in the order of the program.
    pub fn into_analyses(self) -> Vec<Analysis> {
        self.analyses
    }
}

/// Verifies that Core ML accepts a model; otherwise returns all errors.
pub fn verify(model: &Model) -> Result<Verified<'_>, Report> {
    let mut findings = Findings::default();
    let target = |function: &Function| description::target(model, function);
    let checked = check_functions(&model.program, &target, &mut findings);
    description::check(model, &mut findings);
    if findings.errors() > 0 {
        return Err(findings.into_report());
    }
    Ok(Verified {
        model,
        analyses: checked.into_iter().flatten().map(|(_, found)| found).collect(),
    })
}

/// Verifies that Core ML accepts a program; otherwise returns all errors. Rules that depend on the model
/// around the program are not checked.
pub fn verify_program(program: &Program) -> Result<VerifiedProgram<'_>, Report> {
    let mut findings = Findings::default();
    let checked = check_functions(program, &|function| function.opset, &mut findings);
    if findings.errors() > 0 {
        return Err(findings.into_report());
    }
    let analyses = checked.into_iter().flatten().map(|(_, found)| found).collect();
    Ok(VerifiedProgram { program, analyses })
}

/// Reports all errors and warnings of a model, for every chip that its target allows.
pub fn check(model: &Model) -> Report {
    let functions = model.program.functions.iter();
    let target = functions.map(|function| description::target(model, function)).min();
    check_on(model, &chips_of(target))
}

/// Reports all errors of a model, and the warnings that concern one of the chips.
pub fn check_on(model: &Model, chips: &[&'static Chip]) -> Report {
    let mut findings = Findings::default();
    let target = |function: &Function| description::target(model, function);
    let checked = check_functions(&model.program, &target, &mut findings);
    description::check(model, &mut findings);
    for (index, checked) in checked.iter().enumerate() {
        if let Some((layout, analysis)) = checked {
            let function = &model.program.functions[index];
            let at = FunctionContext { index, function, target: target(function) };
            let signature = model.signature(&function.name);
            hazards::check(at, layout, analysis, signature, chips, &mut findings);
        }
    }
    findings.into_report()
}

/// Reports all errors and warnings of a program, for every chip that its opset allows.
pub fn check_program(program: &Program) -> Report {
    let mut findings = Findings::default();
    let checked = check_functions(program, &|function| function.opset, &mut findings);
    let chips = chips_of(program.functions.iter().map(|function| function.opset).min());
    for (index, checked) in checked.iter().enumerate() {
        if let Some((layout, analysis)) = checked {
            let function = &program.functions[index];
            let at = FunctionContext { index, function, target: function.opset };
            hazards::check(at, layout, analysis, None, &chips, &mut findings);
        }
    }
    findings.into_report()
}

/// Chips that run the release of an opset.
fn chips_of(target: Option<Opset>) -> Vec<&'static Chip> {
    let release = if target >= Some(Opset::Ios26) { 26 } else { 18 };
    CHIPS.iter().filter(|chip| chip.runs(release)).collect()
}

/// Checks each function. The result is `None` for a function that is too broken to analyze.
fn check_functions(
    program: &Program,
    target: &dyn Fn(&Function) -> Opset,
    findings: &mut Findings,
) -> Vec<Option<(structure::Layout, Analysis)>> {
    if program.functions.is_empty() {
        findings.report(Code::NoFunction, Location::model(), "the program has no function");
    }
    values::check_program(program, findings);
    let mut names = HashSet::new();
    let mut checked = Vec::with_capacity(program.functions.len());
    for (index, function) in program.functions.iter().enumerate() {
        let at = FunctionContext { index, function, target: target(function) };
        if !names.insert(function.name.as_str()) {
            let message = format!("another function is also called `{}`", function.name);
            findings.report(Code::DuplicateFunction, at.place(), message);
        }
        checked.push(structure::check(at, findings).map(|mut layout| {
            interface::check(at, &layout, findings);
            values::check(at, &mut layout, findings);
            let analysis = types::check(at, &mut layout, findings);
            (layout, analysis)
        }));
    }
    checked
}
