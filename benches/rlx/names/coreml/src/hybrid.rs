//! Partitioning of graphs.

use rlx_ir::Graph;

use crate::Result;

/// Execution of a graph. Without functions of the caller, coremill makes one package of it or rejects it.
#[derive(Clone, Debug)]
pub enum ExecutionPlan {
    MilOnly,
}

pub fn plan_execution(graph: &Graph) -> Result<ExecutionPlan> {
    coremill_rlx::CoremlExecutable::compile(graph.clone())?;
    Ok(ExecutionPlan::MilOnly)
}

/// A rewrite of `rlx-coreml` that coremill does not need.
pub fn recip_bn_div_after_conv(graph: Graph) -> Graph {
    graph
}
