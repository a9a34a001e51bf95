//! Reference kernels: see the op table's `tensor_operation` family.

use crate::call::{Call, Results};

pub(super) fn argsort(call: &Call) -> Results {
    call.missing()
}

pub(super) fn band_part(call: &Call) -> Results {
    call.missing()
}

pub(super) fn cumsum(call: &Call) -> Results {
    call.missing()
}

pub(super) fn fill(call: &Call) -> Results {
    call.missing()
}

pub(super) fn fill_like(call: &Call) -> Results {
    call.missing()
}

pub(super) fn identity(call: &Call) -> Results {
    call.missing()
}

pub(super) fn non_maximum_suppression(call: &Call) -> Results {
    call.missing()
}

pub(super) fn non_zero(call: &Call) -> Results {
    call.missing()
}

pub(super) fn one_hot(call: &Call) -> Results {
    call.missing()
}

pub(super) fn pad(call: &Call) -> Results {
    call.missing()
}

pub(super) fn range_1d(call: &Call) -> Results {
    call.missing()
}

pub(super) fn shape(call: &Call) -> Results {
    call.missing()
}

pub(super) fn tile(call: &Call) -> Results {
    call.missing()
}

pub(super) fn topk(call: &Call) -> Results {
    call.missing()
}
