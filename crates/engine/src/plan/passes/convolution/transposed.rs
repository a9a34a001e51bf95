use coremill_kernels::matmul::{Epilogue, Matrix, MatrixMut, PackedWeights, Rounding, multiply};
use coremill_kernels::{Activation, activate};
use coremill_reference::array::{View, round_floats};
use coremill_reference::error::Result;
use coremill_simd::Isa;
use coremill_tensor::DType;

use super::super::super::derived::Memoized;
use super::super::super::kernel::{Cost, CpuContext, Kernel};
use super::Convolution;
use super::finish::EpilogueSpec;

/// A transposed convolution. A matrix product multiplies every input pixel by the weights of the
/// whole window. Each output pixel then sums the products that overlap it.
pub(super) struct TransposedConvolution {
    images: usize,
    input: [usize; 3],
    output: [usize; 3],
    groups: usize,
    channels: usize,
    outputs: usize,
    taps: usize,
    /// For each axis and output index: the pairs of input index and window index that contribute to
    /// it.
    meetings: [Vec<Vec<(usize, usize)>>; 3],
    kernel: [usize; 3],
    weights: Memoized<Vec<PackedWeights>>,
    finish: EpilogueSpec,
}

impl TransposedConvolution {
    pub(super) fn new(
        convolution: &Convolution,
        weights: Memoized<Vec<PackedWeights>>,
        finish: EpilogueSpec,
    ) -> TransposedConvolution {
        let meetings = |axis: usize| {
            let mut meetings = vec![Vec::new(); convolution.output[axis]];
            for step in 0..convolution.input[axis] {
                for tap in 0..convolution.kernel[axis] {
                    let place = step * convolution.stride[axis] + tap * convolution.dilation[axis];
                    let place = place.checked_sub(convolution.padding[axis]);
                    if let Some(meeting) = place.and_then(|place| meetings.get_mut(place)) {
                        meeting.push((step, tap));
                    }
                }
            }
            meetings
        };
        TransposedConvolution {
            images: convolution.images,
            input: convolution.input,
            output: convolution.output,
            groups: convolution.groups,
            channels: convolution.channels,
            outputs: convolution.outputs,
            taps: convolution.kernel.iter().product(),
            meetings: [meetings(0), meetings(1), meetings(2)],
            kernel: convolution.kernel,
            weights,
            finish,
        }
    }

    fn pixels(&self) -> usize {
        self.images * self.input.iter().product::<usize>()
    }

    /// Computes one line of the output along the last axis.
    fn line(
        &self,
        isa: Isa,
        line: usize,
        products: &[f32],
        epilogue: &Epilogue,
        target: &mut [f32],
    ) {
        let [depth, height, width] = self.output;
        let [_, input_height, input_width] = self.input;
        let (image, z, y) = (line / height / depth, line / height % depth, line % height);
        let per_group = self.outputs / self.groups;
        let row = self.taps * per_group;
        let group_products = self.pixels() * row;
        let image_start = image * self.input.iter().product::<usize>();
        for (x, pixel) in target.chunks_exact_mut(self.outputs).enumerate() {
            match epilogue.bias {
                Some(bias) => pixel.copy_from_slice(bias),
                None => pixel.fill(0.0),
            }
            for &(input_z, tap_z) in &self.meetings[0][z] {
                for &(input_y, tap_y) in &self.meetings[1][y] {
                    for &(input_x, tap_x) in &self.meetings[2][x] {
                        let source = image_start
                            + (input_z * input_height + input_y) * input_width
                            + input_x;
                        let tap = (tap_z * self.kernel[1] + tap_y) * self.kernel[2] + tap_x;
                        let start = source * row + tap * per_group;
                        for (group, target) in pixel.chunks_exact_mut(per_group).enumerate() {
                            let products = &products[group * group_products + start..][..per_group];
                            target.iter_mut().zip(products).for_each(|(sum, more)| *sum += more);
                        }
                    }
                }
            }
        }
        let round = |elements: &mut [f32]| {
            if epilogue.rounding == Rounding::Fp16 {
                round_floats(DType::Fp16, elements);
            }
        };
        round(target);
        let residual = epilogue.residual.map(|residual| {
            let start = line * width * self.outputs;
            (&residual.rows.elements[start..start + target.len()], residual.after_activation)
        });
        let add = |target: &mut [f32], after: bool| {
            if let Some((residual, late)) = residual
                && late == after
            {
                target.iter_mut().zip(residual).for_each(|(sum, more)| *sum += more);
                round(target);
            }
        };
        add(target, false);
        if epilogue.activation != Activation::None {
            activate(isa, epilogue.activation, target);
            round(target);
        }
        add(target, true);
    }
}

impl Kernel for TransposedConvolution {
    fn run(
        &self,
        machine: &CpuContext,
        inputs: &[View<'_>],
        outputs: &mut [&mut [f32]],
        scratch: &mut [f32],
    ) -> Result<()> {
        let input = inputs[0].floats()?;
        let columns = self.taps * self.outputs / self.groups;
        let parts = scratch.chunks_exact_mut((self.pixels() * columns).max(1));
        let (weights, bias) = (self.weights.get(), self.finish.bias());
        for (group, (weights, products)) in weights.iter().zip(parts).enumerate() {
            let start = group * self.channels / self.groups;
            let left = Matrix { elements: &input[start..], stride: self.channels };
            let products = MatrixMut { elements: products, stride: columns };
            let plain = Epilogue::default();
            multiply(&machine.pool, self.pixels(), left, weights, products, &plain);
        }
        let epilogue = self.finish.epilogue(&bias, inputs, self.outputs)?;
        let products = &*scratch;
        let lines = outputs[0].chunks_exact_mut(self.output[2] * self.outputs);
        machine.share(lines, |index, line| {
            self.line(machine.isa, index, products, &epilogue, line);
        });
        Ok(())
    }

    fn label(&self) -> String {
        self.finish.label.clone()
    }

    fn cost(&self) -> Cost {
        self.finish.cost
    }

    fn scratch(&self) -> usize {
        self.pixels() * self.taps * self.outputs
    }
}
