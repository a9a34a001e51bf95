//! Type inference: computes the types of an operation's outputs from its arguments.
//!
//! [`analyze`] walks a function once, in order. It checks each operation against its row in the [op
//! table](crate::ops), and then calls the rule of the operation, which infers the types of the outputs. Rules
//! are plain functions of an `InferContext`, one file for each family, dispatched by the list in
//! `ops/dispatch.rs`. Unknown dimensions of the function's inputs become symbols. Rules compute with them, so
//! most dimensions are expressions of these symbols. Elements of small integer tensors are tracked as well
//! ([`KnownElements`]), because shapes depend on them.
//!
//! An invalid operation is reported as a [`Problem`]. The walk then continues with the declared types of its
//! outputs, so that each error is reported exactly once.

mod fold;
mod folded;
mod loops;
mod rules;
mod shape;
mod site;

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::HashMap;

use coremill_tensor::DType;

pub(crate) use folded::round_to;
pub use folded::{KnownElements, MAX_FOLDED_ELEMENTS, Scalar};
use site::Operands;
pub(crate) use site::{InferContext, Rule, refuse};
pub use site::{InferError, InferredValue, normalize_axis};

use crate::ir::{
    Binding, BlockId, Dim, Expr, Function, Op, OpId, Operator, Symbol, TensorType, Type, ValueId,
};
use crate::ops::{Accepts, OpKind, OpRow};

/// Inference results of a function.
#[derive(Clone, Debug, Default)]
pub struct Analysis {
    /// Result for each value, by [`ValueId::index`]; `None` for values that no block defines.
    outcomes: Vec<Option<InferredValue>>,
    /// The input dimension of each symbol. Symbols that depend on data have no entry.
    symbols: HashMap<Symbol, (ValueId, usize)>,
    next_symbol: u32,
    /// Number of loops around the current operation.
    loop_depth: usize,
    /// Total size of all results, in elements and atoms of expressions.
    kept: usize,
}

/// An invalid operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The operation.
    pub op: OpId,
    /// The reason.
    pub refusal: InferError,
}

/// Maximum total size of the results, in elements and atoms of expressions. Above it, only the types of
/// further results are tracked. A program needs a few elements for each operation; a hostile program could
/// require thousands for each.
pub const MAX_KEPT: usize = 1 << 24;

/// Maximum number of elements of a folded tensor with symbolic elements; real shapes are much smaller.
pub const MAX_SYMBOLIC_ELEMENTS: usize = 256;

/// Maximum rank of a tensor. Without the limit, operations could double the rank again and again. Core ML
/// itself supports rank 5.
pub const MAX_RANK: usize = crate::limits::RANK;

/// Maximum nesting depth of blocks, as in packages.
pub const MAX_BLOCK_DEPTH: usize = crate::limits::BLOCK_DEPTH as usize;

/// Infers the types of all values of a function, and reports invalid operations.
pub fn analyze(function: &Function) -> (Analysis, Vec<Problem>) {
    let mut analysis = Analysis::default();
    let mut problems = Vec::new();
    analysis.enter_inputs(function, function.body);
    analysis.walk(function, function.body, 0, &mut problems);
    (analysis, problems)
}

impl Analysis {
    /// Returns an empty analysis for a function derived from an analyzed one. Its new symbols differ from
    /// those in `earlier`.
    pub fn after(earlier: &Analysis) -> Analysis {
        Analysis { next_symbol: earlier.next_symbol, ..Analysis::default() }
    }

    /// The result for a value; `None` if no block defines it.
    pub fn outcome(&self, value: ValueId) -> Option<&InferredValue> {
        self.outcomes.get(value.index())?.as_ref()
    }

    /// The inferred type of a value.
    pub fn ty(&self, value: ValueId) -> Option<&Type> {
        self.outcome(value).map(|outcome| &outcome.ty)
    }

