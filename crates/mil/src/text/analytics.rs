//! The dialect of `analytics.mil`, which Core ML writes beside the programs in its cache on a Mac: the program with the
//! device that each operation runs on.
//!
//! ```text
//! func main<ios18>(tensor_buffer<fp16, shape=[1, 4], strides=[32, 1], interleave_factors=[1, 1]> x) {
//!         tensor<fp16, [1, 4]> x_0 = tensor_buffer_to_tensor<ios17>(input = x)[SelectedBackend = string("ane")];
//! ```
//!
//! Such a text is read as the program that it describes. A buffer is a tensor, whose layout stands in the attribute
//! [`LAYOUTS`] of the function; an operation that turns one into the other is `identity`; the opset of an operation is its
//! attribute [`OPSET`], if it is not the function's. What Core ML notes of each operation (`BackendSupport`,
//! `EstimatedRuntime`, `SelectedBackend`, `ValidationMessage`) stays in its attributes.

use std::collections::BTreeMap;

use coremill_tensor::DType;

use super::cursor::BufferLayout;
use crate::ir::{Constant, ConstantData, Dim, TensorType, Type};

/// The attribute of functions with the layouts of buffers: for each one, numbers for each dimension by name.
pub(super) const LAYOUTS: &str = "BufferLayouts";

/// The attribute of operations with their opset.
pub(super) const OPSET: &str = "opset";

/// Whether an operation only turns a buffer into a tensor, or the reverse.
pub(super) fn is_conversion(name: &str) -> bool {
    matches!(name, "tensor_buffer_to_tensor" | "tensor_to_tensor_buffer")
}

/// The value of [`LAYOUTS`]. An unknown number is −1.
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
