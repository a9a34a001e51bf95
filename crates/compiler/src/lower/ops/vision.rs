//! What torchvision adds to torch.

use crate::error::Refusal;
use crate::lower::call::{Call, Results};
use crate::lower::row::{Row, all};

pub(crate) const ROWS: &[Row] = &[all("torchvision.nms", suppression)];

/// How many boxes are left is data, and so is the size of the result.
fn suppression(_: &mut Call<'_, '_>) -> Results {
    Err(Refusal::new(
        "how many boxes `nms` leaves depends on the data; Core ML's results have sizes that \
         inputs decide",
    )
    .hint("return boxes and scores, and suppress them in the app, or export the network before it"))
}
