//! Compressed constants, and `quantize` and `dequantize`, which use the same layout.

use coremill_tensor::{Buffer, DType};

use super::expect;
use crate::infer::{InferContext, InferError, InferredValue, Rule, Scalar, refuse};
use crate::ir::{Binding, Constant, Dim, Expr, Opset, TensorType};

pub(super) fn constexpr_affine_dequantize(site: &InferContext) -> Rule {
    check_storage(site)?;
    let data = expect::ranked(site, "quantized_data", 1, usize::MAX)?;
    let axis = site.axis("axis", data.rank())?;
    for name in ["scale", "zero_point"] {
        if expect::ranked(site, name, 0, 1)?.rank() == 1 {
            let why = "one element for each row of `quantized_data` along `axis`";
            expect::dimension(site, name, 0, &data.shape[axis], why)?;
        }
    }
    Ok(vec![InferredValue::tensor(site.tensor("scale")?.dtype, data.shape.clone())])
}

pub(super) fn constexpr_blockwise_shift_scale(site: &InferContext) -> Rule {
    check_storage(site)?;
    let data = expect::ranked(site, "data", 1, usize::MAX)?;
    check_blocks(site, "data", data, data.dtype)?;
    Ok(vec![InferredValue::tensor(site.tensor("scale")?.dtype, data.shape.clone())])
}

pub(super) fn constexpr_cast(site: &InferContext) -> Rule {
    check_storage(site)?;
    let source = site.tensor("source_val")?;
    site.choice("output_dtype", &["fp32"])?;
    Ok(vec![InferredValue::tensor(DType::Fp32, source.shape.clone())])
}

pub(super) fn constexpr_lut_to_dense(site: &InferContext) -> Rule {
    check_storage(site)?;
    let lut = site.tensor("lut")?;
    if site.since() < Opset::Ios18 {
        let indices = expect::ranked(site, "indices", 1, 1)?;
        check_rank_one(site, "lut")?;
        let bits = match lut.shape[0].known() {
            Some(palettes @ (2 | 4 | 16 | 64 | 256)) => u64::from(palettes.ilog2()),
            _ => {
                let message =
                    format!("must have 2, 4, 16, 64 or 256 entries, got {}", lut.shape[0]);
                return Err(InferError::new(message)
                    .of("lut")
                    .hint("tables of other sizes need the `constexpr_lut_to_dense` of iOS18"));
            }
        };
        let (shape, count) = stated_shape(site)?;
        let bytes = count.checked_mul(bits).map(|bits| bits.div_ceil(8));
        check_packed_length("indices", indices, bytes, bits, count)?;
        return Ok(vec![InferredValue::tensor(lut.dtype, shape)]);
    }
    let indices = expect::ranked(site, "indices", 1, usize::MAX)?;
    let vector = check_lut(site, "indices", indices, "indices", indices.dtype)?;
    Ok(vec![InferredValue::tensor(lut.dtype, vector.expand(site, &indices.shape)?)])
}

pub(super) fn constexpr_lut_to_sparse(site: &InferContext) -> Rule {
    check_storage(site)?;
    let lut = site.tensor("lut")?;
    let mask = expect::ranked(site, "indices_mask", 1, usize::MAX)?;
    let data = check_sparse(site, "indices_nonzero_data", "indices_mask")?;
    let vector = check_lut(site, "indices_mask", mask, "indices_nonzero_data", data.dtype)?;
    let expanded = vector.expand(site, &mask.shape)?;
    let count = multiply(site, &data.shape[0], &vector.size)?;
    Ok(vec![
        InferredValue::tensor(mask.dtype, expanded),
        InferredValue::tensor(lut.dtype, vec![count]),
    ])
}

pub(super) fn constexpr_sparse_blockwise_shift_scale(site: &InferContext) -> Rule {
    check_storage(site)?;
    let mask = expect::ranked(site, "data_mask", 1, usize::MAX)?;
    let data = check_sparse(site, "nonzero_data", "data_mask")?;
    check_blocks(site, "data_mask", mask, data.dtype)?;
    let dtype = site.tensor("scale")?.dtype;
    Ok(vec![
        InferredValue::tensor(mask.dtype, mask.shape.clone()),
        InferredValue::tensor(dtype, data.shape.clone()),
    ])
}

