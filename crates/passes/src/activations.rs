//! Recognizes decomposed activations.
//!
//! ```text
//! a = sigmoid(x = x);    b = mul(x = x, y = a);                        b = silu(x = x);
//! 0.5 · x · (1 + erf(x / √2))                                          gelu(x = x, mode = "EXACT")
//! 0.5 · x · (1 + tanh(√(2/π) · (x + 0.044715 · x³)))        become     gelu(x = x, mode = "TANH_APPROXIMATION")
//! maximum(x = x, y = α · x), 0 ≤ α ≤ 1                                 leaky_relu(x = x, alpha = α)
//! x · clip(x + 3, 0, 6) / 6                                            x · sigmoid_hard(x, 1/6, 1/2)
//! ```

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_PI, SQRT_2};

use super::Editor;
use coremill_mil::ir::{Binding, Constant, Op, OpId, ValueId};
use coremill_mil::ops::OpKind;

/// Relative tolerance for constants of a formula, sufficient for constants rounded to fp16.
const TOLERANCE: f64 = 1e-3;

/// Runs the pass and returns the number of recognized activations.
pub(super) fn fuse_activations(editor: &mut Editor<'_>) -> usize {
    let mut found = 0;
    for id in editor.ops() {
        let done = match editor.op(id).and_then(Op::kind) {
            Some(OpKind::Mul) => {
                gelu(editor, id).or_else(|| silu(editor, id)).or_else(|| hardswish(editor, id))
            }
            Some(OpKind::RealDiv) => hardswish(editor, id),
            Some(OpKind::Maximum) => leaky_relu(editor, id),
            _ => None,
        };
        found += usize::from(done.is_some());
    }
    found
}

/// A factor or term of a formula.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Part {
    Number(f64),
    Value(ValueId),
}

/// Both operands of an operation.
fn operands(editor: &Editor<'_>, id: OpId) -> Option<[Part; 2]> {
    let part = |name: &str| {
        let binding = editor.op(id)?.binding(name)?;
        match (editor.number_of(binding), binding) {
            (Some(number), _) => Some(Part::Number(number)),
            (None, Binding::Value(value)) => Some(Part::Value(*value)),
            (None, Binding::Literal(_)) => None,
        }
    };
    Some([part("x")?, part("y")?])
}

/// Factors of a product, including nested products without other users.
fn factors(editor: &Editor<'_>, id: OpId) -> Option<(f64, Vec<ValueId>)> {
    let mut number = 1.0;
    let mut values = Vec::new();
    let mut pending = vec![id];
    while let Some(id) = pending.pop() {
        let kind = editor.op(id)?.kind()?;
        let parts = operands(editor, id)?;
        for (at, part) in parts.into_iter().enumerate() {
            let divides = kind == OpKind::RealDiv && at == 1;
            match part {
                Part::Number(factor) if divides => number /= factor,
                Part::Number(factor) => number *= factor,
                Part::Value(_) if divides => return None,
                Part::Value(value) => {
                    let inner = editor.producer(value).filter(|&inner| {
                        let kind = editor.op(inner).and_then(Op::kind);
                        let product = kind == Some(OpKind::Mul)
                            || kind == Some(OpKind::RealDiv) && editor.number(inner, "y").is_some();
                        product && editor.sole_user(value) == Some(id) && values.len() < 4
                    });
                    match inner {
                        Some(inner) => pending.push(inner),
                        None => values.push(value),
                    }
                }
            }
        }
    }
    Some((number, values))
}

fn near(found: f64, wanted: f64) -> bool {
    (found - wanted).abs() <= TOLERANCE * wanted.abs()
}

/// The value in `y = value + number`, if `y` has this form.
fn sum_with(editor: &Editor<'_>, value: ValueId, number: f64) -> Option<ValueId> {
    let id = editor.produced_by(value, OpKind::Add)?;
    match operands(editor, id)? {
        [Part::Value(other), Part::Number(found)] | [Part::Number(found), Part::Value(other)]
            if near(found, number) =>
        {
            Some(other)
        }
        _ => None,
    }
}

fn gelu(editor: &mut Editor<'_>, id: OpId) -> Option<()> {
    let (number, values) = factors(editor, id)?;
    let [left, right] = *values.as_slice() else { return None };
    if !near(number, 0.5) {
        return None;
    }
    for (x, curve) in [(left, right), (right, left)] {
        let Some(inner) = sum_with(editor, curve, 1.0) else { continue };
        let mode = if is_error_function(editor, inner, x) {
            "EXACT"
        } else if is_tanh(editor, inner, x).is_some() {
            "TANH_APPROXIMATION"
        } else {
            continue;
        };
        let op = Op::new(OpKind::Gelu)
            .with("x", Binding::Value(x))
            .with("mode", Binding::Literal(Constant::string(mode)));
        return editor.rewrite(id, op).ok();
    }
    None
}

