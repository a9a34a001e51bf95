//! Lookup of the rule for an operator.

use std::borrow::Cow;
use std::sync::LazyLock;

use coremill_pt2::Target;
use foldhash::{HashMap, HashMapExt};

use super::ops;
use super::row::{Row, Rule};

/// Capacity of the operator tables, which avoids regrowth, as every command builds both tables.
pub(crate) const OPERATORS: usize = 1500;

/// All rules by operator.
static RULES: LazyLock<HashMap<Cow<'static, str>, Rule>> = LazyLock::new(|| {
    let mut rules = HashMap::with_capacity(OPERATORS);
    for row in ops::FAMILIES.iter().copied().flatten() {
        for_each_operator(row, &mut |name| _ = rules.insert(name, row.rule));
    }
    rules
});

fn for_each_operator(row: &Row, run: &mut dyn FnMut(Cow<'static, str>)) {
    row.operators.iter().for_each(|pattern| for_each_name(pattern, run));
}

/// Expands alternatives in a name: `conv{1,2}d` to `conv1d` and `conv2d`.
pub(crate) fn for_each_name(pattern: &'static str, run: &mut dyn FnMut(Cow<'static, str>)) {
    match pattern.contains('{') {
        true => alternatives("", pattern, run),
        false => run(Cow::Borrowed(pattern)),
    }
}

fn alternatives(before: &str, pattern: &str, run: &mut dyn FnMut(Cow<'static, str>)) {
    let Some((plain, rest)) = pattern.split_once('{') else {
        return run(Cow::Owned([before, pattern].concat()));
    };
    let (all, after) = rest.split_once('}').unwrap_or((rest, ""));
    all.split(',').for_each(|one| alternatives(&[before, plain, one].concat(), after, run));
}

/// The rule for a target; `None` if it is not decomposed.
pub(crate) fn rule(target: &Target) -> Option<Rule> {
    let call = target.to_string();
    let of_all = || match target {
        Target::Operator { .. } => RULES.get(call.rsplit_once('.')?.0),
        Target::HigherOrder(_) | Target::Function(_) => None,
    };
    RULES.get(call.as_str()).or_else(of_all).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decompose::call::target;
    use crate::decompose::formula::is_formula;
    use crate::kernels::kernel;

    #[test]
    fn table_lists_each_operator_once() {
        let mut names = Vec::new();
        for row in ops::FAMILIES.iter().copied().flatten() {
            for_each_operator(row, &mut |name| names.push(name));
        }
        assert!(
            names.len() <= OPERATORS,
            "the table has {} operators; raise OPERATORS",
            names.len()
        );
        names.sort_unstable();
        names.windows(2).for_each(|pair| assert_ne!(pair[0], pair[1], "duplicate operator"));
        assert!(
            names.contains(&Cow::Borrowed("aten.adaptive_max_pool2d")),
            "alternatives in braces are expanded"
        );
    }

    #[test]
    fn every_formula_in_table_parses() {
        for row in ops::FAMILIES.iter().copied().flatten() {
            if let Rule::Formula(text) = row.rule {
                is_formula(text).unwrap_or_else(|reason| panic!("`{text}`: {reason:?}"));
            }
        }
    }

    #[test]
    fn rename_targets_have_kernel_or_rule() {
        for row in ops::FAMILIES.iter().copied().flatten() {
            if let Rule::Rename(operator) = row.rule {
                let overloads = ["Tensor", "Scalar", "int", "default"];
                let done = match operator.split('.').count() {
                    2 => {
                        overloads.map(|overload| target(&format!("{operator}.{overload}"))).to_vec()
                    }
                    _ => vec![target(operator)],
                };
                let is_done = |done: &Target| {
                    kernel(done).is_some() && rule(done).is_none()
                        || matches!(rule(done), Some(Rule::Rewrite(_) | Rule::Formula(_)))
                };
                assert!(done.iter().any(is_done), "`{operator}` has no kernel, formula or rewrite");
            }
        }
    }
}
