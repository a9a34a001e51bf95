//! Changes to a function, with what is known about it kept up to date.

use std::collections::HashSet;

use super::AnalyzedFunction;
use super::names::{names_of, unused};
use coremill_mil::infer::{Analysis, InferError, InferredValue, KnownElements};
use coremill_mil::ir::{
    Binding, BlockId, Constant, Definition, Dim, Function, Op, OpId, Opset, Type, ValueId,
};
use coremill_mil::ops::OpKind;
use coremill_tensor::DType;

/// A function that is being changed.
///
/// New operations are inferred before they are put in place, so that the types of all values are always
/// known. An operation whose results nothing uses any more is taken out at once, and so are those that it
/// alone used.
pub struct Editor<'f> {
    function: &'f mut Function,
    analysis: &'f mut Analysis,
    /// By [`ValueId::index`].
    uses: Vec<Uses>,
    /// The block that holds an operation, by [`OpId::index`]; none once it was taken out.
    parents: Vec<Option<BlockId>>,
    names: HashSet<String>,
}

/// What uses a value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Uses {
    /// The operations, each as often as it uses the value.
    pub ops: Vec<OpId>,
    /// How many outputs of blocks it is, those of the function included.
    pub outputs: usize,
}

impl<'f> Editor<'f> {
    /// Prepares a function for changes.
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

    /// The function as it stands.
    pub fn function(&self) -> &Function {
        self.function
    }

    /// The release whose operations it uses.
    pub fn opset(&self) -> Opset {
        self.function.opset
    }

    /// What is known about the values.
    pub fn analysis(&self) -> &Analysis {
        self.analysis
    }

    /// The operations that there are now, in order; ones that are taken out later must be skipped, which
    /// [`Editor::op`] tells.
    pub fn ops(&self) -> Vec<OpId> {
        self.function.all_ops().map(|(id, _)| id).collect()
    }

    /// An operation, if it has not been taken out.
    pub fn op(&self, id: OpId) -> Option<&Op> {
        self.parents[id.index()].map(|_| self.function.op(id))
    }

    /// The block that holds an operation, if it has not been taken out.
    pub fn block_of(&self, id: OpId) -> Option<BlockId> {
        self.parents[id.index()]
    }

    /// An operation of a kind, if it has not been taken out.
    pub fn op_of(&self, id: OpId, kind: OpKind) -> Option<&Op> {
        self.op(id).filter(|op| op.kind() == Some(kind))
    }

    /// The operation that gives a value.
    pub fn producer(&self, value: ValueId) -> Option<OpId> {
        match self.function.value(value).definition {
            Definition::Output(op, _) => Some(op),
            Definition::Input(..) => None,
        }
    }

    /// The operation of a kind that gives a value.
    pub fn produced_by(&self, value: ValueId, kind: OpKind) -> Option<OpId> {
        self.producer(value).filter(|&op| self.function.op(op).kind() == Some(kind))
    }

    /// What uses a value.
    pub fn uses(&self, value: ValueId) -> &Uses {
        &self.uses[value.index()]
    }

    /// The operation that alone uses a value, once.
    pub fn sole_user(&self, value: ValueId) -> Option<OpId> {
        match self.uses(value) {
            Uses { ops, outputs: 0 } => match ops.as_slice() {
                [only] => Some(*only),
                _ => None,
            },
            _ => None,
        }
    }

    /// Whether the function or a block gives the value.
    pub fn is_output(&self, value: ValueId) -> bool {
        self.uses(value).outputs > 0
    }

    /// Whether callers of the function pass the value in.
    pub fn is_input(&self, value: ValueId) -> bool {
        matches!(self.function.value(value).definition, Definition::Input(block, _) if block == self.function.body)
    }

    /// The value bound to a parameter of an operation.
    pub fn argument(&self, id: OpId, name: &str) -> Option<ValueId> {
        match self.function.op(id).binding(name)? {
            Binding::Value(value) => Some(*value),
            Binding::Literal(_) => None,
        }
    }

    /// The constant bound to a parameter of an operation.
    pub fn constant_argument(&self, id: OpId, name: &str) -> Option<&Constant> {
        self.function.bound_constant(self.function.op(id).binding(name)?)
    }

    /// The constant that a value is.
    pub fn constant(&self, value: ValueId) -> Option<&Constant> {
        self.function.constant(value)
    }

    /// The integers bound to a parameter, if they are known.
    pub fn ints(&self, id: OpId, name: &str) -> Option<Vec<i64>> {
        match self.function.op(id).binding(name)? {
            Binding::Value(value) => self.analysis.folded(*value)?.ints(),
            Binding::Literal(constant) => KnownElements::from_constant(constant)?.ints(),
        }
    }

    /// The one number bound to a parameter, if it is known.
    pub fn number(&self, id: OpId, name: &str) -> Option<f64> {
        self.number_of(self.function.op(id).binding(name)?)
    }

