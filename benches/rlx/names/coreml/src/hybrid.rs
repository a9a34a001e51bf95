//! Division of graphs.

use rlx_ir::Graph;

use crate::Result;

/// How a graph runs. Without host functions, coremill creates one package or refuses the graph.
#[derive(Clone, Debug)]
pub enum ExecutionPlan {
    MilOnly,
}

pub fn plan_execution(graph: &Graph) -> Result<ExecutionPlan> {
    coremill_rlx::CoremlExecutable::compile(graph.clone())?;
    Ok(ExecutionPlan::MilOnly)
}

/// A rewrite of `rlx-coreml` without a counterpart here.
pub fn recip_bn_div_after_conv(graph: Graph) -> Graph {
    graph
}
