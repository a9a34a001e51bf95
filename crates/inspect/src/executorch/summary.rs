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

/// Summary of an ExecuTorch program. The JSON form is stable: for the same `format_version`, fields
/// are only added.
#[derive(Clone, Debug, Serialize)]
pub struct ProgramSummary {
    /// Version of the JSON form.
    pub format_version: u32,
    /// Methods of the program.
    pub methods: Vec<MethodSummary>,
    /// Bytes of constants outside delegates.
    pub constant_bytes: u64,
    /// Bytes of the initial contents of mutable tensors.
    pub initial_bytes: u64,
    /// Bytes of delegate data.
    pub delegate_bytes: u64,
    /// Bytes of named data.
    pub named_bytes: u64,
    /// Core ML models of the program.
    pub models: Vec<ModelSummary>,
}

/// Summary of a method.
#[derive(Clone, Debug, Serialize)]
pub struct MethodSummary {
    /// Name of the method.
    pub name: String,
    /// Inputs of the method.
    pub inputs: Vec<ValueSummary>,
    /// Outputs of the method.
    pub outputs: Vec<ValueSummary>,
    /// Number of instructions.
    pub instructions: usize,
    /// Bytes of planned memory.
    pub memory: u64,
    /// Delegates of the method.
    pub delegates: Vec<DelegateSummary>,
    /// Kernels, most frequently called first.
    pub kernels: Vec<CallCount>,
    /// Names of tensors in external files.
    pub external: Vec<String>,
}

/// An input or an output.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ValueSummary {
    /// Kind of value: `tensor`, `int`, `nothing`, ...
    pub kind: &'static str,
    /// Element type of a tensor.
    pub dtype: Option<String>,
    /// Dimensions of a tensor; for dynamic shapes, the upper bounds.
    pub shape: Option<Vec<i32>>,
    /// Whether the shape is dynamic.
    pub dynamic: bool,
    /// The constant value, for kinds other than tensors and lists.
    pub value: Option<String>,
}

/// Summary of a delegate.
#[derive(Clone, Debug, Serialize)]
pub struct DelegateSummary {
    /// Name of the backend.
    pub backend: String,
    /// Number of calls.
    pub calls: usize,
    /// Bytes of its data, including named data.
    pub bytes: u64,
    /// For Core ML, the name of the model in [`ProgramSummary::models`].
    pub model: Option<String>,
    /// Function of the model. `None` if there is only one.
    pub function: Option<String>,
    /// Compile specs.
    pub compile_specs: Vec<SpecSummary>,
}

/// A compile spec.
#[derive(Clone, Debug, Serialize)]
pub struct SpecSummary {
    /// Key of the spec.
    pub key: String,
    /// The value as text.
    pub value: String,
}

/// A Core ML model of a program.
#[derive(Clone, Debug, Serialize)]
pub struct ModelSummary {
    /// Name, as `extract` uses it.
    pub name: String,
    /// Summary of the model.
    pub summary: Summary,
}

/// Call count of a kernel.
#[derive(Clone, Debug, Serialize)]
pub struct CallCount {
    /// Name of the operator.
    pub operator: String,
    /// Number of instructions that call it.
    pub count: usize,
}

/// Summarizes a program.
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
