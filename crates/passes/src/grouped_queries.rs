//! Computes grouped-query attention with the queries of a shared key as rows of one matrix, instead of repeating the
//! key.
//!
//! ```text
//! a = expand_dims(x = k, axes = [2]);
//! b = tile(x = a, reps = [1, 1, 2, 1, 1]);
//! c = reshape(x = b, shape = [1, 8, 7, 16]);                d = reshape(x = q, shape = [1, 4, 2, 16]);
//! y = matmul(x = q, y = c, transpose_y = true);  becomes    e = matmul(x = d, y = k, transpose_y = true);
//!                                                           y = reshape(x = e, shape = [1, 8, 1, 7]);
//! ```
//!
//! Operations between two such products, such as a scale, a mask and a softmax, are computed on the grouped rows, so
//! that nothing is reshaped in between. The queries of a `scaled_dot_product_attention` are grouped in the same way.
//! A mask with a row per query is repeated instead, because it is much smaller than keys and values.

use super::Editor;
use super::noop_elimination::requested;
use coremill_mil::ir::{Binding, Constant, Dim, Op, OpId, ValueId};
use coremill_mil::ops::OpKind;

/// Maximum number of operations between two products.
const MAX_BETWEEN: usize = 8;

/// Runs the pass and returns the number of changed products and attentions.
pub(super) fn fuse_grouped_query_attention(editor: &mut Editor<'_>) -> usize {
    // Starts with the second product, which includes the operations before it.
    let ops = editor.ops().into_iter().rev();
    let change = |id| {
        let Some(kind) = editor.op(id).and_then(Op::kind) else { return false };
        match kind {
            OpKind::Matmul => product(editor, id).is_some(),
            OpKind::ScaledDotProductAttention => attention(editor, id).is_some(),
            _ => false,
        }
    };
    ops.map(change).filter(|&changed| changed).count()
}

fn product(editor: &mut Editor<'_>, id: OpId) -> Option<()> {
    let (matrix, groups) = repeated_operand(editor, id)?;
    let output = editor.op(id)?.outputs[0];
    let back = requested(editor.shape(output))?;
    let x = editor.argument(id, "x")?;
    let rows = Rows { groups, targets: editor.shape(x).iter().rev().nth(1)?.clone() };
    if !rows.can_have(editor, x, id, MAX_BETWEEN) {
        return None;
    }
    let x = rows.take(editor, x, id, id)?;
    let source = matrix.source(editor, id)?;
    let mut op = fresh(editor, id)?;
    op.set_input("x".into(), vec![Binding::Value(x)]);
    op.set_input("y".into(), vec![Binding::Value(source)]);
    ungrouped(editor, id, op, &back)
}

fn attention(editor: &mut Editor<'_>, id: OpId) -> Option<()> {
    let [query, key, value] = ["query", "key", "value"].map(|name| editor.argument(id, name));
    let (key, value) = (RepeatedHeads::of(editor, key?)?, RepeatedHeads::of(editor, value?)?);
    let output = editor.op(id)?.outputs[0];
    let back = requested(editor.shape(output))?;
    let query = query?;
    let groups = key.groups;
    let rows = Rows { groups, targets: editor.shape(query).iter().rev().nth(1)?.clone() };
    requested(&rows.shape(editor.shape(query))?)?;
    let mask = editor.op(id)?.binding("attn_mask").cloned();
    if value.groups != groups || mask.as_ref().is_some_and(|mask| !rows.can_spread(editor, mask)) {
        return None;
    }
    let query = rows.reshaped(editor, query, id)?;
    let mask = match mask {
        Some(mask) => Some(rows.spread(editor, mask, id)?),
        None => None,
    };
    let (key, value) = (key.source(editor, id)?, value.source(editor, id)?);
    let mut op = fresh(editor, id)?;
    for (name, value) in [("query", query), ("key", key), ("value", value)] {
        op.set_input(name.into(), vec![Binding::Value(value)]);
    }
    if let Some(mask) = mask {
        op.set_input("attn_mask".into(), vec![mask]);
    }
    ungrouped(editor, id, op, &back)
}

