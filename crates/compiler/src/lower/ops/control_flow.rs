//! Branches and loops.
//!
//! Core ML's blocks can use outer values, so the operands of nested graphs are substituted directly. The results of
//! a block must be computed inside it.

use std::collections::HashSet;

use coremill_mil::ir::{BlockId, Definition, Op, Type};
use coremill_pt2::{Argument, Graph, Subgraph};

use super::index::written_along;
use super::scan::accumulated_together;
use crate::lower::Frame;
use crate::lower::prelude::*;
use crate::lower::value::Tensor;

pub(super) const ROWS: &[Row] = &[
    several("higher_order.cond", cond),
    several("higher_order.while_loop", while_loop),
    several("higher_order.scan", scan),
    several("higher_order.{map,map_impl}", map),
    several("higher_order.associative_scan", associative_scan),
    several("higher_order.auto_functionalized{,_v2}", custom_operator),
];

/// Maximum number of unrolled iterations. Below this a loop costs more than it saves.
const MAX_UNROLLED: i64 = 8;

/// Structure of a lowered value, for conversion to plain values and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Tensor(ScalarType),
    Int,
    Float,
    Bool,
    Nothing,
}

/// Flattens lowered values to plain values, and returns their structure.
fn taken_apart(
    call: &mut Call<'_, '_>,
    all: &[LoweredValue],
) -> Result<(Vec<ValueId>, Vec<Shape>)> {
    let mut values = Vec::new();
    let mut shapes = Vec::with_capacity(all.len());
    for one in all {
        shapes.push(match *one {
            LoweredValue::Tensor(Tensor { value, dtype }) => {
                values.push(value);
                Shape::Tensor(dtype)
            }
            LoweredValue::Number(number) => {
                values.push(call.number_value(number)?);
                match number {
                    Number::Bool(_) => Shape::Bool,
                    Number::Int(_) => Shape::Int,
                    Number::Float(_) => Shape::Float,
                }
            }
            LoweredValue::Pair(_) | LoweredValue::Nothing | LoweredValue::Refused => Shape::Nothing,
        });
    }
    Ok((values, shapes))
}

/// Restores one lowered value from plain values.
fn put_together(shape: Shape, values: &mut std::vec::IntoIter<ValueId>) -> Result<LoweredValue> {
    let mut next = || match values.next() {
        Some(value) => Ok(value),
        None => refuse!("a block returns too few values"),
    };
    Ok(match shape {
        Shape::Tensor(dtype) => LoweredValue::tensor(next()?, dtype),
        Shape::Int => Int::Computed(next()?).into(),
        Shape::Float => Real::Computed(next()?).into(),
        Shape::Bool => Truth::Computed(next()?).into(),
        Shape::Nothing => LoweredValue::Nothing,
    })
}

fn all_together(shapes: &[Shape], values: Vec<ValueId>) -> Results {
    let mut values = values.into_iter();
    shapes.iter().map(|&shape| put_together(shape, &mut values)).collect()
}

/// Results of a call with an error in a nested graph.
fn refused(call: &Call<'_, '_>) -> Results {
    Ok(vec![LoweredValue::Refused; call.node.outputs.len()])
}

fn is_refused(results: &[LoweredValue]) -> bool {
    results.iter().any(|result| matches!(result, LoweredValue::Refused))
}

/// The items of a list argument.
fn list(call: &mut Call<'_, '_>, position: usize) -> Result<Vec<LoweredValue>> {
    match call.node.arguments.get(position) {
        Some(Argument::List(items)) => items.iter().map(|item| call.lowered(item)).collect(),
        None | Some(Argument::None) => Ok(Vec::new()),
        Some(_) => refuse!("argument {position} is not a list"),
    }
}

/// Values that a block can return: computed in the block, and each only once.
fn own(call: &mut Call<'_, '_>, values: Vec<ValueId>) -> Result<Vec<ValueId>> {
    let block = call.block();
    let mut given = HashSet::new();
    let mut outputs = Vec::with_capacity(values.len());
    for value in values {
        let is_own = match call.function.value(value).definition {
            Definition::Output(op, _) => call.function.block(block).ops.contains(&op),
            Definition::Input(of, _) => of == block,
        };
        let is_constant = call.known(value).is_some();
        outputs.push(if is_own && !is_constant && given.insert(value) {
            value
        } else {
            call.copied(value)?
        });
    }
    Ok(outputs)
}