    /// The known elements of a value.
    pub fn folded(&self, value: ValueId) -> Option<&KnownElements> {
        self.outcome(value)?.value.as_deref()
    }

    /// The input and the axis of a symbol; `None` if the symbol depends on data.
    pub fn origin(&self, symbol: Symbol) -> Option<(ValueId, usize)> {
        self.symbols.get(&symbol).copied()
    }

    /// Infers an operation whose arguments were already inferred, and records the result. Use it to build a
    /// function operation by operation. The blocks of the operation are walked first.
    pub fn extend(&mut self, function: &Function, op: OpId) -> Result<(), Vec<Problem>> {
        let mut problems = Vec::new();
        self.visit(function, op, 0, &mut problems);
        if problems.is_empty() { Ok(()) } else { Err(problems) }
    }

    /// Infers an operation as if it were appended to the function. Its arguments must have been inferred, and
    /// its blocks must be complete.
    pub fn infer_op(
        &mut self,
        function: &Function,
        op: &Op,
    ) -> Result<Vec<InferredValue>, Vec<InferError>> {
        let kind = match &op.operator {
            Operator::Known(kind) => *kind,
            Operator::Unknown(name) => {
                return Err(vec![
                    InferError::new(OpKind::unknown(name))
                        .hint("custom layers and operations of later releases cannot be verified"),
                ]);
            }
        };
        let Some(row) = kind.row(function.opset) else {
            let introduced = kind.introduced();
            let message = format!(
                "`{}` needs {introduced}; this function is {}",
                kind.name(),
                function.opset
            );
            let hint = format!("declare the function with opset `{}`", introduced.name());
            return Err(vec![InferError::new(message).hint(hint)]);
        };

        let mut operands: Operands = Vec::with_capacity(op.inputs.len());
        for input in &op.inputs {
            match self.bound(&input.bindings) {
                Some(bound) => operands.push((&input.name, bound)),
                None => {
                    let message = "is bound to a value that is not defined before this operation";
                    return Err(vec![InferError::new(message).of(input.name.as_ref())]);
                }
            }
        }
        if kind.is_constexpr() {
            let stated = op.attributes.iter().filter(|(name, _)| *name != "name");
            operands.extend(
                stated.map(|(name, value)| {
                    (name, Cow::Owned(vec![InferredValue::of_constant(value)]))
                }),
            );
        }
        let refusals = check_against_row(row, op, &operands);
        if !refusals.is_empty() {
            return Err(refusals);
        }

        let constant = gives_constant(kind, op, &operands);
        let known = |values: &[ValueId]| {
            values.iter().filter_map(|&value| self.outcome(value).cloned()).collect()
        };
        let blocks = || op.blocks.iter().map(|&block| function.block(block));
        let block_inputs = blocks().map(|block| known(&block.inputs)).collect();
        let block_outputs = blocks().map(|block| known(&block.outputs)).collect();
        let next_symbol = Cell::new(self.next_symbol);
        let site = InferContext {
            function,
            op,
            row,
            operands,
            block_inputs,
            block_outputs,
            next_symbol: &next_symbol,
        };
        let outcomes = rules::rule(kind)(&site);
        self.next_symbol = next_symbol.get();
        let mut outcomes = outcomes.map_err(|refusal| vec![refusal])?;
        for outcome in &mut outcomes {
            let rank = outcome.ty.as_tensor().map_or(0, TensorType::rank);
            if rank > MAX_RANK {
                let message =
                    format!("the result must have a rank of at most {MAX_RANK}, got {rank}");
                return Err(vec![InferError::new(message)]);
            }
            outcome.constant |= constant;
        }
        Ok(outcomes)
    }