/// Replaces an operation by a reshape of the result of `op`.
fn ungrouped(editor: &mut Editor<'_>, id: OpId, op: Op, shape: &[i32]) -> Option<()> {
    let label = format!("{}_grouped", editor.name(editor.op(id)?.outputs[0]));
    let grouped = *editor.insert(id, op, &label).ok()?.first()?;
    editor.rewrite(id, reshape(grouped, shape)).ok()
}

fn reshape(x: ValueId, shape: &[i32]) -> Op {
    Op::new(OpKind::Reshape)
        .with("x", Binding::Value(x))
        .with("shape", Binding::Literal(Constant::int32s(shape)))
}

/// A copy of an operation without results.
fn fresh(editor: &Editor<'_>, id: OpId) -> Option<Op> {
    let mut op = editor.op(id)?.clone();
    op.outputs.clear();
    Some(op)
}

/// Query heads: `groups` times `each`, where `each` of them share a key head.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Groups {
    groups: u64,
    each: u64,
}

/// A tensor whose heads, the third axis from the end, are consecutive repetitions of another tensor's heads.
struct RepeatedHeads {
    groups: Groups,
    /// The other tensor, possibly with a unit axis after the heads.
    from: ValueId,
    /// Position of the unit axis.
    extra: Option<usize>,
}

impl RepeatedHeads {
    fn of(editor: &Editor<'_>, value: ValueId) -> Option<RepeatedHeads> {
        let shape = editor.shape(value).to_vec();
        let heads = shape.len().checked_sub(3)?;
        if let Some(tile) = editor.produced_by(value, OpKind::Tile) {
            let each = repeats_along(editor, tile, heads)?;
            let groups = Groups { groups: 1, each };
            return Some(RepeatedHeads { groups, from: editor.argument(tile, "x")?, extra: None });
        }
        let merge = editor.produced_by(value, OpKind::Reshape)?;
        let tiled = editor.argument(merge, "x")?;
        let tile = editor.produced_by(tiled, OpKind::Tile)?;
        let each = repeats_along(editor, tile, heads + 1)?;
        let mut merged = editor.shape(tiled).to_vec();
        if merged.len() != shape.len() + 1 || merged.contains(&Dim::Unknown) {
            return None;
        }
        let groups = merged[heads].known()?;
        merged.splice(heads..heads + 2, [Dim::Known(groups.checked_mul(each)?)]);
        let from = editor.argument(tile, "x")?;
        let extra = Some(heads + 1);
        (merged == shape).then_some(RepeatedHeads { groups: Groups { groups, each }, from, extra })
    }

    /// The tensor before repetition.
    fn source(&self, editor: &mut Editor<'_>, before: OpId) -> Option<ValueId> {
        let Some(extra) = self.extra else { return Some(self.from) };
        let mut shape = editor.shape(self.from).to_vec();
        shape.remove(extra);
        let expand = editor.producer(self.from);
        let inner = expand.and_then(|expand| {
            let kind = editor.op(expand)?.kind();
            let adds = matches!(kind, Some(OpKind::ExpandDims | OpKind::Reshape));
            editor.argument(expand, "x").filter(|&inner| adds && editor.shape(inner) == shape)
        });
        if inner.is_some() {
            return inner;
        }
        let squeeze = Op::new(OpKind::Squeeze)
            .with("x", Binding::Value(self.from))
            .with("axes", Binding::Literal(Constant::int32s(&[i32::try_from(extra).ok()?])));
        let label = format!("{}_once", editor.name(self.from));
        editor.insert(before, squeeze, &label).ok()?.first().copied()
    }
}

/// Repeat count of a `tile` along a unit axis, if it repeats no other axis.
fn repeats_along(editor: &Editor<'_>, tile: OpId, axis: usize) -> Option<u64> {
    let reps = editor.ints(tile, "reps")?;
    let x = editor.argument(tile, "x")?;
    let others = reps.iter().enumerate().all(|(at, &count)| at == axis || count == 1);
    let one = editor.shape(x).get(axis) == Some(&Dim::Known(1));
    let each = u64::try_from(*reps.get(axis)?).ok()?;
    (others && one && each > 1 && reps.len() == editor.shape(x).len()).then_some(each)
}

