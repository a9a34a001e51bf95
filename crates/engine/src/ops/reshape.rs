//! Reference kernels: see the op table's `reshape` family.

use crate::call::{Call, Results};

pub(super) fn expand_dims(call: &Call) -> Results {
    call.missing()
}

pub(super) fn flatten2d(call: &Call) -> Results {
    call.missing()
}

pub(super) fn reshape(call: &Call) -> Results {
    call.missing()
}

pub(super) fn reshape_like(call: &Call) -> Results {
    call.missing()
}

pub(super) fn squeeze(call: &Call) -> Results {
    call.missing()
}
