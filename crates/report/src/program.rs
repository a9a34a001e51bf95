//! ExecuTorch programs: the graph of each method, partitioned into delegates and the kernels
//! between them.

use std::collections::{BTreeMap, HashMap};

use coremill::Error;
use coremill::executorch::{self, DelegatedModel};
use coremill::quantity::bytes;
use coremill_pte::Program;
use coremill_pte::coreml::Payload;
use coremill_pte::program::{ExecutionPlan, Instruction, Value, ValueId};

use crate::Report;
use crate::check;
use crate::data::{
    CrossingValue, Feature, Finding, Function, Method, Model, Op, Place, Severity, Step,
};
use crate::graph;

impl Report {
    /// Adds a program as a model whose functions are its methods, with the order of delegates and
    /// kernels and the values passed between them. Returns the index of the model.
    pub fn add_program(&mut self, name: &str, program: &Program) -> Result<usize, Error> {
        let delegated = executorch::models(program)?;
        let mut models = Vec::with_capacity(delegated.len());
        for model in &delegated {
            let mil = model.read()?;
            let mut described = graph::model(&model.name, &mil, None);
            let findings = check::attach(&mut described, models.len(), &coremill::check(&mil));
            models.push((described, findings));
        }
        let summary = executorch::summarize(program)?;
        let index = self.data.models.len();
        let mut data = crate::data::Program::default();
        let mut functions = Vec::new();
        // Location of each delegated function in the first method that calls it.
        let mut placed: HashMap<(usize, usize), (usize, usize)> = HashMap::new();
        let first_weights = first_weights(&models);
        for (plan, counted) in program.plans.iter().zip(&summary.methods) {
            let mut tracer = Tracer::new(program, plan, &delegated, &models, &first_weights);
            tracer.run(|delegate| counted.delegates[delegate].bytes);
            for (model, function, offset) in &tracer.placed {
                placed.entry((*model, *function)).or_insert((functions.len(), *offset));
            }
            let (function, method) = tracer.finish();
            self.finding(about(&method, counted.memory, &counted.kernels));
            functions.push(function);
            data.methods.push(method);
        }
        let (mut weights, mut findings) = (Vec::new(), Vec::new());
        for (model, of_model) in models {
            weights.extend(model.weights);
            findings.extend(of_model);
        }
        for finding in &mut findings {
            finding.place = finding.place.and_then(|place| {
                let (function, offset) = placed.get(&(place.model, place.function))?;
                Some(Place { model: index, function: *function, op: offset + place.op })
            });
        }
        self.data.findings.extend(merged(findings));
        let facts = graph::program_facts(&summary, &functions);
        self.data.models.push(Model {
            name: name.to_owned(),
            facts,
            functions,
            weights,
            planned: None,
            forecast: Some(graph::forecast_chip()),
        });
        self.data.program = Some(data);
        Ok(index)
    }
}

/// For each model, the number of weights in the models before it.
fn first_weights(models: &[(Model, Vec<Finding>)]) -> Vec<usize> {
    let mut sum = 0;
    let first = models.iter().map(|(model, _)| {
        sum += model.weights.len();
        sum - model.weights.len()
    });
    first.collect()
}

/// A finding that summarizes a method.
fn about(method: &Method, memory: u64, kernels: &[executorch::CallCount]) -> Finding {
    let delegates = method.steps.iter().filter(|step| step.kind == "delegate").count();
    let calls: usize = kernels.iter().map(|kernel| kernel.count).sum();
    let counted = |count: usize, what: &str| match count {
        1 => format!("1 {what}"),
        _ => format!("{count} {what}s"),
    };
    let names: Vec<_> =
        kernels.iter().map(|kernel| format!("{} × {}", kernel.count, kernel.operator)).collect();
    let crossing: u64 = method.crossings.iter().map(|crossing| crossing.bytes).sum();
    let mut detail = format!("Memory for activations: {}. ", bytes(memory));
    detail += &match names.is_empty() {
        true => "Nothing runs outside Core ML.".to_owned(),
        false => format!("Outside Core ML: {}.", names.join(", ")),
    };
    if crossing > 0 {
        detail += &format!(" {} cross between partitions per run.", bytes(crossing));
    }
    let title = format!(
        "method `{}`: {} delegated, {} outside",
        method.name,
        counted(delegates, "part"),
        counted(calls, "kernel call"),
    );
    Finding { severity: Severity::Note, title, detail, place: None }
}

