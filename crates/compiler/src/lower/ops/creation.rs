//! Tensors out of nothing: constants, ranges, triangles.

use coremill_mil::ir::{Constant, Opset, ValueId};
use coremill_mil::ops::OpKind;
use coremill_tensor::DType;

use super::operand::{Operand, scalar};
use crate::bounds::back;
use crate::error::{Refusal, refuse};
use crate::lower::builder::{Arg, Builder, int32};
use crate::lower::call::{Call, Results};
use crate::lower::dtype::core_dtype;
use crate::lower::row::{Row, all};
use crate::lower::value::{Int, Number};

pub(crate) const ROWS: &[Row] = &[
    all("aten.full", |call| of_sizes(call, Fill::Value("fill_value"))),
    all("aten.zeros", |call| of_sizes(call, Fill::Zeros)),
    all("aten.ones", |call| of_sizes(call, Fill::Ones)),
    all("dim_order_ops._empty_dim_order", |call| of_sizes(call, Fill::Zeros)),
    all("aten.full_like", |call| like(call, Fill::Value("fill_value"))),
    all("aten.zeros_like", |call| like(call, Fill::Zeros)),
    all("aten.ones_like", |call| like(call, Fill::Ones)),
    all("aten.empty_like", |call| like(call, Fill::Zeros)),
    all("aten.zero", |call| like(call, Fill::Zeros)),
    all("aten.scalar_tensor", scalar_tensor),
    all("aten.arange", arange),
    all("aten.range", arange),
    all("aten.tril", |call| triangle(call, true)),
    all("aten.one_hot", one_hot),
];

/// What a tensor is filled with.
#[derive(Clone, Copy)]
enum Fill {
    Zeros,
    Ones,
    /// What the argument of that name says.
    Value(&'static str),
}

impl Fill {
    fn operand(self, call: &mut Call<'_, '_>) -> Result<Operand, Refusal> {
        match self {
            Fill::Zeros => Ok(Operand::Number(Number::Int(Int::Known(0)))),
            Fill::Ones => Ok(Operand::Number(Number::Int(Int::Known(1)))),
            Fill::Value(name) => call.operand(name),
        }
    }
}

fn of_sizes(call: &mut Call<'_, '_>, fill: Fill) -> Results {
    let operand = fill.operand(call)?;
    let sizes = call.int_list("size")?;
    filled(call, operand, |builder, value| builder.filled(&sizes, value))
}

fn like(call: &mut Call<'_, '_>, fill: Fill) -> Results {
    let operand = fill.operand(call)?;
    let x = call.tensor("self")?.value;
    filled(call, operand, |builder, value| builder.filled_like(x, value))
}

/// A filled tensor of the type of the result.
fn filled(
    call: &mut Call<'_, '_>,
    operand: Operand,
    fill: impl Fn(&mut Builder, Constant) -> Result<ValueId, Refusal>,
) -> Results {
    let result = call.result_dtype()?;
    let dtype = core_dtype(result)?;
    if let Operand::Number(number) = operand
        && let Some(constant) = scalar(dtype, number)?
    {
        let y = fill(call, constant)?;
        let y = call.wrapped(y, result)?;
        return call.give(y);
    }
    // A computed value spreads over zeros.
    let value =
        call.operand_in(operand, if dtype == DType::Bool { DType::Int32 } else { dtype })?;
    let zero = if dtype == DType::Fp32 { Constant::fp32(0.0) } else { Constant::int32(0) };
    let zeros = fill(call, zero)?;
    let y = call.binary(OpKind::Add, zeros, value)?;
    let y = call.truthful_cast(y, dtype)?;
    call.give(y)
}

impl Builder {
    /// A tensor of these sizes with the same element everywhere.
    pub(crate) fn filled(&mut self, sizes: &[Int], value: Constant) -> Result<ValueId, Refusal> {
        if sizes.is_empty() {
            return Ok(self.constant(value));
        }
        let shape = self.ints(sizes)?;
        let filled = self.emit(OpKind::Fill, [("shape", shape), ("value", value.into())])?;
        self.note_dims(filled, sizes);
        Ok(filled)
    }

    /// A tensor of the sizes of another with the same element everywhere.
    pub(crate) fn filled_like(&mut self, x: ValueId, value: Constant) -> Result<ValueId, Refusal> {
        if let Some(shape) = self.fixed_shape(x) {
            let sizes: Vec<_> = shape.iter().map(|&extent| Int::Known(extent as i64)).collect();
            return self.filled(&sizes, value);
        }
        if self.opset() >= Opset::Ios16 {
            return self
                .emit(OpKind::FillLike, [("ref_tensor", x.into()), ("value", value.into())]);
        }
        let shape = self.emit(OpKind::Shape, [("x", x.into())])?;
        self.emit(OpKind::Fill, [("shape", shape.into()), ("value", value.into())])
    }

