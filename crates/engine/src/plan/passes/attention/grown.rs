//! Fuses the concatenation of new keys and values into an attention with few queries. The attention
//! concatenates them head by head, so that each head is still in the cache when it is used.
//!
//! ```text
//! k = concat(values = (past_k, new_k), axis = 2)
//! v = concat(values = (past_v, new_v), axis = 2)
//! o = attention(q, k, v)                          o, k, v = attention(q, past_k, new_k, past_v, new_v)
//! ```

use coremill_kernels::matmul::{AttentionShape, Heads, HeadsMut, Mask, attend};
use coremill_mil::ops::OpKind;
use coremill_reference::array::View;
use coremill_reference::error::{Result, fail};

use super::super::super::graph::{Graph, Operand, SlotId};
use super::super::super::kernel::{Cost, CpuContext, Kernel};
use super::super::Editor;
use super::super::parameters::parameters;
use super::super::strided::{StridedSlice, strided};
use super::{Attention, four_axes};
use crate::plan::FunctionContext;

/// Maximum number of queries that read keys and values in their stored layout. For more queries
/// they are packed first.
const FEW: usize = 4;

/// Keys or values that a node concatenates.
pub(super) struct ConcatenatedKv {
    /// Index of the node.
    pub(super) node: usize,
    pub(super) slot: SlotId,
    /// The concatenated tensors, as `[batch, heads, rows, depth]`.
    pub(super) pieces: Vec<StridedSlice>,
}

impl ConcatenatedKv {
    /// Recognizes a concatenation along the rows whose result is read only by `nodes` and unused
    /// after `place`.
    pub(super) fn of(
        source: &FunctionContext,
        graph: &Graph,
        editor: &Editor,
        operand: &Operand,
        nodes: &[usize],
        place: usize,
    ) -> Option<ConcatenatedKv> {
        let (at, node) = editor.writer_of(operand)?;
        if node.operation()? != OpKind::Concat {
            return None;
        }
        let slot = operand.slot()?;
        let shape = graph.slot(slot).shape.as_deref()?;
        let rank = shape.len();
        let axis = parameters(source, graph, node, |call| {
            if call.bool("interleave")? {
                fail!("interleaves");
            }
            call.axis("axis", rank)
        })?;
        let runs_regions = |at| editor.node(at).is_some_and(|node| !node.regions().is_empty());
        if axis + 2 != rank
            || editor.readers(slot).iter().any(|reader| *reader < place && !nodes.contains(reader))
            || (at..place).any(runs_regions)
        {
            return None;
        }
        let mut pieces = Vec::new();
        let mut rows = 0;
        for operand in node.bound("values") {
            let piece = strided(source, graph, editor, operand)?;
            // Unknown dimensions may contradict each other. The reference kernel reports that.
            let extents = &piece.shape;
            let fits = extents.len() == rank
                && (0..rank).all(|at| at == axis || extents[at] == shape[at])
                && graph.dtype(operand) == graph.slot(slot).dtype;
            if !fits {
                return None;
            }
            rows += extents[axis];
            pieces.push(four_axes(piece)?);
        }
        (rows == shape[axis]).then_some(ConcatenatedKv { node: at, slot, pieces })
    }
}

/// Returns true if the attention can concatenate its keys and values itself.
pub(super) fn may_join(attention: &Attention) -> bool {
    let AttentionShape { heads, queries, value_depth, group, .. } = attention.shape;
    let each = queries * value_depth;
    queries <= FEW && group == 1 && attention.output == [heads * each, each, value_depth]
}

/// An attention that concatenates its keys and values.
pub(super) struct AttentionWithKvConcat {
    attention: Attention,
    keys: Vec<Piece>,
    values: Vec<Piece>,
}

/// Some rows of every head.
struct Piece {
    rows: usize,
    offset: usize,
    /// Strides of batch, head and row.
    strides: [usize; 3],
}

