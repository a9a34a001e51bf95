//! Constants created by rules, deduplicated by content and added as inputs of the program.

use coremill_pt2::{
    Argument, ExportedProgram, InputKind, Meta, ScalarType, Size, StoredValue, Tensor as Weight,
};
use coremill_tensor::Buffer;

use super::Frame;
use super::call::{Call, Tensor, meta};
use super::size;
use crate::error::{Result, refuse};

/// A constant created by a rule.
pub(crate) struct Constant {
    pub(crate) tensor: Tensor,
    elements: Vec<u8>,
}

impl Constant {
    /// Converts the constant to a stored weight.
    pub(crate) fn stored(self, name: String) -> Weight {
        let sizes: Vec<u64> =
            self.tensor.sizes.iter().filter_map(Size::fixed).map(|size| size as u64).collect();
        let strides = size::strides(&self.tensor.sizes);
        let strides = strides.iter().filter_map(Size::fixed).map(|stride| stride as u64).collect();
        Weight {
            dtype: self.tensor.dtype,
            sizes,
            strides,
            offset: 0,
            storage: Buffer::from(self.elements),
            storage_name: name,
            is_parameter: false,
        }
    }
}

impl Frame {
    /// Adds the new constants to the program of this graph, as its first inputs.
    pub(crate) fn store(self, program: &mut ExportedProgram) {
        let Frame { mut graph, constants, .. } = self;
        for (number, constant) in constants.into_iter().enumerate() {
            let mut name = format!("_matrix_{number}");
            while program.tensors.contains_key(&name) {
                name.push('_');
            }
            graph.inputs.insert(number, Argument::Value(constant.tensor.id));
            program.inputs.insert(number, InputKind::TensorConstant(name.clone()));
            program.tensors.insert(name.clone(), StoredValue::Tensor(constant.stored(name)));
        }
        program.graph = graph;
    }
}

impl Call<'_> {
    /// A constant float tensor.
    pub(crate) fn constant(&mut self, sizes: &[u64], elements: &[f32]) -> Result<Tensor> {
        let bytes = elements.iter().flat_map(|element| element.to_le_bytes()).collect();
        self.stored_constant(ScalarType::Float32, sizes, bytes)
    }

    /// A constant integer vector.
    pub(crate) fn constant_ints(&mut self, elements: &[i64]) -> Result<Tensor> {
        let bytes = elements.iter().flat_map(|element| element.to_le_bytes()).collect();
        self.stored_constant(ScalarType::Int64, &[elements.len() as u64], bytes)
    }

    fn stored_constant(
        &mut self,
        dtype: ScalarType,
        sizes: &[u64],
        elements: Vec<u8>,
    ) -> Result<Tensor> {
        if self.frame.is_nested {
            refuse!("`{}` needs a constant, which a nested graph cannot hold", self.node.target);
        }
        let sizes: Vec<Size> = sizes.iter().map(|size| Size::Fixed(*size as i64)).collect();
        let same = |known: &&Constant| {
            known.tensor.dtype == dtype && known.tensor.sizes == sizes && known.elements == elements
        };
        if let Some(known) = self.frame.constants.iter().find(same) {
            return Ok(known.tensor.clone());
        }
        let id = self.frame.define("_matrix", Meta::Tensor(meta(dtype, sizes.clone())))?;
        let tensor = Tensor { id, dtype, sizes };
        self.frame.constants.push(Constant { tensor: tensor.clone(), elements });
        Ok(tensor)
    }
}
