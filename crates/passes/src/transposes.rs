//! Moves transposes after elementwise operations, so that they can meet a transpose that undoes them.
//!
//! ```text
//! a = transpose(x = x, perm = p);
//! b = transpose(x = y, perm = p);    becomes    c = add(x = x, y = y);
//! c = add(x = a, y = b);                        d = transpose(x = c, perm = p);
//! ```
//!
//! Transposes also cross reductions that keep their dimensions, and `softmax`, with adjusted axes. A transpose is
//! moved only if all its users can be crossed, so that it disappears. `noop_elimination` removes transposes that
//! cancel.

use super::Editor;
use super::noop_elimination::order_of;
use coremill_mil::ir::{Binding, Constant, Op, OpId, ValueId};
use coremill_mil::ops::OpKind;

/// Maximum number of operations searched to determine whether other operands will be transposed in the same way.
const MAX_LOOKS: usize = 64;

/// Runs the pass and returns the number of moved transposes.
pub(super) fn sink_transposes(editor: &mut Editor<'_>) -> usize {
    let ops = editor.ops();
    ops.into_iter().filter(|&id| sink(editor, id).is_some()).count()
}

/// Replacement of an operand when its transpose is removed.
enum Operand {
    /// The source of the transpose.
    Source(ValueId),
    /// A constant, transposed back.
    Constant(Constant),
    /// A scalar, which needs no change.
    Kept(Binding),
}

fn sink(editor: &mut Editor<'_>, id: OpId) -> Option<()> {
    let kind = editor.op(id)?.kind()?;
    if !lets_pass(editor, id) {
        return None;
    }
    let [output] = *editor.op(id)?.outputs.as_slice() else { return None };
    if editor.is_output(output) {
        return None;
    }
    let names: &[&'static str] = if is_binary(kind) { &["x", "y"] } else { &["x"] };
    let mut order: Option<Vec<usize>> = None;
    let mut freed = false;
    for name in names {
        let Some(value) = editor.argument(id, name) else { continue };
        let Some(transpose) = editor.produced_by(value, OpKind::Transpose) else { continue };
        let found = order_of(editor, transpose)?;
        let users = &editor.uses(value).ops;
        freed |=
            !editor.is_output(value) && users.iter().all(|&user| will_pass(editor, user, &found));
        if order.is_some_and(|order| order != found) {
            return None;
        }
        order = Some(found);
    }
    let order = order.filter(|order| freed && order.len() == editor.shape(output).len())?;
    let mut operands = Vec::with_capacity(names.len());
    for &name in names {
        operands.push((name, operand(editor, id, name, &order)?));
    }
    let mut op = editor.op(id)?.clone();
    op.outputs.clear();
    let label = editor.name(output).to_owned();
    for (name, operand) in operands {
        let binding = match operand {
            Operand::Source(value) => Binding::Value(value),
            Operand::Kept(binding) => binding,
            Operand::Constant(constant) => {
                Binding::Value(editor.constant_before(id, constant, &format!("{label}_{name}")))
            }
        };
        op.set_input(name.into(), vec![binding]);
    }
    if let Some(name) = axes_of(kind) {
        let rank = order.len() as i64;
        let axes = editor.ints(id, name)?.into_iter().map(|axis| {
            let at = usize::try_from(if axis < 0 { axis + rank } else { axis }).ok()?;
            i32::try_from(*order.get(at)?).ok()
        });
        let axes = axes.collect::<Option<Vec<_>>>()?;
        let constant = match (kind, axes.as_slice()) {
            (OpKind::Softmax, [axis]) => Constant::int32(*axis),
            _ => Constant::int32s(&axes),
        };
        op.set_input(name.into(), vec![Binding::Literal(constant)]);
    }
    let moved = editor.insert(id, op, &label).ok()?[0];
    let axes: Vec<i32> = order.iter().map(|&axis| axis as i32).collect();
    let transpose = Op::new(OpKind::Transpose)
        .with("x", Binding::Value(moved))
        .with("perm", Binding::Literal(Constant::int32s(&axes)));
    editor.rewrite(id, transpose).ok()
}

/// Whether a transpose can move from before to after an operation.
fn lets_pass(editor: &Editor<'_>, id: OpId) -> bool {
    let Some(op) = editor.op(id) else { return false };
    let Some(kind) = op.kind() else { return false };
    match axes_of(kind) {
        Some("axes") => op.binding("axes").is_some() && editor.flag(id, "keep_dims") == Some(true),
        Some(name) => op.binding(name).is_some(),
        None => is_elementwise(kind),
    }
}

/// Whether a transpose will actually be moved after an operation: all other operands are constants or transposed in
/// the same way.
fn will_pass(editor: &Editor<'_>, id: OpId, order: &[usize]) -> bool {
    let Some(&[output]) = editor.op(id).map(|op| op.outputs.as_slice()) else { return false };
    let mut looks = MAX_LOOKS;
    !editor.is_output(output) && turns(editor, id, order, &mut looks)
}

/// Whether transposes can cross an operation, and each operand is a constant, is transposed in this way, or will be.
fn turns(editor: &Editor<'_>, id: OpId, order: &[usize], looks: &mut usize) -> bool {
    if *looks == 0 || !lets_pass(editor, id) {
        return false;
    }
    *looks -= 1;
    let is_binary = editor.op(id).and_then(Op::kind).is_some_and(is_binary);
    let names: &[&str] = if is_binary { &["x", "y"] } else { &["x"] };
    names.iter().all(|name| {
        let Some(value) = editor.argument(id, name) else { return true };
        if editor.constant(value).is_some() {
            return true;
        }
        let Some(producer) = editor.producer(value) else { return false };
        if editor.op_of(producer, OpKind::Transpose).is_some() {
            return order_of(editor, producer).is_some_and(|found| found == order);
        }
        !editor.is_output(value) && turns(editor, producer, order, looks)
    })
}

/// Parameter with axes that must be adjusted to the source's order.
fn axes_of(kind: OpKind) -> Option<&'static str> {
    use OpKind::*;
    match kind {
        ReduceMean | ReduceSum | ReduceMax | ReduceMin | ReduceSumSquare | ReduceL2Norm => {
            Some("axes")
        }
        Softmax => Some("axis"),
        _ => None,
    }
}

