//! Reductions.

use crate::lower::prelude::*;
use crate::lower::value::Tensor;

pub(crate) const ROWS: &[Row] = &[
    tensor("aten.sum", |call| total(call, OpKind::ReduceSum)),
    tensor("aten.mean", |call| total(call, OpKind::ReduceMean)),
    tensor("aten.prod", |call| total(call, OpKind::ReduceProd)),
    tensor("aten.amax", |call| extreme(call, OpKind::ReduceMax)),
    tensor("aten.amin", |call| extreme(call, OpKind::ReduceMin)),
    tensor("aten.max", |call| extreme(call, OpKind::ReduceMax)).only(&["default"]),
    tensor("aten.min", |call| extreme(call, OpKind::ReduceMin)).only(&["default"]),
    several("aten.max", |call| with_indices(call, OpKind::ReduceMax)).only(&["dim"]),
    several("aten.min", |call| with_indices(call, OpKind::ReduceMin)).only(&["dim"]),
    tensor("aten.max", |call| super::arithmetic::extremum(call, OpKind::Maximum)).only(&["other"]),
    tensor("aten.min", |call| super::arithmetic::extremum(call, OpKind::Minimum)).only(&["other"]),
    tensor("aten.argmax", |call| position(call, OpKind::ReduceArgmax)),
    tensor("aten.argmin", |call| position(call, OpKind::ReduceArgmin)),
    tensor("aten.any", |call| truth(call, OpKind::ReduceMax)),
    tensor("aten.all", |call| truth(call, OpKind::ReduceMin)),
    tensor("aten.{,special_}logsumexp", log_sum_exp),
];

impl Call<'_, '_> {
    /// Axes of `dim` and the value of `keepdim`. An absent or empty `dim` selects all axes.
    pub(crate) fn reduced_axes(&mut self, rank: usize) -> Result<Axes> {
        let keep = self.node.argument("keepdim").is_some() && self.flag("keepdim")?;
        let mut axes = if self.has("dim") { self.axes("dim", rank)? } else { Vec::new() };
        if axes.is_empty() || rank == 0 {
            axes = (0..rank).collect();
        }
        Ok(Axes { axes, keep })
    }

    /// The tensor to reduce, cast to `dtype` or to the result type.
    pub(crate) fn summand(&mut self) -> Result<Tensor> {
        let x = self.tensor("self")?;
        let dtype = match self.node.argument("dtype") {
            Some(_) => self.scalar_type("dtype")?,
            None => None,
        };
        let dtype = dtype.unwrap_or(self.result_dtype()?);
        let value = self.converted(x.value, x.dtype, dtype)?;
        Ok(Tensor { value: self.numeric(value)?, dtype })
    }
}

impl Builder {
    /// Number of elements reduced to one.
    pub(crate) fn group_size(&mut self, x: ValueId, axes: &Axes) -> Result<Int> {
        let mut extents = Vec::with_capacity(axes.axes.len());
        for &axis in &axes.axes {
            extents.push(self.dim(x, axis)?);
        }
        self.product(&extents)
    }
}

fn total(call: &mut Call<'_, '_>, kind: OpKind) -> ValueResult {
    let x = call.summand()?;
    let axes = call.reduced_axes(call.rank(x.value))?;
    let y = call.reduce(kind, x.value, &axes)?;
    call.wrapped(y, x.dtype)
}

/// `self` as a numeric tensor.
fn ordered(call: &mut Call<'_, '_>) -> ValueResult {
    let x = call.value("self")?;
    call.numeric(x)
}

fn extreme(call: &mut Call<'_, '_>, kind: OpKind) -> ValueResult {
    let x = ordered(call)?;
    let axes = call.reduced_axes(call.rank(x))?;
    extreme_of(call, kind, x, &axes)
}

/// The extreme elements, cast back to booleans if that is torch's result type.
fn extreme_of(call: &mut Call<'_, '_>, kind: OpKind, x: ValueId, axes: &Axes) -> ValueResult {
    let y = call.reduce(kind, x, axes)?;
    match call.result_tensor(0) {
        Ok(meta) if meta.dtype == ScalarType::Bool => call.truthful_cast(y, DType::Bool),
        _ => Ok(y),
    }
}

fn with_indices(call: &mut Call<'_, '_>, kind: OpKind) -> Results {
    let x = ordered(call)?;
    let rank = call.rank(x);
    let axis = call.axis("dim", rank)?;
    let keep = call.flag("keepdim")?;
    let axes = Axes { axes: (axis..axis + 1).filter(|_| rank > 0).collect(), keep };
    let y = extreme_of(call, kind, x, &axes)?;
    let at = if kind == OpKind::ReduceMax { OpKind::ReduceArgmax } else { OpKind::ReduceArgmin };
    let indices = position_along(call, at, x, axis, keep)?;
    call.give_all(&[y, indices])
}

/// Index of an extreme element along an axis.
fn position_along(
    builder: &mut Builder,
    kind: OpKind,
    x: ValueId,
    axis: usize,
    keep: bool,
) -> ValueResult {
    if builder.rank(x) == 0 {
        return builder.int_value(Int::Known(0));
    }
    emit!(builder, kind, x, axis, keep_dims = keep)
}

fn position(call: &mut Call<'_, '_>, kind: OpKind) -> ValueResult {
    let x = ordered(call)?;
    let rank = call.rank(x);
    let keep = call.flag("keepdim")?;
    if call.has("dim") {
        let axis = call.axis("dim", rank)?;
        return position_along(call, kind, x, axis, keep);
    }
    let flat = if rank > 1 { call.reshape(x, &[Int::Known(-1)])? } else { x };
    let y = position_along(call, kind, flat, 0, false)?;
    if keep && rank > 0 { call.reshape(y, &vec![Int::Known(1); rank]) } else { Ok(y) }
}

/// `any` or `all` as the maximum or minimum of zeros and ones.
fn truth(call: &mut Call<'_, '_>, kind: OpKind) -> ValueResult {
    let x = call.value("self")?;
    let result = call.result_dtype()?;
    let x = call.truthful_cast(x, DType::Bool)?;
    let mut axes = call.reduced_axes(call.rank(x))?;
    let none_named = call.has("dim") && call.known_ints("dim")?.is_empty();
    if none_named && call.node.target.to_string().ends_with("dims") {
        // Unlike other reductions, this operator takes an empty list literally.
        axes.axes.clear();
    }
    if axes.axes.is_empty() {
        return Ok(x);
    }
    let x = call.cast(x, DType::Fp32)?;
    let y = call.reduce(kind, x, &axes)?;
    call.cast_to(y, result)
}

fn log_sum_exp(call: &mut Call<'_, '_>) -> ValueResult {
    let x = call.float_tensor("self")?;
    let axes = call.reduced_axes(call.rank(x))?;
    call.reduce(OpKind::ReduceLogSumExp, x, &axes)
}
