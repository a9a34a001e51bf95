//! Branches and loops.
//!
//! Blocks of Core ML use the values around them, so that what torch hands to nested graphs is put in their place
//! there. Results of blocks are operations of the block's own.

use std::collections::HashSet;

use coremill_mil::ir::{Binding, BlockId, Constant, Definition, Op, Opset, Type, ValueId};
use coremill_mil::ops::OpKind;
use coremill_pt2::{Argument, ScalarType, Subgraph};
use coremill_tensor::DType;

use super::index::written_along;
use super::scan::accumulated_together;
use super::shape::{Range, full, replaced, taken_at, to_sizes};
use crate::bounds::{At, take};
use crate::error::{Refusal, refuse};
use crate::lower::builder::Arg;
use crate::lower::call::{Call, Results};
use crate::lower::dtype::core_dtype;
use crate::lower::row::{Row, all};
use crate::lower::value::{Int, Lowered, Real, Tensor, Truth};

pub(super) const ROWS: &[Row] = &[
    all("higher_order.cond", cond),
    all("higher_order.while_loop", while_loop),
    all("higher_order.scan", scan),
    all("higher_order.map_impl", map),
    all("higher_order.map", map),
    all("higher_order.associative_scan", associative_scan),
    all("higher_order.auto_functionalized", custom_operator),
    all("higher_order.auto_functionalized_v2", custom_operator),
];

/// Turns of a loop up to here are written out: a loop costs more than it saves then.
const MAX_UNROLLED: i64 = 8;

/// How something that was lowered is made of values, and of them again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Tensor(ScalarType),
    Int,
    Float,
    Bool,
    Nothing,
}

/// The values that something consists of.
fn taken_apart(
    call: &mut Call<'_, '_>,
    lowered: &Lowered,
    values: &mut Vec<ValueId>,
) -> Result<Shape, Refusal> {
    Ok(match *lowered {
        Lowered::Tensor(Tensor { value, dtype }) => {
            values.push(value);
            Shape::Tensor(dtype)
        }
        Lowered::Int(int) => {
            values.push(call.int_value(int)?);
            Shape::Int
        }
        Lowered::Float(Real::Known(known)) => {
            values.push(call.constant(Constant::fp32(known as f32)));
            Shape::Float
        }
        Lowered::Bool(Truth::Known(known)) => {
            values.push(call.constant(Constant::bool(known)));
            Shape::Bool
        }
        Lowered::Float(Real::Computed(value)) => {
            values.push(value);
            Shape::Float
        }
        Lowered::Bool(Truth::Computed(value)) => {
            values.push(value);
            Shape::Bool
        }
        Lowered::Pair(_) | Lowered::Nothing | Lowered::Refused => Shape::Nothing,
    })
}

/// What is made of values, taken off the front.
fn put_together(
    shape: Shape,
    values: &mut std::vec::IntoIter<ValueId>,
) -> Result<Lowered, Refusal> {
    let mut next = || match values.next() {
        Some(value) => Ok(value),
        None => refuse!("a block gives fewer values than are asked of it"),
    };
    Ok(match shape {
        Shape::Tensor(dtype) => Lowered::tensor(next()?, dtype),
        Shape::Int => Lowered::Int(Int::Computed(next()?)),
        Shape::Float => Lowered::Float(Real::Computed(next()?)),
        Shape::Bool => Lowered::Bool(Truth::Computed(next()?)),
        Shape::Nothing => Lowered::Nothing,
    })
}

fn all_together(shapes: &[Shape], values: Vec<ValueId>) -> Results {
    let mut values = values.into_iter();
    shapes.iter().map(|&shape| put_together(shape, &mut values)).collect()
}

fn is_refused(results: &[Lowered]) -> bool {
    results.iter().any(|result| matches!(result, Lowered::Refused))
}

/// The elements of an argument that is a list.
fn list(call: &mut Call<'_, '_>, position: usize) -> Result<Vec<Lowered>, Refusal> {
    match call.node.arguments.get(position) {
        Some(Argument::List(items)) => items.iter().map(|item| call.lowered(item)).collect(),
        None | Some(Argument::None) => Ok(Vec::new()),
        Some(_) => refuse!("argument {position} is not a list"),
    }
}

