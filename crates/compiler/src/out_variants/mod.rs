//! Rewrites calls outside delegates to calls of ExecuTorch's kernels.
//!
//! Programs arrive from `coremill_prepare` in torch's own operators. ExecuTorch's runtime has kernels for the out
//! variants of some of them, which [`kernel`] looks up. Every other call is decomposed by the rules of `decompose`.
//! A call without a rule keeps its operator, which must have a kernel.
//!
//! Every tensor of the rewritten graph is in standard dimension order: views are copies (`view_copy`,
//! `permute_copy`), and memory formats have no effect.

mod constants;

use std::sync::Arc;

use coremill_pt2::{Argument, ExportedProgram, Graph, Node, Schema, Subgraph, Target};

use crate::decompose::{Frame, Rewrite, TargetOps};
use crate::error::{Error, LoweringError, Result, UnsupportedOp, refuse};
use crate::kernels::Kernels;
pub use crate::kernels::kernel;

/// A program whose calls outside delegates all have kernels.
#[derive(Clone, Debug)]
pub struct Portable {
    /// The program. Values of the original graph keep their ids. Values that are no longer defined have no uses.
    pub program: ExportedProgram,
    /// For each node of the graph, the index of the node it was derived from.
    pub sources: Vec<usize>,
}

/// Rewrites the nodes of the outermost graph that `outside` selects, and all graphs nested in them. Other nodes stay
/// unchanged.
///
/// # Errors
/// Returns all calls without kernels, each with its reason.
pub fn to_out_variants(mut program: ExportedProgram, outside: &[bool]) -> Result<Portable, Error> {
    let symbols = std::mem::take(&mut program.symbols);
    let rewrite = Rewrite::new(Box::new(Kernels::default()), symbols);
    let mut outer = OutVariantRewriter { rewrite, refused: Vec::new() };
    let given = std::mem::take(&mut program.graph);
    let mut done = outer.graph(Frame::of, given, &|index| outside.get(index) == Some(&true));
    program.symbols = outer.rewrite.into_symbols();
    if !outer.refused.is_empty() {
        return Err(Error::Refused(outer.refused));
    }
    let mut sources = std::mem::take(&mut done.sources);
    done.store(&mut program);
    constants::turn(&mut program, &mut sources, outside);
    Ok(Portable { program, sources })
}

struct OutVariantRewriter {
    rewrite: Rewrite,
    refused: Vec<UnsupportedOp>,
}

impl OutVariantRewriter {
    fn graph(
        &mut self,
        frame: fn(Graph) -> Frame,
        mut graph: Graph,
        outside: &dyn Fn(usize) -> bool,
    ) -> Frame {
        let nodes = std::mem::take(&mut graph.nodes);
        let mut frame = frame(graph);
        for (index, mut node) in nodes.into_iter().enumerate() {
            frame.resolve(&mut node);
            let made = if outside(index) {
                match self.node(&mut frame, &node) {
                    Ok(made) => made,
                    Err(refusal) => {
                        self.refused.push(UnsupportedOp::of(&node, refusal));
                        continue;
                    }
                }
            } else {
                vec![node]
            };
            frame.push(index, made);
        }
        frame.resolve_outputs();
        frame
    }

    fn node(&mut self, frame: &mut Frame, node: &Node) -> Result<Vec<Node>> {
        match &node.target {
            Target::HigherOrder(name) => self.higher_order(name, node),
            _ => self.rewrite.node(frame, node),
        }
    }

    /// Keeps control flow operators; their nested graphs are also outside delegates.
    fn higher_order(&mut self, name: &str, node: &Node) -> Result<Vec<Node>> {
        const KEPT: [&str; 4] = ["cond", "map_impl", "scan", "while_loop"];
        if !KEPT.contains(&name) {
            refuse!(
                "`{name}` is not supported by ExecuTorch's runtime; the supported operators are {}",
                KEPT.join(", ")
            );
        }
        let mut node = node.clone();
        for argument in &mut node.arguments {
            if let Argument::Graph(inner) = argument {
                let Subgraph { graph, .. } = inner.as_mut();
                *graph = self.graph(Frame::nested, std::mem::take(graph), &|_| true).graph;
            }
        }
        Ok(vec![node])
    }
}

impl TargetOps for Kernels {
    fn has(&mut self, target: &Target) -> bool {
        self.known(target)
    }

    fn lacks(&self, operator: &str) -> LoweringError {
        LoweringError::new(format!(
            "ExecuTorch's runtime has no kernel for `{operator}`, and no decomposition is known"
        ))
    }

    /// ExecuTorch's functions on numbers are their own kernels.
    fn schema(&self, target: &Target) -> Option<Arc<Schema>> {
        kernel(target)
    }
}
