//! Quantized programs must compute the same results with integer kernels as operation by operation,
//! up to one step of the output's scale. `COREMILL_PROGRAMS` sets the number of programs.

use std::fmt::Write;

use coremill_engine::{Array, Engine, Hooks, LoadOptions, Value};
use coremill_mil::{model, text};
use coremill_simd::Isa;
use coremill_tensor::DType;
use coremill_verify as verify;

/// Number of programs of each kind.
const PROGRAMS: u64 = 24;

/// A deterministic random number generator.
struct Draw(u64);

impl Draw {
    fn below(&mut self, end: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    fn between(&mut self, low: i32, high: i32) -> i32 {
        low + self.below((high - low + 1) as usize) as i32
    }

    fn chance(&mut self) -> bool {
        self.below(2) == 0
    }
}

/// A program under construction.
struct Program {
    draw: Draw,
    body: String,
    /// Number of values so far, used to name the next one.
    count: usize,
    float: &'static str,
}

fn literal(shape: &[usize], numbers: &mut dyn FnMut() -> String) -> String {
    let Some((count, inner)) = shape.split_first() else { return numbers() };
    let parts: Vec<String> = (0..*count).map(|_| literal(inner, numbers)).collect();
    format!("[{}]", parts.join(", "))
}

impl Program {
    fn new(seed: u64) -> Program {
        let mut draw = Draw(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) + 1);
        let float = draw.one(&["fp32", "fp16"]);
        Program { draw, body: String::new(), count: 0, float }
    }

    fn name(&mut self) -> String {
        self.count += 1;
        format!("v{}", self.count)
    }

    /// Appends an operation. Returns the name of its result.
    fn op(&mut self, dtype: &str, shape: &[usize], call: &str) -> String {
        let name = self.name();
        writeln!(self.body, "        tensor<{dtype}, {shape:?}> {name} = {call};")
            .expect("a string");
        name
    }

    fn floats(&mut self, shape: &[usize], call: &str) -> String {
        self.op(self.float, shape, call)
    }

    /// Arguments for a scale and a zero point.
    fn affine(&mut self, scale: f32, signed: bool) -> String {
        let float = self.float;
        let zero = match signed {
            true => self.draw.one(&[0, 0, -128, 17, -31]),
            false => self.draw.one(&[128, 128, 0, 111, 140]),
        };
        let dtype = if signed { "int8" } else { "uint8" };
        match signed && zero == 0 && self.draw.chance() {
            true => format!("scale = {float}({scale:?})"),
            false => format!("scale = {float}({scale:?}), zero_point = {dtype}({zero})"),
        }
    }

    /// Quantizes and dequantizes a value.
    fn steps(&mut self, x: &str, shape: &[usize], scale: f32) -> String {
        let signed = self.draw.chance();
        let affine = self.affine(scale, signed);
        let dtype = if signed { "int8" } else { "uint8" };
        let quantize =
            format!("quantize(input = {x}, {affine}, output_dtype = string(\"{dtype}\"))");
        let codes = self.op(dtype, shape, &quantize);
        self.floats(shape, &format!("dequantize(input = {codes}, {affine})"))
    }

    /// A dequantized constant, with one scale or one per index of an axis.
    fn weights(&mut self, shape: &[usize], axis: usize) -> String {
        let float = self.float;
        let signed = self.draw.chance();
        let (dtype, low, high) = if signed { ("int8", -128, 127) } else { ("uint8", 0, 255) };
        let (single, plain) = (self.draw.chance(), self.draw.chance());
        let count = if single { vec![] } else { vec![shape[axis]] };
        let draw = &mut self.draw;
        let data = literal(shape, &mut || draw.between(low, high).to_string());
        let scale = literal(&count, &mut || format!("{:?}", draw.between(1, 9) as f32 / 1024.0));
        let symmetric = draw.chance();
        let zero = literal(&count, &mut || match (symmetric, signed) {
            (true, true) => "0".to_owned(),
            (true, false) => "128".to_owned(),
            (false, _) => draw.between(low, high).to_string(),
        });
        let data = format!("tensor<{dtype}, {shape:?}>({data})");
        let of = |dtype: &str, text: String| match single {
            true => format!("{dtype}({text})"),
            false => format!("tensor<{dtype}, {count:?}>({text})"),
        };
        let (scale, zero) = (of(float, scale), of(dtype, zero));
        let call = match plain {
            true => format!(
                "constexpr_affine_dequantize(quantized_data = {data}, scale = {scale}, zero_point = {zero}, axis = int32({axis}))"
            ),
            false => {
                let name = self.op(dtype, shape, &format!("const()[val = {data}]"));
                let axis = if single { String::new() } else { format!(", axis = int32({axis})") };
                format!("dequantize(input = {name}, scale = {scale}, zero_point = {zero}{axis})")
            }
        };
        self.floats(shape, &call)
    }

