//! Quantization. Activations use Core ML's operations if the target has them, weights become constants that are
//! stored quantized, and everything else becomes arithmetic.

use coremill_mil::ir::Definition;
use coremill_tensor::LazyTensor;

use super::operand::{Operand, narrow_range};
use crate::lower::prelude::*;
use crate::lower::value::{CompressedTensor, Meaning};

pub(crate) const ROWS: &[Row] = &[
    tensor("quantized_decomposed.quantize_per_{tensor,channel,channel_group,token}", quantize),
    tensor("quantized_decomposed.dequantize_per_{tensor,channel,channel_group,token}", dequantize),
    tensor("torchao.quantize_affine", quantize),
    tensor("torchao.dequantize_affine", dequantize),
    several("torchao.choose_qparams_affine", choose_parameters),
    several("quantized_decomposed.choose_qparams", |call| choose_for_all(call, false)),
    several("quantized_decomposed.choose_qparams_symmetric", |call| choose_for_all(call, true)),
    several("quantized_decomposed.choose_qparams_per_token", choose_for_tokens),
    several("quantized_decomposed.choose_qparams_per_token_asymmetric", choose_for_uneven_tokens),
    several(
        "quantized_decomposed._choose_qparams_per_token_asymmetric_impl",
        choose_for_uneven_tokens,
    ),
    tensor("quant.dequantize_codebook", dequantize_codebook),
    several("quantized_decomposed.fake_quant_per_channel", fake),
    several("aten.fake_quantize_per_{tensor,channel}_affine{,_cachemask}", fake),
    several("aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams", fake),
];

/// Quantization scheme: `element = scale · (integer − zero point)`.
struct Scheme {
    x: ValueId,
    scale: ValueId,
    zero_point: Option<ValueId>,
    /// Block size along each axis; a block shares a scale.
    blocks: Vec<u64>,
    low: i64,
    high: i64,
}

/// The tensor to quantize or dequantize.
fn operand(call: &mut Call<'_, '_>) -> ValueResult {
    let name = if call.node.argument("input").is_some() { "input" } else { "self" };
    call.value(name)
}

/// Zero points: integers, or floats if torch has floats.
fn zero_points(call: &mut Call<'_, '_>, name: &str) -> ValueResult {
    let operand = call.operand(name)?;
    let dtype = match operand {
        Operand::Tensor(tensor) if is_float(tensor.dtype) => DType::Fp32,
        _ => DType::Int32,
    };
    call.operand_value(operand, dtype)
}

/// An explicit bound, or the bound of the integer type.
fn bound(call: &mut Call<'_, '_>, name: &str, default: i64) -> Result<i64> {
    if !call.has(name) {
        return Ok(default);
    }
    let bound = call.operand(name)?;
    let known = match bound {
        Operand::Tensor(tensor) => {
            call.folded(tensor.value).and_then(|folded| folded.only()?.int())
        }
        number => number.known().map(|number| number as i64),
    };
    known
        .ok_or_else(|| LoweringError::new(format!("`{name}` is not known before the program runs")))
}

/// Range of the integers: explicit bounds, or the bounds of their type.
fn range(call: &mut Call<'_, '_>, dtype: Option<ScalarType>) -> Result<(i64, i64)> {
    let (low, high) = dtype.and_then(narrow_range).unwrap_or((i32::MIN, i32::MAX));
    Ok((bound(call, "quant_min", low.into())?, bound(call, "quant_max", high.into())?))
}

/// Scale, zero point and axis.
type Native = (ValueId, Option<ValueId>, Option<i32>);

impl Scheme {
    /// The scheme that the operator's name selects.
    fn of(call: &mut Call<'_, '_>) -> Result<Scheme> {
        match call.node.target.name() {
            name if name.contains("per_tensor") => Scheme::tensor(call),
            name if name.contains("per_channel_group") => Scheme::groups(call),
            name if name.contains("per_channel") => Scheme::channels(call),
            name if name.contains("per_token") => Scheme::tokens(call),
            _ => Scheme::blocks(call),
        }
    }