    /// The one number that a binding is, if it is known.
    pub fn number_of(&self, binding: &Binding) -> Option<f64> {
        let scalar = |folded: &KnownElements| folded.only()?.float();
        match binding {
            Binding::Value(value) => scalar(self.analysis.folded(*value)?),
            Binding::Literal(constant) => scalar(&KnownElements::from_constant(constant)?),
        }
    }

    /// The text bound to a parameter.
    pub fn text(&self, id: OpId, name: &str) -> Option<&str> {
        self.constant_argument(id, name)?.as_str()
    }

    /// The flag bound to a parameter.
    pub fn flag(&self, id: OpId, name: &str) -> Option<bool> {
        self.constant_argument(id, name)?.as_bool()
    }

    /// The dimensions of a tensor.
    pub fn shape(&self, value: ValueId) -> &[Dim] {
        let ty = self.analysis.ty(value).and_then(Type::as_tensor);
        ty.map_or(&[], |ty| &ty.shape)
    }

    /// The element type of a tensor.
    pub fn dtype(&self, value: ValueId) -> Option<DType> {
        Some(self.analysis.ty(value)?.as_tensor()?.dtype)
    }

    /// The name of a value.
    pub fn name(&self, value: ValueId) -> &str {
        &self.function.value(value).name
    }

    /// Puts an operation before another. Its results are named `label`, or that and a number.
    pub fn insert(
        &mut self,
        before: OpId,
        op: Op,
        label: &str,
    ) -> Result<Vec<ValueId>, Vec<InferError>> {
        let block = self.parents[before.index()].expect("the operation stands in a block");
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

    /// Puts a constant where everything can use it.
    pub fn constant_before(&mut self, before: OpId, constant: Constant, label: &str) -> ValueId {
        let inserted = self.insert(before, Op::constant(constant), label);
        inserted.expect("a constant is inferred from what it states")[0]
    }

    /// Makes an operation another one with the same results. Refused if it gives other types.
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
            let message = format!("gives `{}`, which is not what it replaces", found.join(", "));
            return Err(vec![InferError::new(message)]);
        }
        self.rewrite_as(id, op, outcomes);
        Ok(())
    }

    fn rewrite_as(&mut self, id: OpId, op: Op, outcomes: Vec<InferredValue>) {
        let before: Vec<_> = values_of(self.function.op(id));
        self.count(id, false);
        let outputs = std::mem::take(&mut self.function.op_mut(id).outputs);
        self.analysis.replace(&outputs, outcomes);
        *self.function.op_mut(id) = Op { outputs, ..op };
        self.count(id, true);
        before.into_iter().for_each(|value| self.sweep(value));
    }

    /// Puts a value in another's place everywhere. An output of the function keeps its name.
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

    /// Whether a value can stand in another's place everywhere: outputs of the function must be computed
    /// in it, and each by an operation of its own.
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

    /// Takes out the operation that gives a value, if nothing uses any of its results; and then what it
    /// alone used.
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
            pending.extend(values_of(self.function.op(id)));
            for block in self.function.op(id).blocks.clone() {
                self.sweep_block(block, &mut pending);
            }
            self.count(id, false);
        }
    }

    /// Forgets what a block that nothing runs any more uses.
    fn sweep_block(&mut self, block: BlockId, pending: &mut Vec<ValueId>) {
        let mut blocks = vec![block];
        while let Some(block) = blocks.pop() {
            for output in self.function.block(block).outputs.clone() {
                self.uses[output.index()].outputs -= 1;
                pending.push(output);
            }
            for id in self.function.block(block).ops.clone() {
                pending.extend(values_of(self.function.op(id)));
                blocks.extend(self.function.op(id).blocks.iter().copied());
                self.count(id, false);
                self.parents[id.index()] = None;
            }
        }
    }

    /// Takes out everything that nothing uses.
    pub fn sweep_all(&mut self) {
        for id in self.ops().into_iter().rev() {
            if let Some(&output) = self.op(id).and_then(|op| op.outputs.first()) {
                self.sweep(output);
            }
        }
    }

    fn count(&mut self, id: OpId, used: bool) {
        for value in values_of(self.function.op(id)) {
            let ops = &mut self.uses[value.index()].ops;
            if used {
                ops.push(id);
            } else if let Some(at) = ops.iter().position(|&user| user == id) {
                ops.swap_remove(at);
            }
        }
    }
}

/// Whether an operation does more than give values.
fn has_side_effects(op: &Op) -> bool {
    matches!(op.kind(), Some(OpKind::WriteState) | None)
}

fn values_of(op: &Op) -> Vec<ValueId> {
    let values = op.all_bindings().filter_map(|(_, binding)| match binding {
        Binding::Value(value) => Some(*value),
        Binding::Literal(_) => None,
    });
    values.collect()
}
