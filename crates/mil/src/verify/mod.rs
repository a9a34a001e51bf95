//! Verification: everything about a model that Core ML would refuse, and what it would run badly.
//!
//! [`verify`] gives a proof that a model is sound, [`Verified`], which writers require; [`check`] gives
//! all [`Diagnostic`]s, warnings included, in the order of the program. Passes over programs alone use
//! [`verify_program`]. Rules have names and reasons in one table, [`CODES`], which `docs/check.md`
//! repeats.
//!
//! | file | checks |
//! |---|---|
//! | `structure` | ids, blocks, names, scopes, operators; whatever fails here stops the other checks of its function |
//! | `types` | operations against [`infer`](crate::infer), declared against inferred types, ranks |
//! | `values` | constants, attributes, weights |
//! | `interface` | what callers see of a function |
//! | `description`, `features` | the model's description against its functions, versions |
//! | `hazards` | warnings: what keeps operations off the Neural Engine, and known defects of engines |
//!
//! Nothing here panics or recurses over nested blocks, whatever the program.

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

use std::collections::HashSet;

pub use codes::{CODES, Code, CodeRow};
pub use diagnostic::{
    Diagnostic, FeaturePlace, FeatureRole, FunctionPlace, Location, MAX_DIAGNOSTICS, OpPlace,
    Report, ValuePlace,
};
use diagnostic::{Findings, FunctionContext};
pub use json::{JSON_VERSION, JsonDiagnostic, JsonReport};
pub use render::RenderOptions;
pub use severity::Severity;

use crate::infer::Analysis;
use crate::ir::{Function, Opset, Program};
use crate::model::Model;

/// A model that was found sound: only [`verify`] makes one.
#[derive(Clone, Debug)]
pub struct Verified<'m> {
    model: &'m Model,
    analyses: Vec<Analysis>,
}

/// A program that was found sound: only [`verify_program`] makes one.
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

    /// What inference found out about a function, by its position in the program.
    pub fn analysis(&self, function: usize) -> &Analysis {
        &self.analyses[function]
    }
}

impl<'p> VerifiedProgram<'p> {
    /// The program.
    pub fn program(&self) -> &'p Program {
        self.program
    }

    /// What inference found out about a function, by its position in the program.
    pub fn analysis(&self, function: usize) -> &Analysis {
        &self.analyses[function]
    }

    /// What inference found out about every function, in the program's order.
    pub fn into_analyses(self) -> Vec<Analysis> {
        self.analyses
    }
}

/// The proof that Core ML would accept a model, or all the errors.
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

/// The proof that Core ML would accept a program, or all the errors. What depends on the model around
/// it is not checked.
pub fn verify_program(program: &Program) -> Result<VerifiedProgram<'_>, Report> {
    let mut findings = Findings::default();
    let checked = check_functions(program, &|function| function.opset, &mut findings);
    if findings.errors() > 0 {
        return Err(findings.into_report());
    }
    let analyses = checked.into_iter().flatten().map(|(_, found)| found).collect();
    Ok(VerifiedProgram { program, analyses })
}

/// Everything that is wrong with a model, and what is known to run badly.
pub fn check(model: &Model) -> Report {
    let mut findings = Findings::default();
    let target = |function: &Function| description::target(model, function);
    let checked = check_functions(&model.program, &target, &mut findings);
    description::check(model, &mut findings);
    for (index, checked) in checked.iter().enumerate() {
        if let Some((layout, analysis)) = checked {
            let function = &model.program.functions[index];
            let at = FunctionContext { index, function, target: target(function) };
            let signature = model.signature(&function.name);
            hazards::check(at, layout, analysis, signature, &mut findings);
        }
    }
    findings.into_report()
}

/// Everything that is wrong with a program, and what is known to run badly.
pub fn check_program(program: &Program) -> Report {
    let mut findings = Findings::default();
    let checked = check_functions(program, &|function| function.opset, &mut findings);
    for (index, checked) in checked.iter().enumerate() {
        if let Some((layout, analysis)) = checked {
            let function = &program.functions[index];
            let at = FunctionContext { index, function, target: function.opset };
            hazards::check(at, layout, analysis, None, &mut findings);
        }
    }
    findings.into_report()
}

/// What is known about each function; none for one too broken to look into.
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
            let message = format!("another function is called `{}` too", function.name);
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
