//! torchvision's operators.

use crate::lower::prelude::*;

pub(crate) const ROWS: &[Row] = &[tensor("torchvision.nms", suppression)];

/// The size of the result depends on the data.
fn suppression(_: &mut Call<'_, '_>) -> ValueResult {
    Err(LoweringError::new(
        "how many boxes `nms` leaves depends on the data; Core ML's results have sizes that \
         inputs decide",
    )
    .hint("return boxes and scores, and suppress them in the app, or export the network before it"))
}
