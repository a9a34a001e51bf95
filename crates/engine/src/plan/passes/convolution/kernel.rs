use std::sync::Arc;

use coremill_kernels::depthwise::{Depthwise, convolve_depthwise};
use coremill_kernels::matmul::{IndirectionTable, MatrixMut, PackedWeights, convolve};
use coremill_reference::array::View;
use coremill_reference::error::Result;

use super::super::super::derived::Memoized;
use super::super::super::kernel::{Cost, CpuContext, Kernel};
use super::super::Work;
use super::super::linear::bias;
use super::Convolution;
use super::finish::EpilogueSpec;
use super::transposed::TransposedConvolution;

/// Creates kernels of convolutions. Equal windows share an indirection table.
#[derive(Default)]
pub(in super::super) struct Kernels {
    tables: Vec<Arc<IndirectionTable>>,
}

impl Kernels {
    /// Creates the kernel of a convolution on channels-last tensors.
    pub(in super::super) fn make(
        &mut self,
        work: &Work<'_>,
        convolution: Convolution,
    ) -> Result<Box<dyn Kernel>> {
        let bias = match &convolution.bias_of {
            Some(known) => bias(work, known)?,
            None => {
                let bias = convolution.bias.clone();
                Memoized::fixed(bias.filter(|bias| bias.iter().any(|&bias| bias != 0.0)))
            }
        };
        let finish = EpilogueSpec {
            bias,
            activation: convolution.activation,
            residual: convolution.residual,
            rounding: convolution.rounding,
            label: convolution.label.clone(),
            cost: cost(&convolution),
        };
        // The packed weights depend on the constant and on the description captured here.
        let of = [&convolution.weight];
        let described = convolution.clone();
        if convolution.transposed {
            let weights =
                work.source.derived(work.machine, &of, move |source, machine, known| {
                    described.packed_transposed(source, machine, &known[0])
                })?;
            return Ok(Box::new(TransposedConvolution::new(&convolution, weights, finish)));
        }
        if let Some(extents) = depthwise(&convolution) {
            let weights = work.source.derived(work.machine, &of, move |source, _, known| {
                described.packed_depthwise(source, &known[0])
            })?;
            return Ok(Box::new(Channelwise { extents, weights, finish }));
        }
        let window = convolution.window(convolution.kernel_groups());
        let known = self.tables.iter().find(|table| *table.window() == window);
        let table = match known {
            Some(table) => Arc::clone(table),
            None => {
                let table = Arc::new(IndirectionTable::new(window));
                self.tables.push(Arc::clone(&table));
                table
            }
        };
        let weights = work.source.derived(work.machine, &of, move |source, machine, known| {
            described.packed(source, machine, &known[0])
        })?;
        Ok(Box::new(Direct { table, weights, outputs: convolution.outputs, finish }))
    }
}

/// The sizes of a depthwise convolution over one or two dimensions.
fn depthwise(convolution: &Convolution) -> Option<Depthwise> {
    let Convolution { channels, groups, outputs, .. } = *convolution;
    if groups != channels
        || groups == 1
        || convolution.kernel[0] != 1
        || convolution.input[0] != convolution.output[0]
    {
        return None;
    }
    let plane = |[_, height, width]: [usize; 3]| [height, width];
    Some(Depthwise {
        batch: convolution.images * convolution.input[0],
        input: plane(convolution.input),
        output: plane(convolution.output),
        channels,
        multiplier: outputs / channels,
        kernel: plane(convolution.kernel),
        stride: plane(convolution.stride),
        dilation: plane(convolution.dilation),
        pad: plane(convolution.padding),
    })
}

fn cost(convolution: &Convolution) -> Cost {
    let Convolution { images, channels, groups, outputs, .. } = *convolution;
    let (input, output): (usize, usize) =
        (convolution.input.iter().product(), convolution.output.iter().product());
    let taps: usize = convolution.kernel.iter().product();
    let weights = taps * channels / groups * outputs;
    let steps = if convolution.transposed { input } else { output };
    let residual = usize::from(convolution.residual.is_some());
    let activations = images * (input * channels + (1 + residual) * output * outputs);
    let weight_bytes = convolution.weight.dtype.bits().map_or(4, |bits| bits as usize / 8);
    Cost {
        operations: 2 * (images * steps * weights) as u64,
        bytes: (4 * activations + weight_bytes * weights) as u64,
    }
}

/// A matrix product of the inputs under the window and the weights.
struct Direct {
    table: Arc<IndirectionTable>,
    weights: Memoized<Vec<PackedWeights>>,
    outputs: usize,
    finish: EpilogueSpec,
}

impl Kernel for Direct {
    fn run(
        &self,
        machine: &CpuContext,
        inputs: &[View<'_>],
        outputs: &mut [&mut [f32]],
        _scratch: &mut [f32],
    ) -> Result<()> {
        let (weights, bias) = (self.weights.get(), self.finish.bias());
        let epilogue = self.finish.epilogue(&bias, inputs, self.outputs)?;
        let output = MatrixMut { elements: outputs[0], stride: self.outputs };
        let input = inputs[0].floats()?;
        convolve(&machine.pool, &self.table, input, &weights, output, &epilogue);
        Ok(())
    }

    fn label(&self) -> String {
        self.finish.label.clone()
    }

    fn cost(&self) -> Cost {
        self.finish.cost
    }
}

/// A depthwise convolution.
struct Channelwise {
    extents: Depthwise,
    weights: Memoized<Vec<f32>>,
    finish: EpilogueSpec,
}

impl Kernel for Channelwise {
    fn run(
        &self,
        machine: &CpuContext,
        inputs: &[View<'_>],
        outputs: &mut [&mut [f32]],
        _scratch: &mut [f32],
    ) -> Result<()> {
        let channels = self.extents.channels * self.extents.multiplier;
        let (weights, bias) = (self.weights.get(), self.finish.bias());
        let epilogue = self.finish.epilogue(&bias, inputs, channels)?;
        convolve_depthwise(
            machine.isa,
            &machine.pool,
            &self.extents,
            inputs[0].floats()?,
            &weights,
            &epilogue,
            outputs[0],
        );
        Ok(())
    }

    fn label(&self) -> String {
        format!("depthwise {}", self.finish.label)
    }

    fn cost(&self) -> Cost {
        self.finish.cost
    }
}
