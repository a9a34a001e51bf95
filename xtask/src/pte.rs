//! `cargo xtask pte-dump`: prints the contents of ExecuTorch programs and external data, as read by coremill,
//! as JSON for the oracle tests.

use std::path::{Path, PathBuf};

use coremill_pte::coreml::{BACKEND, Entry, Payload};
use coremill_pte::program::{
    Chain, Delegate, ExecutionPlan, Instruction, Placement, ShapeDynamism, Tensor, Value, ValueId,
};
use coremill_pte::{ByteRope, ExternalData, Program};
use serde_json::{Value as Json, json};
use sha2::{Digest as _, Sha256};

/// The files and options.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Programs and external data
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Write each file again to this directory, with the same name
    #[arg(long, value_name = "DIRECTORY")]
    rewrite: Option<PathBuf>,
}

/// Prints one line for each file.
pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    for file in &arguments.files {
        let again = match (&arguments.rewrite, file.file_name()) {
            (Some(directory), Some(name)) => Some(directory.join(name)),
            _ => None,
        };
        let dump = dump(file, again.as_deref());
        println!("{}", dump.map_err(|error| format!("{}: {error}", file.display()))?);
    }
    Ok(())
}

fn dump(file: &Path, again: Option<&Path>) -> Result<Json, coremill_pte::Error> {
    if file.extension().is_some_and(|extension| extension == "ptd") {
        let data = ExternalData::read(file)?;
        if let Some(again) = again {
            data.write(again, &Default::default())?;
        }
        return Ok(external(&data));
    }
    let program = coremill_pte::read(file)?;
    if let Some(again) = again {
        coremill_pte::write(again, &program, &Default::default())?;
    }
    self::program(&program)
}

fn external(data: &ExternalData) -> Json {
    let entry = |entry: &coremill_pte::ExternalEntry| {
        let layout = entry.layout.as_ref();
        json!({
            "key": entry.key,
            "data": digest(&entry.data),
            "layout": layout.map(|found| json!([found.scalar_type as i8, found.sizes, found.dim_order])),
        })
    };
    json!({ "entries": data.entries.iter().map(entry).collect::<Vec<_>>() })
}

fn digest(data: &ByteRope) -> Json {
    let mut hasher = Sha256::new();
    let read = data.for_each_window(1 << 20, &mut |bytes| {
        hasher.update(bytes);
        Ok(())
    });
    read.expect("a mapped file is readable");
    let digits: String = hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    json!([data.len(), digits])
}

fn program(program: &Program) -> Result<Json, coremill_pte::Error> {
    let digests = |all: &[ByteRope]| all.iter().map(digest).collect::<Vec<_>>();
    let plans: Result<Vec<_>, _> = program.plans.iter().map(|found| plan(found, program)).collect();
    let named = program.named_data.iter();
    Ok(json!({
        "version": program.version,
        "plans": plans?,
        "constants": digests(&program.constants),
        "mutable_data": digests(&program.mutable_data),
        "named_data": named.map(|named| json!([named.key, digest(&named.data)])).collect::<Vec<_>>(),
        "other_segments": program.other_segments.len(),
    }))
}

fn ids(ids: &[ValueId]) -> Vec<u32> {
    ids.iter().map(|id| id.0).collect()
}

fn plan(plan: &ExecutionPlan, program: &Program) -> Result<Json, coremill_pte::Error> {
    let delegates = plan.delegates.iter().map(|found| delegate(found, program));
    let container = plan.container.as_ref();
    Ok(json!({
        "name": plan.name,
        "container": container.map(|found| json!([found.inputs, found.outputs])),
        "values": plan.values.iter().map(value).collect::<Vec<_>>(),
        "inputs": ids(&plan.inputs),
        "outputs": ids(&plan.outputs),
        "chains": plan.chains.iter().map(chain).collect::<Vec<_>>(),
        "operators": plan.operators.iter().map(|found| json!([found.name, found.overload])).collect::<Vec<_>>(),
        "delegates": delegates.collect::<Result<Vec<_>, _>>()?,
        "arenas": plan.arenas,
    }))
}

