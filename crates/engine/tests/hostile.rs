//! Valid but absurd programs. Each must return values or an error, and never crash.

use coremill_engine::{Array, Engine, Error, Limits, LoadOptions};
use coremill_mil::{model, text};
use coremill_tensor::DType;
use coremill_verify as verify;

const LIMITS: Limits = Limits { elements: 1 << 16, bytes: 1 << 24, operations: 1 << 10 };

/// Runs `y = OPERATION` on a tensor with elements 1, 2, 3, …
fn run(shape: &[usize], result: &[usize], operation: &str) -> Result<Vec<f32>, Error> {
    let listed =
        |shape: &[usize]| shape.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    let (taken, given) = (listed(shape), listed(result));
    let program = format!(
        "program(1.3) {{ func main<ios18>(tensor<fp32, [{taken}]> x) {{ \
         tensor<fp32, [{given}]> y = {operation}; }} -> (y); }}"
    );
    let program = text::parse(&program, &text::NoWeights).expect("it is MIL");
    let model = model::describe(program).expect("it is complete");
    let verified =
        verify::verify(&model).unwrap_or_else(|_| panic!("the verifier rejects {operation}"));
    let options = LoadOptions { limits: LIMITS, threads: 1, ..LoadOptions::default() };
    let mut session = Engine::load(&verified, &options)?.session("main")?;
    let count: usize = shape.iter().product();
    let x = Array::floats(DType::Fp32, shape, (1..=count).map(|at| at as f32).collect());
    let outputs = session.run(&[("x", x)])?;
    let y = outputs.array("y").expect("a result");
    assert_eq!(y.shape(), result, "{operation}");
    Ok(y.as_floats().expect("floats").to_vec())
}

fn window(operation: &str, more: &str) -> String {
    format!("{operation}(x = x, kernel_sizes = tensor<int32, [1]>([1]), {more})")
}

#[test]
fn pooling_windows_past_input_are_empty() {
    let beyond =
        "strides = tensor<int32, [1]>([3]), pad_type = string(\"valid\"), ceil_mode = bool(true)";
    let rounded = |operation| run(&[1, 1, 5], &[1, 1, 3], &window(operation, beyond));
    assert_eq!(rounded("max_pool").expect("it runs"), [1.0, 4.0, f32::NEG_INFINITY]);
    assert_eq!(rounded("avg_pool").expect("it runs"), [1.0, 4.0, 0.0]);
    assert_eq!(rounded("l2_pool").expect("it runs"), [1.0, 4.0, 0.0]);
}

#[test]
fn negative_padding_crops_input() {
    let cut = "pad_type = string(\"custom\"), pad = tensor<int32, [2]>([-1, -2])";
    for operation in ["max_pool", "avg_pool", "l2_pool"] {
        let found = run(&[1, 1, 6], &[1, 1, 3], &window(operation, cut));
        assert_eq!(found.expect("it runs"), [2.0, 3.0, 4.0], "{operation}");
    }
    let conv = "conv(x = x, weight = tensor<fp32, [1, 1, 1]>([[[2]]]), pad_type = string(\"custom\"), \
                pad = tensor<int32, [2]>([-1, -2]))";
    assert_eq!(run(&[1, 1, 6], &[1, 1, 3], conv).expect("it runs"), [4.0, 6.0, 8.0]);
}

#[test]
fn rejects_huge_results() {
    let most = i32::MAX as usize;
    let wide = window(
        "max_pool",
        "pad_type = string(\"custom\"), pad = tensor<int32, [2]>([2147483641, 0])",
    );
    let far = "conv_transpose(x = x, weight = tensor<fp32, [1, 1, 1]>([[[2]]]), \
               output_shape = tensor<int32, [3]>([1, 1, 2147483647]))";
    let apart = "conv_transpose(x = x, weight = tensor<fp32, [1, 1, 2]>([[[2, 1]]]), \
                 dilations = tensor<int32, [1]>([2147483641]))";
    for operation in [&*wide, far, apart] {
        let error = run(&[1, 1, 6], &[1, 1, most], operation).expect_err("it is too large");
        assert!(error.to_string().contains("65536"), "{error}");
    }
}

