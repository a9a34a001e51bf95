//! Runs a program with its plan and operation by operation.

use coremill_engine::{Array, Engine, Hooks, LoadOptions, Numerics, Value};
use coremill_mil::{model, text};
use coremill_tensor::DType;
use coremill_verify as verify;

/// A deterministic random number generator.
struct Numbers(u64);

impl Numbers {
    /// A number between -1 and 1.
    fn next(&mut self) -> f32 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

/// Runs the body of a function of `x` in fp32 and fp16, fast and rounded, on one and three threads.
/// In fast mode its plan must have the steps `steps`. The results must equal those of the unfused
/// operations.
///
/// In the body, `T` is the element type. `W[2, 3]` is a constant of random numbers, `P[2, 3]` a
/// constant of positive ones.
pub(crate) fn check(x: &[usize], body: &str, steps: &[&str]) {
    for dtype in ["fp32", "fp16"] {
        let text = program(x, body, dtype);
        let program = text::parse(&text, &text::NoWeights)
            .unwrap_or_else(|error| panic!("{error}\n{}", without_numbers(&text)));
        let model = model::describe(program).unwrap_or_else(|error| panic!("{error}"));
        let verified = verify::verify(&model)
            .unwrap_or_else(|report| panic!("{report:?}\n{}", without_numbers(&text)));
        for numerics in [Numerics::Fast, Numerics::Rounded] {
            for threads in [1, 3] {
                let options = LoadOptions { numerics, threads, ..LoadOptions::default() };
                let engine = Engine::load(&verified, &options).expect("it loads");
                let mut session = engine.session("main").expect("there is a main");
                let mut numbers = Numbers(1);
                let elements = (0..x.iter().product()).map(|_| numbers.next()).collect();
                let input = || Array::floats(DType::Fp32, x, Vec::clone(&elements));
                let (mut seen, mut spans) = (0, Vec::new());
                let mut observe = |_: &str, _: &str, _: &Value| seen += 1;
                let mut hooks = Hooks { observe: Some(&mut observe), ..Hooks::default() };
                let expected = session.run_with(&[("x", input())], &mut hooks).expect("it runs");
                assert!(seen > 0, "the observer was not called");
                let mut hooks = Hooks { profile: Some(&mut spans), ..Hooks::default() };
                let found = session.run_with(&[("x", input())], &mut hooks).expect("it runs");
                let what = format!("{dtype} {numerics:?} on {threads} threads");
                // Another summation order may round to the next fp16 number.
                let rounds = numerics == Numerics::Rounded && dtype == "fp16";
                let tolerance = if rounds { 4e-3 } else { 1e-5 };
                for ((name, found), (_, expected)) in found.0.iter().zip(&expected.0) {
                    let (found, expected) = (found.as_array(), expected.as_array());
                    let (Some(found), Some(expected)) = (found, expected) else {
                        panic!("{name} is not a tensor");
                    };
                    assert_eq!(found.shape(), expected.shape(), "{what}");
                    assert_eq!(found.dtype(), expected.dtype(), "{what}");
                    close(found, expected, tolerance, &format!("{what}: {name}"));
                }
                if numerics == Numerics::Fast {
                    let labels: Vec<_> = spans.iter().map(|span| span.label.clone()).collect();
                    let labels =
                        labels.iter().map(String::as_str).filter(|label| *label != "alias");
                    let labels: Vec<&str> = labels.collect();
                    assert_eq!(labels, steps, "{what}\n{}", without_numbers(&text));
                }
            }
        }
    }
}

/// Compares elements with a tolerance relative to the largest.
fn close(found: &Array, expected: &Array, tolerance: f32, what: &str) {
    let (Some(found), Some(expected)) = (found.as_floats(), expected.as_floats()) else {
        panic!("{what} holds no floats");
    };
    let scale = expected.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    assert!(
        scale > 0.0 && scale.is_finite(),
        "{what}: the expected values are all zero or not finite"
    );
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!(
            (found - expected).abs() <= tolerance * scale,
            "{what}: element {index} is {found}, not {expected}"
        );
    }
}

fn program(x: &[usize], body: &str, dtype: &str) -> String {
    let body = constants(
        &body
            .replace("<T,", &format!("<{dtype},"))
            .replace(" T ", &format!(" {dtype} "))
            .replace("T(", &format!("{dtype}(")),
        dtype,
    );
    format!(
        "program(1.3) {{\n    func main<ios18>(tensor<{dtype}, {x:?}> x) {{\n        {}\n    }} -> (y);\n}}\n",
        body.trim()
    )
}

/// Replaces `W[…]` and `P[…]` with constants of random numbers.
fn constants(body: &str, dtype: &str) -> String {
    let mut numbers = Numbers(7);
    let mut text = String::new();
    let mut rest = body;
    while let Some(at) = rest.find(" W[").into_iter().chain(rest.find(" P[")).min() {
        let end = at + rest[at..].find(']').expect("a closing bracket");
        let shape: Vec<usize> = rest[at + 3..end]
            .split(',')
            .map(|extent| extent.trim().parse().expect("an extent"))
            .collect();
        let positive = rest[at..].starts_with(" P");
        text.push_str(&rest[..=at]);
        text.push_str(&format!("tensor<{dtype}, {shape:?}>("));
        nested(&shape, &mut text, &mut || match positive {
            true => numbers.next().abs() + 0.25,
            false => numbers.next(),
        });
        text.push(')');
        rest = &rest[end + 1..];
    }
    text + rest
}

fn nested(shape: &[usize], text: &mut String, next: &mut dyn FnMut() -> f32) {
    let Some((count, inner)) = shape.split_first() else {
        // Multiples of 1/64 are exact in every type.
        text.push_str(&format!("{:?}", (next() * 64.0).round() / 64.0));
        return;
    };
    text.push('[');
    for index in 0..*count {
        if index > 0 {
            text.push_str(", ");
        }
        nested(inner, text, next);
    }
    text.push(']');
}

/// The program with long lines truncated.
fn without_numbers(text: &str) -> String {
    let lines = text.lines().map(|line| line.chars().take(240).collect::<String>() + "\n");
    lines.collect()
}
