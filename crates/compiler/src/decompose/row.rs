//! Rows of the tables of decompositions: beside the functions of each family.

use super::call::{Call, Results};

/// What becomes of a call.
#[derive(Clone, Copy)]
pub(crate) enum Rule {
    /// A call of another operator, whose arguments have the same names; of the same overload, if none is named.
    Rename(&'static str),
    /// What is computed, as `formula` describes it.
    Formula(&'static str),
    /// What the function makes of it.
    Rewrite(fn(&mut Call<'_>) -> Results),
}

/// Operators, and what becomes of their calls.
pub(crate) struct Row {
    /// With their overloads or, for all overloads that have no row of their own, without: `aten.add.Tensor`, `aten.var`;
    /// or functions of Python's, `math.floor`. Names that differ in a part give its forms: `aten.conv{1,2,3}d`.
    pub(crate) operators: &'static [&'static str],
    pub(crate) rule: Rule,
}

/// A row of operators that another one does the work of.
pub(crate) const fn to(operator: &'static str, operators: &'static [&'static str]) -> Row {
    Row { operators, rule: Rule::Rename(operator) }
}

/// A row of operators whose first result is what a formula says, as the type that torch noted; nothing uses the others.
pub(crate) const fn formula(text: &'static str, operators: &'static [&'static str]) -> Row {
    Row { operators, rule: Rule::Formula(text) }
}

/// A row of operators that a function rewrites.
pub(crate) const fn by(
    rewrite: fn(&mut Call<'_>) -> Results,
    operators: &'static [&'static str],
) -> Row {
    Row { operators, rule: Rule::Rewrite(rewrite) }
}
