//! Analysis of index values.

use coremill_mil::infer::{KnownElements, Scalar};
use coremill_mil::ir::Definition;

use crate::lower::prelude::*;

/// Maximum depth of the search through operands.
const MAX_DEPTH: usize = 16;

/// Elements of an integer or boolean constant.
pub(crate) fn constant_ints(builder: &Builder, value: ValueId) -> Option<Vec<i64>> {
    let constant = builder.known(value)?;
    let bytes = constant.elements()?;
    let bytes = bytes.as_bytes();
    match constant.tensor_type()?.dtype {
        DType::Int32 => {
            let (words, _) = bytes.as_chunks::<4>();
            Some(words.iter().map(|&word| i64::from(i32::from_le_bytes(word))).collect())
        }
        DType::Bool => Some(bytes.iter().map(|&byte| i64::from(byte != 0)).collect()),
        _ => None,
    }
}

/// Converts negative indices, which count from the end of an axis.
pub(crate) fn wrapped(builder: &mut Builder, indices: ValueId, extent: Int) -> ValueResult {
    if never_negative(builder, indices) {
        return Ok(indices);
    }
    if let (Some(places), Int::Known(extent)) = (constant_ints(builder, indices), extent)
        && let Some(shape) = builder.fixed_shape(indices)
    {
        let place = |&place: &i64| if place < 0 { place + extent } else { place };
        let bytes: Vec<u8> =
            places.iter().flat_map(|at| (place(at) as i32).to_le_bytes()).collect();
        return Ok(builder.constant(Constant::bytes(DType::Int32, &shape, bytes)));
    }
    let extent = builder.int_value(extent)?;
    let moved = builder.binary(OpKind::Add, indices, extent)?;
    let negative = builder.binary(OpKind::Less, indices, 0)?;
    builder.select(negative, moved, indices)
}

/// Whether no element is known to be possibly negative.
pub(crate) fn never_negative(builder: &Builder, value: ValueId) -> bool {
    is_never_negative(builder, value, MAX_DEPTH)
}

fn is_never_negative(builder: &Builder, value: ValueId, depth: usize) -> bool {
    if let Some(places) = constant_ints(builder, value) {
        return places.iter().all(|&place| place >= 0);
    }
    let certain = |element: &Scalar| {
        element.expr().and_then(|expr| expr.lower_bound()).is_some_and(|bound| bound >= 0)
    };
    if let Some(KnownElements { elements, .. }) = builder.folded(value)
        && elements.iter().all(certain)
    {
        return true;
    }
    let Some(depth) = depth.checked_sub(1) else { return false };
    let Definition::Output(op, _) = builder.function.value(value).definition else {
        return false;
    };
    let op = builder.function.op(op);
    let holds = |name: &str| {
        let bindings = op.bindings(name);
        !bindings.is_empty()
            && bindings.iter().all(|binding| match binding {
                Binding::Value(value) => is_never_negative(builder, *value, depth),
                Binding::Literal(constant) => is_positive(constant),
            })
    };
    match op.kind() {
        Some(
            OpKind::Argsort
            | OpKind::ReduceArgmax
            | OpKind::ReduceArgmin
            | OpKind::NonZero
            | OpKind::Shape
            | OpKind::OneHot,
        ) => true,
        // The second result contains indices.
        Some(OpKind::Topk) => op.outputs.get(1) == Some(&value),
        Some(OpKind::Range1d) => holds("start") && holds("step"),
        Some(OpKind::Cast) => match op.bindings("x") {
            [Binding::Value(x)] => {
                builder.dtype(*x) == DType::Bool || is_never_negative(builder, *x, depth)
            }
            _ => false,
        },
        Some(
            OpKind::Reshape
            | OpKind::ExpandDims
            | OpKind::Squeeze
            | OpKind::Transpose
            | OpKind::Tile
            | OpKind::SliceByIndex
            | OpKind::SliceBySize
            | OpKind::Split
            | OpKind::Reverse
            | OpKind::Identity
            | OpKind::Gather
            | OpKind::GatherAlongAxis
            | OpKind::GatherNd
            | OpKind::Cumsum
            | OpKind::ReduceSum
            | OpKind::ReduceMax
            | OpKind::ReduceMin,
        ) => holds("x"),
        Some(OpKind::Add | OpKind::Mul | OpKind::FloorDiv | OpKind::Minimum) => {
            holds("x") && holds("y")
        }
        Some(OpKind::Mod) => holds("y"),
        Some(OpKind::Maximum) => holds("x") || holds("y"),
        Some(OpKind::Select) => holds("a") && holds("b"),
        Some(OpKind::Concat | OpKind::Stack) => holds("values"),
        _ => false,
    }
}

fn is_positive(constant: &Constant) -> bool {
    KnownElements::from_constant(constant).is_some_and(|folded| {
        folded.elements.iter().all(|element| element.int().is_some_and(|value| value >= 0))
    })
}
