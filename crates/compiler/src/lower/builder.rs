//! Builder of lowered functions: MIL's builder plus information about values.
//!
//! Constant expressions are folded at compile time: operations on constants, and operations whose result type
//! inference knows, such as the shape of a static tensor. Floats are `fp32` here; a pass chooses the precision of
//! the finished program.

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

/// The appended value, or an error.
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

/// A parameter and its argument.
macro_rules! bound {
    ($parameter:ident) => {
        (stringify!($parameter), $crate::lower::builder::Arg::from($parameter))
    };
    ($parameter:ident = $argument:expr) => {
        (stringify!($parameter), $crate::lower::builder::Arg::from($argument))
    };
}
pub(crate) use bound;

/// Maximum number of operations of a program, including constants. Limits unrolling.
const MAX_OPERATIONS: usize = 1 << 20;

/// Maximum number of elements of a folded constant. A larger result is computed at run time unless its operands are
/// as large.
const MAX_FOLDED_ELEMENTS: u64 = 1 << 20;

/// A function under construction. Dereferences to MIL's builder, which names, infers and appends.
pub(crate) struct Builder {
    pub(crate) mil: FunctionBuilder,
    /// For each open block, the dimensions already read off tensors.
    dims: Vec<HashMap<(ValueId, usize), ValueId>>,
    /// Low-rank representations of tensors with a higher rank than Core ML supports.
    pub(super) high_rank: HashMap<ValueId, HighRank>,
    /// Contents of weights that are stored compressed.
    pub(super) compressed: HashMap<ValueId, CompressedTensor>,
    /// Maps a tensor with a dynamic repeat count to the tensor before the repetition.
    pub(super) repeated: HashMap<ValueId, ValueId>,
    /// Names reserved for outputs.
    output_names: HashSet<String>,
    /// Names reserved for inputs.
    input_names: HashSet<String>,
    /// Whether new operations stay in `fp32`, independent of the program's precision.
    pub(crate) exact: bool,
    /// The values that stay in `fp32`.
    pub(crate) exact_values: HashSet<ValueId>,
    /// Base name of new values.
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

/// Argument of a parameter.
#[derive(Clone, Debug)]
pub(crate) enum Arg {
    /// No argument: the parameter has its default.
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

    /// Adds an input to the function. Inputs precede operations.
    pub(crate) fn input(&mut self, name: &str, ty: Type) -> ValueId {
        let is_reserved = self.input_names.remove(name);
        let name = if is_reserved { name.to_owned() } else { self.fresh_name(name) };
        self.mil.input(name, ty)
    }

    /// Opens a nested block. Operations are appended to it until [`Builder::close_block`].
    pub(crate) fn open_block(&mut self, inputs: &[(String, Type)]) -> Vec<ValueId> {
        self.dims.push(HashMap::new());
        self.mil.open_block(inputs)
    }

    /// Closes the innermost block.
    pub(crate) fn close_block(&mut self, outputs: &[ValueId]) -> BlockId {
        self.dims.pop();
        self.mil.close_block(outputs.to_vec())
    }

    /// Adds a constant that later operations can use.
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

    /// Appends an [`Op`] with one result.
    pub(crate) fn append_one(&mut self, op: Op) -> ValueResult {
        match self.append(op)?[..] {
            [value] => Ok(value),
            _ => refuse!("an operation must have one result"),
        }
    }

    /// Appends an operation with one result, even if it could be folded.
    pub(crate) fn append_unfolded(&mut self, op: Op) -> ValueResult {
        let outcomes = self.inferred(&op)?;
        Ok(self.append_inferred(op, outcomes)[0])
    }

    /// Copies a value with an operation of its own.
    pub(crate) fn copied(&mut self, value: ValueId) -> ValueResult {
        self.append_unfolded(operation(OpKind::Identity, [("x", value.into())]))
    }

