//! Reference kernels: the semantics of each operation, for any shape and element type, as MIL
//! defines it.
//!
//! Plans use faster kernels where possible. These must compute the same results.

mod activation;
mod broadcast;
mod constexpr;
mod control_flow;
pub mod conv;
mod elementwise;
pub mod image_resizing;
mod join;
mod linear;
mod normalization;
pub mod pool;
mod random;
mod recurrent;
mod reduction;
mod reshape;
mod scatter_gather;
mod slice;
mod suppression;
mod tensor_operation;
mod tensor_transformation;
pub mod window;

use coremill_mil::ops::OpKind;

pub use scatter_gather::Axis as GatherAxis;
pub use slice::{each_update, update_in_place};

use crate::call::{Call, Results};

macro_rules! kernels {
    (
        kernels { $($kind:ident $module:ident::$kernel:ident,)* }
        control { $($control:ident $_module:ident::$_rule:ident,)* }
    ) => {
        /// The kernel of an operation, `None` for operations that the executor implements.
        pub fn kernel(kind: OpKind) -> Option<fn(&Call) -> Results> {
            match kind {
                $(OpKind::$kind => Some($module::$kernel),)*
                $(OpKind::$control)|* => None,
            }
        }
    };
}
coremill_mil::for_each_operation!(kernels);

/// Returns true if the executor implements the operation.
pub fn is_special(kind: OpKind) -> bool {
    kernel(kind).is_none()
}
