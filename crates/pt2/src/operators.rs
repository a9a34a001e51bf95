//! Properties of torch's operators that their schemas do not contain. All rewrites use this table.
//!
//! `operators.txt` has a line for each operator name, with the words that apply to all of its overloads:
//!
//! | word | the operator |
//! |---|---|
//! | `elementwise` | computes each element from one element of each argument, with broadcasting |
//! | `along` | takes one tensor and the dimensions to work along |
//! | `movement` | moves elements or changes their type, without computing |
//! | `predicate` | returns booleans for any arguments |
//! | `promoting` | computes in the widest type of its tensors |
//! | `apart` | applies to the real and imaginary parts of complex numbers separately |
//! | `bilinear` | is linear in each of its two operands |
//! | `random` | generates random numbers |
//! | `dropout` | returns its input outside training |
//! | `check` | checks a condition or passes a hint to the exporter, and returns nothing |
//! | `lower`, `full`, `widest` | computes in the type of an `autocast` region, in `float32`, or in the widest type of its arguments; with `-cpu` or `-elsewhere` if devices differ |

use std::sync::LazyLock;

use foldhash::{HashMap, HashMapExt};

use crate::program::Target;
use crate::schema::overloads;

/// One operator name per line, sorted, followed by its words.
const TEXT: &str = include_str!("operators.txt");

/// Properties of an operator; all false if the table does not contain it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Operator {
    /// Computes each element from one element of each argument, with broadcasting.
    pub elementwise: bool,
    /// Takes one tensor and the dimensions to work along.
    pub along: bool,
    /// Moves elements or changes their type, without computing.
    pub movement: bool,
    /// Returns booleans for any arguments.
    pub predicate: bool,
    /// Computes in the widest type of its tensors.
    pub promoting: bool,
    /// Applies to the real and imaginary parts of complex numbers separately.
    pub apart: bool,
    /// Is linear in each of its two operands.
    pub bilinear: bool,
    /// Generates random numbers.
    pub random: bool,
    /// Returns its input outside training.
    pub dropout: bool,
    /// Checks a condition or passes a hint to the exporter, and returns nothing.
    pub check: bool,
    /// The conversion of its arguments by `autocast`, on a CPU and on other devices.
    pub autocast: [Option<Autocast>; 2],
}

/// The type to which `autocast` converts the arguments of an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Autocast {
    /// The type of the region.
    Lower,
    /// `float32`.
    Full,
    /// The widest type of the arguments.
    Widest,
}

/// The words of each operator. They are parsed at each lookup, because every command builds the table but
/// uses only a small part.
static TABLE: LazyLock<HashMap<&str, &str>> = LazyLock::new(|| {
    let mut table = HashMap::with_capacity(MOST);
    table.extend(TEXT.lines().filter_map(|line| line.split_once(": ")));
    table
});

/// Initial capacity of the table, so that it does not grow.
const MOST: usize = 500;

fn read(words: &str) -> Operator {
    let mut operator = Operator::default();
    for word in words.split(' ') {
        if let Some(property) = property(&mut operator, word) {
            *property = true;
        } else if let Some((policy, devices)) = autocast(word) {
            devices.into_iter().for_each(|device| operator.autocast[device] = Some(policy));
        }
    }
    operator
}

fn property<'a>(operator: &'a mut Operator, word: &str) -> Option<&'a mut bool> {
    Some(match word {
        "elementwise" => &mut operator.elementwise,
        "along" => &mut operator.along,
        "movement" => &mut operator.movement,
        "predicate" => &mut operator.predicate,
        "promoting" => &mut operator.promoting,
        "apart" => &mut operator.apart,
        "bilinear" => &mut operator.bilinear,
        "random" => &mut operator.random,
        "dropout" => &mut operator.dropout,
        "check" => &mut operator.check,
        _ => return None,
    })
}

/// Parses a policy and the range of devices to which it applies; device 0 is the CPU.
fn autocast(word: &str) -> Option<(Autocast, std::ops::Range<usize>)> {
    let (policy, devices) = word.split_once('-').unwrap_or((word, ""));
    let policy = match policy {
        "lower" => Autocast::Lower,
        "full" => Autocast::Full,
        "widest" => Autocast::Widest,
        _ => return None,
    };
    match devices {
        "" => Some((policy, 0..2)),
        "cpu" => Some((policy, 0..1)),
        "elsewhere" => Some((policy, 1..2)),
        _ => None,
    }
}

/// Returns the properties of an operator by its name without overload, such as `add`.
pub fn named(name: &str) -> Operator {
    TABLE.get(name).map(|words| read(words)).unwrap_or_default()
}

/// Returns the properties of the operator of a call.
pub fn of(target: &Target) -> Operator {
    match target {
        Target::Operator { namespace, name, .. }
            if matches!(namespace.as_str(), "aten" | "dim_order_ops") =>
        {
            named(name)
        }
        _ => Operator::default(),
    }
}

/// Whether torch has a copying variant of the operator, `view_copy` for instance, which replaces views in
/// functional programs.
pub fn has_copy(name: &str) -> bool {
    overloads("aten", &format!("{name}_copy")).next().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operator_table_is_sorted_and_valid() {
        let mut before = "";
        for line in TEXT.lines() {
            let (name, words) = line.split_once(": ").expect("a name and its properties");
            assert!(before < name, "not sorted: `{name}` follows `{before}`");
            before = name;
            let namespaces = ["aten", "dim_order_ops"];
            let is_known = namespaces.iter().any(|space| overloads(space, name).next().is_some());
            assert!(is_known, "torch has no operator `{name}`");
            let mut seen = Operator::default();
            for word in words.split(' ') {
                match property(&mut seen, word) {
                    Some(property) => {
                        assert!(
                            !std::mem::replace(property, true),
                            "`{name}` lists `{word}` twice"
                        );
                    }
                    None => {
                        let (_, devices) = autocast(word).expect("a known property");
                        for device in devices {
                            assert_eq!(
                                seen.autocast[device].replace(Autocast::Full),
                                None,
                                "{name}"
                            );
                        }
                    }
                }
            }
        }
        assert!((300..MOST).contains(&TABLE.len()), "{} operators", TABLE.len());
    }

    #[test]
    fn elementwise_operators_take_no_dim_argument() {
        let mut schemas = crate::schema::Schemas::default();
        for (name, _) in TABLE.iter().filter(|(_, words)| read(words).elementwise) {
            for overload in overloads("aten", name) {
                let schema = schemas.find("aten", name, overload).expect("a schema that parses");
                let schema = schema.expect("a schema");
                let is_dimension = |name: &str| matches!(name, "dim" | "dims");
                let dimension = schema.arguments.iter().find(|one| is_dimension(&one.name));
                assert_eq!(dimension.map(|one| &one.name), None, "{name}.{overload}");
            }
        }
    }

    #[test]
    fn looks_up_operator_properties() {
        assert!(named("add").elementwise && named("add").promoting && !named("add").along);
        assert_eq!(named("matmul").autocast, [Some(Autocast::Lower); 2]);
        assert_eq!(named("exp").autocast, [None, Some(Autocast::Full)]);
        let both = [Some(Autocast::Full), Some(Autocast::Widest)];
        assert_eq!(named("grid_sampler").autocast, both);
        assert_eq!(named("nothing_of_that_name"), Operator::default());
        assert!(has_copy("view") && has_copy("unbind") && !has_copy("add"));
    }
}