    fn bias(&mut self, count: usize) -> String {
        if self.draw.chance() {
            return String::new();
        }
        let draw = &mut self.draw;
        let numbers =
            literal(&[count], &mut || format!("{:?}", draw.between(-64, 64) as f32 / 32.0));
        format!(", bias = tensor<{}, [{count}]>({numbers})", self.float)
    }

    fn activation(&mut self, x: &str, shape: &[usize]) -> String {
        let float = self.float;
        let call = match self.draw.below(5) {
            0 => format!("relu(x = {x})"),
            1 => format!("relu6(x = {x})"),
            2 => format!("clip(x = {x}, alpha = {float}(-0.5), beta = {float}(2.25))"),
            _ => return x.to_owned(),
        };
        self.floats(shape, &call)
    }

    /// A convolution of `[batch, channels, ...]`. Returns the name and shape of the result.
    fn convolution(&mut self, x: &str, shape: &[usize]) -> (String, Vec<usize>) {
        let spatial = shape.len() - 2;
        let channels = shape[1];
        let groups = match self.draw.below(3) {
            0 => channels,
            1 if channels.is_multiple_of(2) => 2,
            _ => 1,
        };
        let outputs =
            if groups == channels { channels } else { groups * self.draw.one(&[1, 5, 9, 20]) };
        let kernel: Vec<usize> = (0..spatial).map(|_| self.draw.one(&[1, 2, 3])).collect();
        let strides: Vec<usize> = (0..spatial).map(|_| self.draw.one(&[1, 1, 2])).collect();
        let dilations: Vec<usize> = (0..spatial).map(|_| self.draw.one(&[1, 1, 2])).collect();
        let pads: Vec<usize> = (0..2 * spatial).map(|_| self.draw.below(3)).collect();
        let mut result = vec![shape[0], outputs];
        let pad_type = self.draw.one(&["custom", "custom", "same", "valid"]);
        for axis in 0..spatial {
            let reach = (kernel[axis] - 1) * dilations[axis] + 1;
            let (extent, stride) = (shape[axis + 2], strides[axis]);
            let all = match pad_type {
                "custom" => extent + pads[2 * axis] + pads[2 * axis + 1],
                _ => extent,
            };
            result.push(if pad_type == "same" {
                extent.div_ceil(stride)
            } else {
                (all - reach) / stride + 1
            });
        }
        let mut weight_shape = vec![outputs, channels / groups];
        weight_shape.extend(&kernel);
        let weight = self.weights(&weight_shape, 0);
        let bias = self.bias(outputs);
        let ints = |values: &[usize]| format!("tensor<int32, [{}]>({values:?})", values.len());
        let pad =
            if pad_type == "custom" { format!(", pad = {}", ints(&pads)) } else { String::new() };
        let call = format!(
            "conv(x = {x}, weight = {weight}{bias}, strides = {}, dilations = {}, pad_type = string(\"{pad_type}\"){pad}, groups = int32({groups}))",
            ints(&strides),
            ints(&dilations)
        );
        (self.floats(&result, &call), result)
    }