    fn new(
        call: &mut Call<'_, '_>,
        scale: &str,
        zero_point: &str,
        blocks: Vec<u64>,
    ) -> Result<Scheme> {
        let x = operand(call)?;
        let scale = call.operand(scale)?;
        let scale = call.operand_value(scale, DType::Fp32)?;
        let zero_point = match call.has(zero_point) {
            true => Some(zero_points(call, zero_point)?),
            false => None,
        };
        let dtype = ["dtype", "input_dtype", "output_dtype"]
            .iter()
            .find(|name| call.node.argument(name).is_some())
            .and_then(|name| call.scalar_type(name).ok().flatten());
        let (low, high) = range(call, dtype)?;
        Ok(Scheme { x, scale, zero_point, blocks, low, high })
    }

    /// Static sizes of the operand.
    fn extents(call: &mut Call<'_, '_>) -> Result<Vec<Option<u64>>> {
        let x = operand(call)?;
        Ok(call.extents(x))
    }

    /// One scale for the whole tensor.
    fn tensor(call: &mut Call<'_, '_>) -> Result<Scheme> {
        let extents = Scheme::extents(call)?;
        let blocks = extents.iter().map(|extent| extent.unwrap_or(0)).collect();
        Scheme::new(call, "scale", "zero_point", blocks)
    }

    /// One scale per index of an axis.
    fn channels(call: &mut Call<'_, '_>) -> Result<Scheme> {
        let extents = Scheme::extents(call)?;
        let axis = call.axis("axis", extents.len())?;
        let mut blocks: Vec<_> = extents.iter().map(|extent| extent.unwrap_or(0)).collect();
        if let Some(block) = blocks.get_mut(axis) {
            *block = 1;
        }
        let (scale, zero_point) = if call.node.argument("scales").is_some() {
            ("scales", "zero_points")
        } else {
            ("scale", "zero_point")
        };
        // Moves the vector of scales to its axis.
        let rank = extents.len();
        Scheme::new(call, scale, zero_point, blocks)?
            .shaped(|parameter| call.along(parameter, axis, rank))
    }

    /// Applies a shape change to scales and zero points.
    fn shaped(mut self, mut shape: impl FnMut(ValueId) -> ValueResult) -> Result<Scheme> {
        self.scale = shape(self.scale)?;
        self.zero_point = self.zero_point.map(shape).transpose()?;
        Ok(self)
    }

    /// One scale per row, already of the operand's rank.
    fn tokens(call: &mut Call<'_, '_>) -> Result<Scheme> {
        let extents = Scheme::extents(call)?;
        let mut blocks = vec![1; extents.len()];
        if let (Some(last), Some(extent)) = (blocks.last_mut(), extents.last()) {
            *last = extent.unwrap_or(0);
        }
        Scheme::new(call, "scales", "zero_points", blocks)
    }

    /// One scale per group of a matrix row.
    fn groups(call: &mut Call<'_, '_>) -> Result<Scheme> {
        let group = call.known_int("group_size")?;
        let Ok(group @ 1..) = u64::try_from(group) else {
            refuse!("`group_size` must be at least 1, got {group}");
        };
        Scheme::new(call, "scales", "zero_points", vec![1, group])
    }

    /// One scale per block.
    fn blocks(call: &mut Call<'_, '_>) -> Result<Scheme> {
        let extents = Scheme::extents(call)?;
        let sizes = call.known_ints("block_size")?;
        if sizes.len() != extents.len() {
            refuse!("`block_size` {sizes:?} must have one size for each of {} axes", extents.len());
        }
        let mut blocks = Vec::new();
        let mut counts = Vec::new();
        for (&size, extent) in sizes.iter().zip(&extents) {
            let block = match (size, extent) {
                (-1, Some(extent)) => *extent,
                (1.., _) => size as u64,
                _ => refuse!("`block_size` must be at least 1, got {sizes:?}"),
            };
            blocks.push(block);
            counts.push(match extent {
                Some(extent) if extent % block == 0 => Int::Known((extent / block) as i64),
                None if block == 1 => Int::Known(-1),
                _ => refuse!("blocks of {block} do not divide {extent:?} elements"),
            });
        }
        // torch allows any shape with as many scales.
        Scheme::new(call, "scale", "zero_point", blocks)?
            .shaped(|parameter| call.reshape(parameter, &counts))
    }

