//! Convolution weights, packed for the kernels.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use coremill_kernels::depthwise::pack_depthwise_weights;
use coremill_kernels::matmul::{DenseSource, Order, PackedWeights, Precision, Window};
use coremill_reference::error::Result;
use coremill_tensor::{Buffer, DType};

use super::super::super::kernel::CpuContext;
use super::Convolution;
use crate::plan::{ConstantTensor, FunctionContext};

/// Number of outputs in the narrowest tile of any instruction set. Small groups are merged up to
/// this size, at no cost.
const LEAST_OUTPUTS: usize = 16;

impl Convolution {
    /// Number of groups that are merged to one.
    fn joined(&self) -> usize {
        let outputs = self.outputs / self.groups;
        let fits = |&joined: &usize| {
            self.groups.is_multiple_of(joined) && joined * outputs <= LEAST_OUTPUTS
        };
        (1..=self.groups.min(LEAST_OUTPUTS)).rev().find(fits).unwrap_or(1)
    }

    /// Number of groups of the kernel, after merging.
    pub(super) fn kernel_groups(&self) -> usize {
        self.groups / self.joined()
    }

    /// The window of a kernel with this number of groups.
    pub(in super::super) fn window(&self, groups: usize) -> Window {
        Window {
            images: self.images,
            input: self.input,
            output: self.output,
            kernel: self.kernel,
            stride: self.stride,
            dilation: self.dilation,
            padding: self.padding,
            channels: self.channels / groups,
            groups,
            pixel_stride: self.channels,
        }
    }

    fn taps(&self) -> usize {
        self.kernel.iter().product()
    }

    /// Identifies packed weights that are derived from the same constant.
    fn form(&self, kind: &str) -> String {
        let mut hasher = DefaultHasher::new();
        for value in self.scale.iter().flatten() {
            value.to_bits().hash(&mut hasher);
        }
        let scaled = self.scale.as_ref().map_or(0, |_| hasher.finish());
        format!("{kind} {} {scaled:x}", self.groups)
    }

    /// The weights as floats, with `scale` applied.
    fn floats(&self, source: &FunctionContext, weight: &ConstantTensor) -> Result<Vec<f32>> {
        let array = weight.elements(source)?;
        let mut floats = array.as_floats().unwrap_or_default().to_vec();
        if let Some(scale) = &self.scale
            && !floats.is_empty()
        {
            match self.transposed {
                false => {
                    let each = floats.len() / self.outputs;
                    for (weights, factor) in floats.chunks_exact_mut(each).zip(scale) {
                        weights.iter_mut().for_each(|weight| *weight *= factor);
                    }
                }
                true => {
                    let outputs = self.outputs / self.groups;
                    let inputs = self.channels / self.groups;
                    for (index, weights) in floats.chunks_exact_mut(self.taps()).enumerate() {
                        let group = index / outputs / inputs;
                        let factor = scale[group * outputs + index % outputs];
                        weights.iter_mut().for_each(|weight| *weight *= factor);
                    }
                }
            }
        }
        Ok(floats)
    }

