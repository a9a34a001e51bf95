//! Reuse of result memory in later runs.

use std::sync::Arc;

use crate::value::Value;

/// Results of the last two runs. Memory that the caller has released is reused for the results of
/// the next run. Fresh memory is expensive, since the system clears each page.
#[derive(Default)]
pub(crate) struct BufferPool(Vec<Entry>);

struct Entry {
    elements: Arc<Vec<f32>>,
    /// Number of runs since this was a result.
    age: usize,
}

/// Minimum number of elements for reuse. Smaller allocations are cheap.
const WORTH: usize = 1 << 12;

impl BufferPool {
    /// Returns memory for `count` elements. Its contents are arbitrary.
    pub(crate) fn take(&mut self, count: usize) -> Vec<f32> {
        let fits = |entry: &Entry| {
            entry.elements.len() == count && Arc::strong_count(&entry.elements) == 1
        };
        let found = self.0.iter().position(fits).map(|at| self.0.swap_remove(at));
        match found.map(|entry| Arc::try_unwrap(entry.elements)) {
            Some(Ok(elements)) => elements,
            _ => vec![0.0; count],
        }
    }

    /// Keeps the results of a run. Results of the previous run stay only while the caller still
    /// holds them, and are reusable once it has dropped them.
    pub(crate) fn keep<'v>(&mut self, values: impl IntoIterator<Item = &'v Value>) {
        self.0.retain_mut(|entry| {
            entry.age += 1;
            entry.age < 2 && Arc::strong_count(&entry.elements) > 1
        });
        for value in values {
            let elements = value.as_array().and_then(|array| array.shared_floats());
            if let Some(elements) = elements
                && elements.len() >= WORTH
                && !self.0.iter().any(|entry| Arc::ptr_eq(&entry.elements, elements))
            {
                self.0.push(Entry { elements: Arc::clone(elements), age: 0 });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coremill_reference::array::Array;
    use coremill_tensor::DType;

    fn result(elements: Vec<f32>) -> Value {
        Value::Array(Array::floats(DType::Fp32, [elements.len()], elements))
    }

    #[test]
    fn reuses_buffers_after_caller_drops_them() {
        let mut spare = BufferPool::default();
        let first = result(vec![1.0; WORTH]);
        spare.keep([&first]);
        assert_eq!(spare.take(WORTH), vec![0.0; WORTH], "the caller still holds the result");
        drop(first);
        assert_eq!(
            spare.take(WORTH + 1),
            vec![0.0; WORTH + 1],
            "the free buffer has another length"
        );
        assert_eq!(spare.take(WORTH), vec![1.0; WORTH]);
        assert_eq!(spare.take(WORTH), vec![0.0; WORTH], "a buffer is reused only once");
    }

    #[test]
    fn evicts_buffers_not_reused_by_later_runs() {
        let mut spare = BufferPool::default();
        let kept = result(vec![1.0; WORTH]);
        spare.keep([&kept]);
        spare.keep([]);
        assert_eq!(
            spare.0.len(),
            1,
            "a result of the previous run is kept while the caller holds it"
        );
        spare.keep([]);
        assert!(spare.0.is_empty());
        spare.keep([&result(vec![1.0; WORTH])]);
        spare.keep([]);
        assert!(spare.0.is_empty(), "a free buffer that the next run did not take is evicted");
    }
}
