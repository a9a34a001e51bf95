//! The dialect of `analytics.mil`: the program with the device of each operation. Core ML on a Mac writes
//! this file next to the programs in its cache.
//!
//! ```text
//! func main<ios18>(tensor_buffer<fp16, shape=[1, 4], strides=[32, 1], interleave_factors=[1, 1]> x) {
//!         tensor<fp16, [1, 4]> x_0 = tensor_buffer_to_tensor<ios17>(input = x)[SelectedBackend = string("ane")];
//! ```
//!
//! The text is read as the program that it describes. A buffer becomes a tensor; its layout is stored in the
//! function's attribute [`LAYOUTS`]. Conversions between buffers and tensors become `identity`. If the opset
//! of an operation differs from the function's, it is stored in the attribute [`OPSET`]. Core ML's notes
//! about an operation (`BackendSupport`, `EstimatedRuntime`, `SelectedBackend`, `ValidationMessage`) remain
//! attributes.

use std::collections::BTreeMap;

use coremill_tensor::DType;

use super::cursor::BufferLayout;
use crate::ir::{Constant, ConstantData, Dim, TensorType, Type};

/// Function attribute with the layouts of buffers. A layout maps names to one number for each dimension.
pub(super) const LAYOUTS: &str = "BufferLayouts";

/// Operation attribute with the operation's opset.
pub(super) const OPSET: &str = "opset";

/// Whether an operation only converts between a buffer and a tensor.
pub(super) fn is_conversion(name: &str) -> bool {
    matches!(name, "tensor_buffer_to_tensor" | "tensor_to_tensor_buffer")
}

/// Builds the value of [`LAYOUTS`]. Unknown numbers are −1.
pub(super) fn layouts(layouts: &BTreeMap<String, BufferLayout>) -> Constant {
    let numbers = Type::Tensor(TensorType { dtype: DType::Int64, shape: vec![Dim::Unknown] });
    let of_one = |layout: &BufferLayout| {
        let entries = layout.iter().map(|(name, numbers)| {
            let bytes: Vec<u8> = (numbers.iter())
                .flat_map(|number| number.map_or(-1, |number| number as i64).to_le_bytes())
                .collect();
            let shape = [numbers.len() as u64];
            (Constant::string(name.as_str()), Constant::bytes(DType::Int64, &shape, bytes))
        });
        dictionary(numbers.clone(), entries.collect())
    };
    let value = dictionary(numbers.clone(), Vec::new()).ty;
    let entries = layouts.iter();
    let entries = entries.map(|(name, layout)| (Constant::string(name.as_str()), of_one(layout)));
    dictionary(value, entries.collect())
}

fn dictionary(value: Type, entries: Vec<(Constant, Constant)>) -> Constant {
    let ty = Type::Dictionary(Box::new(Type::scalar(DType::String)), Box::new(value));
    Constant { ty, data: ConstantData::Entries(entries) }
}
