//! Tests that repeated keys, values and matrices are read without a copy, with the same results.

use coremill_engine::{Array, Engine, Hooks, LoadOptions, Numerics, Span, Value};
use coremill_mil::{model, text};
use coremill_tensor::DType;
use coremill_verify as verify;

/// A program, and whether its plan avoids all copies of repeated tensors.
struct Case {
    program: String,
    avoids_copies: bool,
}

/// Attention of 4 query heads and 2 key heads with a growing cache, decomposed or as one operation.
fn attention(queries: usize, mask: &str, fused: bool, read_elsewhere: bool) -> Case {
    let keys = 6;
    let inputs = format!(
        "tensor<fp32, [2, 4, {queries}, 8]> q, tensor<fp32, [2, 2, 5, 8]> pk, tensor<fp32, [2, 2, 1, 8]> nk, \
         tensor<fp32, [2, 2, 5, 8]> pv, tensor<fp32, [2, 2, 1, 8]> nv, tensor<fp32, {mask}> m"
    );
    let repeated = |from: &str, to: &str| {
        format!(
            "tensor<fp32, [2, 2, 1, {keys}, 8]> {to}_a = expand_dims(x = {from}, axes = tensor<int32, [1]>([2]));\n\
             tensor<fp32, [2, 2, 2, {keys}, 8]> {to}_b = tile(x = {to}_a, reps = tensor<int32, [5]>([1, 1, 2, 1, 1]));\n\
             tensor<fp32, [2, 4, {keys}, 8]> {to} = reshape(x = {to}_b, shape = tensor<int32, [4]>([2, 4, {keys}, 8]));\n"
        )
    };
    let join = |past: &str, new: &str, to: &str| {
        format!(
            "tensor<fp32, [2, 2, {keys}, 8]> {to} = concat(values = ({past}, {new}), axis = int32(2), \
             interleave = bool(false));\n"
        )
    };
    let scores = format!("tensor<fp32, [2, 4, {queries}, {keys}]>");
    let attended = match fused {
        true => format!(
            "tensor<fp32, [2, 4, {queries}, 8]> y = scaled_dot_product_attention(query = q, key = kk, value = vv, \
             attn_mask = m);\n"
        ),
        false => format!(
            "{scores} s = matmul(x = q, y = kk, transpose_x = bool(false), transpose_y = bool(true));\n\
             {scores} t = mul(x = s, y = fp32(0.3));\n\
             {scores} u = add(x = t, y = m);\n\
             {scores} w = softmax(x = u, axis = int32(-1));\n\
             tensor<fp32, [2, 4, {queries}, 8]> y = matmul(x = w, y = vv, transpose_x = bool(false), \
             transpose_y = bool(false));\n"
        ),
    };
    let outputs = if read_elsewhere { "y, k, v, kk" } else { "y, k, v" };
    let program = format!(
        "program(1.3)\n{{\n func main<ios18>({inputs}) {{\n{}{}{}{}{attended}}} -> ({outputs});\n}}\n",
        join("pk", "nk", "k"),
        join("pv", "nv", "v"),
        repeated("k", "kk"),
        repeated("v", "vv"),
    );
    Case { program, avoids_copies: !read_elsewhere }
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for fused in [false, true] {
        for (queries, mask) in [
            (1, "[1, 1, 1, 6]"),
            (1, "[2, 4, 1, 6]"),
            (3, "[3, 6]"),
            (3, "[2, 4, 3, 6]"),
            (9, "[1, 1, 9, 6]"),
        ] {
            for read_elsewhere in [false, true] {
                cases.push(attention(queries, mask, fused, read_elsewhere));
            }
        }
    }
    let whole = |program: &str| Case { program: program.to_owned(), avoids_copies: true };
    // One key head for all query heads, transposed keys, and a plain product.
    cases.push(whole(
        "program(1.3)\n{\n func main<ios18>(tensor<fp32, [1, 4, 1, 8]> q, tensor<fp32, [1, 1, 6, 8]> k) {\n\
         tensor<fp32, [1, 4, 6, 8]> kk = tile(x = k, reps = tensor<int32, [4]>([1, 4, 1, 1]));\n\
         tensor<fp32, [1, 4, 1, 8]> y = scaled_dot_product_attention(query = q, key = kk, value = kk);\n\
         } -> (y);\n}\n",
    ));
    cases.push(whole(
        "program(1.3)\n{\n func main<ios18>(tensor<fp32, [1, 4, 3, 8]> q, tensor<fp32, [1, 2, 8, 6]> k, \
         tensor<fp32, [1, 2, 6, 5]> v) {\n\
         tensor<fp32, [1, 2, 1, 8, 6]> a = expand_dims(x = k, axes = tensor<int32, [1]>([2]));\n\
         tensor<fp32, [1, 2, 2, 8, 6]> b = tile(x = a, reps = tensor<int32, [5]>([1, 1, 2, 1, 1]));\n\
         tensor<fp32, [1, 4, 8, 6]> kk = reshape(x = b, shape = tensor<int32, [4]>([1, 4, 8, 6]));\n\
         tensor<fp32, [1, 2, 1, 6, 5]> c = expand_dims(x = v, axes = tensor<int32, [1]>([2]));\n\
         tensor<fp32, [1, 2, 2, 6, 5]> d = tile(x = c, reps = tensor<int32, [5]>([1, 1, 2, 1, 1]));\n\
         tensor<fp32, [1, 4, 6, 5]> vv = reshape(x = d, shape = tensor<int32, [4]>([1, 4, 6, 5]));\n\
         tensor<fp32, [1, 4, 3, 6]> s = matmul(x = q, y = kk, transpose_x = bool(false), transpose_y = bool(false));\n\
         tensor<fp32, [1, 4, 3, 6]> w = softmax(x = s, axis = int32(3));\n\
         tensor<fp32, [1, 4, 3, 5]> y = matmul(x = w, y = vv, transpose_x = bool(false), transpose_y = bool(false));\n\
         tensor<fp32, [1, 4, 3, 6]> z = matmul(x = q, y = kk, transpose_x = bool(false), transpose_y = bool(false));\n\
         } -> (y, z);\n}\n",
    ));
    // Repetition as in coremltools: concatenated copies whose axes are then transposed.
    for adjacent_copies in [true, false] {
        let permutation = if adjacent_copies { "[1, 0, 2, 3, 4]" } else { "[0, 1, 2, 3, 4]" };
        let split_shape = if adjacent_copies { "[2, 2, 1, 6, 8]" } else { "[4, 1, 1, 6, 8]" };
        let program = format!(
            "program(1.3)\n{{\n func main<ios18>(tensor<fp32, [1, 4, 1, 8]> q, tensor<fp32, [1, 2, 6, 8]> k) {{\n\
             tensor<fp32, [2, 1, 6, 8]> a = transpose(x = k, perm = tensor<int32, [4]>([1, 0, 2, 3]));\n\
             tensor<fp32, [4, 1, 6, 8]> b = tile(x = a, reps = tensor<int32, [4]>([2, 1, 1, 1]));\n\
             tensor<fp32, {split_shape}> c = reshape(x = b, shape = tensor<int32, [5]>({split_shape}));\n\
             tensor<fp32, {split_shape}> d = transpose(x = c, perm = tensor<int32, [5]>({permutation}));\n\
             tensor<fp32, [4, 1, 6, 8]> e = reshape(x = d, shape = tensor<int32, [4]>([4, 1, 6, 8]));\n\
             tensor<fp32, [1, 4, 6, 8]> kk = transpose(x = e, perm = tensor<int32, [4]>([1, 0, 2, 3]));\n\
             tensor<fp32, [1, 4, 1, 8]> y = scaled_dot_product_attention(query = q, key = kk, value = kk);\n\
             }} -> (y);\n}}\n"
        );
        // Heads that are not consecutive are copied.
        cases.push(Case { program, avoids_copies: adjacent_copies });
    }
    // The batch axes of the repeated tensor are [1, 4], those of `q` are [4, 1].
    cases.push(Case {
        avoids_copies: false,
        ..whole(
            "program(1.3)\n{\n func main<ios18>(tensor<fp32, [4, 1, 3, 8]> q, tensor<fp32, [2, 1, 6, 8]> k) {\n\
             tensor<fp32, [2, 2, 6, 8]> a = tile(x = k, reps = tensor<int32, [4]>([1, 2, 1, 1]));\n\
             tensor<fp32, [1, 4, 6, 8]> b = reshape(x = a, shape = tensor<int32, [4]>([1, 4, 6, 8]));\n\
             tensor<fp32, [4, 4, 3, 6]> y = matmul(x = q, y = b, transpose_x = bool(false), transpose_y = bool(true));\n\
             } -> (y);\n}\n",
        )
    });
    // Repetitions within an axis are copied.
    let copied = "program(1.3)\n{\n func main<ios18>(tensor<fp32, [2, 3, 1]> x) {\n\
         tensor<fp32, [4, 3, 5]> y = tile(x = x, reps = tensor<int32, [3]>([2, 1, 5]));\n\
         tensor<fp32, [2, 9, 4]> z = tile(x = x, reps = tensor<int32, [3]>([1, 3, 4]));\n\
         tensor<fp32, [2, 3, 4]> w = tile(x = x, reps = tensor<int32, [3]>([1, 1, 4]));\n\
         } -> (y, z, w);\n}\n";
    cases.push(Case { program: copied.to_owned(), avoids_copies: false });
    cases
}