impl AttentionWithKvConcat {
    /// The inputs are the query, the pieces of the keys, the pieces of the values, and the mask.
    pub(super) fn new(
        attention: Attention,
        keys: &ConcatenatedKv,
        values: &ConcatenatedKv,
    ) -> AttentionWithKvConcat {
        let pieces = |grown: &ConcatenatedKv| {
            let piece = |view: &StridedSlice| Piece {
                rows: view.shape[2],
                offset: view.offset,
                strides: [view.strides[0], view.strides[1], view.strides[2]],
            };
            grown.pieces.iter().map(piece).collect()
        };
        AttentionWithKvConcat { keys: pieces(keys), values: pieces(values), attention }
    }
}

impl Piece {
    /// Copies the rows of a head. Returns the rest of the target.
    fn write<'t>(
        &self,
        source: &[f32],
        start: usize,
        depth: usize,
        target: &'t mut [f32],
    ) -> &'t mut [f32] {
        let (target, rest) = target.split_at_mut(self.rows * depth);
        let source = &source[self.offset + start..];
        if self.strides[2] == depth {
            target.copy_from_slice(&source[..target.len()]);
        } else {
            for (row, target) in target.chunks_exact_mut(depth).enumerate() {
                target.copy_from_slice(&source[row * self.strides[2]..][..depth]);
            }
        }
        rest
    }
}

impl Kernel for AttentionWithKvConcat {
    fn run(
        &self,
        machine: &CpuContext,
        inputs: &[View<'_>],
        outputs: &mut [&mut [f32]],
        _scratch: &mut [f32],
    ) -> Result<()> {
        let AttentionWithKvConcat { attention, keys, values } = self;
        let AttentionShape { heads, queries, keys: count, depth, value_depth, .. } =
            attention.shape;
        let floats = inputs.iter().map(View::floats).collect::<Result<Vec<_>>>()?;
        let [output, all_keys, all_values] = outputs else {
            fail!("attention that concatenates keys and values must return them");
        };
        let shape = AttentionShape { batch: 1, heads: 1, ..attention.shape };
        let parts = output
            .chunks_exact_mut(queries * value_depth)
            .zip(all_keys.chunks_exact_mut(count * depth))
            .zip(all_values.chunks_exact_mut(count * value_depth));
        machine.share(parts, |index, ((output, joined_keys), joined_values)| {
            let at = |strides: &[usize]| index / heads * strides[0] + index % heads * strides[1];
            let (mut rest, mut sources) = (&mut **joined_keys, floats[1..].iter());
            for (piece, source) in keys.iter().zip(&mut sources) {
                rest = piece.write(source, at(&piece.strides), depth, rest);
            }
            let mut rest = &mut **joined_values;
            for (piece, source) in values.iter().zip(&mut sources) {
                rest = piece.write(source, at(&piece.strides), value_depth, rest);
            }
            let (offset, strides) = &attention.query;
            let rows = |elements, depth| Heads { elements, strides: [0, 0, depth] };
            let mask = attention.mask.zip(sources.next()).map(|(strides, elements)| Mask {
                elements: &elements[at(&strides)..],
                strides: [0, 0, strides[2], strides[3]],
            });
            attend(
                &machine.pool,
                machine.isa,
                shape,
                attention.scale,
                rows(&floats[0][offset + at(strides)..], strides[2]),
                rows(joined_keys, depth),
                rows(joined_values, value_depth),
                mask,
                HeadsMut { elements: output, strides: [0, 0, value_depth] },
            );
        });
        attention.round(machine, outputs[0]);
        Ok(())
    }

    fn label(&self) -> String {
        "concat+attention".to_owned()
    }

    fn cost(&self) -> Cost {
        let AttentionShape { batch, heads, keys, depth, value_depth, .. } = self.attention.shape;
        let Cost { operations, bytes } = self.attention.cost();
        Cost {
            operations,
            bytes: bytes + 4 * (batch * heads * keys * (depth + value_depth)) as u64,
        }
    }
}
