//! Bitwise operations. Core ML supports none on integers. They are composed of quotients and remainders that round down,
//! which is equivalent to two's complement for negative integers.

use super::operand::{Operand, narrow_range};
use crate::lower::prelude::*;

pub(crate) const ROWS: &[Row] = &[
    tensor("aten.bitwise_and", |call| combine(call, OpKind::LogicalAnd)),
    tensor("aten.bitwise_or", |call| combine(call, OpKind::LogicalOr)),
    tensor("aten.bitwise_xor", |call| combine(call, OpKind::LogicalXor)),
    tensor("aten.bitwise_not", invert),
    tensor("aten.bitwise_left_shift", left_shift),
    tensor("aten.bitwise_right_shift", right_shift),
];

/// Number of bits of an integer type; 64-bit types have 32 here.
fn width(dtype: ScalarType) -> u32 {
    narrow_range(dtype).map_or(32, |(low, high)| (high - low + 1).ilog2())
}

/// Wraps an integer to a type.
fn signed(mask: i64, dtype: ScalarType) -> i32 {
    match narrow_range(dtype) {
        Some((low, high)) => {
            let rest = mask.wrapping_sub(low.into()).rem_euclid(i64::from(high - low) + 1);
            low + rest as i32
        }
        None => mask as i32,
    }
}

fn combine(call: &mut Call<'_, '_>, logic: OpKind) -> ValueResult {
    let names = ["self", "other"];
    let result = call.result_dtype()?;
    match core_dtype(result)? {
        DType::Int32 => {}
        DType::Bool => {
            let [x, y] = call.operands(names)?;
            return call.binary(logic, x, y);
        }
        _ => refuse!("bitwise operations require integers or `bool`s, got `{result}`"),
    }
    let [x, y] = [call.operand("self")?, call.operand("other")?];
    // A constant scalar tensor is treated like a number.
    let (x, mask) = match (one_known(call, x), one_known(call, y)) {
        (_, Some(mask)) => (x, mask),
        (Some(mask), None) => (y, mask),
        (None, None) => {
            let x = call.operand_value(x, DType::Int32)?;
            let y = call.operand_value(y, DType::Int32)?;
            let common = common(call, x, y, result)?;
            return from_common(call, logic, common, [x, y]);
        }
    };
    let x = call.operand_value(x, DType::Int32)?;
    let common = masked(call, x, mask, width(result))?;
    if logic == OpKind::LogicalAnd {
        return Ok(common);
    }
    let mask = call.int_value(Int::Known(signed(mask, result).into()))?;
    // The sum may overflow, but the subtraction brings it back into range.
    from_common(call, logic, common, [x, mask])
}

/// `or` is `x + y − and`, `xor` is `x + y − 2 · and`.
fn from_common(
    builder: &mut Builder,
    logic: OpKind,
    common: ValueId,
    [x, y]: [ValueId; 2],
) -> ValueResult {
    if logic == OpKind::LogicalAnd {
        return Ok(common);
    }
    let sum = builder.binary(OpKind::Add, x, y)?;
    let once = builder.binary(OpKind::Sub, sum, common)?;
    if logic == OpKind::LogicalOr { Ok(once) } else { builder.binary(OpKind::Sub, once, common) }
}

/// The constant integer of an operand, if it is one.
fn one_known(builder: &Builder, operand: Operand) -> Option<i64> {
    match operand {
        Operand::Number(number) => number.known().map(|number| number as i64),
        Operand::Tensor(tensor) if builder.rank(tensor.value) == 0 => {
            builder.folded(tensor.value)?.ints()?.first().copied()
        }
        Operand::Tensor(_) => None,
    }
}

/// `x & mask`. Each run of ones in the mask contributes the bits of `x` below its end minus the bits below its
/// start.
fn masked(builder: &mut Builder, x: ValueId, mask: i64, bits: u32) -> ValueResult {
    let is_one = |bit: u32| bit < bits && mask >> bit.min(63) & 1 == 1;
    let mut total: Option<ValueId> = None;
    let mut bit = 0;
    while bit < bits {
        if !is_one(bit) {
            bit += 1;
            continue;
        }
        let begin = bit;
        while is_one(bit) {
            bit += 1;
        }
        let below_end = below(builder, x, bit, bits)?;
        let run = if begin == 0 {
            below_end
        } else {
            let below_begin = below(builder, x, begin, bits)?;
            builder.binary(OpKind::Sub, below_end, below_begin)?
        };
        total = Some(match total {
            Some(total) => builder.binary(OpKind::Add, total, run)?,
            None => run,
        });
    }
    match total {
        Some(total) => Ok(total),
        None => builder.binary(OpKind::Sub, x, x),
    }
}

