//! coremill.

pub use coremill_mil as mil;
pub use coremill_tensor as tensor;
