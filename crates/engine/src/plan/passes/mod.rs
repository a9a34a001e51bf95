//! Passes that select kernels for the given shapes and fuse operations.
//!
//! A pass edits each region with an [`Editor`]. It recognizes operations that still use reference
//! kernels and replaces them by specialized kernels. All other operations keep their reference
//! kernels. In rounded mode a fused kernel rounds wherever the original operations do.

mod activation;
mod attention;
mod convolution;
mod dead;
mod editor;
mod elementwise;
mod gather;
mod integer;
mod layout;
mod linear;
mod normalize;
mod parameters;
mod product;
mod recurrent;
mod states;
mod strided;
mod strided_copies;

use coremill_reference::error::Result;

use super::graph::{Graph, NodeKind, Region};
use super::kernel::CpuContext;
use crate::plan::FunctionContext;

pub(super) use editor::Editor;

/// Context of a pass.
pub(super) struct Work<'w> {
    pub(super) source: &'w FunctionContext,
    pub(super) machine: &'w CpuContext,
    pub(super) graph: &'w mut Graph,
}

/// Runs every pass.
pub(super) fn run(work: &mut Work<'_>) -> Result<()> {
    dead::remove(work.graph);
    each_region(work, &mut states::lower)?;
    each_region(work, &mut attention::lower)?;
    each_region(work, &mut recurrent::lower)?;
    each_region(work, &mut integer::lower)?;
    dead::remove(work.graph);
    attention::keep_words(work);
    dead::remove(work.graph);
    layout::run(work)?;
    dead::remove(work.graph);
    each_region(work, &mut linear::lower)?;
    each_region(work, &mut product::lower)?;
    each_region(work, &mut normalize::lower)?;
    each_region(work, &mut gather::lower)?;
    each_region(work, &mut elementwise::fuse)?;
    dead::remove(work.graph);
    each_region(work, &mut strided_copies::lower)?;
    dead::remove(work.graph);
    Ok(())
}

/// Runs a pass on every region, nested regions first.
fn each_region(work: &mut Work<'_>, pass: &mut Pass<'_>) -> Result<()> {
    let body = std::mem::take(&mut work.graph.body);
    work.graph.body = rewrite(work, body, pass)?;
    Ok(())
}

type Pass<'p> = dyn FnMut(&mut Work<'_>, Region) -> Result<Region> + 'p;

fn rewrite(work: &mut Work<'_>, mut region: Region, pass: &mut Pass<'_>) -> Result<Region> {
    for node in &mut region.nodes {
        if let NodeKind::Cond(regions) | NodeKind::Loop(regions) = &mut node.kind {
            for inner in regions.iter_mut() {
                *inner = rewrite(work, std::mem::take(inner), pass)?;
            }
        }
    }
    pass(work, region)
}
