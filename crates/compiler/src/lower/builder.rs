//! The builder of lowered functions: MIL's, with what lowerings know about values.
//!
//! Whatever can be computed when the program is compiled is: an operation on constants gives a constant,
//! and so does one whose result inference knows, the shape of a tensor with fixed dimensions for instance.
//! Floats are `fp32` here; the precision of the finished program is chosen by a pass.

use std::collections::{HashMap, HashSet};
use std::ops::{Deref, DerefMut};

use coremill_engine::{FoldLimits, fold};
use coremill_mil::builder::FunctionBuilder;
use coremill_mil::infer::{self, InferredValue, KnownElements};
use coremill_mil::ir::{Binding, BlockId, Constant, Dim, Function, Op, Opset, Type, ValueId};
use coremill_mil::ops::OpKind;
use coremill_pt2::ScalarType;
use coremill_tensor::DType;

use super::dtype::core_dtype;
use super::value::{CompressedTensor, HighRank, Int, Number, Scalar};
use crate::error::{LoweringError, Result, refuse};

/// A value that was appended, unless it was refused.
pub(crate) type ValueResult = Result<ValueId>;

/// Appends an operation with one result: `emit!(builder, OpKind::Gelu, x, mode = "EXACT")`. A parameter without an
/// argument is bound to the variable of its name.
macro_rules! emit {
    ($builder:expr, $kind:expr, $($parameter:ident $(= $argument:expr)?),+ $(,)?) => {
        $builder.emit($kind, [$($crate::lower::builder::bound!($parameter $(= $argument)?)),+])
    };
}
pub(crate) use emit;

/// Appends an operation with several results.
macro_rules! emit_many {
    ($builder:expr, $kind:expr, $($parameter:ident $(= $argument:expr)?),+ $(,)?) => {
        $builder.append($crate::lower::builder::operation(
            $kind,
            [$($crate::lower::builder::bound!($parameter $(= $argument)?)),+],
        ))
    };
}
pub(crate) use emit_many;

/// A parameter and what is bound to it.
macro_rules! bound {
    ($parameter:ident) => {
        (stringify!($parameter), $crate::lower::builder::Arg::from($parameter))
    };
    ($parameter:ident = $argument:expr) => {
        (stringify!($parameter), $crate::lower::builder::Arg::from($argument))
    };
}
pub(crate) use bound;

/// The most operations of a program, its constants included: what unrolls without end is refused.
const MAX_OPERATIONS: usize = 1 << 20;

/// Results of more elements are computed by the program rather than stored in it, unless what they are
/// computed from is as large.
const MAX_FOLDED_ELEMENTS: u64 = 1 << 20;

/// A function that grows at its end. Dereferences to MIL's builder, which names, infers and appends.
pub(crate) struct Builder {
    pub(crate) mil: FunctionBuilder,
    /// For each open block the dimensions that were read off tensors in it.
    dims: Vec<HashMap<(ValueId, usize), ValueId>>,
    /// What tensors of more axes than Core ML has stand for.
    pub(super) high_rank: HashMap<ValueId, HighRank>,
    /// What weights that are stored compressed stand for.
    pub(super) compressed: HashMap<ValueId, CompressedTensor>,
    /// What tensors were before they were repeated as often as is known only when the program runs.
    pub(super) repeated: HashMap<ValueId, ValueId>,
    /// Names that are reserved for outputs.
    output_names: HashSet<String>,
    /// Names that are reserved for inputs.
    input_names: HashSet<String>,
    /// Whether what is appended stays in `fp32`, whatever the precision of the program.
    pub(crate) exact: bool,
    /// What was appended so.
    pub(crate) exact_values: HashSet<ValueId>,
    /// What values are named that are appended now.
    pub(crate) label: String,
}

impl Deref for Builder {
    type Target = FunctionBuilder;

    fn deref(&self) -> &FunctionBuilder {
        &self.mil
    }
}

impl DerefMut for Builder {
    fn deref_mut(&mut self) -> &mut FunctionBuilder {
        &mut self.mil
    }
}

/// What is bound to a parameter.
#[derive(Clone, Debug)]
pub(crate) enum Arg {
    /// Nothing: the parameter has its default.
    Absent,
    One(Binding),
    Many(Vec<Binding>),
}

impl Builder {
    pub(crate) fn new(name: &str, opset: Opset) -> Builder {
        Builder {
            mil: FunctionBuilder::new(name, opset, folded_constants),
            dims: vec![HashMap::new()],
            high_rank: HashMap::new(),
            compressed: HashMap::new(),
            repeated: HashMap::new(),
            output_names: HashSet::new(),
            input_names: HashSet::new(),
            exact: false,
            exact_values: HashSet::new(),
            label: String::new(),
        }
    }