fn chain(chain: &Chain) -> Json {
    let instruction = |instruction: &Instruction| match instruction {
        Instruction::KernelCall { operator, arguments } => {
            json!(["KernelCall", operator, ids(arguments)])
        }
        Instruction::DelegateCall { delegate, arguments } => {
            json!(["DelegateCall", delegate, ids(arguments)])
        }
        Instruction::Move { from, to } => json!(["MoveCall", from.0, to.0]),
        Instruction::JumpFalse { condition, target } => {
            json!(["JumpFalseCall", condition.0, target])
        }
        Instruction::Free(value) => json!(["FreeCall", value.0]),
    };
    json!({
        "inputs": ids(&chain.inputs),
        "outputs": ids(&chain.outputs),
        "instructions": chain.instructions.iter().map(instruction).collect::<Vec<_>>(),
    })
}

fn delegate(delegate: &Delegate, program: &Program) -> Result<Json, coremill_pte::Error> {
    let specs = delegate.compile_specs.iter();
    let model = if delegate.id == BACKEND { Some(payload(program, delegate)?) } else { None };
    Ok(json!({
        "id": delegate.id,
        "data": digest(&program.delegate_data[delegate.data as usize]),
        "compile_specs": specs.map(|spec| json!([spec.key, spec.value])).collect::<Vec<_>>(),
        "model": model,
    }))
}

/// The files of a Core ML model, and the options for the backend.
fn payload(program: &Program, delegate: &Delegate) -> Result<Json, coremill_pte::Error> {
    let payload = Payload::of(program, delegate)?;
    let interface = payload.interface()?;
    let files: serde_json::Map<String, Json> = payload
        .directory
        .entries()
        .map(|(path, entry)| match entry {
            Entry::File(data) => (path.to_owned(), digest(data)),
            Entry::EmptyDirectory => (path.to_owned(), Json::Null),
        })
        .collect();
    Ok(json!({
        "name": payload.directory.name,
        "files": files,
        "inputs": interface.inputs,
        "outputs": interface.outputs,
        "identifier": payload.metadata.identifier,
        "function": payload.function(),
        "symbols": payload.debug_info()?.map(|info| info.debug_symbol_to_handles.len()),
    }))
}

fn value(value: &Value) -> Json {
    match value {
        Value::Null => json!(["Null"]),
        Value::Int(number) => json!(["Int", number]),
        Value::Bool(truth) => json!(["Bool", truth]),
        Value::Double(number) => json!(["Double", format!("{:016x}", number.to_bits())]),
        Value::String(text) => json!(["String", text]),
        Value::Tensor(tensor) => self::tensor(tensor),
        Value::IntList(items) => json!(["IntList", ids(items)]),
        Value::DoubleList(items) => {
            let bits = items.iter().map(|number| format!("{:016x}", number.to_bits()));
            json!(["DoubleList", bits.collect::<Vec<_>>()])
        }
        Value::BoolList(items) => json!(["BoolList", items]),
        Value::TensorList(items) => json!(["TensorList", ids(items)]),
        Value::OptionalTensorList(items) => {
            let items = items.iter().map(|item| item.map_or(-1, |id| i64::from(id.0)));
            json!(["OptionalTensorList", items.collect::<Vec<_>>()])
        }
    }
}

fn tensor(tensor: &Tensor) -> Json {
    let (buffer, place, external) = match tensor.placement {
        Placement::GivenAtRunTime => (0, None, false),
        Placement::Constant(index) => (index + 1, None, false),
        Placement::Planned(place) => (0, Some(place), false),
        Placement::Initialized { initial, place } => (initial + 1, Some(place), false),
        Placement::External(place) => (0, place, true),
    };
    json!(["Tensor", {
        "scalar_type": tensor.scalar_type as i8,
        "sizes": tensor.sizes,
        "dim_order": tensor.dim_order,
        "dynamism": match tensor.dynamism {
            ShapeDynamism::Static => 0,
            ShapeDynamism::Bound => 1,
            ShapeDynamism::Unbound => 2,
        },
        "buffer": buffer,
        "place": place.map(|place| json!([place.arena + 1, place.offset])),
        "external": external,
        "name": tensor.name,
        "requires_grad": tensor.requires_grad,
    }])
}
