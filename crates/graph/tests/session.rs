//! Sessions: overhead of a run over the engine's time, and ExecuTorch programs.
//!
//! The limit of the overhead is 5 µs in a release build; `cargo test --release -p coremill-graph --test
//! session -- --nocapture` prints the measured time. The limit of debug builds is ten times as high.

#[path = "../../../fuzz/src/payloads.rs"]
mod payloads;

use std::time::{Duration, Instant};

use coremill_engine::{Engine, Hooks, Input, LoadOptions, View};
use coremill_graph::nn::RmsNorm;
use coremill_graph::{Array, ArrayView, DType, Device, ErrorKind, Graph, Precision, Session};
use coremill_pte::program::{
    Chain, Delegate, ExecutionPlan, Instruction, Place, Placement, Program, ScalarType, Tensor,
    Value, ValueId,
};
use coremill_tensor::Buffer;
use coremill_verify::{Code, check, verify};

/// A graph with one operation that doubles its input.
fn twice(count: usize) -> Graph {
    let graph = Graph::new();
    let x = graph.input("x", DType::Fp32, [1, count]);
    graph.output("y", x * 2.0);
    graph
}

fn session() -> Session {
    Session::new(Device::Host).precision(Precision::Fp32).threads(1)
}

#[test]
fn run_into_accepts_fp16_and_shaped_inputs() {
    let mut model = session().compile(&twice(6)).expect("it compiles");
    let x = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0];
    let halves = x.map(half::f16::from_f32);
    let shaped = ArrayView { shape: &[1, 6], elements: &x };
    let inputs: [&dyn coremill_graph::Input; 3] = [&x, &halves, &shaped];
    for input in inputs {
        let mut y = [0.0f32; 6];
        model.run_into(&[("x", input)], &mut [("y", &mut y)]).expect("it runs");
        assert_eq!(y, [2.0, 4.0, 6.0, 8.0, 10.0, 12.0]);
        assert_eq!(model.run(&[("x", input)]).expect("it runs").floats("y"), Some(&y[..]));
    }
}

#[test]
fn run_into_checks_names_and_sizes() {
    let mut model = session().compile(&twice(6)).expect("it compiles");
    let x = [1.0f32; 6];
    let mut short = [0.0f32; 5];
    let error =
        model.run_into(&[("x", &x)], &mut [("y", &mut short)]).expect_err("the slice is too short");
    assert_eq!(error.to_string(), "output `y` has 6 elements, but its slice has 5");
    let error =
        model.run_into(&[("x", &x)], &mut [("z", &mut short)]).expect_err("the name is unknown");
    assert_eq!(error.to_string(), "unknown output `z`; the only output is `y`");
    let mut y = [0.0f32; 6];
    let error =
        model.run_into(&[("w", &x)], &mut [("y", &mut y)]).expect_err("the name is unknown");
    assert_eq!(error.to_string(), "unknown input `w`; the only input is `x`");
    let error = model
        .run_into(&[("x", &[1.0f32; 4])], &mut [("y", &mut y)])
        .expect_err("the array is too short");
    assert!(error.to_string().contains("requires 6 elements, got 4"), "{error}");
    assert_eq!(y, [0.0; 6]);
    let mut again = [0.0f32; 6];
    let error = model.run_into(&[("x", &x)], &mut [("y", &mut y), ("y", &mut again)]);
    let error = error.expect_err("the output has two slices").to_string();
    assert!(error.starts_with("output `y` is given two slices"), "{error}");
    let error = model.compute_plan().expect_err("the host has no compute plan");
    assert_eq!(error.kind(), ErrorKind::Device);
}

