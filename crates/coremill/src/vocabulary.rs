//! How many rows of a table an input of integers chooses from.

use std::collections::HashSet;

use coremill_mil::infer::Folded;
use coremill_mil::ir::{Binding, Function, Op, ValueId};
use coremill_mil::ops::OpKind;

/// How many values an input may have, as far as the tables tell that it is looked up in: token ids are below the number of
/// rows of an embedding. None if it is looked up in none.
///
/// ```
/// use coremill::graph::nn::Embedding;
/// use coremill::graph::{DType, Device, Graph, Session};
///
/// let graph = Graph::new();
/// let tokens = graph.input("tokens", DType::Int32, [1, 4]);
/// graph.output("y", Embedding::new(100, 8).apply("embedding", tokens));
/// let mut model = Session::new(Device::Host).compile(&graph)?;
/// model.set_param("embedding.weight", vec![0.5f32; 800])?;
/// let function = &model.model()?.program.functions[0];
/// assert_eq!(coremill::vocabulary(function, "tokens"), Some(100));
/// # Ok::<(), coremill::Error>(())
/// ```
pub fn vocabulary(function: &Function, input: &str) -> Option<u64> {
    let start = function.inputs().iter().find(|id| function.value(**id).name == input)?;
    let mut same: HashSet<ValueId> = HashSet::from([*start]);
    let mut least = None;
    for (_, op) in function.all_ops() {
        let is_same =
            |binding: &Binding| matches!(binding, Binding::Value(value) if same.contains(value));
        if let Some(rows) = rows(function, op)
            && op.bindings("indices").iter().any(is_same)
        {
            least = Some(least.map_or(rows, |least: u64| least.min(rows)));
        }
        if keeps(op) && op.all_bindings().any(|(_, binding)| is_same(binding)) {
            same.extend(op.outputs.iter().copied());
        }
    }
    least
}

/// The rows of the table that an operation looks up in.
fn rows(function: &Function, op: &Op) -> Option<u64> {
    let (Some(OpKind::Gather), [table]) = (op.kind(), op.bindings("x")) else { return None };
    let shape = match table {
        Binding::Value(value) => &function.value(*value).ty.as_tensor()?.shape,
        Binding::Literal(constant) => &constant.tensor_type()?.shape,
    };
    let axis = op.bindings("axis").first().and_then(|axis| function.bound_constant(axis));
    let is_first = axis.is_none_or(|axis| {
        Folded::from_constant(axis).and_then(|axis| axis.ints()) == Some(vec![0])
    });
    // A table has rows; a vector may be anything.
    let [rows, _, ..] = &shape[..] else { return None };
    rows.known().filter(|_| is_first)
}

/// Whether what an operation gives are the same numbers, or as good as they.
fn keeps(op: &Op) -> bool {
    use OpKind::{
        Add, Cast, Clip, Concat, ExpandDims, Identity, Maximum, Minimum, Reshape, Select,
        SliceByIndex, SliceBySize, Split, Squeeze, Tile, Transpose,
    };
    matches!(
        op.kind(),
        Some(
            Add | Cast
                | Clip
                | Concat
                | ExpandDims
                | Identity
                | Maximum
                | Minimum
                | Reshape
                | Select
                | SliceByIndex
                | SliceBySize
                | Split
                | Squeeze
                | Tile
                | Transpose
        )
    )
}
