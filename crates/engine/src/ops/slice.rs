//! Reference kernels: see the op table's `slice` family.

use crate::call::{Call, Results};

pub(super) fn slice_by_index(call: &Call) -> Results {
    call.missing()
}

pub(super) fn slice_by_size(call: &Call) -> Results {
    call.missing()
}

pub(super) fn slice_update(call: &Call) -> Results {
    call.missing()
}
