//! Passes over graphs: nodes that run often get kernels for their shapes, several become one.
//!
//! A pass takes each region apart with an [`Editor`], looks for the operations that it knows among the
//! nodes that are still performed by reference kernels, and puts kernels in their place. Whatever no pass
//! knows stays as it is. In faithful mode a kernel rounds wherever the operations that it stands for do.

mod dead;
mod editor;

use super::graph::Graph;
use super::kernel::Machine;
use super::known::Source;
use crate::error::Result;

pub(super) use editor::Editor;

/// What passes work on.
pub(super) struct Work<'w> {
    pub(super) source: &'w Source,
    pub(super) machine: &'w Machine,
    pub(super) graph: &'w mut Graph,
}

/// Runs every pass.
pub(super) fn run(work: &mut Work<'_>) -> Result<()> {
    dead::remove(work.graph);
    Ok(())
}