/// A condition as a scalar boolean; nonzero numbers are true.
pub(super) fn predicate(call: &mut Call<'_, '_>, lowered: &LoweredValue) -> Result<Truth> {
    match *lowered {
        LoweredValue::Number(Number::Bool(truth)) => Ok(truth),
        LoweredValue::Number(Number::Int(Int::Known(value))) => Ok(Truth::Known(value != 0)),
        LoweredValue::Number(Number::Int(Int::Computed(value))) => {
            Ok(Truth::Computed(call.cast(value, DType::Bool)?))
        }
        LoweredValue::Tensor(Tensor { value, .. }) => {
            let value = call.cast(value, DType::Bool)?;
            let value = call.with_sizes(value, &[])?;
            let known = call.folded(value).and_then(|folded| folded.only()?.bool());
            Ok(known.map_or(Truth::Computed(value), Truth::Known))
        }
        _ => refuse!("the condition is not a `bool`"),
    }
}

fn cond(call: &mut Call<'_, '_>) -> Results {
    let Some(argument) = call.node.arguments.first() else { refuse!("the condition is missing") };
    let condition = call.lowered(argument)?;
    let (taken, otherwise) = (call.subgraph(1)?, call.subgraph(2)?);
    let operands = list(call, 3)?;
    let condition = match predicate(call, &condition)? {
        Truth::Known(true) => return call.lowering.inline(&taken.graph, operands),
        Truth::Known(false) => return call.lowering.inline(&otherwise.graph, operands),
        Truth::Computed(condition) => condition,
    };
    let (first, shapes) = branch(call, taken, operands.clone())?;
    let (second, others) = branch(call, otherwise, operands)?;
    let (Some(shapes), Some(others)) = (shapes, others) else {
        return refused(call);
    };
    if shapes != others {
        refuse!("returns {shapes:?} if true, {others:?} if false; expected the same types");
    }
    let mut op = Op::new(OpKind::Cond).with("pred", Binding::Value(condition));
    op.blocks = vec![first, second];
    let values = call.append(op)?;
    all_together(&shapes, values)
}

/// Creates the block for one branch, and returns the structure of its results; `None` if something in it was
/// refused.
fn branch<'p>(
    call: &mut Call<'_, 'p>,
    graph: &'p Subgraph,
    operands: Vec<LoweredValue>,
) -> Result<(BlockId, Option<Vec<Shape>>)> {
    call.open_block(&[]);
    let given = in_block(call, |call| {
        let results = call.lowering.inline(&graph.graph, operands)?;
        if is_refused(&results) {
            return Ok((Vec::new(), None));
        }
        let (values, shapes) = taken_apart(call, &results)?;
        Ok((own(call, values)?, Some(shapes)))
    });
    let (values, shapes) = given?;
    Ok((call.close_block(&values), shapes))
}

/// Fills the block that was just opened, and closes it on error.
fn in_block<'p, T>(
    call: &mut Call<'_, 'p>,
    fill: impl FnOnce(&mut Call<'_, 'p>) -> Result<T>,
) -> Result<T> {
    let filled = fill(call);
    if filled.is_err() {
        call.close_block(&[]);
    }
    filled
}

fn while_loop(call: &mut Call<'_, '_>) -> Results {
    let (condition, body) = (call.subgraph(0)?, call.subgraph(1)?);
    let carried = list(call, 2)?;
    let around = list(call, 3)?;
    let results = looped(
        call,
        &carried,
        |call, mut inside| {
            inside.extend(around.iter().cloned());
            let results = call.lowering.inline(&condition.graph, inside)?;
            Ok(results.into_iter().next())
        },
        |call, mut inside| {
            inside.extend(around.iter().cloned());
            call.lowering.inline(&body.graph, inside)
        },
    )?;
    match results {
        Some(results) => Ok(results),
        None => refused(call),
    }
}

/// A `while` loop over carried values; `None` if something in it was refused.
pub(super) fn looped<'p>(
    call: &mut Call<'_, 'p>,
    carried: &[LoweredValue],
    condition: impl FnOnce(&mut Call<'_, 'p>, Vec<LoweredValue>) -> Result<Option<LoweredValue>>,
    body: impl FnOnce(&mut Call<'_, 'p>, Vec<LoweredValue>) -> Results,
) -> Result<Option<Vec<LoweredValue>>> {
    let (values, shapes) = taken_apart(call, carried)?;
    // Each carried value is a loop variable of its own, even if a value is carried twice.
    let first = opened(call, &values);
    let ends = in_block(call, |call| {
        let inside = all_together(&shapes, first)?;
        let truth = match condition(call, inside)? {
            None | Some(LoweredValue::Refused) => return Ok(None),
            Some(truth) => predicate(call, &truth)?,
        };
        let truth = call.number_value(Number::Bool(truth))?;
        Ok(Some(own(call, vec![truth])?))
    })?;
    let condition_block = call.close_block(ends.as_deref().unwrap_or_default());

    let second = opened(call, &values);
    let given = in_block(call, |call| {
        let inside = all_together(&shapes, second)?;
        let results = body(call, inside)?;
        if is_refused(&results) {
            return Ok(None);
        }
        if results.len() != shapes.len() {
            refuse!(
                "a loop carries {} values, but its body returns {}",
                shapes.len(),
                results.len()
            );
        }
        let (given, found) = taken_apart(call, &results)?;
        // Core ML does not distinguish scalar tensors from numbers.
        let is_value = |shape: &Shape| matches!(shape, Shape::Int | Shape::Tensor(_));
        for (found, shape) in found.iter().zip(&shapes) {
            if found != shape && !(is_value(found) && is_value(shape)) {
                refuse!("a loop carries {shape:?}, but its body returns {found:?}");
            }
        }
        let mut typed = Vec::with_capacity(given.len());
        for (value, before) in given.into_iter().zip(&values) {
            let dtype = call.dtype(*before);
            typed.push(call.cast(value, dtype)?);
        }
        Ok(Some(own(call, typed)?))
    })?;
    let body_block = call.close_block(given.as_deref().unwrap_or_default());
    if ends.is_none() || given.is_none() {
        return Ok(None);
    }
    let bindings = values.into_iter().map(Binding::Value).collect();
    let mut op = Op::new(OpKind::WhileLoop).with_list("loop_vars", bindings);
    op.blocks = vec![condition_block, body_block];
    let values = call.append(op)?;
    all_together(&shapes, values).map(Some)
}