    /// Repeats a scale or zero point over the elements of each block, unless broadcasting does.
    fn spread(&self, builder: &mut Builder, parameter: ValueId) -> ValueResult {
        let rank = self.blocks.len();
        let counts = builder.extents(parameter);
        if counts.len() != rank {
            return Ok(parameter);
        }
        let mut y = parameter;
        for (axis, (&block, count)) in self.blocks.iter().zip(counts).enumerate() {
            if block <= 1 || count == Some(1) {
                continue;
            }
            let Some(count) = count else { refuse!("the number of scales must be fixed") };
            let extent = builder.extents(self.x).get(axis).copied().flatten();
            if let Some(extent) = extent
                && count.checked_mul(block) != Some(extent)
            {
                refuse!(
                    "axis {axis} has {count} scales for blocks of {block} elements, but {extent} elements"
                );
            }
            // Repeats each scale for the elements of its block.
            let covered = checked_numel(&[count, block])? as u64;
            let indices: Vec<i32> = (0..covered).map(|index| (index / block) as i32).collect();
            y = emit!(builder, OpKind::Gather, x = y, indices = indices.as_slice(), axis)?;
        }
        Ok(y)
    }

    /// The 8-bit type with these bounds, if there is one.
    fn byte(&self) -> Option<DType> {
        match (self.low, self.high) {
            (-128, 127) => Some(DType::Int8),
            (0, 255) => Some(DType::UInt8),
            _ => None,
        }
    }

    /// Scale, zero point and axis for Core ML's operations, if the scheme has a single scale or one per index of an
    /// axis.
    fn native(&self, builder: &mut Builder, byte: DType) -> Result<Option<Native>> {
        let Some(scale) = builder.fixed_shape(self.scale) else { return Ok(None) };
        let several = scale.iter().enumerate().filter(|(_, extent)| **extent != 1);
        let several: Vec<_> = several.map(|(axis, _)| axis).collect();
        let axis = match several.as_slice() {
            [] => None,
            &[axis] if self.blocks.get(axis) == Some(&1) => Some(axis as i32),
            _ => return Ok(None),
        };
        let known = |value| builder.known(value).is_some();
        if !known(self.scale) || !self.zero_point.is_none_or(known) {
            return Ok(None);
        }
        let mut flat = |value: ValueId| match axis {
            Some(_) => builder.flat(value),
            None => builder.scalar_of(value),
        };
        let scale = flat(self.scale)?;
        let Some(zero_point) = self.zero_point else { return Ok(Some((scale, None, axis))) };
        let zero_point = flat(zero_point)?;
        let bytes = builder.as_bytes(zero_point, byte);
        Ok(bytes.map(|bytes| (scale, Some(builder.constant(bytes)), axis)))
    }

    /// Adds or subtracts the zero point, if there is one.
    fn moved(&self, builder: &mut Builder, kind: OpKind, x: ValueId) -> ValueResult {
        let Some(zero_point) = self.zero_point else { return Ok(x) };
        let zero_point = self.spread(builder, zero_point)?;
        let zero_point = builder.cast(zero_point, DType::Fp32)?;
        builder.binary(kind, x, zero_point)
    }
}

impl Builder {
    /// An integer constant in an 8-bit type, if all elements fit.
    fn as_bytes(&self, value: ValueId, byte: DType) -> Option<Constant> {
        let constant = self.known(value)?;
        let ty = constant.tensor_type()?;
        let shape = ty.shape.iter().map(|dim| dim.known()).collect::<Option<Vec<_>>>()?;
        if ty.dtype != DType::Int32 {
            return None;
        }
        let (elements, _) = constant.elements()?.as_bytes().as_chunks::<4>();
        let bytes = elements.iter().map(|&raw| {
            let element = i32::from_le_bytes(raw);
            match byte {
                DType::Int8 => i8::try_from(element).ok().map(|element| element as u8),
                _ => u8::try_from(element).ok(),
            }
        });
        Some(Constant::by_size(byte, &shape, bytes.collect::<Option<Vec<_>>>()?))
    }

