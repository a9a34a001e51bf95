//! Elementwise operations with broadcasting.

use coremill_mil::ir::{Binding, Op};

use super::{MAX_RANK, dims_of, grouped, only, raised, source};
use crate::bounds::axis_from_end;
use crate::lower::prelude::*;

/// Whether an operation is elementwise.
pub(super) fn is_elementwise(kind: OpKind) -> bool {
    match kind.family() {
        "elementwise_unary" | "elementwise_binary" => true,
        "activation" => {
            !matches!(kind, OpKind::Softmax | OpKind::Prelu | OpKind::SoftplusParametric)
        }
        _ => kind == OpKind::Select,
    }
}

/// A tensor operand and its parameter.
struct Operand {
    name: String,
    value: ValueId,
    dims: Vec<Int>,
}

pub(super) fn elementwise(builder: &mut Builder, op: &Op) -> Result<Vec<ValueId>> {
    let mut operands = Vec::new();
    for (name, binding) in op.all_bindings() {
        let value = match binding {
            Binding::Value(value) => *value,
            // Literals are scalars, which broadcast with everything, or type names.
            Binding::Literal(_) => continue,
        };
        let dims = dims_of(builder, value)?;
        if !dims.is_empty() {
            operands.push(Operand { name: name.to_owned(), value, dims });
        }
    }
    let all: Vec<_> = operands.iter().map(|operand| operand.dims.clone()).collect();
    let matched = matched(&all);
    let mut low = op.clone();
    for operand in &operands {
        let value = matched.brought(builder, operand.value, &operand.dims)?;
        low.set_input(operand.name.clone().into(), vec![Binding::Value(value)]);
    }
    let value = builder.append_one(low)?;
    Ok(vec![raised(builder, value, &matched.dims)?])
}

/// Reduction of broadcast operands to a low rank.
struct BroadcastPlan {
    /// Dimensions after broadcasting.
    dims: Vec<Int>,
    /// Ranges of axes in which each tensor is either full-size or of size 1. `None` if there are too many ranges, so
    /// that tensors have to be repeated first.
    groups: Option<Vec<std::ops::Range<usize>>>,
}

/// Plans the broadcast of tensors with dimensions `all`.
fn matched(all: &[Vec<Int>]) -> BroadcastPlan {
    let rank = all.iter().map(Vec::len).max().unwrap_or(0);
    let dim = |dims: &[Int], axis: usize| {
        (axis + dims.len()).checked_sub(rank).map_or(Int::Known(1), |axis| dims[axis])
    };
    let is_unit = |dim: Int| dim == Int::Known(1);
    let mut result = Vec::with_capacity(rank);
    let mut groups: Vec<std::ops::Range<usize>> = Vec::new();
    let mut pattern: Option<Vec<bool>> = None;
    for axis in 0..rank {
        let found: Vec<_> = all.iter().map(|dims| dim(dims, axis)).collect();
        let whole = found.iter().copied().filter(|&dim| !is_unit(dim));
        // A static size determines the dynamic ones.
        let known = whole.clone().find(|dim| dim.known().is_some());
        result.push(known.or_else(|| whole.clone().next()).unwrap_or(Int::Known(1)));
        let units: Vec<_> = found.iter().map(|&dim| is_unit(dim)).collect();
        // An axis of size 1 in all tensors joins its neighbors.
        let goes_along = units.iter().all(|&unit| unit) || pattern.as_ref() == Some(&units);
        match groups.last_mut() {
            Some(group) if goes_along => group.end = axis + 1,
            _ => {
                groups.push(axis..axis + 1);
                if !units.iter().all(|&unit| unit) {
                    pattern = Some(units);
                }
            }
        }
    }
    BroadcastPlan { dims: result, groups: (groups.len() <= MAX_RANK).then_some(groups) }
}

impl BroadcastPlan {
    /// Merges the axes of a tensor by group, or repeats and flattens it.
    fn brought(&self, builder: &mut Builder, value: ValueId, dims: &[Int]) -> ValueResult {
        match &self.groups {
            Some(groups) => grouped(builder, value, &padded(dims, self.dims.len()), groups),
            None => {
                let whole = repeated(builder, value, dims, &self.dims)?;
                builder.with_sizes(whole, &[Int::Known(-1)])
            }
        }
    }
}

/// Prepends unit dimensions.
fn padded(dims: &[Int], rank: usize) -> Vec<Int> {
    let added = rank.saturating_sub(dims.len());
    std::iter::repeat_n(Int::Known(1), added).chain(dims.iter().copied()).collect()
}

/// Repeats a tensor to the given sizes.
fn repeated(builder: &mut Builder, value: ValueId, dims: &[Int], sizes: &[Int]) -> ValueResult {
    let value = raised(builder, value, &padded(dims, sizes.len()))?;
    let whole = builder.expanded(value, sizes)?;
    source(builder, whole)
}

/// Matrix product with merged batch axes.
pub(super) fn product(builder: &mut Builder, op: &Op) -> Result<Vec<ValueId>> {
    let (x, y) = (only(op, "x")?, only(op, "y")?);
    let (of_x, of_y) = (dims_of(builder, x)?, dims_of(builder, y)?);
    let ([batch_x @ .., _, _], [batch_y @ .., _, _]) = (of_x.as_slice(), of_y.as_slice()) else {
        refuse!("cannot multiply a vector by a tensor of more than {MAX_RANK} axes");
    };
    let batches = matched(&[batch_x.to_vec(), batch_y.to_vec()]);
    let rank = batches.dims.len() + 2;
    let matrices = [rank - 2..rank - 1, rank - 1..rank];
    let groups = batches.groups.clone().filter(|groups| groups.len() + 2 <= MAX_RANK);
    let mut low = op.clone();
    for (name, value, dims) in [("x", x, &of_x), ("y", y, &of_y)] {
        let value = match &groups {
            Some(groups) => {
                let groups = [groups.as_slice(), &matrices].concat();
                grouped(builder, value, &padded(dims, rank), &groups)?
            }
            None => {
                let matrix = &padded(dims, rank)[rank - 2..];
                let whole = repeated(builder, value, dims, &[&batches.dims, matrix].concat())?;
                let count = builder.product(&batches.dims)?;
                builder.with_sizes(whole, &[&[count], matrix].concat())?
            }
        };
        low.set_input(name.to_owned().into(), vec![Binding::Value(value)]);
    }
    let product = builder.append_one(low)?;
    let rank = builder.rank(product);
    let mut dims = batches.dims;
    for axis in axis_from_end(rank, 2)?..rank {
        dims.push(builder.dim(product, axis)?);
    }
    Ok(vec![raised(builder, product, &dims)?])
}
