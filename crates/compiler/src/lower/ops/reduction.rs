//! Reductions.

use coremill_mil::ir::ValueId;
use coremill_mil::ops::OpKind;
use coremill_pt2::ScalarType;
use coremill_tensor::DType;

use crate::error::Refusal;
use crate::lower::builder::Builder;
use crate::lower::call::{Call, Results, normalized};
use crate::lower::row::{Row, all, some};
use crate::lower::value::{Int, Tensor};

pub(crate) const ROWS: &[Row] = &[
    all("aten.sum", sum),
    all("aten.mean", mean),
    all("aten.prod", prod),
    all("aten.amax", |call| extreme(call, OpKind::ReduceMax)),
    all("aten.amin", |call| extreme(call, OpKind::ReduceMin)),
    some("aten.max", &["default"], |call| extreme(call, OpKind::ReduceMax)),
    some("aten.min", &["default"], |call| extreme(call, OpKind::ReduceMin)),
    some("aten.max", &["dim"], |call| with_indices(call, OpKind::ReduceMax)),
    some("aten.min", &["dim"], |call| with_indices(call, OpKind::ReduceMin)),
    some("aten.max", &["other"], |call| super::arithmetic::extremum(call, OpKind::Maximum)),
    some("aten.min", &["other"], |call| super::arithmetic::extremum(call, OpKind::Minimum)),
    all("aten.argmax", |call| position(call, OpKind::ReduceArgmax)),
    all("aten.argmin", |call| position(call, OpKind::ReduceArgmin)),
    all("aten.any", |call| truth(call, OpKind::ReduceMax)),
    all("aten.all", |call| truth(call, OpKind::ReduceMin)),
    all("aten.logsumexp", log_sum_exp),
    all("aten.special_logsumexp", log_sum_exp),
];

/// The axes that a reduction takes together, and whether they remain with one element.
pub(crate) struct Axes {
    pub(crate) axes: Vec<usize>,
    pub(crate) keep: bool,
}

impl Call<'_, '_> {
    /// What `dim` and `keepdim` say: all axes if no axis is named.
    pub(crate) fn reduced_axes(&mut self, rank: usize) -> Result<Axes, Refusal> {
        let keep = self.node.argument("keepdim").is_some() && self.flag("keepdim")?;
        let axes = if self.has("dim") { self.axes("dim", rank)? } else { (0..rank).collect() };
        Ok(Axes { axes: if rank == 0 { Vec::new() } else { axes }, keep })
    }

    /// The tensor to reduce, in the type that `dtype` asks for, or else in that of the result.
    fn summand(&mut self) -> Result<Tensor, Refusal> {
        let x = self.tensor("self")?;
        let dtype = match self.node.argument("dtype") {
            Some(_) => self.scalar_type("dtype")?,
            None => None,
        };
        let dtype = dtype.unwrap_or(self.result_dtype()?);
        let value = self.converted(x.value, x.dtype, dtype)?;
        let value = match self.dtype(value) {
            DType::Bool => self.cast(value, DType::Int32)?,
            _ => value,
        };
        Ok(Tensor { value, dtype })
    }
}

impl Builder {
    /// A tensor reduced along axes; what has none stays as it is.
    pub(crate) fn reduce(
        &mut self,
        kind: OpKind,
        x: ValueId,
        axes: &Axes,
    ) -> Result<ValueId, Refusal> {
        if axes.axes.is_empty() {
            return Ok(x);
        }
        let named: Vec<_> = axes.axes.iter().map(|&axis| axis as i32).collect();
        self.emit(
            kind,
            [("x", x.into()), ("axes", named.as_slice().into()), ("keep_dims", axes.keep.into())],
        )
    }

    /// How many elements each group has that is reduced to one.
    pub(crate) fn group_size(&mut self, x: ValueId, axes: &Axes) -> Result<Int, Refusal> {
        let mut known = 1;
        let mut computed: Option<ValueId> = None;
        for &axis in &axes.axes {
            match (self.dim(x, axis)?, computed) {
                (Int::Known(extent), _) => known *= extent,
                (Int::Computed(extent), None) => computed = Some(extent),
                (Int::Computed(extent), Some(others)) => {
                    computed = Some(self.binary(OpKind::Mul, extent, others)?);
                }
            }
        }
        Ok(match computed {
            None => Int::Known(known),
            Some(value) if known == 1 => Int::Computed(value),
            Some(value) => {
                let known = crate::lower::builder::int32(known)?;
                Int::Computed(self.binary(OpKind::Mul, value, known)?)
            }
        })
    }
}

fn sum(call: &mut Call<'_, '_>) -> Results {
    let x = call.summand()?;
    let axes = call.reduced_axes(call.rank(x.value))?;
    let y = call.reduce(OpKind::ReduceSum, x.value, &axes)?;
    let y = call.wrapped(y, x.dtype)?;
    call.give(y)
}