pub(super) fn constexpr_sparse_to_dense(site: &InferContext) -> Rule {
    check_storage(site)?;
    let data = expect::ranked(site, "nonzero_data", 1, 1)?;
    if site.since() >= Opset::Ios18 {
        let mask = expect::ranked(site, "mask", 1, usize::MAX)?;
        check_sparse(site, "nonzero_data", "mask")?;
        return Ok(vec![InferredValue::tensor(data.dtype, mask.shape.clone())]);
    }
    let mask = expect::ranked(site, "mask", 1, 1)?;
    let (shape, count) = stated_shape(site)?;
    check_packed_length("mask", mask, Some(count.div_ceil(8)), 1, count)?;
    if let Some(bits) = stored(site, "mask") {
        let used = (count % 8) as u32;
        if let Some(last) = last_byte(bits)
            && used != 0
            && last >> used != 0
        {
            let message = format!("has set bits beyond the {count} elements of `shape`");
            return Err(InferError::new(message).of("mask"));
        }
        if let Some(set) = count_ones(bits) {
            check_set_bits(set, "nonzero_data", data, "mask")?;
        }
    }
    Ok(vec![InferredValue::tensor(data.dtype, shape)])
}

pub(super) fn dequantize(site: &InferContext) -> Rule {
    let input = site.tensor("input")?;
    check_affine(site, input)?;
    Ok(vec![InferredValue::tensor(site.tensor("scale")?.dtype, input.shape.clone())])
}

pub(super) fn quantize(site: &InferContext) -> Rule {
    let input = site.tensor("input")?;
    site.choice("output_dtype", &["uint8", "int8"])?;
    let dtype = site.dtype("output_dtype")?;
    if let Some(zero_point) = site.optional_tensor("zero_point")
        && zero_point.dtype != dtype
    {
        let message =
            format!("has element type `{}`, but `output_dtype` is `{dtype}`", zero_point.dtype);
        return Err(InferError::new(message).of("zero_point"));
    }
    let zero = site.value("scale").is_some_and(|scale| {
        scale.elements.iter().map(Scalar::float).all(|element| element == Some(0.0))
    });
    if zero {
        return Err(InferError::new("must not be zero").of("scale"));
    }
    check_affine(site, input)?;
    Ok(vec![InferredValue::tensor(dtype, input.shape.clone())])
}

/// Checks scale, zero point and axis of `quantize` and `dequantize`.
fn check_affine(site: &InferContext, input: &TensorType) -> Result<(), InferError> {
    let scale = expect::ranked(site, "scale", 0, 1)?;
    let zero_point = site.optional_tensor("zero_point");
    if let Some(zero_point) = zero_point.filter(|zero_point| zero_point.rank() != scale.rank()) {
        let message =
            format!("is `{zero_point}`, but `scale` is `{scale}`; both must have the same shape");
        return Err(InferError::new(message).of("zero_point"));
    }
    if scale.rank() == 0 {
        return match site.has("axis") {
            true => Err(InferError::new("is bound, but `scale` is a scalar")
                .of("axis")
                .hint("leave `axis` out, or scale along it with a vector")),
            false => Ok(()),
        };
    }
    if !site.has("axis") {
        return Err(InferError::new("is required when `scale` is a vector").of("axis"));
    }
    let axis = site.axis("axis", input.rank())?;
    let why = "one element for each row of `input` along `axis`";
    for name in ["scale", "zero_point"] {
        expect::dimension(site, name, 0, &input.shape[axis], why)?;
    }
    Ok(())
}

