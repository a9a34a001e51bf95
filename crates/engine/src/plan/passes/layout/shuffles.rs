//! Recognizes channel shuffles.
//!
//! ```text
//! a = reshape(x = x, shape = [n, g, c, h, w])
//! b = transpose(x = a, perm = [0, 2, 1, 3, 4])
//! y = reshape(x = b, shape = [n, g * c, h, w])        y = permute(x)
//! ```

use std::collections::HashMap;

use coremill_mil::ops::OpKind;

use super::super::super::graph::{Node, NodeKind, Region, SlotId};
use super::super::parameters::parameters;
use super::super::{Editor, Work};
use super::may_have_twin;
use super::permute::Permute;

/// A channel shuffle of a channels-last tensor: a reshape and a permutation of axes.
#[derive(Clone)]
pub(super) struct Shuffle {
    pub(super) shape: Vec<usize>,
    pub(super) axes: Vec<usize>,
}

/// Merges each shuffle of a region to one node. Returns their channels-last implementations by
/// output slot.
pub(super) fn absorb(work: &mut Work<'_>, region: Region) -> (Region, HashMap<SlotId, Shuffle>) {
    let mut editor = Editor::new(work.graph, region);
    let mut found = HashMap::new();
    for index in 0..editor.len() {
        let Some((places, groups)) = recognise(work, &editor, index) else { continue };
        let [first, _, last] = places;
        let (Some(input), Some(output)) = (
            editor.node(first).map(|node| node.inputs[0].clone()),
            editor.node(last).map(|node| node.outputs[0]),
        ) else {
            continue;
        };
        let shape = work.graph.slot(output).shape.clone().unwrap_or_default();
        let (images, channels) = (shape[0], shape[1]);
        let pixels = shape[2..].iter().product();
        let each = channels / groups;
        let shuffle = Shuffle { shape: vec![images, pixels, groups, each], axes: vec![0, 1, 3, 2] };
        found.insert(output, shuffle);
        let own = Permute::new(vec![images, groups, each, pixels], vec![0, 2, 1, 3]);
        let ops: Vec<_> = places.iter().filter_map(|&place| editor.take(place)).collect();
        if let Some(Node { op, .. }) = ops.last() {
            let kind = NodeKind::Kernel(Box::new(own));
            let node = Node { op: *op, kind, inputs: vec![input], outputs: vec![output] };
            editor.put(work.graph, last, node);
        }
    }
    (editor.finish(), found)
}

/// The three nodes around a transposition that form a shuffle, and the number of groups.
fn recognise(work: &Work<'_>, editor: &Editor, index: usize) -> Option<([usize; 3], usize)> {
    let graph = &*work.graph;
    let node = editor.node(index)?;
    if node.operation()? != OpKind::Transpose {
        return None;
    }
    let [x] = node.bound("x") else { return None };
    let (first, split) = editor.writer_of(x)?;
    editor.sole_reader(x.slot()?)?;
    let (last, joined) = editor.sole_reader(node.outputs[0])?;
    if !matches!((&split.kind, &joined.kind), (NodeKind::Alias, NodeKind::Alias)) {
        return None;
    }
    let input = split.inputs.first()?.slot()?;
    let output = joined.outputs[0];
    if !may_have_twin(graph, input) || graph.slot(input).shape != graph.slot(output).shape {
        return None;
    }
    let whole = graph.slot(input).shape.as_deref()?;
    let parts = graph.shape(x)?;
    let axes = parameters(work.source, graph, node, |call| call.axes("perm", parts.len()))?;
    let swaps = axes.get(..3) == Some(&[0, 2, 1]) && axes[3..].iter().copied().eq(3..parts.len());
    let splits = parts.len() == whole.len() + 1
        && parts[0] == whole[0]
        && parts[1].checked_mul(parts[2]) == Some(whole[1])
        && parts[3..] == whole[2..];
    (swaps && splits && parts[1] > 0).then(|| ([first, index, last], parts[1]))
}
