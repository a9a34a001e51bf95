//! Reference kernels: see the op table's `join` family.

use crate::call::{Call, Results};

pub(super) fn concat(call: &Call) -> Results {
    call.missing()
}

pub(super) fn split(call: &Call) -> Results {
    call.missing()
}

pub(super) fn stack(call: &Call) -> Results {
    call.missing()
}