/// Values that a block may give: each computed in it, and none of them twice.
fn own(call: &mut Call<'_, '_>, values: Vec<ValueId>) -> Result<Vec<ValueId>, Refusal> {
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
            call.emit_unfolded(OpKind::Identity, [("x", value.into())])?
        });
    }
    Ok(outputs)
}

/// A scalar `bool` that says which way to go.
fn predicate(call: &mut Call<'_, '_>, lowered: &Lowered) -> Result<Truth, Refusal> {
    match *lowered {
        Lowered::Bool(truth) => Ok(truth),
        Lowered::Int(Int::Known(value)) => Ok(Truth::Known(value != 0)),
        Lowered::Tensor(Tensor { value, .. }) => {
            let value = call.cast(value, DType::Bool)?;
            let value = to_sizes(call, value, &[])?;
            let known = call.folded(value).and_then(|folded| folded.only()?.bool());
            Ok(known.map_or(Truth::Computed(value), Truth::Known))
        }
        _ => refuse!("a condition is not a `bool`"),
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
        return Ok(vec![Lowered::Refused; call.node.outputs.len()]);
    };
    if shapes != others {
        refuse!("gives {shapes:?} if true, {others:?} if false; accepted are the same types");
    }
    let mut op = Op::new(OpKind::Cond).with("pred", Binding::Value(condition));
    op.blocks = vec![first, second];
    let values = call.append(op)?;
    all_together(&shapes, values)
}

/// A block for one way of a branch, and what it gives; none if something in it was refused.
fn branch<'p>(
    call: &mut Call<'_, 'p>,
    graph: &'p Subgraph,
    operands: Vec<Lowered>,
) -> Result<(BlockId, Option<Vec<Shape>>), Refusal> {
    call.open_block(&[]);
    let given = in_block(call, |call| {
        let results = call.lowering.inline(&graph.graph, operands)?;
        if is_refused(&results) {
            return Ok((Vec::new(), None));
        }
        let mut values = Vec::new();
        let mut shapes = Vec::with_capacity(results.len());
        for result in &results {
            shapes.push(taken_apart(call, result, &mut values)?);
        }
        Ok((own(call, values)?, Some(shapes)))
    });
    let (values, shapes) = given?;
    Ok((call.close_block(&values), shapes))
}

/// Fills the block that was just opened, which is closed here if that fails.
fn in_block<'p, T>(
    call: &mut Call<'_, 'p>,
    fill: impl FnOnce(&mut Call<'_, 'p>) -> Result<T, Refusal>,
) -> Result<T, Refusal> {
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
        None => Ok(vec![Lowered::Refused; call.node.outputs.len()]),
    }
}

