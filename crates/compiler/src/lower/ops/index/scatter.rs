//! Scatters: writes at indices along an axis, with indices of the tensor's rank.

use super::as_numbers;
use super::gather::reached;
use crate::lower::prelude::*;

pub(super) const ROWS: &[Row] = &[
    tensor("aten.scatter", |call| scatter(call, "update")).only(&["src", "value"]),
    tensor("aten.scatter", scatter_by_name).only(&["reduce", "value_reduce"]),
    tensor("aten.scatter_add", |call| scatter(call, "add")),
    tensor("aten.scatter_reduce", scatter_reduce).only(&["two"]),
];

/// Neutral element of a combination.
pub(super) fn neutral(mode: &str, dtype: DType) -> f64 {
    match (mode, dtype) {
        ("mul", _) => 1.0,
        ("max", DType::Fp32) => f64::NEG_INFINITY,
        ("max", _) => f64::from(i32::MIN),
        ("min", DType::Fp32) => f64::INFINITY,
        ("min", _) => f64::from(i32::MAX),
        _ => 0.0,
    }
}

/// Operands of a scatter, all of rank 1 or higher.
struct Scatter {
    x: ValueId,
    indices: ValueId,
    updates: ValueId,
    axis: usize,
}

impl Scatter {
    fn of(call: &mut Call<'_, '_>) -> Result<Scatter> {
        let x = call.value("self")?;
        let indices = call.value("index")?;
        let dtype = call.dtype(x);
        let updates = if call.has("src") {
            let source = call.value("src")?;
            call.cast(source, dtype)?
        } else {
            let value = call.float("value")?;
            let dims = call.dims(indices)?;
            call.full(&dims, dtype, value)?
        };
        let x = call.with_axes(x)?;
        let indices = call.with_axes(indices)?;
        let updates = call.with_axes(updates)?;
        let ranks = [x, indices, updates].map(|value| call.rank(value));
        if ranks != [ranks[0]; 3] {
            refuse!(
                "`self`, `index` and the updates have ranks {ranks:?}; the ranks must be equal"
            );
        }
        let axis = call.axis("dim", ranks[0])?;
        let updates = reached(call, updates, indices, 0..ranks[0])?;
        Ok(Scatter { x, indices, updates, axis })
    }

    /// Combines the updates with the tensor.
    fn combine(&self, builder: &mut Builder, x: ValueId, mode: &str) -> ValueResult {
        self.combined(builder, x, self.updates, mode, 0)
    }

    /// Like [`Scatter::combine`], for tensors whose axes before `from` already have the size of the indices.
    fn combined(
        &self,
        builder: &mut Builder,
        x: ValueId,
        updates: ValueId,
        mode: &str,
        from: usize,
    ) -> ValueResult {
        for at in (from..builder.rank(x)).filter(|&at| at != self.axis) {
            let (found, wanted) =
                (*builder.extents(x).at(at)?, *builder.extents(self.indices).at(at)?);
            if let (Some(found), Some(wanted)) = (found, wanted)
                && wanted < found
            {
                // Core ML requires indices for the full size of other axes, so the rest is left out.
                let range = Range::to(Int::Known(wanted as i64));
                let part = builder.sliced(x, at, range)?;
                let part = self.combined(builder, part, updates, mode, at + 1)?;
                return builder.replaced(x, part, at, range);
            }
        }
        let updates = builder.numeric(updates)?;
        let (indices, axis) = (self.indices, self.axis);
        as_numbers(builder, x, |builder, data| {
            emit!(builder, OpKind::ScatterAlongAxis, data, indices, updates, axis, mode)
        })
    }

    /// Writes a number at every index.
    fn filled(&self, builder: &mut Builder, x: ValueId, value: f64, mode: &str) -> ValueResult {
        let dims = builder.dims(self.indices)?;
        let dtype = builder.dtype(x);
        let values = builder.full(&dims, dtype, value)?;
        self.combined(builder, x, values, mode, 0)
    }
}

/// Removes the axis that was added to a scalar.
pub(super) fn like_self(call: &mut Call<'_, '_>, y: ValueId) -> ValueResult {
    if call.result_tensor(0)?.sizes.is_empty() { call.squeeze(y, &[0]) } else { Ok(y) }
}

fn scatter(call: &mut Call<'_, '_>, mode: &str) -> ValueResult {
    let scatter = Scatter::of(call)?;
    let y = scatter.combine(call, scatter.x, mode)?;
    like_self(call, y)
}

fn scatter_by_name(call: &mut Call<'_, '_>) -> ValueResult {
    match call.text("reduce")? {
        Some("add") => scatter(call, "add"),
        Some("multiply") => scatter(call, "mul"),
        other => {
            refuse!(
                "the reduction `{}` is not supported; expected `add` or `multiply`",
                other.unwrap_or_default()
            )
        }
    }
}

fn scatter_reduce(call: &mut Call<'_, '_>) -> ValueResult {
    let scatter = Scatter::of(call)?;
    let (mode, is_mean) = match call.text("reduce")? {
        Some("sum") => ("add", false),
        Some("mean") => ("add", true),
        Some("prod") => ("mul", false),
        Some("amax") => ("max", false),
        Some("amin") => ("min", false),
        other => refuse!(
            "the reduction `{}` is not supported; expected `sum`, `prod`, `mean`, `amax` or `amin`",
            other.unwrap_or_default()
        ),
    };
    let includes_self = call.flag("include_self")?;
    let dtype = call.dtype(scatter.x);
    let start = if includes_self {
        scatter.x
    } else {
        scatter.filled(call, scatter.x, neutral(mode, dtype), "update")?
    };
    let mut y = scatter.combine(call, start, mode)?;
    if is_mean {
        let dims = call.dims(scatter.x)?;
        let own = call.full(&dims, dtype, f64::from(u8::from(includes_self)))?;
        let mut counts = scatter.filled(call, own, 1.0, "add")?;
        if !includes_self {
            // Elements without updates are kept: their count becomes 1.
            let one = call.scalar_like(counts, 1.0)?;
            counts = call.binary(OpKind::Maximum, counts, one)?;
        }
        let divide = if dtype == DType::Fp32 { OpKind::RealDiv } else { OpKind::FloorDiv };
        y = call.binary(divide, y, counts)?;
    }
    like_self(call, y)
}
