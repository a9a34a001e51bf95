//! Tensors put together.

use coremill_mil::ir::ValueId;
use coremill_mil::ops::OpKind;

use crate::error::{Refusal, refuse};
use crate::lower::builder::{Arg, Builder};
use crate::lower::call::{Call, Results, normalized};
use crate::lower::dtype::core_dtype;
use crate::lower::row::{Row, all};

pub(super) const ROWS: &[Row] = &[all("aten.cat", concatenate), all("aten.stack", stack)];

/// Tensors one after the other along an axis.
pub(crate) fn joined(
    builder: &mut Builder,
    parts: &[ValueId],
    axis: usize,
) -> Result<ValueId, Refusal> {
    if let [only] = parts {
        return Ok(*only);
    }
    builder.emit(
        OpKind::Concat,
        [
            ("values", Arg::from(parts)),
            ("axis", (axis as i32).into()),
            ("interleave", false.into()),
        ],
    )
}

/// Gives what a function makes of the call's tensors, in the type of the result.
fn put_together(
    call: &mut Call<'_, '_>,
    together: impl Fn(&mut Call<'_, '_>, Vec<ValueId>) -> Result<ValueId, Refusal>,
) -> Results {
    let core = core_dtype(call.result_dtype()?)?;
    let mut values = Vec::new();
    for tensor in call.tensors("tensors")? {
        values.push(call.cast(tensor.value, core)?);
    }
    if values.is_empty() {
        refuse!("`tensors` is empty");
    }
    let y = together(call, values)?;
    call.give(y)
}

fn concatenate(call: &mut Call<'_, '_>) -> Results {
    put_together(call, |call, mut values| {
        // Vectors without elements go with tensors of any rank, as torch has always had it.
        let empty = |call: &Call<'_, '_>, value: ValueId| call.extents(value).contains(&Some(0));
        values.retain(|&value| !empty(call, value));
        let Some(&first) = values.first() else {
            refuse!("joins tensors without elements, which Core ML has none of");
        };
        let axis = call.axis("dim", call.rank(first))?;
        joined(call, &values, axis)
    })
}

fn stack(call: &mut Call<'_, '_>) -> Results {
    put_together(call, |call, values| {
        let Some(&first) = values.first() else { refuse!("stacks no tensors") };
        let axis = normalized(call.known_int("dim")?, call.rank(first) + 1)? as i32;
        if let [only] = values[..] {
            return call.expand_dims(only, &[axis]);
        }
        call.emit(OpKind::Stack, [("values", Arg::from(&values[..])), ("axis", axis.into())])
    })
}
