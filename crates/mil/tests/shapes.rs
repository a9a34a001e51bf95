//! Inference that `inference.rs` cannot compare with coremltools: shapes through chains of operations, and hostile
//! constants.

use coremill_mil::infer::{MAX_KEPT, MAX_RANK, Scalar, analyze};
use coremill_mil::ir::Program;
use coremill_mil::text::{self, NoWeights};

/// Parses a program whose main function has these inputs and operations, one per line. The output is the
/// output of the last operation.
fn program(opset: &str, inputs: &str, body: &str) -> Program {
    let operations: String = body.lines().map(|line| format!("{line};\n")).collect();
    let last = body.lines().last().expect("an operation");
    let declared = last.split(" = ").next().expect("a result");
    let name = declared.rsplit(' ').next().expect("a name");
    let text = format!(
        "program(1.3)\n{{\nfunc main<{opset}>({inputs}) {{\n{operations}}} -> ({name});\n}}\n"
    );
    text::parse(&text, &NoWeights).unwrap_or_else(|error| panic!("{}\n{text}", error.render("")))
}

/// The type and the known elements of the last operation's output, or the first error.
fn inferred(opset: &str, inputs: &str, body: &str) -> String {
    let program = program(opset, inputs, body);
    let function = &program.functions[0];
    let (analysis, problems) = analyze(function);
    if let Some(problem) = problems.first() {
        return format!("refused: {}", problem.refusal);
    }
    let outputs = &function.block(function.body).outputs;
    let described = outputs.iter().map(|&value| {
        let outcome = analysis.outcome(value).expect("analyzed");
        let element = |element: &Scalar| match element {
            Scalar::Bool(value) => value.to_string(),
            Scalar::Int(value) => value.to_string(),
            Scalar::Float(value) => value.to_string(),
            Scalar::Text(text) => text.to_string(),
            Scalar::Symbolic(expr) => expr.to_string(),
            Scalar::Unknown => "?".to_owned(),
        };
        let elements = outcome.value.as_ref().filter(|value| value.elements.len() <= 16);
        let elements = elements.map(|value| value.elements.iter().map(element).collect::<Vec<_>>());
        match elements {
            Some(elements) => format!("{} = [{}]", outcome.ty, elements.join(", ")),
            None => outcome.ty.to_string(),
        }
    });
    described.collect::<Vec<_>>().join("; ")
}

const SHAPE: &str = "tensor<int32, [3]> s = shape(x = x)";

#[test]
fn tracks_shape_elements_beyond_coremltools() {
    let x = "tensor<fp32, [?, 4, ?]> x";
    let after = |operation: &str| inferred("ios18", x, &format!("{SHAPE}\n{operation}"));
    let cases = [
        (
            "tensor<int32, [3]> y = reverse(x = s, axes = tensor<int32, [1]>([0]))",
            "tensor<int32, [3]> = [s1, 4, s0]",
        ),
        (
            "tensor<int32, [1, 3]> y = expand_dims(x = s, axes = tensor<int32, [1]>([0]))",
            "tensor<int32, [1, 3]> = [s0, 4, s1]",
        ),
        (
            "tensor<int32, [2]> y = slice_by_size(x = s, begin = tensor<int32, [1]>([1]), size = tensor<int32, [1]>([-1]))",
            "tensor<int32, [2]> = [4, s1]",
        ),
        (
            "tensor<int32, [3]> y = cumsum(x = s, exclusive = bool(true))",
            "tensor<int32, [3]> = [0, s0, s0 + 4]",
        ),
        (
            "tensor<int32, [6]> y = tile(x = s, reps = tensor<int32, [1]>([2]))",
            "tensor<int32, [6]> = [s0, 4, s1, s0, 4, s1]",
        ),
        (
            "tensor<int32, [2]> y = gather_nd(x = s, indices = tensor<int32, [2, 1]>([[2], [-3]]))",
            "tensor<int32, [2]> = [s1, s0]",
        ),
        (
            "tensor<int32, [3]> y = slice_update(x = s, update = tensor<int32, [1]>([1]), begin = tensor<int32, [1]>([0]), end = tensor<int32, [1]>([1]))",
            "tensor<int32, [3]> = [1, 4, s1]",
        ),
        (
            "tensor<int32, [3]> y = band_part(x = s)",
            "refused: `x`: must have a rank of at least 2, got `tensor<int32, [3]>`",
        ),
        (
            "tensor<int32, [3, 1]> a = expand_dims(x = s, axes = tensor<int32, [1]>([1]))\n\
             tensor<int32, [1, 3]> y = transpose(x = a, perm = tensor<int32, [2]>([1, 0]))",
            "tensor<int32, [1, 3]> = [s0, 4, s1]",
        ),
        (
            "tensor<int32, [?]> y = range_1d(start = int32(2), end = int32(8), step = int32(3))",
            "tensor<int32, [2]> = [2, 5]",
        ),
    ];
    for (operation, expected) in cases {
        assert_eq!(after(operation), expected, "{operation}");
    }
}

