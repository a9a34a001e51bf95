//! Common divisors and multiples of whole numbers.

use coremill_mil::ir::ValueId;
use coremill_mil::ops::OpKind;
use coremill_pt2::ScalarType;
use coremill_tensor::DType;

use super::control_flow::looped;
use super::reduction::Axes;
use super::shape::{broadcast_sizes, expanded};
use crate::error::{Refusal, refuse};
use crate::lower::call::{Call, Results};
use crate::lower::row::{Row, all};
use crate::lower::value::{Lowered, Truth};

pub(crate) const ROWS: &[Row] = &[
    all("aten.gcd", |call| {
        let [x, y] = magnitudes(call)?;
        let z = divisor(call, x, y)?;
        call.give(z)
    }),
    all("aten.lcm", multiple),
];

/// Both operands without signs and in the same sizes.
fn magnitudes(call: &mut Call<'_, '_>) -> Result<[ValueId; 2], Refusal> {
    let mut both = [call.tensor("self")?.value, call.tensor("other")?.value];
    let sizes = broadcast_sizes(call, &both)?;
    for value in &mut both {
        let integer = call.cast(*value, DType::Int32)?;
        let magnitude = call.unary(OpKind::Abs, integer)?;
        *value = expanded(call, magnitude, &sizes)?;
    }
    Ok(both)
}

/// Euclid's algorithm, until it has ended for all elements.
fn divisor(call: &mut Call<'_, '_>, x: ValueId, y: ValueId) -> Result<ValueId, Refusal> {
    let carried = [x, y].map(|value| Lowered::tensor(value, ScalarType::Int32));
    let pair = |inside: &[Lowered]| match inside {
        [Lowered::Tensor(x), Lowered::Tensor(y)] => Ok([x.value, y.value]),
        _ => refuse!("a loop carries other than two tensors"),
    };
    let results = looped(
        call,
        &carried,
        |call, inside| {
            let [_, rest] = pair(&inside)?;
            let axes = (0..call.rank(rest)).collect();
            let largest = call.reduce(OpKind::ReduceMax, rest, &Axes { axes, keep: false })?;
            let goes_on = call.binary(OpKind::Greater, largest, 0)?;
            Ok(Some(Lowered::Bool(Truth::Computed(goes_on))))
        },
        |call, inside| {
            let [x, rest] = pair(&inside)?;
            let goes_on = call.binary(OpKind::Greater, rest, 0)?;
            let next = call.select(goes_on, rest, x)?;
            // Where it has ended the rest is 0, and remains so if it divides by 1.
            let divisor = call.binary(OpKind::Maximum, rest, 1)?;
            let rest = call.binary(OpKind::Mod, x, divisor)?;
            Ok([next, rest].map(|value| Lowered::tensor(value, ScalarType::Int32)).to_vec())
        },
    )?;
    match results.as_deref().map(pair) {
        Some(results) => Ok(results?[0]),
        None => refuse!("a loop was refused"),
    }
}

fn multiple(call: &mut Call<'_, '_>) -> Results {
    let [x, y] = magnitudes(call)?;
    let divisor = divisor(call, x, y)?;
    // Of two zeros it is zero.
    let divisor = call.binary(OpKind::Maximum, divisor, 1)?;
    let share = call.binary(OpKind::FloorDiv, x, divisor)?;
    let z = call.binary(OpKind::Mul, share, y)?;
    let result = call.result_dtype()?;
    let z = call.wrapped(z, result)?;
    call.give(z)
}
