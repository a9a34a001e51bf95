//! Branches and loops.

use std::panic::Location;

use coremill_mil::ir::{Binding, BlockId, Op, Type};
use coremill_mil::ops::OpKind;

use crate::call::Call;
use crate::graph::Graph;
use crate::tensor::Tensor;

impl Graph {
    /// Evaluates one of two branches depending on a boolean scalar. Both must return the same number and
    /// types of values.
    ///
    /// ```
    /// # use coremill_graph::{DType, Graph};
    /// let graph = Graph::new();
    /// let x = graph.input("x", DType::Fp32, [4]);
    /// let positive = x.sum([0], false).greater(0.0);
    /// let y = graph.cond(positive, || vec![x * 2.0], || vec![x - 1.0]);
    /// graph.output("y", y[0]);
    /// # graph.check().unwrap();
    /// ```
    #[track_caller]
    pub fn cond<'g>(
        &'g self,
        predicate: Tensor<'g>,
        then: impl FnOnce() -> Vec<Tensor<'g>>,
        otherwise: impl FnOnce() -> Vec<Tensor<'g>>,
    ) -> Vec<Tensor<'g>> {
        let location = Location::caller();
        let owned = self.owns(predicate, "`cond`: the predicate", location);
        self.open_block(&[]);
        let first = then();
        let then_block = self.close_block(&first);
        self.open_block(&[]);
        let second = otherwise();
        let else_block = self.close_block(&second);
        let sound = owned && self.given(first.iter().chain(&second));
        let nothing = || vec![self.nothing(); first.len()];
        if first.len() != second.len() {
            let (then, otherwise) = (first.len(), second.len());
            let message =
                format!("`cond`: one branch returns {then} values, the other {otherwise}");
            self.note(message, None, location);
            return nothing();
        }
        let Some(value) = predicate.value.filter(|_| sound) else { return nothing() };
        let op = Op::new(OpKind::Cond).with("pred", Binding::Value(value));
        let given = self.append_with_blocks(op, vec![then_block, else_block], location);
        if given.is_empty() { nothing() } else { given }
    }

    /// Repeats a body as long as a condition on its variables is true, and returns their final values. The
    /// variables keep their types and, unless they are declared dynamic, their shapes.
    ///
    /// ```
    /// # use coremill_graph::{DType, Graph};
    /// let graph = Graph::new();
    /// let x = graph.input("x", DType::Fp32, [4]);
    /// let start = graph.int(0);
    /// let doubled = graph.while_loop(
    ///     &[start, x],
    ///     |variables| variables[0].less(3),
    ///     |variables| vec![variables[0] + 1, variables[1] * 2.0],
    /// );
    /// graph.output("y", doubled[1]);
    /// # graph.check().unwrap();
    /// ```
    #[track_caller]
    pub fn while_loop<'g>(
        &'g self,
        variables: &[Tensor<'g>],
        condition: impl FnOnce(&[Tensor<'g>]) -> Tensor<'g>,
        body: impl FnOnce(&[Tensor<'g>]) -> Vec<Tensor<'g>>,
    ) -> Vec<Tensor<'g>> {
        let location = Location::caller();
        let nothing = || vec![self.nothing(); variables.len()];
        let mut inputs = Vec::with_capacity(variables.len());
        for (at, &variable) in variables.iter().enumerate() {
            if !self.owns(variable, &format!("`while_loop`: variable {at}"), location) {
                return nothing();
            }
            let ty = variable.value.and_then(|value| self.type_of(value));
            let Some(ty) = ty else { return nothing() };
            inputs.push(("variable".to_owned(), Type::Tensor(ty).erased()));
        }
        let wrap = |values: Vec<_>| -> Vec<Tensor<'g>> {
            values.into_iter().map(|value| Tensor::new(self, Some(value))).collect()
        };
        let inside = wrap(self.open_block(&inputs));
        let goes_on = condition(&inside);
        let condition_block = self.close_block(&[goes_on]);
        let inside = wrap(self.open_block(&inputs));
        let next = body(&inside);
        let body_block = self.close_block(&next);
        if next.len() != variables.len() {
            let (expected, found) = (variables.len(), next.len());
            let message = format!(
                "`while_loop`: the body has {expected} variables but returns {found} values"
            );
            self.note(message, None, location);
            return nothing();
        }
        if !self.given(next.iter().chain([&goes_on])) {
            return nothing();
        }
        let bound = variables.iter().filter_map(|variable| variable.value.map(Binding::Value));
        let op = Op::new(OpKind::WhileLoop).with_list("loop_vars", bound.collect());
        let given = self.append_with_blocks(op, vec![condition_block, body_block], location);
        if given.is_empty() { nothing() } else { given }
    }

    /// Whether the outputs of blocks are valid values of this graph. Invalid ones were reported when the
    /// blocks were closed.
    fn given<'a, 'g: 'a>(&self, mut values: impl Iterator<Item = &'a Tensor<'g>>) -> bool {
        values.all(|tensor| tensor.is_valid() && tensor.is_of(self))
    }

    /// Closes the innermost block with these outputs. Each output becomes an operation of its own.
    fn close_block(&self, outputs: &[Tensor<'_>]) -> BlockId {
        let mut given = Vec::new();
        for &output in outputs {
            let Some(value) = output.value else { continue };
            let own = {
                let builder = &self.state.borrow().builder;
                let is_input = builder.function.block(builder.block()).inputs.contains(&value);
                (is_input || builder.is_computed_here(value)) && !given.contains(&value)
            };
            let mut call = Call::new(self, OpKind::Identity);
            call.arg("x", output);
            given.extend(if own { Some(value) } else { call.unfolded().value });
        }
        self.state.borrow_mut().builder.close_block(given)
    }

    fn append_with_blocks(
        &self,
        mut op: Op,
        blocks: Vec<BlockId>,
        location: &'static Location<'static>,
    ) -> Vec<Tensor<'_>> {
        op.blocks = blocks;
        let appended = self.state.borrow_mut().append(op, false);
        match appended {
            Ok(values) => values.into_iter().map(|value| Tensor::new(self, Some(value))).collect(),
            Err((message, hint)) => {
                self.note(message, hint, location);
                Vec::new()
            }
        }
    }
}
