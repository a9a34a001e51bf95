//! Sessions on Core ML's devices, whose models run on the stand-ins; the results equal the engine's.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Instant;

use coremill_graph::{
    ArrayView, DType, Device, DeviceKind, Executable, Graph, Opset, Precision, Session,
    ane_available, chip_info,
};

#[path = "../../../crates/graph/examples/compare_devices.rs"]
#[expect(dead_code, reason = "the tests call only `compare` of this example program")]
mod compare_devices;

struct Counting;

thread_local! {
    /// Bytes that this thread has allocated.
    static ALLOCATED: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: forwards to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATED.try_with(|bytes| bytes.set(bytes.get() + layout.size()));
        // SAFETY: as above.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The stand-in for the packages that sessions write: two functions, one with a state.
const MODEL: &str = "{ pads = 3; compile = slow; functions = {
    main = { does = affine; inputs = ({ name = x; shape = (2, 3); }); outputs = ({ name = y; shape = (2, 3); }); };
    sum = { does = add; inputs = ({ name = x; shape = (2, 3); }); outputs = ({ name = y; shape = (2, 3); });
        states = ({ name = total; type = fp16; shape = (2, 3); }); };
    more = { does = add; inputs = ({ name = x; shape = (2, 3); }); outputs = ({ name = y; shape = (2, 3); });
        states = ({ name = total; type = fp16; shape = (2, 3); }); }; }; }";

fn set_stand_in_model() {
    // SAFETY: each test sets it to the same value before it is read.
    unsafe { std::env::set_var("COREMILL_STANDIN_MODEL", MODEL) };
}

fn affine() -> Graph {
    let graph = Graph::new();
    let x = graph.input("x", DType::Fp32, [2, 3]);
    let scale = graph.param("scale", [1, 3]);
    graph.output("y", x * scale + 1.0);
    graph
}

fn sum(name: &str) -> Graph {
    let graph = Graph::named(name, Opset::Ios18);
    let x = graph.input("x", DType::Fp32, [2, 3]);
    let total = graph.state("total", [2, 3]);
    total.write(total.read() + x);
    graph.output("y", total.read());
    graph
}

fn step(model: &mut Executable, function: &str, x: f32) -> f32 {
    let outputs = model.run_function(function, &[("x", &[x; 6])]).expect("it runs");
    outputs.floats("y").expect("floats")[5]
}

#[test]
fn graphs_run_on_core_ml_and_compile_once() {
    set_stand_in_model();
    let folder = tempfile::tempdir().expect("a folder");
    let x = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0];
    let mut times = Vec::new();
    let mut results = Vec::new();
    for device in [Device::NeuralEngine, Device::NeuralEngine, Device::Host] {
        let session = Session::new(device).precision(Precision::Fp32).cache(folder.path());
        let begin = Instant::now();
        let mut model = session.compile(&affine()).expect("it compiles");
        model.set_param("scale", [2.0f32; 3]).expect("it is set");
        model.prepare().expect("it loads");
        times.push(begin.elapsed().as_secs_f64());
        let outputs = model.run(&[("x", &x)]).expect("it runs");
        let mut y = [0.0f32; 6];
        let shaped = ArrayView { shape: &[2, 3], elements: &x };
        model.run_into(&[("x", &shaped)], &mut [("y", &mut y)]).expect("it runs");
        assert_eq!(outputs.floats("y"), Some(&y[..]));
        results.push(outputs);
        if device != Device::Host {
            let plan = model.compute_plan().expect("a compute plan");
            assert!(
                plan.operations.iter().any(|one| one.preferred == Some(DeviceKind::NeuralEngine))
            );
            let mut short = [0.0f32; 5];
            let error =
                model.run_into(&[("x", &x)], &mut [("y", &mut short)]).expect_err("too short");
            assert!(error.to_string().contains("its slice has 5"), "{error}");
            let error = model.run(&[("z", &x)]).expect_err("unknown input");
            assert_eq!(error.to_string(), "unknown input `z`; the only input is `x`");
        }
    }
    assert_eq!(results[0].floats("y"), Some(&[3.0, 5.0, 7.0, 9.0, 11.0, 13.0][..]));
    assert!(results.iter().all(|one| *one == results[0]), "Core ML and the engine differ");
    // The compilation takes a second.
    assert!(times[0] >= 1.0 && times[1] < 0.5, "{times:?}");
}