#[test]
fn slices_of_unknown_axes_have_symbolic_extents() {
    let slice = |begin: &str, end: &str, more: &str| {
        let body = format!(
            "tensor<fp32, [?]> y = slice_by_index(x = x, begin = tensor<int32, [1]>([{begin}]), \
             end = tensor<int32, [1]>([{end}]){more})"
        );
        inferred("ios17", "tensor<fp32, [?]> x", &body)
    };
    let to_end = ", end_mask = tensor<bool, [1]>([true])";
    assert_eq!(slice("1", "0", to_end), "tensor<fp32, [max(s0 - 1, 0)]>");
    assert_eq!(slice("-2", "0", to_end), "tensor<fp32, [min(s0, 2)]>");
    assert_eq!(slice("0", "-1", ""), "tensor<fp32, [max(s0 - 1, 0)]>");
    assert_eq!(slice("0", "5", ""), "tensor<fp32, [min(s0, 5)]>");
    assert_eq!(slice("0", "1", ""), "tensor<fp32, [1]>");
    let halves = ", stride = tensor<int32, [1]>([2]), begin_mask = tensor<bool, [1]>([true]), \
                  end_mask = tensor<bool, [1]>([true])";
    assert_eq!(slice("0", "0", halves), "tensor<fp32, [-floor((-s0)/(2))]>");
}

#[test]
fn causal_mask_shape_follows_sequence_length() {
    let body = "tensor<int32, [2]> s = shape(x = x)\n\
        int32 n = gather(x = s, indices = int32(1))\n\
        tensor<int32, [?]> r = range_1d(start = int32(0), end = n, step = int32(1))\n\
        tensor<int32, [?, 1]> c = expand_dims(x = r, axes = tensor<int32, [1]>([1]))\n\
        tensor<bool, [?, ?]> y = less_equal(x = r, y = c)";
    assert_eq!(inferred("ios17", "tensor<fp32, [?, ?]> x", body), "tensor<bool, [s1, s1]>");
}

#[test]
fn hostile_constants_are_rejected_or_give_valid_shapes() {
    let x = "tensor<fp32, [?, 4]> x";
    let cases = [
        (
            "tensor<fp32, [?, ?]> y = tile(x = x, reps = tensor<int32, [2]>([2147483647, 2147483647]))",
            "tensor<fp32, [2147483647*s0, 8589934588]>",
        ),
        (
            "tensor<int32, [?]> y = range_1d(start = int32(-2147483648), end = int32(2147483647), step = int32(1))",
            "tensor<int32, [4294967295]>",
        ),
        (
            "tensor<fp32, [?]> y = range_1d(start = fp32(0), end = fp32(0x1p60), step = fp32(0x1p-60))",
            "refused: the range from 0 to ",
        ),
        (
            "tensor<fp32, [?, ?]> y = pad(x = x, pad = tensor<int32, [2]>([2147483647, 2147483647]))",
            "tensor<fp32, [s0, 4294967298]>",
        ),
        (
            "tensor<fp32, [?, ?]> y = split(x = x, num_splits = int32(2147483647), axis = int32(0))",
            "refused: `num_splits`: splits into 2147483647 parts, but 1 outputs are declared",
        ),
        (
            "tensor<fp32, [?, ?]> y = fill(shape = tensor<int32, [2]>([2147483647, 2147483647]))",
            "tensor<fp32, [2147483647, 2147483647]>",
        ),
        (
            "tensor<int32, [?]> y = one_hot(indices = int32(0), one_hot_vector_size = int32(2147483647))",
            "tensor<int32, [2147483647]>",
        ),
        (
            "tensor<fp32, [?, ?]> y = reshape(x = x, shape = tensor<int32, [3]>([2147483647, 2147483647, -1]))",
            "tensor<fp32, [2147483647, 2147483647, floor((4*s0)/(4611686014132420609))]>",
        ),
        (
            "tensor<fp32, [?, ?]> y = slice_by_index(x = x, begin = tensor<int32, [2]>([-2147483648, 3]), end = tensor<int32, [2]>([2147483647, -2147483648]), stride = tensor<int32, [2]>([2147483647, -2147483648]))",
            "tensor<fp32, [",
        ),
        (
            "tensor<fp32, [?, ?]> y = transpose(x = x, perm = tensor<int32, [2]>([-2147483648, 2147483647]))",
            "refused: `perm`: axis -2147483648 is outside",
        ),
        (
            "tensor<fp32, [?, ?]> y = gather(x = x, indices = tensor<int32, [1]>([0]), axis = int32(-2147483648))",
            "refused: `axis`: axis -2147483648 is outside",
        ),
    ];
    for (operation, expected) in cases {
        let found = inferred("ios17", x, operation);
        assert!(found.starts_with(expected), "{operation}\n{found}");
    }
}

