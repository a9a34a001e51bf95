//! Reads `.pt2` archives: programs saved by `torch.export.save` (torch 2.5 to 2.15) or
//! `executorch.exir.save`.
//!
//! Every call is normalized by its operator's schema: all arguments are present and in order, even if the
//! archive omits or names them. Weights stay in the mapped file. Archives may be hostile: pickles are parsed
//! with a list of allowed names and never executed, and every length is checked; [`limits`] lists the limits.
//!
//! | module | contents |
//! |---|---|
//! | `read` | [`Pt2`]: the layouts of archives, and reading programs |
//! | `zip`, [`wire`] | the container, and the types of the JSON, which programs in memory use as well |
//! | `graph`, [`normalize`], `dce` | conversion of the JSON's graph to [`Graph`] |
//! | `program` | [`ExportedProgram`] and its parts |
//! | [`promotion`] | element types of results |
//! | [`operators`] | properties of operators: elementwise, movement, predicate, and so on |
//! | `symbol` | [`Expression`]s of symbolic sizes, their ranges and values |
//! | `schema` | schemas of operators |
//! | `tensor` | [`StoredValue`]s: weights |
//! | `pickle`, `saved` | files of `torch.save` |
//!
//! ```no_run
//! let program = coremill_pt2::read("model.pt2".as_ref())?;
//! for node in &program.graph.nodes {
//!     let place = node.origin.module_path().unwrap_or_default();
//!     assert!(node.schema.is_none() || node.keywords.is_empty(), "{}: {}", place, node.target);
//! }
//! # Ok::<(), coremill_pt2::Error>(())
//! ```

mod dce;
mod error;
mod graph;
pub mod limits;
pub mod normalize;
pub mod operators;
mod pickle;
mod program;
pub mod promotion;
mod read;
mod saved;
mod scalar;
mod schema;
mod symbol;
mod tensor;
mod tree;
pub mod wire;
mod zip;

pub use error::{Error, ErrorKind};
pub use program::{
    Argument, CallSignature, Constraint, Device, Dialect, ExportedProgram, Graph, Hint, InputKind,
    Meta, Module, Node, Origin, Output, OutputKind, SampleInputs, Size, SourceLine, Subgraph,
    Symbolic, Target, TensorMeta, Value, ValueId,
};
pub use read::{Pt2, read};
pub use saved::{SavedValue, tensor_subclass_parts};
pub use scalar::{Layout, MemoryFormat, ScalarType};
pub use schema::{Kind, Literal, Parameter, Return, Schema, Schemas, overloads};
pub use symbol::{Expression, Function, Number, Symbol, SymbolId, Symbols};
pub use tensor::{StoredValue, Tensor, UncheckedTensor};
pub use tree::TreeSpec;
