//! Converts a function to `fp16`.
//!
//! ```text
//! y = relu(x = x);          becomes    x_fp16 = cast(x = x, dtype = "fp16");
//! -> (y)                               y_fp16 = relu(x = x_fp16);
//!                                      y = cast(x = y_fp16, dtype = "fp32");
//!                                      -> (y)
//! ```
//!
//! Inputs and outputs keep their types. An operation stays in `fp32` if it does not support `fp16`, if the caller
//! selects it, or if `fp16` cannot represent its values. The latter are angles and indices (operands of `sin`, `cos`
//! and integer casts, traced back to the output of a layer), the sampling coordinates of `resample`, and numbers
//! beyond 65504 that are not masks. Constants beyond that range become the largest finite number, and tiny nonzero
//! constants do not become 0: a mask of −3.4e38 would produce NaN as −∞, and a denominator without its epsilon
//! infinity.

use std::collections::HashSet;

use coremill_tensor::{Buffer, DType, LazyTensor, Overflow, Statistics};
use half::f16;

use crate::names::{names_of, unused};
use crate::{AnalyzedFunction, Error, ErrorKind};
use coremill_mil::infer::{Analysis, InferError};
use coremill_mil::ir::{
    Binding, BlockId, Constant, ConstantData, Definition, Function, Input, Op, OpId, Type, ValueId,
};
use coremill_mil::ops::{Accepts, OpKind, Parameter};

/// Larger numbers are intended as infinity.
const INFINITE: f32 = 1e30;

/// Largest finite fp16 number.
const MAX_HALF: f64 = 65504.0;

/// Constants with more elements are not searched for numbers beyond fp16; they are weights, which have none.
pub(super) const MAX_SEARCHED: u64 = 1 << 16;

/// Operations and values that stay in `fp32`.
#[derive(Clone, Debug, Default)]
pub struct KeepFp32 {
    /// Operations by MIL name.
    pub ops: Vec<String>,
    /// Prefixes of value names.
    pub prefixes: Vec<String>,
    /// Complete value names.
    pub names: HashSet<String>,
}

/// Converts the floats inside a function to fp16.
pub fn to_fp16(draft: &AnalyzedFunction, keep: &KeepFp32) -> Result<AnalyzedFunction, Error> {
    let AnalyzedFunction { function, analysis, exact } = draft;
    let wide = wide_ops(function, analysis, exact, keep);
    let mut target = Function::new(&function.name, function.opset);
    target.attributes = function.attributes.clone();
    target.unknown = function.unknown.clone();
    let mut narrowing = Fp16Rewriter {
        source: function,
        known: analysis,
        wide,
        target,
        analysis: Analysis::after(analysis),
        map: vec![MappedValue::default(); function.value_count()],
        log: Vec::new(),
        names: names_of(function),
        stated: HashSet::new(),
    };
    narrowing.run()?;
    Ok(AnalyzedFunction {
        function: narrowing.target,
        analysis: narrowing.analysis,
        exact: HashSet::new(),
    })
}

/// Copies of a value in the new function. A float has up to two forms.
#[derive(Clone, Copy, Debug, Default)]
struct MappedValue {
    /// The value in its original type.
    full: Option<ValueId>,
    /// The value in `fp16`.
    half: Option<ValueId>,
}

struct Fp16Rewriter<'f> {
    source: &'f Function,
    known: &'f Analysis,
    /// Operations that stay in `fp32`.
    wide: HashSet<OpId>,
    target: Function,
    analysis: Analysis,
    /// Indexed by [`ValueId::index`] of the source.
    map: Vec<MappedValue>,
    /// Forms created in the current block, which become invalid at its end.
    log: Vec<(ValueId, bool)>,
    names: HashSet<String>,
    /// Names of the constants created so far.
    stated: HashSet<String>,
}

