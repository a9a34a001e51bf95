//! Weights as kernels take them, made once and shared by every plan that is alive.

use std::any::Any;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use coremill_mil::ir::{Definition, ValueId};
use coremill_mil::ops::OpKind;
use coremill_tensor::kernels::matmul::{DenseSource, Order, PackedWeights, PanelSource, Precision};
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
    matrices: Mutex<Held<Key, Matrix>>,
    others: Mutex<Held<(ValueId, String), dyn Any + Send + Sync>>,
}

/// A constant matrix. The first product goes through it where it lies, which is hardly slower; packing it takes as long as
/// reading it several times, and is for matrices that are used again.
pub(crate) struct Matrix {
    /// As it lies.
    plain: PackedWeights,
    /// How many more products go through it so.
    left: AtomicUsize,
    /// What it is packed of, and in which precision; none if it is to stay as it is.
    source: Option<(Arc<dyn PanelSource>, Precision)>,
    /// The stored elements, whose pages need not stay in memory beside the packed ones.
    data: Option<Buffer>,
    packed: OnceLock<PackedWeights>,
}

/// Packing takes about as long as two runs, so a fourth of the matrices is packed by the second run, another by the third
/// and so on.
const RUNS: usize = 4;

impl Matrix {
    /// One that is packed when it is used again.
    fn new(
        machine: &Machine,
        [inputs, outputs]: [usize; 2],
        precision: Precision,
        source: Arc<dyn PanelSource>,
        data: Option<Buffer>,
    ) -> Matrix {
        let plain = PackedWeights::keep(machine.isa, inputs, outputs, Arc::clone(&source));
        let source = Some((source, precision));
        Matrix { source, data, ..Matrix::kept(plain) }
    }

    /// One that stays as it is.
    fn kept(plain: PackedWeights) -> Matrix {
        let (left, packed) = Default::default();
        Matrix { plain, left, source: None, data: None, packed }
    }

    /// For one more product.
    pub(crate) fn for_use(&self, machine: &Machine) -> &PackedWeights {
        match self.packed.get() {
            Some(packed) => packed,
            None => {
                let less = |left: usize| left.checked_sub(1);
                match self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less) {
                    Ok(_) => &self.plain,
                    Err(_) => self.packed(machine),
                }
            }
        }
    }

    /// As kernels read it fastest; as it lies, if it is to stay so.
    pub(crate) fn packed(&self, machine: &Machine) -> &PackedWeights {
        let Some((source, precision)) = &self.source else { return &self.plain };
        self.packed.get_or_init(|| {
            let (inputs, outputs) = (self.plain.inputs(), self.plain.outputs());
            let (pool, isa) = (&machine.pool, machine.isa);
            let packed = PackedWeights::pack(pool, isa, inputs, outputs, *precision, &**source);
            // Who reads the pages of the file again brings them back.
            self.data.iter().for_each(Buffer::release_pages);
            packed
        })
    }
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

    /// Packs what is to be used.
    pub(crate) fn prepare(&self, machine: &Machine) {
        let matrices = self.matrices.lock().unwrap_or_else(PoisonError::into_inner).all();
        for matrix in matrices {
            matrix.packed(machine);
        }
    }

    /// Lets go of what was made of some values.
    pub(super) fn forget(&self, is_gone: impl Fn(ValueId) -> bool) {
        let mut matrices = self.matrices.lock().unwrap_or_else(PoisonError::into_inner);
        matrices.forget(|(value, ..)| is_gone(*value));
        let mut others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        others.forget(|(value, _)| is_gone(*value));
    }
}

impl Source {
    /// A constant as a matrix from inputs to outputs.
    pub(crate) fn matrix(
        &self,
        machine: &Machine,
        known: &Known,
        inputs: usize,
        outputs: usize,
        order: Order,
    ) -> Result<Arc<Matrix>> {
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
        let mut matrices = matrices();
        let left = AtomicUsize::new(1 + matrices.len() % RUNS);
        let matrix = Arc::new(Matrix { left, ..matrix });
        if let Some(key) = key {
            matrices.insert(key, &matrix);
        }
        Ok(matrix)
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
    ) -> Option<Matrix> {
        let weights = self.weights(known).filter(Weights::is_compressed)?;
        // Tables of vectors stand for far more elements than they take bytes.
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
        let array = known.elements(self)?;
        let floats = array.as_floats().unwrap_or_default();
        let bytes: Vec<u8> = floats.iter().flat_map(|float| float.to_le_bytes()).collect();
        Ok((Buffer::from(bytes), DType::Fp32))
    }
}
