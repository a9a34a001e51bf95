//! Which function rewrites which operator.

use std::collections::HashMap;

use coremill_pt2::Target;

use super::call::{Call, Results};
use super::ops;

/// What becomes of a call.
#[derive(Clone, Copy)]
pub(crate) enum Rule {
    /// A call of another operator, whose arguments have the same names.
    Rename(&'static str),
    /// What the function makes of it.
    Rewrite(fn(&mut Call<'_>) -> Results),
}

/// Operators, and what becomes of their calls.
pub(crate) struct Row {
    /// With their overloads: `aten.add.Tensor`, or a function of Python's, `math.floor`.
    pub(crate) operators: &'static [&'static str],
    pub(crate) rule: Rule,
}

/// A row of operators that another one does the work of.
pub(crate) const fn to(operator: &'static str, operators: &'static [&'static str]) -> Row {
    Row { operators, rule: Rule::Rename(operator) }
}

/// A row of operators that a function rewrites.
pub(crate) const fn by(
    rewrite: fn(&mut Call<'_>) -> Results,
    operators: &'static [&'static str],
) -> Row {
    Row { operators, rule: Rule::Rewrite(rewrite) }
}

/// All rows by operator.
pub(crate) struct Table {
    rows: HashMap<&'static str, Rule>,
}

impl Table {
    pub(crate) fn new() -> Table {
        let rows = ops::FAMILIES.iter().copied().flatten();
        let pairs = rows.flat_map(|row| row.operators.iter().map(|name| (*name, row.rule)));
        Table { rows: pairs.collect() }
    }

    /// What becomes of a call of this target; none if it stays what it is.
    pub(crate) fn find(&self, target: &Target) -> Option<Rule> {
        self.rows.get(target.to_string().as_str()).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::super::kernels::kernel;
    use super::*;
    use crate::portable::call::target;

    #[test]
    fn one_row_rewrites_each_operator() {
        let mut names: Vec<_> = ops::FAMILIES
            .iter()
            .copied()
            .flatten()
            .flat_map(|row| row.operators.iter().copied())
            .collect();
        let count = names.len();
        names.sort_unstable();
        names.windows(2).for_each(|pair| assert_ne!(pair[0], pair[1], "is in the table twice"));
        assert_eq!(names.len(), count);
    }

    #[test]
    fn what_does_the_work_has_a_kernel() {
        let table = Table::new();
        for row in ops::FAMILIES.iter().copied().flatten() {
            if let Rule::Rename(operator) = row.rule {
                let done = target(operator);
                assert!(
                    kernel(&done).is_some() && table.find(&done).is_none()
                        || matches!(table.find(&done), Some(Rule::Rewrite(_))),
                    "`{operator}` has neither kernel nor row"
                );
            }
        }
    }
}
