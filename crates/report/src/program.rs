//! ExecuTorch programs: delegates and the kernels between them.

use coremill::Error;
use coremill::executorch::{self, DelegatedModel};
use coremill::pte::Program;
use coremill::pte::program::{Instruction, Plan, Value, ValueId};
use coremill::quantity::bytes;

use crate::Report;
use crate::data::{Finding, Method, Program as ProgramData, Severity, Step};

impl Report {
    /// Adds a program with the models inside it; says in what order delegates and kernels run.
    pub fn add_program(&mut self, program: &Program) -> Result<(), Error> {
        let models = executorch::models(program)?;
        let mut positions = Vec::with_capacity(models.len());
        for model in &models {
            positions.push(self.add_model(&model.name, &model.read()?, None));
        }
        let summary = executorch::summarize(program)?;
        let mut data = ProgramData::default();
        for (plan, method) in program.plans.iter().zip(&summary.methods) {
            let used = |index: usize| {
                let uses = |model: &&DelegatedModel| {
                    model.uses.iter().any(|user| user.method == plan.name && user.delegate == index)
                };
                let found = models.iter().position(|model| uses(&model));
                (found.map(|at| positions[at]), method.delegates[index].bytes)
            };
            let steps = steps(plan, &used);
            let kernels: usize = method.kernels.iter().map(|kernel| kernel.count).sum();
            let title = format!(
                "method `{}`: {} delegated, {} {} outside",
                plan.name,
                parts(method.delegates.len()),
                kernels,
                if kernels == 1 { "kernel call" } else { "kernel calls" },
            );
            let names: Vec<_> = method
                .kernels
                .iter()
                .map(|kernel| format!("{} × {}", kernel.count, kernel.operator))
                .collect();
            let place = format!("Memory for activations: {}.", bytes(method.memory));
            let detail = match names.is_empty() {
                true => place,
                false => format!("{place} Outside Core ML: {}.", names.join(", ")),
            };
            self.finding(Finding { severity: Severity::Note, title, detail, place: None });
            data.methods.push(Method { name: plan.name.clone(), steps });
        }
        self.data.program = Some(data);
        Ok(())
    }
}

fn parts(count: usize) -> String {
    if count == 1 { "1 part".to_owned() } else { format!("{count} parts") }
}

/// The steps of a method; kernels that follow one another are one step.
fn steps(plan: &Plan, used: &dyn Fn(usize) -> (Option<usize>, u64)) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for instruction in plan.chains.iter().flat_map(|chain| &chain.instructions) {
        match instruction {
            Instruction::KernelCall { operator, arguments } => {
                let operator = plan.operators[*operator as usize].to_string();
                let crossing = arguments.last().map_or(0, |value| size(plan, *value));
                match steps.last_mut().filter(|step| step.kind == "kernels") {
                    Some(step) => {
                        step.calls += 1;
                        step.bytes += crossing;
                        if !step.label.split(", ").any(|known| known == operator) {
                            step.label += &format!(", {operator}");
                        }
                    }
                    None => steps.push(Step {
                        kind: "kernels",
                        label: operator,
                        calls: 1,
                        model: None,
                        bytes: crossing,
                        stored: 0,
                    }),
                }
            }
            Instruction::DelegateCall { delegate, arguments } => {
                let index = *delegate as usize;
                let (model, stored) = used(index);
                steps.push(Step {
                    kind: "delegate",
                    label: format!("delegate {index} ({})", plan.delegates[index].id),
                    calls: 1,
                    model,
                    bytes: arguments.iter().map(|value| size(plan, *value)).sum(),
                    stored,
                });
            }
            _ => {}
        }
    }
    steps
}

/// The bytes of a tensor at its largest.
fn size(plan: &Plan, value: ValueId) -> u64 {
    let Value::Tensor(tensor) = &plan.values[value.index()] else { return 0 };
    let Some(dtype) = tensor.scalar_type.dtype() else { return 0 };
    let sizes = tensor.sizes.iter().map(|&size| u64::try_from(size).unwrap_or(0));
    let elements = sizes.fold(1u64, u64::saturating_mul);
    dtype.storage_bytes(elements).unwrap_or(0)
}