impl Fp16Rewriter<'_> {
    fn run(&mut self) -> Result<(), Error> {
        let (from, to) = (self.source.body, self.target.body);
        for &input in self.source.inputs() {
            let value = self.source.value(input);
            let id = self.target.add_input(to, &value.name, value.ty.clone());
            self.analysis.enter_input(&self.target, id);
            if let Some(ty) = self.known.ty(input).and_then(Type::as_tensor) {
                self.analysis.set_shape(id, ty.shape.clone());
            }
            self.map[input.index()].full = Some(id);
        }
        self.ops(from, to)?;
        let mut outputs = Vec::new();
        for &output in self.source.outputs() {
            outputs.push(self.full(output, to, true)?);
        }
        self.target.block_mut(to).outputs = outputs;
        self.target.block_mut(to).attributes = self.source.block(from).attributes.clone();
        Ok(())
    }

    fn ops(&mut self, from: BlockId, to: BlockId) -> Result<(), Error> {
        for &id in &self.source.block(from).ops {
            self.op(id, to)?;
        }
        Ok(())
    }

    fn op(&mut self, id: OpId, block: BlockId) -> Result<(), Error> {
        let op = self.source.op(id);
        if op.kind() == Some(OpKind::Const) && self.is_float(op.outputs[0]) {
            // A constant is created on first use, when its form is known.
            return Ok(());
        }
        if !op.blocks.is_empty() {
            return self.nested(id, block);
        }
        let half = !self.wide.contains(&id) && self.touches_floats(op) && self.accepts_half(op);
        if half && self.emit(id, block, true).is_ok() {
            return Ok(());
        }
        self.emit(id, block, false)
    }

    /// Emits an operation with its floats in one form.
    fn emit(&mut self, id: OpId, block: BlockId, half: bool) -> Result<(), Error> {
        let copy = self.copy(id, block, half)?;
        self.append(id, copy, block)
    }

    /// Copies an operation with converted arguments, without its blocks.
    fn copy(&mut self, id: OpId, block: BlockId, half: bool) -> Result<Op, Error> {
        let op = self.source.op(id);
        let mut copy =
            Op { inputs: Vec::new(), outputs: Vec::new(), blocks: Vec::new(), ..op.clone() };
        for Input { name, bindings } in &op.inputs {
            let mut bound = Vec::with_capacity(bindings.len());
            for binding in bindings {
                bound.push(self.binding(op, name, binding, block, half)?);
            }
            copy.set_input(name.clone(), bound);
        }
        Ok(copy)
    }

    /// Appends a copied operation, and records its results.
    fn append(&mut self, id: OpId, copy: Op, block: BlockId) -> Result<(), Error> {
        let op = self.source.op(id);
        let outcomes = self.analysis.infer_op(&self.target, &copy);
        let outcomes = outcomes.map_err(|refusals| self.error(op, &refusals))?;
        let names: Vec<_> = outcomes
            .iter()
            .zip(&op.outputs)
            .map(|(outcome, &output)| {
                let name = &self.source.value(output).name;
                let narrowed = self.is_float(output) && is_half(&outcome.ty);
                if narrowed && self.source.outputs().contains(&output) {
                    unused(&mut self.names, &format!("{name}_fp16"))
                } else {
                    name.clone()
                }
            })
            .collect();
        let id =
            self.analysis.append(&mut self.target, block, copy, outcomes, |at| names[at].clone());
        for (position, &output) in op.outputs.iter().enumerate() {
            let value = self.target.op(id).outputs[position];
            let narrowed = is_half(&self.target.value(value).ty) && self.is_float(output);
            self.record(output, value, narrowed);
        }
        Ok(())
    }

    fn binding(
        &mut self,
        op: &Op,
        name: &str,
        binding: &Binding,
        block: BlockId,
        half: bool,
    ) -> Result<Binding, Error> {
        let accepts = op.kind().and_then(|kind| kind.row(self.source.opset)?.parameter(name));
        let takes_half = accepts.is_none_or(takes_half) && !is_place(op, name);
        Ok(match binding {
            Binding::Literal(constant) => {
                let is_cast = op.kind() == Some(OpKind::Cast) && name == "dtype";
                let is_list = op.kind() == Some(OpKind::MakeList) && name == "dtype";
                let text = constant.as_str();
                if half && (is_cast || is_list) && text == Some("fp32") {
                    Binding::Literal(Constant::string("fp16"))
                } else if half && takes_half && is_fp32(&constant.ty) {
                    Binding::Literal(narrowed(constant))
                } else {
                    binding.clone()
                }
            }
            Binding::Value(value) if self.is_float(*value) => {
                Binding::Value(if half && takes_half {
                    self.half(*value, block)?
                } else {
                    self.full(*value, block, false)?
                })
            }
            Binding::Value(value) => Binding::Value(self.full(*value, block, false)?),
        })
    }

    /// Emits an operation with blocks. Floats that cross block boundaries are in `fp16`.
    fn nested(&mut self, id: OpId, block: BlockId) -> Result<(), Error> {
        let op = self.source.op(id);
        let mut copied = self.copy(id, block, true)?;
        for &inner in &op.blocks {
            let mark = self.log.len();
            let copy = self.target.add_block();
            for &input in &self.source.block(inner).inputs {
                let value = self.source.value(input);
                let float = self.is_float(input);
                let ty = if float { with_dtype(&value.ty, DType::Fp16) } else { value.ty.clone() };
                let added = self.target.add_input(copy, &value.name, ty);
                self.analysis.enter_input(&self.target, added);
                self.record(input, added, float);
            }
            self.ops(inner, copy)?;
            let mut outputs = Vec::new();
            for &output in &self.source.block(inner).outputs {
                outputs.push(if self.is_float(output) {
                    self.half(output, copy)?
                } else {
                    self.full(output, copy, false)?
                });
            }
            self.target.block_mut(copy).outputs = outputs;
            self.target.block_mut(copy).attributes = self.source.block(inner).attributes.clone();
            for (value, half) in self.log.split_off(mark) {
                let mapped = &mut self.map[value.index()];
                *(if half { &mut mapped.half } else { &mut mapped.full }) = None;
            }
            copied.blocks.push(copy);
        }
        self.append(id, copied, block)
    }

    /// A value in `fp16`.
    fn half(&mut self, value: ValueId, block: BlockId) -> Result<ValueId, Error> {
        if let Some(half) = self.map[value.index()].half {
            return Ok(half);
        }
        let name = self.source.value(value).name.clone();
        if let Some(constant) = self.source.constant(value) {
            let half = self.state(narrowed(constant), &name);
            self.map[value.index()].half = Some(half);
            return Ok(half);
        }
        let full = self.full(value, block, false)?;
        let half = self.cast(full, "fp16", &format!("{name}_fp16"), block)?;
        self.record(value, half, true);
        Ok(half)
    }

    /// A value in its original type.
    fn full(&mut self, value: ValueId, block: BlockId, output: bool) -> Result<ValueId, Error> {
        if let Some(full) = self.map[value.index()].full {
            return Ok(full);
        }
        let name = self.source.value(value).name.clone();
        if let Some(constant) = self.source.constant(value) {
            let full = self.state(constant.clone(), &name);
            self.map[value.index()].full = Some(full);
            return Ok(full);
        }
        let Some(half) = self.map[value.index()].half else {
            return Err(Error::new(
                ErrorKind::Function,
                format!("`{name}` is used before it is defined"),
            ));
        };
        let label = if output { name } else { unused(&mut self.names, &format!("{name}_fp32")) };
        let full = self.cast_named(half, "fp32", label, block)?;
        self.record(value, full, false);
        Ok(full)
    }

    fn cast(
        &mut self,
        value: ValueId,
        dtype: &str,
        label: &str,
        block: BlockId,
    ) -> Result<ValueId, Error> {
        let name = unused(&mut self.names, label);
        self.cast_named(value, dtype, name, block)
    }

    fn cast_named(
        &mut self,
        value: ValueId,
        dtype: &str,
        name: String,
        block: BlockId,
    ) -> Result<ValueId, Error> {
        let op = Op::new(OpKind::Cast)
            .with("x", Binding::Value(value))
            .with("dtype", Binding::Literal(Constant::string(dtype)));
        let outcomes = self.analysis.infer_op(&self.target, &op);
        let outcomes = outcomes.map_err(|refusals| self.error(&op, &refusals))?;
        let id = self.analysis.append(&mut self.target, block, op, outcomes, |_| name.clone());
        Ok(self.target.op(id).outputs[0])
    }

    /// Creates a constant in the function's body, where everything can use it. The operation whose blocks are being
    /// filled is not in the function yet.
    fn state(&mut self, constant: Constant, name: &str) -> ValueId {
        // A constant that is used in both forms needs two names.
        let name = if self.stated.insert(name.to_owned()) {
            name.to_owned()
        } else {
            unused(&mut self.names, &format!("{name}_fp16"))
        };
        let outcomes = vec![coremill_mil::infer::InferredValue::of_constant(&constant)];
        let body = self.target.body;
        let op = Op::constant(constant);
        let id = self.analysis.append(&mut self.target, body, op, outcomes, |_| name.clone());
        self.target.op(id).outputs[0]
    }

    fn record(&mut self, value: ValueId, new: ValueId, half: bool) {
        let mapped = &mut self.map[value.index()];
        *(if half { &mut mapped.half } else { &mut mapped.full }) = Some(new);
        self.log.push((value, half));
    }

    /// Whether a value is an `fp32` tensor or list.
    fn is_float(&self, value: ValueId) -> bool {
        self.known.ty(value).is_some_and(is_fp32)
    }

    fn touches_floats(&self, op: &Op) -> bool {
        let bound = op.all_bindings().any(|(_, binding)| match binding {
            Binding::Value(value) => self.is_float(*value),
            Binding::Literal(constant) => is_fp32(&constant.ty),
        });
        bound || op.outputs.iter().any(|&output| self.is_float(output))
    }

    /// Whether all float arguments of an operation may be fp16.
    fn accepts_half(&self, op: &Op) -> bool {
        let Some(row) = op.kind().and_then(|kind| kind.row(self.source.opset)) else {
            return false;
        };
        op.all_bindings().all(|(name, binding)| match binding {
            Binding::Value(value) if self.is_float(*value) => {
                is_place(op, name) || row.parameter(name).is_some_and(takes_half)
            }
            Binding::Value(_) | Binding::Literal(_) => true,
        })
    }

    fn error(&self, op: &Op, refusals: &[InferError]) -> Error {
        let name = op.outputs.first().map_or("", |&output| &self.source.value(output).name);
        Error::refused(ErrorKind::Pass, op, name, refusals)
    }
}

