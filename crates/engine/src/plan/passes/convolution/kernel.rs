use std::sync::Arc;

use coremill_tensor::kernels::Activation;
use coremill_tensor::kernels::depthwise::{Depthwise, convolve_depthwise};
use coremill_tensor::kernels::matmul::{
    Epilogue, IndirectionTable, Matrix, MatrixMut, PackedWeights, Residual, Rounding, convolve,
};

use super::super::super::kernel::{Cost, Kernel, Machine};
use super::super::super::known::Source;
use super::Convolution;
use super::transposed::Transposed;
use crate::array::View;
use crate::error::Result;

/// Makes kernels of convolutions; tables of equal windows are shared.
#[derive(Default)]
pub(in super::super) struct Kernels {
    tables: Vec<Arc<IndirectionTable>>,
}

impl Kernels {
    /// The kernel of a convolution whose tensors have their channels last.
    pub(in super::super) fn make(
        &mut self,
        source: &Source,
        machine: &Machine,
        convolution: Convolution,
    ) -> Result<Box<dyn Kernel>> {
        let finish = Finish {
            bias: convolution.bias.clone().filter(|bias| bias.iter().any(|&bias| bias != 0.0)),
            activation: convolution.activation,
            residual: convolution.residual,
            rounding: convolution.rounding,
            label: convolution.label.clone(),
            cost: cost(&convolution),
        };
        if convolution.transposed {
            let weights = convolution.packed_transposed(source, machine)?;
            return Ok(Box::new(Transposed::new(&convolution, weights, finish)));
        }
        if let Some(extents) = depthwise(&convolution) {
            let weights = convolution.packed_depthwise(source)?;
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
        let weights = convolution.packed(source, machine)?;
        Ok(Box::new(Direct { table, weights, outputs: convolution.outputs, finish }))
    }
}

/// The extents of a convolution of each channel by itself, over one or two dimensions.
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

/// What a convolution does to its sums.
pub(super) struct Finish {
    bias: Option<Vec<f32>>,
    activation: Activation,
    residual: Option<bool>,
    rounding: Rounding,
    pub(super) label: String,
    pub(super) cost: Cost,
}

impl Finish {
    pub(super) fn epilogue<'e>(
        &'e self,
        inputs: &[View<'e>],
        outputs: usize,
    ) -> Result<Epilogue<'e>> {
        let residual = match self.residual {
            Some(after_activation) => {
                let rows = Matrix { elements: inputs[1].floats()?, stride: outputs };
                Some(Residual { rows, after_activation })
            }
            None => None,
        };
        Ok(Epilogue {
            bias: self.bias.as_deref(),
            residual,
            activation: self.activation,
            rounding: self.rounding,
        })
    }
}

/// A product with what is under the window.
struct Direct {
    table: Arc<IndirectionTable>,
    weights: Arc<Vec<PackedWeights>>,
    outputs: usize,
    finish: Finish,
}

impl Kernel for Direct {
    fn run(
        &self,
        machine: &Machine,
        inputs: &[View<'_>],
        outputs: &mut [&mut [f32]],
        _scratch: &mut [f32],
    ) -> Result<()> {
        let epilogue = self.finish.epilogue(inputs, self.outputs)?;
        let output = MatrixMut { elements: outputs[0], stride: self.outputs };
        let input = inputs[0].floats()?;
        convolve(&machine.pool, &self.table, input, &self.weights, output, &epilogue);
        Ok(())
    }

    fn label(&self) -> String {
        self.finish.label.clone()
    }

    fn cost(&self) -> Cost {
        self.finish.cost
    }
}

/// Each channel by itself.
struct Channelwise {
    extents: Depthwise,
    weights: Arc<Vec<f32>>,
    finish: Finish,
}

impl Kernel for Channelwise {
    fn run(
        &self,
        machine: &Machine,
        inputs: &[View<'_>],
        outputs: &mut [&mut [f32]],
        _scratch: &mut [f32],
    ) -> Result<()> {
        let channels = self.extents.channels * self.extents.multiplier;
        let epilogue = self.finish.epilogue(inputs, channels)?;
        convolve_depthwise(
            machine.isa,
            &machine.pool,
            &self.extents,
            inputs[0].floats()?,
            &self.weights,
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
