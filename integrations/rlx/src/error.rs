//! Errors about graphs.

use coremill_graph::{Error, ErrorKind};
use rlx_ir::Node;

/// Returns an error about a graph.
pub(crate) fn failure(message: impl Into<String>) -> Error {
    Error::custom(ErrorKind::Graph, message)
}

/// Returns an error about a node.
pub(crate) fn refusal(node: &Node, message: impl Into<String>) -> Error {
    let kind = node.op.kind();
    failure(format!("node {} (`{kind:?}`) {}", node.id, message.into()))
}
