//! Turns a program as it was traced into one that is functional: what is left to whoever lowers it are calls that give
//! results and do nothing else.
//!
//! | module | does |
//! |---|---|
//! | `unwrap_tensor_subclasses` | weights that are tensors of a Python class (torchao's) become the tensors that they are made of |
//! | `inline` | puts the graphs of wrappers (`no_grad`, `autocast`, hints) in their place, drops assertions, tokens, and dropout that does nothing |
//! | `autocast` | the casts that an `autocast` region stands for |
//! | `vmap` | batch dimensions that `vmap` hid become dimensions |
//! | `shared` | one tensor under two names becomes one input |
//! | `functionalize`, `functional`, `view` | writes become new values: of what was written to, of its base, and of every other view of it |
//! | `edit`, `meta` | what these share |
//! | [`limits`] | bounds on values and terms that are added |

mod autocast;
mod edit;
mod error;
mod functional;
mod functionalize;
mod inline;
pub mod limits;
mod meta;
mod shared;
mod unwrap_tensor_subclasses;
mod view;
mod vmap;

use coremill_pt2::{ExportedProgram, Graph, Node, Schemas};

use crate::error::Error;

/// Makes a program functional.
///
/// Afterwards no call writes to its arguments, and no wrapper is left around a graph except control flow. What the
/// program did to its buffers and inputs stands in its outputs, before those of the caller, as in torch's own
/// functional programs. `view` means `reshape` then: strides of values that the program computes are not kept.
///
/// # Errors
/// Programs that write where a functional one cannot follow: through `expand`, within a branch of `cond` to its
/// inputs, by operators that have no functional form.
pub fn prepare(mut program: ExportedProgram) -> Result<ExportedProgram, Error> {
    let mut schemas = Schemas::default();
    unwrap_tensor_subclasses::take_apart(&mut program)?;
    inline::inline(&mut program, &mut schemas)?;
    vmap::unhide(&mut program, &mut schemas)?;
    shared::merge(&mut program);
    functionalize::functionalize(&mut program, &mut schemas)?;
    check_outputs(&program.graph)?;
    program.graph.remove_dead_code();
    Ok(program)
}

/// Refuses a program that gives what nothing computes any more: the token of an assertion, which is dropped.
fn check_outputs(graph: &Graph) -> Result<(), Error> {
    let mut defined = vec![false; graph.values.len()];
    for input in &graph.inputs {
        input.for_each_value(&mut |id| defined[id.index()] = true);
    }
    graph.nodes.iter().flat_map(Node::defined).for_each(|id| defined[id.index()] = true);
    let mut missing = None;
    for output in &graph.outputs {
        output.for_each_value(&mut |id| {
            if !defined.get(id.index()).is_some_and(|defined| *defined) {
                missing.get_or_insert(id);
            }
        });
    }
    match missing {
        None => Ok(()),
        Some(_) => Err(Error::unsupported("an output of the program is the token of an assertion")
            .with_hint("give tensors or numbers from `forward`")),
    }
}
