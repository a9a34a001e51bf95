//! Which constants of two versions of a function are the same, so that what was made of them serves both.

use std::sync::PoisonError;

use coremill_mil::ir::{Binding, Constant, ConstantData, Definition, Function, Op, ValueId};

use super::known::Source;

/// Constants of at most so many bytes are compared by them, larger ones by where they lie or how they come about.
const FEW_BYTES: usize = 1 << 12;

impl Source {
    /// Takes over what was made of constants that another version of the function has, too: packed weights, and elements that
    /// were expanded.
    pub(crate) fn inherit(&self, before: &Source) {
        if self.precision != before.precision || self.limits != before.limits {
            return;
        }
        let same = same_values(self, before);
        let is_same = |value: ValueId| same.get(value.index()) == Some(&true);
        self.packed.inherit(&before.packed, is_same);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let theirs = before.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.inherit(&theirs, |value| is_same(*value));
    }
}

/// By [`ValueId::index`], whether a value is constant and the same in both.
fn same_values(source: &Source, before: &Source) -> Vec<bool> {
    let (function, other) = (&source.function, &before.function);
    let mut same = vec![false; function.value_count()];
    if function.value_count() != other.value_count() || function.opset != other.opset {
        return same;
    }
    // Definitions come before uses.
    let mut pending: Vec<_> = function.block(function.body).ops.iter().rev().copied().collect();
    while let Some(id) = pending.pop() {
        let op = function.op(id);
        for &block in op.blocks.iter().rev() {
            pending.extend(function.block(block).ops.iter().rev());
        }
        let is_same = op.outputs.iter().all(|&output| {
            source.is_constant(output)
                && before.is_constant(output)
                && function.value(output).ty == other.value(output).ty
                && same_definition(function, other, output)
        });
        if is_same && same_op(op, other, &same) {
            op.outputs.iter().for_each(|output| same[output.index()] = true);
        }
    }
    same
}

fn same_definition(function: &Function, other: &Function, value: ValueId) -> bool {
    let definition = function.value(value).definition;
    definition == other.value(value).definition && matches!(definition, Definition::Output(..))
}

/// Whether an operation is the one that gives the same values in another version, on the same constants.
fn same_op(op: &Op, other: &Function, same: &[bool]) -> bool {
    let Some(&output) = op.outputs.first() else { return false };
    let Definition::Output(id, _) = other.value(output).definition else { return false };
    let twin = other.op(id);
    let same_binding = |(one, two): (&Binding, &Binding)| match (one, two) {
        (Binding::Value(one), Binding::Value(two)) => one == two && same[one.index()],
        (Binding::Literal(one), Binding::Literal(two)) => same_constant(one, two),
        _ => false,
    };
    op.operator == twin.operator
        && op.outputs == twin.outputs
        && op.blocks.is_empty()
        && op.inputs.len() == twin.inputs.len()
        && op.inputs.iter().zip(&twin.inputs).all(|(one, two)| {
            one.name == two.name
                && one.bindings.len() == two.bindings.len()
                && one.bindings.iter().zip(&two.bindings).all(same_binding)
        })
        && op.attributes.iter().count() == twin.attributes.iter().count()
        && op.attributes.iter().all(|(name, constant)| {
            twin.attributes.get(name).is_some_and(|found| same_constant(constant, found))
        })
}

fn same_constant(one: &Constant, two: &Constant) -> bool {
    let elements = |constant: &Constant| match &constant.data {
        ConstantData::Bytes(buffer) => Some(buffer.clone()),
        ConstantData::Weight(weight) => weight.data.clone(),
        _ => None,
    };
    one.ty == two.ty
        && match (elements(one), elements(two)) {
            (Some(one), Some(two)) => {
                let are_few = one.len() == two.len() && one.len() <= FEW_BYTES;
                one.identity() == two.identity() || (are_few && one.as_bytes() == two.as_bytes())
            }
            _ => one.data == two.data,
        }
}
