//! Reference kernels: see the op table's `scatter_gather` family.

use crate::call::{Call, Results};

pub(super) fn gather(call: &Call) -> Results {
    call.missing()
}

pub(super) fn gather_along_axis(call: &Call) -> Results {
    call.missing()
}

pub(super) fn gather_nd(call: &Call) -> Results {
    call.missing()
}

pub(super) fn scatter(call: &Call) -> Results {
    call.missing()
}

pub(super) fn scatter_along_axis(call: &Call) -> Results {
    call.missing()
}

pub(super) fn scatter_nd(call: &Call) -> Results {
    call.missing()
}
