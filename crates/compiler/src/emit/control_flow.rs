//! Branches and loops as jumps.
//!
//! Nested graphs are inlined into the instruction chain of the method. Their results are copied to the values that
//! the program expects.

use coremill_pt2::{Argument, Graph, Meta, Node, Size};
use coremill_pte::program::{Instruction, ShapeDynamism, Value, ValueId};

use super::method::{Emitter, Frame, Literal};
use crate::error::{Error, LoweringError, Result, refuse};

impl<'m> Emitter<'m> {
    pub(super) fn control_flow(
        &mut self,
        frame: &mut Frame<'m>,
        name: &str,
        node: &'m Node,
    ) -> Result<()> {
        match name {
            "cond" => self.cond(frame, node),
            "while_loop" => self.while_loop(frame, node),
            "scan" => {
                let (carried, rows) = (list(node, 1)?, list(node, 2)?);
                self.over_rows(frame, node, carried, rows, list(node, 3)?)
            }
            "map_impl" | "map" => self.over_rows(frame, node, &[], list(node, 1)?, list(node, 2)?),
            other => refuse!("ExecuTorch's runtime does not support the control flow `{other}`"),
        }
    }

    fn cond(&mut self, frame: &mut Frame<'m>, node: &'m Node) -> Result<()> {
        let condition = self.operands(frame, &node.arguments[..1.min(node.arguments.len())])?;
        let [condition] = condition[..] else { refuse!("the condition is missing") };
        let operands = self.operands(frame, list(node, 3)?)?;
        let results = self.results(frame, node)?;
        let to_otherwise = self.jump_false(condition);
        self.inline_into(subgraph(node, 1)?, &operands, &results)?;
        let never = self.literal(Literal::Bool(false))?;
        let to_end = self.jump_false(never);
        self.patch_jump_target(to_otherwise);
        self.inline_into(subgraph(node, 2)?, &operands, &results)?;
        self.patch_jump_target(to_end);
        // Results of the branches must stay live until after both branches.
        results.iter().flatten().for_each(|&result| self.touch(result));
        Ok(())
    }

    fn while_loop(&mut self, frame: &mut Frame<'m>, node: &'m Node) -> Result<()> {
        let carried = self.operands(frame, list(node, 2)?)?;
        let around = self.operands(frame, list(node, 3)?)?;
        let variables = self.variables(&carried)?;
        let start = self.instructions.len();
        let mut inside = variables.clone();
        inside.extend(&around);
        let given = self.inline(subgraph(node, 0)?, &inside)?;
        let Some(&goes_on) = given.first() else { refuse!("a loop's condition returns nothing") };
        let to_end = self.jump_false(goes_on);
        let given = self.inline(subgraph(node, 1)?, &inside)?;
        self.assign_all(&variables, &given)?;
        let never = self.literal(Literal::Bool(false))?;
        let back = self.jump_false(never);
        self.jump_to(back, start);
        self.patch_jump_target(to_end);
        self.close_loop(start, &variables);
        Self::bind(frame, node, &variables);
        Ok(())
    }

    /// Runs a graph once per row of the given tensors.
    fn over_rows(
        &mut self,
        frame: &mut Frame<'m>,
        node: &'m Node,
        carried: &'m [Argument],
        rows: &'m [Argument],
        around: &'m [Argument],
    ) -> Result<()> {
        let body = subgraph(node, 0)?;
        let kept = carried.len();
        let count_is_known = match rows.first() {
            Some(Argument::Value(id)) => match &frame.graph.value(*id).meta {
                Meta::Tensor(meta) => meta.sizes.first().and_then(Size::fixed),
                _ => None,
            },
            _ => None,
        };
        let carried = self.operands(frame, carried)?;
        let rows = self.operands(frame, rows)?;
        let around = self.operands(frame, around)?;
        let Some(&first) = rows.first() else { refuse!("requires at least one tensor with rows") };
        let variables = self.variables(&carried)?;
        let mut stacked = Vec::new();
        for output in node.outputs.iter().skip(kept) {
            let value = match Self::ids(output) {
                Some(id) => Some(self.define(frame, id)?),
                None => None,
            };
            // The result grows by one row per iteration.
            if let Some(value) = value
                && let Value::Tensor(tensor) = &mut self.plan.values[value.index()]
            {
                tensor.dynamism = ShapeDynamism::Bound;
            }
            stacked.push(value);
        }
        let zero = self.literal(Literal::Int(0))?;
        let one = self.literal(Literal::Int(1))?;
        let (index, count) = (self.add(Value::Int(0))?, self.add(Value::Int(0))?);
        let (goes_on, is_done) = (self.add(Value::Bool(false))?, self.add(Value::Bool(false))?);
        self.instructions.push(Instruction::Move { from: zero, to: index });
        self.call("aten::sym_size", "int", vec![first, zero, count])?;
        let around_all = if count_is_known.is_some_and(|count| count > 0) {
            None
        } else {
            self.call("executorch_prim::gt", "Scalar", vec![count, zero, goes_on])?;
            Some(self.jump_false(goes_on))
        };
        let start = self.instructions.len();
        let mut inside = variables.clone();
        for (position, &tensor) in rows.iter().enumerate() {
            let Some(Argument::Value(input)) = body.inputs.get(kept + position) else {
                refuse!("a nested graph does not match its operands");
            };
            let row = self.new_value(&body.value(*input).meta)?;
            self.call("aten::select_copy", "int_out", vec![tensor, zero, index, row, row])?;
            inside.push(row);
        }
        inside.extend(&around);
        let mut given = self.inline(body, &inside)?;
        let own = given.split_off(kept.min(given.len()));
        for (all, &row) in stacked.iter().zip(&own) {
            if let Some(all) = all {
                self.call("executorch_prim::et_copy_index", "tensor", vec![*all, row, index])?;
            }
        }
        self.assign_all(&variables, &given)?;
        self.call("executorch_prim::add", "Scalar", vec![index, one, index])?;
        self.call("executorch_prim::eq", "Scalar", vec![index, count, is_done])?;
        let back = self.jump_false(is_done);
        self.jump_to(back, start);
        let mut written = variables.clone();
        written.extend(stacked.iter().flatten());
        self.close_loop(start, &written);
        if let Some(jump) = around_all {
            self.patch_jump_target(jump);
        }
        Self::bind(frame, node, &variables);
        Ok(())
    }

