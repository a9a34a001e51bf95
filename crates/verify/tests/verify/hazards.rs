//! Rules that result in warnings.

use coremill_mil::ir::{Constant, ConstantData};
use coremill_mil::model::Model;
use coremill_tensor::DType;
use coremill_verify::{Code, check};

use crate::cases::{Case, main, model, relu, undescribed};

pub(crate) fn one(opset: &str, inputs: &str, body: &str) -> Model {
    model(&main(opset, inputs, body, "y"))
}

fn ranged(feature_shapes: &str) -> Model {
    let text =
        main("ios17", "tensor<fp16, [?, 4]> x", "tensor<fp16, [?, 4]> y = relu(x = x);", "y");
    let attribute = format!(
        "[FlexibleShapeInformation = tuple<tuple<string, dict<string, tensor<int32, [?]>>>, \
         tuple<string, {feature_shapes}))]"
    );
    model(&text.replace(") {\n", &format!(") {attribute} {{\n")))
}

fn relu_of(ty: &str) -> Model {
    one("ios17", &format!("{ty} x"), &format!("{ty} y = relu(x = x);"))
}

fn added(dtype: &str, value: &str) -> Model {
    one(
        "ios17",
        &format!("tensor<{dtype}, [4]> x"),
        &format!(
            "{dtype} c = const()[val = {dtype}({value})];\ntensor<{dtype}, [4]> y = add(x = x, y = c);"
        ),
    )
}

fn gathered(opset: &str, indices: &str, ty: &str, out: &str) -> Model {
    one(
        opset,
        "tensor<fp16, [8, 4]> x",
        &format!(
            "int32 axis = const()[val = int32(0)];\n\
             {ty} i = const()[val = {ty}({indices})];\n\
             {out} y = gather(axis = axis, indices = i, x = x);"
        ),
    )
}

fn sliced(size: &str) -> Model {
    one(
        "ios17",
        "tensor<fp16, [8, 4]> x",
        &format!(
            "tensor<int32, [2]> b = const()[val = tensor<int32, [2]>([0, 0])];\n\
             tensor<int32, [2]> s = const()[val = tensor<int32, [2]>({size})];\n\
             tensor<fp16, [8, 4]> y = slice_by_size(begin = b, size = s, x = x);"
        ),
    )
}

fn convolved(kernel: u64) -> Model {
    let out = 128 - kernel + 1;
    one(
        "ios17",
        "tensor<fp16, [1, 1, 128, 128]> x",
        &format!(
            r#"tensor<fp16, [1, 1, {kernel}, 1]> w = const()[val = tensor<fp16, [1, 1, {kernel}, 1]>(BLOBFILE(path = string("@model_path/weights/weight.bin"), offset = uint64(64)))];
            tensor<fp16, [1, 1, {out}, 128]> y = conv(weight = w, x = x);"#
        ),
    )
}

fn attention(dtype: &str, batch: u64) -> Model {
    let ty = format!("tensor<{dtype}, [{batch}, 2, 8, 16]>");
    one(
        "ios18",
        &format!("{ty} q, {ty} k, {ty} v"),
        &format!("{ty} y = scaled_dot_product_attention(key = k, query = q, value = v);"),
    )
}

fn state(last: u64) -> Model {
    let ty = format!("tensor<fp16, [1, {last}]>");
    one(
        "ios18",
        &format!("state<{ty}> s, {ty} x"),
        &format!("{ty} old = read_state(input = s);\n{ty} y = add(x = old, y = x);"),
    )
}

fn reshaped_slice(begin: u64) -> Model {
    one(
        "ios17",
        "tensor<fp16, [2, 8]> x",
        &format!(
            "tensor<int32, [2]> b = const()[val = tensor<int32, [2]>([0, {begin}])];\n\
             tensor<int32, [2]> s = const()[val = tensor<int32, [2]>([2, 4])];\n\
             tensor<fp16, [2, 4]> t = slice_by_size(begin = b, size = s, x = x);\n\
             tensor<int32, [1]> r = const()[val = tensor<int32, [1]>([8])];\n\
             tensor<fp16, [8]> y = reshape(shape = r, x = t);"
        ),
    )
}

