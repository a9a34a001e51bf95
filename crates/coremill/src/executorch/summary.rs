use std::collections::BTreeMap;

use coremill_pte::Program;
use coremill_pte::coreml::BACKEND;
use coremill_pte::program::{
    Delegate, Dynamism, Instruction, Placement, Plan, Tensor, Value, ValueId,
};
use serde::Serialize;

use super::{DelegatedModel, models};
use crate::error::Error;
use crate::summary::{Summary, summarize as summarize_model};

/// What an ExecuTorch program holds, counted. Its JSON form is stable: fields are only added while `format_version`
/// stays.
#[derive(Clone, Debug, Serialize)]
pub struct ProgramSummary {
    /// The version of this form.
    pub format_version: u32,
    /// The methods.
    pub methods: Vec<MethodSummary>,
    /// The bytes of constants outside of delegates.
    pub constant_bytes: u64,
    /// The bytes of what tensors hold before the first run.
    pub initial_bytes: u64,
    /// The bytes of what delegates are given.
    pub delegate_bytes: u64,
    /// The bytes of data with names.
    pub named_bytes: u64,
    /// The Core ML models, by their names.
    pub models: Vec<(String, Summary)>,
}

/// A method.
#[derive(Clone, Debug, Serialize)]
pub struct MethodSummary {
    /// The name.
    pub name: String,
    /// What callers give.
    pub inputs: Vec<ValueSummary>,
    /// What callers get.
    pub outputs: Vec<ValueSummary>,
    /// The number of instructions.
    pub instructions: usize,
    /// The bytes of memory that it takes while it is loaded.
    pub memory: u64,
    /// What is delegated.
    pub delegates: Vec<DelegateSummary>,
    /// The kernels that are called, the most frequent first.
    pub kernels: Vec<CallCount>,
    /// Tensors that lie in files of their own.
    pub external: Vec<String>,
}

/// An input or an output.
#[derive(Clone, Debug, Serialize)]
pub struct ValueSummary {
    /// `float32 [1, 3]` for a tensor, dimensions that change with `≤` before their bound; else the value itself.
    pub ty: String,
}

/// What is given to a backend.
#[derive(Clone, Debug, Serialize)]
pub struct DelegateSummary {
    /// The backend.
    pub backend: String,
    /// How often it is called.
    pub calls: usize,
    /// The bytes that it is given, named data included.
    pub bytes: u64,
    /// The model among [`ProgramSummary::models`], and its function, for Core ML.
    pub model: Option<(String, Option<String>)>,
    /// How it is to be run.
    pub compile_specs: Vec<(String, String)>,
}

/// How often a kernel is called.
#[derive(Clone, Debug, Serialize)]
pub struct CallCount {
    /// The operator.
    pub operator: String,
    /// How often it stands among the instructions.
    pub count: usize,
}

/// Counts what a program holds.
pub fn summarize(program: &Program) -> Result<ProgramSummary, Error> {
    let models = models(program)?;
    let total =
        |lengths: &mut dyn Iterator<Item = usize>| lengths.map(|length| length as u64).sum();
    let mut summaries = Vec::with_capacity(models.len());
    for model in &models {
        summaries.push((model.name.clone(), summarize_model(&model.read()?)));
    }
    Ok(ProgramSummary {
        format_version: 1,
        methods: program.plans.iter().map(|plan| method(plan, program, &models)).collect(),
        constant_bytes: total(&mut program.constants.iter().map(|data| data.len())),
        initial_bytes: total(&mut program.mutable_data.iter().map(|data| data.len())),
        delegate_bytes: total(&mut program.delegate_data.iter().map(|data| data.len())),
        named_bytes: total(&mut program.named_data.iter().map(|named| named.data.len())),
        models: summaries,
    })
}