    /// The 8-bit tensor that a tensor was cast from.
    fn cast_from(&self, value: ValueId, byte: DType) -> Option<ValueId> {
        let Definition::Output(op, 0) = self.function.value(value).definition else { return None };
        let op = self.function.op(op);
        if op.kind() != Some(OpKind::Cast) {
            return None;
        }
        let source = match op.bindings("x") {
            [Binding::Value(source)] => *source,
            _ => return None,
        };
        (self.dtype(source) == byte).then_some(source)
    }
}

fn quantize(call: &mut Call<'_, '_>) -> ValueResult {
    let scheme = Scheme::of(call)?;
    if let Some(byte) = scheme.byte()
        && call.known(scheme.x).is_none()
        && let Some((scale, zero_point, axis)) = scheme.native(call, byte)?
    {
        if call.opset() < Opset::Ios17 {
            let what = "an activation that is quantized to 8 bits";
            return Err(LoweringError::needs(what, Opset::Ios17, call.opset()));
        }
        return emit!(
            call,
            OpKind::Quantize,
            input = scheme.x,
            scale,
            zero_point,
            axis,
            output_dtype = byte.name()
        );
    }
    let y = integers(call, &scheme)?;
    call.cast(y, DType::Int32)
}

/// Quantized elements, as floats.
fn integers(call: &mut Call<'_, '_>, scheme: &Scheme) -> ValueResult {
    // The scale of a row of zeros is tiny and would underflow in fp16.
    call.exact |= call.known(scheme.scale).is_none();
    let x = call.cast(scheme.x, DType::Fp32)?;
    let scale = scheme.spread(call, scheme.scale)?;
    let rounded = calc!(call, "round(x * (1.0 / scale))", x, scale)?;
    let y = scheme.moved(call, OpKind::Add, rounded)?;
    call.clip(y, scheme.low as f32, scheme.high as f32)
}

fn dequantize(call: &mut Call<'_, '_>) -> ValueResult {
    let scheme = Scheme::of(call)?;
    if let Some(y) = stored_quantized(call, &scheme)? {
        return Ok(y);
    }
    for byte in [DType::Int8, DType::UInt8] {
        if let Some(source) = call.cast_from(scheme.x, byte)
            && let Some((scale, zero_point, axis)) = scheme.native(call, byte)?
        {
            return emit!(call, OpKind::Dequantize, input = source, scale, zero_point, axis);
        }
    }
    elements(call, &scheme, scheme.x)
}

/// Dequantized elements.
fn elements(call: &mut Call<'_, '_>, scheme: &Scheme, integers: ValueId) -> ValueResult {
    call.exact |= call.known(scheme.scale).is_none();
    let y = call.cast(integers, DType::Fp32)?;
    let y = scheme.moved(call, OpKind::Sub, y)?;
    let scale = scheme.spread(call, scheme.scale)?;
    call.binary(OpKind::Mul, y, scale)
}

/// Minimum number of elements of a weight that is stored quantized.
const MIN_STORED: u64 = 64;

/// Whether a constant is large enough to be stored compressed.
fn is_weight(builder: &Builder, value: ValueId) -> bool {
    let count = builder.fixed_shape(value).map(|shape| shape.iter().product::<u64>());
    builder.known(value).is_some() && count.is_some_and(|count| count >= MIN_STORED)
}

/// Stores a weight quantized; `None` if it is computed or not 8-bit.
fn stored_quantized(call: &mut Call<'_, '_>, scheme: &Scheme) -> Result<Option<ValueId>> {
    let range = (scheme.low, scheme.high);
    if !is_weight(call, scheme.x) || range.0 < -128 || range.1 > 255 {
        return Ok(None);
    }
    let Some(shape) = call.fixed_shape(scheme.x) else { return Ok(None) };
    let counts: Vec<u64> = shape.iter().zip(&scheme.blocks).map(|(all, one)| all / one).collect();
    let whole = shape.iter().zip(&scheme.blocks).all(|(all, one)| all % one == 0);
    // A single scale may have any shape of one element.
    let along = |parameter: ValueId| call.recipe(parameter)?.reshape(&counts).ok();
    let (true, Some(codes), Some(scale)) = (whole, call.recipe(scheme.x), along(scheme.scale))
    else {
        return Ok(None);
    };
    let offset = match scheme.zero_point {
        None => None,
        Some(zero_point) => match along(zero_point) {
            Some(offset) => Some(offset),
            None => return Ok(None),
        },
    };
    call.store_compressed(CompressedTensor {
        codes,
        range,
        meaning: Meaning::Scaled { scale, offset },
    })
}

