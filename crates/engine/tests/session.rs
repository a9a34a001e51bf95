//! Tests the public interface: validation of inputs, states, blocks and limits.

use std::time::Duration;

use coremill_engine::{Array, Engine, Error, Hooks, Limits, LoadOptions, Session, Value};
use coremill_mil::{model, text};
use coremill_tensor::DType;
use coremill_verify as verify;

fn engine(text: &str, options: &LoadOptions) -> Result<Engine, Error> {
    let program = text::parse(text, &text::NoWeights).unwrap_or_else(|error| panic!("{error}"));
    let model = model::describe(program).unwrap_or_else(|error| panic!("{error}"));
    let verified = verify::verify(&model).unwrap_or_else(|report| panic!("{report:?}"));
    Engine::load(&verified, options)
}

fn session(text: &str) -> Session {
    let engine = engine(text, &LoadOptions::default()).expect("it loads");
    engine.session("main").expect("there is a main")
}

fn floats(shape: &[usize], elements: &[f32]) -> Array {
    Array::floats(DType::Fp32, shape, elements.to_vec())
}

const COUNTER: &str = "
    program(1.3) {
        func main<ios18>(tensor<fp16, [2]> x, state<tensor<fp16, [2]>> total) {
            tensor<fp16, [2]> before = read_state(input = total);
            tensor<fp16, [2]> after = add(x = before, y = x);
            write_state(input = total, data = after);
            tensor<fp16, [2]> y = read_state(input = total);
        } -> (y);
    }
";

const COUNTDOWN: &str = "
    program(1.3) {
        func main<ios17>(tensor<int32, [1]> n, tensor<fp32, [2]> x) {
            int32 count = squeeze(x = n);
            int32 left, tensor<fp32, [2]> y = while_loop(loop_vars = (count, x))
            (int32 left_c, tensor<fp32, [2]> y_c) {
                bool go = greater(x = left_c, y = int32(0));
            } -> (go)
            (int32 left_b, tensor<fp32, [2]> y_b) {
                int32 less = sub(x = left_b, y = int32(1));
                tensor<fp32, [2]> twice = add(x = y_b, y = y_b);
            } -> (less, twice);
        } -> (y);
    }
";

#[test]
fn sessions_keep_separate_states_between_runs() {
    let engine = engine(COUNTER, &LoadOptions::default()).expect("it loads");
    let mut one = engine.session("main").expect("there is a main");
    let mut other = engine.session("main").expect("there is a main");
    for (step, expected) in [[1.0, 2.0], [2.0, 4.0], [3.0, 6.0]].iter().enumerate() {
        let outputs = one.run(&[("x", floats(&[2], &[1.0, 2.0]))]).expect("it runs");
        assert_eq!(outputs.array("y").and_then(Array::as_floats), Some(&expected[..]), "{step}");
    }
    let outputs = other.run(&[("x", floats(&[2], &[5.0, 5.0]))]).expect("it runs");
    assert_eq!(outputs.array("y").and_then(Array::as_floats), Some(&[5.0, 5.0][..]));
    let total = one.state("total").expect("a state").to_array();
    assert_eq!(total.as_floats(), Some(&[3.0, 6.0][..]));
    one.reset().expect("zero states");
    one.set_state("total", floats(&[2], &[0.5, 0.25])).expect("it fits");
    let outputs = one.run(&[("x", floats(&[2], &[1.0, 1.0]))]).expect("it runs");
    assert_eq!(outputs.array("y").and_then(Array::as_floats), Some(&[1.5, 1.25][..]));
}

#[test]
fn while_loop_runs_until_condition_fails() {
    let mut session = session(COUNTDOWN);
    for (count, factor) in [(0, 1.0), (1, 2.0), (10, 1024.0)] {
        let n = Array::ints(DType::Int32, [1], vec![count]);
        let outputs = session.run(&[("n", n), ("x", floats(&[2], &[1.0, -3.0]))]).expect("it runs");
        assert_eq!(
            outputs.array("y").and_then(Array::as_floats),
            Some(&[factor, -3.0 * factor][..])
        );
    }
}

#[test]
fn endless_loop_exceeds_operation_limit() {
    let text = COUNTDOWN.replace("sub(x = left_b, y = int32(1))", "sub(x = left_b, y = int32(0))");
    let limits = Limits { operations: 10_000, ..Limits::default() };
    let engine =
        engine(&text, &LoadOptions { limits, ..LoadOptions::default() }).expect("it loads");
    let mut session = engine.session("main").expect("there is a main");
    let n = Array::ints(DType::Int32, [1], vec![1]);
    let error =
        session.run(&[("n", n), ("x", floats(&[2], &[0.0, 0.0]))]).expect_err("an endless loop");
    assert!(error.to_string().contains("more than 10000 operations"), "{error}");
}