/// Tests how an example compares Core ML with the engine.
#[test]
fn example_compares_core_ml_with_engine() {
    set_stand_in_model();
    let folder = tempfile::tempdir().expect("a folder");
    let session = Session::new(Device::Host).precision(Precision::Fp32);
    let compare = |name: &str, model: &mut Executable| {
        let path = folder.path().join(name);
        model.save(&path).expect("it is written");
        compare_devices::compare(&path, Device::Cpu, &folder.path().join("cache"))
    };
    let mut model = session.compile(&affine()).expect("it compiles");
    model.set_param("scale", [2.0f32; 3]).expect("it is set");
    let error = compare("right.mlpackage", &mut model).expect("the results agree");
    let error = error.expect("they are compared");
    assert!(error < 1e-6, "{error}");
    // The stand-in doubles its input, but this model triples a column.
    model.set_param("scale", [2.0f32, 2.0, 3.0]).expect("it is set");
    let problem = compare("wrong.mlpackage", &mut model).expect_err("the results differ");
    assert!(problem.starts_with("`y` of `main` in step 0 has an error of"), "{problem}");
    let mut states = session.compile_all(&[&sum("sum"), &sum("more")]).expect("it compiles");
    assert!(compare("states.mlpackage", &mut states).expect("the results agree").is_some());
}

#[test]
fn functions_share_states() {
    set_stand_in_model();
    let folder = tempfile::tempdir().expect("a folder");
    for device in [Device::All, Device::Host] {
        let session = Session::new(device).cache(folder.path());
        let mut model = session.compile_all(&[&sum("sum"), &sum("more")]).expect("it compiles");
        let steps = [("sum", 1.0), ("sum", 2.0), ("more", 4.0), ("sum", 8.0)];
        let found = steps.map(|(function, x)| step(&mut model, function, x));
        assert_eq!(found, [1.0, 3.0, 7.0, 15.0], "{device}");
        assert_eq!(model.state("total").expect("a state").as_floats(), Some(&[15.0; 6][..]));
        model.set_state("total", &[100.0f32; 6]).expect("it is set");
        assert_eq!(step(&mut model, "more", 1.0), 101.0);
        model.reset().expect("reset");
        assert_eq!(step(&mut model, "sum", 5.0), 5.0);
        let error = model.state("none").expect_err("no such state");
        assert_eq!(error.to_string(), "unknown state `none`; the only state is `total`");
        assert_eq!(model.states("sum").expect("states").len(), 1);
    }
}

#[test]
fn reports_chip_and_available_devices() {
    let info = chip_info();
    assert!(ane_available() && info.neural_engine);
    assert!(info.chip.expect("a chip").neural_engine_cores > 0);
    assert!(Device::ALL.iter().all(|device| device.is_available()));
}

#[test]
fn run_into_does_not_allocate_tensors() {
    set_stand_in_model();
    const COUNT: usize = 1 << 20;
    let graph = Graph::new();
    let x = graph.input("x", DType::Fp32, [1, COUNT]);
    graph.output("y", x * 2.0);
    let session = Session::new(Device::Host).precision(Precision::Fp32).threads(1);
    let mut model = session.compile(&graph).expect("it compiles");
    let x: Vec<f32> = (0..COUNT).map(|at| (at % 97) as f32).collect();
    let mut y = vec![0.0f32; COUNT];
    let mut run = |y: &mut [f32]| {
        let before = ALLOCATED.get();
        model.run_into(&[("x", &x)], &mut [("y", y)]).expect("it runs");
        ALLOCATED.get() - before
    };
    // The first run creates a plan.
    run(&mut y);
    y.fill(0.0);
    let allocated = run(&mut y);
    println!("a run allocates {allocated} bytes; each tensor has {}", COUNT * 4);
    assert!(allocated < 16 << 10, "{allocated}");
    assert!(y.iter().zip(&x).all(|(y, x)| *y == x * 2.0));
}