fn mean(call: &mut Call<'_, '_>) -> Results {
    let x = call.summand()?;
    let axes = call.reduced_axes(call.rank(x.value))?;
    let y = call.reduce(OpKind::ReduceMean, x.value, &axes)?;
    call.give(y)
}

fn prod(call: &mut Call<'_, '_>) -> Results {
    let x = call.summand()?;
    let axes = call.reduced_axes(call.rank(x.value))?;
    let y = call.reduce(OpKind::ReduceProd, x.value, &axes)?;
    let y = call.wrapped(y, x.dtype)?;
    call.give(y)
}

/// A tensor of numbers, `bool`s as integers.
fn ordered(call: &mut Call<'_, '_>) -> Result<ValueId, Refusal> {
    let x = call.tensor("self")?.value;
    match call.dtype(x) {
        DType::Bool => call.cast(x, DType::Int32),
        _ => Ok(x),
    }
}

fn extreme(call: &mut Call<'_, '_>, kind: OpKind) -> Results {
    let x = ordered(call)?;
    let axes = call.reduced_axes(call.rank(x))?;
    let y = call.reduce(kind, x, &axes)?;
    let y = call.truthful_cast_to_result(y, 0)?;
    call.give(y)
}

impl Call<'_, '_> {
    /// A result of integers as `bool`s if that is what torch says.
    fn truthful_cast_to_result(
        &mut self,
        value: ValueId,
        index: usize,
    ) -> Result<ValueId, Refusal> {
        match self.result_tensor(index) {
            Ok(meta) if meta.dtype == ScalarType::Bool => self.truthful_cast(value, DType::Bool),
            _ => Ok(value),
        }
    }
}

fn with_indices(call: &mut Call<'_, '_>, kind: OpKind) -> Results {
    let x = ordered(call)?;
    let rank = call.rank(x);
    let axis = normalized(call.known_int("dim")?, rank)?;
    let keep = call.flag("keepdim")?;
    let axes = Axes { axes: if rank == 0 { Vec::new() } else { vec![axis] }, keep };
    let y = call.reduce(kind, x, &axes)?;
    let y = call.truthful_cast_to_result(y, 0)?;
    let at = if kind == OpKind::ReduceMax { OpKind::ReduceArgmax } else { OpKind::ReduceArgmin };
    let indices = position_along(call, at, x, axis, keep)?;
    call.give_all(&[y, indices])
}

/// Where along an axis an extreme element is.
fn position_along(
    builder: &mut Builder,
    kind: OpKind,
    x: ValueId,
    axis: usize,
    keep: bool,
) -> Result<ValueId, Refusal> {
    if builder.rank(x) == 0 {
        return Ok(builder.constant(coremill_mil::ir::Constant::int32(0)));
    }
    builder
        .emit(kind, [("x", x.into()), ("axis", (axis as i32).into()), ("keep_dims", keep.into())])
}

fn position(call: &mut Call<'_, '_>, kind: OpKind) -> Results {
    let x = ordered(call)?;
    let rank = call.rank(x);
    let keep = call.flag("keepdim")?;
    if call.has("dim") {
        let axis = normalized(call.known_int("dim")?, rank)?;
        let y = position_along(call, kind, x, axis, keep)?;
        return call.give(y);
    }
    let flat = if rank > 1 { call.reshape(x, &[Int::Known(-1)])? } else { x };
    let y = position_along(call, kind, flat, 0, false)?;
    let y = if keep && rank > 0 { call.reshape(y, &vec![Int::Known(1); rank])? } else { y };
    call.give(y)
}

/// Whether any or all elements are true: the largest or the smallest of zeros and ones.
fn truth(call: &mut Call<'_, '_>, kind: OpKind) -> Results {
    let x = call.tensor("self")?.value;
    let result = call.result_dtype()?;
    let x = call.truthful_cast(x, DType::Bool)?;
    let mut axes = call.reduced_axes(call.rank(x))?;
    let none_named = call.has("dim") && call.known_ints("dim")?.is_empty();
    if none_named && call.node.target.to_string().ends_with("dims") {
        // Unlike other reductions, this one takes an empty list by its word.
        axes.axes.clear();
    }
    if axes.axes.is_empty() {
        return call.give(x);
    }
    let x = call.cast(x, DType::Fp32)?;
    let y = call.reduce(kind, x, &axes)?;
    let y = call.cast_to(y, result)?;
    call.give(y)
}

fn log_sum_exp(call: &mut Call<'_, '_>) -> Results {
    let x = call.float_tensor("self")?;
    let axes = call.reduced_axes(call.rank(x))?;
    let y = call.reduce(OpKind::ReduceLogSumExp, x, &axes)?;
    call.give(y)
}
