//! The in-memory representation of programs.
//!
//! A [`Program`] contains [`Function`]s. A function owns its values, operations and blocks in tables, and
//! refers to them by [`ValueId`], [`OpId`] and [`BlockId`]. Operations refer to values, and a value refers to
//! the operation or block input that defines it, always by id. To delete an operation, remove it from its
//! block; the table keeps it until the program is written and read again.
//!
//! Files have only fixed and unknown dimensions. Inference replaces unknown dimensions by [`Expr`]essions of
//! [`Symbol`]s, so that it can determine whether two unknown dimensions are equal.

mod constant;
mod copy;
mod dim;
mod program;
mod types;

pub use constant::{Constant, ConstantData, Weight, WeightPlace};
pub use copy::{FunctionCopy, MissingValue};
pub use dim::{Dim, Expr, Symbol};
pub use program::{
    Attributes, Binding, Block, BlockId, Definition, Function, Input, Name, Op, OpId, Operator,
    Program, UnknownFields, Value, ValueId,
};
pub use types::{TensorType, Type};

pub use crate::ops::Opset;