fn reduced(inner: &str) -> Model {
    one(
        "ios17",
        "tensor<fp16, [2, 3]> x",
        &format!(
            "tensor<int32, [2]> p = const()[val = tensor<int32, [2]>([1, 0])];\n\
             tensor<int32, [1]> a = const()[val = tensor<int32, [1]>([0])];\n\
             bool k = const()[val = bool(true)];\n\
             tensor<fp16, [3, 2]> t = {inner};\n\
             tensor<fp16, [1, 2]> r = reduce_max(axes = a, keep_dims = k, x = t);\n\
             tensor<fp16, [2, 1]> y = transpose(perm = p, x = r);"
        ),
    )
}

fn batch_norm(second: &str) -> Model {
    let ty = "tensor<fp16, [1, 1, 4, 4]>";
    one(
        "ios17",
        &format!("{ty} x"),
        &format!(
            r#"tensor<fp16, [1, 1, 1, 1]> w = const()[val = tensor<fp16, [1, 1, 1, 1]>([[[[0x1p+0]]]])];
            fp16 c = const()[val = fp16(0x1.8p+0)];
            {ty} t0 = conv(weight = w, x = x);
            {ty} t1 = sub(x = t0, y = c);
            {ty} t2 = {second}(x = t1, y = c);
            {ty} t3 = mul(x = t2, y = c);
            {ty} y = add(x = t3, y = c);"#
        ),
    )
}

fn cast(value: &str) -> Model {
    one(
        "ios17",
        "tensor<fp16, [4]> x",
        &format!(
            r#"fp32 c = const()[val = fp32({value})];
            string t = const()[val = string("fp16")];
            fp16 h = cast(dtype = t, x = c);
            tensor<fp16, [4]> y = add(x = x, y = h);"#
        ),
    )
}

fn epsilon(value: &str) -> Model {
    one(
        "ios17",
        "tensor<fp16, [4]> x",
        &format!(
            "fp16 e = const()[val = fp16({value})];\ntensor<fp16, [4]> y = rsqrt(epsilon = e, x = x);"
        ),
    )
}

fn norm(square: &str) -> Model {
    one(
        "ios17",
        "tensor<fp16, [4]> x",
        &format!(
            "tensor<int32, [1]> a = const()[val = tensor<int32, [1]>([0])];\n\
             bool k = const()[val = bool(true)];\n\
             tensor<fp16, [4]> s = {square};\n\
             tensor<fp16, [1]> y = reduce_mean(axes = a, keep_dims = k, x = s);"
        ),
    )
}

fn half_indices(rows: u64) -> Model {
    one(
        "ios17",
        &format!("tensor<fp16, [{rows}, 4]> x, tensor<fp16, [3]> i"),
        r#"string t = const()[val = string("int32")];
        tensor<int32, [3]> j = cast(dtype = t, x = i);
        int32 axis = const()[val = int32(0)];
        tensor<fp16, [3, 4]> y = gather(axis = axis, indices = j, x = x);"#,
    )
}

fn weighted(used: &str) -> Model {
    one(
        "ios17",
        "tensor<fp16, [4]> x",
        &format!(
            r#"tensor<fp16, [4]> w = const()[val = tensor<fp16, [4]>(BLOBFILE(path = string("@model_path/weights/weight.bin"), offset = uint64(64)))];
            tensor<fp16, [4]> y = {used};"#
        ),
    )
}

fn looped() -> Model {
    one(
        "ios17",
        "tensor<fp16, [1]> x",
        r#"fp16 limit = const()[val = fp16(0x1p+3)];
        tensor<fp16, [1]> y = while_loop(loop_vars = (x))
            (tensor<fp16, [1]> a) {
                tensor<bool, [1]> less_0 = less(x = a, y = limit);
                tensor<int32, [1]> axes = const()[val = tensor<int32, [1]>([0])];
                bool more = squeeze(axes = axes, x = less_0);
            } -> (more)
            (tensor<fp16, [1]> b) {
                tensor<fp16, [1]> next = add(x = b, y = limit);
            } -> (next);"#,
    )
}

