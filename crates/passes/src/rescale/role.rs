//! What operations do to powers of two.

use crate::Editor;
use coremill_mil::ir::{Binding, OpId, ValueId};
use coremill_mil::ops::OpKind;
use coremill_tensor::DType;

/// What an operation does to powers of two.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Role {
    /// What comes out has the power of what goes in, which is the same for all arguments but those named, and which
    /// constants take, too.
    Same {
        /// Parameters that are taken as they are.
        except: &'static [&'static str],
    },
    /// A constant takes whatever power lies between `x` and what comes out.
    Weight {
        /// The parameter that is a value.
        x: &'static str,
        /// The parameter that is a constant.
        weight: &'static str,
    },
    /// What comes out has a power of its own, whatever goes in: norms with factors behind them.
    Norm {
        /// Whether there are factors to take a power.
        free: bool,
    },
    /// What comes out has `times / parts` of the exponent of what goes in.
    Power {
        /// The numerator.
        times: i32,
        /// The denominator.
        parts: i32,
    },
    /// The exponents of both are added, or the second subtracted.
    Product {
        /// Whether it divides.
        divides: bool,
    },
    /// Everything is taken as it is.
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
    // What blocks give is taken as it is, and of several results none can be given by an operation of its own.
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

/// Whether a layer's weight is constant, be it stored as it is or with scales.
fn has_weight(editor: &Editor<'_>, id: OpId) -> bool {
    if constant(editor, id, "weight") {
        return true;
    }
    let producer = editor.argument(id, "weight").and_then(|weight| editor.producer(weight));
    let kind = producer.and_then(|id| editor.op(id)).and_then(|op| op.kind());
    matches!(kind, Some(OpKind::ConstexprAffineDequantize | OpKind::ConstexprBlockwiseShiftScale))
}

/// Whether an operation gives the same for an infinity as for what is too large for half precision.
pub(super) fn saturates(kind: OpKind) -> bool {
    use OpKind::{Erf, Sigmoid, SigmoidHard, Sign, Softsign, Tanh};
    matches!(kind, Sigmoid | SigmoidHard | Tanh | Erf | Sign | Softsign)
}

/// Whether an operation gives the same for 0 as for what is too small for half precision, unless that is itself small.
pub(super) fn is_underflow_safe(kind: OpKind) -> bool {
    use OpKind::{Cos, Erf, Exp, Exp2, Gelu, Sigmoid, SigmoidHard, Silu, Softmax, Softplus, Tanh};
    matches!(
        kind,
        Cos | Erf | Exp | Exp2 | Gelu | Sigmoid | SigmoidHard | Silu | Softmax | Softplus | Tanh
    )
}

/// The values of floats that an operation takes, with the parameters that they are bound to; constants are none.
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
