//! Reference kernels: see the op table's `reduction` family.

use crate::call::{Call, Results};

pub(super) fn reduce_argmax(call: &Call) -> Results {
    call.missing()
}

pub(super) fn reduce_argmin(call: &Call) -> Results {
    call.missing()
}

pub(super) fn reduce_l1_norm(call: &Call) -> Results {
    call.missing()
}

pub(super) fn reduce_l2_norm(call: &Call) -> Results {
    call.missing()
}

pub(super) fn reduce_log_sum(call: &Call) -> Results {
    call.missing()
}

pub(super) fn reduce_log_sum_exp(call: &Call) -> Results {
    call.missing()
}

pub(super) fn reduce_max(call: &Call) -> Results {
    call.missing()
}

pub(super) fn reduce_mean(call: &Call) -> Results {
    call.missing()
}

pub(super) fn reduce_min(call: &Call) -> Results {
    call.missing()
}

pub(super) fn reduce_prod(call: &Call) -> Results {
    call.missing()
}

pub(super) fn reduce_sum(call: &Call) -> Results {
    call.missing()
}

pub(super) fn reduce_sum_square(call: &Call) -> Results {
    call.missing()
}