/// Computes scale and zero point of each block at run time.
fn choose_parameters(call: &mut Call<'_, '_>) -> Results {
    let x = call.float_tensor("input")?;
    let Some(mapping) = call.text("mapping_type")? else { refuse!("`mapping_type` is missing") };
    let sizes = call.known_ints("block_size")?;
    let dtype = call.scalar_type("target_dtype")?;
    let (low, high) = range(call, dtype)?;
    let (low, high) = (low as f32, high as f32);
    let epsilon = call.optional_float("eps")?.unwrap_or(f64::from(f32::MIN_POSITIVE)) as f32;
    let extents = call.extents(x);
    if sizes.len() != extents.len() {
        refuse!("`block_size` {sizes:?} must have one size for each of {} axes", extents.len());
    }
    // Splits each blocked axis into blocks and elements per block.
    let mut folded = Vec::new();
    let mut reduced = Vec::new();
    for (axis, (&size, extent)) in sizes.iter().zip(&extents).enumerate() {
        let whole = extent.is_some_and(|extent| i64::try_from(extent) == Ok(size));
        let all = call.dim(x, axis)?;
        match (size, extent) {
            (1, _) => folded.push(all),
            _ if whole => {
                reduced.push(folded.len());
                folded.push(all);
            }
            (1.., Some(extent)) if extent % size.unsigned_abs() == 0 => {
                folded.push(Int::Known((extent / size.unsigned_abs()) as i64));
                reduced.push(folded.len());
                folded.push(Int::Known(size));
            }
            _ => refuse!("blocks of {size} do not divide {extent:?} elements"),
        }
    }
    let blocks = if folded.len() == extents.len() { x } else { call.reshape(x, &folded)? };
    let keep = call.flag("keepdim")? && folded.len() == extents.len();
    let (least, most) = extremes(call, blocks, &reduced, keep)?;
    let scale = match mapping {
        "SYMMETRIC" => {
            let largest = magnitude(call, least, most)?;
            call.scaled(largest, 2.0 / f64::from(high - low))?
        }
        "SYMMETRIC_NO_CLIPPING_ERR" => {
            let below = call.scaled(least, 1.0 / f64::from(low))?;
            let above = call.scaled(most, 1.0 / f64::from(high))?;
            call.binary(OpKind::Maximum, below, above)?
        }
        "ASYMMETRIC" => {
            let width = call.binary(OpKind::Sub, most, least)?;
            call.scaled(width, 1.0 / f64::from(high - low))?
        }
        _ => refuse!("`mapping_type` `{mapping}` is not supported"),
    };
    let scale = call.binary(OpKind::Maximum, scale, epsilon)?;
    let zero_point = if mapping == "ASYMMETRIC" {
        zero_point(call, least, scale, low, high)?
    } else {
        // The center of the range, truncated towards 0 like in Python.
        everywhere(call, scale, ((high + low + 1.0) / 2.0).trunc())?
    };
    let mut both = [scale, zero_point];
    if call.flag("keepdim")? && folded.len() != extents.len() {
        let count = |(&size, extent): (&i64, &Option<u64>)| {
            Int::Known(extent.map_or(-1, |all| all as i64 / size))
        };
        let counts: Vec<Int> = sizes.iter().zip(&extents).map(count).collect();
        for value in &mut both {
            *value = call.reshape(*value, &counts)?;
        }
    }
    let [scale, zero_point] = both;
    give_parameters(call, scale, zero_point)
}

/// The larger magnitude of a non-positive minimum and a maximum.
fn magnitude(builder: &mut Builder, least: ValueId, most: ValueId) -> ValueResult {
    calc!(builder, "max(least * -1.0, most)", least, most)
}

