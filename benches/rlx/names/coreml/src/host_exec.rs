//! Operations that run outside packages.

use coremill_rlx::{Support, support};
use rlx_ir::Op;

/// Whether the operation cannot be part of a package.
pub fn is_host_op(op: &Op) -> bool {
    matches!(support(op.kind()), Support::Divided(_))
}
