//! Instances of methods, with states.
#![expect(unsafe_code, reason = "functions with a C interface")]

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::ffi::{CString, c_char};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

#[cfg(feature = "host")]
use coremill_engine::{Elements, Value as Computed};
use coremill_io::unknown_name;
use coremill_pte::program::Value as PlannedValue;
use coremill_runtime::{
    Delegate, Error, Hooks, Interface, Method as Loaded, OutTensor, ResizeFn, ScalarType, Tensor,
    Value, ValueSpec, View,
};
use coremill_tensor::Buffer;
#[cfg(feature = "host")]
use coremill_tensor::DType;

use crate::error::{CoremillStatus, Failure, Result, c_text, guard};
use crate::handle::Table;
use crate::hooks::{CoremillHooks, CoremillOperation, Symbols};
use crate::model::{Artifact, CoremillModel, MODELS, Model, put};
use crate::options::{array, text};
use crate::tensor::{
    COREMILL_MAX_RANK, CheckedTensor, CoremillPort, CoremillPortKind, CoremillTensor, overlap,
};

/// An instance of a method, with its own states. Threads may share an instance; its runs are serialized.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CoremillMethod {
    /// A number assigned by the library.
    pub id: u64,
}

static METHODS: Table<Method> = Table::new("method");

struct Method {
    model: Arc<Model>,
    name: String,
    instance: Mutex<Instance>,
    /// The thread that uses the instance, by [`this_thread`]; 0 if unused.
    user: AtomicUsize,
    ports: [Vec<NamedTensor>; 3],
    symbols: Arc<Symbols>,
}

enum Instance {
    Model(Box<dyn Delegate>),
    Program(Box<Loaded>),
}

struct NamedTensor {
    name: CString,
    port: CoremillPort,
}

/// Exclusive use of the instance by this thread.
struct InUse<'m> {
    instance: MutexGuard<'m, Instance>,
    user: &'m AtomicUsize,
}

impl Drop for InUse<'_> {
    fn drop(&mut self) {
        self.user.store(0, Ordering::Relaxed);
    }
}

/// A number that is unique among running threads.
fn this_thread() -> usize {
    thread_local!(static MARK: Cell<u8> = const { Cell::new(0) });
    MARK.with(|mark| std::ptr::from_ref(mark).addr())
}

impl Method {
    fn load(model: Arc<Model>, name: Option<&str>) -> Result<Method> {
        let name = model.method(name)?.to_owned();
        let instance = Instance::new(&model, &name)?;
        let ports = instance.ports()?;
        let symbols = model.symbols(&name);
        let (instance, user) = (Mutex::new(instance), AtomicUsize::new(0));
        Ok(Method { model, name, instance, user, ports, symbols })
    }

    fn lock(&self) -> Result<InUse<'_>> {
        let thread = this_thread();
        if self.user.load(Ordering::Relaxed) == thread {
            let message = "a callback uses the method that calls it; use another instance";
            return Err(Failure::argument(message));
        }
        let instance = self.instance.lock().unwrap_or_else(PoisonError::into_inner);
        self.user.store(thread, Ordering::Relaxed);
        Ok(InUse { instance, user: &self.user })
    }
}

impl Instance {
    fn new(model: &Model, name: &str) -> Result<Instance> {
        Ok(match &model.what {
            Artifact::Model(shared) => Instance::Model(model.prepare(shared, name)?),
            Artifact::Program(program) => {
                Instance::Program(Box::new(program.method(name).map_err(Failure::model)?))
            }
        })
    }