/// Zero point computed from the smallest element.
fn zero_point(
    builder: &mut Builder,
    least: ValueId,
    scale: ValueId,
    low: f32,
    high: f32,
) -> ValueResult {
    let zero_point = calc!(builder, "low - round(least / scale)", low, least, scale)?;
    builder.clip(zero_point, low, high)
}

/// A tensor of the scales' shape, filled with a number.
fn everywhere(builder: &mut Builder, scale: ValueId, number: f32) -> ValueResult {
    calc!(builder, "scale * 0.0 + number", scale, number)
}

/// Smallest and largest element of each row.
fn extremes_of_tokens(call: &mut Call<'_, '_>) -> Result<(ValueId, ValueId)> {
    let x = call.float_tensor("input")?;
    extremes(call, x, &[call.rank(x).saturating_sub(1)], true)
}

/// Smallest and largest element along axes; the range includes 0.
fn extremes(
    call: &mut Call<'_, '_>,
    x: ValueId,
    axes: &[usize],
    keep: bool,
) -> Result<(ValueId, ValueId)> {
    let least = call.reduced(OpKind::ReduceMin, x, axes, keep)?;
    let most = call.reduced(OpKind::ReduceMax, x, axes, keep)?;
    call.exact = true;
    let least = call.binary(OpKind::Minimum, least, 0.0_f32)?;
    Ok((least, call.binary(OpKind::Maximum, most, 0.0_f32)?))
}

/// One scale and zero point for all elements, computed like PT2E's dynamic observers.
fn choose_for_all(call: &mut Call<'_, '_>, symmetric: bool) -> Results {
    let x = call.float_tensor("input")?;
    let (least, most) = extremes(call, x, &(0..call.rank(x)).collect::<Vec<_>>(), true)?;
    let low = call.known_int("quant_min")? as f32;
    let high = call.known_int("quant_max")? as f32;
    let epsilon = call.optional_float("eps")?.unwrap_or(f64::from(f32::EPSILON)) as f32;
    let width = if symmetric {
        let largest = magnitude(call, least, most)?;
        call.scaled(largest, 2.0)?
    } else {
        call.binary(OpKind::Sub, most, least)?
    };
    let scale = call.scaled(width, 1.0 / f64::from(high - low))?;
    let scale = call.binary(OpKind::Maximum, scale, epsilon)?;
    let zero_point = if symmetric {
        let is_byte = call.scalar_type("dtype")? == Some(ScalarType::UInt8);
        everywhere(call, scale, if is_byte { 128.0 } else { 0.0 })?
    } else {
        zero_point(call, least, scale, low, high)?
    };
    let scale = call.reshape(scale, &[Int::Known(1)])?;
    let zero_point = call.reshape(zero_point, &[Int::Known(1)])?;
    give_parameters(call, scale, zero_point)
}

/// One symmetric scale per row.
fn choose_for_tokens(call: &mut Call<'_, '_>) -> Results {
    let (least, most) = extremes_of_tokens(call)?;
    let largest = magnitude(call, least, most)?;
    let largest = call.binary(OpKind::Maximum, largest, 1e-5_f32)?;
    let scale = call.scaled(largest, 1.0 / 127.0)?;
    let zero_point = call.scaled(scale, 0.0)?;
    give_parameters(call, scale, zero_point)
}

/// One scale and zero point per row. The zero point is computed from the end of the range where the error is
/// smaller.
fn choose_for_uneven_tokens(call: &mut Call<'_, '_>) -> Results {
    const LOW: f32 = -128.0;
    const HIGH: f32 = 127.0;
    let (least, most) = extremes_of_tokens(call)?;
    let step = (1.0 / f64::from(HIGH - LOW)) as f32;
    let (low, high, tiny) = (LOW, HIGH, f32::EPSILON);
    let formula = "scale = max((most - least) * step, tiny); below = least / scale; above = most / scale; \
                   from_below = below + above > 1.0; \
                   scale, where(from_below, low - below, high - above)";
    let [scale, zero_point] = calc!(all call, formula, least, most, low, high, step, tiny)?;
    let zero_point = call.clip(zero_point, LOW, HIGH)?;
    let zero_point = call.unary(OpKind::Round, zero_point)?;
    give_parameters(call, scale, zero_point)
}

