//! Reference kernels: see the op table's `pool` family.

use crate::call::{Call, Results};

pub(super) fn avg_pool(call: &Call) -> Results {
    call.missing()
}

pub(super) fn l2_pool(call: &Call) -> Results {
    call.missing()
}

pub(super) fn max_pool(call: &Call) -> Results {
    call.missing()
}
