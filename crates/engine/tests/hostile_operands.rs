//! Operands computed at run time may have any value. Out-of-range operands must cause an error that
//! names them, and never a panic.

use coremill_engine::{Array, Engine, Limits, LoadOptions, Session};
use coremill_mil::{model, text};
use coremill_tensor::DType;
use coremill_verify as verify;

/// Loads a function with this opset, inputs, attributes and body. Its output is `y`.
fn session(opset: &str, inputs: &str, attributes: &str, body: &str) -> Session {
    let head = format!("func main<{opset}>({inputs}){attributes}");
    let text = format!("program(1.3) {{ {head} {{ {body} }} -> (y); }}");
    let program = text::parse(&text, &text::NoWeights).unwrap_or_else(|e| panic!("{text}: {e}"));
    let model = model::describe(program).unwrap_or_else(|error| panic!("{text}: {error}"));
    let verified = verify::verify(&model).unwrap_or_else(|report| panic!("{text}: {report:?}"));
    // A low limit, so that a program that ignores it is noticeably slow.
    let limits = Limits { elements: 1 << 16, ..Limits::default() };
    let options = LoadOptions { limits, threads: 1, ..LoadOptions::default() };
    let engine = Engine::load(&verified, &options).unwrap_or_else(|e| panic!("{text}: {e}"));
    engine.session("main").unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn ints(shape: &[usize], elements: &[i32]) -> Array {
    Array::ints(DType::Int32, shape, elements.to_vec())
}

fn ramp(shape: &[usize]) -> Array {
    let count: usize = shape.iter().product();
    Array::floats(DType::Fp32, shape, (0..count).map(|at| at as f32).collect())
}

/// The error of a program with inputs `x` and integers `p`.
fn refusal(opset: &str, x: &[usize], p: &Array, body: &str) -> String {
    let extents = |shape: &[usize]| format!("{shape:?}");
    let inputs = format!("tensor<fp32, {}> x, tensor<int32, {}> p", extents(x), extents(p.shape()));
    // The verifier rejects unused inputs.
    let body = format!("tensor<fp32, {}> used = identity(x = x); {body}", extents(x));
    let mut session = session(opset, &inputs, "", &body);
    match session.run(&[("x", ramp(x)), ("p", p.clone())]) {
        Ok(outputs) => panic!("{body} returned {} values, not an error", outputs.0.len()),
        Err(error) => format!("{error} {}", error.hint().unwrap_or_default()),
    }
}

#[test]
fn out_of_range_errors_name_index_axis_and_extent() {
    let index = ints(&[1], &[3]);
    let before = ints(&[1], &[-1]);
    let gathers = "tensor<fp32, [1, 2]> y = gather(x = x, indices = p, axis = int32(0));";
    let cases: &[(&str, &[usize], &Array, &str, &str)] = &[
        ("ios15", &[3, 2], &index, gathers, "index 3 is outside axis 0, which has 3 elements"),
        ("ios17", &[3, 2], &index, gathers, "index 3 is outside axis 0, which has 3 elements"),
        ("ios17", &[3, 2], &before, gathers, "do not count from the end; add the size of the axis"),
        (
            "ios16",
            &[3, 2],
            &ints(&[1], &[-4]),
            gathers,
            "index -4 is outside axis 0, which has 3 elements",
        ),
        (
            "ios17",
            &[2, 2],
            &ints(&[2, 1], &[0, 7]),
            "tensor<fp32, [2, 1]> y = gather_along_axis(x = x, indices = p, axis = int32(1));",
            "index 7 is outside axis 1, which has 2 elements",
        ),
        (
            "ios17",
            &[3, 2],
            &ints(&[2, 2], &[2, 1, 1, 2]),
            "tensor<fp32, [2]> y = gather_nd(x = x, indices = p);",
            "index 2 is outside axis 1, which has 2 elements",
        ),
        (
            "ios17",
            &[3, 2],
            &index,
            "tensor<fp32, [1, 2]> u = fill(shape = tensor<int32, [2]>([1, 2]), value = fp32(1));
             tensor<fp32, [3, 2]> y = scatter(data = x, indices = p, updates = u, axis = int32(0));",
            "index 3 is outside axis 0, which has 3 elements",
        ),
        (
            "ios15",
            &[3, 2],
            &ints(&[1, 2], &[0, -3]),
            "tensor<fp32, [1]> u = fill(shape = tensor<int32, [1]>([1]), value = fp32(1));
             tensor<fp32, [3, 2]> y = scatter_nd(data = x, indices = p, updates = u);",
            "index -3 is outside axis 1, which has 2 elements",
        ),
        (
            "ios17",
            &[3, 2],
            &ints(&[2], &[4, 0]),
            "tensor<fp32, [?, ?]> y = slice_by_size(x = x, begin = p,
                 size = tensor<int32, [2]>([-1, -1]));",
            "index 4 is outside axis 0 of `x`, which has 3 elements",
        ),
        (
            "ios17",
            &[3, 2],
            &ints(&[2], &[2, 2]),
            "tensor<fp32, [?, ?]> y = slice_by_size(x = x, begin = tensor<int32, [2]>([2, 0]), size = p);",
            "`size` must be -1 or from 0 to 1 along axis 0",
        ),
        (
            "ios17",
            &[3, 2],
            &ints(&[2], &[3, 0]),
            "tensor<fp32, [?]> y = slice_by_index(x = x, begin = p, end = p,
                 squeeze_mask = tensor<bool, [2]>([true, false]));",
            "index 3 is outside axis 0",
        ),
        (
            "ios17",
            &[3, 2],
            &ints(&[2], &[4, 2]),
            "tensor<fp32, [?, ?]> y = reshape(x = x, shape = p);",
            "shape [4, 2] does not hold the 6 elements of `x`, [3, 2]",
        ),
        // The number of elements determines the type of the result, but not the computed shape.
        (
            "ios17",
            &[1],
            &ints(&[1], &[2]),
            "tensor<int32, [1]> q = concat(values = (p), axis = int32(0));
             tensor<fp32, [1]> y = reshape(x = x, shape = q);",
            "shape [2] does not hold the 1 elements of `x`, [1]",
        ),
        (
            "ios17",
            &[3, 2],
            &ints(&[4], &[0, 0, 2, 0]),
            "tensor<fp32, [?, ?]> y = pad(x = x, pad = p, mode = string(\"reflect\"));",
            "`pad` must hold numbers from 0 to 1 for axis 1 of `x`, which has 2 elements, with mode `reflect`, got 2",
        ),
        (
            "ios17",
            &[3, 2],
            &ints(&[3], &[1, 3, 2]),
            "tensor<fp32, [3, 2]> y = reverse_sequence(x = x, lengths = p, seq_axis = int32(1));",
            "`lengths` must hold numbers from 0 to 2, got 3",
        ),
        (
            "ios17",
            &[3, 2],
            &ints(&[2], &[2, 0]),
            "tensor<fp32, [?, ?]> y = tile(x = x, reps = p);",
            "`reps` must be at least 1, got 0 for axis 1",
        ),
    ];
    for (opset, x, p, body, expected) in cases {
        let found = refusal(opset, x, p, body);
        assert!(found.contains(expected), "{body}: {found}");
    }
}

