use coremill_pte::ByteRope;
use coremill_pte::program::{
    ExecutionPlan, Instruction, Place as PlannedPlace, Placement, ShapeDynamism,
    Tensor as PlannedTensor, Value as PlannedValue, ValueId,
};
use coremill_tensor::Buffer;

use crate::delegate::{self, Delegate, DelegatedPart};
use crate::error::{Error, Result, ensure, fail};
use crate::hooks::Hooks;
use crate::limits::MAX_RANK;
use crate::memory::AlignedBuffer;
use crate::number::Scalar;
use crate::operators::{self, Kernel, Run};
use crate::program::{Program, ValueSpec, is_dynamic, sizes};
use crate::slot::{EValue, Origin, Place, TensorValue};
use crate::value::Value;
use crate::view::View;

/// A method that is ready to run. It has its own memory and states.
pub struct Method {
    pub(crate) program: Program,
    pub(crate) name: String,
    pub(crate) values: Vec<EValue>,
    pub(crate) inputs: Vec<usize>,
    pub(crate) outputs: Vec<usize>,
    pub(crate) chains: Vec<Vec<Step>>,
    pub(crate) spaces: Vec<AlignedBuffer>,
    pub(crate) delegates: Vec<PreparedDelegate>,
    pub(crate) seed: u64,
}

/// An instruction with resolved references.
pub(crate) enum Step {
    Kernel {
        kernel: &'static Kernel,
        inputs: Vec<usize>,
        outputs: Vec<usize>,
        result: usize,
    },
    View {
        from: usize,
        sizes: usize,
        to: usize,
    },
    Delegate {
        delegate: usize,
        arguments: Vec<usize>,
    },
    Move {
        from: usize,
        to: usize,
    },
    JumpFalse {
        condition: usize,
        target: usize,
    },
    /// No effect: memory is freed with the method.
    Free,
}

impl Step {
    /// Name of the step in errors.
    pub(crate) fn name<'a>(&self, delegates: &'a [PreparedDelegate]) -> &'a str {
        match self {
            Step::Kernel { kernel, .. } => kernel.name,
            Step::View { .. } => "executorch_prim::et_view.default",
            Step::Delegate { delegate, .. } => &delegates[*delegate].id,
            Step::Move { .. } => "move",
            Step::JumpFalse { .. } => "jump if false",
            Step::Free => "free",
        }
    }
}

pub(crate) struct PreparedDelegate {
    pub(crate) id: String,
    pub(crate) delegate: Box<dyn Delegate>,
}

impl Program {
    /// Loads a method: allocates its memory and prepares its delegates.
    pub fn method(&self, name: &str) -> Result<Method> {
        let (index, _) = self.plan(name)?;
        Method::new(self.clone(), index).map_err(|error| error.of_load().of_method(name))
    }
}

impl Method {
    pub(crate) fn new(program: Program, index: usize) -> Result<Method> {
        let shared = std::sync::Arc::clone(&program.shared);
        let plan = &shared.program.plans[index];
        let mut memory = 0u64;
        let mut spaces = Vec::with_capacity(plan.arenas.len());
        for &length in &plan.arenas {
            spaces.push(allocate(length, &mut memory, shared.limits.memory)?);
        }
        let mut values = Vec::with_capacity(plan.values.len());
        for (index, value) in plan.values.iter().enumerate() {
            let slot = match value {
                PlannedValue::Tensor(tensor) => {
                    let of_value = |error: Error| error.about(format_args!("value %{index}"));
                    EValue::Tensor(load(tensor, &program, &mut spaces).map_err(of_value)?)
                }
                value => slot(value),
            };
            values.push(slot);
        }
        let mut delegates = Vec::with_capacity(plan.delegates.len());
        for planned in &plan.delegates {
            let backend = delegate::find(&shared.backends, &planned.id)?;
            let part = DelegatedPart {
                program: &shared.program,
                method: &plan.name,
                delegate: planned,
                threads: shared.threads,
                numerics: shared.numerics,
                limits: shared.limits,
            };
            let id = planned.id.clone();
            delegates.push(PreparedDelegate { id, delegate: backend.prepare(&part)? });
        }
        let index = |id: &ValueId| known(*id, plan);
        let inputs = plan.inputs.iter().map(index).collect::<Result<Vec<usize>>>()?;
        let outputs = plan.outputs.iter().map(index).collect::<Result<Vec<usize>>>()?;
        let chains = resolve(plan)?;
        // Kernel outputs without planned memory get memory of their own.
        for step in chains.iter().flatten() {
            let written = match step {
                Step::Kernel { outputs, .. } => &outputs[..],
                Step::Delegate { delegate, arguments } => {
                    let inputs = delegates[*delegate].delegate.inputs();
                    ensure!(
                        inputs <= arguments.len(),
                        "`{}` requires {inputs} inputs, got {} values",
                        delegates[*delegate].id,
                        arguments.len()
                    );
                    &arguments[inputs..]
                }
                _ => &[],
            };
            for &index in written {
                if let EValue::Tensor(tensor) = &mut values[index]
                    && matches!(tensor.place, Place::Unset)
                    && !inputs.contains(&index)
                {
                    let space = spaces.len();
                    let length = tensor.capacity as u64;
                    spaces.push(allocate(length, &mut memory, shared.limits.memory)?);
                    tensor.place = Place::Space { space, offset: 0 };
                }
            }
        }
        let name = plan.name.clone();
        let seed = seed();
        Ok(Method { program, name, values, inputs, outputs, chains, spaces, delegates, seed })
    }

