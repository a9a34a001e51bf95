//! Rows of the tables of lowerings: one for each operator, beside the functions of its family.

use super::builder::ValueResult;
use super::call::{Call, Results};
use super::value::LoweredValue;
use crate::error::Result;

/// Lowers a call.
#[derive(Clone, Copy)]
pub(crate) enum Lower {
    /// Gives the tensor that is the first result; the others have no use.
    Tensor(fn(&mut Call<'_, '_>) -> ValueResult),
    /// Gives the only result, whatever it is.
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

/// An operator, and what lowers it.
pub(crate) struct Row {
    /// `aten.add`, `_operator.mul`, `higher_order.cond`; `aten.conv{1,2,3}d` for several.
    pub(crate) operator: &'static str,
    /// The overloads that it lowers; all of them if none are named.
    pub(crate) overloads: &'static [&'static str],
    pub(crate) lower: Lower,
}

impl Row {
    const fn all(operator: &'static str, lower: Lower) -> Row {
        Row { operator, overloads: &[], lower }
    }

    /// The row for these overloads alone.
    pub(crate) const fn only(self, overloads: &'static [&'static str]) -> Row {
        Row { overloads, ..self }
    }
}

/// A row for an operator that gives one tensor.
pub(crate) const fn tensor(
    operator: &'static str,
    lower: fn(&mut Call<'_, '_>) -> ValueResult,
) -> Row {
    Row::all(operator, Lower::Tensor(lower))
}

/// A row for an operator that gives one number.
pub(crate) const fn number(
    operator: &'static str,
    lower: fn(&mut Call<'_, '_>) -> Result<LoweredValue>,
) -> Row {
    Row::all(operator, Lower::Number(lower))
}

/// A row for an operator that gives several results.
pub(crate) const fn several(
    operator: &'static str,
    lower: fn(&mut Call<'_, '_>) -> Results,
) -> Row {
    Row::all(operator, Lower::Several(lower))
}
