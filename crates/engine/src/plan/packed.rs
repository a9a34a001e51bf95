//! Weights as kernels take them, made once and shared by every plan that is alive.

use std::any::Any;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use coremill_kernels::matmul::{Order, PackedWeights, PanelSource, Precision};
use coremill_mil::ir::ValueId;
use coremill_tensor::Buffer;

use super::held::WeakMap;
use super::kernel::CpuContext;

/// The packed weights of a function.
#[derive(Default)]
pub(crate) struct PackedConstants {
    pub(super) matrices: Mutex<WeakMap<Key, Matrix>>,
    pub(super) others: Mutex<WeakMap<(ValueId, String), dyn Any + Send + Sync>>,
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

impl Matrix {
    /// One that is packed when it is used again.
    pub(super) fn new(
        machine: &CpuContext,
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
    pub(super) fn kept(plain: PackedWeights) -> Matrix {
        let (left, packed) = Default::default();
        Matrix { plain, left, source: None, data: None, packed }
    }

    /// The same, packed after so many products.
    pub(super) fn packed_after(self, products: usize) -> Matrix {
        Matrix { left: AtomicUsize::new(products), ..self }
    }

    /// For one more product.
    pub(crate) fn for_use(&self, machine: &CpuContext) -> &PackedWeights {
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
    pub(crate) fn packed(&self, machine: &CpuContext) -> &PackedWeights {
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
pub(super) type Key = (ValueId, usize, usize, OrderKey);

/// [`Order`], to be looked up.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[expect(clippy::enum_variant_names, reason = "the names are those of `Order`")]
pub(super) enum OrderKey {
    OutputsFirst,
    InputsFirst,
    ChannelsFirst(usize),
}

impl OrderKey {
    pub(super) fn of(order: Order) -> OrderKey {
        match order {
            Order::OutputsFirst => OrderKey::OutputsFirst,
            Order::InputsFirst => OrderKey::InputsFirst,
            Order::ChannelsFirst { taps } => OrderKey::ChannelsFirst(taps),
        }
    }
}

impl PackedConstants {
    /// Takes over what was made of values that are the same.
    pub(super) fn inherit(&self, other: &PackedConstants, is_same: impl Fn(ValueId) -> bool) {
        let mut matrices = self.matrices.lock().unwrap_or_else(PoisonError::into_inner);
        let theirs = other.matrices.lock().unwrap_or_else(PoisonError::into_inner);
        matrices.inherit(&theirs, |(value, ..)| is_same(*value));
        let mut others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        let theirs = other.others.lock().unwrap_or_else(PoisonError::into_inner);
        others.inherit(&theirs, |(value, _)| is_same(*value));
    }

    /// Packs what is to be used.
    pub(crate) fn prepare(&self, machine: &CpuContext) {
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
