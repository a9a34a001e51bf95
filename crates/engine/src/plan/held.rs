//! A map of weak references.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Weak};

/// Shared values by key, kept alive by their users. Dead entries are removed each time the map has
/// doubled, so that insertion takes amortized constant time.
pub(super) struct WeakMap<K, V: ?Sized> {
    values: HashMap<K, Weak<V>>,
    sweep_at: usize,
}

/// Number of keys before the first removal of dead entries.
const FEW: usize = 64;

impl<K, V: ?Sized> Default for WeakMap<K, V> {
    fn default() -> Self {
        WeakMap { values: HashMap::new(), sweep_at: FEW }
    }
}

impl<K: Eq + Hash, V: ?Sized> WeakMap<K, V> {
    /// The value of a key, if it is still alive.
    pub(super) fn get<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> Option<Arc<V>>
    where
        K: Borrow<Q>,
    {
        self.values.get(key)?.upgrade()
    }

    /// Copies the entries whose keys are selected from another map.
    pub(super) fn inherit(&mut self, other: &Self, is_kept: impl Fn(&K) -> bool)
    where
        K: Clone,
    {
        let kept = other.values.iter().filter(|(key, _)| is_kept(key));
        self.values.extend(kept.map(|(key, value)| (key.clone(), Weak::clone(value))));
    }

    /// The values that are alive.
    pub(super) fn all(&self) -> Vec<Arc<V>> {
        self.values.values().filter_map(Weak::upgrade).collect()
    }

    /// Removes selected keys.
    pub(super) fn forget(&mut self, is_gone: impl Fn(&K) -> bool) {
        self.values.retain(|key, _| !is_gone(key));
    }

    pub(super) fn insert(&mut self, key: K, value: &Arc<V>) {
        if self.values.len() >= self.sweep_at {
            self.values.retain(|_, value| value.strong_count() > 0);
            self.sweep_at = (2 * self.values.len()).max(FEW);
        }
        self.values.insert(key, Arc::downgrade(value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sweeps_dead_keys_and_keeps_live_values() {
        let mut held = WeakMap::default();
        let kept: Vec<Arc<usize>> = (0..3 * FEW).map(Arc::new).collect();
        for (key, value) in kept.iter().enumerate() {
            held.insert(key, value);
        }
        for key in 0..100 * FEW {
            held.insert(1000 + key, &Arc::new(key));
        }
        assert!(held.values.len() <= 8 * FEW, "{} keys", held.values.len());
        assert!(kept.iter().enumerate().all(|(key, value)| held.get(&key).as_ref() == Some(value)));
        assert_eq!(held.get(&1000), None);
    }
}
