use coremill_kernels::layout::permute;
use coremill_reference::array::View;
use coremill_reference::error::Result;

use super::super::super::kernel::{Cost, CpuContext, Kernel};

/// Permutes the axes of a tensor.
pub(in super::super) struct Permute {
    shape: Vec<usize>,
    axes: Vec<usize>,
}

impl Permute {
    /// Creates the kernel. Axis `n` of the result is axis `axes[n]` of the input.
    pub(in super::super) fn new(shape: Vec<usize>, axes: Vec<usize>) -> Permute {
        Permute { shape, axes }
    }
}

impl Kernel for Permute {
    fn run(
        &self,
        machine: &CpuContext,
        inputs: &[View<'_>],
        outputs: &mut [&mut [f32]],
        _scratch: &mut [f32],
    ) -> Result<()> {
        let source = inputs[0].floats()?;
        permute(&machine.pool, source, &self.shape, &self.axes, outputs[0]);
        Ok(())
    }

    fn label(&self) -> String {
        "permute".to_owned()
    }

    fn cost(&self) -> Cost {
        let count: usize = self.shape.iter().product();
        Cost { operations: 0, bytes: 8 * count as u64 }
    }
}
