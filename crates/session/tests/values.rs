//! Intermediate values by name, compared with numbers computed by hand.

use std::sync::Arc;

use coremill_mil::{model, text};
use coremill_session::{Array, Executable, Outputs, RunOptions, inputs};
use coremill_tensor::DType;
use coremill_verify as verify;

fn load(source: &str) -> Arc<dyn Executable> {
    let program = text::parse(source, &text::NoWeights).expect("MIL");
    let model = model::describe(program).expect("complete");
    let verified = verify::verify(&model).expect("sound");
    coremill_session::load(&verified, &RunOptions::default()).expect("can be run")
}

fn values(source: &str, x: &[f32], names: &[&str]) -> Result<(Outputs, Outputs), String> {
    let mut session = load(source).default_session().expect("one function");
    let x = Array::floats(DType::Fp32, [x.len()], x.to_vec());
    let given = [("x".to_owned(), x)];
    session.run_values(&inputs(&given), names).map_err(|error| error.to_string())
}

const CHAIN: &str = "
    program(1.3) {
        func main<ios17>(tensor<fp32, [2]> x) {
            tensor<fp32, [2]> two = const()[val = tensor<fp32, [2]>([2, 3])];
            tensor<fp32, [2]> four = mul(x = two, y = two);
            tensor<fp32, [2]> scaled = mul(x = x, y = two);
            tensor<fp32, [2]> shifted = add(x = scaled, y = four);
            tensor<fp32, [2]> y = relu(x = shifted);
        } -> (y);
    }";

#[test]
fn finds_inputs_constants_and_intermediate_values() {
    // A normal run fuses these operations. Intermediate values must be available nevertheless.
    let names = ["shifted", "y", "x", "two", "four", "scaled", "scaled"];
    let (outputs, values) = values(CHAIN, &[1.0, -10.0], &names).expect("it runs");
    assert_eq!(outputs.floats("y"), Some(&[6.0, 0.0][..]));
    let found: Vec<_> = values.0.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(found, names[..6]);
    for (name, expected) in [
        ("shifted", [6.0, -21.0]),
        ("y", [6.0, 0.0]),
        ("x", [1.0, -10.0]),
        ("two", [2.0, 3.0]),
        ("four", [4.0, 9.0]),
        ("scaled", [2.0, -30.0]),
    ] {
        assert_eq!(values.floats(name), Some(&expected[..]), "{name}");
    }
}

#[test]
fn unknown_value_error_suggests_similar_name() {
    let error = values(CHAIN, &[1.0, 2.0], &["shiftd"]).expect_err("there is no such value");
    assert!(error.contains("unknown value `shiftd`"), "{error}");
    assert!(error.contains("did you mean `shifted`"), "{error}");
}

#[test]
fn numbers_loop_values_by_iteration() {
    let source = "
        program(1.3) {
            func main<ios17>(tensor<fp32, [1]> x) {
                int32 two = const()[val = int32(2)];
                int32 left, tensor<fp32, [1]> end = while_loop(loop_vars = (two, x))
                (int32 left_c, tensor<fp32, [1]> end_c) {
                    bool go = greater(x = left_c, y = int32(0));
                } -> (go)
                (int32 left_b, tensor<fp32, [1]> end_b) {
                    int32 less = sub(x = left_b, y = int32(1));
                    tensor<fp32, [1]> doubled = add(x = end_b, y = end_b);
                } -> (less, doubled);
            } -> (end);
        }";
    let (outputs, values) = values(source, &[3.0], &["doubled"]).expect("it runs");
    assert_eq!(outputs.floats("end"), Some(&[12.0][..]));
    let found: Vec<_> = values.0.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(found, ["doubled", "doubled@1"]);
    assert_eq!(values.floats("doubled@1"), Some(&[12.0][..]));
}
