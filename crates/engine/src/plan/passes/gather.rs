//! Reads rows of a constant, usually an embedding, directly from the stored data. The other rows
//! are never expanded.
//!
//! ```text
//! a = gather(x = table, indices = i, axis = 0)
//! ```

use std::sync::Arc;

use coremill_mil::ops::OpKind;
use coremill_reference::array::View;
use coremill_reference::error::{Error, Result, fail};
use coremill_reference::ops::GatherAxis;

use super::super::derived::Memoized;
use super::super::graph::{Node, NodeKind, Region};
use super::super::kernel::{Cost, CpuContext, Kernel};
use super::parameters::parameters;
use super::{Editor, Work};
use crate::weights::Weights;

/// Replaces lookups in constant tables by kernels.
pub(super) fn lower(work: &mut Work<'_>, region: Region) -> Result<Region> {
    let mut editor = Editor::new(work.graph, region);
    for index in 0..editor.len() {
        let Some(node) = editor.node(index) else { continue };
        let Some(lookup) = recognise(work, node) else { continue };
        let indices = node.bound("indices").to_vec();
        if let Some(Node { op, outputs, .. }) = editor.take(index) {
            let kind = NodeKind::Kernel(Box::new(lookup));
            editor.put(work.graph, index, Node { op, kind, inputs: indices, outputs });
        }
    }
    Ok(editor.finish())
}

fn recognise(work: &Work<'_>, node: &Node) -> Option<Lookup> {
    let (source, graph) = (work.source, &*work.graph);
    if node.operation()? != OpKind::Gather {
        return None;
    }
    let [table] = node.bound("x") else { return None };
    let [_] = node.bound("indices") else { return None };
    let table = table.constant()?;
    let shape = graph.slot(*node.outputs.first()?).shape.as_deref()?;
    if !table.dtype.is_float() || table.shape.contains(&0) || shape.contains(&0) {
        return None;
    }
    let axis = parameters(source, graph, node, |call| {
        let rank = table.shape.len();
        let axis = call.axis("axis", rank)?;
        let batch = call.row.parameter("batch_dims").map_or(Ok(0), |_| call.int("batch_dims"))?;
        if axis != 0 || batch != 0 {
            fail!("only lookups of rows are supported");
        }
        Ok(GatherAxis::of(call, call.tensor("x")?, axis))
    })?;
    let weights = source.derived(work.machine, &[table], |source, _, known| {
        let weights = source.weights(&known[0]);
        weights.map(Arc::new).ok_or_else(|| Error::new("cannot find the weights of the table"))
    });
    Some(Lookup { weights: weights.ok()?, axis })
}

struct Lookup {
    weights: Memoized<Weights>,
    axis: GatherAxis,
}

impl Kernel for Lookup {
    fn run(
        &self,
        _machine: &CpuContext,
        inputs: &[View<'_>],
        outputs: &mut [&mut [f32]],
        _scratch: &mut [f32],
    ) -> Result<()> {
        let weights = self.weights.get();
        let columns = weights.columns();
        let rows = outputs[0].chunks_exact_mut(columns);
        for (&index, target) in inputs[0].ints()?.iter().zip(rows) {
            let row = self.axis.place(index)?;
            weights.expand_rows(row..row + 1, target);
        }
        Ok(())
    }

    fn label(&self) -> String {
        "gather".to_owned()
    }

    fn cost(&self) -> Cost {
        // The number of rows depends on the indices; count one.
        Cost { operations: 0, bytes: 4 * self.weights.get().columns() as u64 }
    }
}
