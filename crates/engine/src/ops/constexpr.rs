//! Reference kernels: see the op table's `constexpr` family.

use crate::call::{Call, Results};

pub(super) fn constexpr_affine_dequantize(call: &Call) -> Results {
    call.missing()
}

pub(super) fn constexpr_blockwise_shift_scale(call: &Call) -> Results {
    call.missing()
}

pub(super) fn constexpr_cast(call: &Call) -> Results {
    call.missing()
}

pub(super) fn constexpr_lut_to_dense(call: &Call) -> Results {
    call.missing()
}

pub(super) fn constexpr_lut_to_sparse(call: &Call) -> Results {
    call.missing()
}

pub(super) fn constexpr_sparse_blockwise_shift_scale(call: &Call) -> Results {
    call.missing()
}

pub(super) fn constexpr_sparse_to_dense(call: &Call) -> Results {
    call.missing()
}

pub(super) fn dequantize(call: &Call) -> Results {
    call.missing()
}

pub(super) fn quantize(call: &Call) -> Results {
    call.missing()
}