/// Checks that the scale and the optional offset divide the elements of a tensor into blocks.
fn check_blocks(
    site: &InferContext,
    name: &str,
    data: &TensorType,
    dtype: DType,
) -> Result<(), InferError> {
    let scale = expect::ranked(site, "scale", data.rank(), data.rank())?;
    check_divides("scale", &scale.shape, name, &data.shape)?;
    let Some(offset) = site.optional_tensor("offset") else { return Ok(()) };
    expect::shape(site, "offset", &scale.shape, "the shape of `scale`")?;
    if !offset.dtype.is_float() && offset.dtype != dtype {
        let message = format!(
            "has element type `{}`; expected `{dtype}`, the type of the data, `fp16` or `fp32`",
            offset.dtype
        );
        return Err(InferError::new(message).of("offset"));
    }
    Ok(())
}

/// Checks that every dimension is a multiple of its number of blocks.
fn check_divides(
    parts_name: &str,
    parts: &[Dim],
    whole_name: &str,
    whole: &[Dim],
) -> Result<(), InferError> {
    for (axis, (whole, part)) in whole.iter().zip(parts).enumerate() {
        let (Some(whole), Some(part)) = (whole.known(), part.known()) else { continue };
        if whole.checked_rem(part) != Some(0) {
            let message = format!(
                "has size {part} along axis {axis}, which does not divide the size {whole} of `{whole_name}`"
            );
            return Err(InferError::new(message).of(parts_name));
        }
    }
    Ok(())
}

/// Entries of a lookup table.
struct Vector {
    /// Number of elements of each entry.
    size: Dim,
    /// The axis of the vectors; `None` for single elements.
    axis: Option<usize>,
}

impl Vector {
    /// The shape after every index is replaced by its vector.
    fn expand(&self, site: &InferContext, shape: &[Dim]) -> Result<Vec<Dim>, InferError> {
        let mut shape = shape.to_vec();
        if let Some(axis) = self.axis {
            shape[axis] = multiply(site, &shape[axis], &self.size)?;
        }
        Ok(shape)
    }
}

/// Checks a lookup table of iOS18 against its indices.
///
/// The dimensions of the table are the block counts of the indices, the number of entries, and the size of
/// each entry.
fn check_lut(
    site: &InferContext,
    shaping: &str,
    indices: &TensorType,
    indexing: &str,
    dtype: DType,
) -> Result<Vector, InferError> {
    let rank = indices.rank();
    let lut = expect::ranked(site, "lut", rank + 2, rank + 2)?;
    check_divides("lut", &lut.shape[..rank], shaping, &indices.shape)?;
    let entries = dtype.bits().and_then(|bits| 1u64.checked_shl(bits)).map(Dim::Known);
    if let Some(entries) = entries.filter(|entries| !entries.may_equal(&lut.shape[rank])) {
        let why = format!("the number of values of `{dtype}`, the element type of `{indexing}`");
        expect::dimension(site, "lut", rank, &entries, &why)?;
    }
    let size = lut.shape[rank + 1].clone();
    let axis = match site.optional_tensor("vector_axis") {
        Some(axis) => {
            expect::check_rank(axis, 0, 0).map_err(|refusal| refusal.of("vector_axis"))?;
            Some(site.axis("vector_axis", rank)?)
        }
        None if size.known().is_some_and(|size| size > 1) => {
            let message = format!("is required: the entries of `lut` are vectors of size {size}");
            return Err(InferError::new(message).of("vector_axis"));
        }
        None => None,
    };
    Ok(Vector { size, axis })
}

/// Checks that the number of bits set in a mask equals the number of elements, and returns the type of the
/// elements.
fn check_sparse<'s>(
    site: &'s InferContext,
    name: &str,
    mask: &str,
) -> Result<&'s TensorType, InferError> {
    let data = expect::ranked(site, name, 1, 1)?;
    let count = site.tensor(mask)?.element_count();
    if let (Some(bits), Some(count)) = (stored(site, mask), count) {
        // Bits after the last element are padding and ignored.
        let padding = match (last_byte(bits), (count % 8) as u32) {
            (Some(last), used @ 1..) => u64::from((last >> used).count_ones()),
            _ => 0,
        };
        if let Some(set) = count_ones(bits) {
            check_set_bits(set.saturating_sub(padding), name, data, mask)?;
        }
    }
    Ok(data)
}

