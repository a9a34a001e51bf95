//! Elements written where indices beside the tensor say.

use coremill_mil::ir::ValueId;
use coremill_mil::ops::OpKind;
use coremill_tensor::DType;

use super::as_numbers;
use crate::bounds::At;
use crate::error::{Refusal, refuse};
use crate::lower::builder::Builder;
use crate::lower::call::{Call, Results};
use crate::lower::ops::shape::{Range, full, replaced, sliced};
use crate::lower::row::{Row, all, some};
use crate::lower::value::Int;

pub(super) const ROWS: &[Row] = &[
    some("aten.scatter", &["src", "value"], |call| scatter(call, "update")),
    some("aten.scatter", &["reduce", "value_reduce"], scatter_by_name),
    all("aten.scatter_add", |call| scatter(call, "add")),
    some("aten.scatter_reduce", &["two"], scatter_reduce),
];

/// What changes nothing when it is combined.
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

/// What a scatter takes, all of rank 1 at least.
struct Scatter {
    x: ValueId,
    indices: ValueId,
    updates: ValueId,
    axis: usize,
}

impl Scatter {
    fn of(call: &mut Call<'_, '_>) -> Result<Scatter, Refusal> {
        let x = call.tensor("self")?.value;
        let indices = call.tensor("index")?.value;
        let mut all = [x, indices, x];
        let dtype = call.dtype(x);
        all[2] = if call.has("src") {
            let source = call.tensor("src")?.value;
            call.cast(source, dtype)?
        } else {
            let value = call.float("value")?;
            let dims = call.dims(indices)?;
            full(call, &dims, dtype, value)?
        };
        for value in &mut all {
            if call.rank(*value) == 0 {
                *value = call.expand_dims(*value, &[0])?;
            }
        }
        let [x, indices, mut updates] = all;
        let ranks = [x, indices, updates].map(|value| call.rank(value));
        if ranks != [ranks[0]; 3] {
            refuse!("`self`, `index` and the updates have ranks {ranks:?}; they must be the same");
        }
        let axis = call.axis("dim", call.rank(x))?;
        // More updates than indices are not looked at.
        for at in 0..call.rank(indices) {
            let wanted = call.dim(indices, at)?;
            if wanted.known().is_some()
                && !call.is_extent(&call.shape(updates).at(at)?.clone(), wanted)
            {
                updates = sliced(call, updates, at, Range::to(wanted))?;
            }
        }
        Ok(Scatter { x, indices, updates, axis })
    }

    /// The tensor with the updates combined with it.
    fn combine(&self, builder: &mut Builder, x: ValueId, mode: &str) -> Result<ValueId, Refusal> {
        self.combined(builder, x, self.updates, mode, 0)
    }

    /// As [`Scatter::combine`], where the axes before `from` have as many indices as elements.
    fn combined(
        &self,
        builder: &mut Builder,
        x: ValueId,
        updates: ValueId,
        mode: &str,
        from: usize,
    ) -> Result<ValueId, Refusal> {
        for at in (from..builder.rank(x)).filter(|&at| at != self.axis) {
            let (found, wanted) =
                (*builder.extents(x).at(at)?, *builder.extents(self.indices).at(at)?);
            if let (Some(found), Some(wanted)) = (found, wanted)
                && wanted < found
            {
                // Core ML wants indices for all; what has none stays out of it.
                let range = Range::to(Int::Known(wanted as i64));
                let part = sliced(builder, x, at, range)?;
                let part = self.combined(builder, part, updates, mode, at + 1)?;
                return replaced(builder, x, part, at, range);
            }
        }
        let updates = match builder.dtype(updates) {
            DType::Bool => builder.cast(updates, DType::Int32)?,
            _ => updates,
        };
        as_numbers(builder, x, |builder, x| {
            builder.emit(
                OpKind::ScatterAlongAxis,
                [
                    ("data", x.into()),
                    ("indices", self.indices.into()),
                    ("updates", updates.into()),
                    ("axis", (self.axis as i32).into()),
                    ("mode", mode.into()),
                ],
            )
        })
    }

    /// The tensor with a number written wherever an index leads.
    fn filled(
        &self,
        builder: &mut Builder,
        x: ValueId,
        value: f64,
        mode: &str,
    ) -> Result<ValueId, Refusal> {
        let dims = builder.dims(self.indices)?;
        let dtype = builder.dtype(x);
        let values = full(builder, &dims, dtype, value)?;
        self.combined(builder, x, values, mode, 0)
    }
}

fn give(call: &mut Call<'_, '_>, y: ValueId) -> Results {
    let is_scalar = call.result_tensor(0)?.sizes.is_empty();
    let y = if is_scalar { call.squeeze(y, &[0])? } else { y };
    call.give(y)
}

fn scatter(call: &mut Call<'_, '_>, mode: &str) -> Results {
    let scatter = Scatter::of(call)?;
    let y = scatter.combine(call, scatter.x, mode)?;
    give(call, y)
}

fn scatter_by_name(call: &mut Call<'_, '_>) -> Results {
    match call.text("reduce")? {
        Some("add") => scatter(call, "add"),
        Some("multiply") => scatter(call, "mul"),
        other => {
            refuse!("reduces by `{}`; accepted are `add` and `multiply`", other.unwrap_or_default())
        }
    }
}

fn scatter_reduce(call: &mut Call<'_, '_>) -> Results {
    let scatter = Scatter::of(call)?;
    let (mode, is_mean) = match call.text("reduce")? {
        Some("sum") => ("add", false),
        Some("mean") => ("add", true),
        Some("prod") => ("mul", false),
        Some("amax") => ("max", false),
        Some("amin") => ("min", false),
        other => refuse!(
            "reduces by `{}`; accepted are `sum`, `prod`, `mean`, `amax` and `amin`",
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
        let own = full(call, &dims, dtype, f64::from(u8::from(includes_self)))?;
        let mut counts = scatter.filled(call, own, 1.0, "add")?;
        if !includes_self {
            // Where nothing was written the element stays, as if it were the mean of one.
            let one = call.scalar_like(counts, 1.0)?;
            counts = call.binary(OpKind::Maximum, counts, one)?;
        }
        let divide = if dtype == DType::Fp32 { OpKind::RealDiv } else { OpKind::FloorDiv };
        y = call.binary(divide, y, counts)?;
    }
    give(call, y)
}
