//! Edits of a function that keep its analysis up to date.

use std::collections::HashSet;

use super::AnalyzedFunction;
use super::names::{names_of, unused};
use coremill_mil::infer::{Analysis, InferError, InferredValue, KnownElements};
use coremill_mil::ir::{
    Binding, BlockId, Constant, Definition, Dim, Function, Op, OpId, Opset, Type, ValueId,
};
use coremill_mil::ops::OpKind;
use coremill_tensor::DType;

/// A function being edited.
///
/// New operations are inferred before insertion, so the types of all values are always known. An operation whose
/// last use disappears is removed at once, together with the operations that only it used.
pub struct Editor<'f> {
    function: &'f mut Function,
    analysis: &'f mut Analysis,
    /// Indexed by [`ValueId::index`].
    uses: Vec<Uses>,
    /// Block of each operation, by [`OpId::index`]; `None` after removal.
    parents: Vec<Option<BlockId>>,
    names: HashSet<String>,
}

/// Uses of a value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Uses {
    /// Operations, once per use.
    pub ops: Vec<OpId>,
    /// Number of block outputs, including the function's.
    pub outputs: usize,
}

impl<'f> Editor<'f> {
    /// Starts editing a function.
    pub fn new(draft: &'f mut AnalyzedFunction) -> Editor<'f> {
        let AnalyzedFunction { function, analysis, .. } = draft;
        let mut uses = vec![Uses::default(); function.value_count()];
        let mut parents = vec![None; function.op_count()];
        let names = names_of(function);
        for (block, _) in function.blocks_in_order() {
            let block_data = function.block(block);
            for &output in &block_data.outputs {
                uses[output.index()].outputs += 1;
            }
            for &id in &block_data.ops {
                parents[id.index()] = Some(block);
                let op = function.op(id);
                for (_, binding) in op.all_bindings() {
                    if let Binding::Value(value) = binding {
                        uses[value.index()].ops.push(id);
                    }
                }
            }
        }
        Editor { function, analysis, uses, parents, names }
    }

    /// The current function.
    pub fn function(&self) -> &Function {
        self.function
    }

    /// Release of the function's operations.
    pub fn opset(&self) -> Opset {
        self.function.opset
    }

    /// Analysis of the values.
    pub fn analysis(&self) -> &Analysis {
        self.analysis
    }

    /// The current operations, in order. Operations may be removed during an iteration; [`Editor::op`] returns
    /// `None` for them.
    pub fn ops(&self) -> Vec<OpId> {
        self.function.all_ops().map(|(id, _)| id).collect()
    }

    /// An operation, unless it was removed.
    pub fn op(&self, id: OpId) -> Option<&Op> {
        self.parents[id.index()].map(|_| self.function.op(id))
    }

    /// Block of an operation, unless it was removed.
    pub fn block_of(&self, id: OpId) -> Option<BlockId> {
        self.parents[id.index()]
    }

    /// An operation of a given kind, unless it was removed.
    pub fn op_of(&self, id: OpId, kind: OpKind) -> Option<&Op> {
        self.op(id).filter(|op| op.kind() == Some(kind))
    }

    /// The operation that produces a value.
    pub fn producer(&self, value: ValueId) -> Option<OpId> {
        match self.function.value(value).definition {
            Definition::Output(op, _) => Some(op),
            Definition::Input(..) => None,
        }
    }

    /// The operation that produces a value, if it is of a given kind.
    pub fn produced_by(&self, value: ValueId, kind: OpKind) -> Option<OpId> {
        self.producer(value).filter(|&op| self.function.op(op).kind() == Some(kind))
    }

    /// Uses of a value.
    pub fn uses(&self, value: ValueId) -> &Uses {
        &self.uses[value.index()]
    }

    /// The operation with the only use of a value.
    pub fn sole_user(&self, value: ValueId) -> Option<OpId> {
        match self.uses(value) {
            Uses { ops, outputs: 0 } => match ops.as_slice() {
                [only] => Some(*only),
                _ => None,
            },
            _ => None,
        }
    }

    /// Whether a value is an output of the function or of a block.
    pub fn is_output(&self, value: ValueId) -> bool {
        self.uses(value).outputs > 0
    }

    /// Whether a value is an input of the function.
    pub fn is_input(&self, value: ValueId) -> bool {
        matches!(self.function.value(value).definition, Definition::Input(block, _) if block == self.function.body)
    }

    /// Value argument of an operation.
    pub fn argument(&self, id: OpId, name: &str) -> Option<ValueId> {
        match self.function.op(id).binding(name)? {
            Binding::Value(value) => Some(*value),
            Binding::Literal(_) => None,
        }
    }

    /// Constant argument of an operation.
    pub fn constant_argument(&self, id: OpId, name: &str) -> Option<&Constant> {
        self.function.bound_constant(self.function.op(id).binding(name)?)
    }

    /// The constant of a value.
    pub fn constant(&self, value: ValueId) -> Option<&Constant> {
        self.function.constant(value)
    }

    /// Constant integers of a parameter.
    pub fn ints(&self, id: OpId, name: &str) -> Option<Vec<i64>> {
        match self.function.op(id).binding(name)? {
            Binding::Value(value) => self.analysis.folded(*value)?.ints(),
            Binding::Literal(constant) => KnownElements::from_constant(constant)?.ints(),
        }
    }

    /// Constant number of a parameter.
    pub fn number(&self, id: OpId, name: &str) -> Option<f64> {
        self.number_of(self.function.op(id).binding(name)?)
    }

    /// Constant number of a binding.
    pub fn number_of(&self, binding: &Binding) -> Option<f64> {
        let scalar = |folded: &KnownElements| folded.only()?.float();
        match binding {
            Binding::Value(value) => scalar(self.analysis.folded(*value)?),
            Binding::Literal(constant) => scalar(&KnownElements::from_constant(constant)?),
        }
    }

    /// String argument of an operation.
    pub fn text(&self, id: OpId, name: &str) -> Option<&str> {
        self.constant_argument(id, name)?.as_str()
    }

    /// Boolean argument of an operation.
    pub fn flag(&self, id: OpId, name: &str) -> Option<bool> {
        self.constant_argument(id, name)?.as_bool()
    }

    /// Dimensions of a tensor.
    pub fn shape(&self, value: ValueId) -> &[Dim] {
        let ty = self.analysis.ty(value).and_then(Type::as_tensor);
        ty.map_or(&[], |ty| &ty.shape)
    }

    /// Element type of a tensor.
    pub fn dtype(&self, value: ValueId) -> Option<DType> {
        Some(self.analysis.ty(value)?.as_tensor()?.dtype)
    }

    /// Name of a value.
    pub fn name(&self, value: ValueId) -> &str {
        &self.function.value(value).name
    }

    /// Inserts an operation before another. Its results are named `label`, with a number if needed.
    pub fn insert(
        &mut self,
        before: OpId,
        op: Op,
        label: &str,
    ) -> Result<Vec<ValueId>, Vec<InferError>> {
        let block = self.parents[before.index()].expect("every operation belongs to a block");
        let ops = &self.function.block(block).ops;
        let at = ops.iter().position(|&id| id == before).expect("a parent holds its operations");
        self.insert_at(block, at, op, label)
    }

    fn insert_at(
        &mut self,
        block: BlockId,
        at: usize,
        op: Op,
        label: &str,
    ) -> Result<Vec<ValueId>, Vec<InferError>> {
        let outcomes = self.analysis.infer_op(self.function, &op)?;
        let names = &mut self.names;
        let append = |function: &mut Function, analysis: &mut Analysis| {
            analysis.append(function, block, op, outcomes, |_| unused(names, label))
        };
        let id = append(self.function, self.analysis);
        let ops = &mut self.function.block_mut(block).ops;
        ops.pop();
        ops.insert(at, id);
        self.parents.push(Some(block));
        self.uses.resize(self.function.value_count(), Uses::default());
        self.count(id, true);
        Ok(self.function.op(id).outputs.clone())
    }

    /// Inserts a constant before an operation.
    pub fn constant_before(&mut self, before: OpId, constant: Constant, label: &str) -> ValueId {
        let inserted = self.insert(before, Op::constant(constant), label);
        inserted.expect("the type of a constant is declared")[0]
    }

    /// Replaces an operation by another one with the same results. Fails if the types differ.
    pub fn rewrite(&mut self, id: OpId, op: Op) -> Result<(), Vec<InferError>> {
        let outcomes = self.analysis.infer_op(self.function, &op)?;
        let outputs = self.function.op(id).outputs.clone();
        let known = |value: &ValueId| self.analysis.ty(*value);
        let same = outcomes.len() == outputs.len()
            && outcomes
                .iter()
                .zip(&outputs)
                .all(|(new, old)| known(old).is_some_and(|old| old.is_compatible(&new.ty)));
        if !same {
            let found: Vec<_> = outcomes.iter().map(|outcome| outcome.ty.to_string()).collect();
            let message = format!(
                "has type `{}`, which differs from the replaced operation's",
                found.join(", ")
            );
            return Err(vec![InferError::new(message)]);
        }
        self.rewrite_as(id, op, outcomes);
        Ok(())
    }

    fn rewrite_as(&mut self, id: OpId, op: Op, outcomes: Vec<InferredValue>) {
        let before: Vec<_> = self.function.op(id).values().collect();
        self.count(id, false);
        let outputs = std::mem::take(&mut self.function.op_mut(id).outputs);
        self.analysis.replace(&outputs, outcomes);
        *self.function.op_mut(id) = Op { outputs, ..op };
        self.count(id, true);
        before.into_iter().for_each(|value| self.sweep(value));
    }

    /// Replaces all uses of a value. An output of the function keeps its name.
    pub fn replace(&mut self, old: ValueId, new: ValueId) {
        if old == new {
            return;
        }
        let Uses { ops, outputs } = std::mem::take(&mut self.uses[old.index()]);
        let mut seen = HashSet::new();
        for &user in ops.iter().filter(|&&user| seen.insert(user)) {
            for input in &mut self.function.op_mut(user).inputs {
                for binding in &mut input.bindings {
                    if *binding == Binding::Value(old) {
                        *binding = Binding::Value(new);
                    }
                }
            }
        }
        self.uses[new.index()].ops.extend(ops);
        if outputs > 0 {
            for (block, _) in self.function.blocks_in_order() {
                for output in &mut self.function.block_mut(block).outputs {
                    if *output == old {
                        *output = new;
                    }
                }
            }
            self.uses[new.index()].outputs += outputs;
            if self.function.outputs().contains(&new) && !self.is_input(new) {
                self.swap_names(old, new);
            }
        }
        self.sweep(old);
    }

    /// Whether a value can replace another. Each output of the function must be the result of an operation in its
    /// body, and each of a different one.
    pub fn can_replace(&self, old: ValueId, new: ValueId) -> bool {
        let gives = |value: ValueId| self.function.outputs().contains(&value);
        !gives(old)
            || !(gives(new) || self.is_input(new) || self.constant(new).is_some())
                && self
                    .producer(new)
                    .is_some_and(|op| self.parents[op.index()] == Some(self.function.body))
    }

    fn swap_names(&mut self, left: ValueId, right: ValueId) {
        let name = std::mem::take(&mut self.function.value_mut(left).name);
        let name = std::mem::replace(&mut self.function.value_mut(right).name, name);
        self.function.value_mut(left).name = name;
    }

    /// Removes the operation that produces a value if none of its results is used, then the operations that only it
    /// used.
    fn sweep(&mut self, value: ValueId) {
        let mut pending = vec![value];
        while let Some(value) = pending.pop() {
            let Some(id) = self.producer(value) else { continue };
            let op = self.function.op(id);
            let used = |output: &ValueId| self.uses[output.index()] != Uses::default();
            if has_side_effects(op) || op.outputs.iter().any(used) {
                continue;
            }
            let Some(block) = self.parents[id.index()].take() else { continue };
            self.function.block_mut(block).ops.retain(|&held| held != id);
            pending.extend(self.function.op(id).values());
            for block in self.function.op(id).blocks.clone() {
                self.sweep_block(block, &mut pending);
            }
            self.count(id, false);
        }
    }

    /// Removes the uses in a block that is no longer executed.
    fn sweep_block(&mut self, block: BlockId, pending: &mut Vec<ValueId>) {
        let mut blocks = vec![block];
        while let Some(block) = blocks.pop() {
            for output in self.function.block(block).outputs.clone() {
                self.uses[output.index()].outputs -= 1;
                pending.push(output);
            }
            for id in self.function.block(block).ops.clone() {
                pending.extend(self.function.op(id).values());
                blocks.extend(self.function.op(id).blocks.iter().copied());
                self.count(id, false);
                self.parents[id.index()] = None;
            }
        }
    }

    /// Removes all unused operations.
    pub fn sweep_all(&mut self) {
        for id in self.ops().into_iter().rev() {
            if let Some(&output) = self.op(id).and_then(|op| op.outputs.first()) {
                self.sweep(output);
            }
        }
    }

    fn count(&mut self, id: OpId, used: bool) {
        for value in self.function.op(id).values() {
            let ops = &mut self.uses[value.index()].ops;
            if used {
                ops.push(id);
            } else if let Some(at) = ops.iter().position(|&user| user == id) {
                ops.swap_remove(at);
            }
        }
    }
}

/// Whether an operation has side effects.
fn has_side_effects(op: &Op) -> bool {
    matches!(op.kind(), Some(OpKind::WriteState) | None)
}