    /// Name of the method.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Descriptions of the inputs.
    pub fn inputs(&self) -> Result<Vec<ValueSpec>> {
        self.program.inputs(&self.name)
    }

    /// Descriptions of the outputs.
    pub fn outputs(&self) -> Result<Vec<ValueSpec>> {
        self.program.outputs(&self.name)
    }

    /// Names of the inputs and outputs; see [`Program::names`].
    pub fn names(&self) -> Result<(Vec<String>, Vec<String>)> {
        self.program.names(&self.name)
    }

    /// Runs the method. Inputs without planned memory are used in place, without a copy.
    pub fn execute(&mut self, inputs: &[Value]) -> Result<Vec<Value>> {
        self.execute_in_place(inputs)?.values()
    }

    /// Runs the method, and returns the results in the method's own memory, to view or to copy.
    pub fn execute_in_place(&mut self, inputs: &[Value]) -> Result<Results<'_>> {
        self.execute_with(inputs, &mut Hooks::default())
    }

    /// Runs the method in place, and reports to the hooks.
    pub fn execute_with(&mut self, inputs: &[Value], hooks: &mut Hooks<'_>) -> Result<Results<'_>> {
        let result = self.run(inputs, hooks);
        // A truncated file reads as zeros, which invalidates the results.
        let files = self.program.shared.files.check();
        files
            .map_err(|error| Error::new(error.to_string()).with_source(error))
            .and(result)
            .map_err(|error| error.of_method(&self.name))?;
        Ok(Results { method: self })
    }
}

/// A random seed.
fn seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

fn allocate(length: u64, memory: &mut u64, most: u64) -> Result<AlignedBuffer> {
    *memory = memory.saturating_add(length);
    match usize::try_from(length) {
        Ok(length) if *memory <= most => AlignedBuffer::new(length),
        _ => fail!("the method needs {memory} bytes of memory; the limit is {most}"),
    }
}

fn known(id: ValueId, plan: &ExecutionPlan) -> Result<usize> {
    ensure!(id.index() < plan.values.len(), "value {id} is not defined");
    Ok(id.index())
}

fn slot(value: &PlannedValue) -> EValue {
    match value {
        PlannedValue::Null | PlannedValue::Tensor(_) => EValue::Null,
        PlannedValue::Int(value) => EValue::Scalar(Scalar::Int(*value)),
        PlannedValue::Bool(value) => EValue::Scalar(Scalar::Bool(*value)),
        PlannedValue::Double(value) => EValue::Scalar(Scalar::Double(*value)),
        PlannedValue::String(text) => EValue::Text(text.clone()),
        PlannedValue::IntList(ids) => EValue::Ints(ids.iter().map(|id| id.index()).collect()),
        PlannedValue::DoubleList(list) => EValue::Doubles(list.clone()),
        PlannedValue::BoolList(list) => EValue::Bools(list.clone()),
        PlannedValue::TensorList(ids) => {
            EValue::Tensors(ids.iter().map(|id| Some(id.index())).collect())
        }
        PlannedValue::OptionalTensorList(ids) => {
            EValue::Tensors(ids.iter().map(|id| id.map(ValueId::index)).collect())
        }
    }
}

