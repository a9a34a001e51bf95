//! Emission of ExecuTorch programs: values, and instructions that call delegates and kernels.
//!
//! | module | holds |
//! |---|---|
//! | `method` | values and calls of a graph |
//! | `arguments` | kernel arguments as values |
//! | `control_flow` | branches and loops as jumps |
//! | `memory` | memory plan of tensors |
//! | `pool` | constants |

mod arguments;
mod control_flow;
mod memory;
mod method;
mod pool;

pub(crate) use self::method::plan;
pub(crate) use self::pool::Pool;
