//! Greatest common divisors and least common multiples.

use super::control_flow::looped;
use crate::lower::prelude::*;

pub(crate) const ROWS: &[Row] = &[tensor("aten.gcd", common), tensor("aten.lcm", multiple)];

fn common(call: &mut Call<'_, '_>) -> ValueResult {
    let [x, y] = magnitudes(call)?;
    divisor(call, x, y)
}

/// Magnitudes of both operands, broadcast to a common shape.
fn magnitudes(call: &mut Call<'_, '_>) -> Result<[ValueId; 2]> {
    let mut both = [call.value("self")?, call.value("other")?];
    let sizes = call.broadcast_sizes(&both)?;
    for value in &mut both {
        let integer = call.cast(*value, DType::Int32)?;
        let magnitude = call.unary(OpKind::Abs, integer)?;
        *value = call.expanded(magnitude, &sizes)?;
    }
    Ok(both)
}

/// Euclid's algorithm, iterated until all elements are done.
fn divisor(call: &mut Call<'_, '_>, x: ValueId, y: ValueId) -> ValueResult {
    let carried = [x, y].map(|value| LoweredValue::tensor(value, ScalarType::Int32));
    let pair = |inside: &[LoweredValue]| match inside {
        [LoweredValue::Tensor(x), LoweredValue::Tensor(y)] => Ok([x.value, y.value]),
        _ => refuse!("a loop must carry two tensors"),
    };
    let results = looped(
        call,
        &carried,
        |call, inside| {
            let [_, rest] = pair(&inside)?;
            let axes = (0..call.rank(rest)).collect();
            let largest = call.reduce(OpKind::ReduceMax, rest, &Axes { axes, keep: false })?;
            let goes_on = call.binary(OpKind::Greater, largest, 0)?;
            Ok(Some(Truth::Computed(goes_on).into()))
        },
        |call, inside| {
            let [x, rest] = pair(&inside)?;
            // For finished elements the remainder is 0; a divisor of 1 keeps it 0.
            let both = calc!(all call, "where(rest > 0, rest, x), x % max(rest, 1)", x, rest)?;
            Ok((both as [ValueId; 2])
                .map(|value| LoweredValue::tensor(value, ScalarType::Int32))
                .to_vec())
        },
    )?;
    match results.as_deref().map(pair) {
        Some(results) => Ok(results?[0]),
        None => refuse!("a loop cannot be lowered"),
    }
}

fn multiple(call: &mut Call<'_, '_>) -> ValueResult {
    let [x, y] = magnitudes(call)?;
    let divisor = divisor(call, x, y)?;
    // The multiple of two zeros is zero.
    let z = calc!(call, "floor_div(x, max(divisor, 1)) * y", x, y, divisor)?;
    let result = call.result_dtype()?;
    call.wrapped(z, result)
}
