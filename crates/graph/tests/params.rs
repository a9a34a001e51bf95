//! Setting parameters again has the same result as compiling with them, for all optimizations of the compiler
//! and the plan.

use coremill_graph::nn::{
    Activation, BatchNorm, Conv, ConvTranspose, Embedding, GroupNorm, InstanceNorm, LayerNorm,
    Linear, Lstm, RmsNorm,
};
use coremill_graph::ops::{Concat, Matmul};
use coremill_graph::{
    ArrayView, DType, Device, Executable, Graph, Input, Opset, Param, Precision, Session, Tensor,
};

/// Numbers that depend on the salt.
fn numbers(count: usize, salt: usize) -> Vec<f32> {
    (0..count).map(|at| ((at * 37 + salt * 101 + 11) % 97) as f32 / 97.0 - 0.4).collect()
}

/// A network with an input `x`.
struct Net {
    name: &'static str,
    shape: &'static [usize],
    build: for<'g> fn(&'g Graph, Tensor<'g>) -> Tensor<'g>,
}

const NETS: &[Net] = &[
    Net {
        name: "linear layers, a norm, residuals",
        shape: &[2, 12, 72],
        build: |_, x| {
            let y = LayerNorm::new(1e-5).apply("norm", x);
            let y = Activation::Gelu.apply(Linear::new(96).apply("up", y));
            x + Linear::new(72).apply("down", y)
        },
    },
    Net {
        name: "few rows, multiplied by weights without packing them",
        shape: &[2, 80],
        build: |graph, x| {
            let y = x.matmul_t(graph.param("a", [96, 80])).relu();
            y.matmul(graph.param("b", [96, 80]), Matmul::new()) + graph.param("c", [80])
        },
    },
    Net {
        name: "convolutions: plain, grouped, depthwise, transposed",
        shape: &[1, 8, 10, 10],
        build: |_, x| {
            let y = Conv::new(72, [3, 3]).padding([1, 1]).apply("plain", x).relu();
            let y = Conv::new(72, [3, 3]).groups(4).apply("grouped", y);
            let y = Conv::new(72, [3, 3]).padding([1, 1]).groups(72).apply("each", y).relu();
            ConvTranspose::new(Conv::new(9, [2, 2]).stride([2, 2])).apply("spread", y)
        },
    },
    Net {
        name: "norms, one of them folded into a convolution",
        shape: &[1, 8, 9, 9],
        build: |_, x| {
            let y = Conv::new(66, [3, 3]).without_bias().apply("conv", x);
            let y = BatchNorm::new(1e-5).apply("batch", y).relu();
            let y = GroupNorm::new(6, 1e-5).apply("group", y);
            InstanceNorm::new(1e-5).affine().apply("instance", y)
        },
    },
    Net {
        name: "embedding, norm, constants of elementwise operations",
        shape: &[1, 6],
        build: |graph, x| {
            let y =
                Embedding::new(50, 80).apply("table", (x * 10.0 + 5.0).abs().cast(DType::Int32));
            let y = RmsNorm::new(1e-6).apply("rms", y) * graph.param("scale", [80]);
            let y = y + graph.param("shift", [6, 1]);
            y.maximum(graph.param("least", [1])) * graph.param("one", [0u64; 0])
        },
    },
    Net {
        name: "a parameter with several uses, one of them a concatenation",
        shape: &[9, 70],
        build: |graph, x| {
            let w = graph.param("w", [70, 70]);
            let both = graph.concat([w, graph.param("v", [30, 70])], 0, Concat::new());
            let y = x.matmul_t(both).narrow(1, 20..90);
            y.matmul_t(w).tanh() + x.matmul(w, Matmul::new())
        },
    },
    Net {
        name: "recurrent layer",
        shape: &[5, 2, 12],
        build: |_, x| Lstm::new(10).apply("lstm", x, None).0,
    },
    Net {
        name: "parameters in a loop",
        shape: &[3, 66],
        build: |graph, x| {
            let w = graph.param("w", [66, 66]);
            let b = graph.param("b", [66]);
            graph.while_loop(
                &[graph.int(0), x],
                |variables| variables[0].less(3),
                |variables| vec![variables[0] + 1, variables[1].matmul_t(w).tanh() + b],
            )[1]
        },
    },
];

fn built(net: &Net) -> Graph {
    let graph = Graph::new();
    let x = graph.input("x", DType::Fp32, net.shape.to_vec());
    graph.output("y", (net.build)(&graph, x));
    graph
}

fn run(model: &mut Executable, net: &Net) -> Vec<f32> {
    let x = numbers(net.shape.iter().product(), 5);
    let x = ArrayView { shape: net.shape, elements: &x };
    let outputs = model.run(&[("x", &x as &dyn Input)]).expect("it runs");
    outputs.floats("y").expect("floats").to_vec()
}

/// The bits, so that NaN equals itself.
fn bits(floats: &[f32]) -> Vec<u32> {
    floats.iter().map(|float| float.to_bits()).collect()
}

