use coremill_edit::state_output_name;
use coremill_graph::{ArrayView, Executable, Outputs};

use super::floats;
use crate::error::{Result, fail};

/// A cache that functions take as an input and return with new tokens.
struct PassedCache {
    name: String,
    shape: Vec<usize>,
    elements: Vec<f32>,
}

/// Caches that the caller passes to each call. Empty for models with states.
#[derive(Default)]
pub(super) struct PassedCaches(Vec<PassedCache>);

impl PassedCaches {
    /// The caches of a function, filled with zeros.
    pub(super) fn of(executable: &mut Executable, function: &str) -> Result<PassedCaches> {
        let outputs = executable.outputs(function)?;
        let is_passed =
            |name: &str| outputs.iter().any(|output| output.name == state_output_name(name));
        let mut caches = Vec::new();
        for input in executable.inputs(function)? {
            if is_passed(&input.name) {
                let shape = input.default_shape().unwrap_or_default();
                let elements = vec![0.0; shape.iter().product()];
                caches.push(PassedCache { name: input.name, shape, elements });
            }
        }
        Ok(PassedCaches(caches))
    }

    /// Names and shapes of the caches.
    pub(super) fn shapes(&self) -> impl Iterator<Item = (&str, &[usize])> {
        self.0.iter().map(|cache| (&*cache.name, &*cache.shape))
    }

    /// Arrays to pass to a function.
    pub(super) fn arrays(&self) -> Vec<(&str, ArrayView<'_, f32>)> {
        let array = |shape, elements| ArrayView { shape, elements };
        let each = self.0.iter();
        each.map(|cache| (&*cache.name, array(&*cache.shape, &*cache.elements))).collect()
    }

    /// Keeps the caches that a function returned.
    pub(super) fn keep(&mut self, outputs: &Outputs) -> Result<()> {
        for cache in &mut self.0 {
            let name = state_output_name(&cache.name);
            let new = floats(outputs, &name)?;
            if new.len() != cache.elements.len() {
                fail!(
                    Run,
                    "`{name}` has {} elements, expected {}",
                    new.len(),
                    cache.elements.len()
                );
            }
            cache.elements.copy_from_slice(new);
        }
        Ok(())
    }
}