fn check_set_bits(set: u64, name: &str, data: &TensorType, mask: &str) -> Result<(), InferError> {
    if data.shape[0].may_equal(&Dim::Known(set)) {
        return Ok(());
    }
    let message = format!("has {} elements, but `{mask}` sets {set} bits", data.shape[0]);
    Err(InferError::new(message).of(name))
}

/// Checks the length of the byte vector in which older operations pack elements.
fn check_packed_length(
    name: &str,
    found: &TensorType,
    expected: Option<u64>,
    bits: u64,
    count: u64,
) -> Result<(), InferError> {
    match expected {
        Some(expected) if found.shape[0].may_equal(&Dim::Known(expected)) => Ok(()),
        Some(expected) => {
            let message = format!(
                "has {} bytes; {count} {bits}-bit elements require {expected}",
                found.shape[0]
            );
            Err(InferError::new(message).of(name))
        }
        None => {
            let message = format!("has {count} {bits}-bit elements, which is too many");
            Err(InferError::new(message).of(name))
        }
    }
}

/// The shape in the parameter `shape` of the older operations, and its number of elements.
fn stated_shape(site: &InferContext) -> Result<(Vec<Dim>, u64), InferError> {
    check_rank_one(site, "shape")?;
    let mut shape = Vec::new();
    let mut count = Some(1u64);
    for extent in site.ints("shape", 0)? {
        let Ok(extent) = u64::try_from(extent) else {
            let message = format!("must contain sizes of at least 0, got {extent}");
            return Err(InferError::new(message).of("shape"));
        };
        count = count.and_then(|count| count.checked_mul(extent));
        shape.push(Dim::Known(extent));
    }
    match count {
        Some(count) => Ok((shape, count)),
        None => Err(InferError::new("has more than 2^64 elements").of("shape")),
    }
}

fn check_rank_one(site: &InferContext, name: &str) -> Result<(), InferError> {
    expect::ranked(site, name, 1, 1).map(|_| ())
}

fn multiply(site: &InferContext, left: &Dim, right: &Dim) -> Result<Dim, InferError> {
    match (left.known(), right.known()) {
        (Some(left), Some(right)) => match left.checked_mul(right) {
            Some(product) => Ok(Dim::Known(product)),
            None => refuse!("{left} vectors of {right} elements have more than 2^64 elements"),
        },
        _ => Ok(site.dim(left.expr().and_then(|left: Expr| left.mul(&right.expr()?)))),
    }
}

/// Checks that the elements of each constant have the size of their type. Constants bound to compressed
/// constants are large, and the code that decompresses them relies on their lengths.
fn check_storage(site: &InferContext) -> Result<(), InferError> {
    for parameter in site.row.parameters {
        let Some(constant) = constant(site, parameter.name) else { continue };
        let Some(elements) = constant.elements() else { continue };
        let Some(tensor) = constant.tensor_type() else { continue };
        let expected = tensor.storage_bytes();
        if expected != Some(elements.len() as u64) {
            let expected = expected.map_or("2^64 or more".to_owned(), |bytes| bytes.to_string());
            let message = format!(
                "has {} bytes of elements, but `{tensor}` requires {expected}",
                elements.len()
            );
            return Err(InferError::new(message).of(parameter.name));
        }
    }
    Ok(())
}

/// The elements of the constant bound to a parameter; `None` if they were not read.
fn stored<'s>(site: &'s InferContext, name: &str) -> Option<&'s Buffer> {
    constant(site, name)?.elements()
}

/// The constant bound to a parameter, either as an argument or as an attribute.
fn constant<'s>(site: &'s InferContext, name: &str) -> Option<&'s Constant> {
    let bound: Option<&Binding> = site.bindings(name).first();
    match bound {
        Some(binding) => site.function().bound_constant(binding),
        None => site.op().attributes.get(name),
    }
}