/// A loop over what it carries; none if something in it was refused.
pub(super) fn looped<'p>(
    call: &mut Call<'_, 'p>,
    carried: &[Lowered],
    condition: impl FnOnce(&mut Call<'_, 'p>, Vec<Lowered>) -> Result<Option<Lowered>, Refusal>,
    body: impl FnOnce(&mut Call<'_, 'p>, Vec<Lowered>) -> Results,
) -> Result<Option<Vec<Lowered>>, Refusal> {
    let mut values = Vec::new();
    let mut shapes = Vec::with_capacity(carried.len());
    for one in carried {
        shapes.push(taken_apart(call, one, &mut values)?);
    }
    // What is carried has one place in the loop's variables, a value that is carried twice two of them.
    let first = opened(call, &values);
    let ends = in_block(call, |call| {
        let inside = all_together(&shapes, first)?;
        let truth = match condition(call, inside)? {
            None | Some(Lowered::Refused) => return Ok(None),
            Some(truth) => predicate(call, &truth)?,
        };
        let mut single = Vec::new();
        taken_apart(call, &Lowered::Bool(truth), &mut single)?;
        Ok(Some(own(call, single)?))
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
            refuse!("a loop carries {} values, but its body gives {}", shapes.len(), results.len());
        }
        let mut given = Vec::new();
        for (result, shape) in results.iter().zip(&shapes) {
            let found = taken_apart(call, result, &mut given)?;
            // A tensor without axes and a number are the same thing in Core ML.
            let is_same = found == *shape
                || matches!((found, shape), (Shape::Tensor(_), Shape::Tensor(_)))
                || matches!(
                    (found, shape),
                    (Shape::Int | Shape::Tensor(_), Shape::Int | Shape::Tensor(_))
                );
            if !is_same {
                refuse!("a loop carries {shape:?}, but its body gives {found:?}");
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

/// Opens a block that takes variables like these values.
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
        // torch has no loops that change the sizes of what they carry.
        let shape = call.shape(outside).to_vec();
        call.analysis.set_shape(inside, shape);
    }
    inside
}

fn scan(call: &mut Call<'_, '_>) -> Results {
    let graph = call.subgraph(0)?;
    let (carried, rows, around) = (list(call, 1)?, list(call, 2)?, list(call, 3)?);
    over_rows(call, graph, carried, rows, around)
}

fn map(call: &mut Call<'_, '_>) -> Results {
    let graph = call.subgraph(0)?;
    let (rows, around) = (list(call, 1)?, list(call, 2)?);
    over_rows(call, graph, Vec::new(), rows, around)
}

/// The rows of some tensors, each joined with all before it. torch has the graph that joins two rows compute each
/// element from those at its place, so that it joins many rows with as many others at once.
fn associative_scan(call: &mut Call<'_, '_>) -> Results {
    let graph = call.subgraph(0)?;
    let (rows, around) = (list(call, 1)?, list(call, 2)?);
    let mut values = Vec::new();
    let mut shapes = Vec::with_capacity(rows.len());
    for row in &rows {
        shapes.push(taken_apart(call, row, &mut values)?);
    }
    let joined = accumulated_together(call, values, 0, |call, earlier, later| {
        let mut inputs = all_together(&shapes, earlier)?;
        inputs.extend(all_together(&shapes, later)?);
        inputs.extend(around.iter().cloned());
        let results = call.lowering.inline_rows(&graph.graph, inputs)?;
        if is_refused(&results) {
            refuse!("joins rows by calls that are refused themselves");
        }
        let mut joined = Vec::new();
        for (result, shape) in results.iter().zip(&shapes) {
            let found = taken_apart(call, result, &mut joined)?;
            if found != *shape {
                refuse!("joins rows that are {shape:?} to one that is {found:?}");
            }
        }
        Ok(joined)
    })?;
    all_together(&shapes, joined)
}

/// An operator of the model's own that writes to its arguments: only its name is in the program.
fn custom_operator(call: &mut Call<'_, '_>) -> Results {
    let name = match call.node.arguments.first() {
        Some(Argument::Operator(name) | Argument::Text(name)) => format!("`{name}`"),
        _ => "an operator".to_owned(),
    };
    Err(Refusal::new(format!(
        "calls {name}, which is the model's own: the program has only its name"
    ))
    .hint("compute it with operators of torch where the model is exported"))
}

/// Runs a graph for each row of some tensors: it takes what the turn before gave, the rows, and what is around; it
/// gives what the next turn takes, and rows of the results.
fn over_rows<'p>(
    call: &mut Call<'_, 'p>,
    graph: &'p Subgraph,
    carried: Vec<Lowered>,
    rows: Vec<Lowered>,
    around: Vec<Lowered>,
) -> Results {
    let Some(Lowered::Tensor(first)) = rows.first() else {
        refuse!("goes over the rows of no tensor");
    };
    let count = call.dim(first.value, 0)?;
    match count {
        Int::Known(count) if count <= MAX_UNROLLED => {
            unrolled(call, graph, carried, &rows, &around, count)
        }
        count => rolled(call, graph, carried, &rows, &around, count),
    }
}

/// The row at an index of each tensor.
fn rows_at(call: &mut Call<'_, '_>, rows: &[Lowered], index: Int) -> Result<Vec<Lowered>, Refusal> {
    let mut taken = Vec::with_capacity(rows.len());
    for row in rows {
        let Lowered::Tensor(tensor) = row else { refuse!("goes over the rows of no tensor") };
        let value = taken_at(call, tensor.value, 0, index)?;
        taken.push(Lowered::tensor(value, tensor.dtype));
    }
    Ok(taken)
}

fn unrolled<'p>(
    call: &mut Call<'_, 'p>,
    graph: &'p Subgraph,
    mut carried: Vec<Lowered>,
    rows: &[Lowered],
    around: &[Lowered],
    count: i64,
) -> Results {
    let kept = carried.len();
    let mut results: Vec<Vec<ValueId>> = Vec::new();
    let mut shapes = Vec::new();
    for index in 0..count {
        let mut inputs = carried;
        inputs.extend(rows_at(call, rows, Int::Known(index))?);
        inputs.extend(around.iter().cloned());
        let mut given = call.lowering.inline(&graph.graph, inputs)?;
        if is_refused(&given) {
            return Ok(vec![Lowered::Refused; call.node.outputs.len()]);
        }
        let own = given.split_off(kept.min(given.len()));
        carried = given;
        let mut values = Vec::new();
        shapes.clear();
        for one in &own {
            shapes.push(taken_apart(call, one, &mut values)?);
        }
        results.push(values);
    }
    let mut stacked = Vec::new();
    for at in 0..results.first().map_or(0, Vec::len) {
        let parts = results.iter().map(|values| values.at(at).copied());
        let parts = parts.collect::<Result<Vec<_>, _>>()?;
        stacked.push(if let [only] = parts[..] {
            call.expand_dims(only, &[0])?
        } else {
            call.emit(OpKind::Stack, [("values", Arg::from(&parts[..])), ("axis", 0.into())])?
        });
    }
    carried.extend(all_together(&shapes, stacked)?);
    Ok(carried)
}