    /// Appends an operation with the outputs that [`Analysis::infer_op`] returned. `name` returns the name of
    /// each output by position.
    pub fn append(
        &mut self,
        function: &mut Function,
        block: BlockId,
        op: Op,
        outcomes: Vec<InferredValue>,
        mut name: impl FnMut(usize) -> String,
    ) -> OpId {
        let outputs =
            outcomes.iter().enumerate().map(|(at, outcome)| (name(at), outcome.ty.erased()));
        let id = function.add_op(block, op, outputs);
        for (position, outcome) in outcomes.into_iter().enumerate() {
            self.record(function.op(id).outputs[position], outcome);
        }
        id
    }

    /// Replaces the results for values.
    pub fn replace(&mut self, values: &[ValueId], outcomes: Vec<InferredValue>) {
        for (&value, outcome) in values.iter().zip(outcomes) {
            self.record(value, outcome);
        }
    }

    /// Infers an input that was added to a block whose other inputs are already known.
    pub fn enter_input(&mut self, function: &Function, input: ValueId) {
        let ty = self.opened(&function.value(input).ty, Some(input));
        self.record(input, InferredValue::of(ty));
    }

    /// Infers the inputs of a block; unknown dimensions become symbols.
    pub fn enter_inputs(&mut self, function: &Function, block: BlockId) {
        for &input in &function.block(block).inputs {
            self.enter_input(function, input);
        }
    }

    /// Sets the dimensions of an input to known expressions, for instance because two inputs share an unknown
    /// dimension.
    pub fn set_shape(&mut self, input: ValueId, shape: Vec<Dim>) {
        if let Some(Some(outcome)) = self.outcomes.get_mut(input.index())
            && let Type::Tensor(tensor) = &mut outcome.ty
        {
            tensor.shape = shape;
        }
    }

    fn walk(
        &mut self,
        function: &Function,
        block: BlockId,
        depth: usize,
        problems: &mut Vec<Problem>,
    ) {
        for &op in &function.block(block).ops {
            self.visit(function, op, depth, problems);
        }
    }

    fn visit(&mut self, function: &Function, id: OpId, depth: usize, problems: &mut Vec<Problem>) {
        let op = function.op(id);
        if depth >= MAX_BLOCK_DEPTH && !op.blocks.is_empty() {
            let message = format!("blocks are nested deeper than {MAX_BLOCK_DEPTH} levels");
            problems.push(Problem { op: id, refusal: InferError::new(message) });
            return self.assume_declared(function, op);
        }
        if op.kind() == Some(OpKind::WhileLoop) {
            self.walk_loop(function, op, depth, problems);
        } else {
            for &block in &op.blocks {
                self.enter_inputs(function, block);
                self.walk(function, block, depth + 1, problems);
            }
        }
        match self.infer(function, op) {
            Ok(outcomes) => {
                for (&output, outcome) in op.outputs.iter().zip(outcomes) {
                    self.record(output, outcome);
                }
            }
            Err(refusals) => {
                problems.extend(refusals.into_iter().map(|refusal| Problem { op: id, refusal }));
                self.assume_declared(function, op);
            }
        }
    }

    fn infer(
        &mut self,
        function: &Function,
        op: &Op,
    ) -> Result<Vec<InferredValue>, Vec<InferError>> {
        let outcomes = self.infer_op(function, op)?;
        if outcomes.len() != op.outputs.len() {
            let message = format!(
                "returns {} values, but {} outputs are declared",
                outcomes.len(),
                op.outputs.len()
            );
            return Err(vec![InferError::new(message)]);
        }
        Ok(outcomes)
    }