    /// Inputs, outputs and states.
    fn ports(&self) -> Result<[Vec<NamedTensor>; 3]> {
        match self {
            Instance::Model(delegate) => {
                let Interface { inputs, outputs, states } = delegate.interface();
                Ok([inputs, outputs, states].map(|features| {
                    let port = |feature: coremill_runtime::Feature| {
                        NamedTensor::new(&feature.name, feature.scalar_type, &feature.extents)
                    };
                    features.into_iter().map(port).collect()
                }))
            }
            Instance::Program(method) => {
                let tensors = |ports: Vec<ValueSpec>, names: &[String]| {
                    let port = |(port, name): (ValueSpec, &String)| match port {
                        ValueSpec::Tensor { scalar_type, sizes, dynamic, .. } => {
                            let least = |size: &usize| if dynamic { 0 } else { *size };
                            let extents: Vec<_> =
                                sizes.iter().map(|size| (least(size), Some(*size))).collect();
                            Some(NamedTensor::new(name, scalar_type, &extents))
                        }
                        ValueSpec::Fixed(_) => None,
                    };
                    ports.into_iter().zip(names).filter_map(port).collect()
                };
                let (input_names, output_names) = method.names().map_err(Failure::model)?;
                let states = method.states().map_err(Failure::model)?.into_iter();
                let state = |(name, tensor): (String, Tensor)| {
                    let extents: Vec<_> =
                        tensor.sizes().iter().map(|size| (*size, Some(*size))).collect();
                    NamedTensor::new(&name, tensor.scalar_type(), &extents)
                };
                Ok([
                    tensors(method.inputs().map_err(Failure::model)?, &input_names),
                    tensors(method.outputs().map_err(Failure::model)?, &output_names),
                    states.map(state).collect(),
                ])
            }
        }
    }

    fn states(&self) -> Result<Vec<(String, Tensor)>> {
        match self {
            Instance::Model(delegate) => delegate.states(),
            Instance::Program(method) => method.states(),
        }
        .map_err(Failure::execution)
    }

    fn set_state(&mut self, name: &str, value: &Tensor) -> Result {
        match self {
            Instance::Model(delegate) => delegate.set_state(name, value),
            Instance::Program(method) => method.set_state(name, value),
        }
        .map_err(Failure::argument)
    }
}

impl NamedTensor {
    fn new(name: &str, scalar_type: ScalarType, extents: &[(usize, Option<usize>)]) -> NamedTensor {
        let name = c_text(name);
        let extents = &extents[..extents.len().min(COREMILL_MAX_RANK)];
        let (mut least, mut largest) = ([0; COREMILL_MAX_RANK], [0; COREMILL_MAX_RANK]);
        for (axis, (from, to)) in extents.iter().enumerate() {
            least[axis] = *from as u64;
            largest[axis] = to.map_or(u64::MAX, |to| to as u64);
        }
        let port = CoremillPort {
            name: name.as_ptr(),
            scalar_type: scalar_type as i32,
            rank: extents.len() as u32,
            least,
            largest,
        };
        NamedTensor { name, port }
    }
}

// SAFETY: the pointer in a port refers to the text in the same struct, which is never modified.
unsafe impl Send for NamedTensor {}
// SAFETY: as above.
unsafe impl Sync for NamedTensor {}

/// The caller's memory, lent to a program that uses inputs in place. It is returned after the run.
struct BorrowedMemory {
    data: *const u8,
    length: AtomicUsize,
}

// SAFETY: the lender lends the memory for a run and takes it back afterwards. Nothing writes to it in the meantime.
unsafe impl Send for BorrowedMemory {}
// SAFETY: as above.
unsafe impl Sync for BorrowedMemory {}

struct LentRef(Arc<BorrowedMemory>);

impl AsRef<[u8]> for LentRef {
    fn as_ref(&self) -> &[u8] {
        match self.0.length.load(Ordering::Acquire) {
            0 => &[],
            // SAFETY: the memory is valid until the length is set to 0, after the run.
            length => unsafe { std::slice::from_raw_parts(self.0.data, length) },
        }
    }
}

/// Returns lent memory at the end of a run, also on errors.
struct TakeBack(Vec<Arc<BorrowedMemory>>);

impl Drop for TakeBack {
    fn drop(&mut self) {
        for lent in &self.0 {
            lent.length.store(0, Ordering::Release);
        }
    }
}

/// Memory of a run. Memory that is written must not be shared with other tensors.
pub(crate) struct Memory {
    /// Address ranges of the outputs, then of the inputs.
    places: RefCell<Vec<Range<usize>>>,
}

