//! Inference rules of all operations.

mod activation;
mod constexpr;
mod control_flow;
mod conv;
mod elements;
mod elementwise;
mod expect;
mod image_resizing;
mod join;
mod linear;
mod normalization;
mod pool;
mod random;
mod recurrent;
mod reduction;
mod reshape;
mod scatter_gather;
mod slice;
mod tensor_operation;
mod tensor_transformation;
mod window;

use super::{InferContext, Rule};
use crate::ops::OpKind;

macro_rules! rules {
    (
        kernels { $($kernel:ident $kernel_module:ident::$kernel_rule:ident,)* }
        control { $($control:ident $control_module:ident::$control_rule:ident,)* }
    ) => {
        /// Returns the inference rule of an operation.
        pub(super) fn rule(kind: OpKind) -> fn(&InferContext) -> Rule {
            match kind {
                $(OpKind::$kernel => $kernel_module::$kernel_rule,)*
                $(OpKind::$control => $control_module::$control_rule,)*
            }
        }
    };
}
crate::for_each_operation!(rules);
