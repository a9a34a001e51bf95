//! Tests hooks and states of a method. In `total.pte`, a Core ML model adds the input to a state, and
//! a kernel computes ReLU.

use std::path::Path;
use std::sync::Arc;

use coremill::DType;
use coremill::engine::{Array, Numerics};
use coremill::executorch;
use coremill::session::{Executable, Hooks, RunOptions, Session, Span, inputs, load_program};

fn total(options: &RunOptions) -> Arc<dyn Executable> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../cli/tests/files/total.pte");
    let program = executorch::open(path).expect("a program");
    load_program(program, options).expect("the program is loaded")
}

fn floats(elements: [f32; 4]) -> Array {
    Array::floats(DType::Fp32, [1, 4], elements.to_vec())
}

fn session(executable: &dyn Executable) -> Box<dyn Session> {
    executable.default_session().expect("a default method")
}

fn run(session: &mut dyn Session, elements: [f32; 4]) -> Vec<f32> {
    let outputs = session.run(&[("input_0", &floats(elements))]).expect("it runs");
    outputs.floats("output_0").expect("floats").to_vec()
}

#[test]
fn profile_nests_model_spans_inside_delegate_span() {
    let mut session = session(&*total(&RunOptions::default()));
    let given = [(session.inputs()[0].name.clone(), floats([1.0; 4]))];
    let mut spans: Vec<Span> = Vec::new();
    let mut hooks = Hooks { profile: Some(&mut spans), ..Hooks::default() };
    session.run_with(&inputs(&given), &mut hooks).expect("it runs");
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
fn reads_sets_and_resets_session_states() {
    let total = total(&RunOptions::default());
    let mut one = session(&*total);
    assert_eq!(run(&mut *one, [1.0, -2.0, 0.5, 0.0]), [2.0, 0.0, 1.0, 0.0]);
    let states = one.read_states().expect("the states");
    let [(name, array)] = &states[..] else { panic!("{states:?}") };
    assert_eq!(array.as_floats(), Some(&[1.0, -2.0, 0.5, 0.0][..]));
    // Another session has its own state, and continues from the state that is set.
    let mut other = session(&*total);
    other.set_state(name, array).expect("a state of this shape");
    assert_eq!(run(&mut *other, [1.0; 4]), [4.0, 0.0, 3.0, 2.0]);
    one.reset().expect("the states are reset");
    assert_eq!(run(&mut *one, [1.0; 4]), [2.0; 4]);
    let result = other.set_state(name, &Array::floats(DType::Fp32, [4], vec![0.0; 4]));
    assert!(result.expect_err("the shape differs").to_string().contains("found shape [4]"));
    assert!(other.set_state("sum", array).is_err());
}

#[test]
fn rounded_numerics_apply_to_delegated_models() {
    // fp16 cannot represent 2049.
    let values = [1.0, 2048.0, 0.0, 0.0];
    let mut fast = session(&*total(&RunOptions::default()));
    let options = RunOptions { numerics: Numerics::Rounded, ..RunOptions::default() };
    let mut rounded = session(&*total(&options));
    run(&mut *fast, values);
    run(&mut *rounded, values);
    assert_eq!(run(&mut *fast, [0.0, 1.0, 0.0, 0.0])[1], 4098.0);
    assert_eq!(run(&mut *rounded, [0.0, 1.0, 0.0, 0.0])[1], 4096.0);
}