fn method(plan: &Plan, program: &Program, models: &[DelegatedModel]) -> MethodSummary {
    let values = |ids: &[ValueId]| {
        ids.iter().map(|id| ValueSummary { ty: shown(&plan.values[id.index()]) }).collect()
    };
    let instructions = || plan.chains.iter().flat_map(|chain| &chain.instructions);
    let mut calls: BTreeMap<u32, usize> = BTreeMap::new();
    let mut delegated: BTreeMap<u32, usize> = BTreeMap::new();
    for instruction in instructions() {
        match instruction {
            Instruction::KernelCall { operator, .. } => *calls.entry(*operator).or_default() += 1,
            Instruction::DelegateCall { delegate, .. } => {
                *delegated.entry(*delegate).or_default() += 1;
            }
            _ => {}
        }
    }
    let mut kernels: Vec<CallCount> = calls
        .into_iter()
        .map(|(operator, count)| CallCount {
            operator: plan.operators[operator as usize].to_string(),
            count,
        })
        .collect();
    kernels.sort_by(|left, right| {
        right.count.cmp(&left.count).then_with(|| left.operator.cmp(&right.operator))
    });
    let delegates = plan.delegates.iter().enumerate().map(|(index, delegate)| {
        let calls = delegated.get(&(index as u32)).copied().unwrap_or(0);
        self::delegate(plan, index, delegate, calls, program, models)
    });
    let external = plan.values.iter().filter_map(|value| match value {
        Value::Tensor(Tensor { placement: Placement::External(_), name, .. }) => name.clone(),
        _ => None,
    });
    MethodSummary {
        name: plan.name.clone(),
        inputs: values(&plan.inputs),
        outputs: values(&plan.outputs),
        instructions: instructions().count(),
        memory: plan.arenas.iter().fold(0, |sum, arena| sum.saturating_add(*arena)),
        delegates: delegates.collect(),
        kernels,
        external: external.collect(),
    }
}

fn delegate(
    plan: &Plan,
    index: usize,
    delegate: &Delegate,
    calls: usize,
    program: &Program,
    models: &[DelegatedModel],
) -> DelegateSummary {
    let is_this = |user: &super::Use| user.method == plan.name && user.delegate == index;
    let model = models.iter().find_map(|model| {
        let user = model.uses.iter().find(|user| is_this(user))?;
        Some((model, user))
    });
    let own = program.delegate_data[delegate.data as usize].len() as u64;
    let key = model.and_then(|(model, _)| Some(&model.payload.reference.as_ref()?.key));
    let named = program.named_data.iter().find(|named| Some(&named.key) == key);
    let spec = |spec: &coremill_pte::program::CompileSpec| {
        let value = String::from_utf8_lossy(&spec.value);
        (spec.key.clone(), value.into_owned())
    };
    debug_assert!(delegate.id != BACKEND || model.is_some(), "each of Core ML's has its model");
    DelegateSummary {
        backend: delegate.id.clone(),
        calls,
        bytes: own + named.map_or(0, |named| named.data.len() as u64),
        model: model.map(|(model, user)| (model.name.clone(), user.function.clone())),
        compile_specs: delegate.compile_specs.iter().map(spec).collect(),
    }
}

/// A value for people.
fn shown(value: &Value) -> String {
    match value {
        Value::Null => "nothing".to_owned(),
        Value::Int(number) => number.to_string(),
        Value::Bool(truth) => truth.to_string(),
        Value::Double(number) => format!("{number:?}"),
        Value::String(text) => format!("{text:?}"),
        Value::Tensor(tensor) => {
            let sizes: Vec<String> = tensor.sizes.iter().map(i32::to_string).collect();
            let sizes = sizes.join(" × ");
            let bound = if tensor.dynamism == Dynamism::Static { "" } else { "up to " };
            let dtype = match tensor.scalar_type.dtype() {
                Some(dtype) => dtype.name().to_owned(),
                None => format!("{:?}", tensor.scalar_type).to_lowercase(),
            };
            let sizes = if sizes.is_empty() { "scalar".to_owned() } else { sizes };
            format!("{dtype}  {bound}{sizes}")
        }
        Value::IntList(items) => format!("{} integers", items.len()),
        Value::DoubleList(items) => format!("{} floats", items.len()),
        Value::BoolList(items) => format!("{} truth values", items.len()),
        Value::TensorList(items) => format!("{} tensors", items.len()),
        Value::OptionalTensorList(items) => format!("{} tensors", items.len()),
    }
}
