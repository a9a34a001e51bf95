//! A function prepared for planning, with constants that are expanded on demand.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use coremill_kernels::Numerics;
use coremill_mil::infer::Analysis;
use coremill_mil::ir::{
    Binding, Constant, ConstantData, Definition, Function, OpId, Type, ValueId,
};
use coremill_mil::ops::OpKind;
use coremill_reference::arithmetic::Arithmetic;
use coremill_reference::array::Array;
use coremill_reference::call::{Call, count_within};
use coremill_reference::device;
use coremill_reference::error::{Error, Result};
use coremill_reference::limits::Limits;
use coremill_reference::ops;
use coremill_tensor::DType;

use super::constant::ConstantTensor;
use super::graph::ReferenceOp;
use super::held::WeakMap;
use super::kernel::CpuContext;
use super::packed::PackedConstants;
use crate::weights::Weights;

/// A function, with everything known about it independent of inputs.
pub(crate) struct FunctionContext {
    pub(crate) function: Function,
    pub(crate) analysis: Analysis,
    pub(crate) numerics: Numerics,
    pub(crate) limits: Limits,
    /// Whether a value is constant, by [`ValueId::index`].
    constant: Vec<bool>,
    pub(super) known: Mutex<WeakMap<ValueId, ConstantTensor>>,
    pub(crate) packed: PackedConstants,
    pub(super) dependents: Dependents,
}

/// Data derived from constants during planning, and the constants that decided plans.
#[derive(Default)]
pub(super) struct Dependents {
    pub(super) derived: Mutex<Vec<Weak<dyn Recompute>>>,
    pub(super) looked: Mutex<HashSet<ValueId>>,
}

/// Data that is recomputed when its constants change.
pub(super) trait Recompute: Send + Sync {
    fn is_of(&self, changed: &ChangedConstants) -> bool;

    fn remake(&self, source: &FunctionContext, machine: &CpuContext) -> Result<()>;
}

/// Constants with changed elements, by [`ValueId::index`].
pub(super) struct ChangedConstants(pub(super) Vec<bool>);

impl ChangedConstants {
    /// Returns true if a value is among them.
    pub(super) fn has(&self, value: ValueId) -> bool {
        self.0.get(value.index()) == Some(&true)
    }
}

/// Minimum number of elements of a large constant.
const LARGE: usize = 1 << 16;

impl ConstantTensor {
    /// The elements, computed on first use. Records that planning depends on them.
    pub(crate) fn array(&self, source: &FunctionContext) -> Result<&Array> {
        source.note(self);
        self.expand(source)
    }

    /// The elements, computed on first use, for nodes that read them and for
    /// [`Memoized`](super::derived::Memoized) data.
    pub(crate) fn expand(&self, source: &FunctionContext) -> Result<&Array> {
        if let Some(array) = self.array.get() {
            return Ok(array);
        }
        let array = self.elements(source)?;
        Ok(self.array.get_or_init(|| array))
    }

    /// The elements. They are not stored if they were not yet computed.
    pub(crate) fn elements(&self, source: &FunctionContext) -> Result<Array> {
        if let Some(array) = self.array.get() {
            return Ok(array.clone());
        }
        let value = self.value.ok_or_else(|| Error::new("the constant has no elements"))?;
        match source.large_weights(self) {
            Some(weights) => Ok(weights.expand()),
            None => source.expand(value),
        }
    }
}

impl FunctionContext {
    pub(crate) fn new(
        function: Function,
        analysis: Analysis,
        numerics: Numerics,
        limits: Limits,
    ) -> FunctionContext {
        let constant = constant_values(&function);
        let (known, packed, dependents) = Default::default();
        FunctionContext {
            function,
            analysis,
            numerics,
            limits,
            constant,
            known,
            packed,
            dependents,
        }
    }

    /// Returns true if a value depends on constants alone and can be computed before the run.
    pub(crate) fn is_constant(&self, value: ValueId) -> bool {
        self.constant[value.index()]
    }

    /// The constant of a value. Live plans share it.
    pub(crate) fn known(&self, value: ValueId) -> Result<Arc<ConstantTensor>> {
        let all = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = all().get(&value) {
            return Ok(known);
        }
        let shape = self.analysis.ty(value).and_then(Type::as_tensor).and_then(|ty| {
            let extents = ty.known_shape()?.into_iter().map(|extent| usize::try_from(extent).ok());
            Some((ty.dtype, extents.collect::<Option<Vec<_>>>()?))
        });
        let known = match shape {
            Some((dtype, shape)) => ConstantTensor::of_value(value, dtype, shape),
            // The shape depends on elements.
            None => {
                let known = ConstantTensor {
                    value: Some(value),
                    ..ConstantTensor::new(self.expand(value)?)
                };
                self.note(&known);
                known
            }
        };
        let known = Arc::new(known);
        all().insert(value, &known);
        Ok(known)
    }