/// Whether a parameter contains sampling coordinates, which fp16 cannot resolve finely enough.
fn is_place(op: &Op, parameter: &str) -> bool {
    op.kind() == Some(OpKind::Resample) && parameter == "coordinates"
}

/// Whether a parameter accepts fp16.
fn takes_half(parameter: &Parameter) -> bool {
    match parameter.accepts {
        Accepts::Tensor { dtypes, .. } => dtypes.contains(&DType::Fp16),
        Accepts::Values | Accepts::List | Accepts::State | Accepts::Any => true,
    }
}

/// Operations that stay in `fp32`.
fn wide_ops(
    function: &Function,
    analysis: &Analysis,
    exact: &HashSet<ValueId>,
    keep: &KeepFp32,
) -> HashSet<OpId> {
    let mut wide = HashSet::new();
    let mut pending = Vec::new();
    for (id, op) in function.all_ops() {
        let named = |output: &ValueId| {
            let name = &function.value(*output).name;
            exact.contains(output)
                || keep.names.contains(name)
                || keep.prefixes.iter().any(|prefix| name.starts_with(prefix))
        };
        if keep.ops.iter().any(|kept| kept == op.type_name()) || op.outputs.iter().any(named) {
            wide.insert(id);
        }
        // An output that is a constant or an input needs no intermediate cast, and neither does an input that
        // represents booleans.
        let of_input = op.binding("x").is_some_and(
            |x| matches!(x, Binding::Value(value) if function.inputs().contains(value)),
        );
        let passed = match op.kind() {
            Some(OpKind::Identity) => {
                of_input || op.binding("x").is_some_and(|x| function.bound_constant(x).is_some())
            }
            Some(OpKind::Cast) => {
                of_input
                    && !op.outputs.iter().any(|&output| analysis.ty(output).is_some_and(is_fp32))
            }
            _ => false,
        };
        // Random indices have the type of the weights; fp16 represents integers only up to 2048.
        let draws_indices = op.kind() == Some(OpKind::RandomCategorical);
        if passed || draws_indices || exceeds_half(function, op) {
            wide.insert(id);
        }
        let exact = match op.kind() {
            Some(OpKind::Sin | OpKind::Cos) => true,
            Some(OpKind::Cast) => op.outputs.iter().any(|&output| {
                analysis
                    .ty(output)
                    .and_then(Type::as_tensor)
                    .is_some_and(|ty| ty.dtype.is_integer())
            }),
            _ => false,
        };
        if exact {
            pending.push(id);
        }
    }
    keep_sums(function, analysis, exact, &mut wide);
    let floats_made_by = |op: &Op, chosen: &dyn Fn(&str) -> bool| -> Vec<OpId> {
        let bindings = op.all_bindings().filter(|(name, _)| chosen(name));
        let producer = |(_, binding): (&str, &Binding)| {
            let Binding::Value(value) = binding else { return None };
            let Definition::Output(producer, _) = function.value(*value).definition else {
                return None;
            };
            analysis.ty(*value).is_some_and(is_fp32).then_some(producer)
        };
        bindings.filter_map(producer).collect()
    };
    while let Some(id) = pending.pop() {
        if !wide.insert(id) && !matches!(function.op(id).kind(), Some(OpKind::Sin | OpKind::Cos)) {
            continue;
        }
        let producers = floats_made_by(function.op(id), &|_| true);
        let angles = |id: &OpId| computes_angles(function.op(*id)) && !wide.contains(id);
        pending.extend(producers.into_iter().filter(angles));
    }
    let mut seen = HashSet::new();
    for (_, op) in function.all_ops() {
        pending.extend(floats_made_by(op, &|name| is_place(op, name)));
    }
    while let Some(id) = pending.pop() {
        if computes_places(function.op(id)) && seen.insert(id) {
            pending.extend(floats_made_by(function.op(id), &|_| true));
        }
    }
    wide.extend(seen);
    wide
}

