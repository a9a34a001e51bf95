//! Dead code elimination: removes nodes whose outputs are unused.
//!
//! ```text
//! y = exp(x = x)
//! z = sin(x = x)          z = sin(x = x)
//! return z            →   return z
//! ```

use super::super::graph::{Graph, Node, NodeKind, Operand, Region};

/// Removes unused nodes of all regions, last to first. Writes to states stay.
pub(super) fn remove(graph: &mut Graph) {
    let mut read = vec![false; graph.slots.len()];
    let mut body = std::mem::take(&mut graph.body);
    sweep(&mut body, &mut read);
    graph.body = body;
}

fn sweep(region: &mut Region, read: &mut [bool]) {
    let note = |operands: &[Operand], read: &mut [bool]| {
        for slot in operands.iter().filter_map(Operand::slot) {
            read[slot.index()] = true;
        }
    };
    note(&region.outputs, read);
    let mut kept = Vec::with_capacity(region.nodes.len());
    for mut node in std::mem::take(&mut region.nodes).into_iter().rev() {
        if !has_side_effects(&node) && !node.outputs.iter().any(|slot| read[slot.index()]) {
            continue;
        }
        note(&node.inputs, read);
        if let NodeKind::Cond(regions) | NodeKind::Loop(regions) = &mut node.kind {
            regions.iter_mut().rev().for_each(|region| sweep(region, read));
        }
        kept.push(node);
    }
    kept.reverse();
    region.nodes = kept;
}

/// Returns true if a node does more than write its outputs.
fn has_side_effects(node: &Node) -> bool {
    match &node.kind {
        NodeKind::WriteState(_) | NodeKind::UpdateState(..) => true,
        NodeKind::Cond(_) | NodeKind::Loop(_) => {
            node.regions().iter().any(|region| region.nodes.iter().any(has_side_effects))
        }
        NodeKind::Kernel(kernel) => kernel.has_side_effects(),
        NodeKind::Reference(_) | NodeKind::Alias | NodeKind::ReadState(_) | NodeKind::List(..) => {
            false
        }
    }
}
