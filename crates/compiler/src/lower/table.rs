//! Lookup of the lowering for an operator.

use std::borrow::Cow;
use std::collections::hash_map::Entry;
use std::sync::{Arc, LazyLock};

use coremill_pt2::{Schema, Target};
use foldhash::{HashMap, HashMapExt};

use super::ops;
use super::row::{Lower, Row};
use crate::decompose::{OPERATORS, TargetOps, for_each_name};
use crate::error::{LoweringError, Result, refuse};

/// Rows of an operator. Few operators have more than one.
struct Choice {
    first: &'static Row,
    others: Vec<&'static Row>,
}

impl Choice {
    fn iter(&self) -> impl Iterator<Item = &'static Row> {
        std::iter::once(self.first).chain(self.others.iter().copied())
    }
}

/// All rows by operator.
static ROWS: LazyLock<HashMap<Cow<'static, str>, Choice>> = LazyLock::new(|| {
    let mut rows = HashMap::with_capacity(OPERATORS);
    let groups = ops::GROUPS.iter().copied().flatten();
    for row in ops::FAMILIES.iter().chain(groups).copied().flatten() {
        for_each_name(row.operator, &mut |name| match rows.entry(name) {
            Entry::Vacant(place) => drop(place.insert(Choice { first: row, others: Vec::new() })),
            Entry::Occupied(mut known) => known.get_mut().others.push(row),
        });
    }
    rows
});

/// The lowering for a target.
pub(crate) fn find(target: &Target) -> Result<Lower> {
    let (operator, overload) = match target {
        // ExecuTorch's functions on numbers are equivalent to Python's.
        Target::Operator { namespace, name, .. } if namespace == "executorch_prim" => {
            let modules = ["_operator", "torch", "math", "builtins"];
            let names = modules.into_iter().map(|module| format!("{module}.{name}"));
            let found = names.into_iter().find(|name| ROWS.contains_key(name.as_str()));
            (found.unwrap_or_else(|| name.clone()), "")
        }
        Target::Operator { namespace, name, overload } => {
            (format!("{namespace}.{name}"), overload.as_str())
        }
        Target::HigherOrder(name) => (format!("higher_order.{name}"), ""),
        Target::Function(name) => (name.clone(), ""),
    };
    // Views and copies are equivalent, as Core ML has no views.
    let rows = ROWS.get(operator.as_str());
    let Some(rows) = rows.or_else(|| ROWS.get(operator.strip_suffix("_copy")?)) else {
        refuse!("no lowering is known for `{operator}`");
    };
    let takes = |row: &&Row| row.overloads.is_empty() || row.overloads.contains(&overload);
    match rows.iter().find(takes) {
        Some(row) => Ok(row.lower),
        None => {
            let known: Vec<_> = rows.iter().flat_map(|row| row.overloads).copied().collect();
            refuse!(
                "no lowering is known for the overload `{overload}` of `{operator}`; the supported overloads are {}",
                known.join(", ")
            )
        }
    }
}

/// The set of operators with a lowering.
pub(crate) struct Rows;

impl TargetOps for Rows {
    fn has(&mut self, target: &Target) -> bool {
        find(target).is_ok()
    }

    fn lacks(&self, operator: &str) -> LoweringError {
        LoweringError::new(format!("no lowering is known for `{operator}`"))
    }

    fn schema(&self, target: &Target) -> Option<Arc<Schema>> {
        crate::kernels::kernel(target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_overload_has_one_lowering() {
        for (operator, rows) in ROWS.iter() {
            let whole = rows.iter().filter(|row| row.overloads.is_empty()).count();
            let mut overloads: Vec<_> = rows.iter().flat_map(|row| row.overloads).collect();
            let named = overloads.len();
            overloads.sort_unstable();
            overloads.dedup();
            assert!(
                whole + usize::from(named > 0) == 1 && overloads.len() == named,
                "`{operator}` is lowered twice: {rows:?}",
                rows = rows.iter().map(|row| row.overloads).collect::<Vec<_>>()
            );
        }
    }
}