    /// The results for all values bound to a parameter; `None` if one is undefined.
    fn bound(&self, bindings: &[Binding]) -> Option<Cow<'_, [InferredValue]>> {
        if let [Binding::Value(value)] = bindings {
            return self.outcome(*value).map(|outcome| std::slice::from_ref(outcome).into());
        }
        bindings.iter().map(|binding| self.operand(binding)).collect()
    }

    fn operand(&self, binding: &Binding) -> Option<InferredValue> {
        match binding {
            Binding::Value(value) => self.outcome(*value).cloned(),
            Binding::Literal(constant) => Some(InferredValue::of_constant(constant)),
        }
    }

    /// Uses the declared types for the outputs of an invalid operation.
    fn assume_declared(&mut self, function: &Function, op: &Op) {
        for &output in &op.outputs {
            let ty = self.opened(&function.value(output).ty, None);
            self.record(output, InferredValue::of(ty));
        }
    }

    fn record(&mut self, value: ValueId, mut outcome: InferredValue) {
        let (cost, symbolic) = cost_of(&outcome);
        if symbolic > MAX_SYMBOLIC_ELEMENTS {
            outcome.value = None;
        }
        match self.kept.checked_add(cost).filter(|&kept| kept <= MAX_KEPT) {
            Some(kept) => self.kept = kept,
            None => {
                outcome.value = None;
                self.forget_expressions(&mut outcome.ty);
            }
        }
        if self.outcomes.len() <= value.index() {
            self.outcomes.resize(value.index() + 1, None);
        }
        self.outcomes[value.index()] = Some(outcome);
    }

    /// Replaces every unknown dimension of a type by a symbol.
    fn opened(&mut self, ty: &Type, origin: Option<ValueId>) -> Type {
        match ty {
            Type::Tensor(tensor) => {
                let mut tensor = tensor.clone();
                for (axis, dim) in tensor.shape.iter_mut().enumerate() {
                    if *dim == Dim::Unknown {
                        *dim = self.new_symbol(origin.map(|value| (value, axis)));
                    }
                }
                Type::Tensor(tensor)
            }
            Type::List(element, length) => {
                let length = match length {
                    Dim::Unknown => self.new_symbol(None),
                    Dim::Known(_) | Dim::Symbolic(_) => length.clone(),
                };
                // The elements of a list may differ in their unknown dimensions.
                Type::List(element.clone(), length)
            }
            Type::Tuple(parts) => {
                Type::Tuple(parts.iter().map(|part| self.opened(part, None)).collect())
            }
            Type::Dictionary(..) => ty.clone(),
            Type::State(held) => Type::State(Box::new(self.opened(held, origin))),
        }
    }

    /// Replaces larger expressions in a type by symbols.
    fn forget_expressions(&mut self, ty: &mut Type) {
        let Type::Tensor(tensor) = ty else { return };
        for dim in &mut tensor.shape {
            if expression_size(dim) > expression_size(&Dim::Symbolic(Expr::from(Symbol(0)))) {
                *dim = self.new_symbol(None);
            }
        }
    }

    fn new_symbol(&mut self, origin: Option<(ValueId, usize)>) -> Dim {
        let symbol = Symbol(self.next_symbol);
        self.next_symbol += 1;
        if let Some(origin) = origin {
            self.symbols.insert(symbol, origin);
        }
        Dim::Symbolic(Expr::from(symbol))
    }
}

/// Size of a result, and its number of symbolic elements.
fn cost_of(outcome: &InferredValue) -> (usize, usize) {
    let dims = outcome.ty.as_tensor().map_or(&[][..], |tensor| &tensor.shape);
    let elements = outcome.value.as_ref().map_or(&[][..], |value| &value.elements);
    let (mut cost, mut symbolic) = (dims.iter().map(expression_size).sum::<usize>(), 0);
    for element in elements {
        cost += 1;
        if let Scalar::Symbolic(expr) = element {
            cost += expr.size();
            symbolic += 1;
        }
    }
    (cost, symbolic)
}

fn expression_size(dim: &Dim) -> usize {
    match dim {
        Dim::Symbolic(expr) => expr.size(),
        Dim::Known(_) | Dim::Unknown => 0,
    }
}

/// Whether the outputs of an operation are known at compile time.
fn gives_constant(kind: OpKind, op: &Op, operands: &Operands) -> bool {
    if kind.is_constant() {
        return true;
    }
    let mut bound = operands.iter().flat_map(|(_, bound)| bound.iter()).peekable();
    op.blocks.is_empty() && bound.peek().is_some() && bound.all(|operand| operand.constant)
}

