//! Reference kernels: see the op table's `linear` family.

use crate::call::{Call, Results};

pub(super) fn einsum(call: &Call) -> Results {
    call.missing()
}

pub(super) fn linear(call: &Call) -> Results {
    call.missing()
}

pub(super) fn matmul(call: &Call) -> Results {
    call.missing()
}

pub(super) fn scaled_dot_product_attention(call: &Call) -> Results {
    call.missing()
}
