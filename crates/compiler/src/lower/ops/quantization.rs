//! Quantization: of activations to Core ML's own operations where the target has them, of weights to
//! constants that are stored quantized, and of all else to arithmetic.

use coremill_mil::ir::{Binding, Constant, Definition, Opset, ValueId};
use coremill_mil::ops::OpKind;
use coremill_tensor::DType;

use super::operand::narrow_range;
use crate::error::{Refusal, refuse};
use crate::lower::builder::{Arg, Builder};
use crate::lower::call::{Call, Results, normalized};
use crate::lower::table::{Row, all};
use crate::lower::value::{Int, Lowered};

pub(crate) const ROWS: &[Row] = &[
    all("quantized_decomposed.quantize_per_tensor", |call| quantize(call, Scheme::tensor)),
    all("quantized_decomposed.dequantize_per_tensor", |call| dequantize(call, Scheme::tensor)),
    all("quantized_decomposed.quantize_per_channel", |call| quantize(call, Scheme::channels)),
    all("quantized_decomposed.dequantize_per_channel", |call| dequantize(call, Scheme::channels)),
    all("quantized_decomposed.quantize_per_token", |call| quantize(call, Scheme::tokens)),
    all("quantized_decomposed.dequantize_per_token", |call| dequantize(call, Scheme::tokens)),
    all("quantized_decomposed.quantize_per_channel_group", |call| quantize(call, Scheme::groups)),
    all("quantized_decomposed.dequantize_per_channel_group", |call| {
        dequantize(call, Scheme::groups)
    }),
    all("quantized_decomposed.fake_quant_per_channel", |call| fake(call, Scheme::channels)),
    all("torchao.quantize_affine", |call| quantize(call, Scheme::blocks)),
    all("torchao.dequantize_affine", |call| dequantize(call, Scheme::blocks)),
    all("aten.fake_quantize_per_tensor_affine", |call| fake(call, Scheme::tensor)),
    all("aten.fake_quantize_per_channel_affine", |call| fake(call, Scheme::channels)),
    all("aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams", |call| {
        fake(call, Scheme::tensor)
    }),
    all("aten.fake_quantize_per_tensor_affine_cachemask", |call| fake(call, Scheme::tensor)),
    all("aten.fake_quantize_per_channel_affine_cachemask", |call| fake(call, Scheme::channels)),
];

/// How elements and integers stand for each other: `element = scale · (integer − zero point)`.
struct Scheme {
    x: ValueId,
    scale: ValueId,
    zero_point: Option<ValueId>,
    /// The extent of the blocks that share a scale, along each axis.
    blocks: Vec<u64>,
    low: i64,
    high: i64,
}

/// The tensor to quantize or dequantize.
fn operand(call: &mut Call<'_, '_>) -> Result<ValueId, Refusal> {
    let name = if call.node.argument("input").is_some() { "input" } else { "self" };
    Ok(call.tensor(name)?.value)
}

/// The parameter of that name: a tensor, or a number.
fn parameter(call: &mut Call<'_, '_>, name: &str, dtype: DType) -> Result<ValueId, Refusal> {
    let parameter = call.operand(name)?;
    call.operand_value(parameter, dtype)
}

/// The bound of that name, or that of the type of the integers.
fn bound(call: &mut Call<'_, '_>, name: &str, default: i64) -> Result<i64, Refusal> {
    if !call.has(name) {
        return Ok(default);
    }
    let bound = call.operand(name)?;
    let known = match bound {
        super::operand::Operand::Tensor(tensor) => {
            call.folded(tensor.value).and_then(|folded| folded.only()?.int())
        }
        number => number.known().map(|number| number as i64),
    };
    known.ok_or_else(|| Refusal::new(format!("`{name}` is not known before the program runs")))
}

/// Scale, zero point and axis.
type Native = (ValueId, Option<ValueId>, Option<i32>);

