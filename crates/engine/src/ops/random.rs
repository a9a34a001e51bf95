//! Reference kernels: see the op table's `random` family.

use crate::call::{Call, Results};

pub(super) fn random_bernoulli(call: &Call) -> Results {
    call.missing()
}

pub(super) fn random_categorical(call: &Call) -> Results {
    call.missing()
}

pub(super) fn random_normal(call: &Call) -> Results {
    call.missing()
}

pub(super) fn random_uniform(call: &Call) -> Results {
    call.missing()
}
