//! Output sizes of sliding windows over the spatial dimensions, for convolution and pooling.

use crate::infer::{InferContext, InferError};
use crate::ir::{Dim, Expr, Opset};

/// A sliding window over spatial dimensions.
pub(super) struct Window {
    /// Window size along each dimension.
    pub(super) kernel: Vec<Dim>,
    /// Step of the window along each dimension; positive.
    pub(super) strides: Vec<i64>,
    /// Distance between neighboring elements of the window; positive.
    pub(super) dilations: Vec<i64>,
    /// Padding of the input.
    pub(super) padding: Padding,
}

/// Padding of a window's input.
pub(super) enum Padding {
    /// Pads such that the output size is `ceil(input / stride)`.
    Same,
    /// Pads by these numbers of elements before and after each dimension.
    By(Vec<i64>),
    /// Like `By`, but a window that is only partly inside also counts. The paddings before and after are
    /// equal.
    ByRoundedUp(Vec<i64>),
}

/// Rejects `same_lower` in opsets that do not have it.
pub(super) fn check_pad_type(site: &InferContext, pad_type: &str) -> Result<(), InferError> {
    if pad_type == "same_lower" && site.opset() < Opset::Ios16 {
        return Err(InferError::new("is `same_lower`, which needs iOS16; this function is iOS15")
            .of("pad_type")
            .hint("declare the function with opset `CoreML6`, or specify the pads with `custom`"));
    }
    Ok(())
}

impl Window {
    /// Output sizes of the spatial dimensions.
    pub(super) fn output(
        &self,
        site: &InferContext,
        input: &[Dim],
    ) -> Result<Vec<Dim>, InferError> {
        let mut output = Vec::with_capacity(input.len());
        for (axis, dim) in input.iter().enumerate() {
            let extent = self.extent(axis, dim);
            if let Some(found) = extent.as_ref().and_then(Expr::constant)
                && found < 1
            {
                let message = format!(
                    "the window of {} produces {found} elements along spatial dimension {axis} of \
                     `x`, whose size is {dim}; expected at least 1",
                    self.kernel[axis]
                );
                return Err(InferError::new(message).hint("pad more, or make the window smaller"));
            }
            output.push(site.dim(extent));
        }
        Ok(output)
    }

    /// Output size of one dimension; `None` if it is unknown.
    fn extent(&self, axis: usize, input: &Dim) -> Option<Expr> {
        let input = input.expr()?;
        let stride = Expr::from(self.strides[axis]);
        let one = Expr::from(1);
        match &self.padding {
            Padding::Same => input.ceil_div(&stride),
            Padding::By(pads) => {
                let room = self.room(axis, &input, pads)?;
                room.floor_div(&stride)?.add(&one)
            }
            Padding::ByRoundedUp(pads) => {
                let steps = self.room(axis, &input, pads)?.ceil_div(&stride)?;
                let before = *pads.get(2 * axis)?;
                if before <= 0 {
                    return steps.add(&one);
                }
                // A last window that would start in the trailing padding does not count.
                let starts = input.add(&Expr::from(before))?.ceil_div(&stride)?;
                match (steps.constant(), starts.constant()) {
                    (Some(steps), Some(starts)) => {
                        let counts = i64::from(steps < starts);
                        steps.checked_add(counts).map(Expr::from)
                    }
                    // `steps <= starts` holds only if the window is at least as large as the padding.
                    _ if before <= self.kernel[axis].known()?.try_into().ok()? => {
                        steps.add(&one)?.smaller(&starts)
                    }
                    _ => None,
                }
            }
        }
    }

    /// Distance that the window can move along an axis.
    fn room(&self, axis: usize, input: &Expr, pads: &[i64]) -> Option<Expr> {
        let pad = pads.get(2 * axis)?.checked_add(*pads.get(2 * axis + 1)?)?;
        let kernel = effective_kernel(&self.kernel[axis], self.dilations[axis])?;
        input.add(&Expr::from(pad))?.sub(&kernel)
    }
}

/// Size of a dilated window.
pub(super) fn effective_kernel(kernel: &Dim, dilation: i64) -> Option<Expr> {
    let gaps = kernel.expr()?.sub(&Expr::from(1))?;
    gaps.mul(&Expr::from(dilation))?.add(&Expr::from(1))
}
