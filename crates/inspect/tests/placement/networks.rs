//! Forecasts for common network architectures.

use std::time::{Duration, Instant};

use coremill_inspect::placement::{ComputePlan, Device, Reason};
use coremill_mil::builder::{FunctionBuilder, no_folding};
use coremill_mil::ir::{
    Binding, Constant, ConstantData, Op, Opset, Program, Type, ValueId, Weight, WeightPlace,
};
use coremill_mil::model::Model;
use coremill_mil::ops::OpKind;
use coremill_tensor::DType;

use super::{on, without_description};

/// Builds an fp16 network. Its weights have a place in a file, but no data.
struct Network(FunctionBuilder);

impl Network {
    fn new() -> Network {
        Network(FunctionBuilder::new("main", Opset::Ios18, no_folding))
    }

    fn input(&mut self, name: &str, dtype: DType, shape: &[u64]) -> ValueId {
        self.0.reserve(name);
        self.0.input(name, Type::tensor(dtype, shape))
    }

    fn weight(&mut self, shape: &[u64]) -> Binding {
        let place = WeightPlace { file: "@model_path/weights/weight.bin".into(), offset: 64 };
        let data = ConstantData::Weight(Weight { data: None, place: Some(place) });
        Binding::Value(
            self.0.constant("w", Constant { ty: Type::tensor(DType::Fp16, shape), data }),
        )
    }