/// Keeps results of integer products in `fp32` until their scales bring them back into range. Sums of 8-bit products
/// exceed fp16 by far.
fn keep_sums(
    function: &Function,
    analysis: &Analysis,
    exact: &HashSet<ValueId>,
    wide: &mut HashSet<OpId>,
) {
    use OpKind::{Add, Cast, ExpandDims, Linear, Matmul, Mul, RealDiv, Reshape, Squeeze, Sub};
    let mut sums: HashSet<ValueId> = HashSet::new();
    for (id, op) in function.all_ops() {
        let Some(&output) = op.outputs.first() else { continue };
        let takes_sum = op
            .all_bindings()
            .any(|(_, binding)| matches!(binding, Binding::Value(value) if sums.contains(value)));
        let float = analysis.ty(output).is_some_and(is_fp32);
        let is_sum = match op.kind() {
            Some(Matmul | Linear) => exact.contains(&output),
            Some(Cast | Reshape | ExpandDims | Squeeze) => takes_sum,
            Some(Add | Sub) => takes_sum && !float,
            Some(Mul | RealDiv) => takes_sum,
            _ => false,
        };
        if is_sum {
            sums.insert(output);
            if float {
                wide.insert(id);
            }
        }
    }
}

/// Whether an operation with a position, angle or index as operand also produces one.
fn computes_angles(op: &Op) -> bool {
    use OpKind::*;
    matches!(
        op.kind(),
        Some(
            Add | Sub
                | Mul
                | RealDiv
                | FloorDiv
                | Mod
                | Maximum
                | Minimum
                | Cast
                | Reshape
                | ExpandDims
                | Squeeze
                | Transpose
                | Concat
                | Tile
                | SliceByIndex
                | SliceBySize
                | Matmul
                | Cumsum
                | Floor
                | Ceil
                | Round
                | Clip
                | Exp
                | Exp2
                | Log
                | Select
                | Range1d
                | Split
                | Stack
                | Identity
                | Fill
                | Pad
                | SlidingWindows
        )
    )
}

