//! Rows of tables.

use super::gathered;
use crate::lower::call::{Call, Results};
use crate::lower::row::{Row, all};

pub(super) const ROWS: &[Row] = &[all("aten.embedding", embedding)];

/// What `padding_idx` names has no gradient, which is all that is special about it.
fn embedding(call: &mut Call<'_, '_>) -> Results {
    let table = call.tensor("weight")?.value;
    let indices = call.tensor("indices")?.value;
    let y = gathered(call, table, indices, 0)?;
    call.give(y)
}