/// Returns scale and zero point in torch's types.
fn give_parameters(call: &mut Call<'_, '_>, scale: ValueId, zero_point: ValueId) -> Results {
    let mut values = Vec::with_capacity(2);
    for (index, value) in [scale, zero_point].into_iter().enumerate() {
        let dtype = call.result_tensor(index).map_or(ScalarType::Float32, |meta| meta.dtype);
        values.push(call.cast_to(value, dtype)?);
    }
    call.give_all(&values)
}

/// Dequantizes codes with one lookup table per block.
fn dequantize_codebook(call: &mut Call<'_, '_>) -> ValueResult {
    let codes = call.value("codes")?;
    let tables = call.value("codebook")?;
    let bits = call.known_int("nbits")?;
    if !(1..=8).contains(&bits) {
        refuse!("`nbits` must be from 1 to 8, got {bits}");
    }
    let (Some(codes), Some(tables)) = (call.recipe(codes), call.recipe(tables)) else {
        refuse!("`codes` and `codebook` must be constants in Core ML");
    };
    let (shape, rank) = (tables.shape(), codes.shape().len());
    if shape.len() != rank + 2 || *shape.at(rank)? != 1 << bits || *shape.at(rank + 1)? != 1 {
        refuse!(
            "`codebook` has sizes {shape:?}; codes of sizes {:?} require tables of {} scalars",
            codes.shape(),
            1 << bits
        );
    }
    let blocks = codes.shape().iter().zip(shape);
    if !blocks.clone().all(|(all, count)| *count > 0 && all % count == 0) {
        refuse!("`codebook` has sizes {shape:?}, which do not divide codes of {:?}", codes.shape());
    }
    let tables = match tables.cast(DType::Fp32) {
        Ok(tables) => tables,
        Err(error) => refuse!("`codebook`: {error}"),
    };
    let range = (0, (1 << bits) - 1);
    let weight = CompressedTensor { codes, range, meaning: Meaning::Table { tables } };
    match call.store_compressed(weight)? {
        Some(y) => Ok(y),
        None => refuse!("no release of Core ML supports {bits}-bit codes"),
    }
}

impl Call<'_, '_> {
    /// Keeps integer weights that torch casts to floats on use as stored integers with a scale of 1.
    pub(crate) fn stored_integers(
        &mut self,
        value: ValueId,
        from: ScalarType,
    ) -> Result<Option<ValueId>> {
        let range = match from {
            ScalarType::Int8 => (-128, 127),
            ScalarType::UInt8 => (0, 255),
            _ => return Ok(None),
        };
        if !is_weight(self, value) || self.rank(value) < 2 {
            return Ok(None);
        }
        let Some(codes) = self.recipe(value) else { return Ok(None) };
        let ones = vec![1; codes.shape().len()];
        let Ok(scale) = LazyTensor::repeated(&1_f32.to_le_bytes(), DType::Fp32, &ones) else {
            return Ok(None);
        };
        let meaning = Meaning::Scaled { scale, offset: None };
        self.store_compressed(CompressedTensor { codes, range, meaning })
    }

    /// Whether the result is an operand of a matrix product or a convolution.
    pub(crate) fn is_factor(&self) -> bool {
        const FACTORS: [&str; 9] =
            ["mm", "addmm", "matmul", "bmm", "linear", "conv1d", "conv2d", "conv3d", "convolution"];
        let Some(result) = self.node.results().next().flatten() else { return false };
        self.graph().nodes.iter().any(|node| {
            let mut uses = false;
            let factor = FACTORS.iter().any(|name| node.target.is("aten", name, "default"));
            if factor {
                node.for_each_use(&mut |id| uses |= id == result);
            }
            uses
        })
    }
}

/// Fake quantization: quantizes and dequantizes.
fn fake(call: &mut Call<'_, '_>) -> Results {
    let scheme = Scheme::of(call)?;
    let rounded = integers(call, &scheme)?;
    let y = elements(call, &scheme, rounded)?;
    let dtype = call.result_dtype()?;
    if call.node.outputs.len() < 2 {
        return call.give(y);
    }
    // The second result is a mask for the backward pass.
    Ok(vec![LoweredValue::tensor(y, dtype), LoweredValue::Nothing])
}
