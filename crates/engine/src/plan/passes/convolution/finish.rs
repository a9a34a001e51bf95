use std::sync::Arc;

use coremill_kernels::Activation;
use coremill_kernels::matmul::{Epilogue, Matrix, Residual, Rounding};
use coremill_reference::array::View;
use coremill_reference::error::Result;

use super::super::super::kernel::Cost;
use super::super::linear::Bias;

/// The epilogue of a convolution: operations on the sums.
pub(super) struct EpilogueSpec {
    pub(super) bias: Bias,
    pub(super) activation: Activation,
    pub(super) residual: Option<bool>,
    pub(super) rounding: Rounding,
    pub(super) label: String,
    pub(super) cost: Cost,
}

impl EpilogueSpec {
    /// The current bias of each channel.
    pub(super) fn bias(&self) -> Arc<Option<Vec<f32>>> {
        self.bias.get()
    }

    pub(super) fn epilogue<'e>(
        &self,
        bias: &'e Option<Vec<f32>>,
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
            bias: bias.as_deref(),
            residual,
            activation: self.activation,
            rounding: self.rounding,
        })
    }
}
