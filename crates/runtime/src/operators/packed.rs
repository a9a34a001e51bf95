//! Cache of weights in the kernels' layout.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use coremill_kernels::matmul::PackedWeights;
use coremill_pte::program::ScalarType;

use crate::slot::Origin;
use crate::view::View;

/// Rearranged weights of a convolution.
pub(crate) enum PackedConvolution {
    /// One filter per channel.
    Depthwise(Vec<f32>),
    /// One matrix per group.
    Groups(Vec<PackedWeights>),
}

impl PackedConvolution {
    fn bytes(&self) -> usize {
        match self {
            PackedConvolution::Depthwise(weights) => size_of_val(&weights[..]),
            PackedConvolution::Groups(groups) => groups.iter().map(PackedWeights::bytes).sum(),
        }
    }
}

/// Cache key: everything that the layout depends on.
#[derive(PartialEq, Eq, Hash)]
struct Key {
    origin: Origin,
    dtype: ScalarType,
    sizes: Vec<usize>,
    order: Vec<u8>,
    groups: usize,
}

/// The rearranged weights of a program, shared by all methods and threads.
pub(crate) struct Cache {
    /// Maximum size in bytes.
    limit: u64,
    held: Mutex<CachedWeights>,
}

#[derive(Default)]
struct CachedWeights {
    bytes: u64,
    entries: HashMap<Key, Arc<PackedConvolution>>,
}

impl Cache {
    pub(crate) fn new(limit: u64) -> Cache {
        Cache { limit, held: Mutex::default() }
    }

    /// Returns rearranged weights. Weights that are not part of the program or exceed the limit are rearranged on
    /// each call.
    pub(crate) fn get(
        &self,
        origin: Option<&Origin>,
        weight: View,
        groups: usize,
        pack: impl FnOnce() -> PackedConvolution,
    ) -> Arc<PackedConvolution> {
        let Some(origin) = origin else { return Arc::new(pack()) };
        let key = Key {
            origin: origin.clone(),
            dtype: weight.dtype,
            sizes: weight.sizes.to_vec(),
            order: weight.order.to_vec(),
            groups,
        };
        if let Some(packed) = self.held().entries.get(&key) {
            return Arc::clone(packed);
        }
        // The lock is not held while packing; other threads may look up weights or pack the same ones.
        let packed = Arc::new(pack());
        let mut held = self.held();
        let bytes = held.bytes.saturating_add(packed.bytes() as u64);
        if bytes <= self.limit && !held.entries.contains_key(&key) {
            held.bytes = bytes;
            held.entries.insert(key, Arc::clone(&packed));
        }
        packed
    }

    fn held(&self) -> std::sync::MutexGuard<'_, CachedWeights> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(
        cache: &Cache,
        origin: Option<&Origin>,
        groups: usize,
    ) -> (Arc<PackedConvolution>, bool) {
        let mut is_new = false;
        let weight = View { dtype: ScalarType::Float, sizes: &[4, 1], order: &[0, 1], bytes: &[] };
        let found = cache.get(origin, weight, groups, || {
            is_new = true;
            PackedConvolution::Depthwise(vec![groups as f32; 4])
        });
        (found, is_new)
    }

    #[test]
    fn caches_packed_weights_within_limit() {
        let cache = Cache::new(40);
        let [first, second] = [Origin::Constant(0), Origin::External("weight".into())];
        assert!(packed(&cache, Some(&first), 1).1);
        let (again, is_new) = packed(&cache, Some(&first), 1);
        assert!(
            !is_new
                && matches!(&*again, PackedConvolution::Depthwise(weights) if weights == &[1.0; 4])
        );
        // A different number of groups uses a separate entry.
        assert!(packed(&cache, Some(&first), 2).1);
        assert!(!packed(&cache, Some(&first), 2).1);
        // There are 8 bytes left.
        assert!(packed(&cache, Some(&second), 1).1 && packed(&cache, Some(&second), 1).1);
        assert_eq!(cache.held().bytes, 32);
    }

    #[test]
    fn does_not_cache_caller_provided_weights() {
        let cache = Cache::new(u64::MAX);
        assert!(packed(&cache, None, 1).1 && packed(&cache, None, 1).1);
        assert_eq!(cache.held().bytes, 0);
    }
}
