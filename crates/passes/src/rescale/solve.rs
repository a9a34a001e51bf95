//! Choice of exponents.
//!
//! Values that operations pass on unchanged form a group with a common exponent. If a weight precedes its first
//! value, it is the exponent nearest to 0, otherwise the one nearest to the exponent that the value has naturally,
//! within the range that the magnitudes of the group allow. A value that cannot have the exponent of its group keeps
//! its own, and is rescaled where the group's exponent is needed.

use std::collections::HashMap;

use coremill_tensor::{DType, Statistics};

use super::role::{Role, operands, role};
use super::{LEAST, MOST, Magnitude, SOUND, Sizes};
use crate::Editor;
use coremill_mil::ir::{OpId, ValueId};

/// Maximum useful exponent, as fp16 spans 40 powers of two.
const FARTHEST: i32 = 60;
/// Minimum exponent of a weight's largest element.
const LEAST_WEIGHT: i32 = -8;

/// Exponents of a function.
pub(super) struct Solution {
    /// For each value, the exponent it is produced with.
    pub(super) own: HashMap<ValueId, i32>,
    /// For each value, its group.
    pub(super) group: HashMap<ValueId, ValueId>,
    /// For each group, the exponent of its operations.
    pub(super) shared: HashMap<ValueId, i32>,
    /// Role of each operation.
    pub(super) roles: HashMap<OpId, Role>,
}

impl Solution {
    /// The exponent that an operation with role [`Role::Same`] uses.
    pub(super) fn of_group(&self, value: ValueId) -> i32 {
        self.group.get(&value).and_then(|group| self.shared.get(group)).copied().unwrap_or(0)
    }

    pub(super) fn own(&self, value: ValueId) -> i32 {
        self.own.get(&value).copied().unwrap_or(0)
    }
}

/// Range of valid exponents of a group.
#[derive(Clone, Copy)]
struct Bounds {
    /// Minimum without loss of digits.
    least: i32,
    /// Preferred minimum if a new exponent is chosen.
    aim: i32,
    most: i32,
}

impl Bounds {
    const ANY: Bounds = Bounds { least: -FARTHEST, aim: -FARTHEST, most: FARTHEST };

    fn of(magnitude: Magnitude) -> Bounds {
        if magnitude.max <= 0.0 || !magnitude.max.is_finite() {
            return Bounds::ANY;
        }
        let typical = magnitude.rms.log2().floor() as i32;
        Bounds {
            least: LEAST - typical,
            aim: SOUND - typical,
            most: MOST - magnitude.max.log2().ceil() as i32,
        }
    }

    fn and(self, other: Bounds) -> Bounds {
        Bounds {
            least: self.least.max(other.least),
            aim: self.aim.max(other.aim),
            most: self.most.min(other.most),
        }
    }

    /// Bounds of a value whose square has these bounds.
    fn of_root(self) -> Bounds {
        let half = |bound: i32| bound.div_euclid(2);
        Bounds { least: half(self.least + 1), aim: half(self.aim + 1), most: half(self.most) }
    }

    /// The valid exponent nearest to `wish`.
    fn nearest(self, wish: i32) -> i32 {
        if wish > self.most {
            self.most
        } else if wish < self.least {
            self.aim.min(self.most)
        } else {
            wish
        }
    }
}

/// Chooses the exponents.
pub(super) fn solve(editor: &Editor<'_>, sizes: &Sizes<'_>) -> Solution {
    let ops = editor.ops();
    let roles: HashMap<OpId, Role> = ops.iter().map(|&id| (id, role(editor, id))).collect();
    let mut groups = Groups::default();
    for &id in &ops {
        if let Some(Role::Same { except }) = roles.get(&id) {
            let mut members = operands(editor, id);
            members.retain(|(name, _)| !except.contains(&name.as_str()));
            let members = members.into_iter().map(|(_, value)| value).chain(floats(editor, id));
            groups.join(&members.collect::<Vec<_>>());
        }
    }
    let bounds = bounds(editor, sizes, &ops, &roles, &mut groups);
    let mut solution = Solution {
        own: HashMap::new(),
        group: HashMap::new(),
        shared: HashMap::new(),
        roles: HashMap::new(),
    };
    for &id in &ops {
        let Some(role) = roles.get(&id) else { continue };
        for (_, value) in operands(editor, id) {
            // An input or a block input: its group has no exponent yet.
            settle(&mut solution, &mut groups, &bounds, value, &|_| 0);
        }
        for output in floats(editor, id) {
            let natural = natural(editor, id, role, &solution);
            let (low, high) = weight_room(editor, id, role);
            let wish = |bounds: Bounds| match (role, natural) {
                // A weight can bring values back to an exponent of 0 at no cost, within its limits.
                (Role::Weight { .. }, Some(natural)) => {
                    natural + (bounds.nearest(0) - natural).clamp(low, high)
                }
                (_, natural) => natural.unwrap_or(0),
            };
            let shared = settle(&mut solution, &mut groups, &bounds, output, &wish);
            let own = match role {
                Role::Same { .. } => shared,
                Role::Norm { free } => {
                    if *free {
                        shared
                    } else {
                        0
                    }
                }
                Role::Weight { .. } => {
                    let natural = natural.unwrap_or(0);
                    natural + (shared - natural).clamp(low, high)
                }
                Role::Product { .. } => shared,
                Role::Power { .. } => natural.unwrap_or(0),
                Role::Fixed => 0,
            };
            solution.own.insert(output, own);
        }
    }
    solution.roles = roles;
    solution
}