fn operand(editor: &Editor<'_>, id: OpId, name: &str, order: &[usize]) -> Option<Operand> {
    let binding = editor.op(id)?.binding(name)?.clone();
    if let Binding::Value(value) = binding
        && let Some(transpose) = editor.produced_by(value, OpKind::Transpose)
    {
        return Some(Operand::Source(editor.argument(transpose, "x")?));
    }
    let constant = editor.function().bound_constant(&binding)?;
    let ty = constant.tensor_type()?;
    let shape = ty.known_shape()?;
    if shape.iter().all(|&extent| extent == 1) && shape.len() <= order.len() {
        return Some(Operand::Kept(binding));
    }
    if shape.len() > order.len() {
        return None;
    }
    // Missing dimensions are leading ones.
    let mut whole = vec![1; order.len() - shape.len()];
    whole.extend(&shape);
    let mut back = vec![0; order.len()];
    order.iter().enumerate().for_each(|(to, &from)| back[from] = to);
    let recipe = constant.recipe()?.reshape(&whole).ok()?.permute(&back).ok()?;
    Some(Operand::Constant(Constant::of_recipe(&recipe)))
}

fn is_binary(kind: OpKind) -> bool {
    use OpKind::*;
    matches!(kind, Add | Sub | Mul | RealDiv | Maximum | Minimum | Pow)
}

/// Whether an operation is elementwise.
fn is_elementwise(kind: OpKind) -> bool {
    use OpKind::*;
    is_binary(kind)
        || matches!(
            kind,
            Abs | Cast
                | Clip
                | Elu
                | Erf
                | Exp
                | Gelu
                | LeakyRelu
                | Log
                | Relu
                | Relu6
                | Rsqrt
                | Sigmoid
                | SigmoidHard
                | Silu
                | Softplus
                | Softsign
                | Sqrt
                | Square
                | Tanh
        )
}