    pub(crate) fn opset(&self) -> Opset {
        self.function.opset
    }

    /// Adds an input to the function. Inputs come before operations.
    pub(crate) fn input(&mut self, name: &str, ty: Type) -> ValueId {
        let is_reserved = self.input_names.remove(name);
        let name = if is_reserved { name.to_owned() } else { self.fresh_name(name) };
        self.mil.input(name, ty)
    }

    /// Opens a block inside the current one; operations go there until [`Builder::close_block`].
    pub(crate) fn open_block(&mut self, inputs: &[(String, Type)]) -> Vec<ValueId> {
        self.dims.push(HashMap::new());
        self.mil.open_block(inputs)
    }

    /// Closes the innermost block.
    pub(crate) fn close_block(&mut self, outputs: &[ValueId]) -> BlockId {
        self.dims.pop();
        self.mil.close_block(outputs.to_vec())
    }

    /// A constant that later operations refer to by name.
    pub(crate) fn constant(&mut self, constant: Constant) -> ValueId {
        self.mil.constant(&self.label, constant)
    }

    /// Appends an operation with one result.
    pub(crate) fn emit<const N: usize>(
        &mut self,
        kind: OpKind,
        arguments: [(&'static str, Arg); N],
    ) -> ValueResult {
        self.append_one(operation(kind, arguments))
    }

    /// Appends an operation with one result that was put together by hand.
    pub(crate) fn append_one(&mut self, op: Op) -> ValueResult {
        match self.append(op)?[..] {
            [value] => Ok(value),
            _ => refuse!("an operation gives other than one value"),
        }
    }

    /// Appends an operation with one result, even if the result is known now.
    pub(crate) fn append_unfolded(&mut self, op: Op) -> ValueResult {
        let outcomes = self.inferred(&op)?;
        Ok(self.append_inferred(op, outcomes)[0])
    }

    /// A value that an operation of its own gives.
    pub(crate) fn copied(&mut self, value: ValueId) -> ValueResult {
        self.append_unfolded(operation(OpKind::Identity, [("x", value.into())]))
    }

    /// Appends an operation that was put together by hand.
    pub(crate) fn append(&mut self, op: Op) -> Result<Vec<ValueId>> {
        if self.function.op_count() >= MAX_OPERATIONS {
            refuse!("takes the program beyond {MAX_OPERATIONS} operations");
        }
        let outcomes = self.inferred(&op)?;
        if let Some(values) = self.append_high_rank(&op, &outcomes)? {
            return Ok(values);
        }
        let folded = self.mil.fold(&op, &outcomes, &self.label);
        if let Some(values) = folded.map_err(|refusal| LoweringError::new(refusal.to_string()))? {
            return Ok(values);
        }
        let shape = outcomes.first().and_then(|outcome| outcome.ty.as_tensor()?.known_shape());
        if let Some(moved) = self.moved_compressed(&op, shape)? {
            return Ok(vec![moved]);
        }
        Ok(self.append_inferred(op, outcomes))
    }

    fn inferred(&mut self, op: &Op) -> Result<Vec<InferredValue>> {
        self.mil.infer(op).map_err(|all| LoweringError::of_operation(op.type_name(), &all))
    }

    pub(super) fn append_inferred(&mut self, op: Op, outcomes: Vec<InferredValue>) -> Vec<ValueId> {
        let outputs = self.mil.append_inferred(op, outcomes, &self.label);
        if self.exact {
            self.exact_values.extend(&outputs);
        }
        outputs
    }

    /// Reserves a name for [`Builder::input`] if it is free: values that are computed from inputs get others.
    pub(crate) fn reserve_input(&mut self, name: &str) {
        if self.reserve(name) {
            self.input_names.insert(name.to_owned());
        }
    }

    /// Reserves a name for [`Builder::rename`].
    pub(crate) fn reserve_output(&mut self, name: &str) {
        self.reserve(name);
        self.output_names.insert(name.to_owned());
    }

    /// Gives a value a name, or the name and a number if something else has it.
    pub(crate) fn rename(&mut self, value: ValueId, name: &str) {
        if self.function.value(value).name != name {
            let is_reserved = self.output_names.remove(name);
            let name = if is_reserved { name.to_owned() } else { self.fresh_name(name) };
            self.function.value_mut(value).name = name;
        }
    }

    /// The constant that a value is.
    pub(crate) fn known(&self, value: ValueId) -> Option<&Constant> {
        self.function.constant(value)
    }

    /// The elements of a small constant.
    pub(crate) fn folded(&self, value: ValueId) -> Option<&KnownElements> {
        self.analysis.folded(value)
    }

    /// The element type of a tensor.
    pub(crate) fn dtype(&self, value: ValueId) -> DType {
        self.analysis.ty(value).map_or(DType::String, dtype_of)
    }

    /// The dimensions of a tensor.
    pub(crate) fn shape(&self, value: ValueId) -> &[Dim] {
        let ty = self.analysis.ty(value).and_then(|ty| ty.unwrap_state().as_tensor());
        ty.map_or(&[], |ty| &ty.shape)
    }

    /// The dimensions of a tensor, if all are fixed.
    pub(crate) fn fixed_shape(&self, value: ValueId) -> Option<Vec<u64>> {
        self.shape(value).iter().map(Dim::known).collect()
    }

    pub(crate) fn rank(&self, value: ValueId) -> usize {
        self.shape(value).len()
    }

    /// One dimension of a tensor, as a value if it is not fixed.
    pub(crate) fn dim(&mut self, value: ValueId, axis: usize) -> Result<Int> {
        if let Some(&dim) = self.high_rank.get(&value).and_then(|folded| folded.dims.get(axis)) {
            return Ok(dim);
        }
        let rank = self.rank(value);
        match self.shape(value).get(axis) {
            None => refuse!("a tensor of rank {rank} has no dimension {axis}"),
            Some(Dim::Known(extent)) => Ok(Int::Known(*extent as i64)),
            Some(Dim::Unknown | Dim::Symbolic(_)) => {
                let known = self.dims.iter().find_map(|dims| dims.get(&(value, axis)));
                if let Some(&known) = known {
                    return Ok(Int::Computed(known));
                }
                let shape = emit!(self, OpKind::Shape, x = value)?;
                let dim = self.element(shape, axis)?;
                self.innermost_dims().insert((value, axis), dim);
                Ok(Int::Computed(dim))
            }
        }
    }

    /// The dimensions that were read in the innermost block.
    fn innermost_dims(&mut self) -> &mut HashMap<(ValueId, usize), ValueId> {
        self.dims.last_mut().expect("the body is never closed")
    }

    /// One element of a vector.
    pub(crate) fn element(&mut self, vector: ValueId, at: usize) -> ValueResult {
        let (begin, end) = ([at as i32], [at as i32 + 1]);
        let squeeze_mask = Arg::bools(&[true]);
        emit!(self, OpKind::SliceByIndex, x = vector, begin, end, squeeze_mask)
    }

    /// States what the open dimensions of a tensor are, which then need not be read off it.
    pub(crate) fn note_dims(&mut self, value: ValueId, dims: &[Int]) {
        for (axis, dim) in dims.iter().enumerate() {
            if let Int::Computed(dim) = dim {
                self.innermost_dims().insert((value, axis), *dim);
            }
        }
    }

    /// All dimensions of a tensor.
    pub(crate) fn dims(&mut self, value: ValueId) -> Result<Vec<Int>> {
        (0..self.rank(value)).map(|axis| self.dim(value, axis)).collect()
    }

    /// A scalar for a number.
    pub(crate) fn number_value(&mut self, number: Number) -> ValueResult {
        match number {
            Number::Int(int) => self.int_value(int),
            Number::Float(real) => self.bound_value(real.into()),
            Number::Bool(truth) => self.bound_value(truth.into()),
        }
    }

    /// A scalar for an integer.
    pub(crate) fn int_value(&mut self, int: Int) -> ValueResult {
        match int {
            Int::Known(known) => Ok(self.constant(Constant::int32(int32(known)?))),
            Int::Computed(value) => Ok(value),
        }
    }

    /// A vector of integers, to bind to `shape`, `begin` and the like.
    pub(crate) fn ints(&mut self, ints: &[Int]) -> Result<Arg> {
        let known: Option<Vec<i64>> = ints.iter().map(|int| int.known()).collect();
        if let Some(known) = known {
            let known = known.into_iter().map(int32).collect::<Result<Vec<_>, _>>()?;
            return Ok(known.as_slice().into());
        }
        let mut parts = Vec::new();
        for int in ints {
            parts.push(match *int {
                Int::Known(known) => Binding::Literal(Constant::int32s(&[int32(known)?])),
                Int::Computed(value) => Binding::Value(self.expand_dims(value, &[0])?),
            });
        }
        if let [Binding::Value(only)] = parts[..] {
            return Ok(only.into());
        }
        let values = Arg::Many(parts);
        Ok(emit!(self, OpKind::Concat, values, axis = 0, interleave = false)?.into())
    }

    /// The extents that are fixed, by axis.
    pub(crate) fn extents(&self, value: ValueId) -> Vec<Option<u64>> {
        self.shape(value).iter().map(Dim::known).collect()
    }

    /// A tensor in another of Core ML's element types.
    pub(crate) fn cast(&mut self, x: ValueId, dtype: DType) -> ValueResult {
        if self.dtype(x) == dtype {
            return Ok(x);
        }
        emit!(self, OpKind::Cast, x, dtype = dtype.name())
    }

    /// A tensor in the element type that Core ML computes torch's in.
    pub(crate) fn cast_to(&mut self, value: ValueId, dtype: ScalarType) -> ValueResult {
        self.cast(value, core_dtype(dtype)?)
    }

    /// `x op y`, both of one element type.
    pub(crate) fn binary(
        &mut self,
        kind: OpKind,
        x: impl Into<Arg>,
        y: impl Into<Arg>,
    ) -> ValueResult {
        self.emit(kind, [("x", x.into()), ("y", y.into())])
    }

    /// `op(x)`.
    pub(crate) fn unary(&mut self, kind: OpKind, x: ValueId) -> ValueResult {
        emit!(self, kind, x)
    }
}

/// The constants that an operation gives, unless they are many and nothing it takes is as large.
fn folded_constants(
    function: &Function,
    op: &Op,
    outcomes: &[InferredValue],
) -> std::result::Result<Option<Vec<Constant>>, infer::InferError> {
    let most = FoldLimits { operands: u64::MAX, results: MAX_FOLDED_ELEMENTS };
    fold(function, op, outcomes, most).map_err(|error| infer::InferError::new(error.to_string()))
}

/// An operation with these arguments, those that are absent left out.
pub(crate) fn operation<const N: usize>(kind: OpKind, arguments: [(&'static str, Arg); N]) -> Op {
    let mut op = Op::new(kind);
    for (name, argument) in arguments {
        match argument {
            Arg::Absent => {}
            Arg::One(binding) => op.set_input(name.into(), vec![binding]),
            Arg::Many(bindings) => op.set_input(name.into(), bindings),
        }
    }
    op
}

/// An integer as Core ML has them.
pub(crate) fn int32(value: i64) -> Result<i32> {
    i32::try_from(value).map_err(|_| {
        LoweringError::new(format!(
            "the integer {value} does not fit 32 bits, which is what Core ML has"
        ))
    })
}

fn dtype_of(ty: &Type) -> DType {
    ty.unwrap_state().as_tensor().map_or(DType::String, |ty| ty.dtype)
}

impl Arg {
    /// A vector of `bool`s.
    pub(crate) fn bools(values: &[bool]) -> Arg {
        let bytes: Vec<u8> = values.iter().map(|&value| u8::from(value)).collect();
        Constant::bytes(DType::Bool, &[values.len() as u64], bytes).into()
    }
}

impl<T: Into<Arg>> From<Option<T>> for Arg {
    fn from(argument: Option<T>) -> Arg {
        argument.map_or(Arg::Absent, Into::into)
    }
}

impl From<ValueId> for Arg {
    fn from(value: ValueId) -> Arg {
        Arg::One(Binding::Value(value))
    }
}

impl From<&[ValueId]> for Arg {
    /// Values for a parameter that takes several.
    fn from(values: &[ValueId]) -> Arg {
        Arg::Many(values.iter().map(|&value| Binding::Value(value)).collect())
    }
}

impl From<Constant> for Arg {
    fn from(constant: Constant) -> Arg {
        Arg::One(Binding::Literal(constant))
    }
}

macro_rules! literals {
    ($($type:ty => $constant:path),*) => {$(
        impl From<$type> for Arg {
            fn from(value: $type) -> Arg {
                $constant(value).into()
            }
        }
    )*};
}

literals!(
    bool => Constant::bool,
    i32 => Constant::int32,
    f32 => Constant::fp32,
    &str => Constant::string,
    &[i32] => Constant::int32s
);

impl From<usize> for Arg {
    /// An axis.
    fn from(axis: usize) -> Arg {
        Constant::int32(axis as i32).into()
    }
}

impl From<f64> for Arg {
    fn from(value: f64) -> Arg {
        Constant::fp32(value as f32).into()
    }
}

impl<T: Into<Arg>> From<Scalar<T>> for Arg {
    fn from(scalar: Scalar<T>) -> Arg {
        match scalar {
            Scalar::Known(value) => value.into(),
            Scalar::Computed(value) => value.into(),
        }
    }
}

impl<const N: usize> From<[i32; N]> for Arg {
    fn from(values: [i32; N]) -> Arg {
        Constant::int32s(&values).into()
    }
}
