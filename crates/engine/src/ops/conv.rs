//! Reference kernels: see the op table's `conv` family.

use crate::call::{Call, Results};

pub(super) fn conv(call: &Call) -> Results {
    call.missing()
}

pub(super) fn conv_quantized(call: &Call) -> Results {
    call.missing()
}

pub(super) fn conv_transpose(call: &Call) -> Results {
    call.missing()
}