    /// Records that a plan depends on a constant's elements in another way than through derived
    /// data.
    pub(crate) fn note(&self, known: &ConstantTensor) {
        if let Some(value) = known.value {
            self.dependents.looked.lock().unwrap_or_else(PoisonError::into_inner).insert(value);
        }
    }

    /// The constant of a binding, `None` if it is computed at run time.
    pub(crate) fn known_binding(&self, binding: &Binding) -> Result<Option<Arc<ConstantTensor>>> {
        match binding {
            Binding::Literal(constant) => {
                literal(constant).map(|a| Some(Arc::new(ConstantTensor::new(a))))
            }
            Binding::Value(value) if self.is_known(binding) => self.known(*value).map(Some),
            Binding::Value(_) => Ok(None),
        }
    }

    /// Whether a binding has a value before execution.
    pub(crate) fn is_known(&self, binding: &Binding) -> bool {
        match binding {
            Binding::Literal(_) => true,
            Binding::Value(value) => self.is_constant(*value),
        }
    }

    /// The stored or compressed form of a constant, if the program contains it.
    pub(crate) fn weights(&self, known: &ConstantTensor) -> Option<Weights> {
        Weights::of(&self.function, known.value?, self.numerics)
    }

    /// The compressed form of a large constant. The reference kernel would expand all its codes to
    /// 32-bit integers.
    fn large_weights(&self, known: &ConstantTensor) -> Option<Weights> {
        let count = count_within(&known.shape, &self.limits).ok()?;
        let weights = if count >= LARGE { self.weights(known)? } else { return None };
        (weights.is_compressed() && weights.shape == known.shape).then_some(weights)
    }

    /// Computes a constant and its dependencies. Iterative, since a program may contain a chain of
    /// any length.
    fn expand(&self, wanted: ValueId) -> Result<Array> {
        let mut done: HashMap<ValueId, Array> = HashMap::new();
        let mut pending = vec![wanted];
        while let Some(&value) = pending.last() {
            if done.contains_key(&value) {
                pending.pop();
                continue;
            }
            if value != wanted
                && let Some(known) = self.held(value)
            {
                done.insert(value, known);
                continue;
            }
            let Definition::Output(op, _) = self.function.value(value).definition else {
                return Err(Error::new("an input is not a constant"));
            };
            let before = pending.len();
            for (_, binding) in self.function.op(op).all_bindings() {
                if let Binding::Value(value) = binding
                    && !done.contains_key(value)
                {
                    pending.push(*value);
                }
            }
            if pending.len() > before {
                continue;
            }
            pending.pop();
            let results = self.fold(op, &done)?;
            for (&output, array) in self.function.op(op).outputs.iter().zip(results) {
                done.insert(output, array);
            }
        }
        done.remove(&wanted).ok_or_else(|| Error::new("the operation returned too few values"))
    }

    fn held(&self, value: ValueId) -> Option<Array> {
        let all = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(&value)?.expanded().cloned()
    }

    fn fold(&self, id: OpId, done: &HashMap<ValueId, Array>) -> Result<Vec<Array>> {
        let op = self.function.op(id);
        let fold = || {
            let kind = op.kind().ok_or_else(|| Error::new("is not a Core ML operation"))?;
            if kind == OpKind::Const {
                let constant = op.attributes.get("val");
                return literal(constant.ok_or_else(|| Error::new("has no value"))?)
                    .map(|array| vec![array]);
            }
            let mut arrays = Vec::new();
            let mut parameters = Vec::new();
            for input in &op.inputs {
                let start = arrays.len();
                for binding in &input.bindings {
                    arrays.push(match binding {
                        Binding::Literal(constant) => literal(constant)?,
                        Binding::Value(value) => done[value].clone(),
                    });
                }
                parameters.push((input.name.to_string(), start..arrays.len()));
            }
            if kind.is_constexpr() {
                for (name, constant) in op.attributes.iter().filter(|(name, _)| *name != "name") {
                    parameters.push((name.to_owned(), arrays.len()..arrays.len() + 1));
                    arrays.push(literal(constant)?);
                }
            }
            let row = kind.row(self.function.opset);
            let row = row.ok_or_else(|| Error::new("is not available in the function's opset"))?;
            let reference = ReferenceOp { function: ops::kernel(kind), row, parameters };
            let operands: Vec<_> = arrays.iter().map(Array::view).collect();
            // Core ML computes constants before a device sees them.
            let numerics = self.numerics.of_constants();
            reference.call(self, id, &operands, 0, Arithmetic { numerics, machine: None })
        };
        fold().map_err(|error| self.place(id, error))
    }

