//! torchvision's operators.

use super::index::{gathered, set_places};
use crate::lower::builder::emit_many;
use crate::lower::prelude::*;

pub(crate) const ROWS: &[Row] = &[tensor("torchvision.nms", suppression)];

/// `nms`: indices of the boxes that no better box suppresses, best first. Core ML returns as many indices as there are
/// boxes; unused ones are -1.
fn suppression(call: &mut Call<'_, '_>) -> ValueResult {
    // Rounded coordinates would change which boxes overlap.
    call.exact = true;
    let (boxes, scores) = (call.value("dets")?, call.value("scores")?);
    let threshold = call.float("iou_threshold")? as f32;
    let Some(Some(count)) = call.extents(boxes).first().copied() else {
        return Err(LoweringError::new("the number of boxes of `nms` must be fixed")
            .hint("export the network with a fixed number of boxes"));
    };
    let [boxes, scores] = [call.cast(boxes, DType::Fp32)?, call.cast(scores, DType::Fp32)?];
    let (first, last) = (call.slice(boxes, 1, 0, Some(2))?, call.slice(boxes, 1, 2, None)?);
    let center = calc!(call, "(first + last) * 0.5", first, last)?;
    let size = calc!(call, "last - first", first, last)?;
    let boxes = call.concat(&[center, size], 1)?;
    let count = int32(count as i64)?;
    let has_columns = call.opset() >= Opset::Ios17;
    let kind = OpKind::NonMaximumSuppression;
    let found = if has_columns {
        let boxes = call.transpose(boxes, &[1, 0])?;
        let boxes = call.expand_dims(boxes, &[0])?;
        let scores = call.expand_dims(scores, &[0, 1])?;
        emit_many!(call, kind, boxes, scores, iou_threshold = threshold, max_boxes = count)?
    } else {
        let boxes = call.expand_dims(boxes, &[0])?;
        let scores = call.expand_dims(scores, &[0, 2])?;
        let score_threshold = f32::MIN;
        emit_many!(
            call,
            kind,
            boxes,
            scores,
            iou_threshold = threshold,
            score_threshold,
            max_boxes = count
        )?
    };
    let indices = call.squeeze(*found.at(2)?, &[0])?;
    let is_used = calc!(call, "indices >= 0", indices)?;
    let places = set_places(call, is_used)?;
    gathered(call, indices, places, 0)
}
