//! Plans: the steps that run a function for given input shapes.
//!
//! | step | module |
//! |---|---|
//! | build the graph, one node per operation, and separate constants | `build`, `source` |
//! | pack weights for the kernels | `packed`, `matrix` |
//! | recompute data derived from constants that change | `derived` |
//! | select kernels for the shapes and fuse operations | `passes` |
//! | allocate tensors in one arena and find their last use | `place` |

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

use coremill_reference::call::count_within;
use coremill_reference::error::{Error, Result};

/// The steps that run a function for given input shapes.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) graph: Graph,
    pub(crate) places: MemoryPlan,
    /// Maps a slot to the slot whose memory it aliases under another shape.
    pub(crate) shown: HashMap<SlotId, SlotId>,
}

/// Cache key of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PlanKey {
    /// Shapes of the inputs, without states.
    pub(crate) shapes: Vec<Vec<usize>>,
    /// Whether the run is observed. Every value of the program must then be computed.
    pub(crate) observed: bool,
}

/// Plans a function for given input shapes.
pub(crate) fn plan(source: &FunctionContext, machine: &CpuContext, key: &PlanKey) -> Result<Plan> {
    let build::BuiltGraph { mut graph, sound } = build::build(source, &key.shapes)?;
    check_extents(source, &graph)?;
    // Passes rely on inferred shapes, which are unknown if inference fails.
    // A device's arithmetic is that of operations by themselves.
    if sound && !key.observed && !source.numerics.is_device() {
        passes::run(&mut passes::Work { source, machine, graph: &mut graph })?;
    }
    expand_constants(source, &graph.body)?;
    let limit = source.limits.bytes;
    let separate = if machine.pool.threads() > 1 { place::MAX_SEPARATE.min(limit / 4) } else { 0 };
    let places = place::place(&mut graph, separate);
    let bytes = places.length.saturating_mul(4);
    if bytes > limit {
        return Err(Error::limit(format!("values need {bytes} bytes; the limit is {limit}"))
            .with_hint("raise the limit with the option `max_memory` or with `Limits::bytes`"));
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

/// Rejects values that exceed the limits before their sizes are used.
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

/// Decodes the constants that nodes read directly.
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