fn rolled<'p>(
    call: &mut Call<'_, 'p>,
    graph: &'p Subgraph,
    carried: Vec<Lowered>,
    rows: &[Lowered],
    around: &[Lowered],
    count: Int,
) -> Results {
    let kept = carried.len();
    // The results, as they are before the first turn.
    let mut variables = vec![Lowered::Int(Int::Known(0))];
    variables.extend(carried);
    for at in kept..call.node.outputs.len() {
        let meta = call.result_tensor(at)?;
        let (dtype, sizes) = (meta.dtype, call.result_sizes(at)?);
        let mut dims = vec![count];
        for size in sizes.iter().skip(1) {
            match size {
                Some(size) => dims.push(Int::Known(*size)),
                None => refuse!("gives rows whose sizes are not known before the program runs"),
            }
        }
        let empty = full(call, &dims, core_dtype(dtype)?, 0.0)?;
        variables.push(Lowered::tensor(empty, dtype));
    }
    let results = looped(
        call,
        &variables,
        |call, inside| {
            let index = index_of(&inside)?;
            let (index, count) = (call.int_value(index)?, call.int_value(count)?);
            let goes_on = call.binary(OpKind::Less, index, count)?;
            Ok(Some(Lowered::Bool(Truth::Computed(goes_on))))
        },
        |call, inside| {
            let index = index_of(&inside)?;
            let mut inputs = inside.part(1..=kept)?.to_vec();
            inputs.extend(rows_at(call, rows, index)?);
            inputs.extend(around.iter().cloned());
            let mut given = call.lowering.inline(&graph.graph, inputs)?;
            if is_refused(&given) {
                return Ok(given);
            }
            let own = given.split_off(kept.min(given.len()));
            let next = call.add_ints(index, Int::Known(1))?;
            given.insert(0, Lowered::Int(next));
            for (row, all) in own.into_iter().zip(inside.part(kept + 1..)?) {
                let (Lowered::Tensor(row), Lowered::Tensor(all)) = (row, all) else {
                    refuse!("gives rows that are not tensors");
                };
                let value = put_row(call, all.value, row.value, index, next)?;
                given.push(Lowered::tensor(value, all.dtype));
            }
            Ok(given)
        },
    )?;
    match results {
        Some(mut results) => {
            take(&mut results, 0)?;
            Ok(results)
        }
        None => Ok(vec![Lowered::Refused; call.node.outputs.len()]),
    }
}

fn index_of(inside: &[Lowered]) -> Result<Int, Refusal> {
    match inside.first() {
        Some(Lowered::Int(index)) => Ok(*index),
        _ => refuse!("a loop has no counter"),
    }
}

/// A tensor with one row of it replaced.
fn put_row(
    call: &mut Call<'_, '_>,
    all: ValueId,
    row: ValueId,
    index: Int,
    next: Int,
) -> Result<ValueId, Refusal> {
    let dtype = call.dtype(all);
    let row = call.cast(row, dtype)?;
    let row = call.expand_dims(row, &[0])?;
    if call.opset() >= Opset::Ios18 {
        return replaced(call, all, row, 0, Range::between(index, next));
    }
    let index = call.int_value(index)?;
    let place = call.expand_dims(index, &[0])?;
    written_along(call, all, place, row, 0, "update")
}
