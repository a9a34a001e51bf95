use coremill_device::Work;
use coremill_mil::ir::{Binding, Op};
use coremill_mil::ops::OpKind;

use super::obstacle::Subject;

/// Arithmetic and memory traffic of an operation. Unknown sizes count as zero.
pub(super) fn work(subject: &Subject<'_>) -> Work {
    let outputs: f64 = subject.op.outputs.iter().map(|&output| subject.elements(output)).sum();
    let operands: f64 = runtime_and_weights(subject.op)
        .filter_map(|binding| match binding {
            Binding::Value(value) => Some(subject.elements(*value)),
            Binding::Literal(_) => None,
        })
        .sum();
    Work { flops: flops(subject).unwrap_or(0.0), bytes: 2.0 * (operands + outputs) }
}

/// Operands that hold data, not the shapes and axes that describe it.
fn runtime_and_weights(op: &Op) -> impl Iterator<Item = &Binding> {
    const DATA: [&str; 13] = [
        "x",
        "y",
        "weight",
        "bias",
        "values",
        "query",
        "key",
        "value",
        "attn_mask",
        "data",
        "a",
        "b",
        "update",
    ];
    let data = op.all_bindings().filter(|(parameter, _)| DATA.contains(parameter));
    data.map(|(_, binding)| binding)
}

fn flops(subject: &Subject<'_>) -> Option<f64> {
    let product = |shape: &[u64]| shape.iter().map(|&size| size as f64).product::<f64>();
    let output = subject.shape(*subject.op.outputs.first()?)?;
    Some(match subject.kind {
        OpKind::Conv | OpKind::ConvQuantized => {
            2.0 * product(&output) * product(subject.operand("weight")?.get(1..)?)
        }
        OpKind::ConvTranspose => {
            2.0 * product(&subject.operand("x")?) * product(subject.operand("weight")?.get(1..)?)
        }
        OpKind::Linear => 2.0 * product(&output) * *subject.operand("weight")?.last()? as f64,
        OpKind::Matmul => 2.0 * product(&output) * subject.contracted()? as f64,
        OpKind::Einsum => {
            let values = subject.op.bindings("values").first()?;
            let Binding::Value(first) = values else { return None };
            2.0 * product(&output) * *subject.shape(*first)?.last()? as f64
        }
        OpKind::ScaledDotProductAttention => {
            let key = subject.operand("key")?;
            4.0 * product(&output) * *key.iter().rev().nth(1)? as f64
        }
        _ => 0.0,
    })
}