#[test]
fn setting_params_again_preserves_states() {
    let graph = Graph::new();
    let x = graph.input("x", DType::Fp32, [1, 64]);
    let total = graph.state("sum", [1, 64]);
    total.write(total.read() + x);
    let hidden = x.matmul_t(graph.param("a", [64, 64])).relu();
    graph.output("y", hidden.matmul_t(graph.param("b", [64, 64])) + graph.param("c", [64]));
    graph.output("total", total.read());
    let ramp = |salt: usize| -> Vec<f32> {
        (0..64 * 64).map(|at| ((at * 37 + salt) % 83) as f32 / 410.0).collect()
    };
    let x: Vec<f32> = (0..64).map(|at| at as f32 / 64.0).collect();
    let mut model = session().compile(&graph).expect("it compiles");
    let set = |model: &mut coremill_graph::Executable, salts: [usize; 2], c: f32| {
        model.set_param("a", ramp(salts[0])).expect("the parameter exists");
        model.set_param("b", ramp(salts[1])).expect("the parameter exists");
        model.set_param("c", vec![c; 64]).expect("the parameter exists");
    };
    set(&mut model, [1, 2], 0.5);
    for (turn, (salts, c)) in
        [([1, 2], 0.5), ([1, 3], 0.5), ([1, 3], 2.0), ([4, 3], 2.0), ([3, 4], 0.0)]
            .into_iter()
            .enumerate()
    {
        set(&mut model, salts, c);
        let found = model.run(&[("x", &x)]).expect("it runs");
        let mut fresh = session().compile(&graph).expect("it compiles");
        set(&mut fresh, salts, c);
        let expected = fresh.run(&[("x", &x)]).expect("it runs");
        assert_eq!(found.floats("y"), expected.floats("y"), "{salts:?}");
        let total = found.floats("total").expect("floats");
        let expected: Vec<f32> = x.iter().map(|x| x * (turn + 1) as f32).collect();
        let near =
            total.iter().zip(&expected).all(|(found, expected)| (found - expected).abs() < 0.01);
        assert!(near, "turn {turn}: {total:?}");
    }
}

/// The minimum time of many runs, because other processes can slow down a run.
fn fastest(mut act: impl FnMut()) -> Duration {
    let time = |act: &mut dyn FnMut()| {
        let start = Instant::now();
        (0..20).for_each(|_| act());
        start.elapsed() / 20
    };
    (0..200).map(|_| time(&mut act)).min().unwrap_or_default()
}

#[test]
fn session_overhead_stays_below_limit() {
    let limit = Duration::from_micros(if cfg!(debug_assertions) { 50 } else { 5 });
    let mut model = session().compile(&twice(64)).expect("it compiles");
    let x = [1.5f32; 64];
    let mut y = [0.0f32; 64];
    let ours = fastest(|| model.run_into(&[("x", &x)], &mut [("y", &mut y)]).expect("it runs"));
    let plain = fastest(|| drop(model.run(&[("x", &x)]).expect("it runs")));

    let verified = verify(model.model().expect("a model")).expect("the model is valid");
    let options = LoadOptions { threads: 1, ..LoadOptions::default() };
    let engine = Engine::load(&verified, &options).expect("it loads");
    let mut direct = engine.session(engine.default_function()).expect("a session");
    let theirs = fastest(|| {
        let array = Array::floats(DType::Fp32, [1, 64], x.to_vec());
        let view: View<'_> = array.view();
        let (inputs, targets) = (&mut vec![Input::View(view)], &mut vec![None]);
        let results = direct.run_in_place(inputs, targets, &mut Hooks::default());
        drop(results.expect("it runs"));
    });
    println!(
        "the engine takes {theirs:?}, a session {ours:?} into slices, {plain:?} into new arrays; the limit of the difference is {limit:?}"
    );
    assert!(ours.saturating_sub(theirs) < limit && plain.saturating_sub(theirs) < limit);
    assert_eq!(y, [3.0; 64]);
}

/// A program whose only method doubles six elements in a delegate.
fn program() -> Program {
    let given = Tensor::new(ScalarType::Float, vec![2, 3], Placement::GivenAtRunTime);
    let placement = Placement::Planned(Place { arena: 1, offset: 0 });
    let made = Tensor::new(ScalarType::Float, vec![2, 3], placement);
    let arguments = vec![ValueId(0), ValueId(1)];
    let calls = vec![Instruction::DelegateCall { delegate: 0, arguments }];
    let plan = ExecutionPlan {
        name: "forward".to_owned(),
        values: vec![Value::Tensor(given), Value::Tensor(made)],
        inputs: vec![ValueId(0)],
        outputs: vec![ValueId(1)],
        chains: vec![Chain { instructions: calls, ..Chain::default() }],
        delegates: vec![Delegate { id: "CoreMLBackend".to_owned(), ..Delegate::default() }],
        arenas: vec![0, 24],
        ..ExecutionPlan::default()
    };
    let data = Buffer::from(payloads::payload(payloads::TWICE));
    Program { plans: vec![plan], delegate_data: vec![data.into()], ..Program::default() }
}

