//! Turns literal arguments into `const` operations, the form of packages written by coremltools.
//!
//! ```text
//! y = softmax(x = x, axis = 1);    becomes    y_axis = const(val = 1);
//!                                             y = softmax(x = x, axis = y_axis);
//! ```
//!
//! The operands of compressed constants and the classes of `classify` are left unchanged, as they must be literals.

use std::collections::HashMap;

use super::AnalyzedFunction;
use super::names::{names_of, unused};
use coremill_mil::infer::InferredValue;
use coremill_mil::ir::{Binding, BlockId, Constant, ConstantData, Op, OpId, ValueId};
use coremill_mil::ops::OpKind;

/// Runs the pass. Equal constants are stated once per block.
pub fn materialize_literals(draft: &mut AnalyzedFunction) {
    let AnalyzedFunction { function, analysis, .. } = draft;
    let mut names = names_of(function);
    let mut stated: HashMap<(BlockId, String, Vec<u8>), ValueId> = HashMap::new();
    for (block, _) in function.blocks_in_order() {
        let before = std::mem::take(&mut function.block_mut(block).ops);
        let mut after: Vec<OpId> = Vec::with_capacity(before.len() * 3);
        for id in before {
            let op = function.op(id);
            let kept = op.kind().is_none_or(|kind| kind.is_constexpr() || kind == OpKind::Classify);
            if kept || !op.all_bindings().any(|(_, binding)| is_literal(binding)) {
                after.push(id);
                continue;
            }
            let label = op.outputs.first().map_or_else(
                || op.type_name().to_owned(),
                |&output| function.value(output).name.clone(),
            );
            let mut inputs = function.op(id).inputs.clone();
            for input in &mut inputs {
                for binding in &mut input.bindings {
                    let Binding::Literal(constant) = binding else { continue };
                    let Some(bytes) = bytes_of(constant) else { continue };
                    let key = (block, constant.ty.to_string(), bytes);
                    let value = *stated.entry(key).or_insert_with(|| {
                        let name = unused(&mut names, &format!("{label}_{}", input.name));
                        let outcomes = vec![InferredValue::of_constant(constant)];
                        let op = Op::constant(constant.clone());
                        let stated =
                            analysis.append(function, block, op, outcomes, |_| name.clone());
                        function.block_mut(block).ops.pop();
                        after.push(stated);
                        function.op(stated).outputs[0]
                    });
                    *binding = Binding::Value(value);
                }
            }
            function.op_mut(id).inputs = inputs;
            after.push(id);
        }
        function.block_mut(block).ops = after;
    }
}

fn is_literal(binding: &Binding) -> bool {
    matches!(binding, Binding::Literal(constant) if bytes_of(constant).is_some())
}

/// Bytes that distinguish constants of one type; `None` for lists and dictionaries, which cannot be a `const`.
fn bytes_of(constant: &Constant) -> Option<Vec<u8>> {
    match &constant.data {
        ConstantData::Bytes(bytes) => Some(bytes.as_bytes().to_vec()),
        ConstantData::Strings(strings) => Some(strings.join("\0").into_bytes()),
        ConstantData::Weight(_) | ConstantData::Sequence(_) | ConstantData::Entries(_) => None,
    }
}