impl Memory {
    /// Copies inputs that share memory with outputs.
    ///
    /// # Safety
    /// The memory of the inputs is valid for `'g`, and only this run writes to it, through outputs.
    pub(crate) unsafe fn of<'g>(
        inputs: &'g [CheckedTensor],
        outputs: &[CheckedTensor],
    ) -> Result<(Memory, Vec<Cow<'g, [u8]>>)> {
        let mut places: Vec<_> = outputs.iter().map(CheckedTensor::place).collect();
        for (index, place) in places.iter().enumerate() {
            if let Some(other) = places[..index].iter().position(|other| overlap(place, other)) {
                let message = format!("outputs {other} and {index} share memory");
                return Err(Failure::argument(message));
            }
        }
        let mut bytes = Vec::with_capacity(inputs.len());
        for input in inputs {
            // SAFETY: guaranteed by the caller; inputs that share memory with an output are copied before anything
            // is written.
            let found = unsafe { input.bytes()? };
            let shared = places[..outputs.len()].iter().any(|place| overlap(&input.place(), place));
            places.push(if shared { 0..0 } else { input.place() });
            bytes.push(if shared { Cow::Owned(found.to_vec()) } else { Cow::Borrowed(found) });
        }
        Ok((Memory { places: RefCell::new(places) }, bytes))
    }

    /// Requests memory from the caller for an output of other sizes.
    fn grow(
        &self,
        hooks: &CoremillHooks,
        index: usize,
        mut tensor: CoremillTensor,
        sizes: &[usize],
    ) -> Result<CheckedTensor> {
        let resize =
            hooks.resize.ok_or_else(|| Failure::argument("the `resize` callback is not set"))?;
        tensor.set_sizes(sizes);
        if resize(hooks.context, index, &mut tensor) != CoremillStatus::Ok as i32 {
            let message = format!("the caller provides no memory for sizes {sizes:?}");
            return Err(Failure::argument(message));
        }
        let checked = CheckedTensor::of(&tensor)?;
        if checked.sizes != sizes || checked.needed > checked.length {
            let length = checked.length;
            let message = format!("the caller's {length} bytes are too few for sizes {sizes:?}");
            return Err(Failure::argument(message));
        }
        let (mut places, place) = (self.places.borrow_mut(), checked.place());
        let mut others = places.iter().enumerate().filter(|(other, _)| *other != index);
        if others.any(|(_, other)| overlap(&place, other)) {
            return Err(Failure::argument("the memory for the output overlaps another tensor"));
        }
        places[index] = place;
        Ok(checked)
    }
}

pub(crate) fn of_port(failure: Failure, what: &str, index: usize) -> Failure {
    Failure { message: format!("{what} {index}: {}", failure.message), ..failure }
}

pub(crate) fn check_all(tensors: &[CoremillTensor], what: &str) -> Result<Vec<CheckedTensor>> {
    let check = |(index, tensor): (usize, &CoremillTensor)| {
        CheckedTensor::of(tensor).map_err(|failure| of_port(failure, what, index))
    };
    tensors.iter().enumerate().map(check).collect()
}

fn views<'v>(inputs: &'v [CheckedTensor], bytes: &'v [Cow<'_, [u8]>]) -> Result<Vec<View<'v>>> {
    let view = |(index, (input, bytes)): (usize, (&'v CheckedTensor, &'v Cow<'_, [u8]>))| {
        input.view(bytes).map_err(|failure| of_port(failure, "input", index))
    };
    inputs.iter().zip(bytes).enumerate().map(view).collect()
}