/// The repeated matrix of a product, whose repetition can be avoided by grouping rows. Only products qualify: other
/// operations may also have a repeated operand, such as a mask repeated for each head.
fn repeated_operand(editor: &Editor<'_>, id: OpId) -> Option<(RepeatedHeads, Groups)> {
    if editor.op(id)?.kind() != Some(OpKind::Matmul) {
        return None;
    }
    let (x, y) = (editor.argument(id, "x")?, editor.argument(id, "y")?);
    if editor.op(id)?.binding("transpose_x").is_some() && editor.flag(id, "transpose_x")? {
        return None;
    }
    let matrix = RepeatedHeads::of(editor, y)?;
    let Groups { groups, each } = matrix.groups;
    let (left, right) = (editor.shape(x), editor.shape(y));
    let heads = right.len() - 3;
    // Leading axes are not broadcast, and all heads are present.
    let fits = left.len() == right.len()
        && left[..heads] == right[..heads]
        && left[heads] == Dim::Known(groups * each)
        && !left[..heads].contains(&Dim::Unknown);
    fits.then(|| {
        let groups = matrix.groups;
        (matrix, groups)
    })
}

/// Grouped rows, with the heads of a group stacked vertically: from `[.., groups · each, targets, n]` to `[..,
/// groups, each · targets, n]`.
struct Rows {
    groups: Groups,
    targets: Dim,
}

impl Rows {
    /// Shape of a tensor with grouped rows.
    fn shape(&self, shape: &[Dim]) -> Option<Vec<Dim>> {
        let Groups { groups, each } = self.groups;
        let heads = shape.len().checked_sub(3)?;
        if shape[heads] != Dim::Known(groups.checked_mul(each)?) {
            return None;
        }
        let mut shape = shape.to_vec();
        shape[heads] = Dim::Known(groups);
        shape[heads + 1] = match shape[heads + 1].known() {
            Some(targets) => Dim::Known(targets.checked_mul(each)?),
            None => Dim::Unknown,
        };
        Some(shape)
    }

    fn reshaped(&self, editor: &mut Editor<'_>, x: ValueId, before: OpId) -> Option<ValueId> {
        let shape = requested(&self.shape(editor.shape(x))?)?;
        let label = format!("{}_rows", editor.name(x));
        editor.insert(before, reshape(x, &shape), &label).ok()?.first().copied()
    }

    /// Whether [`Rows::take`] succeeds.
    fn can_have(&self, editor: &Editor<'_>, x: ValueId, user: OpId, left: usize) -> bool {
        self.leads_to_product(editor, x, user, left)
            || self.shape(editor.shape(x)).and_then(|shape| requested(&shape)).is_some()
    }

    /// A tensor with grouped rows: computed from a product with a matrix that is repeated in the same way, or
    /// reshaped.
    fn take(
        &self,
        editor: &mut Editor<'_>,
        x: ValueId,
        user: OpId,
        before: OpId,
    ) -> Option<ValueId> {
        if !self.leads_to_product(editor, x, user, MAX_BETWEEN) {
            return self.reshaped(editor, x, before);
        }
        let id = editor.producer(x)?;
        let mut op = fresh(editor, id)?;
        let label = format!("{}_grouped", editor.name(x));
        if let Some((matrix, _)) = repeated_operand(editor, id) {
            let inner = self.take(editor, editor.argument(id, "x")?, id, before)?;
            let source = matrix.source(editor, before)?;
            op.set_input("x".into(), vec![Binding::Value(inner)]);
            op.set_input("y".into(), vec![Binding::Value(source)]);
        } else {
            let (name, others) = self.through(editor, id, x, MAX_BETWEEN)?;
            let inner = self.take(editor, editor.argument(id, name)?, id, before)?;
            op.set_input(name.into(), vec![Binding::Value(inner)]);
            for other in others {
                let binding = editor.op(id)?.binding(other)?.clone();
                let binding = self.spread(editor, binding, before)?;
                op.set_input(other.into(), vec![binding]);
            }
        }
        editor.insert(before, op, &label).ok()?.first().copied()
    }

