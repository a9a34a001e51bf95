//! Number of rows of the table that an integer input indexes.

use std::collections::HashSet;

use coremill_mil::infer::KnownElements;
use coremill_mil::ir::{Binding, Function, Op, ValueId};
use coremill_mil::ops::OpKind;

/// Number of rows of the table that an input's elements index: for token ids, the number of rows of the embedding.
/// `None` if the input is not used as an index.
///
/// ```
/// use coremill_mil::text;
///
/// let program = text::parse("program(1.3) {
///     func main<ios17>(tensor<fp32, [100, 8]> table, tensor<int32, [1, 4]> tokens) {
///         int32 axis = const()[val = int32(0)];
///         int32 batch_dims = const()[val = int32(0)];
///         bool validate_indices = const()[val = bool(false)];
///         tensor<fp32, [1, 4, 8]> y = gather(axis = axis, batch_dims = batch_dims, indices = tokens,
///             validate_indices = validate_indices, x = table);
///     } -> (y);
/// }", &text::NoWeights).expect("it is MIL");
/// assert_eq!(coremill_session::vocabulary(&program.functions[0], "tokens"), Some(100));
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

/// Number of rows of the table that an operation indexes.
fn rows(function: &Function, op: &Op) -> Option<u64> {
    let (Some(OpKind::Gather), [table]) = (op.kind(), op.bindings("x")) else { return None };
    let shape = match table {
        Binding::Value(value) => &function.value(*value).ty.as_tensor()?.shape,
        Binding::Literal(constant) => &constant.tensor_type()?.shape,
    };
    let axis = op.bindings("axis").first().and_then(|axis| function.bound_constant(axis));
    let is_first = axis.is_none_or(|axis| {
        KnownElements::from_constant(axis).and_then(|axis| axis.ints()) == Some(vec![0])
    });
    // A table must have rank 2 or higher; a vector is ambiguous.
    let [rows, _, ..] = &shape[..] else { return None };
    rows.known().filter(|_| is_first)
}

/// Whether an operation preserves the numbers, or nearly so.
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
