//! Tests that split models pass the right values between pieces, and that each piece passes verification.

use coremill_edit::Steps;
use coremill_mil::model::{self, Model};
use coremill_mil::text::{self, NoWeights, PrintOptions};
use coremill_verify::verify;

fn described(body: &str) -> Model {
    let text = format!("program(1.3) {{ {body} }}");
    let program =
        text::parse(&text, &NoWeights).unwrap_or_else(|error| panic!("{}", error.render("")));
    model::describe(program).expect("a description")
}

fn steps(body: &str) -> Steps {
    Steps::of(&described(body), None).expect("steps")
}

/// Verifies a model and returns its text.
fn printed(model: &Model) -> String {
    if let Err(report) = verify(model) {
        panic!("{report:?}");
    }
    text::print(&model.program, &PrintOptions::default()).text
}

fn interface(model: &Model) -> (Vec<&str>, Vec<&str>) {
    let inputs = model.description.inputs.iter().map(|input| input.name.as_str());
    let outputs = model.description.outputs.iter().map(|output| output.name.as_str());
    (inputs.collect(), outputs.collect())
}

const NETWORK: &str = "func main<ios17>(tensor<fp32, [2, 2]> x, tensor<fp32, [2, 2]> z) {
    tensor<fp32, [2, 2]> w = const()[val = tensor<fp32, [2, 2]>([[1, 2], [3, 4]])];
    tensor<fp32, [2, 2]> a = matmul(x = x, y = w);
    tensor<bool, [2, 2]> mask = greater(x = a, y = fp32(0.0));
    fp32 total = reduce_sum(x = a, keep_dims = bool(false));
    tensor<fp32, [2, 2]> b = mul(x = a, y = total);
    tensor<fp32, [2, 2]> c = select(a = b, b = z, cond = mask);
    tensor<fp32, [2, 2]> y = matmul(x = c, y = w);
} -> (y, a);";

#[test]
fn pieces_receive_values_of_earlier_pieces() {
    let steps = steps(NETWORK);
    assert_eq!(steps.len(), 6);
    let pieces = steps.pieces(&steps.after(&["total".to_owned()]).expect("a cut")).expect("pieces");
    let [first, second] = &pieces[..] else { panic!("{} pieces", pieces.len()) };
    assert_eq!(interface(first), (vec!["x"], vec!["a", "mask", "total"]));
    assert_eq!(interface(second), (vec!["z", "a", "mask", "total"], vec!["y"]));
    // Core ML models cannot pass booleans and scalars, so pieces pass `int32` tensors and one-element tensors.
    let first = printed(first);
    assert!(first.contains("tensor<int32, [2, 2]> mask = cast("), "{first}");
    assert!(first.contains("tensor<fp32, [1]> total = expand_dims("), "{first}");
    let second = printed(second);
    assert!(second.contains("tensor<bool, [2, 2]> mask_given = cast("), "{second}");
    assert!(second.contains("fp32 total_given = squeeze("), "{second}");
}

#[test]
fn every_cut_yields_valid_core_ml_models() {
    let steps = steps(NETWORK);
    for end in 1..=steps.len() {
        for start in 0..end {
            printed(&steps.piece(start..end).expect("a piece"));
        }
    }
}

#[test]
fn of_size_limits_weight_bytes_per_piece() {
    let steps = steps(NETWORK);
    // Both products use the same 16 bytes of weights; a literal has 4.
    assert_eq!(steps.of_size(64).expect("one piece").len(), 1);
    let error = steps.of_size(15).expect_err("too small");
    assert_eq!(error.to_string(), "`a` (`matmul`) alone has 16 bytes of weights");
    let two = "func main<ios17>(tensor<fp32, [2]> x) {
        tensor<fp32, [2]> v = const()[val = tensor<fp32, [2]>([1, 2])];
        tensor<fp32, [2]> w = const()[val = tensor<fp32, [2]>([3, 4])];
        tensor<fp32, [2]> a = mul(x = x, y = v);
        tensor<fp32, [2]> b = mul(x = a, y = v);
        tensor<fp32, [2]> c = mul(x = b, y = w);
    } -> (c);";
    let steps = self::steps(two);
    assert_eq!(steps.of_size(8).expect("two pieces"), [0..2, 2..3]);
    assert_eq!(steps.of_size(16).expect("one piece").len(), 1);
}

#[test]
fn pieces_receive_values_used_in_nested_blocks() {
    let body = "func main<ios17>(tensor<fp32, [2]> x, tensor<int32, [1]> n) {
        tensor<bool, [1]> p = cast(x = n, dtype = string(\"bool\"));
        tensor<fp32, [2]> a = exp(x = x);
        bool q = squeeze(x = p);
        tensor<fp32, [2]> y = cond(pred = q) () {
            tensor<fp32, [2]> t = relu(x = a);
        } -> (t) () { } -> (x);
    } -> (y);";
    let steps = steps(body);
    let second = steps.piece(3..4).expect("a piece");
    printed(&second);
    assert_eq!(interface(&second).0, ["x", "a", "q"]);
}

#[test]
fn state_must_stay_in_one_piece() {
    let body = "func main<ios18>(state<tensor<fp16, [2]>> s, tensor<fp16, [2]> x) {
        tensor<fp16, [2]> a = read_state(input = s);
        tensor<fp16, [2]> b = add(x = a, y = x);
        write_state(input = s, data = b);
        tensor<fp16, [2]> y = relu(x = b);
    } -> (y);";
    let steps = steps(body);
    let cut = steps.after(&["a".to_owned()]).expect("a cut");
    let error = steps.pieces(&cut).expect_err("two pieces use the state");
    assert_eq!(error.to_string(), "several pieces use the state `s`");
    let whole = steps.piece(0..3).expect("a piece");
    assert_eq!(whole.description.states.len(), 1);
    assert_eq!(steps.piece(3..4).expect("a piece").description.states.len(), 0);
}

#[test]
fn rejects_cut_at_unknown_value() {
    let error = steps(NETWORK).after(&["totl".to_owned()]).expect_err("no such value");
    assert!(error.to_string().starts_with("unknown value `totl`"), "{error}");
}

#[test]
fn of_size_counts_inline_literal_weights() {
    let weight = format!("tensor<fp32, [12]>([{}])", ["1"; 12].join(", "));
    let body = format!(
        "func main<ios17>(tensor<fp32, [12]> x) {{
            tensor<fp32, [12]> a = add(x = x, y = {weight});
            tensor<fp32, [12]> b = mul(x = a, y = {weight});
            tensor<fp32, [12]> c = mul(x = b, y = fp32(2));
        }} -> (c);"
    );
    let steps = steps(&body);
    assert_eq!(steps.of_size(96).expect("one piece").len(), 1);
    assert_eq!(steps.of_size(48).expect("two pieces"), [0..1, 1..3]);
    let error = steps.of_size(47).expect_err("too small");
    assert_eq!(error.to_string(), "`a` (`add`) alone has 48 bytes of weights");
}
