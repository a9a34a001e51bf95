//! Rows of the tables of lowerings: one for each operator, beside the functions of its family.

use super::call::{Call, Results};

/// Lowers a call.
pub(crate) type Lower = fn(&mut Call<'_, '_>) -> Results;

/// An operator, and what lowers it.
pub(crate) struct Row {
    /// `aten.add`, `_operator.mul`, `higher_order.cond`.
    pub(crate) operator: &'static str,
    /// The overloads that it lowers; all of them if none are named.
    pub(crate) overloads: &'static [&'static str],
    pub(crate) lower: Lower,
}

/// A row for all overloads of an operator.
pub(crate) const fn all(operator: &'static str, lower: Lower) -> Row {
    Row { operator, overloads: &[], lower }
}

/// A row for some overloads of an operator.
pub(crate) const fn some(
    operator: &'static str,
    overloads: &'static [&'static str],
    lower: Lower,
) -> Row {
    Row { operator, overloads, lower }
}
