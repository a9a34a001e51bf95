//! Compares emulated device arithmetic with results recorded on Apple devices.

use std::collections::BTreeMap;

use coremill_engine::{Array, Engine, LoadOptions, Numerics, Value};
use coremill_mil::model::describe;
use coremill_mil::text::{NoWeights, parse};
use coremill_tensor::DType;
use coremill_verify::verify;
use half::f16;

/// A recorded sum of products.
struct Vector {
    group: &'static str,
    weight: f32,
    bias: f32,
    ane: f32,
    cpu: Option<f32>,
    inputs: Vec<f32>,
}

/// The groups that contain the 73 vectors of the study.
const MEASURED: [&str; 6] = ["single", "sum", "subnormal", "rounding", "width", "sticky"];

fn number(text: &str) -> f32 {
    match text.strip_prefix("0x") {
        Some(bits) => f16::from_bits(u16::from_str_radix(bits, 16).expect("bits")).to_f32(),
        None => text.parse().unwrap_or_else(|_| panic!("`{text}` is not a number")),
    }
}

fn rows(text: &'static str) -> impl Iterator<Item = Vec<&'static str>> {
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines.map(|line| line.split('|').map(str::trim).collect())
}

fn vectors() -> Vec<Vector> {
    let vector = |row: Vec<&'static str>| {
        let [group, weight, bias, ane, cpu, inputs] = row[..] else { panic!("six columns") };
        let inputs = inputs.split_whitespace().flat_map(|input| match input.strip_prefix("0*") {
            Some(zeros) => vec![0.0; zeros.parse().expect("a count")],
            None => vec![number(input)],
        });
        Vector {
            group,
            weight: number(weight),
            bias: number(bias),
            ane: number(ane),
            cpu: (cpu != "-").then(|| number(cpu)),
            inputs: inputs.collect(),
        }
    };
    rows(include_str!("device/products.txt")).map(vector).collect()
}

/// Runs a program with fp16 inputs. Returns the elements of its output.
fn run(source: &str, numerics: Numerics, inputs: &[(&str, &[usize], Vec<f32>)]) -> Vec<f32> {
    let program = parse(source, &NoWeights).unwrap_or_else(|error| panic!("{error}\n{source}"));
    let model = describe(program).expect("a complete program");
    let verified = verify(&model).unwrap_or_else(|report| panic!("{report:?}"));
    let options = LoadOptions { numerics, threads: 2, ..LoadOptions::default() };
    let engine = Engine::load(&verified, &options).expect("it loads");
    let mut session = engine.session("main").expect("the function");
    let inputs: Vec<_> = inputs
        .iter()
        .map(|(name, shape, floats)| (*name, Array::floats(DType::Fp16, *shape, floats.clone())))
        .collect();
    let outputs = session.run(&inputs).expect("it runs");
    let (_, Value::Array(array)) = &outputs.0[0] else { panic!("a tensor") };
    array.as_floats().expect("floats").to_vec()
}

/// Operations that compute a sum of products: name, shapes of the input and of the weight, whether a bias is added, and
/// arguments. The output is one number.
const PRODUCTS: [(&str, &[usize], &[usize], bool, &str); 5] = [
    ("conv", &[1, 64, 1, 1], &[1, 64, 1, 1], true, "x = x, weight = w, bias = b"),
    ("linear", &[1, 64], &[1, 64], true, "x = x, weight = w, bias = b"),
    ("matmul", &[1, 64], &[64, 1], false, "x = x, y = w"),
    (
        "einsum",
        &[1, 1, 64],
        &[64, 1, 1],
        false,
        "values = (x, w), equation = string(\"chw,whr->chr\")",
    ),
    ("conv_transpose", &[1, 64, 1, 1], &[64, 1, 1, 1], true, "x = x, weight = w, bias = b"),
];

/// A constant of equal elements.
fn constant(name: &str, shape: &[usize], value: f32) -> String {
    let elements = shape
        .iter()
        .rev()
        .fold(value.to_string(), |inner, &size| format!("[{}]", vec![inner; size].join(", ")));
    format!("tensor<fp16, {shape:?}> {name} = const()[val = tensor<fp16, {shape:?}>({elements})];")
}