/// Merges findings about the same rule, since models of a program often violate the same ones.
fn merged(findings: Vec<Finding>) -> Vec<Finding> {
    let mut by_rule: BTreeMap<String, (Finding, usize)> = BTreeMap::new();
    for finding in findings {
        let entry = by_rule.entry(finding.detail.clone());
        entry.and_modify(|(_, more)| *more += 1).or_insert((finding, 0));
    }
    let finding = |(mut finding, more): (Finding, usize)| {
        if more > 0 {
            finding.title += &format!(" (and in {more} more delegates)");
        }
        finding
    };
    by_rule.into_values().map(finding).collect()
}

/// Traces the values of a method through its instructions.
struct Tracer<'a> {
    program: &'a Program,
    plan: &'a ExecutionPlan,
    delegated: &'a [DelegatedModel],
    models: &'a [(Model, Vec<Finding>)],
    first_weights: &'a [usize],
    /// Origin of each value: the index of an operation, or −1 minus the index of an input.
    made_by: HashMap<ValueId, i64>,
    /// The step that computes each value.
    step_of: HashMap<ValueId, usize>,
    /// Values passed between steps: the value, the source step and the target step.
    crossing: Vec<(ValueId, Option<usize>, Option<usize>)>,
    function: Function,
    steps: Vec<Step>,
    /// Model, function, and index of the function's first operation.
    placed: Vec<(usize, usize, usize)>,
}