#[test]
fn rejects_repeated_rank_doubling() {
    let mut body = String::new();
    let mut last = "x".to_owned();
    for step in 0..40 {
        body += &format!("tensor<int32, [1]> y{step} = gather(x = {last}, indices = {last})\n");
        last = format!("y{step}");
    }
    let found = inferred("ios17", "tensor<int32, [1, 1]> x", body.trim_end());
    assert_eq!(
        found,
        format!("refused: the result must have a rank of at most {MAX_RANK}, got 33")
    );
}

#[test]
fn total_folded_elements_are_bounded() {
    let fill = "fill(shape = tensor<int32, [1]>([4096]), value = int32(1))";
    let count = MAX_KEPT / 4096 + 8;
    let lines = (0..count).map(|step| format!("tensor<int32, [4096]> y{step} = {fill}"));
    let body = lines.collect::<Vec<_>>().join("\n");
    let program = program("ios17", "tensor<fp32, [1]> x", &body);
    let function = &program.functions[0];
    let (analysis, problems) = analyze(function);
    assert_eq!(problems, []);
    let kept = function.block(function.body).ops.iter().filter(|&&op| {
        let output = function.op(op).outputs[0];
        analysis.folded(output).is_some()
    });
    assert_eq!(kept.count(), MAX_KEPT / 4096);
}

#[test]
fn errors_state_found_and_accepted_values() {
    let x = "tensor<fp32, [2, 3]> x";
    let cases = [
        (
            "tensor<fp32, [?]> y = reshape(x = x, shape = tensor<int32, [2]>([4, 2]))",
            "refused: `shape`: results in `tensor<fp32, [4, 2]>` with 8 elements, but `x` is `tensor<fp32, [2, 3]>`, which has 6",
        ),
        (
            "tensor<fp32, [?]> y = reshape(x = x, shape = tensor<int32, [2]>([4, -1]))",
            "refused: `shape`: [4, -1] cannot hold the 6 elements of `tensor<fp32, [2, 3]>`: it requires 4, or a multiple",
        ),
        (
            "tensor<fp32, [?]> y = concat(values = (x, tensor<fp32, [1, 2]>([[0x0p0, 0x0p0]])), axis = int32(0))",
            "refused: `values`: are `tensor<fp32, [2, 3]>` and `tensor<fp32, [1, 2]>`, which differ along axis 1; only axis 0, along which they are joined, may differ",
        ),
        (
            "tensor<fp32, [?]> y = slice_by_index(x = x, begin = tensor<int32, [2]>([0, 0]), end = tensor<int32, [2]>([1, 1]), stride = tensor<int32, [2]>([0, 1]))",
            "refused: `stride`: must not contain 0",
        ),
        (
            "tensor<fp32, [?]> y = topk(x = x, k = int32(4))",
            "refused: `k`: is 4, but `x` has only 3 elements along axis 1",
        ),
        (
            "tensor<fp32, [?]> y = scatter(data = x, indices = tensor<int32, [1]>([0]), updates = tensor<fp32, [3]>([0x0p0, 0x0p0, 0x0p0]))",
            "refused: `updates`: is `tensor<fp32, [3]>`; expected `tensor<fp32, [1, 3]>` from `data` and `indices`",
        ),
        (
            "tensor<fp32, [?]> y = gather(x = x, indices = tensor<int32, [1]>([2]), validate_indices = bool(true))",
            "refused: `indices`: contains 2, but axis 0 has 2 elements, and `validate_indices` requires indices that are not negative and less than this size",
        ),
    ];
    for (operation, expected) in cases {
        assert_eq!(inferred("ios17", x, operation), expected);
    }
}