    /// The complete program text.
    fn finish(self, input: &[usize], output: &str) -> String {
        let Program { body, float, .. } = self;
        format!(
            "program(1.3) {{\n    func main<ios17>(tensor<{float}, {input:?}> x) {{\n{body}    }} -> ({output});\n}}\n"
        )
    }
}

/// Runs a program on every available instruction set, with one and with three threads, and compares
/// the results. Returns the labels of the integer kernels.
fn check(text: &str, input: &[usize], step: f32, tolerance: f32) -> Vec<String> {
    let program =
        text::parse(text, &text::NoWeights).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let model = model::describe(program).unwrap_or_else(|error| panic!("{error}"));
    let verified = verify::verify(&model).unwrap_or_else(|report| panic!("{report:?}\n{text}"));
    let mut draw = Draw(5);
    let floats: Vec<f32> =
        (0..input.iter().product()).map(|_| draw.between(-4000, 4000) as f32 / 1000.0).collect();
    let mut ran = Vec::new();
    for isa in Isa::available() {
        for threads in [1, 3] {
            let options = LoadOptions { threads, isa: Some(isa), ..LoadOptions::default() };
            let engine = Engine::load(&verified, &options).expect("it loads");
            let mut session = engine.session("main").expect("there is a main");
            let array = || [("x", Array::floats(DType::Fp32, input, floats.clone()))];
            let (mut seen, mut spans) = (0, Vec::new());
            let mut observe = |_: &str, _: &str, _: &Value| seen += 1;
            let mut hooks = Hooks { observe: Some(&mut observe), ..Hooks::default() };
            let expected = session.run_with(&array(), &mut hooks).expect("it runs");
            assert!(seen > 0, "the observer was not called");
            let mut hooks = Hooks { profile: Some(&mut spans), ..Hooks::default() };
            let found = session.run_with(&array(), &mut hooks);
            let found = found.unwrap_or_else(|error| panic!("{error}\n{text}"));
            for ((_, found), (_, expected)) in found.0.iter().zip(&expected.0) {
                let floats = |value: &Value| {
                    value.as_array().and_then(Array::as_floats).map(<[f32]>::to_vec)
                };
                let (Some(found), Some(expected)) = (floats(found), floats(expected)) else {
                    panic!("a result is not a tensor of floats");
                };
                assert_eq!(found.len(), expected.len());
                for (at, (one, other)) in found.iter().zip(&expected).enumerate() {
                    assert!(
                        (one - other).abs() <= (tolerance + 0.01) * step,
                        "{isa} on {threads} threads: element {at} is {one}, not {other}\n{text}"
                    );
                }
            }
            let labels: Vec<_> = spans.iter().map(|span| span.label.as_str()).collect();
            assert!(labels.iter().any(|label| label.contains("int8")), "{labels:?}\n{text}");
            ran.extend(
                labels.iter().filter(|label| label.contains("int8")).map(|&label| label.to_owned()),
            );
        }
    }
    ran
}

fn programs() -> u64 {
    let wanted = std::env::var("COREMILL_PROGRAMS").ok();
    wanted.and_then(|count| count.parse().ok()).unwrap_or(PROGRAMS)
}

#[test]
fn int8_convs_match_unfused_ops() {
    for seed in 0..programs() {
        let mut program = Program::new(seed);
        let spatial = 1 + program.draw.below(3);
        let mut shape = vec![1 + program.draw.below(2), program.draw.one(&[1, 3, 4, 6, 17])];
        shape.extend((0..spatial).map(|_| 5 + program.draw.below(5)));
        let x = program.steps("x", &shape, 0.03125);
        let (y, result) = program.convolution(&x, &shape);
        let y = program.activation(&y, &result);
        let y = program.steps(&y, &result, 0.25);
        check(&program.finish(&shape, &y), &shape, 0.25, 1.0);
    }
}

