//! Names that values of a function have, and new ones beside them.

use std::collections::HashSet;

use crate::ir::Function;

/// The names of all values.
pub(super) fn names_of(function: &Function) -> HashSet<String> {
    let mut names = HashSet::with_capacity(function.value_count());
    for (block, _) in function.blocks_in_order() {
        let block = function.block(block);
        let computed = block.ops.iter().flat_map(|&op| &function.op(op).outputs);
        let values = block.inputs.iter().chain(computed);
        names.extend(values.map(|&value| function.value(value).name.clone()));
    }
    names
}

/// A name that nothing has yet: the one wanted, or that and a number.
pub(super) fn unused(names: &mut HashSet<String>, wanted: &str) -> String {
    let mut name = wanted.to_owned();
    let mut at = 0;
    while !names.insert(name.clone()) {
        name = format!("{wanted}_{at}");
        at += 1;
    }
    name
}
