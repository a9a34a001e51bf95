//! Comparison of the constants of two versions of a function, to share data derived from equal
//! ones.

use std::sync::PoisonError;

use coremill_mil::ir::{Binding, Constant, ConstantData, Definition, Function, Op, OpId, ValueId};

use super::source::FunctionContext;

/// Constants up to this size are compared by value, larger ones by storage location or definition.
const FEW_BYTES: usize = 1 << 12;

impl FunctionContext {
    /// Shares packed weights and expanded constants with another version of the function if
    /// the constants are equal.
    pub(crate) fn inherit(&self, before: &FunctionContext) {
        if self.numerics != before.numerics || self.limits != before.limits {
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

impl FunctionContext {
    /// The operations whose constants differ in another version of the function. Returns `None` if
    /// the versions differ in anything else.
    pub(crate) fn diff_constants(&self, version: &Function) -> Option<Vec<(OpId, Op)>> {
        let function = &self.function;
        let (values, blocks) = (function.value_count(), function.blocks_in_order());
        let inputs = |function: &Function| function.inputs().to_vec();
        if function.opset != version.opset
            || values != version.value_count()
            || function.op_count() != version.op_count()
            || blocks.len() != version.blocks_in_order().len()
            || inputs(function) != inputs(version)
        {
            return None;
        }
        let mut changes = Vec::new();
        for (&(block, depth), found) in blocks.iter().zip(version.blocks_in_order()) {
            let (one, two) = (function.block(block), version.block(found.0));
            if (block, depth) != found
                || (&one.inputs, &one.ops, &one.outputs) != (&two.inputs, &two.ops, &two.outputs)
            {
                return None;
            }
            for &id in &one.ops {
                let (op, twin) = (function.op(id), version.op(id));
                let alike = |&output: &ValueId| {
                    let (one, two) = (function.value(output), version.value(output));
                    (&one.name, &one.ty) == (&two.name, &two.ty)
                };
                if !same_shape(op, twin) || !op.outputs.iter().all(alike) {
                    return None;
                }
                if !same_stated(op, twin) {
                    // Planning may have depended on the constants of an operation that is not
                    // constant itself.
                    let constant = op.outputs.iter().all(|&output| self.is_constant(output));
                    if !constant {
                        return None;
                    }
                    changes.push((id, twin.clone()));
                }
            }
        }
        Some(changes)
    }
}

/// Returns true if the operations are equal apart from constants.
fn same_shape(op: &Op, twin: &Op) -> bool {
    let same_binding = |(one, two): (&Binding, &Binding)| match (one, two) {
        (Binding::Value(one), Binding::Value(two)) => one == two,
        (Binding::Literal(one), Binding::Literal(two)) => one.ty == two.ty,
        _ => false,
    };
    op.operator == twin.operator
        && op.outputs == twin.outputs
        && op.blocks == twin.blocks
        && op.inputs.len() == twin.inputs.len()
        && op.inputs.iter().zip(&twin.inputs).all(|(one, two)| {
            one.name == two.name
                && one.bindings.len() == two.bindings.len()
                && one.bindings.iter().zip(&two.bindings).all(same_binding)
        })
        && op.attributes.iter().count() == twin.attributes.iter().count()
        && op.attributes.iter().all(|(name, constant)| {
            twin.attributes.get(name).is_some_and(|found| constant.ty == found.ty)
        })
}

/// Returns true if the constants of otherwise equal operations are equal.
fn same_stated(op: &Op, twin: &Op) -> bool {
    let same_binding = |(one, two): (&Binding, &Binding)| match (one, two) {
        (Binding::Literal(one), Binding::Literal(two)) => same_constant(one, two),
        _ => true,
    };
    op.inputs
        .iter()
        .zip(&twin.inputs)
        .all(|(one, two)| one.bindings.iter().zip(&two.bindings).all(same_binding))
        && op.attributes.iter().all(|(name, constant)| {
            twin.attributes.get(name).is_some_and(|found| same_constant(constant, found))
        })
}

/// Marks values, by [`ValueId::index`], that are constant and equal in both versions.
fn same_values(source: &FunctionContext, before: &FunctionContext) -> Vec<bool> {
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

/// Returns true if the other version computes the operation's outputs by the same operation on
/// equal constants.
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
