//! ExecuTorch programs and their Core ML models.
//!
//! ```
//! # #[cfg(feature = "compiler")] {
//! use coremill::engine::Array;
//! use coremill::executorch;
//! use coremill::graph::DType;
//! use coremill::session::{RunOptions, inputs, load_program};
//!
//! let archive = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/digits.pt2");
//! let program = coremill::lower(archive, &coremill::LowerOptions::new())?.program;
//! assert_eq!(executorch::models(&program)?.len(), 1);
//!
//! let mut forward = load_program(program, &RunOptions::default())?.session("forward")?;
//! let spec = forward.inputs()[0].clone();
//! let shape = spec.default_shape().unwrap_or_default();
//! let image = Array::floats(DType::Fp32, shape, vec![0.0; 64]);
//! let outputs = forward.run(&inputs(&[(spec.name, image)]))?;
//! assert_eq!(outputs.array(&forward.outputs()[0].name).map(Array::shape), Some(&[1, 10][..]));
//! # }
//! # Ok::<(), coremill::Error>(())
//! ```

pub use coremill_inspect::executorch::*;
