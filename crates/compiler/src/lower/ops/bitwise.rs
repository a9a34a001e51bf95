//! Bitwise operations. Core ML has none on integers; they are put together from quotients and rests, which
//! round down, and therefore treat a negative integer as its two's complement has it.

use coremill_mil::ir::{Constant, ValueId};
use coremill_mil::ops::OpKind;
use coremill_pt2::ScalarType;
use coremill_tensor::DType;

use super::operand::Operand;
use crate::error::{Refusal, refuse};
use crate::lower::builder::Builder;
use crate::lower::call::{Call, Results};
use crate::lower::dtype::core_dtype;
use crate::lower::row::{Row, all};

pub(crate) const ROWS: &[Row] = &[
    all("aten.bitwise_and", |call| combine(call, Logic::And)),
    all("aten.bitwise_or", |call| combine(call, Logic::Or)),
    all("aten.bitwise_xor", |call| combine(call, Logic::Xor)),
    all("aten.__and__", |call| combine(call, Logic::And)),
    all("aten.__or__", |call| combine(call, Logic::Or)),
    all("aten.__xor__", |call| combine(call, Logic::Xor)),
    all("aten.bitwise_not", invert),
    all("aten.bitwise_left_shift", left_shift),
    all("aten.bitwise_right_shift", right_shift),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Logic {
    And,
    Or,
    Xor,
}

/// How many bits an integer has; those of 64 have 32 here.
fn width(dtype: ScalarType) -> u32 {
    match dtype {
        ScalarType::UInt8 | ScalarType::Int8 => 8,
        ScalarType::Int16 | ScalarType::UInt16 => 16,
        _ => 32,
    }
}

fn combine(call: &mut Call<'_, '_>, logic: Logic) -> Results {
    let (x, y) = (call.operand("self")?, call.operand("other")?);
    let result = call.result_dtype()?;
    if core_dtype(result)? == DType::Bool {
        let (x, y) = (call.operand_in(x, DType::Bool)?, call.operand_in(y, DType::Bool)?);
        let kind = match logic {
            Logic::And => OpKind::LogicalAnd,
            Logic::Or => OpKind::LogicalOr,
            Logic::Xor => OpKind::LogicalXor,
        };
        let z = call.binary(kind, x, y)?;
        return call.give(z);
    }
    if core_dtype(result)? != DType::Int32 {
        refuse!("bitwise operations are of integers and `bool`s, found `{result}`");
    }
    // A tensor of one element that is known is as good as a number.
    let (x, y) = (one_known(call, x), one_known(call, y));
    let (tensor, mask) = match (x, y) {
        (_, Some(mask)) => (call.operand("self")?, mask),
        (Some(mask), None) => (call.operand("other")?, mask),
        (None, None) => return combine_tensors(call, logic, result),
    };
    let bits = width(result);
    let tensor = call.operand_value(tensor, DType::Int32)?;
    let common = masked(call, tensor, mask, bits)?;
    let mask = signed(mask, result);
    let z = from_common(call, logic, common, |call| {
        let mask = call.constant(Constant::int32(mask));
        call.binary(OpKind::Add, tensor, mask)
    })?;
    // The sum of both can leave the range, but what is subtracted from it brings it back.
    call.give(z)
}

/// `or` is `x + y − and`, `xor` is `x + y − 2 · and`.
fn from_common(
    call: &mut Call<'_, '_>,
    logic: Logic,
    common: ValueId,
    sum: impl Fn(&mut Builder) -> Result<ValueId, Refusal>,
) -> Result<ValueId, Refusal> {
    if logic == Logic::And {
        return Ok(common);
    }
    let sum = sum(call)?;
    let once = call.binary(OpKind::Sub, sum, common)?;
    match logic {
        Logic::Xor => call.binary(OpKind::Sub, once, common),
        _ => Ok(once),
    }
}

/// The integer that an operand is, if it is one that is known.
fn one_known(call: &Call<'_, '_>, operand: Operand) -> Option<i64> {
    match operand {
        Operand::Number(number) => number.known().map(|number| number as i64),
        Operand::Tensor(tensor) if call.rank(tensor.value) == 0 => {
            let ints = call.folded(tensor.value)?.ints()?;
            ints.first().copied()
        }
        Operand::Tensor(_) => None,
    }
}

/// A mask as an integer of a type has it.
fn signed(mask: i64, dtype: ScalarType) -> i32 {
    match dtype {
        ScalarType::UInt8 => i32::from(mask as u8),
        ScalarType::Int8 => i32::from(mask as i8),
        ScalarType::Int16 => i32::from(mask as i16),
        ScalarType::UInt16 => i32::from(mask as u16),
        _ => mask as i32,
    }
}

/// `x & mask`: for each run of ones in the mask, what `x` leaves below its end without what it leaves below
/// its begin.
fn masked(builder: &mut Builder, x: ValueId, mask: i64, bits: u32) -> Result<ValueId, Refusal> {
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

/// The lowest `count` of the `bits` bits of `x`.
fn below(builder: &mut Builder, x: ValueId, count: u32, bits: u32) -> Result<ValueId, Refusal> {
    match count {
        _ if count >= bits => Ok(x),
        31 => {
            // 2³¹ is not an integer of 32 bits: a negative `x` is 2³¹ above what is left of it.
            let negative = builder.binary(OpKind::Less, x, 0)?;
            let lifted = builder.binary(OpKind::Sub, x, i32::MIN)?;
            builder.select(negative, lifted, x)
        }
        _ => builder.binary(OpKind::Mod, x, 1_i32 << count),
    }
}

/// Both are taken apart into bits along an axis of their own.
fn combine_tensors(call: &mut Call<'_, '_>, logic: Logic, result: ScalarType) -> Results {
    let (x, y) = (call.operand("self")?, call.operand("other")?);
    let (x, y) = (call.operand_value(x, DType::Int32)?, call.operand_value(y, DType::Int32)?);
    let bits = width(result);
    let rank = call.rank(x).max(call.rank(y));
    if rank >= 5 {
        refuse!("bits of tensors of rank {rank} would need one axis more than the 5 of Core ML");
    }
    let (in_x, in_y) = (bits_of(call, x, bits, rank)?, bits_of(call, y, bits, rank)?);
    let common = call.binary(OpKind::Mul, in_x, in_y)?;
    let weights: Vec<i32> = (0..bits)
        .map(|bit| {
            let weight = 1_i64 << bit;
            let is_sign =
                bit + 1 == bits && !matches!(result, ScalarType::UInt8 | ScalarType::UInt16);
            (if is_sign { -weight } else { weight }) as i32
        })
        .collect();
    let common = call.binary(OpKind::Mul, common, weights.as_slice())?;
    let common = call.emit(
        OpKind::ReduceSum,
        [("x", common.into()), ("axes", [-1].into()), ("keep_dims", false.into())],
    )?;
    let z = from_common(call, logic, common, |call| call.binary(OpKind::Add, x, y))?;
    call.give(z)
}

/// The bits of integers along an axis at the end.
fn bits_of(builder: &mut Builder, x: ValueId, bits: u32, rank: usize) -> Result<ValueId, Refusal> {
    let own = builder.rank(x);
    let x = if own < rank || own == 0 {
        // An axis at the end of the shorter one would not meet the same axis of the other.
        let axes: Vec<i32> = (0..(rank - own) as i32).chain([rank as i32]).collect();
        builder.expand_dims(x, &axes)?
    } else {
        builder.expand_dims(x, &[-1])?
    };
    let powers: Vec<i32> = (0..bits).map(|bit| 1 << bit.min(30)).collect();
    let mut quotients = builder.binary(OpKind::FloorDiv, x, powers.as_slice())?;
    if bits == 32 {
        // 2³¹ is not an integer of 32 bits; it is divided by in two steps.
        let mut steps = vec![1; 31];
        steps.push(2);
        quotients = builder.binary(OpKind::FloorDiv, quotients, steps.as_slice())?;
    }
    builder.binary(OpKind::Mod, quotients, 2)
}

fn invert(call: &mut Call<'_, '_>) -> Results {
    let x = call.tensor("self")?;
    let z = match x.dtype {
        ScalarType::Bool => call.unary(OpKind::LogicalNot, x.value)?,
        ScalarType::UInt8 => call.binary(OpKind::Sub, 255, x.value)?,
        ScalarType::UInt16 => call.binary(OpKind::Sub, 65535, x.value)?,
        _ => call.binary(OpKind::Sub, -1, x.value)?,
    };
    call.give(z)
}

/// How far is shifted: a number, or a tensor.
enum Shift {
    Known(i64),
    Computed(ValueId),
}

fn shift(call: &mut Call<'_, '_>) -> Result<(ValueId, Shift), Refusal> {
    let (x, by) = (call.operand("self")?, call.operand("other")?);
    let result = call.result_dtype()?;
    if core_dtype(result)? != DType::Int32 {
        refuse!("shifts are of integers, found `{result}`");
    }
    let x = call.operand_value(x, DType::Int32)?;
    let by = match one_known(call, by) {
        Some(by) => Shift::Known(by),
        None => Shift::Computed(call.operand_value(by, DType::Int32)?),
    };
    Ok((x, by))
}

fn left_shift(call: &mut Call<'_, '_>) -> Results {
    let (x, by) = shift(call)?;
    let result = call.result_dtype()?;
    let bits = width(result);
    let z = match by {
        Shift::Known(by) if by < 0 || by >= i64::from(bits) => call.binary(OpKind::Sub, x, x)?,
        Shift::Known(by) => call.binary(OpKind::Mul, x, 1_i32.wrapping_shl(by as u32))?,
        // Powers of negative exponents lose all, and those beyond the width wrap to nothing.
        Shift::Computed(by) => {
            let factor = call.binary(OpKind::Pow, 2, by)?;
            call.binary(OpKind::Mul, x, factor)?
        }
    };
    let z = call.wrapped(z, result)?;
    call.give(z)
}

fn right_shift(call: &mut Call<'_, '_>) -> Results {
    let (x, by) = shift(call)?;
    let z = match by {
        // Only the sign is left.
        Shift::Known(by) if !(0..31).contains(&by) => {
            let most = call.binary(OpKind::FloorDiv, x, 1 << 30)?;
            call.binary(OpKind::FloorDiv, most, 2)?
        }
        Shift::Known(by) => call.binary(OpKind::FloorDiv, x, 1_i32 << by)?,
        Shift::Computed(by) => {
            let negative = call.binary(OpKind::Less, by, 0)?;
            let by = call.select(negative, 31, by)?;
            let first = call.binary(OpKind::Minimum, by, 30)?;
            let divisor = call.binary(OpKind::Pow, 2, first)?;
            let most = call.binary(OpKind::FloorDiv, x, divisor)?;
            let beyond = call.binary(OpKind::Greater, by, 30)?;
            let divisor = call.select(beyond, 2, 1)?;
            call.binary(OpKind::FloorDiv, most, divisor)?
        }
    };
    call.give(z)
}
