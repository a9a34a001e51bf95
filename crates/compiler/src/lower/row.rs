//! Row types of the lowering tables.

use super::builder::ValueResult;
use super::call::{Call, Results};
use super::value::LoweredValue;
use crate::error::Result;

/// A function that lowers a call.
#[derive(Clone, Copy)]
pub(crate) enum Lower {
    /// Returns the tensor of the first result; other results must be unused.
    Tensor(fn(&mut Call<'_, '_>) -> ValueResult),
    /// Returns the only result.
    Number(fn(&mut Call<'_, '_>) -> Result<LoweredValue>),
    Several(fn(&mut Call<'_, '_>) -> Results),
}

impl Lower {
    pub(crate) fn run(self, call: &mut Call<'_, '_>) -> Results {
        match self {
            Lower::Tensor(lower) => {
                let value = lower(call)?;
                call.give(value)
            }
            Lower::Number(lower) => Ok(vec![lower(call)?]),
            Lower::Several(lower) => lower(call),
        }
    }
}

/// An operator and its lowering.
pub(crate) struct Row {
    /// Operator name, such as `aten.add`, `_operator.mul` or `higher_order.cond`. Braces list alternatives:
    /// `aten.conv{1,2,3}d`.
    pub(crate) operator: &'static str,
    /// Supported overloads; empty for all.
    pub(crate) overloads: &'static [&'static str],
    pub(crate) lower: Lower,
}

impl Row {
    const fn all(operator: &'static str, lower: Lower) -> Row {
        Row { operator, overloads: &[], lower }
    }

    /// Restricts the row to these overloads.
    pub(crate) const fn only(self, overloads: &'static [&'static str]) -> Row {
        Row { overloads, ..self }
    }
}

/// A row for an operator with one tensor result.
pub(crate) const fn tensor(
    operator: &'static str,
    lower: fn(&mut Call<'_, '_>) -> ValueResult,
) -> Row {
    Row::all(operator, Lower::Tensor(lower))
}

/// A row for an operator with one number result.
pub(crate) const fn number(
    operator: &'static str,
    lower: fn(&mut Call<'_, '_>) -> Result<LoweredValue>,
) -> Row {
    Row::all(operator, Lower::Number(lower))
}

/// A row for an operator with several results.
pub(crate) const fn several(
    operator: &'static str,
    lower: fn(&mut Call<'_, '_>) -> Results,
) -> Row {
    Row::all(operator, Lower::Several(lower))
}