fn product(operation: usize, numerics: Numerics, vector: &Vector) -> f32 {
    let (name, x, w, _, arguments) = PRODUCTS[operation];
    let (weight, bias) = (constant("w", w, vector.weight), constant("b", &[1], vector.bias));
    let one = vec![1; x.len()];
    let source = format!(
        "program(1.3) {{ func main<ios18>(tensor<fp16, {x:?}> x) {{
            {weight} {bias}
            tensor<fp16, {one:?}> y = {name}({arguments}); }} -> (y); }}"
    );
    let mut inputs = vector.inputs.clone();
    inputs.resize(64, 0.0);
    run(&source, numerics, &[("x", x, inputs)])[0]
}

fn same(found: f32, expected: f32) -> bool {
    found == expected && (found != 0.0 || found.is_sign_positive())
        || found.is_nan() && expected.is_nan()
}

#[test]
fn dot_products_match_device_recordings() {
    let vectors = vectors();
    let measured = vectors.iter().filter(|vector| MEASURED.contains(&vector.group));
    assert_eq!(measured.count(), 73, "the study has 73 vectors");
    let mut mismatches = Vec::new();
    let mut agree: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for (index, operation) in PRODUCTS.into_iter().enumerate() {
        for vector in &vectors {
            if !operation.3 && vector.bias != 0.0 {
                continue;
            }
            for numerics in [Numerics::Ane, Numerics::CoremlCpu, Numerics::Rounded] {
                let expected = match (numerics, vector.cpu) {
                    (Numerics::Ane, _) => vector.ane,
                    (_, Some(cpu)) => cpu,
                    (_, None) => continue,
                };
                let found = product(index, numerics, vector);
                let is_measured = MEASURED.contains(&vector.group);
                if same(found, expected) {
                    if is_measured {
                        *agree.entry((operation.0, numerics.name())).or_default() += 1;
                    }
                } else if numerics != Numerics::Rounded {
                    let (name, group) = (operation.0, vector.group);
                    let nonzero: Vec<_> = vector.inputs.iter().filter(|x| **x != 0.0).collect();
                    mismatches.push(format!(
                        "{name} {numerics} {group} {nonzero:?} · {} + {}: {found}, not {expected}",
                        vector.weight, vector.bias
                    ));
                }
            }
        }
    }
    assert!(mismatches.is_empty(), "{}", mismatches.join("\n"));
    for (operation, ..) in PRODUCTS {
        assert_eq!(agree[&(operation, "ane")], 73, "{operation}");
        assert_eq!(agree[&(operation, "coreml-cpu")], 73, "{operation}");
        // `rounded` only rounds the results. It does not emulate how devices accumulate the sum.
        assert_eq!(agree[&(operation, "rounded")], 61, "{operation}");
    }
}

#[test]
fn elementwise_ops_match_device_recordings() {
    let mut mismatches = Vec::new();
    for row in rows(include_str!("device/elementwise.txt")) {
        let [operation, x, y, ane, cpu] = row[..] else { panic!("five columns") };
        let source = format!(
            "program(1.3) {{ func main<ios18>(tensor<fp16, [1]> a, tensor<fp16, [1]> b) {{
                tensor<fp16, [1]> y = {operation}(x = a, y = b); }} -> (y); }}"
        );
        for (numerics, expected) in [(Numerics::Ane, ane), (Numerics::CoremlCpu, cpu)] {
            let given = [("a", &[1][..], vec![number(x)]), ("b", &[1][..], vec![number(y)])];
            let found = run(&source, numerics, &given)[0];
            if !same(found, number(expected)) {
                mismatches
                    .push(format!("{numerics} {operation}({x}, {y}): {found}, not {expected}"));
            }
        }
    }
    assert!(mismatches.is_empty(), "{}", mismatches.join("\n"));
}

