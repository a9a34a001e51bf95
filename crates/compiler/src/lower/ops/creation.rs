//! Creation of tensors: constants, ranges, triangles.

use super::operand::{Operand, scalar};
use crate::lower::int::scalar as int_operand;
use crate::lower::prelude::*;

pub(crate) const ROWS: &[Row] = &[
    tensor("aten.full", |call| of_sizes(call, Fill::Value("fill_value"))),
    tensor("aten.ones", |call| of_sizes(call, Fill::Ones)),
    tensor("{aten.zeros,dim_order_ops._empty_dim_order}", |call| of_sizes(call, Fill::Zeros)),
    tensor("aten.full_like", |call| like(call, Fill::Value("fill_value"))),
    tensor("aten.ones_like", |call| like(call, Fill::Ones)),
    tensor("aten.{zeros_like,empty_like,zero}", |call| like(call, Fill::Zeros)),
    tensor("aten.scalar_tensor", scalar_tensor),
    tensor("aten.{arange,range}", arange),
    tensor("aten.tril", lower_triangle),
    tensor("aten.one_hot", one_hot),
];

/// Fill value of a tensor.
#[derive(Clone, Copy)]
enum Fill {
    Zeros,
    Ones,
    /// The value of an argument.
    Value(&'static str),
}

impl Fill {
    fn operand(self, call: &mut Call<'_, '_>) -> Result<Operand> {
        match self {
            Fill::Zeros => Ok(Operand::Number(Number::ZERO)),
            Fill::Ones => Ok(Operand::Number(Number::ONE)),
            Fill::Value(name) => call.operand(name),
        }
    }
}

fn of_sizes(call: &mut Call<'_, '_>, fill: Fill) -> ValueResult {
    let operand = fill.operand(call)?;
    let sizes = call.int_list("size")?;
    filled(call, operand, |builder, value| builder.filled(&sizes, value))
}

fn like(call: &mut Call<'_, '_>, fill: Fill) -> ValueResult {
    let operand = fill.operand(call)?;
    let x = call.value("self")?;
    filled(call, operand, |builder, value| builder.filled_like(x, value))
}

/// A filled tensor in the result type.
fn filled(
    call: &mut Call<'_, '_>,
    operand: Operand,
    fill: impl Fn(&mut Builder, Constant) -> ValueResult,
) -> ValueResult {
    let result = call.result_dtype()?;
    let dtype = core_dtype(result)?;
    if let Operand::Number(number) = operand
        && let Some(constant) = scalar(dtype, number)?
    {
        let y = fill(call, constant)?;
        return call.wrapped(y, result);
    }
    // A computed value is added to zeros.
    let value =
        call.operand_in(operand, if dtype == DType::Bool { DType::Int32 } else { dtype })?;
    let zero = if dtype == DType::Fp32 { Constant::fp32(0.0) } else { Constant::int32(0) };
    let zeros = fill(call, zero)?;
    let y = call.binary(OpKind::Add, zeros, value)?;
    call.truthful_cast(y, dtype)
}

fn scalar_tensor(call: &mut Call<'_, '_>) -> ValueResult {
    let operand = call.operand("s")?;
    filled(call, operand, |builder, value| builder.filled(&[], value))
}

fn arange(call: &mut Call<'_, '_>) -> ValueResult {
    let start = call.optional_operand("start")?.unwrap_or(Operand::Number(Number::ZERO));
    let step = call.optional_operand("step")?.unwrap_or(Operand::Number(Number::ONE));
    let end = call.operand("end")?;
    let result = core_dtype(call.result_dtype()?)?;
    if let (Some(start), Some(end), Some(step)) = (start.known(), end.known(), step.known()) {
        let inclusive = call.node.target.to_string().contains("aten.range");
        let count = if inclusive {
            ((end - start) / step).floor() + 1.0
        } else {
            ((end - start) / step).ceil()
        };
        return known_range(call, start, step, count, result);
    }
    let integral = [start, end, step]
        .iter()
        .all(|bound| matches!(bound.core(), Ok(DType::Int32 | DType::Bool)));
    let dtype = if integral { DType::Int32 } else { DType::Fp32 };
    let (start, end) = (call.operand_in(start, dtype)?, call.operand_in(end, dtype)?);
    let step = call.operand_in(step, dtype)?;
    emit!(call, OpKind::Range1d, start, end, step)
}

/// Maximum number of elements of a range.
const MAX_RANGE: f64 = (1_u64 << 27) as f64;

fn known_range(
    call: &mut Call<'_, '_>,
    start: f64,
    step: f64,
    count: f64,
    dtype: DType,
) -> ValueResult {
    if !(0.0..=MAX_RANGE).contains(&count) {
        refuse!("a range must have at most {MAX_RANGE} elements, got {count}");
    }
    let count = count as u64;
    let at = |index: u64| start + step * index as f64;
    let bytes: Vec<u8> = if dtype == DType::Fp32 {
        (0..count).flat_map(|index| (at(index) as f32).to_le_bytes()).collect()
    } else {
        let (start, step) = (start as i64, step as i64);
        let last = start as f64 + step as f64 * count as f64;
        int32(start)?;
        int32(last as i64)?;
        let at = |index: u64| (start + step * index as i64) as i32;
        (0..count).flat_map(|index| at(index).to_le_bytes()).collect()
    };
    let dtype = if dtype == DType::Fp32 { DType::Fp32 } else { DType::Int32 };
    Ok(call.constant(Constant::by_size(dtype, &[count], bytes)))
}

/// Elements on and below a diagonal; the rest is zero.
fn lower_triangle(call: &mut Call<'_, '_>) -> ValueResult {
    let x = call.value("self")?;
    let diagonal = call.int("diagonal")?;
    let rank = call.rank(x);
    if rank < 2 {
        refuse!("a triangle requires rank 2 or more, got {rank}");
    }
    // `band_part` always includes the main diagonal.
    if let Int::Known(above @ 0..) = diagonal {
        return emit!(call, OpKind::BandPart, x, lower = -1, upper = int32(above)?);
    }
    let (rows, columns) =
        (call.dim(x, axis_from_end(rank, 2)?)?, call.dim(x, axis_from_end(rank, 1)?)?);
    let row = call.counting(rows)?;
    let row = call.expand_dims(row, &[1])?;
    let column = call.counting(columns)?;
    let offset = call.binary(OpKind::Sub, column, row)?;
    let kept = call.binary(OpKind::LessEqual, offset, int_operand(diagonal)?)?;
    let zero = call.scalar_like(x, 0.0)?;
    call.select(kept, x, zero)
}

fn one_hot(call: &mut Call<'_, '_>) -> ValueResult {
    let x = call.value("self")?;
    let classes = call.int("num_classes")?;
    if classes == Int::Known(-1) {
        return Err(LoweringError::new(
            "`one_hot` derives the number of classes from its largest index, which \
             is not known before the program runs",
        )
        .hint("pass `num_classes`"));
    }
    let one_hot_vector_size = call.int_value(classes)?;
    let indices = call.with_axes(x)?;
    let y = emit!(
        call,
        OpKind::OneHot,
        indices,
        one_hot_vector_size,
        axis = -1,
        on_value = 1,
        off_value = 0,
    )?;
    if call.rank(x) == 0 { call.squeeze(y, &[0]) } else { Ok(y) }
}