/// Like [`computes_angles`], for sampling coordinates, which may also be transformed by matrices and inverses.
fn computes_places(op: &Op) -> bool {
    use OpKind::*;
    computes_angles(op)
        || matches!(
            op.kind(),
            Some(
                Abs | Square
                    | Sqrt
                    | Rsqrt
                    | Inverse
                    | Pow
                    | ReduceSum
                    | Sin
                    | Cos
                    | Gather
                    | GatherNd
                    | ScatterNd
            )
        )
}

/// Whether an operation has a constant beyond the range of fp16 that is not a mask.
fn exceeds_half(function: &Function, op: &Op) -> bool {
    op.kind() != Some(OpKind::Const)
        && op.all_bindings().any(|(_, binding)| {
            let Some(constant) = function.bound_constant(binding) else { return false };
            let small = constant.tensor_type().and_then(|ty| ty.element_count());
            is_fp32(&constant.ty)
                && small.is_some_and(|count| count <= MAX_SEARCHED)
                && constant.elements().is_some_and(|elements| {
                    let elements = &elements.unwatched();
                    if Statistics::surely_within(elements, MAX_HALF).unwrap_or(false) {
                        return false;
                    }
                    let far = |elements: &Buffer| elements.with_window(0..elements.len(), has_far);
                    // Checking the extremes is fast and usually sufficient.
                    let found = Statistics::of(elements, DType::Fp32).ok().flatten();
                    found.is_some_and(|found| found.min.abs().max(found.max.abs()) > MAX_HALF)
                        && far(elements).unwrap_or(false)
                })
        })
}

