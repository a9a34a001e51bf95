//! Builds a function operation by operation, each checked and inferred as it is appended.
//!
//! Whatever can be computed when the program is compiled is: an operation on constants gives a constant,
//! and so does one whose result inference knows, the shape of a tensor with fixed dimensions for instance.
//! Floats are `fp32` here; the precision of the finished program is chosen by a pass.

use std::collections::{HashMap, HashSet};

use coremill_engine::{Array, evaluate};
use coremill_mil::infer::{Analysis, Folded, Outcome};
use coremill_mil::ir::{
    Binding, BlockId, Constant, Dim, Function, Op, Opset, TensorType, Type, ValueId,
};
use coremill_mil::ops::OpKind;
use coremill_tensor::{Buffer, DType};

use super::compressed::Compressed;
use super::high_rank;
use super::moved::moved;
use super::value::Int;
use crate::error::{Refusal, refuse};

/// The most operations of a program, its constants included: what unrolls without end is refused.
const MAX_OPERATIONS: usize = 1 << 20;

/// Results of more elements are computed by the program rather than stored in it, unless what they are
/// computed from is as large.
const MAX_FOLDED_ELEMENTS: u64 = 1 << 20;

/// A function that grows at its end.
pub(crate) struct Builder {
    pub(crate) function: Function,
    pub(crate) analysis: Analysis,
    /// The blocks that are being filled, the innermost last.
    blocks: Vec<Scope>,
    /// What tensors of more axes than Core ML has stand for.
    pub(super) high_rank: HashMap<ValueId, high_rank::Folded>,
    /// What weights that are stored compressed stand for.
    pub(super) compressed: HashMap<ValueId, Compressed>,
    /// What tensors were before they were repeated as often as is known only when the program runs.
    pub(super) repeated: HashMap<ValueId, ValueId>,
    /// How often each name was asked for.
    names: HashMap<String, u32>,
    /// Names that are kept for outputs.
    reserved: HashSet<String>,
    /// Names that are kept for inputs.
    expected: HashSet<String>,
    /// Whether what is appended stays in `fp32`, whatever the precision of the program.
    pub(crate) exact: bool,
    /// What was appended so.
    pub(crate) exact_values: HashSet<ValueId>,
    /// What values are named that are appended now.
    pub(crate) label: String,
}

