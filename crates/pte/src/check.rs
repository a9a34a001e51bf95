//! Validation of programs that were read or are to be written.

use std::collections::BTreeSet;

use crate::error::{Error, escape_truncated};
use crate::limits;
use crate::program::{
    Chain, ExecutionPlan, Instruction, Place, Placement, Program, ScalarType, ShapeDynamism,
    Tensor, Value, ValueId, byte_length,
};

type Result<T> = std::result::Result<T, Error>;

/// Checks that all references are valid and of the right kind, so that later code can rely on it.
pub(crate) fn check(program: &Program) -> Result<()> {
    let mut names = BTreeSet::new();
    for plan in &program.plans {
        let within =
            |error: Error| error.within(format!("method `{}`", escape_truncated(&plan.name)));
        if !names.insert(&plan.name) {
            return Err(within(Error::malformed("there are two methods with this name")));
        }
        self::plan(plan, program).map_err(within)?;
    }
    Ok(())
}

fn plan(plan: &ExecutionPlan, program: &Program) -> Result<()> {
    for (index, value) in plan.values.iter().enumerate() {
        self::value(value, index, plan, program)
            .map_err(|error| error.within(format!("value %{index}")))?;
    }
    known(&plan.inputs, plan).map_err(|error| error.within("inputs"))?;
    known(&plan.outputs, plan).map_err(|error| error.within("outputs"))?;
    for (index, chain) in plan.chains.iter().enumerate() {
        self::chain(chain, plan).map_err(|error| error.within(format!("chain {index}")))?;
    }
    for (index, delegate) in plan.delegates.iter().enumerate() {
        refer(delegate.data, program.delegate_data.len(), "data")
            .map_err(|error| error.within(format!("delegate {index}")))?;
    }
    Ok(())
}

fn refer(index: u32, count: usize, what: &str) -> Result<()> {
    if (index as usize) < count {
        return Ok(());
    }
    Err(Error::malformed(format!("{what} {index} is out of range; there are {count}")))
}

fn known<'v>(ids: impl IntoIterator<Item = &'v ValueId>, plan: &ExecutionPlan) -> Result<()> {
    ids.into_iter().try_for_each(|id| refer(id.0, plan.values.len(), "value"))
}

fn chain(chain: &Chain, plan: &ExecutionPlan) -> Result<()> {
    known(chain.inputs.iter().chain(&chain.outputs), plan)?;
    for (index, instruction) in chain.instructions.iter().enumerate() {
        self::instruction(instruction, chain, plan)
            .map_err(|error| error.within(format!("instruction {index}")))?;
    }
    Ok(())
}

fn instruction(instruction: &Instruction, chain: &Chain, plan: &ExecutionPlan) -> Result<()> {
    match instruction {
        Instruction::KernelCall { operator, arguments } => {
            refer(*operator, plan.operators.len(), "operator")?;
            known(arguments, plan)
        }
        Instruction::DelegateCall { delegate, arguments } => {
            refer(*delegate, plan.delegates.len(), "delegate")?;
            known(arguments, plan)
        }
        Instruction::Move { from, to } => known([from, to], plan),
        Instruction::JumpFalse { condition, target } => {
            known([condition], plan)?;
            // One past the last instruction ends the chain.
            refer(*target, chain.instructions.len() + 1, "instruction")
        }
        Instruction::Free(value) => known([value], plan),
    }
}