fn non_zero() -> Model {
    one("ios17", "tensor<fp16, [4]> x", "tensor<int32, [?, 1]> y = non_zero(x = x);")
}

/// A norm of `x` divided by one of these: `two`, a constant; `a`, the mean of its magnitudes; `l`, its largest magnitude;
/// `m`, its largest magnitude or more.
fn divided_norm(divisor: &str) -> Model {
    let row = "tensor<fp16, [2, 1]>";
    one(
        "ios17",
        "tensor<fp16, [2, 8]> x",
        &format!(
            "tensor<int32, [1]> axes = const()[val = tensor<int32, [1]>([-1])];\n\
             bool k = const()[val = bool(true)];\n{row} two = const()[val = {row}([[0x1p+1], [0x1p+1]])];\n\
             fp16 e = const()[val = fp16(0x1p-10)];\n\
             tensor<fp16, [2, 8]> p = abs(x = x);\n\
             {row} a = reduce_mean(axes = axes, keep_dims = k, x = p);\n\
             {row} l = reduce_max(axes = axes, keep_dims = k, x = p);\n\
             {row} m = maximum(x = l, y = e);\n\
             tensor<fp16, [2, 8]> d = real_div(x = x, y = {divisor});\n\
             tensor<fp16, [2, 8]> s = square(x = d);\n\
             {row} y = reduce_mean(axes = axes, keep_dims = k, x = s);"
        ),
    )
}

/// `clip` with an infinite upper bound.
fn clipped() -> Model {
    one(
        "ios17",
        "tensor<fp16, [4]> x",
        "fp16 a = const()[val = fp16(0x0p+0)];\nfp16 b = const()[val = fp16(inf)];\n\
         tensor<fp16, [4]> y = clip(alpha = a, beta = b, x = x);",
    )
}

/// `clip` with an infinite upper bound, which is also an operand of `add`.
fn added_clip() -> Model {
    one(
        "ios17",
        "tensor<fp16, [4]> x",
        "fp16 a = const()[val = fp16(0x0p+0)];\nfp16 b = const()[val = fp16(inf)];\n\
         tensor<fp16, [4]> c = clip(alpha = a, beta = b, x = x);\n\
         tensor<fp16, [4]> y = add(x = c, y = b);",
    )
}

/// A program that adds the mask `value` to its input.
fn masked(value: &str) -> Model {
    added("fp16", value)
}

