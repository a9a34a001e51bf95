//! Lists of the operations that the Neural Engine runs always, never, and under a condition.
//!
//! The lists are from the public study 751K/Apple-Neural-Engine-Microarchitecture-Study-M6 of October 2026 (M4, macOS 27.0.1,
//! plans of Core ML). The differences between generations are from sbryngelson/ane-guide, read in November 2026. Each row is
//! the last statement of a small program.

use coremill_inspect::placement::{Device, Reason};

use super::{on, read};

const INPUTS: &str = "tensor<fp16, [1, 8, 16, 16]> x, tensor<fp16, [1, 8, 16, 16]> z, \
                      tensor<fp16, [1, 2, 4, 8, 8]> five, tensor<fp16, [16]> one, \
                      tensor<fp16, [4, 8]> two, tensor<fp16, [2, 4, 8]> three, \
                      tensor<int32, [4]> i, tensor<int32, [1, 8, 16, 16]> n, tensor<int32, [2, 2]> pairs, \
                      tensor<fp32, [1, 8, 16, 16]> single";

/// Operations that the Neural Engine of an M4 runs.
const ALWAYS: &str = "
relu(x = x)
relu(x = one)
relu(x = two)
relu(x = three)
relu(x = five)
sin(x = x)
cos(x = x)
atan(x = x)
erf(x = x)
gelu(x = x, mode = string(\"EXACT\"))
gelu(x = x, mode = string(\"TANH_APPROXIMATION\"))
gelu(x = x, mode = string(\"SIGMOID_APPROXIMATION\"))
silu(x = x)
softplus(x = x)
log(x = x)
rsqrt(x = x)
inverse(x = x)
exp(x = x)
exp2(x = x)
sign(x = x)
round(x = x)
sqrt(x = x)
sigmoid(x = x)
tanh(x = x)
abs(x = x)
add(x = x, y = fp16(0x1p+0))
mul(x = x, y = z)
sub(x = x, y = z)
real_div(x = x, y = z)
floor_div(x = x, y = z)
maximum(x = x, y = z)
equal(x = x, y = z)
greater(x = x, y = z)
less_equal(x = x, y = z)
tensor<bool, [?]> c = greater(x = x, y = z); select(a = x, b = z, cond = c)
tensor<bool, [?]> c = greater(x = x, y = z); tensor<bool, [?]> d = less(x = x, y = z); logical_and(x = c, y = d)
W[8, 4, 3] conv(x = three, weight = w)
W[16, 8, 3, 3] conv(x = x, weight = w)
W[2, 2, 3, 3, 3] conv(x = five, weight = w)
W[8, 1, 3, 3] conv(x = x, weight = w, groups = int32(8))
W[16, 4, 3, 3] conv(x = x, weight = w, groups = int32(2))
W[8, 8, 3, 3] conv(x = x, weight = w, dilations = tensor<int32, [2]>([2, 2]))
W[8, 8, 5, 5] conv(x = x, weight = w, strides = tensor<int32, [2]>([5, 5]))
conv(x = x, weight = x)
W[8, 4, 3, 3] conv_transpose(x = x, weight = w)
W[4, 4, 3] conv_transpose(x = three, weight = w)
matmul(x = x, y = z)
scaled_dot_product_attention(query = x, key = z, value = x)
tensor<fp16, [?]> m = relu(x = x); scaled_dot_product_attention(query = x, key = z, value = x, attn_mask = m)
softmax(x = x, axis = int32(1))
softmax(x = x, axis = int32(-1))
layer_norm(x = x, axes = tensor<int32, [1]>([-1]))
l2_norm(x = x)
local_response_norm(x = x, size = int32(3))
reduce_sum(x = x, axes = tensor<int32, [1]>([1]))
reduce_mean(x = x, axes = tensor<int32, [2]>([2, 3]))
reduce_max(x = x, axes = tensor<int32, [1]>([-1]))
reduce_log_sum_exp(x = x, axes = tensor<int32, [1]>([1]))
reshape(x = x, shape = tensor<int32, [5]>([1, 2, 4, 16, 16]))
transpose(x = five, perm = tensor<int32, [5]>([0, 3, 1, 4, 2]))
concat(values = (x, z), axis = int32(1), interleave = bool(false))
concat(values = (x, z), axis = int32(1), interleave = bool(true))
concat(values = (x, z), axis = int32(3), interleave = bool(false))
stack(values = (x, z), axis = int32(0))
reverse(x = x, axes = tensor<int32, [1]>([3]))
tile(x = x, reps = tensor<int32, [4]>([1, 2, 1, 1]))
slice_by_index(x = x, begin = tensor<int32, [4]>([0, 0, 0, 0]), end = tensor<int32, [4]>([1, 8, 16, 16]), stride = tensor<int32, [4]>([1, 2, 1, 3]))
slice_by_size(x = x, begin = tensor<int32, [4]>([0, 2, 0, 0]), size = tensor<int32, [4]>([1, 4, 16, 16]))
pad(x = x, pad = tensor<int32, [4]>([1, 1, 1, 1]), mode = string(\"constant\"))
pad(x = x, pad = tensor<int32, [4]>([1, 1, 1, 1]), mode = string(\"reflect\"))
pad(x = x, pad = tensor<int32, [4]>([1, 1, 1, 1]), mode = string(\"replicate\"))
space_to_depth(x = x, block_size = int32(2))
depth_to_space(x = x, block_size = int32(2))
pixel_shuffle(x = x, upscale_factor = int32(2))
pixel_unshuffle(x = x, downscale_factor = uint32(2))
upsample_bilinear(x = x, scale_factor_height = fp32(0x1p+1), scale_factor_width = fp32(0x1p+1))
upsample_nearest_neighbor(x = x, scale_factor_height = fp32(0x1p+1), scale_factor_width = fp32(0x1p+1))
resize(x = x, shape = tensor<int32, [2]>([8, 8]), resized_dims = uint32(2), interpolation_mode = string(\"LINEAR\"), sampling_mode = string(\"DEFAULT\"))
gather(x = x, indices = tensor<int32, [2]>([1, 3]), axis = int32(1), validate_indices = bool(false))
gather_along_axis(x = x, indices = n, axis = int32(1), validate_indices = bool(false))
avg_pool(x = x, kernel_sizes = tensor<int32, [2]>([14, 14]), pad_type = string(\"valid\"), exclude_padding_from_average = bool(false))
max_pool(x = x, kernel_sizes = tensor<int32, [2]>([8, 8]), pad_type = string(\"valid\"))
max_pool(x = x, kernel_sizes = tensor<int32, [2]>([9, 1]), pad_type = string(\"valid\"))
cast(x = single, dtype = string(\"fp16\"))
cast(x = x, dtype = string(\"fp32\"))
topk(x = x, k = int32(4), axis = int32(-1), ascending = bool(false), sort = bool(true), return_indices = bool(true), output_indices_dtype = string(\"int32\"))
";

/// Operations that no Neural Engine runs, each with the reason.
const NEVER: &str = "
int32 add(x = n, y = n)
int32 mul(x = n, y = n)
int32 matmul(x = n, y = n)
int32 cast(x = x, dtype = string(\"int32\"))
int32 cast(x = n, dtype = string(\"fp16\"))
no path: cast(x = x, dtype = string(\"int8\"))
int32 reduce_argmax(x = x, axis = int32(1))
int32 argsort(x = x)
no path: gather(x = x, indices = i, axis = int32(1), validate_indices = bool(false))
no path: gather_nd(x = two, indices = pairs, batch_dims = int32(0), validate_indices = bool(false))
no path: W[100, 8] gather(x = w, indices = i, axis = int32(0), validate_indices = bool(false))
no path: scatter(data = two, indices = i, updates = two, axis = int32(0), mode = string(\"add\"), validate_indices = bool(false))
no path: scatter_along_axis(data = x, indices = n, updates = x, axis = int32(1), mode = string(\"add\"), validate_indices = bool(false))
no path: asin(x = x)
no path: acos(x = x)
no path: atanh(x = x)
no path: tan(x = x)
no path: sinh(x = x)
no path: cosh(x = x)
no path: mod(x = x, y = z)
no path: reduce_prod(x = x, axes = tensor<int32, [1]>([1]))
no path: cumsum(x = x, axis = int32(0))
no path: cumsum(x = x, axis = int32(3))
no path: band_part(x = x, lower = int32(2), upper = int32(0))
no path: one_hot(indices = i, one_hot_vector_size = int32(8), on_value = fp16(0x1p+0), off_value = fp16(0x0p+0))
no path: non_zero(x = x)
no path: random_normal(shape = tensor<int32, [2]>([4, 4]), mean = fp16(0x0p+0), stddev = fp16(0x1p+0))
no path: sliding_windows(x = x, axis = int32(3), size = int32(4))
no path: slice_by_size(x = x, begin = i, size = tensor<int32, [4]>([1, 4, 4, 4]))
no path: slice_by_index(x = x, begin = i, end = tensor<int32, [4]>([1, 8, 16, 16]), end_mask = tensor<bool, [4]>([true, true, true, true]))
no path: reverse_sequence(x = two, lengths = i, batch_axis = int32(0), seq_axis = int32(1))
no path: R[8] rnn(x = three, initial_h = h, weight_ih = u, weight_hh = u, direction = string(\"forward\"), output_sequence = bool(true))
no path: R[24] gru(x = three, initial_h = h, weight_ih = u, weight_hh = u, direction = string(\"forward\"), output_sequence = bool(true))
no path: R[32] lstm(x = three, initial_h = c, initial_c = c, weight_ih = u, weight_hh = u, direction = string(\"forward\"), output_sequence = bool(true))
limit: W[8, 8, 17, 17] P[24, 24] conv(x = p, weight = w)
limit: W[8, 8, 1, 31] P[40, 40] conv(x = p, weight = w)
limit: max_pool(x = x, kernel_sizes = tensor<int32, [2]>([15, 15]), pad_type = string(\"valid\"))
limit: max_pool(x = x, kernel_sizes = tensor<int32, [2]>([1, 9]), pad_type = string(\"valid\"))
";

/// The body of a row: `W[shape]` declares the weight `w`, `R[rows]` those of a recurrent layer, `P[height, width]` a resized `p`.
fn body(row: &str) -> String {
    let mut row = row.trim().to_owned();
    let mut body = String::new();
    let weight = |name: &str, shape: &str| {
        format!(
            "tensor<fp16, [{shape}]> {name} = const()[val = tensor<fp16, [{shape}]>(BLOBFILE(path = \
             string(\"@model_path/weights/weight.bin\"), offset = uint64(64)))];\n"
        )
    };
    while let (Some(mark), true) = (row.chars().next(), row.chars().nth(1) == Some('[')) {
        let (shape, rest) = row[2..].split_once("] ").expect("a closing bracket");
        body += &match mark {
            'W' => weight("w", shape),
            'R' => [weight("h", "4, 8"), weight("c", "4, 8"), weight("u", &format!("{shape}, 8"))]
                .concat(),
            _ => format!(
                "tensor<fp16, [?]> p = resize(x = x, shape = tensor<int32, [2]>([{shape}]), resized_dims = uint32(2), \
                 interpolation_mode = string(\"LINEAR\"), sampling_mode = string(\"DEFAULT\"));\n"
            ),
        };
        row = rest.to_owned();
    }
    let (before, last) = row.rsplit_once("; ").map_or(("", &*row), |(before, last)| (before, last));
    if !before.is_empty() {
        body += &format!("{before};\n");
    }
    let count = match last.split('(').next() {
        Some("lstm") => 3,
        Some("rnn" | "gru" | "topk") => 2,
        _ => 1,
    };
    let outputs =
        ["y", "y_1", "y_2"][..count].iter().map(|name| format!("tensor<fp16, [?]> {name}"));
    body + &format!("{} = {last};\n", outputs.collect::<Vec<_>>().join(", "))
}

/// Whether the last operation of a row could run on the Neural Engine of a chip, and the reason if not.
fn supported(chip: &str, row: &str) -> (bool, Option<Reason>) {
    let plan = on(chip, &read(INPUTS, &body(row)));
    let last =
        plan.operations.last().unwrap_or_else(|| panic!("{row}: the plan has no operations"));
    assert_eq!(last.outputs[0], "y", "{row}");
    let is_supported = last.supported.contains(&Device::NeuralEngine);
    (is_supported, last.reason.filter(|reason| *reason != Reason::NotWorthIt))
}

fn rows(list: &str) -> impl Iterator<Item = &str> {
    list.lines().filter(|row| !row.is_empty())
}

#[test]
fn neural_engine_runs_always_supported_operations() {
    let missing: Vec<_> = rows(ALWAYS).filter(|row| supported("m4", row) != (true, None)).collect();
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn neural_engine_rejects_unsupported_operations() {
    for chip in ["m4", "m6", "a19pro", "m1"] {
        for row in rows(NEVER) {
            let reason = match row {
                row if row.starts_with("int32 ") => Reason::Int32,
                row if row.starts_with("limit: ") => Reason::Limit,
                _ => Reason::NoPath,
            };
            let call = row.trim_start_matches("int32 ").trim_start_matches("limit: ");
            let call = call.trim_start_matches("no path: ");
            // On an M1, some operations are unsupported for several reasons, so the reason is not compared.
            let (is_supported, found) = supported(chip, call);
            assert!(!is_supported, "{chip}: {row}");
            assert!(chip == "m1" || found == Some(reason), "{chip}: {row}: {found:?}");
        }
    }
}

/// A chip, the last operation within one of its limits, and the first operation beyond the limit.
const CONDITIONS: &[(&str, &str, &str)] = &[
    (
        "m4",
        "W[8, 8, 16, 16] P[24, 24] conv(x = p, weight = w)",
        "W[8, 8, 17, 17] P[24, 24] conv(x = p, weight = w)",
    ),
    (
        "m4",
        "W[8, 8, 1, 15] P[40, 40] conv(x = p, weight = w)",
        "W[8, 8, 1, 16] P[40, 40] conv(x = p, weight = w)",
    ),
    (
        "m4",
        "W[8, 8, 31, 1] P[40, 40] conv(x = p, weight = w)",
        "W[8, 8, 32, 1] P[40, 40] conv(x = p, weight = w)",
    ),
    ("m1", "W[8, 8, 1, 13] conv(x = x, weight = w)", "W[8, 8, 1, 14] conv(x = x, weight = w)"),
    ("m4", "relu(x = x)", "relu(x = single)"),
    (
        "m4",
        "gather(x = x, indices = tensor<int32, [1]>([1]), axis = int32(2), validate_indices = bool(false))",
        "gather(x = x, indices = i, axis = int32(2), validate_indices = bool(false))",
    ),
];

#[test]
fn neural_engine_support_boundaries_are_exact() {
    for (chip, within, beyond) in CONDITIONS {
        assert!(supported(chip, within).0, "{chip}: {within}");
        assert!(!supported(chip, beyond).0, "{chip}: {beyond}");
    }
}

/// An operation, the last chips of each series that do not run it, and the first that do.
const GENERATIONS: &[(&str, [&str; 2], [&str; 2])] = &[
    ("sin(x = x)", ["a14", "m2"], ["a15", "m3"]),
    ("cos(x = x)", ["a14", "m2"], ["a15", "m3"]),
    (
        "pad(x = x, pad = tensor<int32, [4]>([1, 1, 1, 1]), mode = string(\"reflect\"))",
        ["a13", "m1"],
        ["a14", "m2"],
    ),
    (
        "resize(x = x, shape = tensor<int32, [2]>([8, 8]), resized_dims = uint32(2), interpolation_mode = string(\"LINEAR\"), sampling_mode = string(\"DEFAULT\"))",
        ["a13", "m1"],
        ["a14", "m2"],
    ),
    ("relu(x = five)", ["a15", "m3"], ["a16", "m4"]),
    ("P[16, 20000] relu(x = p)", ["a15", "m3"], ["a16", "m4"]),
];

#[test]
fn operation_support_depends_on_chip_generation() {
    for (row, without, with) in GENERATIONS {
        assert!(without.iter().all(|chip| !supported(chip, row).0), "{row}");
        assert!(with.iter().all(|chip| supported(chip, row).0), "{row}");
    }
}

#[test]
fn neural_engine_limits_dimension_sizes() {
    let dimension = |size: u64| {
        let model =
            read(&format!("tensor<fp16, [1, {size}]> x"), "tensor<fp16, [?]> y = relu(x = x);");
        on("m4", &model).operations[0].reason
    };
    assert_eq!(dimension(65_536), Some(Reason::NotWorthIt));
    assert_eq!(dimension(65_537), Some(Reason::Limit));
    let product = |size: u64| {
        let inputs = format!("tensor<fp16, [1, 16, {size}]> x, tensor<fp16, [1, {size}, 16]> w");
        let plan = on("m4", &read(&inputs, "tensor<fp16, [?]> y = matmul(x = x, y = w);"));
        plan.operations[0].supported.contains(&Device::NeuralEngine)
    };
    assert!(product(32_768));
    assert!(!product(40_000));
}

#[test]
fn gpu_is_not_listed_for_unsupported_operations() {
    let engines = |row: &str| {
        on("m4", &read(INPUTS, &body(row))).operations.last().map(|found| found.supported.clone())
    };
    use Device::{Cpu, Gpu, NeuralEngine};
    assert_eq!(engines("non_zero(x = x)"), Some(vec![Cpu]));
    assert_eq!(
        engines("sliding_windows(x = x, axis = int32(3), size = int32(4))"),
        Some(vec![Cpu])
    );
    assert_eq!(engines("cumsum(x = x, axis = int32(0))"), Some(vec![Cpu, Gpu]));
    assert_eq!(engines("relu(x = x)"), Some(vec![Cpu, Gpu, NeuralEngine]));
    let resize = |size: &str| {
        engines(&format!(
            "resize(x = x, shape = tensor<int32, [2]>([{size}]), resized_dims = uint32(2), interpolation_mode = \
             string(\"LINEAR\"), sampling_mode = string(\"DEFAULT\"))"
        ))
    };
    assert_eq!(resize("8, 8"), Some(vec![Cpu, NeuralEngine]));
    assert_eq!(resize("32, 32"), Some(vec![Cpu, Gpu, NeuralEngine]));
}