impl Scheme {
    fn new(
        call: &mut Call<'_, '_>,
        scale: &str,
        zero_point: &str,
        blocks: Vec<u64>,
    ) -> Result<Scheme, Refusal> {
        let x = operand(call)?;
        let scale = parameter(call, scale, DType::Fp32)?;
        let zero_point = match call.has(zero_point) {
            true => Some(parameter(call, zero_point, DType::Int32)?),
            false => None,
        };
        let dtype = ["dtype", "input_dtype", "output_dtype"]
            .iter()
            .find(|name| call.node.argument(name).is_some())
            .and_then(|name| call.scalar_type(name).ok().flatten());
        let range = dtype.and_then(narrow_range).unwrap_or((i32::MIN, i32::MAX));
        let low = bound(call, "quant_min", range.0.into())?;
        let high = bound(call, "quant_max", range.1.into())?;
        Ok(Scheme { x, scale, zero_point, blocks, low, high })
    }

    /// The extents of the operand, as far as they are fixed.
    fn extents(call: &mut Call<'_, '_>) -> Result<Vec<Option<u64>>, Refusal> {
        let x = operand(call)?;
        Ok(call.extents(x))
    }

    /// One scale for all elements.
    fn tensor(call: &mut Call<'_, '_>) -> Result<Scheme, Refusal> {
        let extents = Scheme::extents(call)?;
        let blocks = extents.iter().map(|extent| extent.unwrap_or(0)).collect();
        Scheme::new(call, "scale", "zero_point", blocks)
    }

    /// A scale for each index of one axis.
    fn channels(call: &mut Call<'_, '_>) -> Result<Scheme, Refusal> {
        let extents = Scheme::extents(call)?;
        let axis = normalized(call.known_int("axis")?, extents.len())?;
        let mut blocks: Vec<_> = extents.iter().map(|extent| extent.unwrap_or(0)).collect();
        if let Some(block) = blocks.get_mut(axis) {
            *block = 1;
        }
        let (scale, zero_point) = if call.node.argument("scales").is_some() {
            ("scales", "zero_points")
        } else {
            ("scale", "zero_point")
        };
        let mut scheme = Scheme::new(call, scale, zero_point, blocks)?;
        // The vector of scales stands along its axis.
        let axes: Vec<_> = (0..extents.len() as i32).filter(|&at| at != axis as i32).collect();
        scheme.scale = call.expand_dims(scheme.scale, &axes)?;
        if let Some(zero_point) = scheme.zero_point {
            scheme.zero_point = Some(call.expand_dims(zero_point, &axes)?);
        }
        Ok(scheme)
    }

    /// A scale for each row, which has the rank of the operand already.
    fn tokens(call: &mut Call<'_, '_>) -> Result<Scheme, Refusal> {
        let extents = Scheme::extents(call)?;
        let mut blocks = vec![1; extents.len()];
        if let (Some(last), Some(extent)) = (blocks.last_mut(), extents.last()) {
            *last = extent.unwrap_or(0);
        }
        Scheme::new(call, "scales", "zero_points", blocks)
    }

    /// A scale for each group of a row of a matrix.
    fn groups(call: &mut Call<'_, '_>) -> Result<Scheme, Refusal> {
        let group = call.known_int("group_size")?;
        let Ok(group @ 1..) = u64::try_from(group) else {
            refuse!("`group_size` is {group}; 1 and more are accepted");
        };
        Scheme::new(call, "scales", "zero_points", vec![1, group])
    }

    /// A scale for each block.
    fn blocks(call: &mut Call<'_, '_>) -> Result<Scheme, Refusal> {
        let extents = Scheme::extents(call)?;
        let sizes = call.known_ints("block_size")?;
        if sizes.len() != extents.len() {
            refuse!("`block_size` is {sizes:?}, for {} axes", extents.len());
        }
        let mut blocks = Vec::new();
        let mut counts = Vec::new();
        for (&size, extent) in sizes.iter().zip(&extents) {
            let block = match (size, extent) {
                (-1, Some(extent)) => *extent,
                (1.., _) => size as u64,
                _ => refuse!("`block_size` is {sizes:?}; 1 and more are accepted"),
            };
            blocks.push(block);
            counts.push(match extent {
                Some(extent) if extent % block == 0 => Int::Known((extent / block) as i64),
                None if block == 1 => Int::Known(-1),
                _ => refuse!("blocks of {block} do not divide {extent:?} elements"),
            });
        }
        let mut scheme = Scheme::new(call, "scale", "zero_point", blocks)?;
        // torch gives the scales any shape of as many elements.
        scheme.scale = call.reshape(scheme.scale, &counts)?;
        if let Some(zero_point) = scheme.zero_point {
            scheme.zero_point = Some(call.reshape(zero_point, &counts)?);
        }
        Ok(scheme)
    }