/// Whether there is a number beyond the range of fp16 that is not a mask.
pub(super) fn has_far(bytes: &[u8]) -> bool {
    let (floats, _) = bytes.as_chunks::<4>();
    floats.iter().any(|&raw| {
        let size = f32::from_le_bytes(raw).abs();
        f64::from(size) > MAX_HALF && size < INFINITE
    })
}

/// Converts a constant to `fp16`.
fn narrowed(constant: &Constant) -> Constant {
    let Some(tensor) = constant.tensor_type() else { return constant.clone() };
    let (Some(shape), Some(elements)) = (tensor.known_shape(), constant.elements()) else {
        return constant.clone();
    };
    if tensor.dtype != DType::Fp32 {
        return constant.clone();
    }
    if shape.iter().product::<u64>() == 1 {
        let (floats, _) = elements.as_bytes().as_chunks::<4>();
        let value = floats.first().map_or(0.0, |&raw| f32::from_le_bytes(raw));
        let bytes = half_of(value).to_le_bytes().to_vec();
        return Constant::bytes(DType::Fp16, &shape, bytes);
    }
    let recipe = LazyTensor::new(elements.clone(), DType::Fp32, &shape)
        .and_then(|recipe| recipe.clamp_to_fp16(true))
        .and_then(|recipe| recipe.cast_with(DType::Fp16, Overflow::Saturate));
    let Ok(recipe) = recipe else { return constant.clone() };
    match constant.data {
        ConstantData::Weight(_) => Constant::weight(DType::Fp16, &shape, recipe.to_buffer()),
        _ => Constant::bytes(DType::Fp16, &shape, recipe.to_buffer()),
    }
}

/// The nearest fp16 number that keeps finite numbers finite and nonzero numbers nonzero.
fn half_of(value: f32) -> f16 {
    if value.is_infinite() || value.is_nan() {
        return f16::from_f32(value);
    }
    let half = f16::from_f32(value.clamp(f16::MIN.into(), f16::MAX.into()));
    if value != 0.0 && half == f16::ZERO {
        return if value < 0.0 { -f16::from_bits(1) } else { f16::from_bits(1) };
    }
    half
}

fn is_fp32(ty: &Type) -> bool {
    match ty {
        Type::Tensor(tensor) => tensor.dtype == DType::Fp32,
        Type::List(element, _) => is_fp32(element),
        Type::Tuple(_) | Type::Dictionary(..) | Type::State(_) => false,
    }
}

fn is_half(ty: &Type) -> bool {
    match ty {
        Type::Tensor(tensor) => tensor.dtype == DType::Fp16,
        Type::List(element, _) => is_half(element),
        Type::Tuple(_) | Type::Dictionary(..) | Type::State(_) => false,
    }
}

fn with_dtype(ty: &Type, dtype: DType) -> Type {
    let mut ty = ty.clone();
    match &mut ty {
        Type::Tensor(tensor) => tensor.dtype = dtype,
        Type::List(element, _) => **element = with_dtype(element, dtype),
        Type::Tuple(_) | Type::Dictionary(..) | Type::State(_) => {}
    }
    ty
}
