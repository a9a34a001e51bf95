//! Compiles graphs and parameters to a model.

use coremill_engine::{Array, evaluate};
use coremill_mil::ir::{Constant, ConstantData, Function, Op, OpId, Opset, Program};
use coremill_mil::model::{self, Model};
use coremill_mil::ops::{OpKind, UnknownName};
use coremill_passes::{self as pass, AnalyzedFunction, KeepFp32};
use coremill_tensor::{Buffer, DType};

use crate::error::{Error, ErrorKind, Result, fail};
use crate::forms;
use crate::graph::{Inner, ParamSlot};
use crate::params::{Param, Params};
use crate::places::{ParamBindings, TrackedParams};
use crate::weights::{AllowedForms, Form};

/// Compute precision of floats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Precision {
    /// 16-bit floats, which the Neural Engine requires.
    #[default]
    Fp16,
    /// 32-bit floats.
    Fp32,
}

/// Options of the compiler.
///
/// ```
/// use coremill_graph::{CompileOptions, Device, Precision, Session};
///
/// let options = CompileOptions::new().precision(Precision::Fp16).fp32_ops(["softmax"]).requantize(true);
/// let session = Session::new(Device::Host).options(options);
/// # let _ = session;
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct CompileOptions {
    /// Compute precision of floats.
    pub precision: Precision,
    /// MIL operations that compute in `fp32` independent of the precision.
    pub fp32_ops: Vec<String>,
    /// Names of the passes to skip.
    pub skipped_passes: Vec<String>,
    /// Whether GGUF weights that Core ML cannot represent exactly keep their codes, with scales and offsets
    /// rounded to `fp16`. Otherwise they become plain `fp16`.
    pub requantize: bool,
}

impl CompileOptions {
    /// The default options: `fp16`, all passes, and exact weights.
    pub fn new() -> CompileOptions {
        CompileOptions::default()
    }

    /// Sets the precision.
    pub fn precision(mut self, precision: Precision) -> Self {
        self.precision = precision;
        self
    }