/// The lowest `count` bits of a `bits`-wide `x`.
fn below(builder: &mut Builder, x: ValueId, count: u32, bits: u32) -> ValueResult {
    match count {
        _ if count >= bits => Ok(x),
        31 => {
            // 2³¹ is not a 32-bit integer. A negative `x` is replaced by `x + 2³¹`.
            let least = i32::MIN;
            calc!(builder, "is_below = x < 0; where(is_below, x - least, x)", x, least)
        }
        _ => builder.binary(OpKind::Mod, x, 1_i32 << count),
    }
}

/// `x & y`, computed bitwise along an extra axis.
fn common(builder: &mut Builder, x: ValueId, y: ValueId, dtype: ScalarType) -> ValueResult {
    let bits = width(dtype);
    let rank = builder.rank(x).max(builder.rank(y));
    if rank >= 5 {
        refuse!(
            "the bits of a tensor of rank {rank} require one more axis than Core ML's maximum of 5"
        );
    }
    let (in_x, in_y) = (bits_of(builder, x, bits, rank)?, bits_of(builder, y, bits, rank)?);
    let both = builder.binary(OpKind::Mul, in_x, in_y)?;
    let weights: Vec<i32> = (0..bits).map(|bit| signed(1 << bit, dtype)).collect();
    let x = builder.binary(OpKind::Mul, both, weights.as_slice())?;
    emit!(builder, OpKind::ReduceSum, x, axes = [-1], keep_dims = false)
}

/// Splits integers into bits along a new last axis.
fn bits_of(builder: &mut Builder, x: ValueId, bits: u32, rank: usize) -> ValueResult {
    let own = builder.rank(x);
    let x = if own < rank || own == 0 {
        // Aligns the new axis if the ranks differ.
        let axes: Vec<i32> = (0..(rank - own) as i32).chain([rank as i32]).collect();
        builder.expand_dims(x, &axes)?
    } else {
        builder.expand_dims(x, &[-1])?
    };
    let powers: Vec<i32> = (0..bits).map(|bit| 1 << bit.min(30)).collect();
    let mut quotients = builder.binary(OpKind::FloorDiv, x, powers.as_slice())?;
    if bits == 32 {
        // 2³¹ is not a 32-bit integer, so the division takes two steps.
        let mut steps = vec![1; 31];
        steps.push(2);
        quotients = builder.binary(OpKind::FloorDiv, quotients, steps.as_slice())?;
    }
    builder.binary(OpKind::Mod, quotients, 2)
}

fn invert(call: &mut Call<'_, '_>) -> ValueResult {
    let x = call.tensor("self")?;
    let ones = match x.dtype {
        ScalarType::Bool => return call.unary(OpKind::LogicalNot, x.value),
        dtype => signed(-1, dtype),
    };
    call.binary(OpKind::Sub, ones, x.value)
}

/// Operand and amount of a shift.
fn shift(call: &mut Call<'_, '_>) -> Result<(ValueId, Int)> {
    let (x, by) = (call.operand("self")?, call.operand("other")?);
    let result = call.result_dtype()?;
    if core_dtype(result)? != DType::Int32 {
        refuse!("shifts require integers, got `{result}`");
    }
    let x = call.operand_value(x, DType::Int32)?;
    let by = match one_known(call, by) {
        Some(by) => Int::Known(by),
        None => Int::Computed(call.operand_value(by, DType::Int32)?),
    };
    Ok((x, by))
}

fn left_shift(call: &mut Call<'_, '_>) -> ValueResult {
    let (x, by) = shift(call)?;
    let result = call.result_dtype()?;
    let z = match by {
        Int::Known(by) if !(0..i64::from(width(result))).contains(&by) => {
            call.binary(OpKind::Sub, x, x)?
        }
        Int::Known(by) => call.binary(OpKind::Mul, x, 1_i32.wrapping_shl(by as u32))?,
        // Negative exponents result in 0, and powers beyond the width wrap to 0.
        Int::Computed(by) => calc!(call, "factor = 2 ^ by; x * factor", x, by)?,
    };
    call.wrapped(z, result)
}

fn right_shift(call: &mut Call<'_, '_>) -> ValueResult {
    let (x, by) = shift(call)?;
    let (x, last) = match by {
        // Only the sign remains.
        Int::Known(by) if !(0..31).contains(&by) => {
            (call.binary(OpKind::FloorDiv, x, 1 << 30)?, Arg::from(2))
        }
        Int::Known(by) => return call.binary(OpKind::FloorDiv, x, 1_i32 << by),
        Int::Computed(by) => {
            let formula = "by = where(by < 0, 31, by); most = floor_div(x, 2 ^ min(by, 30)); \
                           most, where(by > 30, 2, 1)";
            let [most, last] = calc!(all call, formula, x, by)?;
            (most, last.into())
        }
    };
    call.binary(OpKind::FloorDiv, x, last)
}