/// Opens a block with one input per value.
fn opened(call: &mut Call<'_, '_>, values: &[ValueId]) -> Vec<ValueId> {
    let inputs: Vec<_> = values
        .iter()
        .map(|&value| {
            let ty = call.analysis.ty(value).map_or(Type::scalar(DType::Fp32), Type::erased);
            (call.function.value(value).name.clone(), ty)
        })
        .collect();
    let inside = call.open_block(&inputs);
    for (&outside, &inside) in values.iter().zip(&inside) {
        // torch's loops cannot change the sizes of carried values.
        let shape = call.shape(outside).to_vec();
        call.analysis.set_shape(inside, shape);
    }
    inside
}

fn scan(call: &mut Call<'_, '_>) -> Results {
    let graph = &call.subgraph(0)?.graph;
    let (carried, rows, around) = (list(call, 1)?, list(call, 2)?, list(call, 3)?);
    MapLoop { graph, rows, around, kept: carried.len() }.all(call, carried)
}

fn map(call: &mut Call<'_, '_>) -> Results {
    let graph = &call.subgraph(0)?.graph;
    let (rows, around) = (list(call, 1)?, list(call, 2)?);
    MapLoop { graph, rows, around, kept: 0 }.all(call, Vec::new())
}

/// Inclusive scan over rows. torch requires the combining graph to be elementwise, so it can combine many pairs of
/// rows at once.
fn associative_scan(call: &mut Call<'_, '_>) -> Results {
    let graph = call.subgraph(0)?;
    let (rows, around) = (list(call, 1)?, list(call, 2)?);
    let (values, shapes) = taken_apart(call, &rows)?;
    let joined = accumulated_together(call, values, 0, |call, earlier, later| {
        let mut inputs = all_together(&shapes, earlier)?;
        inputs.extend(all_together(&shapes, later)?);
        inputs.extend(around.iter().cloned());
        let frame = Frame { in_rows: true, ..Frame::new(&graph.graph) };
        let results = call.lowering.inline_in(frame, inputs)?;
        if is_refused(&results) {
            refuse!("joins rows with calls that cannot be lowered");
        }
        let (joined, found) = taken_apart(call, &results)?;
        if found != shapes {
            refuse!("joins rows of shapes {shapes:?} into shapes {found:?}");
        }
        Ok(joined)
    })?;
    all_together(&shapes, joined)
}

/// A custom operator that mutates its arguments. The program only contains its name.
fn custom_operator(call: &mut Call<'_, '_>) -> Results {
    let name = match call.node.arguments.first() {
        Some(Argument::Operator(name) | Argument::Text(name)) => format!("`{name}`"),
        _ => "of the model".to_owned(),
    };
    Err(LoweringError::new(format!(
        "calls the custom operator {name}, whose implementation is not in the program"
    ))
    .hint("implement it with torch operators before the export"))
}

/// A graph that runs once per row of some tensors. Its inputs are the carried values, the rows, and loop-invariant
/// values. Its outputs are the new carried values and the rows of the results.
struct MapLoop<'p> {
    graph: &'p Graph,
    rows: Vec<LoweredValue>,
    around: Vec<LoweredValue>,
    /// Number of carried values.
    kept: usize,
}

impl<'p> MapLoop<'p> {
    fn all(&self, call: &mut Call<'_, 'p>, carried: Vec<LoweredValue>) -> Results {
        let Some(LoweredValue::Tensor(first)) = self.rows.first() else {
            refuse!("requires at least one tensor with rows");
        };
        match call.dim(first.value, 0)? {
            Int::Known(count) if count <= MAX_UNROLLED => self.unrolled(call, carried, count),
            count => self.rolled(call, carried, count),
        }
    }