    /// Copies values to new variables.
    fn variables(&mut self, values: &[ValueId]) -> Result<Vec<ValueId>> {
        values.iter().map(|&value| self.copy(value)).collect()
    }

    /// Assigns new values to variables simultaneously.
    fn assign_all(&mut self, variables: &[ValueId], given: &[ValueId]) -> Result<()> {
        if variables.len() != given.len() {
            refuse!(
                "a loop carries {} values, but its graph returns {}",
                variables.len(),
                given.len()
            );
        }
        let mut from = given.to_vec();
        for (position, value) in from.iter_mut().enumerate() {
            // The new value may itself be a variable that was assigned earlier.
            if *value != variables[position] && variables.contains(value) {
                *value = self.copy(*value)?;
            }
        }
        for (&variable, &value) in variables.iter().zip(&from) {
            if variable != value {
                self.assign(variable, value)?;
            }
        }
        Ok(())
    }

    /// Emits a nested graph and returns its result values.
    fn inline(&mut self, graph: &'m Graph, inputs: &[ValueId]) -> Result<Vec<ValueId>> {
        if graph.inputs.len() != inputs.len() {
            refuse!(
                "a nested graph takes {} values, but gets {}",
                graph.inputs.len(),
                inputs.len()
            );
        }
        let mut frame = Frame::new(graph);
        for (input, &value) in graph.inputs.iter().zip(inputs) {
            if let Argument::Value(id) = input {
                frame.slots[id.index()] = Some(value);
            }
        }
        self.run(&mut frame).map_err(|error| match error {
            Error::Refused(mut all) if !all.is_empty() => all.swap_remove(0).refusal,
            other => LoweringError::new(other.to_string()),
        })?;
        self.operands(&mut frame, &graph.outputs)
    }

    /// Emits a nested graph and copies its results.
    fn inline_into(
        &mut self,
        graph: &'m Graph,
        inputs: &[ValueId],
        results: &[Option<ValueId>],
    ) -> Result<()> {
        let given = self.inline(graph, inputs)?;
        if given.len() != results.len() {
            refuse!("a branch returns {} values; expected {}", given.len(), results.len());
        }
        for (result, value) in results.iter().zip(given) {
            if let Some(result) = result {
                self.assign(*result, value)?;
            }
        }
        Ok(())
    }

    /// Defines values for the results of a call.
    fn results(&mut self, frame: &mut Frame<'m>, node: &'m Node) -> Result<Vec<Option<ValueId>>> {
        let outputs = node.outputs.iter();
        outputs
            .map(|output| Self::ids(output).map(|id| self.define(frame, id)).transpose())
            .collect()
    }

    /// Binds the first results of a call to existing values.
    fn bind(frame: &mut Frame<'m>, node: &'m Node, values: &[ValueId]) {
        for (output, &value) in node.outputs.iter().zip(values) {
            if let Some(id) = Self::ids(output) {
                frame.slots[id.index()] = Some(value);
            }
        }
    }

    /// Emits a jump taken if `condition` is false. Its target is patched later.
    fn jump_false(&mut self, condition: ValueId) -> usize {
        self.touch(condition);
        self.instructions.push(Instruction::JumpFalse { condition, target: u32::MAX });
        self.instructions.len() - 1
    }

    /// Patches a jump to lead to the next instruction.
    fn patch_jump_target(&mut self, jump: usize) {
        let here = self.instructions.len();
        self.jump_to(jump, here);
    }

    fn jump_to(&mut self, jump: usize, to: usize) {
        if let Instruction::JumpFalse { target, .. } = &mut self.instructions[jump] {
            *target = u32::try_from(to).unwrap_or(u32::MAX);
        }
    }

    /// Extends lifetimes over a whole loop: values from before the loop that are used in it, and the values written
    /// in it.
    fn close_loop(&mut self, start: usize, written: &[ValueId]) {
        let end = self.instructions.len();
        for storage in &mut self.storages {
            if storage.first < start && storage.last >= start {
                storage.last = storage.last.max(end);
            }
        }
        self.touch_all(written);
    }
}

fn subgraph(node: &Node, position: usize) -> Result<&Graph> {
    match node.arguments.get(position) {
        Some(Argument::Graph(graph)) => Ok(&graph.graph),
        _ => refuse!("argument {position} is not a graph"),
    }
}

fn list(node: &Node, position: usize) -> Result<&[Argument]> {
    match node.arguments.get(position) {
        Some(Argument::List(items)) => Ok(items),
        None => Ok(&[]),
        Some(_) => refuse!("argument {position} is not a list"),
    }
}