    /// The scale and the zero point, repeated for the elements of each block where that is more than one
    /// and less than all.
    fn spread(&self, builder: &mut Builder, parameter: ValueId) -> Result<ValueId, Refusal> {
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
            let Some(count) = count else { refuse!("the number of scales is not fixed") };
            // Each scale is followed by itself as often as there are elements in its block.
            let indices: Vec<i32> =
                (0..count * block).map(|index| (index / block) as i32).collect();
            y = builder.emit(
                OpKind::Gather,
                [
                    ("x", y.into()),
                    ("indices", indices.as_slice().into()),
                    ("axis", (axis as i32).into()),
                ],
            )?;
        }
        Ok(y)
    }

    /// Whether the bounds are those of a type of 8 bits, and which.
    fn byte(&self) -> Option<DType> {
        match (self.low, self.high) {
            (-128, 127) => Some(DType::Int8),
            (0, 255) => Some(DType::UInt8),
            _ => None,
        }
    }

    /// Scale, zero point and axis for Core ML's operations, if one scale or one vector of them will do.
    fn native(&self, builder: &mut Builder, byte: DType) -> Result<Option<Native>, Refusal> {
        let Some(scale) = builder.fixed_shape(self.scale) else { return Ok(None) };
        let several: Vec<_> = (0..scale.len()).filter(|&axis| scale[axis] != 1).collect();
        let axis = match several.as_slice() {
            [] => None,
            &[axis] if self.blocks.get(axis) == Some(&1) => Some(axis as i32),
            _ => return Ok(None),
        };
        let known = |value| builder.known(value).is_some();
        if !known(self.scale) || !self.zero_point.is_none_or(known) {
            return Ok(None);
        }
        let shape = if axis.is_some() { vec![Int::Known(-1)] } else { Vec::new() };
        let mut flat = |value: ValueId| -> Result<ValueId, Refusal> {
            if builder.rank(value) == shape.len() {
                return Ok(value);
            }
            builder.reshape(value, &shape)
        };
        let scale = flat(self.scale)?;
        let zero_point = match self.zero_point {
            Some(zero_point) => {
                let flat = flat(zero_point)?;
                match builder.as_bytes(flat, byte) {
                    Some(constant) => Some(builder.constant(constant)),
                    None => return Ok(None),
                }
            }
            None => None,
        };
        Ok(Some((scale, zero_point, axis)))
    }
}

impl Builder {
    /// A constant of integers in a type of 8 bits, if all fit.
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