#[test]
fn int8_convs_with_add_or_float_output_match_unfused_ops() {
    for seed in 0..programs() {
        let mut program = Program::new(seed + 1000);
        let channels = program.draw.one(&[3, 16, 24]);
        let shape = vec![1, channels, 6, 7];
        let x = program.steps("x", &shape, 0.03125);
        let weight = program.weights(&[channels, channels, 1, 1], 0);
        let y = program.floats(&shape, &format!("conv(x = {x}, weight = {weight})"));
        // Without quantization the result is exact up to rounding.
        if program.draw.below(3) == 0 {
            let y = program.floats(&shape, &format!("tanh(x = {y})"));
            check(&program.finish(&shape, &y), &shape, 1e-3, 1.0);
            continue;
        }
        let y = program.steps(&y, &shape, 0.125);
        let other = match program.draw.chance() {
            true => x,
            false => program.steps("x", &shape, 0.0625),
        };
        let terms = if program.draw.chance() { (&y, &other) } else { (&other, &y) };
        let sum = program.floats(&shape, &format!("add(x = {}, y = {})", terms.0, terms.1));
        let sum = program.activation(&sum, &shape);
        let both = program.steps(&sum, &shape, 0.25);
        // In one of three programs, a multiplication also reads `y`. It multiplies the error of each factor by the other
        // factor, whose magnitude is less than 64.
        let (result, step) = match program.draw.below(3) {
            0 => (program.floats(&shape, &format!("mul(x = {both}, y = {y})")), 64.0 * 0.25),
            _ => (both, 0.25),
        };
        // The convolution's own codes may be off by one step, which is half a step of the sum.
        check(&program.finish(&shape, &result), &shape, step, 2.0);
    }
}

#[test]
fn int8_linear_layers_match_unfused_ops() {
    for seed in 0..programs() {
        let mut program = Program::new(seed + 2000);
        let (inputs, outputs) =
            (program.draw.one(&[1, 6, 33, 64]), program.draw.one(&[1, 7, 16, 40]));
        let mut shape: Vec<usize> =
            (0..program.draw.below(3)).map(|_| program.draw.one(&[1, 2, 13])).collect();
        shape.insert(0, 3);
        shape.push(inputs);
        let mut result = shape.clone();
        result.pop();
        result.push(outputs);
        let x = program.steps("x", &shape, 0.03125);
        let call = match program.draw.below(3) {
            0 => {
                let transposed = program.draw.chance();
                let (weight_shape, axis) =
                    if transposed { ([outputs, inputs], 0) } else { ([inputs, outputs], 1) };
                let weight = program.weights(&weight_shape, axis);
                format!("matmul(x = {x}, y = {weight}, transpose_y = bool({transposed}))")
            }
            _ => {
                let weight = program.weights(&[outputs, inputs], 0);
                let bias = program.bias(outputs);
                format!("linear(x = {x}, weight = {weight}{bias})")
            }
        };
        let y = program.floats(&result, &call);
        let y = program.activation(&y, &result);
        let y = program.steps(&y, &result, 0.25);
        check(&program.finish(&shape, &y), &shape, 0.25, 1.0);
    }
}

