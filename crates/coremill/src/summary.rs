//! Summary of a model.
//!
//! ```
//! use coremill::graph::{DType, Device, Graph, Session};
//!
//! let graph = Graph::new();
//! let x = graph.input("x", DType::Fp32, [1, 4]);
//! graph.output("y", x.relu());
//! let mut model = Session::new(Device::Host).compile(&graph)?;
//! let summary = coremill::summary::summarize(model.model()?);
//! assert_eq!(summary.functions[0].outputs[0].name, "y");
//! # Ok::<(), coremill::Error>(())
//! ```

pub use coremill_inspect::summary::*;
