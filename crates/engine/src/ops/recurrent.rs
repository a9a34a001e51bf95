//! Reference kernels: see the op table's `recurrent` family.

use crate::call::{Call, Results};

pub(super) fn gru(call: &Call) -> Results {
    call.missing()
}

pub(super) fn lstm(call: &Call) -> Results {
    call.missing()
}

pub(super) fn rnn(call: &Call) -> Results {
    call.missing()
}