/// Assigns memory to a tensor.
fn load(
    tensor: &PlannedTensor,
    program: &Program,
    spaces: &mut [AlignedBuffer],
) -> Result<TensorValue> {
    let shared = &program.shared;
    let sizes = sizes(tensor)?;
    let length = tensor.byte_length().and_then(|length| usize::try_from(length).ok());
    let Some(length) = length else { fail!("the sizes {sizes:?} are invalid") };
    let mut axes = tensor.dim_order.clone();
    axes.sort_unstable();
    let ordered = axes.iter().copied().eq((0..sizes.len()).map(|axis| axis as u8));
    ensure!(
        sizes.len() <= MAX_RANK && ordered,
        "the dimension order {:?} is not a permutation of {} dimensions",
        tensor.dim_order,
        sizes.len()
    );
    ensure!(tensor.dynamism != ShapeDynamism::Unbound, "the tensor's sizes have no upper bound");
    let in_space = |place: PlannedPlace, spaces: &[AlignedBuffer]| -> Result<Place> {
        let (space, offset) = (place.arena as usize, usize::try_from(place.offset).ok());
        let fits = |offset: &usize| {
            let end = offset.checked_add(length);
            end.zip(spaces.get(space)).is_some_and(|(end, space)| end <= space.len())
        };
        match offset.filter(fits) {
            Some(offset) => Ok(Place::Space { space, offset }),
            None => fail!("{length} bytes at offset {} exceed arena {space}", place.offset),
        }
    };
    let of_program = |data: Option<&ByteRope>, what: &str, index: u32| -> Result<Buffer> {
        let Some(data) = data else { fail!("{what} {index} is not defined") };
        match data.to_buffer().slice(0..length) {
            Some(buffer) => Ok(buffer),
            None => fail!("the tensor has {length} bytes; {what} {index} has {}", data.len()),
        }
    };
    let external = || -> Result<Buffer> {
        let name = tensor.name.as_deref().unwrap_or_default();
        let Some(data) = shared.external.get(name) else {
            fail!(
                "the elements of `{name}` are stored in a `.ptd` file, which must be passed as well"
            )
        };
        match data.to_buffer().slice(0..length) {
            Some(buffer) => Ok(buffer),
            None => fail!("`{name}` has {length} bytes; the `.ptd` file has {} for it", data.len()),
        }
    };
    let place = match tensor.placement {
        Placement::GivenAtRunTime => Place::Unset,
        Placement::Constant(index) => {
            let data = shared.program.constants.get(index as usize);
            let buffer = of_program(data, "constant", index)?;
            Place::Shared { buffer, origin: Some(Origin::Constant(index)) }
        }
        Placement::Planned(place) => in_space(place, spaces)?,
        Placement::Initialized { initial, place } => {
            let data = shared.program.mutable_data.get(initial as usize);
            let initial = of_program(data, "initial value", initial)?;
            put(in_space(place, spaces)?, &initial, spaces)?
        }
        Placement::External(None) => {
            let origin = tensor.name.clone().map(Origin::External);
            Place::Shared { buffer: external()?, origin }
        }
        Placement::External(Some(place)) => put(in_space(place, spaces)?, &external()?, spaces)?,
    };
    let (dtype, order) = (tensor.scalar_type, tensor.dim_order.clone());
    Ok(TensorValue { dtype, sizes, order, dynamic: is_dynamic(tensor), capacity: length, place })
}

/// Writes the initial value of a tensor.
fn put(place: Place, initial: &Buffer, spaces: &mut [AlignedBuffer]) -> Result<Place> {
    if let Place::Space { space, offset } = place {
        let target = &mut spaces[space].bytes_mut()[offset..][..initial.len()];
        let read = initial.read_at(0, target);
        read.map_err(|error| {
            Error::new(format!("cannot read the initial value: {error}")).with_source(error)
        })?;
    }
    Ok(place)
}

