//! Which function rewrites which operator.

use std::collections::HashMap;
use std::sync::LazyLock;

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

/// All rules by operator.
static RULES: LazyLock<HashMap<&str, Rule>> = LazyLock::new(|| {
    let rows = ops::FAMILIES.iter().copied().flatten();
    rows.flat_map(|row| row.operators.iter().map(|name| (*name, row.rule))).collect()
});

/// What becomes of a call of this target; none if it stays what it is.
pub(crate) fn rule(target: &Target) -> Option<Rule> {
    RULES.get(target.to_string().as_str()).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decompose::call::target;
    use crate::portable::kernel;

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
        for row in ops::FAMILIES.iter().copied().flatten() {
            if let Rule::Rename(operator) = row.rule {
                let done = target(operator);
                assert!(
                    kernel(&done).is_some() && rule(&done).is_none()
                        || matches!(rule(&done), Some(Rule::Rewrite(_))),
                    "`{operator}` has neither kernel nor row"
                );
            }
        }
    }
}