pub(crate) fn cases() -> Vec<Case> {
    let shapes = r#"dict<string, list<tensor<int32, [2]>, ?>>>>((("DefaultShapes", {{"x", [2, 4]}}), ("RangeDims", {{"x", [[1, 8], [4, 4]]}})"#;
    let choices = r#"dict<string, dict<string, tensor<int32, [?]>>>>>((("DefaultShapes", {{"x", [2, 4]}}), ("EnumeratedShapes", {{"a", {{"x", [2, 4]}}}, {"b", {{"x", [3, 4]}}}})"#;
    vec![
        Case::new(Code::RangedDimension, ranged(shapes), ranged(choices)),
        Case::new(
            Code::HighRank,
            relu_of("tensor<fp16, [1, 1, 1, 1, 4]>"),
            relu_of("tensor<fp16, [1, 1, 1, 4]>"),
        ),
        Case::new(
            Code::SinglePrecision,
            relu_of("tensor<fp32, [4]>"),
            relu_of("tensor<fp16, [4]>"),
        ),
        Case::new(Code::IntegerArithmetic, added("int32", "2"), added("fp16", "0x1p+1")),
        Case::new(
            Code::GatherForSlice,
            gathered("ios16", "3", "int32", "tensor<fp16, [4]>"),
            gathered("ios16", "[3, 1]", "tensor<int32, [2]>", "tensor<fp16, [2, 4]>"),
        ),
        Case::new(Code::SliceToEnd, sliced("[8, -1]"), sliced("[8, 4]")),
        Case::new(Code::DataDependentShape, non_zero(), relu()),
        Case::new(Code::Loop, looped(), relu()),
        Case::new(Code::WideKernel, convolved(30), convolved(29)),
        Case::new(
            Code::NegativeIndices,
            gathered("ios17", "[3, -1]", "tensor<int32, [2]>", "tensor<fp16, [2, 4]>"),
            gathered("ios16", "[3, -1]", "tensor<int32, [2]>", "tensor<fp16, [2, 4]>"),
        ),
        Case::new(Code::HalfAttention, attention("fp16", 1), attention("fp32", 1)),
        Case::new(Code::AttentionBatch, attention("fp32", 10), attention("fp32", 9)),
        Case::new(Code::StateAlignment, state(48), state(64)),
        Case::new(Code::SliceReshape, reshaped_slice(4), reshaped_slice(0)),
        Case::new(
            Code::TransposedReduction,
            reduced("transpose(perm = p, x = x)"),
            reduced("reshape(shape = tensor<int32, [2]>([3, 2]), x = x)"),
        ),
        Case::new(Code::UnfoldedBatchNorm, batch_norm("real_div"), batch_norm("mul")),
        Case::new(Code::NonFinite, added_clip(), clipped()),
        Case::new(Code::NonFinite, masked("-inf"), masked("-0x1.ffcp+15")),
        Case::new(Code::HalfOverflow, cast("-0x1.fffffep+127"), cast("-0x1.ffcp+15")),
        Case::new(Code::VanishingEpsilon, epsilon("0x0p+0"), epsilon("0x1p-14")),
        Case::new(Code::SquareOverflow, norm("mul(x = x, y = x)"), norm("relu(x = x)")),
        Case::new(Code::SquareOverflow, norm("square(x = x)"), norm("abs(x = x)")),
        Case::new(Code::SquareOverflow, divided_norm("two"), divided_norm("m")),
        Case::new(Code::SquareOverflow, divided_norm("a"), divided_norm("l")),
        Case::new(Code::HalfIndices, half_indices(4096), half_indices(2048)),
        Case::new(Code::UnusedWeight, weighted("relu(x = x)"), weighted("add(x = x, y = w)")),
    ]
}

#[test]
fn groups_repeated_warnings_into_one() {
    let ty = "tensor<fp32, [4]>";
    let body = format!("{ty} a = relu(x = x);\n{ty} b = relu(x = a);\n{ty} y = relu(x = b);");
    let report = check(&one("ios17", &format!("{ty} x"), &body));
    let found: Vec<_> =
        report.diagnostics.iter().filter(|found| found.code == Code::SinglePrecision).collect();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].message, "computes in `fp32`; so do 2 more operations");
}

#[test]
fn finds_infinities_in_large_masks() {
    let mut model = masked("0x1p+0");
    let function = &mut model.program.functions[0];
    let op = function.block(function.body).ops[0];
    let value = function.op_mut(op).attributes.get_mut("val").expect("a constant has a value");
    let mut halves = vec![0_u8; 2 * 5000];
    halves[9998..].copy_from_slice(&half::f16::NEG_INFINITY.to_le_bytes());
    *value = Constant::bytes(DType::Fp16, &[5000], halves);
    assert!(matches!(value.data, ConstantData::Bytes(_)));
    let report = check(&undescribed_program(model));
    assert!(report.to_string().contains("`val`: holds infinities: 1"), "{report}");
}

fn undescribed_program(model: Model) -> Model {
    Model { description: Default::default(), ..model }
}

#[test]
fn reports_open_dimension_without_description() {
    let text =
        main("ios17", "tensor<fp16, [?, 4]> x", "tensor<fp16, [?, 4]> y = relu(x = x);", "y");
    let report = coremill_verify::check_program(&undescribed(&text).program);
    assert!(report.to_string().contains("dimension 0 is open"), "{report}");
}
