//! Reference kernels: see the op table's `normalization` family.

use crate::call::{Call, Results};

pub(super) fn batch_norm(call: &Call) -> Results {
    call.missing()
}

pub(super) fn instance_norm(call: &Call) -> Results {
    call.missing()
}

pub(super) fn l2_norm(call: &Call) -> Results {
    call.missing()
}

pub(super) fn layer_norm(call: &Call) -> Results {
    call.missing()
}

pub(super) fn local_response_norm(call: &Call) -> Results {
    call.missing()
}