    /// Weights of each group, as matrices from the elements under the window to the outputs.
    pub(super) fn packed(
        &self,
        source: &FunctionContext,
        machine: &CpuContext,
        weight: &ConstantTensor,
    ) -> Result<Arc<Vec<PackedWeights>>> {
        source.made(weight, self.form("convolution"), || {
            let (groups, joined, taps) = (self.kernel_groups(), self.joined(), self.taps());
            if self.scale.is_none() && groups == 1 && joined == 1 {
                let (inputs, outputs) = (self.channels * taps, self.outputs);
                let order =
                    if taps == 1 { Order::OutputsFirst } else { Order::ChannelsFirst { taps } };
                let matrix = source.matrix(machine, weight, inputs, outputs, order)?;
                return Ok(vec![matrix.packed(machine).clone()]);
            }
            let (data, dtype) = if self.scale.is_none() && joined == 1 {
                source.stored(weight)?
            } else {
                (to_buffer(&self.join(&self.floats(source, weight)?)), DType::Fp32)
            };
            let (inputs, outputs) = (self.channels / groups * taps, self.outputs / groups);
            let bytes = inputs * outputs * if dtype == DType::Fp32 { 4 } else { 2 };
            let precision = if dtype == DType::Fp16 { Precision::F16 } else { Precision::F32 };
            let order = if taps == 1 { Order::OutputsFirst } else { Order::ChannelsFirst { taps } };
            let pack = |group: usize| {
                let data = data.slice(group * bytes..(group + 1) * bytes).unwrap_or(data.clone());
                let dense = DenseSource::new(machine.isa, data, dtype, inputs, outputs, order);
                PackedWeights::pack(&machine.pool, machine.isa, inputs, outputs, precision, &dense)
            };
            Ok((0..groups).map(pack).collect())
        })
    }

    /// Merges groups: an output's row covers the inputs of all merged groups, with zeros for the
    /// other groups.
    fn join(&self, weights: &[f32]) -> Vec<f32> {
        let joined = self.joined();
        if joined == 1 {
            return weights.to_vec();
        }
        let own = self.channels / self.groups * self.taps();
        let mut all = vec![0.0; weights.len() * joined];
        let rows = all.chunks_exact_mut(own * joined).zip(weights.chunks_exact(own));
        for (output, (row, weights)) in rows.enumerate() {
            let place = output / (self.outputs / self.groups) % joined;
            row[place * own..(place + 1) * own].copy_from_slice(weights);
        }
        all
    }

    /// Packed weights of a depthwise convolution.
    pub(super) fn packed_depthwise(
        &self,
        source: &FunctionContext,
        weight: &ConstantTensor,
    ) -> Result<Arc<Vec<f32>>> {
        source.made(weight, self.form("depthwise"), || {
            let kernel = [self.kernel[1], self.kernel[2]];
            Ok(pack_depthwise_weights(&self.floats(source, weight)?, kernel))
        })
    }

    /// Weights of each group of a transposed convolution, as matrices from the input channels to
    /// the outputs at each window position.
    pub(super) fn packed_transposed(
        &self,
        source: &FunctionContext,
        machine: &CpuContext,
        weight: &ConstantTensor,
    ) -> Result<Arc<Vec<PackedWeights>>> {
        source.made(weight, self.form("transposed"), || {
            let (inputs, outputs, taps) =
                (self.channels / self.groups, self.outputs / self.groups, self.taps());
            let floats = self.floats(source, weight)?;
            let mut tapwise = vec![0.0; floats.len()];
            for (index, weights) in floats.chunks_exact(taps).enumerate() {
                let (input, output) = (index / outputs, index % outputs);
                for (tap, weight) in weights.iter().enumerate() {
                    tapwise[(input * taps + tap) * outputs + output] = *weight;
                }
            }
            let data = to_buffer(&tapwise);
            let columns = outputs * taps;
            let bytes = inputs * columns * 4;
            let precision =
                if weight.dtype == DType::Fp16 { Precision::F16 } else { Precision::F32 };
            let precision = if self.scale.is_some() { Precision::F32 } else { precision };
            let pack = |group: usize| {
                let data = data.slice(group * bytes..(group + 1) * bytes).unwrap_or(data.clone());
                let (order, dtype) = (Order::InputsFirst, DType::Fp32);
                let dense = DenseSource::new(machine.isa, data, dtype, inputs, columns, order);
                PackedWeights::pack(&machine.pool, machine.isa, inputs, columns, precision, &dense)
            };
            Ok((0..self.groups).map(pack).collect())
        })
    }
}

fn to_buffer(floats: &[f32]) -> Buffer {
    Buffer::from(floats.iter().flat_map(|float| float.to_le_bytes()).collect::<Vec<u8>>())
}
