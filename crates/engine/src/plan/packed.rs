//! Packed weights, shared by all live plans.

use std::any::Any;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use coremill_kernels::matmul::{Order, PackedWeights, PanelSource, Precision};
use coremill_mil::ir::ValueId;
use coremill_tensor::Buffer;

use super::held::WeakMap;
use super::kernel::CpuContext;

/// Number of runs over which packing is spread: about a tenth of the elements is packed in the first run, another
/// in the second, and so on. Packing all of them takes about as long as a run, and products in the stored layout
/// take up to 1.25 times as long, so that no run after the first takes 1.3 times as long as later ones.
const RUNS: usize = 10;

/// The packed weights of a function.
#[derive(Default)]
pub(crate) struct PackedConstants {
    pub(super) matrices: Mutex<WeakMap<Key, Matrix>>,
    /// Number of elements that are packed in each of these runs.
    scheduled: Mutex<[usize; RUNS]>,
    pub(super) others: Mutex<WeakMap<(ValueId, String), dyn Any + Send + Sync>>,
}

/// A constant matrix. The first products read it in its stored layout, which is a little slower.
/// Packing takes as long as several reads, so it only pays off for matrices that are used again.
pub(crate) struct Matrix {
    /// The matrix in its stored layout.
    plain: PackedWeights,
    /// Number of further products in the stored layout.
    left: AtomicUsize,
    /// Source and precision for packing. `None` if the matrix stays in its stored layout.
    source: Option<(Arc<dyn PanelSource>, Precision)>,
    /// The stored elements. Their pages are released after packing.
    data: Option<Buffer>,
    packed: OnceLock<PackedWeights>,
}

impl Matrix {
    /// A matrix that is packed when it is used again.
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

    /// A matrix that stays in its stored layout.
    pub(super) fn kept(plain: PackedWeights) -> Matrix {
        let (left, packed) = Default::default();
        Matrix { plain, left, source: None, data: None, packed }
    }

    /// Sets the number of products before packing.
    pub(super) fn packed_after(self, products: usize) -> Matrix {
        Matrix { left: AtomicUsize::new(products), ..self }
    }

    /// The weights for one more product. Packs the matrix when its unpacked products are used up.
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

    /// The packed weights, or the stored ones if this matrix is never packed.
    pub(crate) fn packed(&self, machine: &CpuContext) -> &PackedWeights {
        let Some((source, precision)) = &self.source else { return &self.plain };
        self.packed.get_or_init(|| {
            let (inputs, outputs) = (self.plain.inputs(), self.plain.outputs());
            let (pool, isa) = (&machine.pool, machine.isa);
            let packed = PackedWeights::pack(pool, isa, inputs, outputs, *precision, &**source);
            // Later reads of the file load the pages again.
            self.data.iter().for_each(Buffer::release_pages);
            packed
        })
    }
}

/// The constant and its interpretation as a matrix.
pub(super) type Key = (ValueId, usize, usize, OrderKey);

/// A hashable [`Order`].
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
    /// Shares data derived from equal constants.
    pub(super) fn inherit(&self, other: &PackedConstants, is_same: impl Fn(ValueId) -> bool) {
        let mut matrices = self.matrices.lock().unwrap_or_else(PoisonError::into_inner);
        let theirs = other.matrices.lock().unwrap_or_else(PoisonError::into_inner);
        matrices.inherit(&theirs, |(value, ..)| is_same(*value));
        let mut others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        let theirs = other.others.lock().unwrap_or_else(PoisonError::into_inner);
        others.inherit(&theirs, |(value, _)| is_same(*value));
    }

    /// Number of products of a matrix with this number of elements before it is packed. All runs that pack
    /// have a similar number of elements.
    pub(super) fn products_before_packing(&self, elements: usize) -> usize {
        let mut scheduled = self.scheduled.lock().unwrap_or_else(PoisonError::into_inner);
        let least = (0..RUNS).min_by_key(|&run| scheduled[run]).unwrap_or_default();
        scheduled[least] = scheduled[least].saturating_add(elements);
        least
    }

    /// Packs all matrices.
    pub(crate) fn prepare(&self, machine: &CpuContext) {
        let matrices = self.matrices.lock().unwrap_or_else(PoisonError::into_inner).all();
        for matrix in matrices {
            matrix.packed(machine);
        }
    }

    /// Drops data derived from some values.
    pub(super) fn forget(&self, is_gone: impl Fn(ValueId) -> bool) {
        let mut matrices = self.matrices.lock().unwrap_or_else(PoisonError::into_inner);
        matrices.forget(|(value, ..)| is_gone(*value));
        let mut others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        others.forget(|(value, _)| is_gone(*value));
    }
}
