//! Operations of an fp16 model that compute in fp32, since their release has no fp16 version.

use std::collections::BTreeMap;

use coremill_mil::ir::{Binding, Opset, Type, Value};
use coremill_mil::model::Model;
use coremill_mil::ops::{Accepts, OpKind};
use coremill_tensor::DType;
use serde::Serialize;

/// Operations of one kind.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fp32Op {
    /// MIL name of the operation.
    pub op: &'static str,
    /// Number of operations.
    pub count: usize,
    /// Tag of the first release that supports `fp16`, `None` if there is none.
    pub narrow_from: Option<&'static str>,
}

/// Finds the operations of a model that use fp32 because their release does not support fp16.
pub fn kept_in_fp32(model: &Model) -> Vec<Fp32Op> {
    let mut counts: BTreeMap<&str, Fp32Op> = BTreeMap::new();
    for function in &model.program.functions {
        for (_, op) in function.all_ops() {
            // Casts and similar operations allow all float types.
            let Some(kind) = op.kind() else { continue };
            let takes_fp32 = |name: &str, binding: &Binding| match binding {
                Binding::Value(value) => {
                    is_fp32(function.value(*value)) && !takes_half(kind, name, function.opset)
                }
                Binding::Literal(_) => false,
            };
            let Some((name, _)) = op.all_bindings().find(|(name, it)| takes_fp32(name, it)) else {
                continue;
            };
            let later = Opset::ALL.into_iter().filter(|opset| *opset > function.opset);
            let narrow_from = later.into_iter().find(|opset| takes_half(kind, name, *opset));
            let entry = counts.entry(kind.name()).or_insert_with(|| Fp32Op {
                op: kind.name(),
                count: 0,
                narrow_from: narrow_from.map(Opset::tag),
            });
            entry.count += 1;
        }
    }
    counts.into_values().collect()
}

fn is_fp32(value: &Value) -> bool {
    matches!(&value.ty, Type::Tensor(tensor) if tensor.dtype == DType::Fp32)
}

fn takes_half(kind: OpKind, parameter: &str, opset: Opset) -> bool {
    let parameter = kind.row(opset).and_then(|row| row.parameter(parameter));
    parameter.is_none_or(|parameter| match parameter.accepts {
        Accepts::Tensor { dtypes, .. } => dtypes.contains(&DType::Fp16),
        Accepts::Values | Accepts::List | Accepts::State | Accepts::Any => true,
    })
}
