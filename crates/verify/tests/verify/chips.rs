//! Rules that result in warnings about some chips.

use coremill_device::{Chip, HAZARDS};
use coremill_mil::ir::Type;
use coremill_mil::model::Model;
use coremill_tensor::DType;
use coremill_verify::{Code, check, check_on};

use crate::cases::Case;
use crate::hazards::one;

fn gathered(inputs: &str, indices: &str) -> Model {
    one(
        "ios17",
        inputs,
        &format!(
            "bool v = const()[val = bool(false)];\nint32 a = const()[val = int32(0)];\n\
             tensor<fp16, [2, 4]> y = gather(axis = a, indices = {indices}, validate_indices = v, x = x);"
        ),
    )
}

fn unary(operation: &str) -> Model {
    one("ios17", "tensor<fp16, [4]> x", &format!("tensor<fp16, [4]> y = {operation}(x = x);"))
}

fn sized(size: u64) -> Model {
    let ty = format!("tensor<fp16, [1, {size}]>");
    one("ios17", &format!("{ty} x"), &format!("{ty} y = relu(x = x);"))
}

/// 3×3 convolutions of 64 channels at 32×32, each of which saves 0.095 ms on the Neural Engine of M4.
fn convolutions(count: usize) -> Model {
    let (ty, weight) = ("tensor<fp16, [1, 64, 32, 32]>", "tensor<fp16, [64, 64, 3, 3]>");
    let layers = (0..count).map(|index| {
        let (from, to) = match (index, index + 1 == count) {
            (0, last) => ("x".to_owned(), if last { "y".to_owned() } else { "c0".to_owned() }),
            (_, true) => (format!("c{}", index - 1), "y".to_owned()),
            (_, false) => (format!("c{}", index - 1), format!("c{index}")),
        };
        format!(
            "{weight} w{index} = const()[val = {weight}(BLOBFILE(path = string(\"@model_path/weights/weight.bin\"), offset = uint64(64)))];\n\
             {ty} {to} = conv(pad_type = string(\"same\"), weight = w{index}, x = {from});\n"
        )
    });
    one("ios17", &format!("{ty} x"), &layers.collect::<String>())
}

fn states(count: usize) -> Model {
    let ty = "tensor<fp16, [1, 32]>";
    let names = ["a", "b", "c"];
    let inputs: Vec<_> = names[..count].iter().map(|name| format!("state<{ty}> {name}")).collect();
    let reads = names[..count].iter().enumerate().map(|(index, name)| {
        let before = if index == 0 { "x".to_owned() } else { format!("s{}", index - 1) };
        format!("{ty} r{index} = read_state(input = {name});\n{ty} s{index} = add(x = r{index}, y = {before});\n")
    });
    let body = reads.collect::<String>() + &format!("{ty} y = relu(x = s{});", count - 1);
    one("ios18", &format!("{}, {ty} x", inputs.join(", ")), &body)
}

/// The product of two dequantized values, quantized again, with or without a `clip` before the quantization.
fn quantized_product(clip: bool) -> Model {
    let ty = "tensor<fp16, [4]>";
    let int = "tensor<int8, [4]>";
    let middle = if clip { "clip(alpha = l, beta = h, x = p)" } else { "identity(x = p)" };
    let taken = if clip { "c" } else { "p" };
    one(
        "ios17",
        &format!("{ty} x, {ty} z"),
        &format!(
            "fp16 s = const()[val = fp16(0x1p-4)];\nfp16 l = const()[val = fp16(-0x1p+3)];\n\
             fp16 h = const()[val = fp16(0x1p+3)];\nstring t = const()[val = string(\"int8\")];\n\
             {int} a = quantize(input = x, output_dtype = t, scale = s);\n{ty} b = dequantize(input = a, scale = s);\n\
             {int} d = quantize(input = z, output_dtype = t, scale = s);\n{ty} e = dequantize(input = d, scale = s);\n\
             {ty} p = mul(x = b, y = e);\n{ty} c = {middle};\n\
             {int} q = quantize(input = {taken}, output_dtype = t, scale = s);\n{ty} r = dequantize(input = q, scale = s);\n\
             {ty} y = add(x = r, y = c);"
        ),
    )
}

fn scaled(groups: u64) -> Model {
    one(
        "ios18",
        "tensor<fp16, [1, 8]> x",
        &format!(
            "tensor<int8, [4, 8]> d = const()[val = tensor<int8, [4, 8]>(BLOBFILE(path = string(\"@model_path/weights/weight.bin\"), offset = uint64(64)))];\n\
             tensor<fp16, [4, {groups}]> s = const()[val = tensor<fp16, [4, {groups}]>(BLOBFILE(path = string(\"@model_path/weights/weight.bin\"), offset = uint64(64)))];\n\
             tensor<fp16, [4, 8]> w = constexpr_blockwise_shift_scale(data = d, scale = s);\n\
             tensor<fp16, [1, 4]> y = linear(weight = w, x = x);"
        ),
    )
}