#[test]
fn opens_mlpackage_mlmodelc_and_pte_alike() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.pte");
    coremill_pte::write(&path, &program(), &Default::default()).expect("the file can be written");
    let mut program = session().open(&path).expect("it opens");
    assert_eq!(program.functions().expect("a list of functions"), ["forward"]);
    // Positional names are accepted as well as the names in the delegate.
    let x = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0];
    let mut y = [0.0; 6];
    program.run_into(&[("input_0", &x)], &mut [("output_0", &mut y)]).expect("it runs");
    assert_eq!(y, [2.0, 4.0, 6.0, 8.0, 10.0, 12.0]);
    let found = program.run(&[("input_0", &x)]).expect("it runs");
    assert_eq!(found.floats("output_0"), Some(&y[..]));
    let graph = Graph::new();
    let input = graph.input("x", DType::Fp32, [2, 3]);
    graph.output("y", input * 2.0);
    let mut model = session().compile(&graph).expect("it compiles");
    let mut opened = vec![program];
    for name in ["model.mlpackage", "model.mlmodelc"] {
        let path = folder.path().join(name);
        model.save(&path).expect("the model can be written");
        opened.push(session().open(&path).expect("it opens"));
    }
    for mut model in opened {
        let function = model.default_function().expect("a default function");
        assert_eq!(model.inputs(&function).expect("a list of inputs")[0].name, "x");
        let found = model.run(&[("x", &x)]).expect("it runs");
        assert_eq!(found.floats("y"), Some(&[2.0, 4.0, 6.0, 8.0, 10.0, 12.0][..]));
        let mut y = [0.0; 6];
        model.run_into(&[("x", &x)], &mut [("y", &mut y)]).expect("it runs");
        assert_eq!(found.floats("y"), Some(&y[..]));
        let error = model.run(&[("z", &x)]).expect_err("the name is unknown");
        assert_eq!(error.to_string(), "unknown input `z`; the only input is `x`");
        let error = model.set_param("w", [1.0f32]).expect_err("the model has no parameters");
        assert_eq!(error.kind(), ErrorKind::Parameter);
    }
    let error = session().open(folder.path().join("none.pte")).map(|_| ()).expect_err("no file");
    assert_eq!(error.kind(), ErrorKind::File);
    std::fs::write(folder.path().join("rubbish"), b"rubbish").expect("the file can be written");
    let error = session().open(folder.path().join("rubbish")).map(|_| ()).expect_err("not a model");
    assert_eq!(error.hint(), Some("pass a `.mlpackage`, a `.mlmodelc` or a `.pte`"));
}

#[test]
fn prepared_model_matches_unprepared_results() {
    let graph = Graph::new();
    let x = graph.input("x", DType::Fp32, [16, 64]);
    graph.output("y", x.matmul_t(graph.param("w", [80, 64])));
    let numbers = |count: usize| -> Vec<f32> {
        (0..count).map(|at| (at * 37 % 83) as f32 / 41.0 - 1.0).collect()
    };
    let given = numbers(16 * 64);
    let mut results = Vec::new();
    for is_prepared in [false, true] {
        let mut model = session().compile(&graph).expect("it compiles");
        let missing = model.prepare().expect_err("no parameter is set");
        assert_eq!(missing.kind(), ErrorKind::Parameter);
        model.set_param("w", numbers(80 * 64)).expect("the parameter exists");
        if is_prepared {
            model.prepare().expect("all parameters are set");
        }
        for _ in 0..3 {
            let outputs = model.run(&[("x", &given)]).expect("it runs");
            results.push(outputs.floats("y").expect("floats").to_vec());
        }
    }
    assert!(results.iter().all(|result| *result == results[0]));
}

/// A bounded norm divides by the largest magnitude, so its squares are at most 1. `check` recognizes this.
#[test]
fn bounded_rms_norm_has_no_square_overflow_warning() {
    let overflows = |norm: RmsNorm| {
        let graph = Graph::new();
        let x = graph.input("x", DType::Fp32, [1, 4, 64]);
        graph.output("y", norm.plain(x));
        let session = Session::new(Device::Host).precision(Precision::Fp16);
        let mut model = session.compile(&graph).expect("it compiles");
        let report = check(model.model().expect("a model"));
        report.diagnostics.iter().any(|found| found.code == Code::SquareOverflow)
    };
    assert!(overflows(RmsNorm::new(1e-6)));
    assert!(!overflows(RmsNorm::new(1e-6).bounded()));
}
