//! Reads `.pt2` archives: programs that `torch.export.save` (torch 2.5 to 2.15) or `executorch.exir.save` wrote.
//!
//! Every call comes normalised by its operator's schema: all arguments are there, in order, whatever the archive left
//! out or named. Weights stay in the file, which is mapped. Archives may be hostile: pickles are parsed against a list
//! of names and never executed, and every length is checked before it is believed; [`limits`] has the bounds.
//!
//! | module | holds |
//! |---|---|
//! | `read` | [`Pt2`]: the layouts of the archive, and the program out of its entries |
//! | `zip`, [`wire`] | the container, and the JSON's types, which programs in memory take too |
//! | `graph`, [`normalize`], `dce` | from the JSON's graph to [`Graph`] |
//! | `program` | [`ExportedProgram`] and all that is in it |
//! | [`promotion`] | the types of results |
//! | [`operators`] | what operators are: elementwise, movements, predicates, and the like |
//! | `symbol` | [`Expression`]s of symbolic sizes, their ranges and values |
//! | `schema` | the operators' schemas |
//! | `tensor` | [`StoredValue`] weights |
//! | `pickle`, `saved` | what `torch.save` writes |
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