    fn op(&mut self, kind: OpKind, arguments: Vec<(&'static str, Binding)>) -> ValueId {
        let op =
            arguments.into_iter().fold(Op::new(kind), |op, (name, bound)| op.with(name, bound));
        self.append(op)
    }

    fn append(&mut self, op: Op) -> ValueId {
        let name = op.type_name().to_owned();
        let outputs =
            self.0.append(op, &name).unwrap_or_else(|errors| panic!("{name}: {errors:?}"));
        outputs[0]
    }

    fn unary(&mut self, kind: OpKind, x: ValueId) -> ValueId {
        self.op(kind, vec![("x", Binding::Value(x))])
    }

    fn binary(&mut self, kind: OpKind, x: ValueId, y: Binding) -> ValueId {
        self.op(kind, vec![("x", Binding::Value(x)), ("y", y)])
    }

    fn conv(&mut self, x: ValueId, shape: [u64; 4], stride: i32, groups: i32) -> ValueId {
        let weight = self.weight(&shape);
        let bias = self.weight(&shape[..1]);
        let pad = (shape[2] / 2) as i32;
        self.op(
            OpKind::Conv,
            vec![
                ("x", Binding::Value(x)),
                ("weight", weight),
                ("bias", bias),
                ("strides", ints(&[stride; 2])),
                ("pad_type", text("custom")),
                ("pad", ints(&[pad; 4])),
                ("groups", int(groups)),
            ],
        )
    }

    fn linear(&mut self, x: ValueId, outputs: u64, inputs: u64) -> ValueId {
        let (weight, bias) = (self.weight(&[outputs, inputs]), self.weight(&[outputs]));
        self.op(OpKind::Linear, vec![("x", Binding::Value(x)), ("weight", weight), ("bias", bias)])
    }

    fn norm(&mut self, x: ValueId, size: u64) -> ValueId {
        let (gamma, beta) = (self.weight(&[size]), self.weight(&[size]));
        let axes = ints(&[-1]);
        self.op(
            OpKind::LayerNorm,
            vec![("x", Binding::Value(x)), ("axes", axes), ("gamma", gamma), ("beta", beta)],
        )
    }

    fn cast(&mut self, x: ValueId, dtype: &str) -> ValueId {
        self.op(OpKind::Cast, vec![("x", Binding::Value(x)), ("dtype", text(dtype))])
    }

    fn reshape(&mut self, x: ValueId, shape: &[i32]) -> ValueId {
        self.op(OpKind::Reshape, vec![("x", Binding::Value(x)), ("shape", ints(shape))])
    }

    fn transpose(&mut self, x: ValueId, perm: &[i32]) -> ValueId {
        self.op(OpKind::Transpose, vec![("x", Binding::Value(x)), ("perm", ints(perm))])
    }

    fn mean(&mut self, x: ValueId, axes: &[i32]) -> ValueId {
        self.op(OpKind::ReduceMean, vec![("x", Binding::Value(x)), ("axes", ints(axes))])
    }

    /// Multi-head attention over `tokens` tokens, with the projections of query, key, value and output.
    fn attention(&mut self, x: ValueId, tokens: i32, heads: i32, size: i32) -> ValueId {
        let width = (heads * size) as u64;
        let mut parts = Vec::new();
        for _ in 0..3 {
            let part = self.linear(x, width, width);
            let part = self.reshape(part, &[1, tokens, heads, size]);
            parts.push(Binding::Value(self.transpose(part, &[0, 2, 1, 3])));
        }
        let [query, key, value] = parts.try_into().expect("three parts");
        let attended = self.op(
            OpKind::ScaledDotProductAttention,
            vec![("query", query), ("key", key), ("value", value)],
        );
        let attended = self.transpose(attended, &[0, 2, 1, 3]);
        let attended = self.reshape(attended, &[1, tokens, heads * size]);
        self.linear(attended, width, width)
    }

    fn finish(mut self, output: ValueId) -> Model {
        let body = self.0.function.body;
        self.0.function.block_mut(body).outputs = vec![output];
        without_description(Program { functions: vec![self.0.function], ..Program::default() })
    }
}

fn ints(values: &[i32]) -> Binding {
    Binding::Literal(Constant::int32s(values))
}

fn int(value: i32) -> Binding {
    Binding::Literal(Constant::int32(value))
}

fn text(value: &str) -> Binding {
    Binding::Literal(Constant::string(value))
}

/// The operations that are not on the Neural Engine, with the reason.
fn elsewhere(plan: &ComputePlan) -> Vec<(&str, Option<Reason>)> {
    let elsewhere = plan.placed().filter(|(_, device)| *device != Device::NeuralEngine);
    elsewhere.map(|(operation, _)| (&*operation.operator, operation.reason)).collect()
}

fn mobilenet_v2() -> Model {
    let mut net = Network::new();
    let x = net.input("image", DType::Fp32, &[1, 3, 224, 224]);
    let x = net.cast(x, "fp16");
    let mut x = net.conv(x, [32, 3, 3, 3], 2, 1);
    x = net.unary(OpKind::Relu6, x);
    let mut channels = 32;
    for (expansion, outputs, count, first) in [
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    ] {
        for index in 0..count {
            let wide = channels * expansion;
            let mut y = x;
            if expansion > 1 {
                y = net.conv(y, [wide, channels, 1, 1], 1, 1);
                y = net.unary(OpKind::Relu6, y);
            }
            y = net.conv(y, [wide, 1, 3, 3], if index == 0 { first } else { 1 }, wide as i32);
            y = net.unary(OpKind::Relu6, y);
            y = net.conv(y, [outputs, wide, 1, 1], 1, 1);
            x = if index > 0 { net.binary(OpKind::Add, y, Binding::Value(x)) } else { y };
            channels = outputs;
        }
    }
    x = net.conv(x, [1280, 320, 1, 1], 1, 1);
    x = net.unary(OpKind::Relu6, x);
    x = net.mean(x, &[2, 3]);
    x = net.linear(x, 1000, 1280);
    x = net.cast(x, "fp32");
    net.finish(x)
}

fn resnet_50() -> Model {
    let mut net = Network::new();
    let x = net.input("image", DType::Fp32, &[1, 3, 224, 224]);
    let x = net.cast(x, "fp16");
    let mut x = net.conv(x, [64, 3, 7, 7], 2, 1);
    x = net.unary(OpKind::Relu, x);
    x = net.op(
        OpKind::MaxPool,
        vec![
            ("x", Binding::Value(x)),
            ("kernel_sizes", ints(&[3, 3])),
            ("strides", ints(&[2, 2])),
            ("pad_type", text("custom")),
            ("pad", ints(&[1, 1, 1, 1])),
        ],
    );
    let mut channels = 64;
    for (width, count, first) in [(64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)] {
        for index in 0..count {
            let stride = if index == 0 { first } else { 1 };
            let mut y = net.conv(x, [width, channels, 1, 1], 1, 1);
            y = net.unary(OpKind::Relu, y);
            y = net.conv(y, [width, width, 3, 3], stride, 1);
            y = net.unary(OpKind::Relu, y);
            y = net.conv(y, [4 * width, width, 1, 1], 1, 1);
            if index == 0 {
                x = net.conv(x, [4 * width, channels, 1, 1], stride, 1);
            }
            x = net.binary(OpKind::Add, y, Binding::Value(x));
            x = net.unary(OpKind::Relu, x);
            channels = 4 * width;
        }
    }
    x = net.mean(x, &[2, 3]);
    x = net.linear(x, 1000, 2048);
    x = net.cast(x, "fp32");
    net.finish(x)
}

fn vit_b_16() -> Model {
    let mut net = Network::new();
    let x = net.input("image", DType::Fp32, &[1, 3, 224, 224]);
    let x = net.cast(x, "fp16");
    let weight = net.weight(&[768, 3, 16, 16]);
    let mut x = net.op(
        OpKind::Conv,
        vec![("x", Binding::Value(x)), ("weight", weight), ("strides", ints(&[16, 16]))],
    );
    x = net.reshape(x, &[1, 768, 196]);
    x = net.transpose(x, &[0, 2, 1]);
    let class = net.weight(&[1, 1, 768]);
    let values = vec![class, Binding::Value(x)];
    let joined = Op::new(OpKind::Concat).with_list("values", values).with("axis", int(1));
    x = net.append(joined.with("interleave", Binding::Literal(Constant::bool(false))));
    let positions = net.weight(&[1, 197, 768]);
    x = net.binary(OpKind::Add, x, positions);
    for _ in 0..12 {
        let y = net.norm(x, 768);
        let y = net.attention(y, 197, 12, 64);
        x = net.binary(OpKind::Add, x, Binding::Value(y));
        let y = net.norm(x, 768);
        let y = net.linear(y, 3072, 768);
        let y = net.op(OpKind::Gelu, vec![("x", Binding::Value(y)), ("mode", text("EXACT"))]);
        let y = net.linear(y, 768, 3072);
        x = net.binary(OpKind::Add, x, Binding::Value(y));
    }
    x = net.norm(x, 768);
    x = net.op(
        OpKind::SliceBySize,
        vec![("x", Binding::Value(x)), ("begin", ints(&[0, 0, 0])), ("size", ints(&[1, 1, 768]))],
    );
    x = net.reshape(x, &[1, 768]);
    x = net.linear(x, 1000, 768);
    x = net.cast(x, "fp32");
    net.finish(x)
}

/// A small Llama with a token embedding, whose lookup is a `gather` at run time.
fn llama() -> Model {
    let mut net = Network::new();
    let tokens = net.input("tokens", DType::Int32, &[1, 128]);
    let table = net.weight(&[32_000, 512]);
    let mut x = net.op(
        OpKind::Gather,
        vec![
            ("x", table),
            ("indices", Binding::Value(tokens)),
            ("axis", int(0)),
            ("validate_indices", Binding::Literal(Constant::bool(false))),
        ],
    );
    for _ in 0..4 {
        let y = net.norm(x, 512);
        let y = net.attention(y, 128, 8, 64);
        x = net.binary(OpKind::Add, x, Binding::Value(y));
        let y = net.norm(x, 512);
        let (gate, up) = (net.linear(y, 1376, 512), net.linear(y, 1376, 512));
        let gate = net.unary(OpKind::Silu, gate);
        let y = net.binary(OpKind::Mul, gate, Binding::Value(up));
        let y = net.linear(y, 512, 1376);
        x = net.binary(OpKind::Add, x, Binding::Value(y));
    }
    x = net.norm(x, 512);
    x = net.linear(x, 32_000, 512);
    net.finish(x)
}

#[test]
fn vision_models_run_fully_on_neural_engine() {
    for (name, model) in
        [("MobileNetV2", mobilenet_v2()), ("ResNet-50", resnet_50()), ("ViT-B/16", vit_b_16())]
    {
        for chip in ["m4", "m5", "a19pro", "a16"] {
            let plan = on(chip, &model);
            assert!(plan.placed().count() > 50, "{name}");
            assert_eq!(elsewhere(&plan), [], "{name} on {chip}");
        }
    }
}

/// The 16×16 kernel of ViT's patch convolution exceeds the limit of an M1.
#[test]
fn m1_keeps_16x16_patch_conv_off_neural_engine() {
    let plan = on("m1", &vit_b_16());
    let limits = elsewhere(&plan).into_iter().filter(|(_, reason)| *reason == Some(Reason::Limit));
    assert_eq!(limits.collect::<Vec<_>>(), [("ios18.conv", Some(Reason::Limit))]);
    assert!(plan.neural_engine_share() > 0.95);
}

#[test]
fn llama_keeps_only_gather_off_neural_engine() {
    let plan = on("m4", &llama());
    assert_eq!(elsewhere(&plan), [("ios18.gather", Some(Reason::NoPath))]);
    assert_eq!(plan.operations[0].outputs, ["gather"]);
    assert!(plan.neural_engine_share() > 0.95);
}

#[test]
fn small_models_stay_on_cpu() {
    let mut net = Network::new();
    let mut x = net.input("x", DType::Fp16, &[1, 64, 32, 32]);
    for _ in 0..2 {
        x = net.conv(x, [64, 64, 3, 3], 1, 1);
        x = net.unary(OpKind::Relu, x);
    }
    let plan = on("m4", &net.finish(x));
    assert_eq!(
        elsewhere(&plan),
        [
            ("ios18.conv", Some(Reason::NotWorthIt)),
            ("ios18.relu", Some(Reason::NotWorthIt)),
            ("ios18.conv", Some(Reason::NotWorthIt)),
            ("ios18.relu", Some(Reason::NotWorthIt)),
        ]
    );
    let detail = plan.operations[0].detail.as_deref().unwrap_or_default();
    assert!(detail.contains("0.191 ms") && detail.contains("0.25 ms"), "{detail}");
    // A small classifier of linear layers, as in tutorials.
    let mut net = Network::new();
    let x = net.input("x", DType::Fp16, &[1, 784]);
    let x = net.linear(x, 128, 784);
    let x = net.unary(OpKind::Relu, x);
    let x = net.linear(x, 10, 128);
    assert_eq!(on("m4", &net.finish(x)).neural_engine_share(), 0.0);
}

#[test]
fn plans_thousand_operations_within_time_limit() {
    let mut net = Network::new();
    let mut x = net.input("x", DType::Fp16, &[1, 64, 32, 32]);
    for _ in 0..500 {
        x = net.conv(x, [64, 64, 3, 3], 1, 1);
        x = net.unary(OpKind::Relu, x);
    }
    let model = net.finish(x);
    let time = || {
        let start = Instant::now();
        assert_eq!(on("m4", &model).placed().count(), 1000);
        start.elapsed()
    };
    let best = (0..5).map(|_| time()).min().unwrap_or(Duration::MAX);
    // Type inference is several times slower without optimization.
    let limit = if cfg!(debug_assertions) { 250 } else { 50 };
    assert!(
        best < Duration::from_millis(limit),
        "a forecast takes {best:?}; the limit is {limit} ms"
    );
}
