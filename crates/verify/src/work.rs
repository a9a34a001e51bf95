//! Arithmetic and memory traffic of operations, for estimates of their time.

use coremill_device::Work;

use coremill_mil::infer::{Analysis, KnownElements, Scalar};
use coremill_mil::ir::{Binding, Op, ValueId};
use coremill_mil::ops::OpKind;

/// Operands that hold data, not the shapes and axes that describe it.
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

/// An operation with the shapes of its values.
struct Subject<'a> {
    analysis: &'a Analysis,
    op: &'a Op,
    kind: OpKind,
    shape: &'a dyn Fn(ValueId) -> Option<Vec<u64>>,
}

/// Arithmetic and memory traffic of an operation. `shape` returns the sizes of a value; unknown sizes count as zero.
pub fn work(
    analysis: &Analysis,
    op: &Op,
    kind: OpKind,
    shape: &dyn Fn(ValueId) -> Option<Vec<u64>>,
) -> Work {
    let subject = Subject { analysis, op, kind, shape };
    let elements = |value: ValueId| shape(value).map_or(0.0, |shape| product(&shape));
    let outputs: f64 = op.outputs.iter().map(|&output| elements(output)).sum();
    let data = op.all_bindings().filter(|(parameter, _)| DATA.contains(parameter));
    let operands: f64 = data
        .filter_map(|(_, binding)| match binding {
            Binding::Value(value) => Some(elements(*value)),
            Binding::Literal(_) => None,
        })
        .sum();
    Work { flops: subject.flops().unwrap_or(0.0), bytes: 2.0 * (operands + outputs) }
}

/// Size of the dimension that a product of matrices sums over; `None` for other operations.
pub fn contracted(
    analysis: &Analysis,
    op: &Op,
    kind: OpKind,
    shape: &dyn Fn(ValueId) -> Option<Vec<u64>>,
) -> Option<u64> {
    Subject { analysis, op, kind, shape }.contracted()
}

fn product(shape: &[u64]) -> f64 {
    shape.iter().map(|&size| size as f64).product()
}

impl Subject<'_> {
    fn operand(&self, parameter: &str) -> Option<Vec<u64>> {
        match self.op.binding(parameter)? {
            Binding::Value(value) => (self.shape)(*value),
            Binding::Literal(constant) => constant.tensor_type()?.known_shape(),
        }
    }

    fn is_true(&self, parameter: &str) -> Option<bool> {
        let is_true = |known: &KnownElements| {
            known.elements.first().map(|element| *element == Scalar::Bool(true))
        };
        match self.op.binding(parameter)? {
            Binding::Value(value) => is_true(self.analysis.folded(*value)?),
            Binding::Literal(constant) => is_true(&KnownElements::from_constant(constant)?),
        }
    }

    fn contracted(&self) -> Option<u64> {
        match self.kind {
            OpKind::Matmul => {
                let shape = self.operand("x")?;
                let is_transposed = self.is_true("transpose_x") == Some(true);
                let rows = shape.len().checked_sub(2).filter(|_| is_transposed);
                shape.get(rows.unwrap_or(shape.len().saturating_sub(1))).copied()
            }
            OpKind::Linear => self.operand("weight")?.last().copied(),
            _ => None,
        }
    }

    fn flops(&self) -> Option<f64> {
        let output = (self.shape)(*self.op.outputs.first()?)?;
        Some(match self.kind {
            OpKind::Conv | OpKind::ConvQuantized => {
                2.0 * product(&output) * product(self.operand("weight")?.get(1..)?)
            }
            OpKind::ConvTranspose => {
                2.0 * product(&self.operand("x")?) * product(self.operand("weight")?.get(1..)?)
            }
            OpKind::Linear | OpKind::Matmul => 2.0 * product(&output) * self.contracted()? as f64,
            OpKind::Einsum => {
                let values = self.op.bindings("values").first()?;
                let Binding::Value(first) = values else { return None };
                2.0 * product(&output) * *(self.shape)(*first)?.last()? as f64
            }
            OpKind::ScaledDotProductAttention => {
                let key = self.operand("key")?;
                4.0 * product(&output) * *key.iter().rev().nth(1)? as f64
            }
            _ => 0.0,
        })
    }
}
