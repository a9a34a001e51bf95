//! Operations of a weight with indices and tables that a caller computed.

use coremill_kernels::codes::pack;
use coremill_mil::ir::{Binding, Constant, Op, Opset};
use coremill_mil::ops::OpKind;
use coremill_tensor::DType;

use super::build::{Builder, ConstexprStage, EncodedWeight, unsigned};
use crate::blocks::Blocks;
use crate::error::{Error, Refusal};
use crate::form::trained::IndexedWeight;
use crate::form::{BITS, CompressionConfig};
use crate::weight::Weight;

/// Builds the look-up that replaces a weight.
pub(crate) fn build_indexed(
    weight: &Weight,
    indexed: &IndexedWeight,
    opset: Opset,
) -> Result<EncodedWeight, Refusal> {
    let wrong = |message: String| {
        Refusal::Invalid(Error::option(format!("the indices of `{}`: {message}", weight.name)))
    };
    let rank = weight.shape.len();
    let IndexedWeight { bits, entries, indices, vector_axis, .. } = indexed;
    let shape = &entries.shape;
    if !BITS.contains(bits) || shape.len() != rank + 2 || shape[rank] != 1 << bits {
        return Err(wrong(format!("tables of shape {shape:?} do not match {bits} bits")));
    }
    let vector = shape[rank + 1];
    let mut places = weight.shape.clone();
    if let Some(axis) = *vector_axis {
        if axis >= rank || !places[axis].is_multiple_of(vector) {
            return Err(wrong(format!("vectors of size {vector} do not divide axis {axis}")));
        }
        places[axis] /= vector;
    }
    let count: usize = places.iter().product();
    if indices.len() != count || (vector > 1 && vector_axis.is_none()) {
        return Err(wrong(format!("expected {count} indices, got {}", indices.len())));
    }
    let count_of_entries = shape.iter().product::<usize>();
    if entries.elements.len() != count_of_entries {
        return Err(wrong(format!(
            "tables of shape {shape:?} must have {count_of_entries} entries, got {}",
            entries.elements.len()
        )));
    }
    if let Some(index) = indices.iter().find(|&&index| usize::from(index) >= 1 << bits) {
        return Err(wrong(format!("index {index} must be less than {}", 1 << bits)));
    }
    let is_divided = places.iter().zip(shape).all(|(all, part)| *part > 0 && all % part == 0);
    if !is_divided {
        return Err(wrong(format!("tables of shape {shape:?} do not divide {places:?}")));
    }
    let is_single = shape[..rank].iter().all(|&count| count == 1) && vector == 1 && *bits != 3;
    if opset < Opset::Ios18 && !is_single {
        return Err(wrong(format!(
            "several tables, vectors and 3 bits need iOS18; the program targets {opset}"
        )));
    }
    let sizes = vec![0; rank];
    let blocks = Blocks::new(&weight.shape, &sizes).ok_or("it has no axes")?;
    let form = CompressionConfig::default();
    let parameters = String::new();
    let builder = Builder { weight, form: &form, opset, sizes, blocks, parameters };
    let mut packed = vec![0; (count * *bits as usize).div_ceil(8)];
    pack(*bits, indices, &mut packed);
    let mut op = Op::new(OpKind::ConstexprLutToDense);
    if opset < Opset::Ios18 {
        let bytes = packed.len() as u64;
        op.attributes.insert("indices", Constant::by_size(DType::UInt8, &[bytes], packed));
        op.attributes.insert("lut", builder.floats(&[1 << bits], &entries.elements));
        op.attributes.insert("shape", builder.stated_shape());
    } else {
        let long = |sizes: &[usize]| sizes.iter().map(|&size| size as u64).collect::<Vec<_>>();
        let indices = Constant::by_size(unsigned(*bits), &long(&places), packed);
        let lut = builder.floats(&long(shape), &entries.elements);
        op = op.with("indices", Binding::Literal(indices)).with("lut", Binding::Literal(lut));
        if let Some(axis) = *vector_axis {
            op = op.with("vector_axis", Binding::Literal(Constant::int32(axis as i32)));
        }
    }
    builder.built(vec![ConstexprStage::new(op, "palettized")], (1.0, 0.0))
}