impl<'a> Tracer<'a> {
    fn new(
        program: &'a Program,
        plan: &'a ExecutionPlan,
        delegated: &'a [DelegatedModel],
        models: &'a [(Model, Vec<Finding>)],
        first_weights: &'a [usize],
    ) -> Tracer<'a> {
        // Values of a program have no names.
        let feature = |(at, &id): (usize, &ValueId)| Feature {
            name: at.to_string(),
            ty: type_of(plan, id),
            op: None,
        };
        let inputs: Vec<_> = plan.inputs.iter().enumerate().map(feature).collect();
        let outputs = plan.outputs.iter().enumerate().map(feature);
        let made_by = plan.inputs.iter().enumerate();
        Tracer {
            made_by: made_by.map(|(at, &id)| (id, -1 - at as i64)).collect(),
            function: Function {
                name: plan.name.clone(),
                opset: "",
                outputs: outputs.collect(),
                input_order: (0..inputs.len()).collect(),
                inputs,
                states: Vec::new(),
                ops: Vec::new(),
                live_bytes: Vec::new(),
            },
            program,
            plan,
            delegated,
            models,
            first_weights,
            step_of: HashMap::new(),
            crossing: Vec::new(),
            steps: Vec::new(),
            placed: Vec::new(),
        }
    }

    fn run(&mut self, stored: impl Fn(usize) -> u64) {
        for instruction in self.plan.chains.iter().flat_map(|chain| &chain.instructions) {
            match instruction {
                Instruction::KernelCall { operator, arguments } => {
                    self.kernel(*operator as usize, arguments);
                }
                Instruction::DelegateCall { delegate, arguments } => {
                    let delegate = *delegate as usize;
                    self.delegate(delegate, arguments, stored(delegate));
                }
                Instruction::Move { from, to } => {
                    if let Some(&made) = self.made_by.get(from) {
                        self.made_by.insert(*to, made);
                    }
                    if let Some(&step) = self.step_of.get(from) {
                        self.step_of.insert(*to, step);
                    }
                }
                Instruction::JumpFalse { .. } | Instruction::Free(_) => {}
            }
        }
        for (&id, feature) in self.plan.outputs.iter().zip(&mut self.function.outputs) {
            feature.op = self.made_by.get(&id).and_then(|&made| usize::try_from(made).ok());
            self.crossing.push((id, self.step_of.get(&id).copied(), None));
        }
    }

    fn kernel(&mut self, operator: usize, arguments: &[ValueId]) {
        let operator = self.plan.operators[operator].to_string();
        match self.steps.last_mut().filter(|step| step.kind == "kernels") {
            Some(step) => {
                step.calls += 1;
                if !step.label.split(", ").any(|known| known == operator) {
                    step.label += &format!(", {operator}");
                }
            }
            None => self.steps.push(Step {
                kind: "kernels",
                label: operator.clone(),
                calls: 1,
                model: None,
                stored: 0,
            }),
        }
        // The last argument is the kernel's result. Other arguments that it writes are aliases of
        // it.
        let written = arguments.last().map_or_else(Vec::new, |&last| tensors(self.plan, last));
        let read = || {
            let before = arguments.iter().take(arguments.len().saturating_sub(1));
            before.flat_map(|&id| tensors(self.plan, id)).filter(|id| !written.contains(id))
        };
        let mut from: Vec<i64> = read().filter_map(|id| self.made_by.get(&id).copied()).collect();
        from.dedup();
        let taken: Vec<ValueId> = read().collect();
        for id in taken {
            self.enter(id);
        }
        let at = self.function.ops.len();
        let name = written.first().map_or_else(|| format!("call {at}"), ToString::to_string);
        self.function.ops.push(Op {
            kind: operator,
            name,
            from,
            types: written.iter().map(|&id| type_of(self.plan, id)).collect(),
            bytes: written.iter().map(|&id| size(self.plan, id)).sum(),
            partition: Some(self.steps.len() - 1),
            ..Op::default()
        });
        for id in written {
            self.made_by.insert(id, at as i64);
            self.step_of.insert(id, self.steps.len() - 1);
        }
    }

    fn delegate(&mut self, delegate: usize, arguments: &[ValueId], stored: u64) {
        let label = format!("delegate {delegate}");
        self.steps.push(Step { kind: "delegate", label, calls: 1, model: None, stored });
        match self.inline(delegate, arguments) {
            Some(()) => {}
            None => self.opaque(delegate, arguments),
        }
    }

    /// Inlines the operations of the model that a Core ML delegate runs.
    fn inline(&mut self, delegate: usize, arguments: &[ValueId]) -> Option<()> {
        let is_user =
            |user: &executorch::Use| user.method == self.plan.name && user.delegate == delegate;
        let (model, user) =
            self.delegated.iter().enumerate().find_map(|(at, model)| {
                Some((at, model.uses.iter().find(|user| is_user(user))?))
            })?;
        let (described, _) = &self.models[model];
        let position = match &user.function {
            Some(name) => described.functions.iter().position(|known| known.name == *name)?,
            None => 0,
        };
        let function = described.functions.get(position)?;
        let payload = Payload::of(self.program, &self.plan.delegates[delegate]).ok()?;
        let interface = payload.interface().ok()?;
        let (takes, gives) = (distinct(&interface.inputs), distinct(&interface.outputs));
        if arguments.len() != takes.len() + gives.len() {
            return None;
        }
        let (given, given_back) = arguments.split_at(takes.len());
        let step = self.steps.len() - 1;
        self.steps[step].model = Some(model);
        for &id in given {
            self.enter(id);
        }
        // Sources of the function's inputs, followed by its states.
        let mut sources: Vec<Option<i64>> = Vec::new();
        for input in &function.inputs {
            let at = takes.iter().position(|name| **name == input.name);
            sources.push(at.and_then(|at| self.made_by.get(&given[at]).copied()));
        }
        for state in &function.states {
            let known = self.function.states.iter().position(|known| known.name == state.name);
            let at = known.unwrap_or_else(|| {
                self.function.states.push(state.clone());
                self.function.input_order.push(self.function.input_order.len());
                self.function.states.len() - 1
            });
            sources.push(Some(-1 - (self.function.inputs.len() + at) as i64));
        }
        let offset = self.function.ops.len();
        let first_weight = self.first_weights[model];
        for op in &function.ops {
            let mut op = op.clone();
            let within = |from: i64| match usize::try_from(from) {
                Ok(from) => Some((offset + from) as i64),
                Err(_) => *sources.get(*function.input_order.get((-1 - from) as usize)?)?,
            };
            op.from = op.from.iter().filter_map(|&from| within(from)).collect();
            op.parent = op.parent.map(|parent| offset + parent);
            op.weights.iter_mut().for_each(|weight| *weight += first_weight);
            op.partition = Some(step);
            let label = &self.steps[step].label;
            op.module = match op.module.is_empty() {
                true => label.clone(),
                false => format!("{label}.{}", op.module),
            };
            self.function.ops.push(op);
        }
        for (name, &id) in gives.iter().zip(given_back) {
            let output = function.outputs.iter().find(|output| output.name == **name);
            if let Some(made) = output.and_then(|output| output.op) {
                self.made_by.insert(id, (offset + made) as i64);
            }
            self.step_of.insert(id, step);
        }
        self.placed.push((model, position, offset));
        Some(())
    }

    /// Adds a delegate of another backend as a single operation. Its outputs are unknown; arguments
    /// that were not computed before count as outputs.
    fn opaque(&mut self, delegate: usize, arguments: &[ValueId]) {
        let (read, written): (Vec<ValueId>, Vec<ValueId>) =
            arguments.iter().partition(|id| self.made_by.contains_key(id));
        read.iter().for_each(|&id| self.enter(id));
        let at = self.function.ops.len();
        self.function.ops.push(Op {
            kind: self.plan.delegates[delegate].id.clone(),
            name: format!("delegate {delegate}"),
            from: read.iter().filter_map(|id| self.made_by.get(id).copied()).collect(),
            types: written.iter().map(|&id| type_of(self.plan, id)).collect(),
            bytes: written.iter().map(|&id| size(self.plan, id)).sum(),
            partition: Some(self.steps.len() - 1),
            ..Op::default()
        });
        for id in written {
            self.made_by.insert(id, at as i64);
            self.step_of.insert(id, self.steps.len() - 1);
        }
    }

    /// Records that the last step reads a value.
    fn enter(&mut self, id: ValueId) {
        let (from, to) = (self.step_of.get(&id).copied(), self.steps.len() - 1);
        let is_computed = self.made_by.contains_key(&id);
        let crossing = (id, from, Some(to));
        if is_computed && from != Some(to) && !self.crossing.contains(&crossing) {
            self.crossing.push(crossing);
        }
    }

    fn finish(mut self) -> (Function, Method) {
        self.function.live_bytes = graph::live_bytes(&self.function);
        let plan = self.plan;
        let crossing = |(id, from, to): (ValueId, Option<usize>, Option<usize>)| CrossingValue {
            value: id.to_string(),
            ty: type_of(plan, id),
            bytes: size(plan, id),
            from,
            to,
        };
        let crossings = self.crossing.into_iter().map(crossing).collect();
        (self.function, Method { name: plan.name.clone(), steps: self.steps, crossings })
    }
}

