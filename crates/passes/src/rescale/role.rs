//! Propagation of powers of two through operations.

use crate::Editor;
use coremill_mil::ir::{Binding, OpId, ValueId};
use coremill_mil::ops::OpKind;
use coremill_tensor::DType;

/// Effect of an operation on powers of two.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Role {
    /// The result has the exponent of the operands, which must be equal, except for the listed parameters. Constants
    /// are scaled along.
    Same {
        /// Parameters that must not be scaled.
        except: &'static [&'static str],
    },
    /// A constant absorbs the difference of the exponents of `x` and the result.
    Weight {
        /// Parameter with the value.
        x: &'static str,
        /// Parameter with the constant.
        weight: &'static str,
    },
    /// The exponent of the result is independent of the operand: norms with a scale after them.
    Norm {
        /// Whether there is a scale that can absorb an exponent.
        free: bool,
    },
    /// The exponent of the result is `times / parts` of the operand's.
    Power {
        /// The numerator.
        times: i32,
        /// The denominator.
        parts: i32,
    },
    /// The exponents of both operands are added, or the second is subtracted.
    Product {
        /// Whether the second operand is a divisor.
        divides: bool,
    },
    /// Operands and results must be unscaled.
    Fixed,
}

/// The role of an operation.
pub(super) fn role(editor: &Editor<'_>, id: OpId) -> Role {
    let Some((op, kind)) = editor.op(id).and_then(|op| Some((op, op.kind()?))) else {
        return Role::Fixed;
    };
    let function = editor.function();
    if editor.block_of(id) != Some(function.body) || !op.blocks.is_empty() {
        return Role::Fixed;
    }
    let given = |value: &ValueId| function.outputs().contains(value);
    // Outputs of nested blocks must be unscaled. If an operation has several results, its function outputs cannot be
    // restored.
    let of_block = |value: &ValueId| editor.is_output(*value) && !given(value);
    if op.outputs.iter().any(of_block) || op.outputs.len() > 1 && op.outputs.iter().any(given) {
        return Role::Fixed;
    }
    of_kind(editor, id, kind)
}

fn of_kind(editor: &Editor<'_>, id: OpId, kind: OpKind) -> Role {
    use OpKind::*;
    let same = |except| Role::Same { except };
    let is_float = |name: &str| {
        editor.argument(id, name).is_some_and(|value| editor.dtype(value) == Some(DType::Fp32))
    };
    match kind {
        Add | Sub | Maximum | Minimum | Concat | Stack | Select | Relu | Relu6 | Abs | MaxPool
        | AvgPool | Reshape | ReshapeLike | Transpose | ExpandDims | Squeeze | SliceByIndex
        | SliceBySize | Split | Tile | Reverse | Gather | GatherAlongAxis | GatherNd | Pad
        | ReduceSum | ReduceMean | ReduceMax | ReduceMin | ReduceL1Norm | ReduceL2Norm | Cumsum
        | Identity | DepthToSpace | SpaceToDepth | PixelShuffle | PixelUnshuffle | BandPart
        | Crop | SliceUpdate | Clip | ThresholdedRelu | Greater | GreaterEqual | Less
        | LessEqual | Equal | NotEqual | ReduceArgmax | ReduceArgmin | Topk | SlidingWindows
        | Flatten2d => same(&[]),
        LeakyRelu | Prelu => same(&["alpha"]),
        Resize
        | ResizeBilinear
        | ResizeNearestNeighbor
        | UpsampleBilinear
        | UpsampleNearestNeighbor => same(&["scale_factor_height", "scale_factor_width"]),
        ScaledDotProductAttention => same(&["query", "key", "attn_mask"]),
        Conv | ConvTranspose | Linear => {
            let sound = has_weight(editor, id)
                && (editor.argument(id, "bias").is_none()
                    || editor.constant_argument(id, "bias").is_some());
            if sound { Role::Weight { x: "x", weight: "weight" } } else { Role::Fixed }
        }
        Mul | Matmul | RealDiv => match (constant(editor, id, "x"), constant(editor, id, "y")) {
            (false, true) => Role::Weight { x: "x", weight: "y" },
            (true, false) if kind != RealDiv => Role::Weight { x: "y", weight: "x" },
            (false, false)
                if kind == Mul && editor.argument(id, "x") == editor.argument(id, "y") =>
            {
                Role::Power { times: 2, parts: 1 }
            }
            (false, false) if is_float("x") && is_float("y") => {
                Role::Product { divides: kind == RealDiv }
            }
            _ => Role::Fixed,
        },
        BatchNorm => Role::Norm { free: true },
        LayerNorm | InstanceNorm => {
            Role::Norm { free: editor.constant_argument(id, "gamma").is_some() }
        }
        L2Norm => Role::Norm { free: false },
        Square | ReduceSumSquare => Role::Power { times: 2, parts: 1 },
        Sqrt => Role::Power { times: 1, parts: 2 },
        Rsqrt => Role::Power { times: -1, parts: 2 },
        Inverse => Role::Power { times: -1, parts: 1 },
        Pow => match editor.number(id, "y") {
            Some(2.0) => Role::Power { times: 2, parts: 1 },
            Some(0.5) => Role::Power { times: 1, parts: 2 },
            Some(-0.5) => Role::Power { times: -1, parts: 2 },
            Some(-1.0) => Role::Power { times: -1, parts: 1 },
            _ => Role::Fixed,
        },
        _ => Role::Fixed,
    }
}

fn constant(editor: &Editor<'_>, id: OpId, name: &str) -> bool {
    editor.constant_argument(id, name).is_some()
}

/// Whether a layer's weight is a plain or quantized constant.
fn has_weight(editor: &Editor<'_>, id: OpId) -> bool {
    if constant(editor, id, "weight") {
        return true;
    }
    let producer = editor.argument(id, "weight").and_then(|weight| editor.producer(weight));
    let kind = producer.and_then(|id| editor.op(id)).and_then(|op| op.kind());
    matches!(kind, Some(OpKind::ConstexprAffineDequantize | OpKind::ConstexprBlockwiseShiftScale))
}

/// Whether an operation has the same result for infinity as for numbers beyond fp16.
pub(super) fn saturates(kind: OpKind) -> bool {
    use OpKind::{Erf, Sigmoid, SigmoidHard, Sign, Softsign, Tanh};
    matches!(kind, Sigmoid | SigmoidHard | Tanh | Erf | Sign | Softsign)
}

/// Whether an operation has the same result for 0 as for numbers too small for fp16, unless the result is itself
/// small.
pub(super) fn is_underflow_safe(kind: OpKind) -> bool {
    use OpKind::{Cos, Erf, Exp, Exp2, Gelu, Sigmoid, SigmoidHard, Silu, Softmax, Softplus, Tanh};
    matches!(
        kind,
        Cos | Erf | Exp | Exp2 | Gelu | Sigmoid | SigmoidHard | Silu | Softmax | Softplus | Tanh
    )
}

/// Float operands of an operation with their parameters, without constants.
pub(super) fn operands(editor: &Editor<'_>, id: OpId) -> Vec<(String, ValueId)> {
    let Some(op) = editor.op(id) else { return Vec::new() };
    let bound = op.all_bindings().filter_map(|(name, binding)| match binding {
        Binding::Value(value)
            if editor.dtype(*value) == Some(DType::Fp32) && editor.constant(*value).is_none() =>
        {
            Some((name.to_owned(), *value))
        }
        _ => None,
    });
    bound.collect()
}
