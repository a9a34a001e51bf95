//! Reference kernels: see the op table's `elementwise` family.

use crate::call::{Call, Results};

pub(super) fn abs(call: &Call) -> Results {
    call.missing()
}

pub(super) fn acos(call: &Call) -> Results {
    call.missing()
}

pub(super) fn add(call: &Call) -> Results {
    call.missing()
}

pub(super) fn asin(call: &Call) -> Results {
    call.missing()
}

pub(super) fn atan(call: &Call) -> Results {
    call.missing()
}

pub(super) fn atanh(call: &Call) -> Results {
    call.missing()
}

pub(super) fn cast(call: &Call) -> Results {
    call.missing()
}

pub(super) fn ceil(call: &Call) -> Results {
    call.missing()
}

pub(super) fn clip(call: &Call) -> Results {
    call.missing()
}

pub(super) fn cos(call: &Call) -> Results {
    call.missing()
}

pub(super) fn cosh(call: &Call) -> Results {
    call.missing()
}

pub(super) fn equal(call: &Call) -> Results {
    call.missing()
}

pub(super) fn erf(call: &Call) -> Results {
    call.missing()
}

pub(super) fn exp(call: &Call) -> Results {
    call.missing()
}

pub(super) fn exp2(call: &Call) -> Results {
    call.missing()
}

pub(super) fn floor(call: &Call) -> Results {
    call.missing()
}

pub(super) fn floor_div(call: &Call) -> Results {
    call.missing()
}

pub(super) fn greater(call: &Call) -> Results {
    call.missing()
}

pub(super) fn greater_equal(call: &Call) -> Results {
    call.missing()
}

pub(super) fn inverse(call: &Call) -> Results {
    call.missing()
}

pub(super) fn less(call: &Call) -> Results {
    call.missing()
}

pub(super) fn less_equal(call: &Call) -> Results {
    call.missing()
}

pub(super) fn log(call: &Call) -> Results {
    call.missing()
}

pub(super) fn logical_and(call: &Call) -> Results {
    call.missing()
}

pub(super) fn logical_not(call: &Call) -> Results {
    call.missing()
}

pub(super) fn logical_or(call: &Call) -> Results {
    call.missing()
}

pub(super) fn logical_xor(call: &Call) -> Results {
    call.missing()
}

pub(super) fn maximum(call: &Call) -> Results {
    call.missing()
}

pub(super) fn minimum(call: &Call) -> Results {
    call.missing()
}

pub(super) fn modulo(call: &Call) -> Results {
    call.missing()
}

pub(super) fn mul(call: &Call) -> Results {
    call.missing()
}

pub(super) fn not_equal(call: &Call) -> Results {
    call.missing()
}

pub(super) fn pow(call: &Call) -> Results {
    call.missing()
}

pub(super) fn real_div(call: &Call) -> Results {
    call.missing()
}

pub(super) fn round(call: &Call) -> Results {
    call.missing()
}

pub(super) fn rsqrt(call: &Call) -> Results {
    call.missing()
}

pub(super) fn sign(call: &Call) -> Results {
    call.missing()
}

pub(super) fn sin(call: &Call) -> Results {
    call.missing()
}

pub(super) fn sinh(call: &Call) -> Results {
    call.missing()
}

pub(super) fn sqrt(call: &Call) -> Results {
    call.missing()
}

pub(super) fn square(call: &Call) -> Results {
    call.missing()
}

pub(super) fn sub(call: &Call) -> Results {
    call.missing()
}

pub(super) fn tan(call: &Call) -> Results {
    call.missing()
}

pub(super) fn tanh(call: &Call) -> Results {
    call.missing()
}

pub(super) fn threshold(call: &Call) -> Results {
    call.missing()
}