struct Scope {
    block: BlockId,
    /// Dimensions that were read off tensors in this block.
    dims: HashMap<(ValueId, usize), ValueId>,
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
        let function = Function::new(name, opset);
        let blocks = vec![Scope { block: function.body, dims: HashMap::new() }];
        let (analysis, high_rank, compressed, repeated, names) = Default::default();
        let (reserved, expected, label) = Default::default();
        let exact_values = HashSet::new();
        let exact = false;
        Builder {
            function,
            analysis,
            blocks,
            high_rank,
            compressed,
            repeated,
            names,
            reserved,
            expected,
            label,
            exact,
            exact_values,
        }
    }

    pub(crate) fn opset(&self) -> Opset {
        self.function.opset
    }

    /// The block that operations are appended to.
    pub(crate) fn block(&self) -> BlockId {
        self.blocks.last().expect("the body is never closed").block
    }

    /// Adds an input to the function. Inputs come before operations.
    pub(crate) fn input(&mut self, name: &str, ty: Type) -> ValueId {
        let name = if self.expected.remove(name) { name.to_owned() } else { self.fresh(name) };
        let body = self.function.body;
        let value = self.function.add_input(body, name, ty);
        self.analysis.enter_input(&self.function, value);
        value
    }

    /// Opens a block inside the current one; operations go there until [`Builder::close_block`].
    pub(crate) fn open_block(&mut self, inputs: &[(String, Type)]) -> Vec<ValueId> {
        let block = self.function.add_block();
        for (name, ty) in inputs {
            let name = self.fresh(name);
            self.function.add_input(block, name, ty.clone());
        }
        self.analysis.enter_inputs(&self.function, block);
        self.blocks.push(Scope { block, dims: HashMap::new() });
        self.function.block(block).inputs.clone()
    }

    /// Closes the innermost block.
    pub(crate) fn close_block(&mut self, outputs: &[ValueId]) -> BlockId {
        let scope = self.blocks.pop().expect("every block that is closed was opened");
        self.function.block_mut(scope.block).outputs = outputs.to_vec();
        scope.block
    }

    /// A constant that later operations refer to by name.
    pub(crate) fn constant(&mut self, constant: Constant) -> ValueId {
        let label = self.label.clone();
        self.named_constant(&label, constant)
    }

    pub(crate) fn named_constant(&mut self, name: &str, constant: Constant) -> ValueId {
        let name = self.fresh(name);
        // What the body holds can be used everywhere, and the operation around the current block, which
        // comes after, is not there yet.
        let block = self.function.body;
        let outcomes = vec![Outcome::of_constant(&constant)];
        let op = Op::constant(constant);
        let id = self.analysis.append(&mut self.function, block, op, outcomes, |_| name.clone());
        self.function.op(id).outputs[0]
    }

    /// Appends an operation with one result.
    pub(crate) fn emit<const N: usize>(
        &mut self,
        kind: OpKind,
        arguments: [(&'static str, Arg); N],
    ) -> Result<ValueId, Refusal> {
        let values = self.emit_many(kind, arguments)?;
        match values.as_slice() {
            [value] => Ok(*value),
            _ => Err(Refusal::new(format!("`{}` gives {} values", kind.name(), values.len()))),
        }
    }

    /// Appends an operation.
    pub(crate) fn emit_many<const N: usize>(
        &mut self,
        kind: OpKind,
        arguments: [(&'static str, Arg); N],
    ) -> Result<Vec<ValueId>, Refusal> {
        self.append(operation(kind, arguments))
    }

    /// Appends an operation with one result, even if the result is known now.
    pub(crate) fn emit_unfolded<const N: usize>(
        &mut self,
        kind: OpKind,
        arguments: [(&'static str, Arg); N],
    ) -> Result<ValueId, Refusal> {
        let op = operation(kind, arguments);
        let outcomes = self.analysis.infer_op(&self.function, &op);
        let outcomes = outcomes.map_err(|all| Refusal::of_operation(kind.name(), &all))?;
        let values = self.append_inferred(op, outcomes);
        Ok(values[0])
    }

    /// Appends an operation that was put together by hand.
    pub(crate) fn append(&mut self, op: Op) -> Result<Vec<ValueId>, Refusal> {
        if self.function.op_count() >= MAX_OPERATIONS {
            refuse!("takes the program beyond {MAX_OPERATIONS} operations");
        }
        let outcomes = self.analysis.infer_op(&self.function, &op);
        let outcomes = outcomes.map_err(|all| Refusal::of_operation(op.type_name(), &all))?;
        if high_rank::is_needed(self, &op, &outcomes) {
            return high_rank::append(self, op, &outcomes);
        }
        if let Some(constants) = self.fold(&op, &outcomes)? {
            return Ok(constants.into_iter().map(|constant| self.constant(constant)).collect());
        }
        let shape = outcomes.first().and_then(|outcome| outcome.ty.as_tensor()?.known_shape());
        if let Some(moved) = self.moved_compressed(&op, shape)? {
            return Ok(vec![moved]);
        }
        Ok(self.append_inferred(op, outcomes))
    }

    pub(super) fn append_inferred(&mut self, op: Op, outcomes: Vec<Outcome>) -> Vec<ValueId> {
        let block = self.block();
        let Builder { function, analysis, names, label, .. } = self;
        let id = analysis.append(function, block, op, outcomes, |_| fresh(names, label));
        let outputs = self.function.op(id).outputs.clone();
        if self.exact {
            self.exact_values.extend(&outputs);
        }
        outputs
    }

    /// Keeps a name for [`Builder::input`], if nothing has it: what is done to the inputs before gets others.
    pub(crate) fn expect(&mut self, name: &str) {
        if !self.names.contains_key(name) {
            self.names.insert(name.to_owned(), 0);
            self.expected.insert(name.to_owned());
        }
    }

    /// Keeps a name for [`Builder::rename`].
    pub(crate) fn reserve(&mut self, name: &str) {
        self.names.entry(name.to_owned()).or_insert(0);
        self.reserved.insert(name.to_owned());
    }

    /// Gives a value a name, or the name and a number if something else has it.
    pub(crate) fn rename(&mut self, value: ValueId, name: &str) {
        if self.function.value(value).name != name {
            let kept = self.reserved.remove(name);
            let name = if kept { name.to_owned() } else { self.fresh(name) };
            self.function.value_mut(value).name = name;
        }
    }

    /// The constants that an operation gives, if they are worth storing.
    fn fold(&self, op: &Op, outcomes: &[Outcome]) -> Result<Option<Vec<Constant>>, Refusal> {
        let Some(kind) = op.kind() else { return Ok(None) };
        if outcomes.is_empty() || kind.is_constexpr() || !op.blocks.is_empty() || kind.is_random() {
            return Ok(None);
        }
        let known = |outcome: &Outcome| outcome.value.as_deref().and_then(Folded::to_constant);
        if let Some(constants) = outcomes.iter().map(known).collect() {
            return Ok(Some(constants));
        }
        let mut arguments = Vec::with_capacity(op.inputs.len());
        let mut largest = MAX_FOLDED_ELEMENTS;
        for input in &op.inputs {
            let mut constants = Vec::with_capacity(input.bindings.len());
            for binding in &input.bindings {
                let Some(constant) = self.function.bound_constant(binding) else { return Ok(None) };
                let elements = constant.tensor_type().and_then(TensorType::element_count);
                largest = largest.max(elements.unwrap_or(0));
                constants.push(constant);
            }
            arguments.push((input.name.as_ref(), constants));
        }
        let small = outcomes.iter().all(|outcome| {
            let elements = outcome.ty.as_tensor().and_then(TensorType::element_count);
            elements.is_some_and(|elements| elements <= largest)
        });
        if !small {
            return Ok(None);
        }
        if let Some(constants) = moved(&self.function, op, outcomes) {
            return Ok(Some(constants));
        }
        let mut arrays = Vec::with_capacity(arguments.len());
        for (name, constants) in arguments {
            let converted = constants.into_iter().map(Array::from_constant);
            let converted = converted.collect::<Result<Vec<_>, _>>();
            arrays.push((name, converted.map_err(|error| Refusal::new(error.to_string()))?));
        }
        let arrays: Vec<_> = arrays.iter().map(|(name, all)| (*name, all.as_slice())).collect();
        let dtypes: Vec<_> = outcomes.iter().map(|outcome| dtype_of(&outcome.ty)).collect();
        let results = evaluate(kind, self.opset(), &arrays, &dtypes);
        let results = results.map_err(|error| Refusal::new(error.to_string()))?;
        Ok(results.iter().map(constant_of).collect())
    }

    /// The constant that a value is.
    pub(crate) fn known(&self, value: ValueId) -> Option<&Constant> {
        self.function.constant(value)
    }

    /// The elements of a small constant.
    pub(crate) fn folded(&self, value: ValueId) -> Option<&Folded> {
        self.analysis.folded(value)
    }

    /// The element type of a tensor.
    pub(crate) fn dtype(&self, value: ValueId) -> DType {
        self.analysis.ty(value).map_or(DType::String, dtype_of)
    }

    /// The dimensions of a tensor.
    pub(crate) fn shape(&self, value: ValueId) -> &[Dim] {
        let ty = self.analysis.ty(value).and_then(|ty| ty.stripped_of_state().as_tensor());
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
    pub(crate) fn dim(&mut self, value: ValueId, axis: usize) -> Result<Int, Refusal> {
        if let Some(&dim) = self.high_rank.get(&value).and_then(|folded| folded.dims.get(axis)) {
            return Ok(dim);
        }
        let dim = self.shape(value).get(axis).cloned();
        match dim {
            None => Err(Refusal::new(format!(
                "a tensor of rank {} has no dimension {axis}",
                self.rank(value)
            ))),
            Some(Dim::Known(extent)) => Ok(Int::Known(extent as i64)),
            Some(Dim::Unknown | Dim::Symbolic(_)) => {
                let known = self.blocks.iter().find_map(|scope| scope.dims.get(&(value, axis)));
                if let Some(&known) = known {
                    return Ok(Int::Computed(known));
                }
                let shape = self.emit(OpKind::Shape, [("x", value.into())])?;
                let at = axis as i32;
                let dim = self.emit(
                    OpKind::SliceByIndex,
                    [
                        ("x", shape.into()),
                        ("begin", [at].into()),
                        ("end", [at + 1].into()),
                        ("squeeze_mask", Arg::bools(&[true])),
                    ],
                )?;
                let scope = self.blocks.last_mut().expect("the body is never closed");
                scope.dims.insert((value, axis), dim);
                Ok(Int::Computed(dim))
            }
        }
    }

    /// States what the open dimensions of a tensor are, which then need not be read off it.
    pub(crate) fn note_dims(&mut self, value: ValueId, dims: &[Int]) {
        let scope = self.blocks.last_mut().expect("the body is never closed");
        for (axis, dim) in dims.iter().enumerate() {
            if let Int::Computed(dim) = dim {
                scope.dims.insert((value, axis), *dim);
            }
        }
    }

    /// All dimensions of a tensor.
    pub(crate) fn dims(&mut self, value: ValueId) -> Result<Vec<Int>, Refusal> {
        (0..self.rank(value)).map(|axis| self.dim(value, axis)).collect()
    }

    /// A scalar for an integer.
    pub(crate) fn int_value(&mut self, int: Int) -> Result<ValueId, Refusal> {
        match int {
            Int::Known(known) => Ok(self.constant(Constant::int32(int32(known)?))),
            Int::Computed(value) => Ok(value),
        }
    }

    /// A vector of integers, to bind to `shape`, `begin` and the like.
    pub(crate) fn ints(&mut self, ints: &[Int]) -> Result<Arg, Refusal> {
        let known: Option<Vec<i64>> = ints.iter().map(|int| int.known()).collect();
        if let Some(known) = known {
            let known = known.into_iter().map(int32).collect::<Result<Vec<_>, _>>()?;
            return Ok(known.as_slice().into());
        }
        let mut parts = Vec::new();
        for int in ints {
            parts.push(match int {
                Int::Known(known) => Binding::Literal(Constant::int32s(&[int32(*known)?])),
                Int::Computed(value) => {
                    let part = self
                        .emit(OpKind::ExpandDims, [("x", (*value).into()), ("axes", [0].into())])?;
                    Binding::Value(part)
                }
            });
        }
        if let [Binding::Value(only)] = parts.as_slice() {
            return Ok((*only).into());
        }
        let joined = self.emit(
            OpKind::Concat,
            [("values", Arg::Many(parts)), ("axis", 0.into()), ("interleave", false.into())],
        )?;
        Ok(joined.into())
    }

    /// A name that nothing has yet.
    fn fresh(&mut self, wanted: &str) -> String {
        fresh(&mut self.names, wanted)
    }
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
pub(crate) fn int32(value: i64) -> Result<i32, Refusal> {
    i32::try_from(value).map_err(|_| {
        Refusal::new(format!("the integer {value} does not fit 32 bits, which is what Core ML has"))
    })
}

fn dtype_of(ty: &Type) -> DType {
    ty.stripped_of_state().as_tensor().map_or(DType::String, |ty| ty.dtype)
}

fn constant_of(array: &Array) -> Option<Constant> {
    let shape: Vec<_> = array.shape().iter().map(|&extent| extent as u64).collect();
    Some(Constant::by_size(array.dtype(), &shape, Buffer::from(array.to_bytes()?)))
}

/// A name that nothing has yet: the one wanted, or that and a number.
fn fresh(names: &mut HashMap<String, u32>, wanted: &str) -> String {
    if !names.contains_key(wanted) {
        names.insert(wanted.to_owned(), 0);
        return wanted.to_owned();
    }
    loop {
        let count = names.get_mut(wanted).expect("it is there, as the line above found");
        *count += 1;
        let name = format!("{wanted}_{count}");
        if !names.contains_key(&name) {
            names.insert(name.clone(), 0);
            return name;
        }
    }
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

impl From<bool> for Arg {
    fn from(value: bool) -> Arg {
        Constant::bool(value).into()
    }
}

impl From<i32> for Arg {
    fn from(value: i32) -> Arg {
        Constant::int32(value).into()
    }
}

impl From<f32> for Arg {
    fn from(value: f32) -> Arg {
        Constant::fp32(value).into()
    }
}

impl From<&str> for Arg {
    fn from(text: &str) -> Arg {
        Constant::string(text).into()
    }
}

impl From<&[i32]> for Arg {
    fn from(values: &[i32]) -> Arg {
        Constant::int32s(values).into()
    }
}

impl<const N: usize> From<[i32; N]> for Arg {
    fn from(values: [i32; N]) -> Arg {
        Constant::int32s(&values).into()
    }
}