/// Whether a value is erf(x / √2).
fn is_error_function(editor: &Editor<'_>, value: ValueId, x: ValueId) -> bool {
    let scaled = editor.produced_by(value, OpKind::Erf).and_then(|erf| editor.argument(erf, "x"));
    scaled.is_some_and(|scaled| {
        editor.producer(scaled).is_some_and(|product| {
            let kind = editor.op(product).and_then(Op::kind);
            match (kind, operands(editor, product)) {
                (
                    Some(OpKind::Mul),
                    Some([Part::Value(v), Part::Number(n)] | [Part::Number(n), Part::Value(v)]),
                ) => v == x && near(n, FRAC_1_SQRT_2),
                (Some(OpKind::RealDiv), Some([Part::Value(v), Part::Number(n)])) => {
                    v == x && near(n, SQRT_2)
                }
                _ => false,
            }
        })
    })
}

/// Matches tanh(√(2/π) · (x + 0.044715 · x³)).
fn is_tanh(editor: &Editor<'_>, value: ValueId, x: ValueId) -> Option<()> {
    let tanh = editor.produced_by(value, OpKind::Tanh)?;
    let product = editor.produced_by(editor.argument(tanh, "x")?, OpKind::Mul)?;
    let sum = match operands(editor, product)? {
        [Part::Value(sum), Part::Number(n)] | [Part::Number(n), Part::Value(sum)]
            if near(n, FRAC_2_PI.sqrt()) =>
        {
            sum
        }
        _ => return None,
    };
    let [Part::Value(left), Part::Value(right)] =
        operands(editor, editor.produced_by(sum, OpKind::Add)?)?
    else {
        return None;
    };
    let cube = if left == x {
        right
    } else if right == x {
        left
    } else {
        return None;
    };
    let (number, mut values) = factors(editor, editor.produced_by(cube, OpKind::Mul)?)?;
    if let [power] = *values.as_slice()
        && let Some(power) = editor.produced_by(power, OpKind::Pow)
        && editor.number(power, "y") == Some(3.0)
    {
        values = vec![editor.argument(power, "x")?; 3];
    }
    (near(number, 0.044715) && values == [x; 3]).then_some(())
}

fn silu(editor: &mut Editor<'_>, id: OpId) -> Option<()> {
    let [Part::Value(left), Part::Value(right)] = operands(editor, id)? else { return None };
    for (x, gate) in [(left, right), (right, left)] {
        let Some(sigmoid) = editor.produced_by(gate, OpKind::Sigmoid) else { continue };
        if editor.argument(sigmoid, "x") == Some(x) {
            return editor.rewrite(id, Op::new(OpKind::Silu).with("x", Binding::Value(x))).ok();
        }
    }
    None
}

fn hardswish(editor: &mut Editor<'_>, id: OpId) -> Option<()> {
    let (number, values) = factors(editor, id)?;
    let [left, right] = *values.as_slice() else { return None };
    if !near(number, 1.0 / 6.0) {
        return None;
    }
    for (x, gate) in [(left, right), (right, left)] {
        let clipped = match editor.producer(gate) {
            Some(clip) if editor.op_of(clip, OpKind::Relu6).is_some() => clip,
            Some(clip)
                if editor.op_of(clip, OpKind::Clip).is_some()
                    && editor.number(clip, "alpha") == Some(0.0)
                    && editor.number(clip, "beta") == Some(6.0) =>
            {
                clip
            }
            _ => continue,
        };
        let Some(shifted) = editor.argument(clipped, "x") else { continue };
        if sum_with(editor, shifted, 3.0) != Some(x) {
            continue;
        }
        let number = |number: f32| Binding::Literal(Constant::fp32(number));
        let gate = Op::new(OpKind::SigmoidHard)
            .with("x", Binding::Value(x))
            .with("alpha", number(1.0 / 6.0))
            .with("beta", number(0.5));
        let label = editor.name(editor.op(id)?.outputs[0]).to_owned();
        let gate = editor.insert(id, gate, &label).ok()?[0];
        let product =
            Op::new(OpKind::Mul).with("x", Binding::Value(x)).with("y", Binding::Value(gate));
        return editor.rewrite(id, product).ok();
    }
    None
}

fn leaky_relu(editor: &mut Editor<'_>, id: OpId) -> Option<()> {
    let [Part::Value(left), Part::Value(right)] = operands(editor, id)? else { return None };
    for (x, scaled) in [(left, right), (right, left)] {
        let Some(product) = editor.produced_by(scaled, OpKind::Mul) else { continue };
        let alpha = match operands(editor, product)? {
            [Part::Value(v), Part::Number(n)] | [Part::Number(n), Part::Value(v)] if v == x => n,
            _ => continue,
        };
        if (0.0..=1.0).contains(&alpha) {
            let op = Op::new(OpKind::LeakyRelu)
                .with("x", Binding::Value(x))
                .with("alpha", Binding::Literal(Constant::fp32(alpha as f32)));
            return editor.rewrite(id, op).ok();
        }
    }
    None
}