impl Method {
    /// # Safety
    /// See `coremill_method_execute`.
    unsafe fn execute(
        &self,
        inputs: &[CoremillTensor],
        outputs: &mut [CoremillTensor],
        hooks: Option<&CoremillHooks>,
    ) -> Result {
        for (given, kind, what) in [
            (inputs.len(), CoremillPortKind::Input, "inputs"),
            (outputs.len(), CoremillPortKind::Output, "outputs"),
        ] {
            let has = self.ports[kind as usize].len();
            if given != has {
                let name = &self.name;
                let message = format!("method `{name}` has {has} {what}, got {given}");
                return Err(Failure::argument(message));
            }
        }
        let (inputs, checked) = (check_all(inputs, "input")?, check_all(outputs, "output")?);
        // SAFETY: guaranteed by the caller.
        let (memory, bytes) = unsafe { Memory::of(&inputs, &checked)? };
        let views = views(&inputs, &bytes)?;
        let none = CoremillHooks {
            context: std::ptr::null_mut(),
            operation: None,
            value: None,
            resize: None,
        };
        let hooks = hooks.unwrap_or(&none);
        let mut instance = self.lock()?;
        let start = Instant::now();
        let mut spans = Vec::new();
        #[cfg(feature = "host")]
        let mut observe = |kind: &str, name: &str, value: &Computed| {
            if let (Some(show), Computed::Array(array)) = (hooks.value, value) {
                show_value(&self.symbols, kind, name, array, |operation, tensor| {
                    show(hooks.context, operation, tensor);
                });
            }
        };
        let profile = hooks.operation.is_some().then_some(&mut spans);
        // The runtime has further hooks with its feature `host`, which may be enabled independently of ours.
        let mut inner = Hooks { profile, ..Hooks::default() };
        #[cfg(feature = "host")]
        if hooks.value.is_some() {
            inner.observe = Some(&mut observe);
        }
        let written = match &mut *instance.instance {
            Instance::Model(delegate) => {
                let mut outs = Vec::with_capacity(checked.len());
                for (index, (output, tensor)) in checked.iter().zip(outputs.iter()).enumerate() {
                    let (memory, tensor) = (&memory, *tensor);
                    let grow: Option<ResizeFn<'_>> = hooks.resize.is_some().then(|| {
                        Box::new(move |sizes: &[usize]| {
                            let grown = memory.grow(hooks, index, tensor, sizes);
                            let grown = grown.map_err(|failure| Error::new(failure.message))?;
                            // SAFETY: the callback provided the memory for this output; nothing else in the run
                            // uses it.
                            Ok(unsafe { grown.memory() })
                        }) as ResizeFn<'_>
                    });
                    // SAFETY: guaranteed by the caller; no input and no other output shares the memory.
                    let room = unsafe { output.memory() };
                    let (sizes, order) = (output.sizes.clone(), &output.order);
                    let out = OutTensor::new(output.scalar_type, sizes, order, room, true, grow);
                    outs.push(
                        out.map_err(|error| of_port(Failure::argument(error), "output", index))?,
                    );
                }
                let run = delegate.execute_with(&views, &mut outs, &mut inner);
                run.map_err(Failure::execution)?;
                outs.iter().map(|out| out.sizes().to_vec()).collect()
            }
            Instance::Program(method) => {
                run_program(method, &views, &checked, outputs, hooks, &memory, &mut inner)?
            }
        };
        for (tensor, sizes) in outputs.iter_mut().zip::<Vec<Vec<usize>>>(written) {
            tensor.set_sizes(&sizes);
        }
        drop(instance);
        if let Some(report) = hooks.operation {
            for span in spans {
                self.symbols.describe(&span.label, &span.value, |operation| {
                    let operation = CoremillOperation {
                        start: span.start.saturating_duration_since(start).as_nanos() as u64,
                        duration: span.elapsed.as_nanos() as u64,
                        floating_point_operations: span.operations,
                        bytes: span.bytes,
                        nested: span.nested,
                        ..operation
                    };
                    report(hooks.context, &operation);
                });
            }
        }
        Ok(())
    }
}

