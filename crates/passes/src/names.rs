//! Names of values, and creation of unused names.

use std::collections::HashSet;

use coremill_mil::ir::Function;

/// A name without the suffix added by a change of precision in [`to_fp16`](super::to_fp16) or coremltools.
pub fn without_precision(name: &str) -> &str {
    const ENDINGS: [&str; 4] = ["_cast_fp16", "_cast_fp32", "_fp16", "_fp32"];
    let stripped = ENDINGS.iter().find_map(|ending| name.strip_suffix(ending));
    stripped.filter(|stripped| !stripped.is_empty()).unwrap_or(name)
}

/// Names of all values.
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

/// Returns `wanted` if it is unused, otherwise appends a number.
pub(super) fn unused(names: &mut HashSet<String>, wanted: &str) -> String {
    let mut name = wanted.to_owned();
    let mut at = 0;
    while !names.insert(name.clone()) {
        name = format!("{wanted}_{at}");
        at += 1;
    }
    name
}

#[test]
fn strips_precision_suffixes() {
    assert_eq!(without_precision("conv_1_fp16"), "conv_1");
    assert_eq!(without_precision("conv_1_cast_fp32"), "conv_1");
    assert_eq!(without_precision("_fp16"), "_fp16");
    assert_eq!(without_precision("fp16_in"), "fp16_in");
}