    /// The tensor of a type of 8 bits that a tensor was cast from.
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

fn quantize(
    call: &mut Call<'_, '_>,
    scheme: fn(&mut Call<'_, '_>) -> Result<Scheme, Refusal>,
) -> Results {
    let scheme = scheme(call)?;
    if call.opset() >= Opset::Ios17
        && let Some(byte) = scheme.byte()
        && let Some((scale, zero_point, axis)) = scheme.native(call, byte)?
    {
        let y = call.emit(
            OpKind::Quantize,
            [
                ("input", scheme.x.into()),
                ("scale", scale.into()),
                ("zero_point", zero_point.into()),
                ("axis", axis.into()),
                ("output_dtype", byte.name().into()),
            ],
        )?;
        return call.give(y);
    }
    let y = integers(call, &scheme)?;
    let y = call.cast(y, DType::Int32)?;
    call.give(y)
}

/// The integers that elements become, as floats.
fn integers(call: &mut Call<'_, '_>, scheme: &Scheme) -> Result<ValueId, Refusal> {
    let x = call.cast(scheme.x, DType::Fp32)?;
    let scale = scheme.spread(call, scheme.scale)?;
    let inverse = call.binary(OpKind::RealDiv, 1.0_f32, scale)?;
    let scaled = call.binary(OpKind::Mul, x, inverse)?;
    let mut y = call.unary(OpKind::Round, scaled)?;
    if let Some(zero_point) = scheme.zero_point {
        let zero_point = scheme.spread(call, zero_point)?;
        let zero_point = call.cast(zero_point, DType::Fp32)?;
        y = call.binary(OpKind::Add, y, zero_point)?;
    }
    call.clip(y, scheme.low as f32, scheme.high as f32)
}

fn dequantize(
    call: &mut Call<'_, '_>,
    scheme: fn(&mut Call<'_, '_>) -> Result<Scheme, Refusal>,
) -> Results {
    let scheme = scheme(call)?;
    for byte in [DType::Int8, DType::UInt8] {
        if let Some(y) = stored_quantized(call, &scheme, byte)? {
            return call.give(y);
        }
        if let Some(source) = call.cast_from(scheme.x, byte)
            && let Some((scale, zero_point, axis)) = scheme.native(call, byte)?
        {
            let y = call.emit(
                OpKind::Dequantize,
                [
                    ("input", source.into()),
                    ("scale", scale.into()),
                    ("zero_point", zero_point.into()),
                    ("axis", axis.into()),
                ],
            )?;
            return call.give(y);
        }
    }
    let y = elements(call, &scheme, scheme.x)?;
    call.give(y)
}

/// The elements that integers stand for.
fn elements(
    call: &mut Call<'_, '_>,
    scheme: &Scheme,
    integers: ValueId,
) -> Result<ValueId, Refusal> {
    let mut y = call.cast(integers, DType::Fp32)?;
    if let Some(zero_point) = scheme.zero_point {
        let zero_point = scheme.spread(call, zero_point)?;
        let zero_point = call.cast(zero_point, DType::Fp32)?;
        y = call.binary(OpKind::Sub, y, zero_point)?;
    }
    let scale = scheme.spread(call, scheme.scale)?;
    call.binary(OpKind::Mul, y, scale)
}

/// Weights of fewer elements gain nothing from being stored quantized.
const MIN_STORED: u64 = 64;

/// A weight that stays quantized in the package, if the target can take it so.
fn stored_quantized(
    call: &mut Call<'_, '_>,
    scheme: &Scheme,
    byte: DType,
) -> Result<Option<ValueId>, Refusal> {
    let count: Option<u64> = call.fixed_shape(scheme.x).map(|shape| shape.iter().product());
    if call.opset() < Opset::Ios16 || count.is_none_or(|count| count < MIN_STORED) {
        return Ok(None);
    }
    let Some(data) = call.as_bytes(scheme.x, byte) else { return Ok(None) };
    if let Some((scale, zero_point, axis)) = scheme.native(call, byte)? {
        let zero_point = match zero_point {
            Some(zero_point) => zero_point,
            None => {
                let shape = call.fixed_shape(scale).unwrap_or_default();
                let zeros = vec![0_u8; shape.iter().product::<u64>() as usize];
                call.constant(Constant::by_size(byte, &shape, zeros))
            }
        };
        let data = call.constant(data);
        let y = call.emit(
            OpKind::ConstexprAffineDequantize,
            [
                ("quantized_data", data.into()),
                ("zero_point", zero_point.into()),
                ("scale", scale.into()),
                ("axis", axis.unwrap_or(0).into()),
            ],
        )?;
        return Ok(Some(y));
    }
    if call.opset() < Opset::Ios18
        || call.rank(scheme.scale) != scheme.blocks.len()
        || call.known(scheme.scale).is_none()
    {
        return Ok(None);
    }
    let offset: Arg = match scheme.zero_point {
        None => Arg::Absent,
        Some(zero_point) => match call.as_bytes(zero_point, byte) {
            Some(offset) => offset.into(),
            None => return Ok(None),
        },
    };
    let y = call.emit(
        OpKind::ConstexprBlockwiseShiftScale,
        [("data", data.into()), ("scale", scheme.scale.into()), ("offset", offset)],
    )?;
    Ok(Some(y))
}

/// There and back: what training for quantization makes of elements.
fn fake(
    call: &mut Call<'_, '_>,
    scheme: fn(&mut Call<'_, '_>) -> Result<Scheme, Refusal>,
) -> Results {
    let scheme = scheme(call)?;
    let rounded = integers(call, &scheme)?;
    let y = elements(call, &scheme, rounded)?;
    let dtype = call.result_dtype()?;
    if call.node.outputs.len() < 2 {
        return call.give(y);
    }
    // The second result, a mask, is for the backward pass.
    Ok(vec![Lowered::tensor(y, dtype), Lowered::Nothing])
}
