//! A program as ExecuTorch's runtime runs it: values, and instructions that call delegates and kernels on them.
//!
//! | module | holds |
//! |---|---|
//! | `method` | a graph's values and calls |
//! | `arguments` | arguments of kernels as values |
//! | `control_flow` | branches and loops as jumps |
//! | `memory` | where tensors lie |
//! | `pool` | constants |
//! | `payload` | what a delegate is given |

mod arguments;
mod control_flow;
mod memory;
mod method;
mod payload;
mod pool;

pub(crate) use self::method::plan;
pub(crate) use self::payload::{Handles, payload, payload_in};
pub(crate) use self::pool::Pool;
