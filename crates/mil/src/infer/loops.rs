//! What the blocks of a loop take: the types of the loop's variables, as far as its body keeps them.

use std::collections::HashSet;

use super::site::InferredValue;
use super::{Analysis, Problem};
use crate::ir::{Dim, Function, Op, Type, ValueId};

/// Loops that are nested deeper take their blocks' declared types as they are: finding out what a body
/// keeps walks it up to three times, and so the innermost of `n` loops `3^n` times.
const MAX_REFINED_LOOPS: usize = 3;

/// The place of a list's length among the axes of its elements.
const LENGTH: usize = usize::MAX;

/// What a loop does with the dimensions of its variables.
#[derive(Default)]
struct LoopInvariants {
    /// Dimensions, by variable and axis, that the body changes.
    changed: HashSet<(usize, usize)>,
    /// Whether all may change.
    none: bool,
}

impl Analysis {
    /// Walks the blocks of a `while_loop`.
    ///
    /// Files declare what the blocks take, but with every open dimension as unknown. So a block is
    /// first walked as if the loop kept its variables' dimensions; those that the body then changes
    /// are open in a second walk. Should even that change dimensions, every one is open in a third.
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

    /// The dimensions that the body does not give as it takes them.
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
            // A fixed dimension is declared, so that the body has to keep it.
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

/// Whether the body of a loop hands a variable on as it is.
fn is_invariant(function: &Function, op: &Op, index: usize) -> bool {
    let Some(&body) = op.blocks.get(1) else { return false };
    let body = function.block(body);
    matches!(
        (body.inputs.get(index), body.outputs.get(index)),
        (Some(input), Some(output)) if input == output
    )
}

/// The declared type with the dimensions of a variable where it leaves them open and the loop keeps
/// them. What a list declares for its length is not believed: lists grow, and converters write down
/// how long a list is at first.
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

/// The dimensions of a tensor or of a list's elements.
fn shape_of(ty: &Type) -> &[Dim] {
    match ty {
        Type::Tensor(tensor) => &tensor.shape,
        Type::List(element, _) => element.as_tensor().map_or(&[], |tensor| &tensor.shape),
        Type::Tuple(_) | Type::Dictionary(..) | Type::State(_) => &[],
    }
}