/// Removes duplicates: equal names refer to one input or output, as in ExecuTorch.
fn distinct(names: &[String]) -> Vec<&String> {
    let mut found: Vec<&String> = Vec::new();
    for name in names {
        if !found.contains(&name) {
            found.push(name);
        }
    }
    found
}

/// The tensors in a value.
fn tensors(plan: &ExecutionPlan, id: ValueId) -> Vec<ValueId> {
    match &plan.values[id.index()] {
        Value::Tensor(_) => vec![id],
        Value::TensorList(list) => list.clone(),
        Value::OptionalTensorList(list) => list.iter().flatten().copied().collect(),
        _ => Vec::new(),
    }
}

fn type_of(plan: &ExecutionPlan, id: ValueId) -> String {
    let Value::Tensor(tensor) = &plan.values[id.index()] else { return "no tensor".to_owned() };
    let name = match tensor.scalar_type.dtype() {
        Some(dtype) => dtype.name().to_owned(),
        None => format!("{:?}", tensor.scalar_type).to_lowercase(),
    };
    let sizes: Vec<_> = tensor.sizes.iter().map(ToString::to_string).collect();
    format!("tensor<{name}, [{}]>", sizes.join(", "))
}

/// Maximum size of a tensor in bytes.
fn size(plan: &ExecutionPlan, id: ValueId) -> u64 {
    let Value::Tensor(tensor) = &plan.values[id.index()] else { return 0 };
    tensor.byte_length().unwrap_or(0)
}