/// Single results from the study and from the Neural Engine guide.
#[test]
fn ane_functions_and_quantization_match_recordings() {
    let unary = |operation: &str, x: f32| {
        let source = format!(
            "program(1.3) {{ func main<ios18>(tensor<fp16, [1]> a) {{
                tensor<fp16, [1]> y = {operation}; }} -> (y); }}"
        );
        run(&source, Numerics::Ane, &[("a", &[1], vec![x])])[0]
    };
    assert_eq!(unary("sqrt(x = a)", -1.0), 0.0);
    assert_eq!(unary("rsqrt(x = a)", -1.0), 0.0);
    assert_eq!(unary("log(x = a)", -1.0), 0.0);
    assert_eq!(unary("softsign(x = a)", f32::INFINITY), 0.0);
    // Both modes of `gelu` use the same interpolated table, which is less accurate than either formula.
    let modes = ["EXACT", "TANH_APPROXIMATION"];
    let [exact, tanh] =
        modes.map(|mode| unary(&format!("gelu(x = a, mode = string(\"{mode}\"))"), 0.7));
    assert_eq!(exact, tanh);
    assert!((exact - 0.530_6).abs() < 6.2e-3 && exact != 0.530_6, "{exact}");
    let quantized = "program(1.3) { func main<ios18>(tensor<fp16, [4]> a) {
            tensor<int8, [4]> q = quantize(input = a, scale = fp16(1), output_dtype = string(\"int8\"));
            tensor<fp16, [4]> y = dequantize(input = q, scale = fp16(1)); } -> (y); }";
    let given = || [("a", &[4][..], vec![0.5, 2.5, -0.5, -2.5])];
    assert_eq!(run(quantized, Numerics::Ane, &given()), [1.0, 3.0, -1.0, -3.0]);
    assert_eq!(run(quantized, Numerics::Rounded, &given()), [0.0, 2.0, 0.0, -2.0]);
}

/// The product of a probability and a value is zero if the sum of their exponents is less than −16.
#[test]
fn ane_attention_flushes_small_probabilities_to_zero() {
    let source = "program(1.3) { func main<ios18>(tensor<fp16, [1, 1, 8]> q,
            tensor<fp16, [1, 4096, 8]> k, tensor<fp16, [1, 4096, 8]> v) {
        tensor<fp16, [1, 1, 8]> y = scaled_dot_product_attention(query = q, key = k, value = v); } -> (y); }";
    // All 4096 keys are equal, so each probability is 2⁻¹². All values are equal too, and so is the exact result.
    let given = |value: f32| {
        let wide = &[1usize, 4096, 8][..];
        [
            ("q", &[1, 1, 8][..], vec![1.0; 8]),
            ("k", wide, vec![1.0; 4096 * 8]),
            ("v", wide, vec![value; 4096 * 8]),
        ]
    };
    assert_eq!(run(source, Numerics::Ane, &given(1.0)), [1.0; 8]);
    // The exponents of 2⁻¹² and 2⁻¹¹ sum to −23.
    assert_eq!(run(source, Numerics::Ane, &given(2.0f32.powi(-11))), [0.0; 8]);
    assert_eq!(run(source, Numerics::Rounded, &given(2.0f32.powi(-11))), [2.0f32.powi(-11); 8]);
}

/// The Neural Engine does not run fp32 operations.
#[test]
fn fp32_ops_do_not_use_ane_arithmetic() {
    let source = "program(1.3) { func main<ios18>(tensor<fp32, [1, 2]> a) {
        tensor<fp32, [2, 1]> w = const()[val = tensor<fp32, [2, 1]>([[1], [1]])];
        tensor<fp32, [1, 1]> y = matmul(x = a, y = w); } -> (y); }";
    let program = parse(source, &NoWeights).expect("a program");
    let model = describe(program).expect("a complete program");
    let verified = verify(&model).expect("a sound program");
    let options = LoadOptions { numerics: Numerics::Ane, ..LoadOptions::default() };
    let engine = Engine::load(&verified, &options).expect("it loads");
    let x = Array::floats(DType::Fp32, [1, 2], vec![40000.0, 0.25]);
    let outputs = engine.session("main").and_then(|mut it| it.run(&[("a", x)])).expect("it runs");
    assert_eq!(outputs.floats("y"), Some(&[40000.25][..]));
}