/// Runs a method of a program, and returns the sizes of its results, which must be tensors.
fn run_program(
    method: &mut Loaded,
    views: &[View<'_>],
    checked: &[CheckedTensor],
    outputs: &[CoremillTensor],
    hooks: &CoremillHooks,
    memory: &Memory,
    inner: &mut Hooks<'_>,
) -> Result<Vec<Vec<usize>>> {
    let mut lent = TakeBack(Vec::new());
    let mut given = views.iter();
    let mut values = Vec::new();
    for port in method.inputs().map_err(Failure::execution)? {
        values.push(match port {
            ValueSpec::Tensor { .. } => {
                let view = given.next().ok_or_else(|| Failure::argument("an input is missing"))?;
                let bytes = view.bytes();
                let length = AtomicUsize::new(bytes.len());
                let one = Arc::new(BorrowedMemory { data: bytes.as_ptr(), length });
                lent.0.push(Arc::clone(&one));
                let (sizes, order) = (view.sizes().to_vec(), view.dim_order().to_vec());
                let data = Buffer::lent(Arc::new(LentRef(one)));
                let tensor = Tensor::with_order(view.scalar_type(), sizes, order, data);
                Value::Tensor(tensor.map_err(Failure::execution)?)
            }
            // Non-tensor inputs are compiled into the program.
            ValueSpec::Fixed(PlannedValue::Null) => Value::None,
            ValueSpec::Fixed(PlannedValue::Int(value)) => Value::Int(value),
            ValueSpec::Fixed(PlannedValue::Bool(value)) => Value::Bool(value),
            ValueSpec::Fixed(PlannedValue::Double(value)) => Value::Double(value),
            ValueSpec::Fixed(PlannedValue::String(value)) => Value::String(value),
            ValueSpec::Fixed(other) => {
                return Err(Failure::execution(format!(
                    "the program has an unsupported input {other:?}"
                )));
            }
        });
    }
    let ports = method.outputs().map_err(Failure::execution)?;
    let results = method.execute_with(&values, inner).map_err(Failure::execution)?;
    let mut written = Vec::new();
    let tensors = ports.iter().enumerate();
    let tensors = tensors.filter(|(_, port)| matches!(port, ValueSpec::Tensor { .. }));
    for ((index, (result, _)), output) in tensors.enumerate().zip(checked) {
        let view = results.view(result).map_err(Failure::execution)?;
        let fail = |message: String| of_port(Failure::argument(message), "output", index);
        if view.scalar_type() != output.scalar_type {
            let (found, given) = (view.scalar_type(), output.scalar_type);
            return Err(fail(format!(
                "the result has type `{found:?}`, but the tensor has type `{given:?}`"
            )));
        }
        let mut place = output.clone();
        let fits = place.length >= view.bytes().len();
        if hooks.resize.is_some() && (place.sizes != view.sizes() || !fits) {
            place = memory.grow(hooks, index, outputs[index], view.sizes())?;
        } else if !fits {
            let (needed, found) = (view.bytes().len(), place.length);
            return Err(fail(format!(
                "the result requires {needed} bytes, but the tensor has {found}"
            )));
        }
        place.sizes = view.sizes().to_vec();
        // SAFETY: guaranteed by the caller; nothing else in the run uses the memory.
        let room = unsafe { place.memory() };
        // The caller determines the dimension order.
        let out =
            OutTensor::new(place.scalar_type, place.sizes.clone(), &place.order, room, false, None);
        let mut out = out.map_err(|error| fail(error.message().to_owned()))?;
        out.copy_from(&view).map_err(|error| fail(error.message().to_owned()))?;
        written.push(place.sizes);
    }
    Ok(written)
}

/// Reports a value of a model: floats in 32 bits, booleans in bytes, integers in 32 bits.
#[cfg(feature = "host")]
fn show_value(
    symbols: &Symbols,
    kind: &str,
    name: &str,
    array: &coremill_engine::Array,
    show: impl FnOnce(*const CoremillOperation, *const CoremillTensor),
) {
    let (scalar_type, bytes) = match array.elements() {
        Elements::Floats(floats) => (ScalarType::Float, bytes_of(floats, f32::to_ne_bytes)),
        Elements::Ints(ints) if array.dtype() == DType::Bool => {
            (ScalarType::Bool, ints.iter().map(|int| *int as u8).collect())
        }
        Elements::Ints(ints) => (ScalarType::Int, bytes_of(ints, i32::to_ne_bytes)),
        Elements::Texts(_) => return,
    };
    let tensor = CoremillTensor::shown(scalar_type, array.shape(), &bytes);
    symbols.describe(kind, name, |operation| show(&operation, &tensor));
}

#[cfg(feature = "host")]
fn bytes_of<T: Copy>(elements: &[T], bytes: impl Fn(T) -> [u8; 4]) -> Vec<u8> {
    elements.iter().flat_map(|element| bytes(*element)).collect()
}

/// Loads a method. A null `name` selects the only method, `forward`, or a package's default function. Free the
/// method with `coremill_method_free`.
///
/// # Safety
/// `name` is null or NUL-terminated; `method` points to memory for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coremill_method_load(
    model: CoremillModel,
    name: *const c_char,
    method: *mut CoremillMethod,
) -> CoremillStatus {
    guard(|| {
        let model = MODELS.get(model.id)?;
        let name = match name.is_null() {
            true => None,
            // SAFETY: guaranteed by the caller.
            false => Some(unsafe { text(name, "name")? }),
        };
        let loaded = Method::load(model, name)?;
        // SAFETY: guaranteed by the caller.
        unsafe { put(method, || CoremillMethod { id: METHODS.insert(loaded) }, "method") }
    })
}