fn sliced(begin: u64) -> Model {
    one(
        "ios17",
        "tensor<fp16, [2, 8]> x",
        &format!(
            "tensor<int32, [2]> b = const()[val = tensor<int32, [2]>([0, {begin}])];\n\
             tensor<int32, [2]> s = const()[val = tensor<int32, [2]>([2, 4])];\n\
             tensor<fp16, [2, 4]> y = slice_by_size(begin = b, size = s, x = x);"
        ),
    )
}

fn sliced_after(operation: &str) -> Model {
    one(
        "ios17",
        "tensor<fp16, [2, 8]> x",
        &format!(
            "tensor<fp16, [2, 8]> a = {operation}(x = x);\n\
             tensor<int32, [2]> b = const()[val = tensor<int32, [2]>([0, 4])];\n\
             tensor<int32, [2]> s = const()[val = tensor<int32, [2]>([2, 4])];\n\
             tensor<fp16, [2, 4]> y = slice_by_size(begin = b, size = s, x = a);"
        ),
    )
}

fn pooled(width: u64) -> Model {
    let out = 32 - width + 1;
    one(
        "ios17",
        "tensor<fp16, [1, 1, 32, 32]> x",
        &format!(
            "tensor<int32, [2]> k = const()[val = tensor<int32, [2]>([1, {width}])];\n\
             tensor<int32, [2]> s = const()[val = tensor<int32, [2]>([1, 1])];\n\
             string t = const()[val = string(\"valid\")];\n\
             tensor<int32, [4]> p = const()[val = tensor<int32, [4]>([0, 0, 0, 0])];\n\
             bool c = const()[val = bool(false)];\n\
             tensor<fp16, [1, 1, 32, {out}]> y = max_pool(ceil_mode = c, kernel_sizes = k, pad = p, pad_type = t, strides = s, x = x);"
        ),
    )
}

fn multiplied(terms: u64) -> Model {
    one(
        "ios17",
        &format!("tensor<fp16, [4, 8, {terms}]> x, tensor<fp16, [4, {terms}, 1]> z"),
        "bool f = const()[val = bool(false)];\n\
         tensor<fp16, [4, 8, 1]> y = matmul(transpose_x = f, transpose_y = f, x = x, y = z);",
    )
}

fn attended(right: &str) -> Model {
    let ty = "tensor<fp16, [8, 8]>";
    one(
        "ios17",
        &format!("{ty} x, {ty} v"),
        &format!(
            "int32 a = const()[val = int32(-1)];\nbool f = const()[val = bool(false)];\nbool t = const()[val = bool(true)];\n\
             {ty} p = softmax(axis = a, x = x);\n{ty} y = matmul(transpose_x = f, transpose_y = t, {right});"
        ),
    )
}

fn summed(before: &str, weight: &str) -> Model {
    one(
        "ios17",
        "tensor<fp16, [1, 2]> x",
        &format!(
            "tensor<fp16, [1, 2]> w = const()[val = tensor<fp16, [1, 2]>([[{weight}, {weight}]])];\n\
             tensor<fp16, [1, 2]> b = {before}(x = x);\ntensor<fp16, [1, 1]> y = linear(weight = w, x = b);"
        ),
    )
}

fn keys(count: u64) -> Model {
    one(
        "ios18",
        &format!("tensor<fp16, [1, 1, 4, 8]> q, tensor<fp16, [1, 1, {count}, 8]> k"),
        "tensor<fp16, [1, 1, 4, 8]> y = scaled_dot_product_attention(key = k, query = q, value = k);",
    )
}

fn added(integer: i64) -> Model {
    one(
        "ios17",
        "tensor<int32, [4]> x",
        &format!(
            "int32 c = const()[val = int32({integer})];\ntensor<int32, [4]> y = add(x = x, y = c);"
        ),
    )
}

/// A linear layer with a weight of 8 rows, whose constant declares `rows` rows.
fn weighted(rows: u64) -> Model {
    let mut model = one(
        "ios17",
        "tensor<fp16, [1, 1024]> x",
        "tensor<fp16, [8, 1024]> w = const()[val = tensor<fp16, [8, 1024]>(BLOBFILE(path = string(\"@model_path/weights/weight.bin\"), offset = uint64(64)))];\n\
         tensor<fp16, [1, 8]> y = linear(weight = w, x = x);",
    );
    let function = &mut model.program.functions[0];
    let op = function.block(function.body).ops[0];
    let value = function.op_mut(op).attributes.get_mut("val").expect("a constant has a value");
    value.ty = Type::tensor(DType::Fp16, &[rows, 1024]);
    model
}

