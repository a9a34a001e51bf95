//! What runs outside packages.

use coremill_rlx::{Support, support};
use rlx_ir::Op;

/// Whether no package holds the operation.
pub fn is_host_op(op: &Op) -> bool {
    matches!(support(op.kind()), Support::Divided(_))
}