#[test]
fn rejects_missing_duplicate_and_mistyped_inputs() {
    let mut session = session(COUNTDOWN);
    let n = || Array::ints(DType::Int32, [1], vec![1]);
    let x = || floats(&[2], &[0.0, 0.0]);
    let cases: [(&[(&str, Array)], &str); 5] = [
        (&[("n", n())], "input `x`, a `tensor<fp32, [2]>`, is not given"),
        (&[("n", n()), ("x", x()), ("z", x())], "unknown input `z`; the inputs are `n` and `x`"),
        (&[("n", n()), ("x", x()), ("x", x())], "input `x` is given twice"),
        (
            &[("n", n()), ("x", floats(&[3], &[0.0; 3]))],
            "`x` expects a `tensor<fp32, [2]>`, found shape [3]",
        ),
        (
            &[("n", floats(&[1], &[1.0])), ("x", x())],
            "`n` expects a `tensor<int32, [1]>`, found elements of type `fp32`",
        ),
    ];
    for (inputs, message) in cases {
        let error = session.run(inputs).expect_err(message);
        assert_eq!(error.to_string(), message);
    }
}

#[test]
fn observer_sees_values_and_profile_sees_steps() {
    let mut session = session(COUNTDOWN);
    let n = Array::ints(DType::Int32, [1], vec![2]);
    let mut seen = Vec::new();
    let mut spans = Vec::new();
    let mut observe = |operation: &str, name: &str, value: &Value| {
        seen.push(format!("{operation} {name} {:?}", value.as_array().map(Array::shape)));
    };
    let mut hooks =
        Hooks { observe: Some(&mut observe), profile: Some(&mut spans), ..Hooks::default() };
    session.run_with(&[("n", n), ("x", floats(&[2], &[0.0, 0.0]))], &mut hooks).expect("it runs");
    assert_eq!(seen.iter().filter(|line| line.starts_with("add twice")).count(), 2);
    assert_eq!(seen.last().map(String::as_str), Some("while_loop y Some([2])"));
    assert!(spans.iter().any(|span| span.nested && span.elapsed > Duration::ZERO));
}

/// Attention over any length, whose result is reshaped to a shape that requires four rows.
const FOUR_ROWS: &str = "
    program(1.3) {
        func main<ios17>(tensor<fp32, [1, 2, ?, 8]> x) [FlexibleShapeInformation =
            tuple<tuple<string, dict<string, tensor<int32, [?]>>>,
                  tuple<string, dict<string, list<tensor<int32, [2]>, ?>>>>((
                (\"DefaultShapes\", {{\"x\", [1, 2, 4, 8]}}),
                (\"RangeDims\", {{\"x\", [[1, 1], [2, 2], [1, 64], [8, 8]]}})))] {
            bool no = const()[val = bool(false)];
            bool yes = const()[val = bool(true)];
            tensor<fp32, [1, 2, ?, ?]> scores = matmul(transpose_x = no, transpose_y = yes, x = x, y = x);
            tensor<fp32, [1, 2, ?, ?]> weights = softmax(axis = int32(-1), x = scores);
            tensor<fp32, [1, 2, ?, 8]> mixed = matmul(transpose_x = no, transpose_y = no, x = weights, y = x);
            tensor<fp32, [1, ?, 2, 8]> turned = transpose(perm = tensor<int32, [4]>([0, 2, 1, 3]), x = mixed);
            tensor<fp32, [1, 4, 16]> y = reshape(shape = tensor<int32, [3]>([1, 4, 16]), x = turned);
        } -> (y);
    }
";

#[test]
fn rejects_lengths_that_fixed_reshape_cannot_hold() {
    let mut session = session(FOUR_ROWS);
    let x = |rows: usize| {
        let elements: Vec<f32> = (0..2 * rows * 8).map(|at| (at * 7 % 33) as f32 / 16.0).collect();
        floats(&[1, 2, rows, 8], &elements)
    };
    for rows in [4, 8, 1, 4] {
        let planned = session.run(&[("x", x(rows))]);
        let mut observe = |_: &str, _: &str, _: &Value| {};
        let mut hooks = Hooks { observe: Some(&mut observe), ..Hooks::default() };
        let observed = session.run_with(&[("x", x(rows))], &mut hooks);
        if rows == 4 {
            let (planned, observed) = (planned.expect("it fits"), observed.expect("it fits"));
            let [planned, observed] = [&planned, &observed].map(|outputs| {
                outputs.array("y").and_then(Array::as_floats).expect("floats").to_vec()
            });
            assert!(planned.iter().zip(&observed).all(|(x, y)| (x - y).abs() < 1e-5));
            continue;
        }
        let (planned, observed) = (
            planned.expect_err("an unsupported length"),
            observed.expect_err("an unsupported length"),
        );
        assert_eq!(planned.to_string(), observed.to_string());
        assert!(planned.to_string().contains("`reshape` of `y`"), "{planned}");
    }
}
