//! Chooses the exponents.
//!
//! Values that operations pass on unchanged make a group, which has one exponent: the one nearest to 0 if a weight stands
//! before its first value, and else to that with which the value comes about by itself, within what the magnitudes of all
//! allow. A value that cannot have the exponent of its group keeps its own, and is multiplied where the group's is needed.

use std::collections::HashMap;

use coremill_tensor::{DType, Statistics};

use super::role::{Role, operands, role};
use super::{LEAST, MOST, Magnitude, SOUND, Sizes};
use crate::Editor;
use coremill_mil::ir::{OpId, ValueId};

/// Exponents beyond this are of no use: halves span 40 powers of two.
const FARTHEST: i32 = 60;
/// Weights may become as small as 2 to this at the largest.
const LEAST_WEIGHT: i32 = -8;

/// The exponents of a program.
pub(super) struct Solution {
    /// By value, the exponent with which it comes about.
    pub(super) own: HashMap<ValueId, i32>,
    /// By value, its group.
    pub(super) group: HashMap<ValueId, ValueId>,
    /// By group, the exponent that its operations work with.
    pub(super) shared: HashMap<ValueId, i32>,
    /// What operations do.
    pub(super) roles: HashMap<OpId, Role>,
}

impl Solution {
    /// The exponent with which an operation of the role [`Role::Same`] works.
    pub(super) fn of_group(&self, value: ValueId) -> i32 {
        self.group.get(&value).and_then(|group| self.shared.get(group)).copied().unwrap_or(0)
    }

    pub(super) fn own(&self, value: ValueId) -> i32 {
        self.own.get(&value).copied().unwrap_or(0)
    }
}

/// Between which exponents the values of a group are sound.
#[derive(Clone, Copy)]
struct Bounds {
    /// The least that loses no digits.
    least: i32,
    /// The least that is aimed at where one has to be chosen.
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

    /// The bounds of what is squared to become this.
    fn of_root(self) -> Bounds {
        let half = |bound: i32| bound.div_euclid(2);
        Bounds { least: half(self.least + 1), aim: half(self.aim + 1), most: half(self.most) }
    }

    /// The exponent nearest to a wish.
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

/// Chooses.
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
            // An input, or what a block is given: nothing says yet what its group works with.
            settle(&mut solution, &mut groups, &bounds, value, &|_| 0);
        }
        for output in floats(editor, id) {
            let natural = natural(editor, id, role, &solution);
            let (low, high) = weight_room(editor, id, role);
            let wish = |bounds: Bounds| match (role, natural) {
                // A weight brings values back to what they are without costs, as far as it can.
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

/// The exponent with which a value would come about without further ado.
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

/// Decides on the exponent of a value's group, if that has not been done.
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

/// The bounds of each group: of its values, and of their squares.
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
    // Backwards, so that squares of squares are known.
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

/// How far the exponent of a weight can move down and up.
fn weight_room(editor: &Editor<'_>, id: OpId, role: &Role) -> (i32, i32) {
    /// Scales of weights that are stored with them.
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
    // A divisor moves the other way.
    let divides =
        editor.op(id).and_then(|op| op.kind()) == Some(coremill_mil::ops::OpKind::RealDiv);
    if divides { (-high, -low) } else { (low.min(high), high) }
}

/// The results of an operation that are tensors of floats.
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

/// Sets of values, each named by one of them.
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
