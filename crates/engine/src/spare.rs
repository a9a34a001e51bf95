//! Memory of earlier results, for those of the next run.

use std::sync::Arc;

use crate::value::Value;

/// Results of the last two runs. Memory that the caller has let go of takes the results of the next run:
/// fresh memory of the system costs more than many kernels do, as each page of it is cleared first.
#[derive(Default)]
pub(crate) struct BufferPool(Vec<Entry>);

struct Entry {
    elements: Arc<Vec<f32>>,
    /// How many runs ago these were results.
    age: usize,
}

/// The elements from which on memory is kept: what is smaller is cheap.
const WORTH: usize = 1 << 12;

impl BufferPool {
    /// Memory for so many elements, with whatever it holds.
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

    /// Remembers the results of a run. Those of the one before stay as long as somebody holds them, and
    /// may be taken once nobody does.
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
    use crate::array::Array;
    use coremill_tensor::DType;

    fn result(elements: Vec<f32>) -> Value {
        Value::Array(Array::floats(DType::Fp32, [elements.len()], elements))
    }

    #[test]
    fn memory_is_taken_once_nobody_holds_it() {
        let mut spare = BufferPool::default();
        let first = result(vec![1.0; WORTH]);
        spare.keep([&first]);
        assert_eq!(spare.take(WORTH), vec![0.0; WORTH], "somebody holds the result");
        drop(first);
        assert_eq!(spare.take(WORTH + 1), vec![0.0; WORTH + 1], "it has another length");
        assert_eq!(spare.take(WORTH), vec![1.0; WORTH]);
        assert_eq!(spare.take(WORTH), vec![0.0; WORTH], "it was taken before");
    }

    #[test]
    fn what_no_run_takes_is_let_go() {
        let mut spare = BufferPool::default();
        let kept = result(vec![1.0; WORTH]);
        spare.keep([&kept]);
        spare.keep([]);
        assert_eq!(spare.0.len(), 1, "it may still come back");
        spare.keep([]);
        assert!(spare.0.is_empty());
        spare.keep([&result(vec![1.0; WORTH])]);
        spare.keep([]);
        assert!(spare.0.is_empty(), "a whole run had no use for it");
    }
}
