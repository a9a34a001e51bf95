//! Unused inputs.

use std::collections::HashSet;

use coremill_mil::ir::{Binding, Function, Op, ValueId};
use coremill_mil::ops::OpKind;

/// Adds a use of every unused input, because Core ML rejects programs with unused inputs.
pub fn keep_unused_inputs(function: &mut Function) {
    let used = function.used_values();
    let names: HashSet<String> = (0..function.value_count())
        .map(|at| function.value(ValueId::from_index(at)).name.clone())
        .collect();
    for input in function.inputs().to_vec() {
        let value = function.value(input);
        if used.contains(&input) || value.ty.as_tensor().is_none() {
            continue;
        }
        let mut name = format!("{}_unused", value.name);
        while names.contains(&name) {
            name.push('_');
        }
        let ty = value.ty.clone();
        let op = Op::new(OpKind::Identity).with("x", Binding::Value(input));
        let body = function.body;
        function.add_op(body, op, [(name, ty)]);
    }
}