#[test]
fn tiled_operands_are_read_without_copy() {
    for Case { program, avoids_copies } in cases() {
        let parsed = text::parse(&program, &text::NoWeights)
            .unwrap_or_else(|error| panic!("{error}\n{program}"));
        let model = model::describe(parsed).expect("the program can be described");
        let verified = verify::verify(&model)
            .unwrap_or_else(|report| panic!("{}\n{program}", report.summary()));
        for (numerics, threads) in
            [(Numerics::Fast, 1), (Numerics::Fast, 3), (Numerics::Rounded, 1)]
        {
            let options = LoadOptions { numerics, threads, ..LoadOptions::default() };
            let engine = Engine::load(&verified, &options).expect("a loaded engine");
            let mut session = engine.session("main").expect("there is a function");
            let ports = session.inputs().to_vec();
            let inputs: Vec<(&str, Array)> = ports
                .iter()
                .enumerate()
                .map(|(seed, port)| {
                    let shape = port.default_shape().expect("shapes are fixed");
                    let count: usize = shape.iter().product();
                    let float = |at: usize| ((at * 7 + seed * 5) % 31) as f32 / 16.0 - 0.9;
                    let floats = (0..count).map(float).collect();
                    (port.name.as_str(), Array::floats(DType::Fp32, shape, floats))
                })
                .collect();
            let mut ignore = |_: &str, _: &str, _: &Value| {};
            let mut hooks = Hooks { observe: Some(&mut ignore), ..Hooks::default() };
            let expected = session.run_with(&inputs, &mut hooks).expect("it runs op by op");
            let mut spans: Vec<Span> = Vec::new();
            let mut hooks = Hooks { profile: Some(&mut spans), ..Hooks::default() };
            let found = session.run_with(&inputs, &mut hooks).expect("it runs as planned");
            for ((name, expected), (_, found)) in expected.0.iter().zip(&found.0) {
                let [expected, found] = [expected, found].map(|value| {
                    value.as_array().and_then(Array::as_floats).expect("outputs are floats")
                });
                let tolerance = if numerics == Numerics::Fast { 1e-5 } else { 4e-3 };
                let alike = expected.iter().zip(found).all(|(x, y)| (x - y).abs() < tolerance);
                assert!(
                    alike && expected.len() == found.len(),
                    "`{name}`: {expected:?}\n{found:?}\n{program}"
                );
            }
            let labels: Vec<&str> = spans.iter().map(|span| span.label.as_str()).collect();
            // In rounded mode decomposed attention is not fused, but its products still read
            // without a copy.
            assert_eq!(!labels.contains(&"tile"), avoids_copies, "{labels:?}\n{program}");
        }
    }
}
