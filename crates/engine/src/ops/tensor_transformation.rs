//! Reference kernels: see the op table's `tensor_transformation` family.

use crate::call::{Call, Results};

pub(super) fn batch_to_space(call: &Call) -> Results {
    call.missing()
}

pub(super) fn depth_to_space(call: &Call) -> Results {
    call.missing()
}

pub(super) fn pixel_shuffle(call: &Call) -> Results {
    call.missing()
}

pub(super) fn pixel_unshuffle(call: &Call) -> Results {
    call.missing()
}

pub(super) fn reverse(call: &Call) -> Results {
    call.missing()
}

pub(super) fn reverse_sequence(call: &Call) -> Results {
    call.missing()
}

pub(super) fn sliding_windows(call: &Call) -> Results {
    call.missing()
}

pub(super) fn space_to_batch(call: &Call) -> Results {
    call.missing()
}

pub(super) fn space_to_depth(call: &Call) -> Results {
    call.missing()
}

pub(super) fn transpose(call: &Call) -> Results {
    call.missing()
}