#[test]
fn rejects_huge_results_before_allocation() {
    let huge = ints(&[2], &[i32::MAX, i32::MAX]);
    let bodies = [
        "tensor<fp32, [?, ?]> y = fill(shape = p, value = fp32(1));",
        "tensor<fp32, [?, ?]> y = tile(x = x, reps = p);",
        "tensor<fp32, [?, ?]> y = random_normal(shape = p);",
        "tensor<fp32, [?, ?]> y = random_bernoulli(shape = p);",
        "tensor<fp32, [2]> z = cast(x = p, dtype = string(\"fp32\"));
         tensor<fp32, [2147483647]> y = random_categorical(x = z, size = int32(2147483647));",
        "tensor<fp32, [?, ?]> y = resize(x = x, shape = p, resized_dims = uint32(2));",
        "int32 n = gather(x = p, indices = int32(0), axis = int32(0));
         tensor<int32, [?]> y = range_1d(start = int32(0), end = n, step = int32(1));",
        "int32 n = gather(x = p, indices = int32(0), axis = int32(0));
         tensor<int32, [2, ?]> y = one_hot(indices = p, one_hot_vector_size = n);",
    ];
    for body in bodies {
        let found = refusal("ios17", &[2, 2], &huge, body);
        assert!(found.contains("tensors are limited to 65536 elements"), "{body}: {found}");
    }
    let row = ints(&[300], &[0; 300]);
    for body in [
        "tensor<fp32, [300]> z = cast(x = p, dtype = string(\"fp32\"));
         tensor<fp32, [256, 300]> y = add(x = x, y = z);",
        "tensor<bool, [300]> b = cast(x = p, dtype = string(\"bool\"));
         tensor<fp32, [256, 300]> y = select(cond = b, a = x, b = fp32(1));",
    ] {
        let found = refusal("ios17", &[256, 1], &row, body);
        assert!(found.contains("tensors are limited to 65536 elements"), "{body}: {found}");
    }
}

