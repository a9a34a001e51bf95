//! Tensors of a higher rank than Core ML supports.
//!
//! Core ML supports up to five axes. A tensor of higher rank is represented by a low-rank tensor with the same
//! element order, followed by a `reshape` to the full rank that only serves type inference. Each operation on the
//! reshaped tensor is applied to the low-rank tensor instead, with the axes that the operation does not use merged:
//!
//! ```text
//! y = reshape(x, [2, 3, 4, 5, 6, 7]); z = reverse(y, axes = [2])
//!   becomes  a = reshape(x, [6, 4, 210]); b = reverse(a, axes = [1]); z = reshape(b, [2, 3, 4, 5, 6, 7])
//! ```
//!
//! The reshapes to the full rank have no users in the end and are removed as dead code. Window attention, for
//! example, which splits a tensor into six axes and joins them again, becomes operations on at most five.

mod axes;
mod broadcast;
mod order;

use std::ops::Range;

use coremill_mil::infer::InferredValue;
use coremill_mil::ir::{Binding, Constant, Dim, Op, TensorType, Type, ValueId};
use coremill_mil::ops::OpKind;

use super::builder::{Arg, Builder, ValueResult, operation};
use super::value::{HighRank, Int};
use crate::decompose::call::position;
use crate::error::{LoweringError, Result, refuse};

/// Maximum rank of Core ML's tensors.
pub(crate) const MAX_RANK: usize = 5;

impl Builder {
    /// Appends an operation if it has an input or output of too high a rank.
    pub(super) fn append_high_rank(
        &mut self,
        op: &Op,
        outcomes: &[InferredValue],
    ) -> Result<Option<Vec<ValueId>>> {
        let is_needed = is_needed(self, op, outcomes);
        is_needed.then(|| append(self, op, outcomes)).transpose()
    }
}

/// Whether an operation has an input or output of too high a rank. Parameters of a compressed weight do not count:
/// tables have two axes more than the weight.
fn is_needed(builder: &Builder, op: &Op, outcomes: &[InferredValue]) -> bool {
    let rank = |ty: &Type| ty.as_tensor().map_or(0, TensorType::rank);
    let is_weight = op.kind().is_some_and(OpKind::is_constexpr);
    outcomes.iter().any(|outcome| rank(&outcome.ty) > MAX_RANK)
        || !is_weight
            && op.all_bindings().any(|(_, binding)| match binding {
                Binding::Value(value) => builder.rank(*value) > MAX_RANK,
                Binding::Literal(constant) => rank(&constant.ty) > MAX_RANK,
            })
}

fn append(builder: &mut Builder, op: &Op, outcomes: &[InferredValue]) -> Result<Vec<ValueId>> {
    let Some(kind) = op.kind() else { refuse!("`{}` has too many axes", op.type_name()) };
    if let Some(values) = reshaped(builder, kind, op, outcomes)? {
        return Ok(values);
    }
    match kind {
        OpKind::Transpose => order::transposed(builder, op),
        OpKind::Tile => axes::tiled(builder, op),
        OpKind::SliceByIndex => axes::sliced(builder, op),
        OpKind::Fill => filled(builder, op, outcomes),
        OpKind::Shape => {
            let dims = dims_of(builder, only(op, "x")?)?;
            match builder.ints(&dims)? {
                Arg::One(binding) => Ok(vec![value_of(builder, &binding)]),
                Arg::Absent | Arg::Many(_) => refuse!("a shape is not a vector"),
            }
        }
        OpKind::Matmul => broadcast::product(builder, op),
        kind if broadcast::is_elementwise(kind) => broadcast::elementwise(builder, op),
        kind => match axes::along(kind, op) {
            Some(along) => axes::apply(builder, op.clone(), along),
            None => Err(too_many(kind)),
        },
    }
}

fn too_many(kind: OpKind) -> LoweringError {
    LoweringError::new(format!(
        "`{}` has an operand or result with more than {MAX_RANK} axes, the maximum in Core \
         ML",
        kind.name()
    ))
    .hint("reshape to fewer axes before the operation, and back after it")
}

/// The value bound to a parameter.
fn only(op: &Op, name: &str) -> ValueResult {
    match op.bindings(name) {
        [Binding::Value(value)] => Ok(*value),
        _ => refuse!("`{name}` of `{}` is not a value", op.type_name()),
    }
}

/// The value of a binding; literals become constants.
fn value_of(builder: &mut Builder, binding: &Binding) -> ValueId {
    match binding {
        Binding::Value(value) => *value,
        Binding::Literal(constant) => builder.constant(constant.clone()),
    }
}

/// Indices of the axes in a parameter.
fn axes(builder: &Builder, op: &Op, name: &str, rank: usize) -> Result<Option<Vec<usize>>> {
    let named = ints(builder, op, name);
    named.map(|axes| axes.into_iter().map(|axis| position(axis, rank)).collect()).transpose()
}

/// Elements of a constant integer parameter.
fn ints(builder: &Builder, op: &Op, name: &str) -> Option<Vec<i64>> {
    let [binding] = op.bindings(name) else { return None };
    match binding {
        Binding::Value(value) => builder.folded(*value)?.ints(),
        Binding::Literal(constant) => {
            coremill_mil::infer::KnownElements::from_constant(constant)?.ints()
        }
    }
}

/// Elements of an integer vector parameter; computed elements are extracted.
fn elements(builder: &mut Builder, op: &Op, name: &str, count: usize) -> Result<Vec<Int>> {
    if let Some(known) = ints(builder, op, name) {
        return Ok(known.into_iter().map(Int::Known).collect());
    }
    let vector = only(op, name)?;
    let known: Vec<_> = match builder.folded(vector) {
        Some(folded) => folded.elements.iter().map(|element| element.int()).collect(),
        None => vec![None; count],
    };
    let mut elements = Vec::with_capacity(known.len());
    for (at, known) in known.into_iter().enumerate() {
        elements.push(match known {
            Some(known) => Int::Known(known),
            None => {
                let element = builder.element(vector, at)?;
                builder.int_of(element)
            }
        });
    }
    Ok(elements)
}

