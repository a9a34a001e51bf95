//! Which function rewrites which operator.

use std::collections::HashMap;
use std::sync::LazyLock;

use coremill_pt2::Target;

use super::ops;
use super::row::Rule;

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
    use crate::decompose::formula::is_formula;
    use crate::kernels::kernel;

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
    fn formulas_are_understood() {
        for row in ops::FAMILIES.iter().copied().flatten() {
            if let Rule::Formula(text) = row.rule {
                is_formula(text).unwrap_or_else(|reason| panic!("`{text}`: {reason:?}"));
            }
        }
    }

    #[test]
    fn what_does_the_work_has_a_kernel() {
        for row in ops::FAMILIES.iter().copied().flatten() {
            if let Rule::Rename(operator) = row.rule {
                let done = target(operator);
                assert!(
                    kernel(&done).is_some() && rule(&done).is_none()
                        || matches!(rule(&done), Some(Rule::Rewrite(_) | Rule::Formula(_))),
                    "`{operator}` has neither kernel nor row"
                );
            }
        }
    }
}
