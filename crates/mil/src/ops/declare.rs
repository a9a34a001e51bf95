//! The words that the table is written in.

use coremill_tensor::DType;

use super::{Accepts, DefaultValue, OpKind, OpRow, Opset, Parameter};

/// What stands for an operation in the list of them.
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

/// A definition that holds from an opset on.
pub(super) const fn row(kind: OpKind, since: Opset, parameters: &'static [Parameter]) -> OpRow {
    OpRow { kind, since, parameters, blocks: &[] }
}

/// A definition of an operation that runs blocks.
pub(super) const fn row_with_blocks(
    kind: OpKind,
    since: Opset,
    blocks: &'static [&'static str],
    parameters: &'static [Parameter],
) -> OpRow {
    OpRow { kind, since, parameters, blocks }
}

/// A parameter that must be bound.
pub(super) const fn required(name: &'static str, accepts: Accepts) -> Parameter {
    Parameter { name, accepts, required: true, constant: false, default: DefaultValue::Absent }
}

/// A parameter that may be left out.
pub(super) const fn optional(
    name: &'static str,
    accepts: Accepts,
    default: DefaultValue,
) -> Parameter {
    Parameter { name, accepts, required: false, constant: false, default }
}

impl Parameter {
    /// The same, and what is bound must be known when the program is compiled.
    pub(super) const fn constant(self) -> Parameter {
        Parameter { constant: true, ..self }
    }
}

/// A tensor of one of the types.
pub(super) const fn tensor(dtypes: &'static [DType]) -> Accepts {
    Accepts::Tensor { variable: None, dtypes }
}

/// A tensor of the type that the variable stands for, one of these.
pub(super) const fn typed(variable: &'static str, dtypes: &'static [DType]) -> Accepts {
    Accepts::Tensor { variable: Some(variable), dtypes }
}
