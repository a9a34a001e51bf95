//! Row types of the decomposition tables.

use super::call::{Call, Results};

/// Decomposition of a call.
#[derive(Clone, Copy)]
pub(crate) enum Rule {
    /// Another operator with the same argument names. Without an overload, the call's overload is used.
    Rename(&'static str),
    /// A formula; see [`formula`](super::formula).
    Formula(&'static str),
    /// A function that rewrites the call.
    Rewrite(fn(&mut Call<'_>) -> Results),
}

/// Operators with their rule.
pub(crate) struct Row {
    /// Operator names with an overload, such as `aten.add.Tensor`, or without one for all overloads that have no
    /// row, such as `aten.var`; or Python functions such as `math.floor`. Braces list alternatives:
    /// `aten.conv{1,2,3}d`.
    pub(crate) operators: &'static [&'static str],
    pub(crate) rule: Rule,
}

/// A row of operators that are renamed to another operator.
pub(crate) const fn to(operator: &'static str, operators: &'static [&'static str]) -> Row {
    Row { operators, rule: Rule::Rename(operator) }
}

/// A row of operators defined by a formula for the first result. Other results must be unused.
pub(crate) const fn formula(text: &'static str, operators: &'static [&'static str]) -> Row {
    Row { operators, rule: Rule::Formula(text) }
}

/// A row of operators rewritten by a function.
pub(crate) const fn by(
    rewrite: fn(&mut Call<'_>) -> Results,
    operators: &'static [&'static str],
) -> Row {
    Row { operators, rule: Rule::Rewrite(rewrite) }
}
