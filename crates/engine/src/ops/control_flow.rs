//! Reference kernels: see the op table's `control_flow` family.

use crate::call::{Call, Results};

pub(super) fn classify(call: &Call) -> Results {
    call.missing()
}

pub(super) fn select(call: &Call) -> Results {
    call.missing()
}
