//! Permutations with merged axes.

use coremill_mil::ir::{Op, ValueId};

use super::{MAX_RANK, axes, dims_of, grouped, only, raised};
use crate::error::{Result, refuse};
use crate::lower::builder::{Builder, ValueResult};
use crate::lower::value::Int;

pub(super) fn transposed(builder: &mut Builder, op: &Op) -> Result<Vec<ValueId>> {
    let x = only(op, "x")?;
    let dims = dims_of(builder, x)?;
    let Some(order) = axes(builder, op, "perm", dims.len())? else {
        refuse!("`perm` is not a constant");
    };
    let wanted: Vec<_> = order.iter().map(|&axis| dims[axis]).collect();

    // Unit axes can be anywhere.
    let kept: Vec<_> = (0..dims.len()).filter(|&axis| dims[axis] != Int::Known(1)).collect();
    let mut sizes: Vec<_> = kept.iter().map(|&axis| dims[axis]).collect();
    let order = order.iter().filter_map(|axis| kept.iter().position(|kept| kept == axis));
    let mut order: Vec<_> = order.collect();
    let mut value = x;
    loop {
        let pieces = groups(&order);
        if pieces.len() <= MAX_RANK {
            value = permuted(builder, value, &sizes, &order, &pieces)?;
            return Ok(vec![raised(builder, value, &wanted)?]);
        }
        // Two axes that end up adjacent are made adjacent first, and are merged from then on.
        let (first, second) = (order[pieces[0].end - 1], order[pieces[0].end]);
        let mut step: Vec<_> = (0..order.len()).filter(|&axis| axis != second).collect();
        let at = step.iter().position(|&axis| axis == first).map_or(0, |at| at + 1);
        step.insert(at, second);
        let steps = groups(&step);
        value = permuted(builder, value, &sizes, &step, &steps)?;
        sizes = step.iter().map(|&axis| sizes[axis]).collect();
        let places = order.iter().map(|axis| step.iter().position(|it| it == axis).unwrap_or(0));
        order = places.collect();
    }
}

/// Ranges of an order whose axes are adjacent before and after.
fn groups(order: &[usize]) -> Vec<std::ops::Range<usize>> {
    let mut groups: Vec<std::ops::Range<usize>> = Vec::new();
    for at in 0..order.len() {
        match groups.last_mut() {
            Some(group) if order[at] == order[at - 1] + 1 => group.end = at + 1,
            _ => groups.push(at..at + 1),
        }
    }
    groups
}

/// Permutes with merged axes; `groups` are ranges of `order`.
fn permuted(
    builder: &mut Builder,
    value: ValueId,
    sizes: &[Int],
    order: &[usize],
    groups: &[std::ops::Range<usize>],
) -> ValueResult {
    // Original range of each group, and the original order of the groups.
    let mut before: Vec<_> =
        groups.iter().map(|group| order[group.start]..order[group.start] + group.len()).collect();
    let after = before.clone();
    before.sort_by_key(|group| group.start);
    let low = grouped(builder, value, sizes, &before)?;
    let order: Vec<_> = after
        .iter()
        .map(|group| before.iter().position(|other| other == group).unwrap_or(0))
        .collect();
    builder.transpose(low, &order)
}
