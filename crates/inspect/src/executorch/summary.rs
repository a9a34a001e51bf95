use std::collections::BTreeMap;

use coremill_pte::Program;
use coremill_pte::coreml::BACKEND;
use coremill_pte::program::{
    Delegate, ExecutionPlan, Instruction, Placement, ShapeDynamism, Tensor, Value, ValueId,
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
    /// The bytes of constants outside delegates.
    pub constant_bytes: u64,
    /// The bytes of what tensors hold before the first run.
    pub initial_bytes: u64,
    /// The bytes of what delegates are given.
    pub delegate_bytes: u64,
    /// The bytes of data with names.
    pub named_bytes: u64,
    /// The Core ML models.
    pub models: Vec<ModelSummary>,
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
#[derive(Clone, Debug, Default, Serialize)]
pub struct ValueSummary {
    /// What it is: `tensor`, `int`, `nothing`, ...
    pub kind: &'static str,
    /// The type of a tensor's elements.
    pub dtype: Option<String>,
    /// A tensor's dimensions; where they change, the largest.
    pub shape: Option<Vec<i32>>,
    /// Whether the dimensions change from run to run.
    pub dynamic: bool,
    /// What it always is, for all but tensors and lists.
    pub value: Option<String>,
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
    /// The model among [`ProgramSummary::models`], for Core ML.
    pub model: Option<String>,
    /// The function of the model; none is the only one.
    pub function: Option<String>,
    /// How it is to be run.
    pub compile_specs: Vec<SpecSummary>,
}

/// A compile spec.
#[derive(Clone, Debug, Serialize)]
pub struct SpecSummary {
    /// The name.
    pub key: String,
    /// The value as text.
    pub value: String,
}

/// A Core ML model of a program.
#[derive(Clone, Debug, Serialize)]
pub struct ModelSummary {
    /// The name, as `extract` gives it.
    pub name: String,
    /// What it holds.
    pub summary: Summary,
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
        let summary = summarize_model(&model.read()?);
        summaries.push(ModelSummary { name: model.name.clone(), summary });
    }
    Ok(ProgramSummary {
        format_version: 2,
        methods: program.plans.iter().map(|plan| method(plan, program, &models)).collect(),
        constant_bytes: total(&mut program.constants.iter().map(|data| data.len())),
        initial_bytes: total(&mut program.mutable_data.iter().map(|data| data.len())),
        delegate_bytes: total(&mut program.delegate_data.iter().map(|data| data.len())),
        named_bytes: total(&mut program.named_data.iter().map(|named| named.data.len())),
        models: summaries,
    })
}

fn method(plan: &ExecutionPlan, program: &Program, models: &[DelegatedModel]) -> MethodSummary {
    let values = |ids: &[ValueId]| ids.iter().map(|id| value(&plan.values[id.index()])).collect();
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
    plan: &ExecutionPlan,
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
        let value = String::from_utf8_lossy(&spec.value).into_owned();
        SpecSummary { key: spec.key.clone(), value }
    };
    debug_assert!(delegate.id != BACKEND || model.is_some(), "each of Core ML's has its model");
    DelegateSummary {
        backend: delegate.id.clone(),
        calls,
        bytes: own + named.map_or(0, |named| named.data.len() as u64),
        model: model.map(|(model, _)| model.name.clone()),
        function: model.and_then(|(_, user)| user.function.clone()),
        compile_specs: delegate.compile_specs.iter().map(spec).collect(),
    }
}

fn value(value: &Value) -> ValueSummary {
    let always =
        |kind, value: String| ValueSummary { kind, value: Some(value), ..ValueSummary::default() };
    let list = |kind| ValueSummary { kind, ..ValueSummary::default() };
    match value {
        Value::Null => list("nothing"),
        Value::Int(number) => always("int", number.to_string()),
        Value::Bool(truth) => always("bool", truth.to_string()),
        Value::Double(number) => always("float", format!("{number:?}")),
        Value::String(text) => always("text", text.clone()),
        Value::Tensor(tensor) => ValueSummary {
            kind: "tensor",
            dtype: Some(match tensor.scalar_type.dtype() {
                Some(dtype) => dtype.name().to_owned(),
                None => format!("{:?}", tensor.scalar_type).to_lowercase(),
            }),
            shape: Some(tensor.sizes.clone()),
            dynamic: tensor.dynamism != ShapeDynamism::Static,
            value: None,
        },
        Value::IntList(_) => list("ints"),
        Value::DoubleList(_) => list("floats"),
        Value::BoolList(_) => list("bools"),
        Value::TensorList(_) | Value::OptionalTensorList(_) => list("tensors"),
    }
}