fn value(value: &Value, index: usize, plan: &ExecutionPlan, program: &Program) -> Result<()> {
    let is_int = |id: &ValueId| matches!(plan.values[id.index()], Value::Int(_));
    let is_tensor = |id: &ValueId| matches!(plan.values[id.index()], Value::Tensor(_));
    let is_nothing = |id: &ValueId| matches!(plan.values[id.index()], Value::Null);
    let wrong = |id: &ValueId, accepted: &str| {
        Error::malformed(format!("the list refers to {id}, which must be {accepted}"))
    };
    match value {
        Value::Tensor(tensor) => self::tensor(tensor, plan, program),
        Value::IntList(items) => {
            known(items, plan)?;
            items.iter().find(|id| !is_int(id)).map_or(Ok(()), |id| Err(wrong(id, "an integer")))
        }
        Value::TensorList(items) => {
            known(items, plan)?;
            let found = items.iter().find(|id| !is_tensor(id) || id.index() >= index);
            found.map_or(Ok(()), |id| Err(wrong(id, "a preceding tensor")))
        }
        Value::OptionalTensorList(items) => {
            let items: Vec<ValueId> = items.iter().flatten().copied().collect();
            known(&items, plan)?;
            let accepted = |id: &ValueId| (is_tensor(id) || is_nothing(id)) && id.index() < index;
            let found = items.iter().find(|id| !accepted(id));
            found.map_or(Ok(()), |id| Err(wrong(id, "a preceding tensor or null")))
        }
        Value::Null
        | Value::Int(_)
        | Value::Bool(_)
        | Value::Double(_)
        | Value::String(_)
        | Value::DoubleList(_)
        | Value::BoolList(_) => Ok(()),
    }
}

/// Checks type, sizes and dimension order of a tensor, and returns its size in bytes.
pub(crate) fn shape(scalar_type: ScalarType, sizes: &[i32], dim_order: &[u8]) -> Result<u64> {
    let rank = sizes.len();
    if rank > limits::RANK {
        let limit = limits::RANK;
        return Err(Error::limit(format!("the rank must be at most {limit}, got {rank}")));
    }
    let axes: BTreeSet<usize> = dim_order.iter().map(|axis| usize::from(*axis)).collect();
    if dim_order.len() != rank || axes.len() != rank || axes.iter().any(|axis| *axis >= rank) {
        let message =
            format!("the dimension order {dim_order:?} is not a permutation of {rank} dimensions");
        return Err(Error::malformed(message));
    }
    byte_length(scalar_type, sizes)
        .filter(|length| *length < 1 << 63)
        .ok_or_else(|| Error::malformed(format!("the sizes {sizes:?} are invalid")))
}

fn tensor(tensor: &Tensor, plan: &ExecutionPlan, program: &Program) -> Result<()> {
    let length = shape(tensor.scalar_type, &tensor.sizes, &tensor.dim_order)?;
    let held = |index: u32, data: &[crate::ByteRope], what: &str| {
        refer(index, data.len(), what)?;
        let found = data[index as usize].len() as u64;
        if found >= length {
            return Ok(());
        }
        let message = format!("the tensor has {length} bytes; {what} {index} has {found}");
        Err(Error::malformed(message))
    };
    match tensor.placement {
        Placement::GivenAtRunTime | Placement::External(None) => {}
        Placement::Constant(index) => held(index, &program.constants, "constant")?,
        Placement::Initialized { initial, place } => {
            held(initial, &program.mutable_data, "initial value")?;
            self::place(place, tensor, length, plan)?;
        }
        Placement::Planned(place) | Placement::External(Some(place)) => {
            self::place(place, tensor, length, plan)?;
        }
    }
    if matches!(tensor.placement, Placement::External(_)) && tensor.name.is_none() {
        return Err(Error::malformed("the tensor is stored in another file, but has no name"));
    }
    Ok(())
}

fn place(place: Place, tensor: &Tensor, length: u64, plan: &ExecutionPlan) -> Result<()> {
    let Place { arena, offset } = place;
    refer(arena, plan.arenas.len(), "arena")?;
    let size = plan.arenas[arena as usize];
    // Sizes of unbounded tensors are not meaningful.
    let length = if tensor.dynamism == ShapeDynamism::Unbound { 0 } else { length };
    if offset.checked_add(length).is_some_and(|end| end <= size) {
        return Ok(());
    }
    Err(Error::malformed(format!(
        "{length} bytes at offset {offset} exceed an arena of {size} bytes"
    )))
}
