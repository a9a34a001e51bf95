//! Weights as kernels take them, made once and shared by every plan that is alive.

use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError};

use coremill_mil::ir::{Definition, ValueId};
use coremill_mil::ops::OpKind;
use coremill_tensor::kernels::matmul::{DenseSource, Order, PackedWeights, Precision};
use coremill_tensor::kernels::stored::StoredPanels;
use coremill_tensor::{Buffer, DType};

use super::held::Held;
use super::kernel::Machine;
use super::known::{Known, Source};
use crate::call::count_within;
use crate::error::Result;
use crate::weights::{WeightPanels, Weights};

/// The packed weights of a function.
#[derive(Default)]
pub(crate) struct Packed {
    matrices: Mutex<Held<Key, PackedWeights>>,
    others: Mutex<Held<(ValueId, String), dyn Any + Send + Sync>>,
}

/// Which weights, and as what matrix.
type Key = (ValueId, usize, usize, OrderKey);

/// [`Order`], to be looked up.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[expect(clippy::enum_variant_names, reason = "the names are those of `Order`")]
enum OrderKey {
    OutputsFirst,
    InputsFirst,
    ChannelsFirst(usize),
}

/// Elements of a large constant.
const LARGE: usize = 1 << 16;

impl Packed {
    /// Takes over what was made of values that are the same.
    pub(super) fn inherit(&self, other: &Packed, is_same: impl Fn(ValueId) -> bool) {
        let mut matrices = self.matrices.lock().unwrap_or_else(PoisonError::into_inner);
        let theirs = other.matrices.lock().unwrap_or_else(PoisonError::into_inner);
        matrices.inherit(&theirs, |(value, ..)| is_same(*value));
        let mut others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        let theirs = other.others.lock().unwrap_or_else(PoisonError::into_inner);
        others.inherit(&theirs, |(value, _)| is_same(*value));
    }
}

impl Source {
    /// A constant as a matrix from inputs to outputs, packed.
    pub(crate) fn packed(
        &self,
        machine: &Machine,
        known: &Known,
        inputs: usize,
        outputs: usize,
        order: Order,
    ) -> Result<Arc<PackedWeights>> {
        let order_key = match order {
            Order::OutputsFirst => OrderKey::OutputsFirst,
            Order::InputsFirst => OrderKey::InputsFirst,
            Order::ChannelsFirst { taps } => OrderKey::ChannelsFirst(taps),
        };
        let key = known.value.map(|value| (value, inputs, outputs, order_key));
        let matrices = || self.packed.matrices.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(key) = key
            && let Some(found) = matrices().get(&key)
        {
            return Ok(found);
        }
        let packed = match self.compressed(machine, known, inputs, outputs, order) {
            Some(packed) => packed,
            None => {
                let (data, dtype) = self.stored(known)?;
                let isa = machine.isa;
                let source = DenseSource::new(isa, data.clone(), dtype, inputs, outputs, order);
                let fp16 = dtype == DType::Fp16;
                let precision = if fp16 { Precision::F16 } else { Precision::F32 };
                let pool = &machine.pool;
                let packed = PackedWeights::pack(pool, isa, inputs, outputs, precision, &source);
                // The pages of the file need not stay beside the copy; who reads them again brings them back.
                data.release_pages();
                packed
            }
        };
        let packed = Arc::new(packed);
        if let Some(key) = key {
            matrices().insert(key, &packed);
        }
        Ok(packed)
    }

    /// What a constant is, if it lies in the program or above compressed data that does.
    pub(crate) fn weights(&self, known: &Known) -> Option<Weights> {
        Weights::of(&self.function, known.value?, self.precision)
    }

    /// The same of a constant that is compressed, and so large that the integers that reference kernels
    /// make of its codes would be in the way.
    pub(super) fn large_weights(&self, known: &Known) -> Option<Weights> {
        let count = count_within(&known.shape, &self.limits).ok()?;
        let weights = if count >= LARGE { self.weights(known)? } else { return None };
        (weights.is_compressed() && weights.shape == known.shape).then_some(weights)
    }

    /// The matrix of a compressed constant: as it lies in memory if kernels know its form, else packed
    /// without ever being expanded as a whole.
    fn compressed(
        &self,
        machine: &Machine,
        known: &Known,
        inputs: usize,
        outputs: usize,
        order: Order,
    ) -> Option<PackedWeights> {
        let weights = self.weights(known).filter(Weights::is_compressed)?;
        // Tables of vectors stand for far more elements than they take bytes.
        count_within(&[inputs, outputs], &self.limits).ok()?;
        let rows = if order == Order::InputsFirst { inputs } else { outputs };
        let (pool, isa) = (&machine.pool, machine.isa);
        if let Some(stored) = weights.stored(rows)
            && stored.rows().checked_mul(stored.columns())? == inputs.checked_mul(outputs)?
        {
            let panels = Arc::new(StoredPanels::new(isa, stored, order));
            return Some(PackedWeights::keep(isa, inputs, outputs, panels));
        }
        let precision = if weights.fits_fp16() { Precision::F16 } else { Precision::F32 };
        let panels = WeightPanels::new(weights, inputs, outputs, order)?;
        Some(PackedWeights::pack(pool, isa, inputs, outputs, precision, &panels))
    }

    /// What is made of a constant, under a name that says how.
    pub(crate) fn made<T: Any + Send + Sync>(
        &self,
        known: &Known,
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

    /// The floats of a constant as they lie in the program or in its weight file; of one that is computed,
    /// what was computed.
    pub(crate) fn stored(&self, known: &Known) -> Result<(Buffer, DType)> {
        if let Some(value) = known.value
            && let Definition::Output(op, _) = self.function.value(value).definition
            && self.function.op(op).kind() == Some(OpKind::Const)
            && let Some(constant) = self.function.op(op).attributes.get("val")
            && let Some(elements) = constant.elements()
            && matches!(known.dtype, DType::Fp16 | DType::Fp32 | DType::Bf16)
        {
            return Ok((elements.clone(), known.dtype));
        }
        let floats = known.array(self)?.as_floats().unwrap_or_default();
        let bytes: Vec<u8> = floats.iter().flat_map(|float| float.to_le_bytes()).collect();
        Ok((Buffer::from(bytes), DType::Fp32))
    }
}