/// Runs eight cumulative sums of 2¹⁶ numbers, each over the previous result, followed by the operations in `rest`.
fn run_sums(bytes: usize, rest: &str, outputs: &str) -> Result<(), Error> {
    let ty = "tensor<fp32, [65536]>";
    let sums: String = (0..8)
        .map(|at| {
            let x = if at == 0 { "x".to_owned() } else { format!("s{}", at - 1) };
            format!("{ty} s{at} = cumsum(x = {x}, axis = int32(0)); ")
        })
        .collect();
    let program =
        format!("program(1.3) {{ func main<ios18>({ty} x) {{ {sums} {rest} }} -> ({outputs}); }}");
    let program = text::parse(&program, &text::NoWeights).expect("it is MIL");
    let model = model::describe(program).expect("it is complete");
    let verified = verify::verify(&model).unwrap_or_else(|_| panic!("the verifier rejects {rest}"));
    let limits = Limits { bytes, ..LIMITS };
    let options = LoadOptions { limits, threads: 1, ..LoadOptions::default() };
    let mut session = Engine::load(&verified, &options)?.session("main")?;
    session.run(&[("x", Array::floats(DType::Fp32, [65536], vec![1e-30; 65536]))]).map(drop)
}

#[test]
fn enforces_limit_on_live_bytes() {
    const EACH: usize = 65536 * 4;
    let ty = "tensor<fp32, [65536]>";
    // Each sum and the next one must be live at the same time.
    assert!(run_sums(5 * EACH / 2, "", "s7").is_ok());
    let refused = |bytes: usize, rest: &str, outputs: &str| {
        let error = run_sums(bytes, rest, outputs).expect_err("the limit is exceeded");
        assert!(error.to_string().contains(&format!("the limit is {bytes}")), "{error}");
        assert!(error.hint().is_some_and(|it| it.contains("`Limits::bytes`")), "{error:?}");
    };
    refused(3 * EACH / 2, "", "s7");
    // Results, and values read after the last sum, are all live at the same time.
    let outputs = "s0, s1, s2, s3, s4, s5, s6, s7";
    assert!(run_sums(17 * EACH / 2, "", outputs).is_ok());
    refused(15 * EACH / 2, "", outputs);
    let added: String = (1..8)
        .map(|at| {
            let x = if at == 1 { "s0".to_owned() } else { format!("t{}", at - 1) };
            format!("{ty} t{at} = add(x = {x}, y = s{at}); ")
        })
        .collect();
    assert!(run_sums(21 * EACH / 2, &added, "t7").is_ok());
    refused(15 * EACH / 2, &added, "t7");
}

#[test]
fn avg_pool_accepts_window_far_larger_than_input() {
    let all = "avg_pool(x = x, kernel_sizes = tensor<int32, [1]>([2147483647]), pad_type = string(\"same\"), \
               strides = tensor<int32, [1]>([2147483647]), exclude_padding_from_average = bool(true))";
    assert_eq!(run(&[1, 1, 4], &[1, 1, 1], all).expect("it runs"), [2.5]);
}

#[test]
fn gru_with_empty_batch_gives_empty_output() {
    let gru = "gru(x = x, initial_h = tensor<fp32, [0, 1]>([]), weight_ih = tensor<fp32, [3, 2]>([[1, 1], \
               [1, 1], [1, 1]]), weight_hh = tensor<fp32, [3, 1]>([[1], [1], [1]]), output_sequence = bool(true))";
    let program = format!(
        "program(1.3) {{ func main<ios18>(tensor<fp32, [4, 0, 2]> x) {{ \
         tensor<fp32, [4, 0, 1]> y, tensor<fp32, [0, 1]> h = {gru}; }} -> (y, h); }}"
    );
    let program = text::parse(&program, &text::NoWeights).expect("it is MIL");
    let model = model::describe(program).expect("it is complete");
    let verified = verify::verify(&model).expect("a valid program");
    let engine = Engine::load(&verified, &LoadOptions::default()).expect("it loads");
    let mut session = engine.session("main").expect("a session");
    let x = Array::floats(DType::Fp32, [4, 0, 2], Vec::new());
    let outputs = session.run(&[("x", x)]).expect("it runs");
    assert_eq!(outputs.array("y").map(Array::shape), Some(&[4, 0, 1][..]));
}

#[test]
fn rejects_conv_quantized_by_name() {
    let conv = "conv_quantized(x = x, weight = tensor<uint8, [1, 1, 1]>([[[2]]]), \
                quantization_type = string(\"linear\"), quant_scale = fp32(0.5), quant_bias = fp32(0))";
    let error = run(&[1, 1, 3], &[1, 1, 3], conv).expect_err("an unsupported operation");
    assert!(error.to_string().contains("conv_quantized"), "{error}");
}