    /// Carried values and result rows of one iteration; `None` if something was refused.
    fn one(
        &self,
        call: &mut Call<'_, 'p>,
        mut inputs: Vec<LoweredValue>,
        index: Int,
    ) -> Result<Option<[Vec<LoweredValue>; 2]>> {
        for row in &self.rows {
            let LoweredValue::Tensor(tensor) = row else {
                refuse!("requires at least one tensor with rows")
            };
            let value = call.taken_at(tensor.value, 0, index)?;
            inputs.push(LoweredValue::tensor(value, tensor.dtype));
        }
        inputs.extend(self.around.iter().cloned());
        let mut given = call.lowering.inline(self.graph, inputs)?;
        if is_refused(&given) {
            return Ok(None);
        }
        let own = given.split_off(self.kept.min(given.len()));
        Ok(Some([given, own]))
    }

    fn unrolled(
        &self,
        call: &mut Call<'_, 'p>,
        mut carried: Vec<LoweredValue>,
        count: i64,
    ) -> Results {
        let mut results: Vec<Vec<ValueId>> = Vec::new();
        let mut shapes = Vec::new();
        for index in 0..count {
            let Some([next, own]) = self.one(call, carried, Int::Known(index))? else {
                return refused(call);
            };
            carried = next;
            let (values, found) = taken_apart(call, &own)?;
            shapes = found;
            results.push(values);
        }
        let mut stacked = Vec::new();
        for at in 0..results.first().map_or(0, Vec::len) {
            let parts = results.iter().map(|values| values.at(at).copied());
            let parts = parts.collect::<Result<Vec<_>, _>>()?;
            stacked.push(call.stack(&parts, 0)?);
        }
        carried.extend(all_together(&shapes, stacked)?);
        Ok(carried)
    }

    fn rolled(&self, call: &mut Call<'_, 'p>, carried: Vec<LoweredValue>, count: Int) -> Results {
        // Initial contents of the results.
        let mut variables = vec![LoweredValue::Number(Number::ZERO)];
        variables.extend(carried);
        for at in self.kept..call.node.outputs.len() {
            let mut dims = vec![count];
            for size in call.result_sizes(at)?.iter().skip(1) {
                match size {
                    Some(size) => dims.push(Int::Known(*size)),
                    None => refuse!("returns rows whose sizes are unknown at compile time"),
                }
            }
            let dtype = call.result_tensor(at)?.dtype;
            let empty = call.full(&dims, core_dtype(dtype)?, 0.0)?;
            variables.push(LoweredValue::tensor(empty, dtype));
        }
        let results = looped(
            call,
            &variables,
            |call, inside| {
                let index = index_of(&inside)?;
                let (index, count) = (call.int_value(index)?, call.int_value(count)?);
                let goes_on = call.binary(OpKind::Less, index, count)?;
                Ok(Some(Truth::Computed(goes_on).into()))
            },
            |call, inside| {
                let index = index_of(&inside)?;
                let carried = inside.part(1..=self.kept)?.to_vec();
                let Some([mut given, own]) = self.one(call, carried, index)? else {
                    return Ok(vec![LoweredValue::Refused]);
                };
                let next = call.add_ints(index, Int::Known(1))?;
                given.insert(0, next.into());
                for (row, all) in own.into_iter().zip(inside.part(self.kept + 1..)?) {
                    let (LoweredValue::Tensor(row), LoweredValue::Tensor(all)) = (row, all) else {
                        refuse!("returns rows that are not tensors");
                    };
                    let value = put_row(call, all.value, row.value, index, next)?;
                    given.push(LoweredValue::tensor(value, all.dtype));
                }
                Ok(given)
            },
        )?;
        match results {
            Some(mut results) => {
                take(&mut results, 0)?;
                Ok(results)
            }
            None => refused(call),
        }
    }
}

fn index_of(inside: &[LoweredValue]) -> Result<Int> {
    match inside.first() {
        Some(LoweredValue::Number(Number::Int(index))) => Ok(*index),
        _ => refuse!("a loop has no counter"),
    }
}

/// Replaces one row of a tensor.
fn put_row(
    call: &mut Call<'_, '_>,
    all: ValueId,
    row: ValueId,
    index: Int,
    next: Int,
) -> ValueResult {
    let dtype = call.dtype(all);
    let row = call.cast(row, dtype)?;
    let row = call.expand_dims(row, &[0])?;
    if call.opset() >= Opset::Ios18 {
        return call.replaced(all, row, 0, Range::between(index, next));
    }
    let index = call.int_value(index)?;
    let place = call.expand_dims(index, &[0])?;
    written_along(call, all, place, row, 0, "update")
}
