//! Takes out operations whose results nothing uses.
//!
//! ```text
//! a = relu(x);  b = tanh(x);  -> (b)    becomes    b = tanh(x);  -> (b)
//! ```

use std::collections::HashSet;

use coremill_mil::ir::{Binding, Function, OpId, ValueId};
use coremill_mil::ops::OpKind;

/// Takes out what is dead. Inputs stay, used or not.
pub(crate) fn sweep(function: &mut Function) {
    let mut used: HashSet<ValueId> = HashSet::new();
    let mut live: HashSet<OpId> = HashSet::new();
    // Uses come after definitions, and a block's before those of what follows it.
    for (block, _) in function.blocks_in_order() {
        used.extend(&function.block(block).outputs);
    }
    loop {
        let before = live.len();
        for (block, _) in function.blocks_in_order().into_iter().rev() {
            for &id in function.block(block).ops.iter().rev() {
                let op = function.op(id);
                let acts = matches!(op.kind(), Some(OpKind::WriteState) | None);
                if !live.contains(&id) && (acts || op.outputs.iter().any(|o| used.contains(o))) {
                    live.insert(id);
                    used.extend(op.all_bindings().filter_map(|(_, binding)| match binding {
                        Binding::Value(value) => Some(*value),
                        Binding::Literal(_) => None,
                    }));
                }
            }
        }
        if live.len() == before {
            break;
        }
    }
    for (block, _) in function.blocks_in_order() {
        function.block_mut(block).ops.retain(|id| live.contains(id));
    }
}