#[test]
fn setting_params_again_matches_fresh_model() {
    for net in NETS {
        for precision in [Precision::Fp32, Precision::Fp16] {
            let session = Session::new(Device::Host).precision(precision).threads(1);
            let graph = built(net);
            let sizes: Vec<(String, usize)> = graph
                .params()
                .into_iter()
                .map(|(name, shape)| (name, shape.iter().product::<u64>() as usize))
                .collect();
            let mut now: Vec<Vec<f32>> =
                sizes.iter().enumerate().map(|(at, (_, size))| numbers(*size, at)).collect();
            let fresh = |now: &[Vec<f32>]| {
                let mut model = session.compile(&graph).expect("it compiles");
                for ((name, _), elements) in sizes.iter().zip(now) {
                    model.set_param(name, elements).expect("the parameter exists");
                }
                run(&mut model, net)
            };
            let mut model = session.compile(&graph).expect("it compiles");
            for ((name, _), elements) in sizes.iter().zip(&now) {
                model.set_param(name, elements).expect("the parameter exists");
            }
            assert_eq!(bits(&run(&mut model, net)), bits(&fresh(&now)), "{}", net.name);
            for (at, (name, size)) in sizes.iter().enumerate() {
                let others = [
                    numbers(*size, at + 50),
                    vec![0.0; *size],
                    vec![1.0; *size],
                    numbers(*size, at + 60).iter().map(|x| x * 2e5).collect(),
                    numbers(*size, at + 70),
                ];
                // Every third parameter is set to all of these values, the others only to the first.
                let tried: Vec<_> =
                    if at % 3 == 0 { others.to_vec() } else { others[..1].to_vec() };
                for elements in tried {
                    now[at] = elements;
                    model.set_param(name, &now[at]).expect("the parameter exists");
                    let context = format!("{}, {precision:?}: `{name}`", net.name);
                    assert_eq!(bits(&run(&mut model, net)), bits(&fresh(&now)), "{context}");
                }
            }
        }
    }
}

#[test]
fn params_change_dtype_and_round_trip_package() {
    let net = &NETS[0];
    let halves = |floats: &[f32]| -> Vec<u8> {
        floats.iter().flat_map(|&x| half::f16::from_f32(x).to_le_bytes()).collect()
    };
    let bfloats = |floats: &[f32]| -> Vec<u8> {
        floats.iter().flat_map(|&x| half::bf16::from_f32(x).to_le_bytes()).collect()
    };
    let directory = tempfile::tempdir().expect("a directory");
    for precision in [Precision::Fp32, Precision::Fp16] {
        let session = Session::new(Device::Host).precision(precision).threads(1);
        let graph = built(net);
        let shape = |name: &str| -> Vec<u64> {
            graph
                .params()
                .into_iter()
                .find(|(found, _)| found == name)
                .expect("the parameter exists")
                .1
        };
        let forms = |name: &str, salt: usize| -> Vec<Param> {
            let shape = shape(name);
            let floats = numbers(shape.iter().product::<u64>() as usize, salt);
            // Numbers outside the range of `fp16`.
            let large: Vec<f32> = floats.iter().map(|x| x * 1e6).collect();
            vec![
                Param::elements(DType::Fp16, shape.clone(), halves(&floats))
                    .expect("valid elements"),
                Param::floats(shape.clone(), &floats).expect("valid elements"),
                Param::elements(DType::Bf16, shape.clone(), bfloats(&floats))
                    .expect("valid elements"),
                Param::floats(shape, &large).expect("valid elements"),
            ]
        };
        let names = ["up.weight", "up.bias", "norm.weight", "down.weight"];
        for (first, second) in [(0, 1), (1, 2), (2, 0), (0, 3), (3, 0)] {
            let mut fresh = session.compile(&graph).expect("it compiles");
            let mut model = session.compile(&graph).expect("it compiles");
            for (name, shape) in graph.params() {
                let count = shape.iter().product::<u64>() as usize;
                for model in [&mut model, &mut fresh] {
                    model.set_param(&name, numbers(count, 1)).expect("the parameter exists");
                }
            }
            for name in names {
                model.set(name, forms(name, 2)[first].clone()).expect("the parameter exists");
                fresh.set(name, forms(name, 3)[second].clone()).expect("the parameter exists");
            }
            run(&mut model, net);
            for name in names {
                model.set(name, forms(name, 3)[second].clone()).expect("the parameter exists");
            }
            let found = run(&mut model, net);
            let context = format!("{precision:?}: from {first} to {second}");
            assert_eq!(bits(&found), bits(&run(&mut fresh, net)), "{context}");
            let path = directory.path().join("Set.mlpackage");
            model.save(&path).expect("the package can be written");
            let mut opened = session.open(&path).expect("the package can be read");
            assert_eq!(bits(&run(&mut opened, net)), bits(&found), "{context}");
            std::fs::remove_dir_all(&path).expect("the package can be removed");
        }
    }
}

#[test]
fn set_param_applies_to_all_functions() {
    let graphs: Vec<Graph> = ["first", "second"]
        .into_iter()
        .map(|name| {
            let graph = Graph::named(name, Opset::Ios18);
            let x = graph.input("x", DType::Fp32, [2, 70]);
            let w = graph.param("w", [70, 70]);
            graph.output(
                "y",
                if name == "first" { x.matmul_t(w) } else { x.matmul(w, Matmul::new()) },
            );
            graph
        })
        .collect();
    let session = Session::new(Device::Host).precision(Precision::Fp32);
    let graphs: Vec<&Graph> = graphs.iter().collect();
    let mut model = session.compile_all(&graphs).expect("it compiles");
    let x = numbers(140, 3);
    for salt in [1, 2] {
        let w = numbers(70 * 70, salt);
        model.set_param("w", &w).expect("the parameter exists");
        for (name, is_transposed) in [("first", false), ("second", true)] {
            let outputs = model.run_function(name, &[("x", &x)]).expect("it runs");
            let index = |to: usize, from: usize| {
                if is_transposed { from * 70 + to } else { to * 70 + from }
            };
            for (at, found) in outputs.floats("y").expect("floats").iter().enumerate() {
                let row = &x[at / 70 * 70..][..70];
                let expected: f32 =
                    row.iter().enumerate().map(|(from, x)| x * w[index(at % 70, from)]).sum();
                assert!((found - expected).abs() < 1e-3, "{name}: {found} is not {expected}");
            }
        }
    }
}