/// The exponent that follows from the operands, without rescaling; `None` if it is free or fixed.
fn natural(editor: &Editor<'_>, id: OpId, role: &Role, solution: &Solution) -> Option<i32> {
    let own = |name: &str| editor.argument(id, name).map_or(0, |value| solution.own(value));
    match role {
        Role::Weight { x, .. } => Some(own(x)),
        Role::Product { divides: true } => Some(own("x") - own("y")),
        Role::Product { divides: false } => Some(own("x") + own("y")),
        Role::Power { times, parts } => Some(times * own("x").div_euclid(*parts)),
        Role::Same { .. } | Role::Norm { .. } | Role::Fixed => None,
    }
}

/// Sets the exponent of a value's group, unless it is already set.
fn settle(
    solution: &mut Solution,
    groups: &mut Groups,
    bounds: &HashMap<ValueId, Bounds>,
    value: ValueId,
    wish: &dyn Fn(Bounds) -> i32,
) -> i32 {
    let group = groups.of(value);
    solution.group.insert(value, group);
    let bounds = bounds.get(&group).copied().unwrap_or(Bounds::ANY);
    *solution.shared.entry(group).or_insert_with(|| bounds.nearest(wish(bounds)))
}

/// Bounds of each group, from its values and their squares.
fn bounds(
    editor: &Editor<'_>,
    sizes: &Sizes<'_>,
    ops: &[OpId],
    roles: &HashMap<OpId, Role>,
    groups: &mut Groups,
) -> HashMap<ValueId, Bounds> {
    let mut bounds: HashMap<ValueId, Bounds> = HashMap::new();
    let mut narrow = |group: ValueId, by: Bounds| {
        let known = bounds.entry(group).or_insert(Bounds::ANY);
        *known = known.and(by);
    };
    // In reverse order, so that squares of squares are covered.
    for &id in ops.iter().rev() {
        for output in floats(editor, id) {
            if let Some(magnitude) = sizes.of(editor, output) {
                narrow(groups.of(output), Bounds::of(magnitude));
            }
        }
    }
    for &id in ops.iter().rev() {
        if roles.get(&id) != Some(&Role::Power { times: 2, parts: 1 }) {
            continue;
        }
        let (Some(x), Some(&output)) =
            (editor.argument(id, "x"), editor.op(id).and_then(|op| op.outputs.first()))
        else {
            continue;
        };
        if let Some(of_square) = bounds.get(&groups.of(output)).copied() {
            let root = of_square.of_root();
            let known = bounds.entry(groups.of(x)).or_insert(Bounds::ANY);
            known.most = known.most.min(root.most);
        }
    }
    bounds
}

/// Range by which the exponent of a weight can change.
fn weight_room(editor: &Editor<'_>, id: OpId, role: &Role) -> (i32, i32) {
    /// Range for scales of quantized weights.
    const STORED: i32 = 12;
    let Role::Weight { weight, .. } = role else { return (0, 0) };
    let Some(constant) = editor.constant_argument(id, weight) else { return (-STORED, STORED) };
    let statistics = constant.elements().and_then(|all| Statistics::of(all, DType::Fp32).ok()?);
    let largest = statistics.map_or(0.0, |found| found.min.abs().max(found.max.abs()));
    if largest <= 0.0 || !largest.is_finite() {
        return (-STORED, STORED);
    }
    let largest = largest.log2().ceil() as i32;
    let (low, high) = (LEAST_WEIGHT - largest, MOST - largest);
    // A divisor changes in the opposite direction.
    let divides =
        editor.op(id).and_then(|op| op.kind()) == Some(coremill_mil::ops::OpKind::RealDiv);
    if divides { (-high, -low) } else { (low.min(high), high) }
}

/// Float tensor results of an operation.
pub(super) fn floats(editor: &Editor<'_>, id: OpId) -> Vec<ValueId> {
    let Some(op) = editor.op(id) else { return Vec::new() };
    let is_constant = op
        .kind()
        .is_some_and(|kind| kind == coremill_mil::ops::OpKind::Const || kind.is_constexpr());
    if is_constant {
        return Vec::new();
    }
    let floats = |value: &ValueId| editor.dtype(*value) == Some(DType::Fp32);
    op.outputs.iter().copied().filter(floats).collect()
}

/// Disjoint sets of values, each identified by a member.
#[derive(Default)]
struct Groups(HashMap<ValueId, ValueId>);

impl Groups {
    fn of(&mut self, value: ValueId) -> ValueId {
        let mut root = value;
        while let Some(&parent) = self.0.get(&root).filter(|&&parent| parent != root) {
            root = parent;
        }
        self.0.insert(value, root);
        root
    }

    fn join(&mut self, values: &[ValueId]) {
        let Some((&first, others)) = values.split_first() else { return };
        let root = self.of(first);
        for &other in others {
            let other = self.of(other);
            self.0.insert(other, root);
        }
    }
}