    /// Appends an [`Op`].
    pub(crate) fn append(&mut self, op: Op) -> Result<Vec<ValueId>> {
        if self.function.op_count() >= MAX_OPERATIONS {
            refuse!("the program exceeds the maximum of {MAX_OPERATIONS} operations");
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

    /// Reserves a name for [`Builder::input`] if it is free, so that computed values get other names.
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

    /// Renames a value. A number is added to the name if it is taken.
    pub(crate) fn rename(&mut self, value: ValueId, name: &str) {
        if self.function.value(value).name != name {
            let is_reserved = self.output_names.remove(name);
            let name = if is_reserved { name.to_owned() } else { self.fresh_name(name) };
            self.function.value_mut(value).name = name;
        }
    }

    /// The constant of a value.
    pub(crate) fn known(&self, value: ValueId) -> Option<&Constant> {
        self.function.constant(value)
    }

    /// The elements of a small constant.
    pub(crate) fn folded(&self, value: ValueId) -> Option<&KnownElements> {
        self.analysis.folded(value)
    }

    /// Element type of a tensor.
    pub(crate) fn dtype(&self, value: ValueId) -> DType {
        self.analysis.ty(value).map_or(DType::String, dtype_of)
    }

    /// Dimensions of a tensor.
    pub(crate) fn shape(&self, value: ValueId) -> &[Dim] {
        let ty = self.analysis.ty(value).and_then(|ty| ty.unwrap_state().as_tensor());
        ty.map_or(&[], |ty| &ty.shape)
    }

    /// Dimensions of a static tensor.
    pub(crate) fn fixed_shape(&self, value: ValueId) -> Option<Vec<u64>> {
        self.shape(value).iter().map(Dim::known).collect()
    }

    pub(crate) fn rank(&self, value: ValueId) -> usize {
        self.shape(value).len()
    }

    /// One dimension of a tensor: a constant, or a value if it is dynamic.
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

    /// Dimensions already read in the innermost block.
    fn innermost_dims(&mut self) -> &mut HashMap<(ValueId, usize), ValueId> {
        self.dims.last_mut().expect("the body is never closed")
    }

    /// One element of a vector.
    pub(crate) fn element(&mut self, vector: ValueId, at: usize) -> ValueResult {
        let (begin, end) = ([at as i32], [at as i32 + 1]);
        let squeeze_mask = Arg::bools(&[true]);
        emit!(self, OpKind::SliceByIndex, x = vector, begin, end, squeeze_mask)
    }

    /// Records known values of a tensor's dynamic dimensions, so that they need not be read off it.
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

    /// A vector of integers, for parameters such as `shape` or `begin`.
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

    /// Static sizes by axis.
    pub(crate) fn extents(&self, value: ValueId) -> Vec<Option<u64>> {
        self.shape(value).iter().map(Dim::known).collect()
    }

    /// Casts to another element type of Core ML.
    pub(crate) fn cast(&mut self, x: ValueId, dtype: DType) -> ValueResult {
        if self.dtype(x) == dtype {
            return Ok(x);
        }
        emit!(self, OpKind::Cast, x, dtype = dtype.name())
    }

    /// Casts to Core ML's equivalent of torch's element type.
    pub(crate) fn cast_to(&mut self, value: ValueId, dtype: ScalarType) -> ValueResult {
        self.cast(value, core_dtype(dtype)?)
    }

    /// `x op y` for operands of one element type.
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

/// Folds an operation to constants, unless the results are large and no operand is as large.
fn folded_constants(
    function: &Function,
    op: &Op,
    outcomes: &[InferredValue],
) -> std::result::Result<Option<Vec<Constant>>, infer::InferError> {
    let most = FoldLimits { operands: u64::MAX, results: MAX_FOLDED_ELEMENTS };
    fold(function, op, outcomes, most).map_err(|error| infer::InferError::new(error.to_string()))
}

/// Creates an operation; absent arguments are omitted.
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

/// Converts an integer to Core ML's 32 bits.
pub(crate) fn int32(value: i64) -> Result<i32> {
    i32::try_from(value).map_err(|_| {
        LoweringError::new(format!(
            "the integer {value} does not fit in the 32 bits of Core ML's integers"
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
    /// Values of a variadic parameter.
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
