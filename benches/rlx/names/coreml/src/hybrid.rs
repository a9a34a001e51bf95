//! How graphs are divided.

use rlx_ir::Graph;

use crate::Result;

/// How a graph runs. Without functions of the caller, coremill makes one package of it or refuses it.
#[derive(Clone, Debug)]
pub enum ExecutionPlan {
    MilOnly,
}

pub fn plan_execution(graph: &Graph) -> Result<ExecutionPlan> {
    coremill_rlx::CoremlExecutable::compile(graph.clone())?;
    Ok(ExecutionPlan::MilOnly)
}

/// A rewrite of the peer's, which has no counterpart.
pub fn recip_bn_div_after_conv(graph: Graph) -> Graph {
    graph
}
