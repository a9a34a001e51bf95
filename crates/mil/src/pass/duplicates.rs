//! Computes what is the same once.
//!
//! ```text
//! a = relu(x = x);                     a = relu(x = x);
//! b = relu(x = x);          becomes    c = add(x = a, y = a);
//! c = add(x = a, y = b);
//! ```

use std::collections::HashMap;

use coremill_tensor::Identity;

use super::Editor;
use crate::ir::{Binding, BlockId, Constant, ConstantData, Op, OpId, Operator};
use crate::ops::OpKind;

/// Constants with more bytes are the same only if they are the same place of a file; writers store equal ones once all
/// the same.
const MAX_COMPARED_BYTES: usize = 1 << 10;

/// What tells operations apart that may be the same.
#[derive(PartialEq, Eq, Hash)]
struct Key {
    block: BlockId,
    operator: Operator,
    inputs: Vec<(String, Vec<Part>)>,
}

#[derive(PartialEq, Eq, Hash)]
enum Part {
    Value(usize),
    Bytes(String, Vec<u8>),
    Place(String, Identity),
}

/// Runs the pass, and says how many operations it took out.
pub(super) fn merge_duplicates(editor: &mut Editor<'_>) -> usize {
    let mut seen: HashMap<Key, OpId> = HashMap::new();
    let mut merged = 0;
    let blocks = editor.function().blocks_in_order();
    for (block, _) in blocks {
        for id in editor.function().block(block).ops.clone() {
            let Some(op) = editor.op(id) else { continue };
            let Some(key) = key_of(block, op) else { continue };
            let Some(&first) = seen.get(&key) else {
                seen.insert(key, id);
                continue;
            };
            let pairs: Vec<_> = {
                let firsts = &editor.function().op(first).outputs;
                op.outputs.iter().copied().zip(firsts.iter().copied()).collect()
            };
            if editor.op(first).is_some()
                && pairs.iter().all(|&(old, new)| editor.can_replace(old, new))
            {
                pairs.into_iter().for_each(|(old, new)| editor.replace(old, new));
                merged += 1;
            }
        }
    }
    merged
}

fn key_of(block: BlockId, op: &Op) -> Option<Key> {
    let kind = op.kind()?;
    let keeps = matches!(
        kind,
        OpKind::ReadState
            | OpKind::WriteState
            | OpKind::MakeList
            | OpKind::ListWrite
            | OpKind::ListScatter
    );
    if keeps || kind.is_random() || !op.blocks.is_empty() || op.outputs.is_empty() {
        return None;
    }
    let mut inputs = Vec::with_capacity(op.inputs.len() + 1);
    for input in &op.inputs {
        let parts = input.bindings.iter().map(|binding| match binding {
            Binding::Value(value) => Some(Part::Value(value.index())),
            Binding::Literal(constant) => part_of(constant),
        });
        inputs.push((input.name.to_string(), parts.collect::<Option<Vec<_>>>()?));
    }
    for (name, constant) in op.attributes.iter().filter(|(name, _)| *name != "name") {
        inputs.push((name.to_owned(), vec![part_of(constant)?]));
    }
    Some(Key { block, operator: op.operator.clone(), inputs })
}

fn part_of(constant: &Constant) -> Option<Part> {
    let ty = constant.ty.to_string();
    match &constant.data {
        ConstantData::Strings(strings) => Some(Part::Bytes(ty, strings.join("\0").into_bytes())),
        ConstantData::Bytes(_) | ConstantData::Weight(_) => {
            let elements = constant.elements()?;
            Some(if elements.len() <= MAX_COMPARED_BYTES && !elements.is_deferred() {
                Part::Bytes(ty, elements.as_bytes().to_vec())
            } else {
                Part::Place(ty, elements.identity())
            })
        }
        ConstantData::Sequence(_) | ConstantData::Entries(_) => None,
    }
}