/// Resolves the references of a plan's instructions.
fn resolve(plan: &ExecutionPlan) -> Result<Vec<Vec<Step>>> {
    let mut missing: Vec<String> = Vec::new();
    let found: Vec<Option<&'static Kernel>> = plan
        .operators
        .iter()
        .map(|operator| {
            let name = operator.to_string();
            let kernel = operators::find(&name);
            if kernel.is_none() {
                missing.push(format!("`{name}`"));
            }
            kernel
        })
        .collect();
    ensure!(missing.is_empty(), "no kernel implements {}", missing.join(", "));
    let mut chains = Vec::with_capacity(plan.chains.len());
    for chain in &plan.chains {
        let mut steps = Vec::with_capacity(chain.instructions.len());
        for (index, instruction) in chain.instructions.iter().enumerate() {
            let step = match instruction {
                Instruction::KernelCall { operator, arguments } => {
                    let kernel = found.get(*operator as usize).copied().flatten();
                    let Some(kernel) = kernel else { fail!("operator {operator} is not defined") };
                    let step = kernel_step(kernel, arguments, plan);
                    step.map_err(|error| error.of_instruction(index, kernel.name))?
                }
                Instruction::DelegateCall { delegate, arguments } => {
                    ensure!(
                        (*delegate as usize) < plan.delegates.len(),
                        "delegate {delegate} is not defined"
                    );
                    let arguments = arguments.iter().map(|id| known(*id, plan));
                    let arguments = arguments.collect::<Result<Vec<usize>>>()?;
                    Step::Delegate { delegate: *delegate as usize, arguments }
                }
                Instruction::Move { from, to } => {
                    Step::Move { from: known(*from, plan)?, to: known(*to, plan)? }
                }
                Instruction::JumpFalse { condition, target } => {
                    let target = *target as usize;
                    ensure!(
                        target <= chain.instructions.len(),
                        "instruction {index} jumps to instruction {target}; the chain has {}",
                        chain.instructions.len()
                    );
                    Step::JumpFalse { condition: known(*condition, plan)?, target }
                }
                Instruction::Free(id) => {
                    known(*id, plan)?;
                    Step::Free
                }
            };
            steps.push(step);
        }
        chains.push(steps);
    }
    Ok(chains)
}

/// A kernel call: inputs by position in the schema, outputs, and the value that receives a returned number.
fn kernel_step(
    kernel: &'static Kernel,
    arguments: &[ValueId],
    plan: &ExecutionPlan,
) -> Result<Step> {
    ensure!(
        arguments.len() == kernel.arity(),
        "got {} values; the kernel expects {}",
        arguments.len(),
        kernel.arity()
    );
    let all = arguments.iter().map(|id| known(*id, plan)).collect::<Result<Vec<usize>>>()?;
    let inputs = all[..kernel.inputs().len()].to_vec();
    if matches!(kernel.run, Run::Number(_)) {
        let result = all[inputs.len()];
        return Ok(Step::Kernel { kernel, inputs, outputs: Vec::new(), result });
    }
    if kernel.outputs() == "V" {
        return Ok(Step::View { from: all[0], sizes: all[1], to: all[2] });
    }
    let mut outputs = Vec::new();
    let tensor = |index: usize| match &plan.values[index] {
        PlannedValue::Tensor(_) => Ok(index),
        _ => Err(Error::new(format!("value %{index} is written, but is not a tensor"))),
    };
    for (letter, index) in kernel.inputs().chars().zip(&all) {
        if letter == 'M' {
            outputs.push(tensor(*index)?);
        }
    }
    for (letter, &index) in kernel.outputs().chars().zip(&all[inputs.len()..]) {
        match (letter, &plan.values[index]) {
            ('L', PlannedValue::TensorList(ids)) => {
                for id in ids {
                    outputs.push(tensor(known(*id, plan)?)?);
                }
            }
            ('L', _) => fail!("value %{index} is written, but is not a list of tensors"),
            // One of several outputs may be absent if it is unused.
            _ => outputs.push(tensor(index)?),
        }
    }
    let result = all.last().copied().unwrap_or_default();
    Ok(Step::Kernel { kernel, inputs, outputs, result })
}

/// Results of a run, in the method's memory. Nothing is copied until requested.
pub struct Results<'m> {
    pub(crate) method: &'m Method,
}

impl<'m> Results<'m> {
    /// Number of results.
    pub fn len(&self) -> usize {
        self.method.outputs.len()
    }

    /// Whether the method has no results.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies a result.
    pub fn value(&self, index: usize) -> Result<Value> {
        self.method.value(self.slot(index)?, true)
    }

    /// Copies all results.
    pub fn values(&self) -> Result<Vec<Value>> {
        (0..self.len()).map(|index| self.value(index)).collect()
    }

    /// A tensor result in the method's memory.
    pub fn view(&self, index: usize) -> Result<View<'m>> {
        self.method.view(self.slot(index)?)
    }

    /// Copies a tensor's elements to `memory` in dimension order, and returns its sizes. `memory` may be larger.
    pub fn copy_to(&self, index: usize, memory: &mut [u8]) -> Result<&'m [usize]> {
        let view = self.view(index)?;
        let length = view.bytes().len();
        let Some(memory) = memory.get_mut(..length) else {
            fail!("result {index} has {length} bytes; the memory has only {}", memory.len())
        };
        memory.copy_from_slice(&view.contiguous_bytes());
        Ok(view.sizes)
    }

    fn slot(&self, index: usize) -> Result<usize> {
        ensure!(
            index < self.len(),
            "result {index} is out of range; the method returned {}",
            self.len()
        );
        Ok(self.method.outputs[index])
    }
}
