//! Constant matrices and other data derived from constants, shared by all live plans.

use std::any::Any;
use std::sync::{Arc, PoisonError};

use coremill_kernels::matmul::{DenseSource, Order, PackedWeights, Precision};
use coremill_kernels::stored::StoredPanels;
use coremill_mil::ir::Definition;
use coremill_mil::ops::OpKind;
use coremill_reference::call::count_within;
use coremill_reference::error::Result;
use coremill_tensor::{Buffer, DType};

use super::constant::ConstantTensor;
use super::kernel::CpuContext;
use super::packed::{Matrix, OrderKey};
use super::source::FunctionContext;
use crate::weights::{WeightPanels, Weights};

impl FunctionContext {
    /// A constant as an `inputs` × `outputs` matrix.
    pub(crate) fn matrix(
        &self,
        machine: &CpuContext,
        known: &ConstantTensor,
        inputs: usize,
        outputs: usize,
        order: Order,
    ) -> Result<Arc<Matrix>> {
        let key = known.value.map(|value| (value, inputs, outputs, OrderKey::of(order)));
        let matrices = || self.packed.matrices.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(key) = key
            && let Some(found) = matrices().get(&key)
        {
            return Ok(found);
        }
        let matrix = match self.compressed(machine, known, inputs, outputs, order) {
            Some(matrix) => matrix,
            None => {
                let (data, dtype) = self.stored(known)?;
                let isa = machine.isa;
                let source = DenseSource::new(isa, data.clone(), dtype, inputs, outputs, order);
                let fp16 = dtype == DType::Fp16;
                let precision = if fp16 { Precision::F16 } else { Precision::F32 };
                Matrix::new(machine, [inputs, outputs], precision, Arc::new(source), Some(data))
            }
        };
        let products = self.packed.products_before_packing(inputs.saturating_mul(outputs));
        let matrix = Arc::new(matrix.packed_after(products));
        if let Some(key) = key {
            matrices().insert(key, &matrix);
        }
        Ok(matrix)
    }

    /// The matrix of a compressed constant. If kernels support its encoding, they read it directly.
    /// Otherwise it is packed without expanding the whole constant.
    fn compressed(
        &self,
        machine: &CpuContext,
        known: &ConstantTensor,
        inputs: usize,
        outputs: usize,
        order: Order,
    ) -> Option<Matrix> {
        let weights = self.weights(known).filter(Weights::is_compressed)?;
        // A vector palette expands to far more elements than it has bytes.
        count_within(&[inputs, outputs], &self.limits).ok()?;
        let rows = if order == Order::InputsFirst { inputs } else { outputs };
        let isa = machine.isa;
        if let Some(stored) = weights.stored(rows)
            && stored.rows().checked_mul(stored.columns())? == inputs.checked_mul(outputs)?
        {
            let panels = Arc::new(StoredPanels::new(isa, stored, order));
            return Some(Matrix::kept(PackedWeights::keep(isa, inputs, outputs, panels)));
        }
        let precision = if weights.fits_fp16() { Precision::F16 } else { Precision::F32 };
        let panels = WeightPanels::new(weights, inputs, outputs, order)?;
        Some(Matrix::new(machine, [inputs, outputs], precision, Arc::new(panels), None))
    }

    /// Data derived from a constant. `form` identifies the derivation; live data is shared.
    pub(crate) fn made<T: Any + Send + Sync>(
        &self,
        known: &ConstantTensor,
        form: String,
        make: impl FnOnce() -> Result<T>,
    ) -> Result<Arc<T>> {
        let Some(value) = known.value else { return make().map(Arc::new) };
        let key = (value, form);
        let others = || self.packed.others.lock().unwrap_or_else(PoisonError::into_inner);
        let held = others().get(&key);
        if let Some(Ok(found)) = held.map(Arc::downcast::<T>) {
            return Ok(found);
        }
        let made = Arc::new(make()?);
        let held: Arc<dyn Any + Send + Sync> = Arc::<T>::clone(&made);
        others().insert(key, &held);
        Ok(made)
    }

    /// The elements of a constant as stored in the program or its weight file, or as computed if it
    /// is not stored.
    pub(crate) fn stored(&self, known: &ConstantTensor) -> Result<(Buffer, DType)> {
        if let Some(value) = known.value
            && let Definition::Output(op, _) = self.function.value(value).definition
            && self.function.op(op).kind() == Some(OpKind::Const)
            && let Some(constant) = self.function.op(op).attributes.get("val")
            && let Some(elements) = constant.elements()
            && matches!(known.dtype, DType::Fp16 | DType::Fp32 | DType::Bf16)
        {
            return Ok((elements.clone(), known.dtype));
        }
        let array = known.elements(self)?;
        let floats = array.as_floats().unwrap_or_default();
        let bytes: Vec<u8> = floats.iter().flat_map(|float| float.to_le_bytes()).collect();
        Ok((Buffer::from(bytes), DType::Fp32))
    }
}
