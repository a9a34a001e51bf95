//! Converts a traced program to a functional one, in which calls have results but no side effects.
//!
//! | module | does |
//! |---|---|
//! | `unwrap_tensor_subclasses` | replaces tensor subclasses (torchao's weights) by the tensors that they contain |
//! | `inline` | inlines wrappers (`no_grad`, `autocast`, hints); removes assertions, tokens and inactive dropout |
//! | `autocast` | explicit casts for `autocast` regions |
//! | `vmap` | turns batch dimensions hidden by `vmap` into regular dimensions |
//! | `shared` | merges inputs that are the same tensor |
//! | `functionalize`, `functional`, `view` | replaces writes by new values of the tensor, its base and all other views of it |
//! | `edit`, `meta` | shared helpers |
//! | [`limits`] | bounds on added values and terms |

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

/// Converts a program to functional form.
///
/// Afterwards no call mutates its arguments, and the only nested graphs belong to control flow. New values of
/// buffers and inputs become outputs that precede the user's, as in torch's own functional programs. `view` then
/// means `reshape`, because strides of computed values are not kept.
///
/// # Errors
/// Fails for writes that have no functional equivalent: through `expand`, to inputs of a `cond` within a branch, or
/// by operators without a functional form.
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

/// Rejects a program with an undefined output, such as the token of a removed assertion.
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
            .with_hint("return tensors or numbers from `forward`")),
    }
}