    /// The integers from 0 up to a size.
    pub(crate) fn counting(&mut self, size: Int) -> Result<ValueId, Refusal> {
        let end: Arg = match size {
            Int::Known(size) => int32(size)?.into(),
            Int::Computed(size) => size.into(),
        };
        self.emit(OpKind::Range1d, [("start", 0.into()), ("end", end), ("step", 1.into())])
    }
}

fn scalar_tensor(call: &mut Call<'_, '_>) -> Results {
    let operand = call.operand("s")?;
    filled(call, operand, |builder, value| builder.filled(&[], value))
}

fn arange(call: &mut Call<'_, '_>) -> Results {
    let zero = Operand::Number(Number::Int(Int::Known(0)));
    let one = Operand::Number(Number::Int(Int::Known(1)));
    let start = call.optional_operand("start")?.unwrap_or(zero);
    let step = call.optional_operand("step")?.unwrap_or(one);
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
    let y = call.emit(OpKind::Range1d, [("start", start), ("end", end), ("step", step)])?;
    call.give(y)
}

/// More elements than this no program counts through.
const MAX_RANGE: f64 = (1_u64 << 27) as f64;

fn known_range(
    call: &mut Call<'_, '_>,
    start: f64,
    step: f64,
    count: f64,
    dtype: DType,
) -> Results {
    if !(0.0..=MAX_RANGE).contains(&count) {
        refuse!("a range of {count} elements is none; up to {MAX_RANGE} are accepted");
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
    let y = call.constant(Constant::by_size(dtype, &[count], bytes));
    call.give(y)
}

/// The numbers of the rows as a column, and those of the columns.
fn row_and_column(
    builder: &mut Builder,
    rows: Int,
    columns: Int,
) -> Result<(ValueId, ValueId), Refusal> {
    let row = builder.counting(rows)?;
    let row = builder.expand_dims(row, &[1])?;
    Ok((row, builder.counting(columns)?))
}

/// What is on one side of a diagonal; the rest is zero.
fn triangle(call: &mut Call<'_, '_>, lower: bool) -> Results {
    let x = call.tensor("self")?.value;
    let diagonal = call.int("diagonal")?;
    let rank = call.rank(x);
    if rank < 2 {
        refuse!("a triangle is of a matrix, found rank {rank}");
    }
    // One band reaches from a corner to the diagonal only if the main diagonal is in it.
    let band = match (lower, diagonal) {
        (true, Int::Known(diagonal @ 0..)) => Some((-1, diagonal)),
        (false, Int::Known(diagonal @ ..=0)) => Some((-diagonal, -1)),
        _ => None,
    };
    let y = match band {
        Some((below, above)) => call.emit(
            OpKind::BandPart,
            [("x", x.into()), ("lower", int32(below)?.into()), ("upper", int32(above)?.into())],
        )?,
        None => {
            let (rows, columns) = (call.dim(x, back(rank, 2)?)?, call.dim(x, back(rank, 1)?)?);
            let (row, column) = row_and_column(call, rows, columns)?;
            let offset = call.binary(OpKind::Sub, column, row)?;
            let diagonal: Arg = match diagonal {
                Int::Known(diagonal) => int32(diagonal)?.into(),
                Int::Computed(diagonal) => diagonal.into(),
            };
            let kind = if lower { OpKind::LessEqual } else { OpKind::GreaterEqual };
            let kept = call.binary(kind, offset, diagonal)?;
            let zero = call.scalar_like(x, 0.0)?;
            call.select(kept, x, zero)?
        }
    };
    call.give(y)
}

fn one_hot(call: &mut Call<'_, '_>) -> Results {
    let x = call.tensor("self")?.value;
    let classes = call.int("num_classes")?;
    if classes == Int::Known(-1) {
        return Err(Refusal::new(
            "`one_hot` counts its classes by the largest of its indices, which \
             is not known before the program runs",
        )
        .hint("pass `num_classes`"));
    }
    let size = call.int_value(classes)?;
    let rank = call.rank(x);
    let indices = if rank == 0 { call.expand_dims(x, &[0])? } else { x };
    let y = call.emit(
        OpKind::OneHot,
        [
            ("indices", indices.into()),
            ("one_hot_vector_size", size.into()),
            ("axis", (-1).into()),
            ("on_value", 1.into()),
            ("off_value", 0.into()),
        ],
    )?;
    let y = if rank == 0 { call.squeeze(y, &[0])? } else { y };
    call.give(y)
}