    /// Sets the MIL operations that compute in `fp32` independent of the precision.
    pub fn fp32_ops<S: Into<String>>(mut self, ops: impl IntoIterator<Item = S>) -> Self {
        self.fp32_ops = ops.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the passes to skip.
    pub fn skipped_passes<S: Into<String>>(mut self, passes: impl IntoIterator<Item = S>) -> Self {
        self.skipped_passes = passes.into_iter().map(Into::into).collect();
        self
    }

    /// Sets whether GGUF weights keep their codes, scales and offsets if the device rounds intermediate results when it
    /// computes the weights from them.
    pub fn requantize(mut self, requantize: bool) -> Self {
        self.requantize = requantize;
        self
    }
}

/// Compiles functions with their parameters to a model; also returns the locations of the parameters in the
/// model.
pub(crate) fn compile(
    functions: &[Inner],
    params: &Params,
    options: &CompileOptions,
) -> Result<(Model, ParamBindings)> {
    check_names(options)?;
    let mut program = Program::default();
    let mut watched = TrackedParams::default();
    for inner in functions {
        program.functions.push(optimised(inner, params, options, &mut watched)?);
    }
    let places = watched.release(&mut program);
    let model =
        model::describe(program).map_err(|error| Error::from_source(ErrorKind::Graph, error))?;
    Ok((model, places))
}

/// Checks that the names of operations and passes exist.
fn check_names(options: &CompileOptions) -> Result<()> {
    let unknown = |option: &str, name: UnknownName| {
        Error::new(ErrorKind::Options, format!("`{option}`: {name}")).with_hint(name.hint)
    };
    for name in &options.fp32_ops {
        OpKind::parse(name).map_err(|error| unknown("fp32_ops", error))?;
    }
    pass::check_pass_names(&options.skipped_passes)
        .map_err(|error| unknown("skipped_passes", error))
}

fn optimised(
    inner: &Inner,
    params: &Params,
    options: &CompileOptions,
    watched: &mut TrackedParams,
) -> Result<Function> {
    let mut function = inner.builder.function.clone();
    for slot in &inner.params {
        let Some(param) = params.get(&slot.name) else {
            let missing: Vec<_> =
                inner.params.iter().filter(|slot| params.get(&slot.name).is_none()).collect();
            let names: Vec<_> =
                missing.iter().take(5).map(|slot| format!("`{}`", slot.name)).collect();
            let more = if missing.len() > 5 { ", ..." } else { "" };
            let count = match missing.len() {
                1 => "1 parameter is".to_owned(),
                count => format!("{count} parameters are"),
            };
            let error = Error::new(
                ErrorKind::Parameter,
                format!("{count} not set: {}{more}", names.join(", ")),
            );
            return Err(error.with_hint("set them with `set_param`, or load a weights file"));
        };
        check_shape(slot, param)?;
        bind(&mut function, slot, param, options, watched)?;
    }
    fold_constants(&mut function);
    let draft = AnalyzedFunction::new(function).map_err(fault)?;
    let keep = KeepFp32 { ops: options.fp32_ops.clone(), ..KeepFp32::default() };
    let fp16 = (options.precision == Precision::Fp16).then_some(&keep);
    let skipped: Vec<_> = options.skipped_passes.iter().map(String::as_str).collect();
    pass::optimize(draft, fp16, &skipped).map_err(fault)
}

/// Maximum number of elements of a folded constant. Core ML requires constants for gates of recurrent layers,
/// scales of norms and so on.
const MAX_FOLDED_ELEMENTS: u64 = 1 << 22;

/// Replaces operations on constants by their results.
fn fold_constants(function: &mut Function) {
    for id in function.block(function.body).ops.clone() {
        let op = function.op(id);
        let Some(kind) = op.kind() else { continue };
        let pure = !kind.is_constant() && !kind.is_random();
        if !pure || op.inputs.is_empty() || op.outputs.len() != 1 || !op.blocks.is_empty() {
            continue;
        }
        if let Some(constant) = folded(function, id) {
            let op = function.op_mut(id);
            let outputs = std::mem::take(&mut op.outputs);
            *op = Op { outputs, ..Op::constant(constant) };
        }
    }
}

fn folded(function: &Function, id: OpId) -> Option<Constant> {
    let op = function.op(id);
    let mut arguments = Vec::with_capacity(op.inputs.len());
    for input in &op.inputs {
        let mut arrays = Vec::with_capacity(input.bindings.len());
        for binding in &input.bindings {
            let constant = function.bound_constant(binding)?;
            let count = constant.tensor_type()?.element_count()?;
            if count > MAX_FOLDED_ELEMENTS {
                return None;
            }
            arrays.push(Array::from_constant(constant).ok()?);
        }
        arguments.push((input.name.as_ref(), arrays));
    }
    let ty = function.value(op.outputs[0]).ty.as_tensor()?;
    ty.element_count().filter(|&count| count <= MAX_FOLDED_ELEMENTS)?;
    let arguments: Vec<_> = arguments.iter().map(|(name, all)| (*name, all.as_slice())).collect();
    let results = evaluate(op.kind()?, function.opset, &arguments, &[ty.dtype]).ok()?;
    let array = results.first()?;
    let shape: Vec<_> = array.shape().iter().map(|&extent| extent as u64).collect();
    Some(Constant::by_size(array.dtype(), &shape, Buffer::from(array.to_bytes()?)))
}

fn fault(error: pass::Error) -> Error {
    Error::new(ErrorKind::Graph, error.to_string()).with_source(error)
}

/// Checks that a tensor has the declared shape of a parameter.
pub(crate) fn check_shape(slot: &ParamSlot, param: &Param) -> Result<()> {
    if param.shape() != slot.shape {
        let (name, declared, found) = (&slot.name, &slot.shape, param.shape());
        fail!(Parameter, "parameter `{name}` has shape {declared:?}, got {found:?}");
    }
    Ok(())
}

/// Replaces the placeholder constant of a parameter by its value.
fn bind(
    function: &mut Function,
    slot: &ParamSlot,
    param: &Param,
    options: &CompileOptions,
    watched: &mut TrackedParams,
) -> Result<()> {
    let allowed =
        AllowedForms { wide: options.precision == Precision::Fp32, rounded: options.requantize };
    let form = param.scheme().and_then(|scheme| Form::of(scheme, param.bytes(), allowed));
    if let Some(form) = form.filter(|_| function.opset >= Opset::Ios18 && !slot.shape.is_empty()) {
        watched.invalidate(&slot.name);
        forms::state(function, slot, &form);
        return Ok(());
    }
    let floats = watched.floats(&slot.name, param)?;
    let constant = Constant::by_size(DType::Fp32, &slot.shape, floats);
    // Small constants are read often, so compute them now.
    let constant = match constant.data {
        ConstantData::Bytes(bytes) => {
            watched.invalidate(&slot.name);
            let mut copy = vec![0; bytes.len()];
            if let Err(error) = bytes.read_at(0, &mut copy) {
                fail!(File, "parameter `{}` cannot be read: {error}", slot.name);
            }
            Constant { data: ConstantData::Bytes(Buffer::from(copy)), ..constant }
        }
        _ => constant,
    };
    function.op_mut(slot.op).attributes.insert("val", constant);
    Ok(())
}
