//! What is told of a method while it runs, and what it keeps: `total.pte` adds to a state in one model, and takes what is
//! positive of it by a kernel.

use std::path::Path;

use coremill::DType;
use coremill::engine::Array;
use coremill::executorch::{self, Runner};
use coremill::executorch::{Hooks, LoadOptions, Span};

fn total(options: LoadOptions) -> Runner {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../cli/tests/files/total.pte");
    let program = executorch::open(path).expect("it is a program");
    Runner::new(program, None, options).expect("it has a method")
}

fn floats(elements: [f32; 4]) -> Array {
    Array::floats(DType::Fp32, [1, 4], elements.to_vec())
}

fn run(runner: &mut Runner, elements: [f32; 4]) -> Vec<f32> {
    let given = [(runner.ports()[0].name.clone(), floats(elements))];
    let outputs = runner.run(&given).expect("it runs");
    outputs[0].1.as_floats().expect("floats").to_vec()
}

#[test]
fn spans_hold_kernels_and_what_is_within_delegates() {
    let mut runner = total(LoadOptions::default());
    let given = [(runner.ports()[0].name.clone(), floats([1.0; 4]))];
    let mut spans: Vec<Span> = Vec::new();
    let mut hooks = Hooks { profile: Some(&mut spans), ..Hooks::default() };
    runner.run_with(&given, &mut hooks).expect("it runs");
    let (delegate, kernel) = match &spans[..] {
        [inner @ .., delegate, kernel] if !inner.is_empty() => {
            assert!(inner.iter().all(|span| {
                span.start >= delegate.start
                    && span.start + span.elapsed <= delegate.start + delegate.elapsed
            }));
            (delegate, kernel)
        }
        _ => panic!("{spans:?}"),
    };
    assert_eq!((&*delegate.label, delegate.nested), ("CoreMLBackend", true));
    assert_eq!((&*kernel.label, kernel.nested, kernel.bytes), ("aten::relu.out", false, 32));
    assert!(kernel.start >= delegate.start + delegate.elapsed);
}

#[test]
fn states_are_read_and_set() {
    let mut runner = total(LoadOptions::default());
    assert_eq!(run(&mut runner, [1.0, -2.0, 0.5, 0.0]), [2.0, 0.0, 1.0, 0.0]);
    let states = runner.states().expect("they are read");
    let [(name, array)] = &states[..] else { panic!("{states:?}") };
    assert_eq!(array.as_floats(), Some(&[1.0, -2.0, 0.5, 0.0][..]));
    // Another instance begins anew, and goes on from what it is given.
    let mut other = runner.afresh().expect("it is loaded again");
    other.set_state(name, array).expect("it is such a state");
    assert_eq!(run(&mut other, [1.0; 4]), [4.0, 0.0, 3.0, 2.0]);
    assert_eq!(run(&mut runner.afresh().expect("it is loaded"), [1.0; 4]), [2.0; 4]);
    let wrong = other.set_state(name, &Array::floats(DType::Fp32, [4], vec![0.0; 4]));
    assert!(wrong.expect_err("the shape is another").to_string().contains("found the shape [4]"));
    assert!(other.set_state("sum", array).is_err());
}

#[test]
fn models_inside_round_as_on_the_device_if_asked() {
    // 2049 is not a half.
    let values = [1.0, 2048.0, 0.0, 0.0];
    let mut fast = total(LoadOptions::default());
    let mut faithful = total(LoadOptions { faithful: true, ..LoadOptions::default() });
    run(&mut fast, values);
    run(&mut faithful, values);
    assert_eq!(run(&mut fast, [0.0, 1.0, 0.0, 0.0])[1], 4098.0);
    assert_eq!(run(&mut faithful, [0.0, 1.0, 0.0, 0.0])[1], 4096.0);
}
