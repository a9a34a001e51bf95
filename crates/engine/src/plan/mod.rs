//! Plans: how a function is run for inputs of given shapes.
//!
//! | step | module |
//! |---|---|
//! | the function becomes a graph, one node an operation, constants set apart | `build`, `known` |
//! | nodes that run often get kernels for their shapes, several become one | `passes` |
//! | tensors share one arena, memory is let go | `place` |

mod build;
mod graph;
mod kernel;
mod known;
mod packed;
mod passes;
mod place;

pub(crate) use graph::{Graph, Holds, Node, NodeKind, Operand, Reference, Region, SlotId};
pub(crate) use kernel::{Cost, Kernel, Machine};
pub(crate) use known::{Known, Source};
pub(crate) use place::Places;

use crate::error::Result;

/// How a function is run for inputs of given shapes.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) graph: Graph,
    pub(crate) places: Places,
}

/// What a plan is made for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PlanKey {
    /// The shapes of the inputs that are no states.
    pub(crate) shapes: Vec<Vec<usize>>,
    /// Whether every value of the program must come about as such, for an observer.
    pub(crate) observed: bool,
}

/// Makes a plan.
pub(crate) fn plan(source: &Source, machine: &Machine, key: &PlanKey) -> Result<Plan> {
    let mut graph = build::build(source, &key.shapes)?;
    if !key.observed {
        passes::run(&mut passes::Work { source, machine, graph: &mut graph })?;
    }
    expand_constants(source, &graph.body)?;
    let places = place::place(&mut graph);
    Ok(Plan { graph, places })
}

/// Computes the constants that nodes read as they are.
fn expand_constants(source: &Source, region: &Region) -> Result<()> {
    for node in &region.nodes {
        for known in node.inputs.iter().filter_map(Operand::constant) {
            known.array(source)?;
        }
        for region in node.regions() {
            expand_constants(source, region)?;
        }
    }
    for known in region.outputs.iter().filter_map(Operand::constant) {
        known.array(source)?;
    }
    Ok(())
}