    /// Adds the operation to an error.
    pub(crate) fn place(&self, op: OpId, error: Error) -> Error {
        let op = self.function.op(op);
        let value = op.outputs.first().map_or("", |&value| &self.function.value(value).name);
        error.of_operation(op.type_name(), value)
    }

    /// Element types of an operation's outputs; `string` for outputs that are not tensors.
    pub(crate) fn output_dtypes(&self, op: OpId) -> Vec<DType> {
        let outputs = self.function.op(op).outputs.iter();
        let dtype = |&value| {
            let ty = self.analysis.ty(value).unwrap_or(&self.function.value(value).ty);
            ty.as_tensor().map_or(DType::String, |ty| ty.dtype)
        };
        outputs.map(dtype).collect()
    }
}

impl ReferenceOp {
    /// The call of the operation's kernel.
    pub(crate) fn as_call<'a>(
        &'a self,
        source: &'a FunctionContext,
        operands: &'a [coremill_reference::array::View<'a>],
        dtypes: &'a [DType],
        seed: u64,
    ) -> Call<'a> {
        Call {
            row: self.row,
            parameters: &self.parameters,
            operands,
            dtypes,
            limits: &source.limits,
            seed,
            note: None,
            arithmetic: Arithmetic::default(),
        }
    }

    /// Runs the reference kernel.
    pub(crate) fn call(
        &self,
        source: &FunctionContext,
        op: OpId,
        operands: &[coremill_reference::array::View<'_>],
        seed: u64,
        arithmetic: Arithmetic<'_>,
    ) -> Result<Vec<Array>> {
        let name = self.row.kind.name();
        let function =
            self.function.ok_or_else(|| Error::new(format!("`{name}` cannot be run")))?;
        let dtypes = source.output_dtypes(op);
        let call = Call { arithmetic, ..self.as_call(source, operands, &dtypes, seed) };
        device::perform(function, &call)
    }
}

/// The elements of a tensor constant, or of a list of scalar constants.
pub(crate) fn literal(constant: &Constant) -> Result<Array> {
    let ConstantData::Sequence(elements) = &constant.data else {
        return Array::from_constant(constant);
    };
    let elements = elements.iter().map(Array::from_constant).collect::<Result<Vec<_>>>()?;
    let shape = [elements.len()];
    if let Some(texts) = elements
        .iter()
        .map(|element| match element.elements() {
            coremill_reference::array::Elements::Texts(texts) => texts.first().cloned(),
            _ => None,
        })
        .collect::<Option<Vec<_>>>()
    {
        return Ok(Array::texts(shape, texts));
    }
    let ints = elements.iter().map(|element| element.as_ints()?.first().copied());
    match (ints.collect::<Option<Vec<_>>>(), elements.first()) {
        (Some(ints), Some(first)) => Ok(Array::ints(first.dtype(), shape, ints)),
        _ => Err(Error::new(format!("the `{}` constant is not a list of scalars", constant.ty))),
    }
}

/// Marks the values that depend on constants alone.
fn constant_values(function: &Function) -> Vec<bool> {
    let mut constant = vec![false; function.value_count()];
    let is_constant = |constant: &[bool], binding: &Binding| match binding {
        Binding::Literal(_) => true,
        Binding::Value(value) => constant[value.index()],
    };
    // Definitions precede uses, and a block's operations precede the operations after it.
    let mut pending: Vec<_> = function.block(function.body).ops.iter().rev().copied().collect();
    while let Some(id) = pending.pop() {
        let op = function.op(id);
        for &block in op.blocks.iter().rev() {
            pending.extend(function.block(block).ops.iter().rev());
        }
        let folds = match op.kind() {
            // Constant lists are operands of `classify`. Other lists are built at run time.
            Some(OpKind::Const) => op.attributes.get("val").is_some(),
            Some(OpKind::Classify) | None => false,
            Some(kind) => {
                !kind.is_random()
                    && ops::kernel(kind).is_some()
                    && op.all_bindings().all(|(_, binding)| is_constant(&constant, binding))
            }
        };
        if folds {
            op.outputs.iter().for_each(|output| constant[output.index()] = true);
        }
    }
    constant
}