/// Number of set bits; `None` if they cannot be read. A mask has as many bits as the weight has elements, so
/// it is read in parts and not kept in memory.
fn count_ones(bits: &Buffer) -> Option<u64> {
    const WINDOW: usize = 1 << 20;
    let mut count = 0;
    let mut add = |bytes: &[u8]| {
        let (words, rest) = bytes.as_chunks::<8>();
        let words = words.iter().map(|word| u64::from_le_bytes(*word).count_ones());
        let rest = rest.iter().map(|byte| byte.count_ones());
        count += words.chain(rest).map(u64::from).sum::<u64>();
        Ok(())
    };
    bits.for_each_window(0..bits.len(), WINDOW, &mut add).ok()?;
    Some(count)
}

fn last_byte(bits: &Buffer) -> Option<u8> {
    let mut last = [0];
    bits.read_at(bits.len().checked_sub(1)?, &mut last).ok()?;
    Some(last[0])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::infer::analyze;
    use crate::ir::{Function, Op, Type};
    use crate::ops::OpKind;

    /// Errors of a compressed constant whose operands are attributes.
    fn errors_of_attributes(kind: OpKind, operands: &[(&str, Constant)]) -> Vec<String> {
        let mut op = Op::new(kind);
        for (name, constant) in operands {
            op.attributes.insert(*name, constant.clone());
        }
        errors(Opset::Ios16, op)
    }

    fn errors(opset: Opset, op: Op) -> Vec<String> {
        let mut function = Function::new("main", opset);
        let body = function.body;
        function.add_op(body, op, [("w".to_owned(), Type::scalar(DType::Fp16))]);
        let (_, problems) = analyze(&function);
        problems.iter().map(|problem| problem.refusal.to_string()).collect()
    }

    #[test]
    fn rejects_operand_with_wrong_byte_count() {
        let half = || Constant::bytes(DType::Fp16, &[], vec![0, 0x38]);
        let affine = |data| {
            let zero = Constant::bytes(DType::Int8, &[], vec![0]);
            let axis = Constant::int32(0);
            let operands =
                [("quantized_data", data), ("scale", half()), ("zero_point", zero), ("axis", axis)];
            errors_of_attributes(OpKind::ConstexprAffineDequantize, &operands)
        };
        assert_eq!(affine(Constant::weight(DType::Int8, &[2, 3], vec![0; 6])), [""; 0]);
        assert_eq!(
            affine(Constant::weight(DType::Int8, &[2, 3], vec![0; 5])),
            ["`quantized_data`: has 5 bytes of elements, but `tensor<int8, [2, 3]>` requires 6"]
        );
        assert_eq!(
            affine(Constant::weight(DType::Int8, &[1 << 40, 1 << 40], vec![0; 5])),
            [format!(
                "`quantized_data`: has 5 bytes of elements, but `tensor<int8, [{0}, {0}]>` requires \
                 2^64 or more",
                1u64 << 40
            )]
        );
    }

    #[test]
    fn sparse_mask_count_ignores_padding_bits() {
        let sparse = |count: u64, mask: u8| {
            let data = Constant::bytes(DType::Int8, &[count], vec![1; count as usize]);
            let mask = Constant::bytes(DType::UInt1, &[5], vec![mask]);
            let op = Op::new(OpKind::ConstexprSparseToDense)
                .with("nonzero_data", Binding::Literal(data))
                .with("mask", Binding::Literal(mask));
            errors(Opset::Ios18, op)
        };
        assert_eq!(sparse(3, 0b0001_0101), [""; 0]);
        assert_eq!(sparse(3, 0b1111_0101), [""; 0]);
        assert_eq!(
            sparse(2, 0b0001_0101),
            ["`nonzero_data`: has 2 elements, but `mask` sets 3 bits"]
        );
    }

    #[test]
    fn rejects_shape_whose_element_count_overflows() {
        let shape: Vec<u8> = [u32::MAX; 3].iter().flat_map(|extent| extent.to_le_bytes()).collect();
        let operands = [
            ("indices", Constant::bytes(DType::UInt8, &[1], vec![0])),
            ("lut", Constant::bytes(DType::Int8, &[2], vec![0, 1])),
            ("shape", Constant::bytes(DType::UInt32, &[3], shape)),
        ];
        assert_eq!(
            errors_of_attributes(OpKind::ConstexprLutToDense, &operands),
            ["`shape`: has more than 2^64 elements"]
        );
    }
}