pub(crate) fn cases() -> Vec<Case> {
    let run_time = "tensor<fp16, [8, 4]> x, tensor<int32, [2]> i";
    vec![
        Case::new(
            Code::RuntimeIndex,
            gathered(run_time, "i"),
            gathered("tensor<fp16, [8, 4]> x", "tensor<int32, [2]>([3, 1])"),
        ),
        Case::new(Code::UnsupportedOnAne, unary("tan"), unary("atan")),
        Case::new(Code::LargeDimension, sized(65_537), sized(16_384)),
        Case::new(Code::LargeDimension, multiplied(40_000), multiplied(32_768)),
        Case::new(Code::WideKernel, pooled(9), pooled(8)),
        Case::new(Code::LargeWeights, weighted(600_000), weighted(8)).with(&[
            Code::ConstantSize,
            Code::TypeMismatch,
            Code::InvalidOperation,
        ]),
        // Four of these save more than 0.25 ms.
        Case::new(Code::SmallModel, convolutions(2), convolutions(4)).on("m4"),
        Case::new(Code::ManyStates, states(3), states(2)),
        Case::new(Code::QuantizedProduct, quantized_product(false), quantized_product(true)),
        Case::new(Code::InputGroupScale, scaled(2), scaled(1)),
        Case::new(Code::LateSlice, sliced(4), sliced(0)),
        Case::new(Code::LateSlice, sliced_after("relu"), sliced_after("relu6")),
        Case::new(Code::TransposedValues, attended("x = v, y = p"), attended("x = p, y = v")),
        Case::new(Code::SumOverflow, summed("sigmoid", "0x1p+14"), summed("sigmoid", "0x1p+13")),
        // `relu` has no upper bound, so nothing is known about the sum.
        Case::new(Code::SumOverflow, summed("relu6", "0x1p+13"), summed("relu", "0x1p+13")),
        Case::new(Code::SmallProbabilities, keys(4096), keys(4095)),
        Case::new(Code::LargeInteger, added(16_777_217), added(16_777_216)),
    ]
}

/// Whether a rule reports a model on a chip.
fn warns(code: Code, model: &Model, chip: &str) -> bool {
    let chip = Chip::parse(chip).expect("a chip");
    check_on(model, &[chip]).diagnostics.iter().any(|found| found.code == code)
}

#[test]
fn warnings_depend_on_chip() {
    for (code, model, with, without) in [
        (Code::LateSlice, sliced(4), "m2", "iphone13"),
        (Code::LargeDimension, sized(20_000), "m3", "m4"),
        (Code::UnsupportedOnAne, unary("sin"), "a14", "a15"),
        (Code::UnsupportedOnAne, unary("tan"), "m6", ""),
    ] {
        assert!(warns(code, &model, with), "{code} on {with}");
        assert!(without.is_empty() || !warns(code, &model, without), "{code} on {without}");
    }
}

#[test]
fn warns_about_small_models_only_for_named_chip() {
    let chip = Chip::parse("m4").expect("a chip");
    let report = check_on(&convolutions(2), &[chip]).to_string();
    let expected = "the Neural Engine saves at most 0.191 ms; a segment on it costs 0.25 ms";
    assert!(report.contains(expected), "{report}");
    let report = check(&convolutions(2));
    assert!(report.diagnostics.iter().all(|found| found.code != Code::SmallModel), "{report}");
}

#[test]
fn warnings_name_affected_chips() {
    let report = check(&sliced(4)).to_string();
    assert!(
        report.contains("begins at index 4 of the last axis (chips before A15 and M3)"),
        "{report}"
    );
    let report = check(&sized(20_000)).to_string();
    assert!(
        report.contains("too large for the Neural Engine of A12, A13, A14, A15, M1, M2, M3"),
        "{report}"
    );
}

#[test]
fn reports_each_unsupported_op_kind_once() {
    let ty = "tensor<fp16, [4]>";
    let body = format!(
        "{ty} a = tan(x = x);\n{ty} b = sinh(x = a);\n{ty} c = tan(x = b);\n{ty} y = tan(x = c);"
    );
    let report = check(&one("ios17", &format!("{ty} x"), &body));
    let found = report.diagnostics.iter().filter(|found| found.code == Code::UnsupportedOnAne);
    let messages: Vec<_> = found.map(|found| &*found.message).collect();
    assert_eq!(messages.len(), 2, "{report}");
    assert!(messages[0].ends_with("; so do 2 more operations"), "{report}");
    assert!(
        messages
            .iter()
            .all(|message| message.contains("unsupported on every Neural Engine; instead, ")),
        "{report}"
    );
}

#[test]
fn every_hazard_has_test_case() {
    let covered: Vec<_> = crate::all_cases().iter().map(|case| case.code.name()).collect();
    for hazard in HAZARDS {
        assert!(covered.contains(&hazard.code), "no case for {}", hazard.code);
    }
}

/// A model whose function needs iOS 26 is not checked for A12, which does not run it.
#[test]
fn opset_selects_checked_chips() {
    let of = |opset: &str| {
        let ty = "tensor<fp16, [4]>";
        let report = check(&one(opset, &format!("{ty} x"), &format!("{ty} y = sin(x = x);")));
        report.to_string()
    };
    assert!(of("ios17").contains("Neural Engine of A12, A13, A14, M1, M2;"), "{}", of("ios17"));
    assert!(of("ios26").contains("Neural Engine of A13, A14, M1, M2;"), "{}", of("ios26"));
}
