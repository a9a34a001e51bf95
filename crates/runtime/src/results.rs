use crate::error::{Result, ensure, fail};
use crate::method::Method;
use crate::value::Value;
use crate::view::View;

/// What a run of a method gave. Nothing is copied before it is asked for.
pub struct Results<'m> {
    pub(crate) method: &'m Method,
}

impl<'m> Results<'m> {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.method.outputs.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A result of its own.
    pub fn value(&self, index: usize) -> Result<Value> {
        self.method.value(self.slot(index)?, true)
    }

    /// All of them, each of its own.
    pub fn values(&self) -> Result<Vec<Value>> {
        (0..self.len()).map(|index| self.value(index)).collect()
    }

    /// A tensor where the method has it.
    pub fn view(&self, index: usize) -> Result<View<'m>> {
        self.method.view(self.slot(index)?)
    }

    /// Writes a tensor's elements, in the order of its dimensions, to where the caller wants them, and gives its sizes.
    /// There may be room for more.
    pub fn copy_to(&self, index: usize, memory: &mut [u8]) -> Result<&'m [usize]> {
        let view = self.view(index)?;
        let length = view.bytes().len();
        let Some(memory) = memory.get_mut(..length) else {
            fail!("result {index} takes {length} bytes; there is memory for {}", memory.len())
        };
        memory.copy_from_slice(&view.contiguous_bytes());
        Ok(view.sizes)
    }

    fn slot(&self, index: usize) -> Result<usize> {
        ensure!(index < self.len(), "there is no result {index}; there are {}", self.len());
        Ok(self.method.outputs[index])
    }
}
