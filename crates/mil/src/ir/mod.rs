//! Programs in memory.
//!
//! A [`Program`] holds [`Function`]s; a function owns its values, operations and blocks in tables and
//! names them by [`ValueId`], [`OpId`] and [`BlockId`]. Operations refer to values, values to the
//! operation or block input that defines them; nothing holds a reference. Deleting an operation means
//! taking it out of its block; the tables keep it until the program is written and read again.
//!
//! Files know two kinds of dimension, fixed and unknown. Inference works with [`Expr`]essions of
//! [`Symbol`]s in their place, so that it can tell whether two unknown dimensions are the same.

mod constant;
mod dim;
mod program;
mod types;

pub use constant::{Constant, ConstantData, Weight, WeightPlace};
pub use dim::{Dim, Expr, Symbol};
pub use program::{
    Attributes, Binding, Block, BlockId, Definition, Function, Input, Name, Op, OpId, Operator,
    Program, UnknownFields, Value, ValueId,
};
pub use types::{TensorType, Type};

pub use crate::ops::Opset;
