//! Last step of a rewrite: new values replace the results of the call.

use std::collections::{HashMap, HashSet};

use coremill_pt2::{Argument, Meta, Node, Size, ValueId};

use super::Frame;
use super::call::{Call, Results, RewriteResult, Tensor, meta};
use crate::bounds::CheckedIndex;
use crate::error::{Result, refuse};

impl Call<'_> {
    /// The results of a call that is kept unchanged.
    pub(crate) fn as_given(&self, node: &Node) -> Results {
        let mut results = Vec::new();
        for id in node.results() {
            let Some(id) = id else { refuse!("a result is unused and therefore has no type") };
            results.push(match &self.frame.value(id).meta {
                Meta::Tensor(meta) => RewriteResult::Tensor(Tensor {
                    id,
                    dtype: meta.dtype,
                    sizes: meta.sizes.clone(),
                }),
                _ => RewriteResult::Number(Argument::Value(id)),
            });
        }
        Ok(results)
    }

    /// The new calls with used results, after replacing the results of the node.
    pub(crate) fn finish(self, results: Vec<RewriteResult>) -> Result<Vec<Node>> {
        let Call { frame, node, made, .. } = self;
        let wanted: Vec<_> = node.results().collect();
        if wanted.len() != results.len() {
            refuse!(
                "the decomposition has {} results, but the call has {}",
                results.len(),
                wanted.len()
            );
        }
        let own: HashSet<ValueId> = made.iter().flat_map(Node::defined).collect();
        let mut renamed: HashMap<ValueId, ValueId> = HashMap::new();
        for (old, result) in wanted.into_iter().zip(results) {
            let Some(old) = old else { continue };
            let now = match result {
                RewriteResult::Pair(pair) => {
                    frame.pairs.insert(old, *pair);
                    continue;
                }
                RewriteResult::Tensor(tensor) => {
                    agree(frame, old, &tensor)?;
                    Argument::Value(tensor.id)
                }
                RewriteResult::Number(argument) => argument,
                RewriteResult::Nothing => refuse!("a result that is used is not computed"),
            };
            match now {
                Argument::Value(id) if id == old => {}
                Argument::Value(id) if own.contains(&id) && !renamed.contains_key(&id) => {
                    renamed.insert(id, old);
                }
                Argument::Value(id) => {
                    let now = *renamed.get(&id).unwrap_or(&id);
                    frame.replaced.insert(old, Argument::Value(now));
                }
                now => drop(frame.replaced.insert(old, now)),
            }
        }
        let mut made = of_use(made, node, &renamed, frame);
        for call in &mut made {
            let rename = |id: ValueId| *renamed.get(&id).unwrap_or(&id);
            for argument in &mut call.arguments {
                argument.map_values(&mut |id| Argument::Value(rename(id)));
            }
            for output in &mut call.outputs {
                output.map(rename);
            }
            let first = call.defined().next();
            if let Some(id) = first {
                call.name = frame.value(id).name.clone();
            }
        }
        for id in made.iter().flat_map(Node::defined) {
            if let Meta::Tensor(known) = &mut frame.graph.values.at_mut(id.index())?.meta {
                *known = meta(known.dtype, std::mem::take(&mut known.sizes));
            }
        }
        Ok(made)
    }
}

/// Checks that a new value has the type that torch recorded.
fn agree(frame: &Frame, old: ValueId, new: &Tensor) -> Result<()> {
    let Meta::Tensor(noted) = &frame.value(old).meta else {
        refuse!("the decomposition returns a tensor, but the call does not");
    };
    let differ = |(noted, found): (&Size, &Size)| match (noted, found) {
        (Size::Fixed(noted), Size::Fixed(found)) => noted != found,
        _ => false,
    };
    if noted.dtype != new.dtype
        || noted.sizes.len() != new.sizes.len()
        || noted.sizes.iter().zip(&new.sizes).any(differ)
    {
        refuse!(
            "the decomposition returns {} {}, but torch recorded {} {}",
            new.dtype,
            shown(&new.sizes),
            noted.dtype,
            shown(&noted.sizes)
        );
    }
    Ok(())
}

fn shown(sizes: &[Size]) -> String {
    let one = |size: &Size| size.fixed().map_or("?".to_owned(), |size| size.to_string());
    format!("[{}]", sizes.iter().map(one).collect::<Vec<_>>().join(", "))
}

/// The calls with used results.
fn of_use(
    made: Vec<Node>,
    node: &Node,
    renamed: &HashMap<ValueId, ValueId>,
    frame: &Frame,
) -> Vec<Node> {
    let mut used: HashSet<ValueId> = renamed.keys().copied().collect();
    for old in node.defined() {
        used.insert(old);
        if let Some(Argument::Value(id)) = frame.replaced.get(&old) {
            used.insert(*id);
        }
        used.extend(frame.pairs.get(&old).into_iter().flatten().map(|part| part.id));
    }
    let mut kept = Vec::with_capacity(made.len());
    for call in made.into_iter().rev() {
        if call.defined().any(|id| used.contains(&id)) {
            for argument in &call.arguments {
                argument.for_each_value(&mut |id| {
                    used.insert(id);
                });
            }
            kept.push(call);
        }
    }
    kept.reverse();
    kept
}
