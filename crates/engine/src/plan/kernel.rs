use coremill_reference::array::View;
pub(crate) use coremill_reference::cpu::CpuContext;
use coremill_reference::error::Result;

use crate::states::StateValue;

/// A computation on tensors whose shapes are known at planning time.
pub(crate) trait Kernel: Send + Sync {
    /// Reads the inputs and writes every element of the outputs, which are all floats. The initial
    /// contents of the outputs are arbitrary. `scratch` has the length of [`Kernel::scratch`].
    fn run(
        &self,
        machine: &CpuContext,
        inputs: &[View<'_>],
        outputs: &mut [&mut [f32]],
        scratch: &mut [f32],
    ) -> Result<()>;

    /// Runs the kernel in a session with these states.
    fn run_on_states(
        &self,
        machine: &CpuContext,
        _states: &[StateValue],
        inputs: &[View<'_>],
        outputs: &mut [&mut [f32]],
        scratch: &mut [f32],
    ) -> Result<()> {
        self.run(machine, inputs, outputs, scratch)
    }

    /// The kernel that reads the inputs 1 and 2 from states of these shapes instead, if there is one.
    fn on_states(&self, _states: [usize; 2], _shapes: [&[usize]; 2]) -> Option<Box<dyn Kernel>> {
        None
    }

    /// Name for profiles, such as `conv+relu`.
    fn label(&self) -> String;

    /// Estimated cost of one run.
    fn cost(&self) -> Cost;

    /// Returns true if the kernel does more than write its outputs.
    fn has_side_effects(&self) -> bool {
        false
    }

    /// Number of floats of temporary memory.
    fn scratch(&self) -> usize {
        0
    }
}

/// Cost of one run of a kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cost {
    /// Floating-point operations; a multiply-add counts as two.
    pub(crate) operations: u64,
    /// Bytes read and written. Weights count at their size in memory.
    pub(crate) bytes: u64,
}