#[test]
fn int8_mul_and_concat_match_unfused_ops() {
    let mut ran = Vec::new();
    for seed in 0..programs() {
        let mut program = Program::new(seed + 4000);
        let shape = vec![2, program.draw.one(&[1, 4, 19]), 6, 5];
        let x = program.steps("x", &shape, 0.03125);
        // A convolution's result is channels-last.
        let (windows, channels) = match program.draw.chance() {
            true => program.convolution(&x, &shape),
            false => (program.floats(&shape, &format!("tanh(x = {x})")), shape.clone()),
        };
        let windows = program.steps(&windows, &channels, 0.0625);
        let (y, result) = match program.draw.below(4) {
            0 => {
                let result = [&[2, shape[1] + channels[1]][..], &channels[2..]].concat();
                let fits = channels[2..] == shape[2..];
                let (parts, result) = match fits {
                    true => (format!("{x}, {windows}"), result),
                    false => (format!("{x}, {x}, {x}"), vec![2, 3 * shape[1], 6, 5]),
                };
                let call = format!(
                    "concat(values = ({parts}), axis = int32(1), interleave = bool(false))"
                );
                (program.floats(&result, &call), result)
            }
            1 => {
                let axis = program.draw.one(&[0usize, 2, 3]);
                let mut result = channels.clone();
                result[axis] *= 2;
                let other = program.floats(&channels, &format!("sigmoid(x = {windows})"));
                let other = program.steps(&other, &channels, 0.0078125);
                let call = format!(
                    "concat(values = ({windows}, {other}), axis = int32({axis}), interleave = bool(false))"
                );
                (program.floats(&result, &call), result)
            }
            2 => {
                let other = program.floats(&channels, &format!("sigmoid(x = {windows})"));
                let other = program.steps(&other, &channels, 0.0078125);
                (program.floats(&channels, &format!("mul(x = {windows}, y = {other})")), channels)
            }
            _ => {
                let flat = vec![2, channels[1], 1, 1];
                let call = format!(
                    "reduce_mean(x = {windows}, axes = tensor<int32, [2]>([2, 3]), keep_dims = bool(true))"
                );
                let gate = program.floats(&flat, &call);
                let gate = program.steps(&gate, &flat, 0.015625);
                let (left, right) = match program.draw.chance() {
                    true => (&windows, &gate),
                    false => (&gate, &windows),
                };
                (program.floats(&channels, &format!("mul(x = {left}, y = {right})")), channels)
            }
        };
        let y = program.activation(&y, &result);
        let y = program.steps(&y, &result, 0.125);
        ran.extend(check(&program.finish(&shape, &y), &shape, 0.125, 2.0));
    }
    for label in ["concat int8", "mul int8"] {
        assert!(ran.iter().any(|ran| ran.starts_with(label)), "no plan has the step `{label}`");
    }
}

#[test]
fn int8_activations_pools_and_moves_match_unfused_ops() {
    for seed in 0..programs() {
        let mut program = Program::new(seed + 3000);
        let shape = vec![2, program.draw.one(&[1, 4, 9]), 6, 5];
        let (images, channels) = (shape[0], shape[1]);
        let x = program.steps("x", &shape, 0.03125);
        let (y, result) = match program.draw.below(7) {
            0 => {
                let gate = program.floats(&shape, &format!("sigmoid(x = {x})"));
                (program.floats(&shape, &format!("mul(x = {x}, y = {gate})")), shape.clone())
            }
            1 => (program.floats(&shape, &format!("tanh(x = {x})")), shape.clone()),
            2 => {
                let result = vec![images, channels, 3, 3];
                let call = format!(
                    "max_pool(x = {x}, kernel_sizes = tensor<int32, [2]>([3, 2]), strides = tensor<int32, [2]>([2, 2]), pad_type = string(\"custom\"), pad = tensor<int32, [4]>([1, 1, 0, 1]), ceil_mode = bool(false))"
                );
                (program.floats(&result, &call), result)
            }
            3 => {
                let keeps = program.draw.chance();
                let result =
                    if keeps { vec![images, channels, 1, 1] } else { vec![images, channels] };
                let call = format!(
                    "reduce_mean(x = {x}, axes = tensor<int32, [2]>([2, 3]), keep_dims = bool({keeps}))"
                );
                let mean = program.floats(&result, &call);
                let mean = program.activation(&mean, &result);
                let flat = vec![images, channels];
                let call = format!("reshape(x = {mean}, shape = tensor<int32, [2]>({flat:?}))");
                (program.floats(&flat, &call), flat)
            }
            4 => {
                let result = vec![images, channels * 6, 5];
                let call = format!("reshape(x = {x}, shape = tensor<int32, [3]>({result:?}))");
                (program.floats(&result, &call), result)
            }
            5 => {
                let result = vec![5, images, 6, channels];
                let call = format!("transpose(x = {x}, perm = tensor<int32, [4]>([3, 0, 2, 1]))");
                (program.floats(&result, &call), result)
            }
            _ => (program.activation(&x, &shape), shape.clone()),
        };
        let y = program.steps(&y, &result, 0.0625);
        check(&program.finish(&shape, &y), &shape, 0.0625, 1.0);
    }
}
