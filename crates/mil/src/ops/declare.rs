//! Constructors for the rows of the op table.

use coremill_tensor::DType;

use super::{Accepts, DefaultValue, OpKind, OpRow, Opset, Parameter};

/// Entry of the list of operations.
pub(super) struct Entry {
    pub(super) kind: OpKind,
    pub(super) name: &'static str,
    pub(super) family: &'static str,
    pub(super) rows: &'static [OpRow],
}

pub(super) const fn entry(
    kind: OpKind,
    name: &'static str,
    family: &'static str,
    rows: &'static [OpRow],
) -> Entry {
    Entry { kind, name, family, rows }
}

/// A definition that applies from an opset on.
pub(super) const fn row(kind: OpKind, since: Opset, parameters: &'static [Parameter]) -> OpRow {
    OpRow { kind, since, parameters, blocks: &[] }
}

/// A definition of an operation with nested blocks.
pub(super) const fn row_with_blocks(
    kind: OpKind,
    since: Opset,
    blocks: &'static [&'static str],
    parameters: &'static [Parameter],
) -> OpRow {
    OpRow { kind, since, parameters, blocks }
}

/// A required parameter.
pub(super) const fn required(name: &'static str, accepts: Accepts) -> Parameter {
    Parameter { name, accepts, required: true, constant: false, default: DefaultValue::Absent }
}

/// An optional parameter.
pub(super) const fn optional(
    name: &'static str,
    accepts: Accepts,
    default: DefaultValue,
) -> Parameter {
    Parameter { name, accepts, required: false, constant: false, default }
}

impl Parameter {
    /// Requires the bound value to be known at compile time.
    pub(super) const fn constant(self) -> Parameter {
        Parameter { constant: true, ..self }
    }
}

/// A tensor with one of the element types.
pub(super) const fn tensor(dtypes: &'static [DType]) -> Accepts {
    Accepts::Tensor { variable: None, dtypes }
}

/// A tensor whose element type is a type variable with one of these types.
pub(super) const fn typed(variable: &'static str, dtypes: &'static [DType]) -> Accepts {
    Accepts::Tensor { variable: Some(variable), dtypes }
}