    /// Whether a tensor is computed row by row from such a product, with `user` as its only user.
    fn leads_to_product(&self, editor: &Editor<'_>, x: ValueId, user: OpId, left: usize) -> bool {
        let leads = || {
            if left == 0 || editor.sole_user(x) != Some(user) {
                return None;
            }
            let id = editor.producer(x)?;
            if editor.block_of(id)? != editor.block_of(user)? {
                return None;
            }
            if let Some((_, groups)) = repeated_operand(editor, id) {
                let query = editor.argument(id, "x")?;
                return Some(groups == self.groups && self.can_have(editor, query, id, left - 1));
            }
            Some(self.through(editor, id, x, left - 1).is_some())
        };
        leads() == Some(true)
    }

    /// The parameter of an operation whose rows lead to a product, and the parameters with operands for all rows,
    /// such as masks and factors.
    fn through(
        &self,
        editor: &Editor<'_>,
        id: OpId,
        output: ValueId,
        left: usize,
    ) -> Option<(&'static str, Vec<&'static str>)> {
        let op = editor.op(id)?;
        let kind = op.kind()?;
        let shape = editor.shape(output);
        let names: &[&'static str] = match kind {
            OpKind::Softmax => {
                let axis = editor.ints(id, "axis").unwrap_or_else(|| vec![-1]);
                let last = i64::try_from(shape.len()).ok()? - 1;
                (axis == [-1] || axis == [last]).then_some(&["x"])?
            }
            OpKind::Select => &["cond", "a", "b"],
            _ => match kind.family() {
                "elementwise_unary" => &["x"],
                "elementwise_binary" => &["x", "y"],
                _ => return None,
            },
        };
        let rows = names.iter().copied().find(|name| {
            let value = editor.argument(id, name);
            value.is_some_and(|value| {
                editor.shape(value) == shape && self.leads_to_product(editor, value, id, left)
            })
        })?;
        let others: Vec<_> = names.iter().copied().filter(|&name| name != rows).collect();
        let fits =
            |&name: &&str| op.binding(name).is_some_and(|binding| self.can_spread(editor, binding));
        others.iter().all(fits).then_some((rows, others))
    }

    fn can_spread(&self, editor: &Editor<'_>, binding: &Binding) -> bool {
        self.spreading(editor, binding).is_some()
    }

    /// Conversion of an operand that is broadcast to all rows, or has one row per target.
    fn spreading(&self, editor: &Editor<'_>, binding: &Binding) -> Option<Spread> {
        let shape = match binding {
            Binding::Value(value) => editor.shape(*value),
            Binding::Literal(constant) => &constant.tensor_type()?.shape,
        };
        let [ref sets @ .., ref rows, _] = *shape else { return Some(Spread::Nothing) };
        let Binding::Value(value) = binding else { return None };
        match sets.last() {
            None | Some(Dim::Known(1)) if *rows == Dim::Known(1) => Some(Spread::Nothing),
            None | Some(Dim::Known(1)) if *rows == self.targets && *rows != Dim::Unknown => {
                Some(Spread::Repeat(*value))
            }
            Some(_) if *rows == self.targets && *rows != Dim::Unknown => {
                let shape = requested(&self.shape(shape)?)?;
                Some(Spread::Reshape(*value, shape))
            }
            _ => None,
        }
    }

    fn spread(&self, editor: &mut Editor<'_>, binding: Binding, before: OpId) -> Option<Binding> {
        let (value, op) = match self.spreading(editor, &binding)? {
            Spread::Nothing => return Some(binding),
            Spread::Reshape(value, shape) => (value, reshape(value, &shape)),
            Spread::Repeat(value) => {
                let axis = i32::try_from(editor.shape(value).len()).ok()? - 2;
                let again = vec![Binding::Value(value); usize::try_from(self.groups.each).ok()?];
                let op = Op::new(OpKind::Concat)
                    .with_list("values", again)
                    .with("axis", Binding::Literal(Constant::int32(axis)))
                    .with("interleave", Binding::Literal(Constant::bool(false)));
                (value, op)
            }
        };
        let label = format!("{}_rows", editor.name(value));
        Some(Binding::Value(*editor.insert(before, op, &label).ok()?.first()?))
    }
}

/// Conversion of an operand to grouped rows.
enum Spread {
    /// None: it is the same for all rows.
    Nothing,
    /// Reshape: it has a row per head and target.
    Reshape(ValueId, Vec<i32>),
    /// Repetition: it has a row per target.
    Repeat(ValueId),
}
