//! Types of a loop's block inputs: the types of the loop's variables, as far as the body preserves them.

use std::collections::HashSet;

use super::site::InferredValue;
use super::{Analysis, Problem};
use crate::ir::{Dim, Function, Op, Type, ValueId};

/// Maximum nesting depth of refined loops; deeper loops use the declared types of their blocks. Refinement
/// walks a body up to three times, and therefore the innermost of `n` loops `3^n` times.
const MAX_REFINED_LOOPS: usize = 3;

/// Axis index that represents the length of a list.
const LENGTH: usize = usize::MAX;

/// Dimensions of loop variables that the body preserves.
#[derive(Default)]
struct LoopInvariants {
    /// Dimensions that the body changes, by variable and axis.
    changed: HashSet<(usize, usize)>,
    /// Whether no dimension is preserved.
    none: bool,
}

impl Analysis {
    /// Walks the blocks of a `while_loop`.
    ///
    /// Files declare the types of block inputs, but every dynamic dimension as unknown. The first walk
    /// therefore assumes that the loop preserves the dimensions of its variables. Dimensions that the body
    /// changes are unknown in a second walk. If the second walk still finds changes, all dimensions are
    /// unknown in a third walk.
    pub(super) fn walk_loop(
        &mut self,
        function: &Function,
        op: &Op,
        depth: usize,
        problems: &mut Vec<Problem>,
    ) {
        let variables: Vec<_> =
            op.bindings("loop_vars").iter().map(|binding| self.operand(binding)).collect();
        let mut kept = LoopInvariants {
            none: self.loop_depth >= MAX_REFINED_LOOPS,
            ..LoopInvariants::default()
        };
        self.loop_depth += 1;
        loop {
            let mut found = Vec::new();
            for &block in &op.blocks {
                self.enter_loop(function, op, &function.block(block).inputs, &variables, &kept);
                self.walk(function, block, depth + 1, &mut found);
            }
            let changed = self.changed_dimensions(function, op, &kept);
            if kept.none || changed.is_empty() {
                problems.append(&mut found);
                break;
            }
            kept.none = !kept.changed.is_empty();
            kept.changed.extend(changed);
        }
        self.loop_depth -= 1;
    }

    fn enter_loop(
        &mut self,
        function: &Function,
        op: &Op,
        inputs: &[ValueId],
        variables: &[Option<InferredValue>],
        kept: &LoopInvariants,
    ) {
        for (index, &input) in inputs.iter().enumerate() {
            let declared = &function.value(input).ty;
            let Some(variable) = variables.get(index).and_then(Option::as_ref) else {
                let ty = self.opened(declared, Some(input));
                self.record(input, InferredValue::of(ty));
                continue;
            };
            let refined = refine(declared, &variable.ty, &|axis| {
                !kept.none && !kept.changed.contains(&(index, axis))
            });
            let mut outcome = InferredValue::of(self.opened(&refined, Some(input)));
            if is_invariant(function, op, index) && outcome.ty.is_compatible(&variable.ty) {
                outcome.value.clone_from(&variable.value);
            }
            self.record(input, outcome);
        }
    }

    /// The dimensions that differ between the body's inputs and outputs.
    fn changed_dimensions(
        &self,
        function: &Function,
        op: &Op,
        kept: &LoopInvariants,
    ) -> HashSet<(usize, usize)> {
        let mut changed = HashSet::new();
        let Some(&body) = op.blocks.get(1) else { return changed };
        let body = function.block(body);
        for (index, (&input, &output)) in body.inputs.iter().zip(&body.outputs).enumerate() {
            let (Some(taken), Some(given)) = (self.ty(input), self.ty(output)) else { continue };
            let mut differs = |axis: usize| {
                if !kept.changed.contains(&(index, axis)) {
                    changed.insert((index, axis));
                }
            };
            let (taken_shape, given_shape) = (shape_of(taken), shape_of(given));
            let pairs = taken_shape.iter().zip(given_shape).enumerate();
            // A fixed dimension is part of the declaration, so the body must preserve it.
            let declared = shape_of(&function.value(input).ty);
            for (axis, (taken, given)) in pairs {
                let open = declared.get(axis).is_none_or(|dim| dim.known().is_none());
                if taken != given && open {
                    differs(axis);
                }
            }
            if let (Type::List(_, taken), Type::List(_, given)) = (taken, given)
                && taken != given
            {
                differs(LENGTH);
            }
        }
        changed
    }
}

/// Whether the body of a loop returns a variable unchanged.
fn is_invariant(function: &Function, op: &Op, index: usize) -> bool {
    let Some(&body) = op.blocks.get(1) else { return false };
    let body = function.block(body);
    matches!(
        (body.inputs.get(index), body.outputs.get(index)),
        (Some(input), Some(output)) if input == output
    )
}

/// The declared type with the variable's dimensions filled in, if the declaration leaves them unknown and the
/// loop preserves them. The declared length of a list is ignored: lists grow, and converters declare the
/// initial length.
fn refine(declared: &Type, variable: &Type, keeps: &dyn Fn(usize) -> bool) -> Type {
    match (declared, variable) {
        (Type::Tensor(open), Type::Tensor(given)) if open.rank() == given.rank() => {
            let mut tensor = open.clone();
            for (axis, dim) in tensor.shape.iter_mut().enumerate() {
                if *dim == Dim::Unknown && keeps(axis) {
                    dim.clone_from(&given.shape[axis]);
                }
            }
            Type::Tensor(tensor)
        }
        (Type::List(element, _), Type::List(given, length)) => {
            let length = if keeps(LENGTH) { length.clone() } else { Dim::Unknown };
            Type::List(Box::new(refine(element, given, keeps)), length)
        }
        _ => declared.clone(),
    }
}

/// The dimensions of a tensor, or of the elements of a list.
fn shape_of(ty: &Type) -> &[Dim] {
    match ty {
        Type::Tensor(tensor) => &tensor.shape,
        Type::List(element, _) => element.as_tensor().map_or(&[], |tensor| &tensor.shape),
        Type::Tuple(_) | Type::Dictionary(..) | Type::State(_) => &[],
    }
}
