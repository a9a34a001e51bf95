//! Plans: how a function is run for inputs of given shapes.
//!
//! | step | module |
//! |---|---|
//! | the function becomes a graph, one node an operation, constants set apart | `build`, `source` |
//! | weights are packed as kernels take them | `packed`, `matrix` |
//! | what kernels hold of constants is made again when these change | `derived` |
//! | nodes that run often get kernels for their shapes, several become one | `passes` |
//! | tensors share one arena, memory is let go | `place` |

mod build;
mod constant;
mod derived;
mod graph;
mod held;
mod kernel;
mod matrix;
mod packed;
mod passes;
mod place;
mod same;
mod source;

pub(crate) use constant::ConstantTensor;
pub(crate) use graph::{Graph, Node, NodeKind, Operand, ReferenceOp, Region, SlotId, SlotKind};
pub(crate) use kernel::{Cost, CpuContext, Kernel};
pub(crate) use place::MemoryPlan;
pub(crate) use source::FunctionContext;

use std::collections::HashMap;

use coremill_mil::ir::Definition;

use crate::call::count_within;
use crate::error::{Error, Result};

/// How a function is run for inputs of given shapes.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) graph: Graph,
    pub(crate) places: MemoryPlan,
    /// The slots whose elements slots of the body show under other shapes.
    pub(crate) shown: HashMap<SlotId, SlotId>,
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
pub(crate) fn plan(source: &FunctionContext, machine: &CpuContext, key: &PlanKey) -> Result<Plan> {
    let build::BuiltGraph { mut graph, sound } = build::build(source, &key.shapes)?;
    check_extents(source, &graph)?;
    // Passes rely on what inference found. Where it does not hold for these shapes there is nothing to rely on.
    if sound && !key.observed {
        passes::run(&mut passes::Work { source, machine, graph: &mut graph })?;
    }
    expand_constants(source, &graph.body)?;
    let places = place::place(&mut graph);
    let (bytes, limit) = (places.length.saturating_mul(4), source.limits.bytes);
    if bytes > limit {
        return Err(Error::limit(format!("values take {bytes} bytes; the limit is {limit}"))
            .with_hint("raise the limit: the option `max_memory`, or `Limits::bytes`"));
    }
    let shown = shown(&graph.body);
    Ok(Plan { graph, places, shown })
}

fn shown(body: &Region) -> HashMap<SlotId, SlotId> {
    let mut shown = HashMap::new();
    for node in &body.nodes {
        if let (NodeKind::Alias, [Operand::Slot(from)], [to]) =
            (&node.kind, &node.inputs[..], &node.outputs[..])
        {
            let first = shown.get(from).copied().unwrap_or(*from);
            shown.insert(*to, first);
        }
    }
    shown
}

/// Refuses values that are too large before anything is computed of their shapes, or put in memory.
fn check_extents(source: &FunctionContext, graph: &Graph) -> Result<()> {
    for slot in &graph.slots {
        let Some(shape) = &slot.shape else { continue };
        if let Err(error) = count_within(shape, &source.limits) {
            let definition = slot.value.map(|value| source.function.value(value).definition);
            return Err(match definition {
                Some(Definition::Output(op, _)) => source.place(op, error),
                Some(Definition::Input(..)) | None => error,
            });
        }
    }
    Ok(())
}

/// Computes the constants that nodes read as they are.
fn expand_constants(source: &FunctionContext, region: &Region) -> Result<()> {
    for node in &region.nodes {
        for known in node.inputs.iter().filter_map(Operand::constant) {
            known.expand(source)?;
        }
        for region in node.regions() {
            expand_constants(source, region)?;
        }
    }
    for known in region.outputs.iter().filter_map(Operand::constant) {
        known.expand(source)?;
    }
    Ok(())
}