/// Checks the arguments of an operation against its row.
fn check_against_row(row: &OpRow, op: &Op, operands: &Operands) -> Vec<InferError> {
    let mut refusals = Vec::new();
    for (name, _) in operands {
        if row.parameter(name).is_none() {
            refusals.push(unknown_parameter(row, name));
        }
    }
    for parameter in row.parameters.iter().filter(|parameter| parameter.required) {
        // A parameter that accepts several values may be bound to an empty list.
        let bound = operands.iter().find(|(name, _)| *name == parameter.name);
        let missing = match bound {
            None => true,
            Some((_, bound)) => bound.is_empty() && parameter.accepts != Accepts::Values,
        };
        if missing {
            let message = "is required, but nothing is bound to it";
            refusals.push(InferError::new(message).of(parameter.name));
        }
    }

    let mut variables: Vec<(&str, &str, DType)> = Vec::new();
    for (name, bound) in operands {
        let Some(parameter) = row.parameter(name) else { continue };
        let refuse = |message: String| InferError::new(message).of(parameter.name);
        if parameter.accepts != Accepts::Values && bound.len() != 1 {
            let message = format!("expects one value, found {}", bound.len());
            refusals.push(refuse(message));
            continue;
        }
        if parameter.constant && !bound.iter().all(|operand| operand.constant) {
            let found: Vec<_> = bound.iter().map(|operand| operand.ty.to_string()).collect();
            let message = format!(
                "must be known when the program is compiled; found a computed `{}`",
                found.join(", ")
            );
            refusals.push(refuse(message).hint("bind it to a `const`"));
        }
        let Some(operand) = bound.first() else { continue };
        match (parameter.accepts, &operand.ty) {
            (Accepts::Tensor { variable, dtypes }, Type::Tensor(tensor)) => {
                if !dtypes.contains(&tensor.dtype) {
                    let message = format!(
                        "has element type `{}`; expected {} in {}",
                        tensor.dtype,
                        backquoted(dtypes),
                        row.since
                    );
                    let hint = remedy_for_dtype(row, parameter.name, tensor.dtype);
                    refusals.push(refuse(message).hint(hint));
                } else if let Some(variable) = variable {
                    match variables.iter().find(|(name, ..)| *name == variable) {
                        None => variables.push((variable, parameter.name, tensor.dtype)),
                        Some((_, other, dtype)) if *dtype != tensor.dtype => {
                            let message = format!(
                                "has element type `{}`, but `{other}` has `{dtype}`; both must be the same",
                                tensor.dtype
                            );
                            refusals.push(refuse(message).hint("`cast` one of them"));
                        }
                        Some(_) => {}
                    }
                }
            }
            (Accepts::Tensor { .. }, found) => {
                refusals.push(refuse(format!("expects a tensor, found `{found}`")));
            }
            (Accepts::List, Type::List(..))
            | (Accepts::State, Type::State(_))
            | (Accepts::Values | Accepts::Any, _) => {}
            (Accepts::List, found) => {
                refusals.push(refuse(format!("expects a list, found `{found}`")));
            }
            (Accepts::State, found) => {
                refusals.push(refuse(format!("expects a state, found `{found}`")));
            }
        }
    }

    if op.blocks.len() != row.blocks.len() {
        let message = format!("requires {} blocks, found {}", row.blocks.len(), op.blocks.len());
        refusals.push(InferError::new(message));
    }
    refusals
}