/// The low-rank representation of a value.
fn source(builder: &mut Builder, value: ValueId) -> ValueResult {
    if builder.rank(value) <= MAX_RANK {
        return Ok(value);
    }
    if let Some(folded) = builder.high_rank.get(&value) {
        return Ok(folded.source);
    }
    // Constants may have any rank until an operation uses them.
    let Some(constant) = builder.known(value) else {
        refuse!("an input has more than {MAX_RANK} axes, the maximum in Core ML");
    };
    let Some(ty) = constant.tensor_type() else { refuse!("a constant is not a tensor") };
    let dims = ty.shape.iter().filter_map(Dim::known).map(|extent| Int::Known(extent as i64));
    let dims = dims.collect();
    let flat = Type::tensor(ty.dtype, &[ty.element_count().unwrap_or(0)]);
    let source = builder.constant(Constant { ty: flat, data: constant.data.clone() });
    builder.high_rank.insert(value, HighRank { source, dims });
    Ok(source)
}

/// All dimensions of a value of any rank.
fn dims_of(builder: &mut Builder, value: ValueId) -> Result<Vec<Int>> {
    source(builder, value)?;
    match builder.high_rank.get(&value) {
        Some(folded) => Ok(folded.dims.clone()),
        None => builder.dims(value),
    }
}

/// Reshapes to dimensions of any rank.
fn raised(builder: &mut Builder, low: ValueId, dims: &[Int]) -> ValueResult {
    if dims.len() <= MAX_RANK {
        return builder.with_sizes(low, dims);
    }
    let expr = |dim: &Int| builder.int_expr(*dim).map_or(Dim::Unknown, Dim::from);
    let shape = dims.iter().map(expr).collect();
    // No operation reads the shape of a reshape that is removed in the end.
    let stated: Vec<_> = dims.iter().map(|dim| dim.known().unwrap_or(-1) as i32).collect();
    let op = operation(OpKind::Reshape, [("x", low.into()), ("shape", stated.as_slice().into())]);
    let ty = Type::Tensor(TensorType { dtype: builder.dtype(low), shape });
    let value = builder.append_inferred(op, vec![InferredValue::of(ty)])[0];
    builder.high_rank.insert(value, HighRank { source: low, dims: dims.to_vec() });
    Ok(value)
}

/// Merges axes range by range.
fn grouped(
    builder: &mut Builder,
    value: ValueId,
    dims: &[Int],
    groups: &[Range<usize>],
) -> ValueResult {
    let mut sizes = Vec::with_capacity(groups.len());
    for group in groups {
        sizes.push(builder.product(&dims[group.clone()])?);
    }
    let source = source(builder, value)?;
    builder.with_sizes(source, &sizes)
}

/// Operations that preserve the element order.
fn reshaped(
    builder: &mut Builder,
    kind: OpKind,
    op: &Op,
    outcomes: &[InferredValue],
) -> Result<Option<Vec<ValueId>>> {
    if !matches!(kind, OpKind::Reshape | OpKind::ExpandDims | OpKind::Squeeze | OpKind::Identity) {
        return Ok(None);
    }
    let x = only(op, "x")?;
    let low = source(builder, x)?;
    let result = outcomes.first().and_then(|outcome| outcome.ty.as_tensor()).cloned();
    let Some(result) = result else { refuse!("`{}` does not return a tensor", kind.name()) };
    let mut dims = match kind {
        OpKind::Identity => dims_of(builder, x)?,
        OpKind::Reshape => elements(builder, op, "shape", result.rank())?,
        _ => {
            // Axes of size other than 1 keep their order.
            let own = dims_of(builder, x)?;
            let is_unit = |dim: &Int| *dim == Int::Known(1);
            let mut kept = own.into_iter().filter(|dim| !is_unit(dim));
            let next = |dim: &Dim| match dim {
                Dim::Known(1) => Int::Known(1),
                _ => kept.next().unwrap_or(Int::Known(1)),
            };
            result.shape.iter().map(next).collect()
        }
    };
    for (dim, found) in dims.iter_mut().zip(&result.shape) {
        if let Some(extent) = found.known() {
            *dim = Int::Known(extent as i64);
        }
    }
    if let Some(rest) = dims.iter().position(|&dim| dim == Int::Known(-1))
        && dims.len() > MAX_RANK
    {
        let all = dims_of(builder, x)?;
        let all = builder.product(&all)?;
        let others: Vec<_> =
            dims.iter().enumerate().filter(|(at, _)| *at != rest).map(|(_, &dim)| dim).collect();
        let others = builder.product(&others)?;
        dims[rest] = builder.floor_div_ints(all, others)?;
    }
    Ok(Some(vec![raised(builder, low, &dims)?]))
}

fn filled(builder: &mut Builder, op: &Op, outcomes: &[InferredValue]) -> Result<Vec<ValueId>> {
    let rank =
        outcomes.first().and_then(|outcome| outcome.ty.as_tensor()).map_or(0, TensorType::rank);
    let dims = elements(builder, op, "shape", rank)?;
    let count = builder.product(&dims)?;
    let Arg::One(shape) = builder.ints(&[count])? else { refuse!("a shape is not a vector") };
    let mut flat = op.clone();
    flat.set_input("shape".into(), vec![shape]);
    let low = builder.append_one(flat)?;
    Ok(vec![raised(builder, low, &dims)?])
}
