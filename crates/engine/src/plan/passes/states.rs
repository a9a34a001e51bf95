//! Updates parts of states in place.
//!
//! ```text
//! a = read_state(input = s)
//! b = slice_update(x = a, update = u, begin = …, end = …)
//! write_state(input = s, data = b)                             update s with u at …
//! ```

use coremill_mil::ops::OpKind;
use coremill_reference::error::Result;

use super::super::graph::{Node, NodeKind, ReferenceOp, Region};
use super::{Editor, Work};

/// Replaces partial updates of states in a region.
pub(super) fn lower(work: &mut Work<'_>, region: Region) -> Result<Region> {
    let mut editor = Editor::new(work.graph, region);
    for index in 0..editor.len() {
        let Some((read, write, state)) = recognise(&editor, index) else { continue };
        editor.take(read);
        let (Some(update), Some(last)) = (editor.take(index), editor.take(write)) else { continue };
        let NodeKind::Reference(reference) = update.kind else { continue };
        let mut inputs = Vec::new();
        let mut parameters = Vec::new();
        for (name, range) in reference.parameters {
            if name != "x" {
                let start = inputs.len();
                inputs.extend_from_slice(&update.inputs[range]);
                parameters.push((name, start..inputs.len()));
            }
        }
        let kind = NodeKind::UpdateState(state, ReferenceOp { parameters, ..reference });
        let node = Node { op: last.op, kind, inputs, outputs: Vec::new() };
        editor.put(work.graph, write, node);
    }
    Ok(editor.finish())
}

/// Indices of the nodes that read and write the state, and the state's index, for the update at
/// `index`.
fn recognise(editor: &Editor, index: usize) -> Option<(usize, usize, usize)> {
    let node = editor.node(index)?;
    if node.operation()? != OpKind::SliceUpdate {
        return None;
    }
    let x = node.bound("x").first()?;
    let (read, reader) = editor.writer_of(x)?;
    let NodeKind::ReadState(state) = reader.kind else { return None };
    editor.sole_reader(x.slot()?)?;
    let (write, writer) = editor.sole_reader(*node.outputs.first()?)?;
    let same = matches!(writer.kind, NodeKind::WriteState(written) if written == state);
    let untouched = (read + 1..write).all(|at| {
        editor.node(at).is_none_or(|node| match node.kind {
            NodeKind::WriteState(other) | NodeKind::UpdateState(other, _) => other != state,
            NodeKind::Cond(_) | NodeKind::Loop(_) => false,
            _ => true,
        })
    });
    (same && untouched).then_some((read, write, state))
}