/// Suggests a fix for an unsupported element type of a parameter.
fn remedy_for_dtype(row: &OpRow, name: &str, dtype: DType) -> String {
    let accepts = |newer: &&OpRow| {
        newer.since > row.since
            && newer.parameter(name).is_some_and(|parameter| match parameter.accepts {
                Accepts::Tensor { dtypes, .. } => dtypes.contains(&dtype),
                Accepts::Values | Accepts::List | Accepts::State | Accepts::Any => false,
            })
    };
    match row.kind.rows().iter().find(accepts) {
        Some(newer) => {
            format!("declare the function with opset `{}`, or `cast` first", newer.since.name())
        }
        None => "`cast` it first".to_owned(),
    }
}

fn unknown_parameter(row: &OpRow, name: &str) -> InferError {
    let refusal = InferError::new("is not a parameter of this operation").of(name);
    let newer = row.kind.rows().iter().find(|newer| newer.parameter(name).is_some());
    match newer {
        Some(newer) if newer.since > row.since => {
            let message = format!("was introduced in {}", newer.since);
            InferError::new(message).of(name).hint(format!(
                "declare the function with opset `{}`, or leave it out",
                newer.since.name()
            ))
        }
        _ => {
            let known: Vec<_> =
                row.parameters.iter().map(|parameter| format!("`{}`", parameter.name)).collect();
            refusal.hint(format!("its parameters are {}", known.join(", ")))
        }
    }
}

fn backquoted(dtypes: &[DType]) -> String {
    let names: Vec<_> = dtypes.iter().map(|dtype| format!("`{dtype}`")).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::{Constant, Opset};

    /// Returns a function with one input, `x`, and one operation, `y`.
    fn single(op: Op, x: Type, opset: Opset) -> (Function, ValueId) {
        let mut function = Function::new("main", opset);
        let body = function.body;
        let input = function.add_input(body, "x", x);
        let op = op.with("x", Binding::Value(input));
        let id = function.add_op(body, op, [("y".to_owned(), Type::scalar(DType::Fp32))]);
        let output = function.op(id).outputs[0];
        function.block_mut(body).outputs.push(output);
        (function, output)
    }

    fn messages(function: &Function) -> Vec<String> {
        let (_, problems) = analyze(function);
        problems.iter().map(|problem| problem.refusal.to_string()).collect()
    }

    #[test]
    fn unknown_input_dimensions_become_symbols() {
        let open = TensorType { dtype: DType::Fp32, shape: vec![Dim::Unknown, Dim::Known(2)] };
        let (function, _) = single(Op::new(OpKind::Relu), Type::Tensor(open), Opset::Ios16);
        let (analysis, _) = analyze(&function);
        let input = function.inputs()[0];
        let symbol = Dim::Symbolic(Expr::from(Symbol(0)));
        assert_eq!(
            analysis.ty(input),
            Some(&Type::Tensor(TensorType {
                dtype: DType::Fp32,
                shape: vec![symbol, Dim::Known(2)]
            }))
        );
        assert_eq!(analysis.origin(Symbol(0)), Some((input, 0)));
    }

    #[test]
    fn checks_arguments_against_op_table() {
        let int = Type::tensor(DType::Int8, &[2]);
        let (function, _) = single(Op::new(OpKind::Sin), int, Opset::Ios16);
        assert_eq!(
            messages(&function),
            ["`x`: has element type `int8`; expected `fp16`, `fp32` in iOS15"]
        );

        let float = Type::tensor(DType::Fp32, &[2]);
        let extra = Op::new(OpKind::Sin).with("y", Binding::Literal(Constant::fp32(1.0)));
        let (function, _) = single(extra, float.clone(), Opset::Ios16);
        assert_eq!(messages(&function), ["`y`: is not a parameter of this operation"]);

        let (function, _) = single(Op::new(OpKind::Transpose), float.clone(), Opset::Ios16);
        assert_eq!(messages(&function), ["`perm`: is required, but nothing is bound to it"]);

        let state = Op::new(OpKind::ReadState);
        let (function, _) = single(state, float, Opset::Ios17);
        assert_eq!(messages(&function), ["`read_state` needs iOS18; this function is iOS17"]);
    }
}
