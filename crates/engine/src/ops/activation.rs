//! Reference kernels: see the op table's `activation` family.

use crate::call::{Call, Results};

pub(super) fn clamped_relu(call: &Call) -> Results {
    call.missing()
}

pub(super) fn elu(call: &Call) -> Results {
    call.missing()
}

pub(super) fn gelu(call: &Call) -> Results {
    call.missing()
}

pub(super) fn leaky_relu(call: &Call) -> Results {
    call.missing()
}

pub(super) fn linear_activation(call: &Call) -> Results {
    call.missing()
}

pub(super) fn prelu(call: &Call) -> Results {
    call.missing()
}

pub(super) fn relu(call: &Call) -> Results {
    call.missing()
}

pub(super) fn relu6(call: &Call) -> Results {
    call.missing()
}

pub(super) fn scaled_tanh(call: &Call) -> Results {
    call.missing()
}

pub(super) fn sigmoid(call: &Call) -> Results {
    call.missing()
}

pub(super) fn sigmoid_hard(call: &Call) -> Results {
    call.missing()
}

pub(super) fn silu(call: &Call) -> Results {
    call.missing()
}

pub(super) fn softmax(call: &Call) -> Results {
    call.missing()
}

pub(super) fn softplus(call: &Call) -> Results {
    call.missing()
}

pub(super) fn softplus_parametric(call: &Call) -> Results {
    call.missing()
}

pub(super) fn softsign(call: &Call) -> Results {
    call.missing()
}

pub(super) fn thresholded_relu(call: &Call) -> Results {
    call.missing()
}
