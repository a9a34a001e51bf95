//! Scales and zero points, and weights as integers.

use coremill_kernels::matmul::Order;
use coremill_reference::array::ElementsView;
use coremill_reference::error::fail;

use super::super::super::graph::Node;
use super::super::Work;
use super::super::parameters::parameters;
use crate::plan::ConstantTensor;
use crate::weights::Integers;

/// Represents floats as `scale · (code - zero)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Affine {
    pub(super) scale: f32,
    /// Zero point in unsigned storage.
    pub(super) zero: u8,
    /// Whether the program's codes are signed, so that -128 is stored as 0.
    pub(super) signed: bool,
}

impl Affine {
    /// The scale and zero point of a `quantize` or `dequantize`. Returns `None` if they differ per
    /// channel. `signed` is true if the type of the codes is signed.
    pub(super) fn of(work: &Work<'_>, node: &Node, signed: bool) -> Option<Affine> {
        let (scale, zero) = parameters(work.source, work.graph, node, |call| {
            let (scale, zero) = (call.tensor("scale")?, call.optional("zero_point"));
            let zero = match zero.map(|zero| zero.elements) {
                None => 0,
                Some(ElementsView::Ints(&[zero])) => zero,
                Some(_) => fail!("per-channel zero points are not supported"),
            };
            match scale.elements {
                ElementsView::Floats(&[scale]) => Ok((scale, zero)),
                _ => fail!("per-channel scales are not supported"),
            }
        })?;
        let zero = u8::try_from(if signed { zero + 128 } else { zero }).ok()?;
        (scale.is_normal() && scale > 0.0).then_some(Affine { scale, zero, signed })
    }

    /// Dequantizes a code.
    pub(super) fn value(self, code: u8) -> f32 {
        self.scale * (f32::from(code) - f32::from(self.zero))
    }

    /// Quantizes a float.
    pub(super) fn code(self, value: f32) -> u8 {
        let low = if self.signed { -128.0 } else { 0.0 };
        let steps = (value / self.scale).round_ties_even() + (f32::from(self.zero) + low);
        // NaN becomes a code of 0 in the program's type.
        let code = if steps.is_nan() { 0.0 } else { steps.clamp(low, low + 255.0) };
        (code - low) as u8
    }
}

/// Bounds that clamp results before quantization.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Bounds {
    pub(super) low: f32,
    pub(super) high: f32,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds { low: f32::NEG_INFINITY, high: f32::INFINITY }
    }
}

impl Bounds {
    /// Applies `next` after these bounds.
    pub(super) fn then(self, next: Bounds) -> Bounds {
        let within = |bound: f32| bound.clamp(next.low, next.high);
        Bounds { low: within(self.low), high: within(self.high) }
    }

    /// The bounds in steps relative to the zero point, within the range of codes.
    pub(super) fn codes(self, affine: Affine) -> (f32, f32) {
        let zero = f32::from(affine.zero);
        let step = |bound: f32| (bound / affine.scale).round_ties_even().clamp(-zero, 255.0 - zero);
        (step(self.low), step(self.high))
    }
}

/// The integers of a constant matrix with one scale and zero point per output. `None` for other
/// constants.
pub(super) fn integers(work: &Work<'_>, known: &ConstantTensor, order: Order) -> Option<Integers> {
    work.source.note(known);
    let along_rows = order != Order::InputsFirst;
    let integers = work.source.weights(known)?.integers(along_rows)?;
    integers.scales.iter().all(|scale| scale.is_finite()).then_some(integers)
}
