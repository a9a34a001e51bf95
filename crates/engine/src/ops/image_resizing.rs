//! Reference kernels: see the op table's `image_resizing` family.

use crate::call::{Call, Results};

pub(super) fn affine(call: &Call) -> Results {
    call.missing()
}

pub(super) fn crop(call: &Call) -> Results {
    call.missing()
}

pub(super) fn crop_resize(call: &Call) -> Results {
    call.missing()
}

pub(super) fn resample(call: &Call) -> Results {
    call.missing()
}

pub(super) fn resize(call: &Call) -> Results {
    call.missing()
}

pub(super) fn resize_bilinear(call: &Call) -> Results {
    call.missing()
}

pub(super) fn resize_nearest_neighbor(call: &Call) -> Results {
    call.missing()
}

pub(super) fn upsample_bilinear(call: &Call) -> Results {
    call.missing()
}

pub(super) fn upsample_nearest_neighbor(call: &Call) -> Results {
    call.missing()
}