/// Frees a method. A run of another thread completes first.
#[unsafe(no_mangle)]
pub extern "C" fn coremill_method_free(method: CoremillMethod) -> CoremillStatus {
    guard(|| METHODS.remove(method.id))
}

/// Number of inputs, outputs or states of a method; `kind` is a `CoremillPortKind`.
///
/// # Safety
/// `count` points to memory for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coremill_method_port_count(
    method: CoremillMethod,
    kind: i32,
    count: *mut usize,
) -> CoremillStatus {
    guard(|| {
        let method = METHODS.get(method.id)?;
        let ports = method.ports_of(kind)?;
        // SAFETY: guaranteed by the caller.
        unsafe { put(count, || ports.len(), "count") }
    })
}

/// Describes an input, output or state of a method; `kind` is a `CoremillPortKind`.
///
/// # Safety
/// `port` points to memory for a port.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coremill_method_port(
    method: CoremillMethod,
    kind: i32,
    index: usize,
    port: *mut CoremillPort,
) -> CoremillStatus {
    guard(|| {
        let method = METHODS.get(method.id)?;
        let ports = method.ports_of(kind)?;
        let found = ports.get(index).ok_or_else(|| {
            Failure::missing(format!(
                "port {index} is out of range; the method has {} ports of this kind",
                ports.len()
            ))
        })?;
        // SAFETY: guaranteed by the caller.
        unsafe { put(port, || found.port, "port") }
    })
}

impl Method {
    fn ports_of(&self, kind: i32) -> Result<&[NamedTensor]> {
        let ports = usize::try_from(kind).ok().and_then(|kind| self.ports.get(kind));
        let ports = ports.map(Vec::as_slice);
        ports.ok_or_else(|| Failure::argument(format!("{kind} is not a port kind")))
    }
}

/// Runs a method: reads the inputs in place, writes the outputs to their memory, and sets their sizes.
///
/// Tensors are in the order of the ports. Elements are converted if their type differs from the model's. An integer
/// that does not fit is an error; floats are rounded. An output may share memory with inputs, which are then copied,
/// but not with another output. `hooks` may be null.
///
/// # Safety
/// The arrays have the given lengths; the tensors' memory is valid and not modified by others during the run.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coremill_method_execute(
    method: CoremillMethod,
    inputs: *const CoremillTensor,
    input_count: usize,
    outputs: *mut CoremillTensor,
    output_count: usize,
    hooks: *const CoremillHooks,
) -> CoremillStatus {
    guard(|| {
        let method = METHODS.get(method.id)?;
        // SAFETY: guaranteed by the caller.
        unsafe {
            let inputs = array(inputs, input_count, "inputs")?;
            array(outputs.cast_const(), output_count, "outputs")?;
            let outputs = match output_count {
                0 => &mut [],
                count => std::slice::from_raw_parts_mut(outputs, count),
            };
            method.execute(inputs, outputs, hooks.as_ref())
        }
    })
}