/// A random number generator that is deterministic on every machine.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }

    fn of<T: Copy>(&mut self, pool: &[T]) -> T {
        pool[self.below(pool.len())]
    }
}

const INTS: &[i32] = &[0, 1, 2, 3, -1, -2, 5, 0, 1, 2, 65536, 1 << 30, i32::MAX, i32::MIN, -3];
const FLOATS: &[f32] =
    &[0.0, 1.0, -1.0, 0.5, 2.5, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 3e38, -1e9, 1e-40];

/// Declared inputs, with `*` for random sizes, and a body that computes `y`.
const PROGRAMS: &[(&str, &str, &str)] = &[
    ("ios15", "fp32 x[***] int32 p[3]", "tensor<fp32, [?, ?, ?]> y = reshape(x = x, shape = p);"),
    ("ios17", "fp32 x[**] int32 p[4]", "tensor<fp32, [?, ?, ?, ?]> y = reshape(x = x, shape = p);"),
    ("ios17", "fp32 x[***]", "tensor<fp32, [?, ?]> y = flatten2d(x = x, axis = int32(2));"),
    (
        "ios17",
        "fp32 x[***] int32 p[3] int32 q[3]",
        "tensor<fp32, [?, ?, ?]> y = slice_by_index(x = x, begin = p, end = q,
             stride = tensor<int32, [3]>([1, -1, 2147483647]));",
    ),
    (
        "ios15",
        "fp32 x[***] int32 p[3] int32 q[3]",
        "tensor<fp32, [?, ?]> y = slice_by_index(x = x, begin = p, end = q,
             stride = tensor<int32, [3]>([-2147483648, 2, 1]),
             begin_mask = tensor<bool, [3]>([false, true, false]),
             end_mask = tensor<bool, [3]>([true, false, false]),
             squeeze_mask = tensor<bool, [3]>([false, false, true]));",
    ),
    (
        "ios17",
        "fp32 x[***] int32 p[3] int32 q[3]",
        "tensor<fp32, [?, ?, ?]> y = slice_by_size(x = x, begin = p, size = q);",
    ),
    (
        "ios18",
        "fp32 x[**] fp32 u[**] int32 p[2] int32 q[2]",
        "tensor<fp32, [?, ?]> y = slice_update(x = x, update = u, begin = p, end = q,
             stride = tensor<int32, [2]>([-1, 3]));",
    ),
    (
        "ios15",
        "fp32 x[***] int32 p[**]",
        "tensor<fp32, [?, ?, ?, ?]> y = gather(x = x, indices = p, axis = int32(1));",
    ),
    (
        "ios17",
        "fp32 x[***] int32 p[**]",
        "tensor<fp32, [?, ?, ?]> y = gather(x = x, indices = p, axis = int32(2), batch_dims = int32(1));",
    ),
    (
        "ios16",
        "fp32 x[**] int32 p[**]",
        "tensor<fp32, [?, ?]> y = gather_along_axis(x = x, indices = p, axis = int32(1));",
    ),
    ("ios15", "fp32 x[***] int32 p[*2]", "tensor<fp32, [?, ?]> y = gather_nd(x = x, indices = p);"),
    (
        "ios17",
        "fp32 x[***] int32 p[**1]",
        "tensor<fp32, [?, ?, ?]> y = gather_nd(x = x, indices = p, batch_dims = int32(1));",
    ),
    ("ios17", "fp32 x[***] int32 p[*0]", "tensor<fp32, [?, ?, ?, ?]> y = gather_nd(x = x, indices = p);"),
    (
        "ios15",
        "fp32 x[**] int32 p[*] fp32 u[**]",
        "tensor<fp32, [?, ?]> y = scatter(data = x, indices = p, updates = u, axis = int32(0),
             mode = string(\"max\"));",
    ),
    (
        "ios15",
        "int32 x[**] int32 p[**] int32 u[**]",
        "tensor<int32, [?, ?]> y = scatter_along_axis(data = x, indices = p, updates = u,
             axis = int32(0), mode = string(\"div\"));",
    ),
    (
        "ios15",
        "int32 x[**] int32 p[*2] int32 u[*]",
        "tensor<int32, [?, ?]> y = scatter_nd(data = x, indices = p, updates = u, mode = string(\"mul\"));",
    ),
    ("ios15", "int32 p[3]", "tensor<fp32, [?, ?, ?]> y = fill(shape = p, value = fp32(2));"),
    ("ios15", "fp32 x[***] int32 p[3]", "tensor<fp32, [?, ?, ?]> y = tile(x = x, reps = p);"),
    ("ios15", "fp32 x[**] int32 p[4]", "tensor<fp32, [?, ?]> y = pad(x = x, pad = p);"),
    (
        "ios15",
        "fp32 x[**] int32 p[4]",
        "tensor<fp32, [?, ?]> y = pad(x = x, pad = p, mode = string(\"reflect\"));",
    ),
    (
        "ios15",
        "fp32 x[**] int32 p[4]",
        "tensor<fp32, [?, ?]> y = pad(x = x, pad = p, mode = string(\"replicate\"));",
    ),
    (
        "ios15",
        "int32 p[1] int32 q[1] int32 u[1]",
        "int32 a = squeeze(x = p); int32 b = squeeze(x = q); int32 c = squeeze(x = u);
         tensor<int32, [?]> y = range_1d(start = a, end = b, step = c);",
    ),
    (
        "ios15",
        "fp32 x[1] fp32 u[1] fp32 v[1]",
        "fp32 a = squeeze(x = x); fp32 b = squeeze(x = u); fp32 c = squeeze(x = v);
         tensor<fp32, [?]> y = range_1d(start = a, end = b, step = c);",
    ),
    (
        "ios15",
        "int32 p[**] int32 q[1]",
        "int32 n = squeeze(x = q);
         tensor<int32, [?, ?, ?]> y = one_hot(indices = p, one_hot_vector_size = n, axis = int32(1));",
    ),
    (
        "ios17",
        "fp32 x[***] int32 p[3]",
        "tensor<fp32, [?, ?, ?]> y = resize(x = x, shape = p, resized_dims = uint32(3),
             sampling_mode = string(\"OFFSET_CORNERS\"));",
    ),
    (
        "ios17",
        "int32 x[***] int32 p[2]",
        "tensor<int32, [?, ?, ?]> y = resize(x = x, shape = p, resized_dims = uint32(2),
             interpolation_mode = string(\"NEAREST_NEIGHBOR\"), sampling_mode = string(\"ALIGN_CORNERS\"));",
    ),
    (
        "ios17",
        "int32 x[***] int32 p[2]",
        "tensor<int32, [?, ?, ?]> y = resize(x = x, shape = p, resized_dims = uint32(2));",
    ),
    (
        "ios15",
        "fp32 x[***]",
        "tensor<fp32, [?, 3, 5]> y = resize_bilinear(x = x, target_size_height = int32(3),
             target_size_width = int32(5), sampling_mode = string(\"UNALIGN_CORNERS\"));",
    ),
    (
        "ios15",
        "fp32 x[***]",
        "tensor<fp32, [?, ?, ?]> y = upsample_nearest_neighbor(x = x, scale_factor_height = fp32(0.3),
             scale_factor_width = fp32(2.7));",
    ),
    (
        "ios15",
        "fp32 x[***]",
        "tensor<fp32, [?, ?, ?]> y = crop(x = x, crop_height = tensor<int32, [2]>([1, 0]),
             crop_width = tensor<int32, [2]>([0, 1]));",
    ),
    (
        "ios15",
        "fp32 x[****] fp32 u[*1511]",
        "tensor<fp32, [?, ?, ?, 2, 3]> y = crop_resize(x = x, roi = u, target_height = int32(2),
             target_width = int32(3), sampling_mode = string(\"OFFSET_CORNERS\"));",
    ),
    (
        "ios17",
        "fp32 x[****] fp32 u[*4] int32 p[*]",
        "tensor<fp32, [?, ?, 3, 1]> y = crop_resize(x = x, boxes = u, box_indices = p,
             target_height = int32(3), normalized_coordinates = bool(true),
             box_coordinate_mode = string(\"CENTER_SIZE_WIDTH_FIRST\"),
             sampling_mode = string(\"ALIGN_CORNERS\"));",
    ),
    (
        "ios15",
        "fp32 x[****] fp32 u[***2]",
        "tensor<fp32, [?, ?, ?, ?]> y = resample(x = x, coordinates = u,
             sampling_mode = string(\"bilinear\"), padding_mode = string(\"symmetric\"),
             padding_value = fp32(0), coordinates_mode = string(\"normalized_zero_to_one\"),
             align_corners = bool(false));",
    ),
    (
        "ios15",
        "fp32 x[****] int32 u[***2]",
        "tensor<fp32, [?, ?, ?, ?]> y = resample(x = x, coordinates = u,
             sampling_mode = string(\"nearest\"), padding_mode = string(\"constant\"),
             padding_value = fp32(7), coordinates_mode = string(\"unnormalized\"),
             align_corners = bool(true));",
    ),
    (
        "ios15",
        "fp32 x[****] fp32 u[*6]",
        "tensor<fp32, [?, ?, 2, 3]> y = affine(x = x, transform_matrix = u, output_height = int32(2),
             output_width = int32(3), sampling_mode = string(\"bilinear\"),
             padding_mode = string(\"constant\"), padding_value = fp32(0),
             coordinates_mode = string(\"normalized_minus_one_to_one\"), align_corners = bool(true));",
    ),
    (
        "ios15",
        "fp32 x[**4] fp32 u[***]",
        "tensor<fp32, [?, 3, 4]> y, tensor<fp32, [?, 3, ?]> s, tensor<int32, [?, 3]> i, tensor<int32, [?]> n
             = non_maximum_suppression(boxes = x, scores = u, iou_threshold = fp32(0.5),
             score_threshold = fp32(0), max_boxes = int32(3), per_class_suppression = bool(true));",
    ),
    (
        "ios17",
        "fp32 x[*4*] fp32 u[***]",
        "tensor<fp32, [?, 4, 5]> y, tensor<fp32, [?, ?, 5]> s, tensor<int32, [?, 5]> i
             = non_maximum_suppression(boxes = x, scores = u, iou_threshold = fp32(0.5),
             max_boxes = int32(5));",
    ),
    (
        "ios15",
        "fp32 x[***] int32 p[*]",
        "tensor<fp32, [?, ?, ?]> y = reverse_sequence(x = x, lengths = p, seq_axis = int32(1),
             batch_axis = int32(2));",
    ),
    ("ios15", "fp32 x[***]", "tensor<int32, [?, ?, ?]> y = argsort(x = x, axis = int32(1));"),
    ("ios15", "fp32 x[**]", "tensor<int32, [?, 2]> y = non_zero(x = x);"),
    ("ios15", "fp32 x[**]", "tensor<fp32, [?, ?]> y = band_part(x = x, lower = int32(2147483647));"),
    (
        "ios15",
        "int32 x[***]",
        "tensor<int32, [?, ?, ?]> y = cumsum(x = x, axis = int32(1), exclusive = bool(true),
             reverse = bool(true));",
    ),
    (
        "ios16",
        "fp32 x[***]",
        "tensor<fp32, [?, 2, ?]> y = topk(x = x, k = int32(2), axis = int32(1),
             return_indices = bool(false));",
    ),
    (
        "ios15",
        "fp32 x[***]",
        "tensor<fp32, [?, ?, 2, ?]> y = sliding_windows(x = x, axis = int32(1), size = int32(2),
             stride = int32(2147483647));",
    ),
    (
        "ios15",
        "fp32 x[****]",
        "tensor<fp32, [?, ?, ?, ?]> y = depth_to_space(x = x, block_size = int32(2));",
    ),
    (
        "ios15",
        "fp32 x[****]",
        "tensor<fp32, [?, ?, ?, ?]> y = batch_to_space(x = x,
             block_shape = tensor<int32, [2]>([1, 2]), crops = tensor<int32, [2, 2]>([[0, 1], [1, 0]]));",
    ),
    (
        "ios15",
        "fp32 x[****]",
        "tensor<fp32, [?, ?, ?, ?]> y = space_to_batch(x = x,
             block_shape = tensor<int32, [2]>([1, 2]), paddings = tensor<int32, [2, 2]>([[0, 1], [1, 0]]));",
    ),
    ("ios15", "fp32 x[***]", "tensor<fp32, [?, ?, ?]> y = reverse(x = x);"),
    ("ios15", "int32 x[**] int32 z[***]", "tensor<int32, [?, ?, ?]> y = add(x = x, y = z);"),
    ("ios15", "int32 x[**] int32 z[***]", "tensor<int32, [?, ?, ?]> y = sub(x = x, y = z);"),
    ("ios15", "int32 x[**] int32 z[***]", "tensor<int32, [?, ?, ?]> y = mul(x = x, y = z);"),
    ("ios15", "int32 x[**] int32 z[***]", "tensor<int32, [?, ?, ?]> y = real_div(x = x, y = z);"),
    ("ios15", "int32 x[**] int32 z[***]", "tensor<int32, [?, ?, ?]> y = floor_div(x = x, y = z);"),
    ("ios15", "int32 x[**] int32 z[***]", "tensor<int32, [?, ?, ?]> y = mod(x = x, y = z);"),
    ("ios15", "int32 x[**] int32 z[***]", "tensor<int32, [?, ?, ?]> y = pow(x = x, y = z);"),
    ("ios15", "int32 x[**] int32 z[***]", "tensor<int32, [?, ?, ?]> y = maximum(x = x, y = z);"),
    ("ios15", "int32 x[**] int32 z[***]", "tensor<int32, [?, ?, ?]> y = minimum(x = x, y = z);"),
    ("ios15", "fp32 x[**] fp32 z[*]", "tensor<fp32, [?, ?]> y = floor_div(x = x, y = z);"),
    ("ios15", "fp32 x[**] fp32 z[*]", "tensor<fp32, [?, ?]> y = mod(x = x, y = z);"),
    ("ios15", "fp32 x[**] fp32 z[*]", "tensor<fp32, [?, ?]> y = pow(x = x, y = z);"),
    ("ios15", "int32 x[**]", "tensor<int32, [?, ?]> y = abs(x = x);"),
    ("ios15", "int32 x[**]", "tensor<int32, [?, ?]> y = sign(x = x);"),
    ("ios15", "int32 x[**]", "tensor<int32, [?, ?]> y = square(x = x);"),
    ("ios15", "int32 x[**]", "tensor<int32, [?, ?]> y = exp2(x = x);"),
    ("ios15", "fp32 x[**]", "tensor<int32, [?, ?]> y = cast(x = x, dtype = string(\"int32\"));"),
    ("ios17", "int32 x[**]", "tensor<uint8, [?, ?]> u = cast(x = x, dtype = string(\"uint8\")); tensor<int32, [?, ?]> y = cast(x = u, dtype = string(\"int32\"));"),
    ("ios15", "int32 c[*] fp32 x[**] fp32 z[***]", "tensor<bool, [?]> b = cast(x = c, dtype = string(\"bool\")); tensor<fp32, [?, ?, ?]> y = select(cond = b, a = x, b = z);"),
    ("ios15", "fp32 x[**] fp32 z[**]", "tensor<fp32, [?, ?]> y = concat(values = (x, z), axis = int32(1));"),
    ("ios15", "fp32 x[**] fp32 z[**]", "tensor<fp32, [?, ?]> y = concat(values = (x, z), axis = int32(-2), interleave = bool(true));"),
    ("ios15", "fp32 x[**] fp32 z[**]", "tensor<fp32, [?, 2, ?]> y = stack(values = (x, z), axis = int32(1));"),
    ("ios15", "fp32 x[**]", "tensor<fp32, [?, 2]> y, tensor<fp32, [?, 1]> z = split(x = x, split_sizes = tensor<int32, [2]>([2, 1]), axis = int32(1));"),
    ("ios15", "fp32 x[***]", "tensor<fp32, [?, ?, ?]> y = softmax(x = x, axis = int32(1));"),
    ("ios15", "fp32 x[***]", "tensor<fp32, [?, ?]> y = reduce_max(x = x, axes = tensor<int32, [1]>([-2]));"),
    ("ios15", "int32 x[***]", "tensor<int32, [?, ?]> y = reduce_max(x = x, axes = tensor<int32, [1]>([-2]));"),
    ("ios15", "fp32 x[***]", "tensor<fp32, [?, ?]> y = reduce_mean(x = x, axes = tensor<int32, [1]>([-2]));"),
    ("ios15", "int32 x[***]", "tensor<int32, [?, ?]> y = reduce_mean(x = x, axes = tensor<int32, [1]>([-2]));"),
    ("ios15", "fp32 x[***]", "tensor<fp32, [?, ?]> y = reduce_log_sum_exp(x = x, axes = tensor<int32, [1]>([-2]));"),
    ("ios15", "int32 x[***]", "tensor<int32, [?, ?]> y = reduce_log_sum_exp(x = x, axes = tensor<int32, [1]>([-2]));"),
    ("ios15", "fp32 x[***]", "tensor<fp32, [?, ?]> y = reduce_prod(x = x, axes = tensor<int32, [1]>([-2]));"),
    ("ios15", "int32 x[***]", "tensor<int32, [?, ?]> y = reduce_prod(x = x, axes = tensor<int32, [1]>([-2]));"),
    ("ios15", "fp32 x[***]", "tensor<fp32, [?, ?]> y = reduce_l2_norm(x = x, axes = tensor<int32, [1]>([-2]));"),
    ("ios15", "int32 x[***]", "tensor<int32, [?, ?]> y = reduce_l2_norm(x = x, axes = tensor<int32, [1]>([-2]));"),
    ("ios15", "fp32 x[***]", "tensor<fp32, [?, ?]> y = reduce_log_sum(x = x, axes = tensor<int32, [1]>([-2]));"),
    ("ios15", "int32 x[***]", "tensor<int32, [?, ?]> y = reduce_log_sum(x = x, axes = tensor<int32, [1]>([-2]));"),
    ("ios17", "fp32 x[***]", "tensor<uint16, [?, ?]> u = reduce_argmax(x = x, axis = int32(1), output_dtype = string(\"uint16\")); tensor<int32, [?, ?]> y = cast(x = u, dtype = string(\"int32\"));"),
    ("ios15", "int32 x[***]", "tensor<int32, [?, ?, 1]> y = reduce_argmin(x = x, keep_dims = bool(true));"),
    ("ios15", "fp32 x[***]", "tensor<fp32, [?, ?, ?]> y = layer_norm(x = x, axes = tensor<int32, [2]>([0, 2]));"),
    ("ios15", "fp32 x[*2*]", "tensor<fp32, [?, 2, ?]> y = batch_norm(x = x, mean = tensor<fp32, [2]>([1, 2]), variance = tensor<fp32, [2]>([0, -1]));"),
    ("ios15", "fp32 x[***]", "tensor<fp32, [?, ?, ?]> y = instance_norm(x = x);"),
    ("ios15", "fp32 x[****]", "tensor<fp32, [?, ?, ?, ?]> y = l2_norm(x = x);"),
    ("ios15", "fp32 x[***]", "tensor<fp32, [?, ?, ?]> y = local_response_norm(x = x, size = int32(2147483647));"),
    ("ios15", "fp32 x[*2*]", "tensor<fp32, [?, 2, ?]> y = prelu(x = x, alpha = tensor<fp32, [2]>([0.5, 0.5]));"),
    ("ios15", "int32 p[2]", "tensor<fp32, [?, ?]> y = random_normal(shape = p);"),
    ("ios15", "int32 p[3]", "tensor<fp32, [?, ?, ?]> y = random_uniform(shape = p, low = fp32(inf), high = fp32(nan));"),
    ("ios15", "int32 p[1]", "tensor<fp32, [?]> y = random_bernoulli(shape = p, prob = fp32(nan), seed = int32(-2147483648));"),
    ("ios15", "fp32 x[**]", "tensor<fp32, [?, 3]> y = random_categorical(x = x, size = int32(3));"),
    ("ios15", "fp32 x[***]", "tensor<fp32, [?, ?, 2]> y = random_categorical(x = x, size = int32(2), mode = string(\"probs\"));"),
    (
        "ios15",
        "fp32 x[***]",
        "tensor<fp32, [?, ?, ?]> y = transpose(x = x, perm = tensor<int32, [3]>([2, 0, 1]));",
    ),
];

/// An input of a program in [`PROGRAMS`].
struct Input {
    dtype: DType,
    name: String,
    extents: Vec<Option<usize>>,
}

impl Input {
    /// Parses `fp32 x[**3]`.
    fn all(declared: &str) -> Vec<Input> {
        let words: Vec<&str> =
            declared.split([' ', '[', ']']).filter(|word| !word.is_empty()).collect();
        let input = |words: &[&str]| Input {
            dtype: words[0].parse().expect("a type"),
            name: words[1].to_owned(),
            extents: words[2]
                .chars()
                .map(|extent| extent.to_digit(10).map(|it| it as usize))
                .collect(),
        };
        words.chunks(3).map(input).collect()
    }

    fn declaration(&self) -> String {
        let extents: Vec<String> = self
            .extents
            .iter()
            .map(|it| it.map_or_else(|| "?".to_owned(), |it| it.to_string()))
            .collect();
        format!("tensor<{}, [{}]> {}", self.dtype, extents.join(", "), self.name)
    }

    fn draw(&self, random: &mut Random) -> Array {
        // Often the same size, since many tensors must agree.
        let shape: Vec<usize> = self
            .extents
            .iter()
            .map(|it| it.unwrap_or_else(|| random.of(&[2, 2, 2, 2, 1, 3, 0, 4])))
            .collect();
        let count = shape.iter().product();
        match self.dtype {
            DType::Fp32 => {
                Array::floats(self.dtype, shape, (0..count).map(|_| random.of(FLOATS)).collect())
            }
            _ => Array::ints(self.dtype, shape, (0..count).map(|_| random.of(INTS)).collect()),
        }
    }
}

/// The attribute that allows any size for unknown dimensions.
fn flexible_shapes(inputs: &[Input]) -> String {
    let open = inputs.iter().filter(|input| input.extents.contains(&None));
    let entries = |extent: fn(Option<usize>) -> String| -> String {
        let entry = |input: &Input| {
            let extents: Vec<String> = input.extents.iter().map(|it| extent(*it)).collect();
            format!("{{\"{}\", [{}]}}", input.name, extents.join(", "))
        };
        open.clone().map(entry).collect::<Vec<_>>().join(", ")
    };
    if open.clone().next().is_none() {
        return String::new();
    }
    let defaults = entries(|extent| extent.unwrap_or(2).to_string());
    let ranges = entries(|extent| match extent {
        Some(extent) => format!("[{extent}, {extent}]"),
        None => "[0, -1]".to_owned(),
    });
    let shapes = "tuple<string, dict<string, tensor<int32, [?]>>>";
    let lists = "tuple<string, dict<string, list<tensor<int32, [2]>, ?>>>";
    format!(
        " [FlexibleShapeInformation = tuple<{shapes}, {lists}>(\
         ((\"DefaultShapes\", {{{defaults}}}), (\"RangeDims\", {{{ranges}}})))]"
    )
}

#[test]
fn random_operands_do_not_panic() {
    for (opset, declared, body) in PROGRAMS {
        let inputs = Input::all(declared);
        let declarations: Vec<String> = inputs.iter().map(Input::declaration).collect();
        let attributes = flexible_shapes(&inputs);
        let mut session = session(opset, &declarations.join(", "), &attributes, body);
        let mut random = Random(body.len() as u64);
        let mut succeeded = 0;
        for _ in 0..400 {
            let drawn: Vec<(&str, Array)> =
                inputs.iter().map(|input| (input.name.as_str(), input.draw(&mut random))).collect();
            succeeded += usize::from(session.run(&drawn).is_ok());
        }
        assert!(succeeded > 0, "{body} rejected all random inputs, so that its kernel never ran");
    }
}