/// Copies a state to a tensor of its type, and sets the sizes.
///
/// # Safety
/// `name` is NUL-terminated; `tensor` points to a valid tensor with writable memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coremill_method_state_read(
    method: CoremillMethod,
    name: *const c_char,
    tensor: *mut CoremillTensor,
) -> CoremillStatus {
    guard(|| {
        let method = METHODS.get(method.id)?;
        // SAFETY: guaranteed by the caller.
        let (name, tensor) = unsafe { (text(name, "name")?, tensor.as_mut()) };
        let tensor = tensor.ok_or_else(|| Failure::argument("`tensor` is null"))?;
        let mut place = CheckedTensor::of(tensor)?;
        let states = method.lock()?.instance.states()?;
        let state = states.iter().find(|(known, _)| known == name);
        let (_, state) = state.ok_or_else(|| no_state(name, &states))?;
        if state.scalar_type() != place.scalar_type || state.data().len() > place.length {
            return Err(Failure::argument(format!(
                "state `{name}` has type `{:?}` and {} bytes, but the tensor has type `{:?}` and {} bytes",
                state.scalar_type(),
                state.data().len(),
                place.scalar_type,
                place.length
            )));
        }
        if place.order.len() != state.sizes().len() {
            place.order = (0..state.sizes().len()).map(|axis| axis as u8).collect();
        }
        // SAFETY: guaranteed by the caller.
        let room = unsafe { place.memory() };
        let sizes = state.sizes().to_vec();
        let out = OutTensor::new(place.scalar_type, sizes, &place.order, room, false, None);
        let written = out.and_then(|mut out| out.copy_from(&state.view()));
        written.map_err(Failure::argument)?;
        tensor.set_sizes(state.sizes());
        Ok(())
    })
}

/// Sets a state to a copy of a tensor of its type and sizes.
///
/// # Safety
/// `name` is NUL-terminated; `tensor` points to a valid tensor with readable data.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coremill_method_state_write(
    method: CoremillMethod,
    name: *const c_char,
    tensor: *const CoremillTensor,
) -> CoremillStatus {
    guard(|| {
        let method = METHODS.get(method.id)?;
        // SAFETY: guaranteed by the caller.
        let (name, tensor) = unsafe { (text(name, "name")?, tensor.as_ref()) };
        let tensor = tensor.ok_or_else(|| Failure::argument("`tensor` is null"))?;
        let checked = CheckedTensor::of(tensor)?;
        // SAFETY: guaranteed by the caller.
        let bytes = unsafe { checked.bytes()? };
        let view = checked.view(bytes)?;
        let data = Buffer::from(view.bytes().to_vec());
        let (sizes, order) = (checked.sizes.clone(), checked.order.clone());
        let value = Tensor::with_order(checked.scalar_type, sizes, order, data);
        let value = value.map_err(Failure::argument)?;
        let mut instance = method.lock()?;
        let states = &method.ports[CoremillPortKind::State as usize];
        if !states.iter().any(|state| state.name.to_bytes() == name.as_bytes()) {
            return Err(no_state(name, &instance.instance.states()?));
        }
        instance.instance.set_state(name, &value)
    })
}

fn no_state(name: &str, states: &[(String, Tensor)]) -> Failure {
    Failure::missing(unknown_name("state", name, states.iter().map(|(name, _)| name)))
}

/// Resets all states to their initial values.
#[unsafe(no_mangle)]
pub extern "C" fn coremill_method_states_reset(method: CoremillMethod) -> CoremillStatus {
    guard(|| {
        let method = METHODS.get(method.id)?;
        let mut instance = method.lock()?;
        match &mut *instance.instance {
            Instance::Model(delegate) => delegate.reset().map_err(Failure::execution),
            Instance::Program(_) => {
                *instance.instance = Instance::new(&method.model, &method.name)?;
                Ok(())
            }
        }
    })
}

/// Copies all states from one instance to another instance of the same method.
#[unsafe(no_mangle)]
pub extern "C" fn coremill_method_states_copy(
    from: CoremillMethod,
    to: CoremillMethod,
) -> CoremillStatus {
    guard(|| {
        let (from, to) = (METHODS.get(from.id)?, METHODS.get(to.id)?);
        // The first lock is released before the second is acquired, as two threads may copy in opposite directions.
        let states = from.lock()?.instance.states()?;
        let mut instance = to.lock()?;
        states.iter().try_for_each(|(name, value)| instance.instance.set_state(name, value))
    })
}
