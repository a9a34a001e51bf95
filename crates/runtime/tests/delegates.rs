//! Third-party backends run their delegates, and results are written where the caller requests.

use std::sync::Arc;

use coremill_pte::program::{
    Chain, Delegate as Planned, ExecutionPlan, Instruction, Place, Placement, ScalarType,
    ShapeDynamism, Tensor as PlannedTensor, Value as PlannedValue, ValueId,
};
use coremill_pte::{ByteRope, Program as Source};
use coremill_runtime::{
    Backend, Delegate, DelegatedPart, Error, LoadOptions, OutTensor, Program, Tensor, Value, View,
};

/// Multiplies by its payload, and adds the number of runs.
struct Scaling;

struct Scale {
    factor: f32,
    runs: f32,
}

impl Backend for Scaling {
    fn id(&self) -> &str {
        "ScalingBackend"
    }

    fn prepare(&self, part: &DelegatedPart<'_>) -> Result<Box<dyn Delegate>, Error> {
        let data = part.program.delegate_data[part.delegate.data as usize].to_buffer();
        let factor = data.as_bytes().try_into().map(f32::from_le_bytes);
        let factor = factor.map_err(|_| Error::new("the factor takes four bytes"))?;
        Ok(Box::new(Scale { factor, runs: 0.0 }))
    }
}

impl Delegate for Scale {
    fn inputs(&self) -> usize {
        1
    }

    fn execute(&mut self, inputs: &[View<'_>], outputs: &mut [OutTensor<'_>]) -> Result<(), Error> {
        let ([input], [output]) = (inputs, outputs) else {
            return Err(Error::new("expected one input and one output"));
        };
        if input.sizes().first() == Some(&7) {
            return Err(Error::new("seven is too much"));
        }
        assert_eq!(input.scalar_type(), ScalarType::Float);
        assert_eq!(output.dim_order(), input.dim_order());
        output.resize(input.sizes())?;
        self.runs += 1.0;
        for (from, to) in input.bytes().chunks_exact(4).zip(output.bytes().chunks_exact_mut(4)) {
            let number = f32::from_le_bytes(from.try_into().expect("four bytes"));
            to.copy_from_slice(&(number * self.factor + self.runs).to_le_bytes());
        }
        Ok(())
    }
}

/// A method whose only instruction calls a delegate, on up to 8 × 2 floats.
fn program(backend: &str, placement: Placement) -> Source {
    let tensor = |placement| {
        let mut tensor = PlannedTensor::new(ScalarType::Float, vec![8, 2], placement);
        tensor.dynamism = ShapeDynamism::Bound;
        PlannedValue::Tensor(tensor)
    };
    let plan = ExecutionPlan {
        name: "forward".to_owned(),
        values: vec![tensor(Placement::GivenAtRunTime), tensor(placement)],
        inputs: vec![ValueId(0)],
        outputs: vec![ValueId(1)],
        delegates: vec![Planned { id: backend.to_owned(), ..Planned::default() }],
        chains: vec![Chain {
            instructions: vec![Instruction::DelegateCall {
                delegate: 0,
                arguments: vec![ValueId(0), ValueId(1)],
            }],
            ..Chain::default()
        }],
        arenas: vec![0, 64],
        ..ExecutionPlan::default()
    };
    let mut factor = ByteRope::new();
    factor.push(2f32.to_le_bytes().to_vec());
    Source { plans: vec![plan], delegate_data: vec![factor], ..Source::default() }
}

fn loaded(source: Source) -> Program {
    let options = LoadOptions { backends: vec![Arc::new(Scaling)], ..LoadOptions::default() };
    Program::new(source, options).expect("a sound program")
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    let float = |bytes: &[u8]| f32::from_le_bytes(bytes.try_into().expect("four bytes"));
    bytes.chunks_exact(4).map(float).collect()
}

fn input(rows: usize) -> Value {
    let elements: Vec<f32> = (0..rows * 2).map(|element| element as f32).collect();
    Value::Tensor(Tensor::floats(vec![rows, 2], &elements).expect("a tensor"))
}

#[test]
fn integer_tensors_round_trip_in_any_dim_order() {
    let numbers = [1, -2, i64::MAX, i64::MIN, 0, 6];
    let tensor = Tensor::integers(vec![2, 3], &numbers).expect("six elements");
    assert_eq!(tensor.to_integers().expect("integers"), numbers);
    assert!(Tensor::integers(vec![2, 2], &numbers).is_err());
    let tall = Tensor::with_order(ScalarType::Long, vec![3, 2], vec![1, 0], tensor.data().clone());
    let tall = tall.expect("six elements").to_integers().expect("integers");
    assert_eq!(tall, [1, i64::MIN, -2, 0, i64::MAX, 6]);
}

#[test]
fn third_party_backend_executes_its_delegate() {
    for placement in [Placement::Planned(Place { arena: 1, offset: 0 }), Placement::GivenAtRunTime]
    {
        let program = loaded(program("ScalingBackend", placement));
        let mut method = program.method("forward").expect("it has the method");
        let results = method.execute_in_place(&[input(2)]).expect("it runs");
        let view = results.view(0).expect("a tensor");
        assert_eq!((view.sizes(), view.dim_order()), (&[2, 2][..], &[0, 1][..]));
        assert_eq!(floats(view.bytes()), [1.0, 3.0, 5.0, 7.0]);

        // The caller's memory may be larger than needed, but not smaller. It is unchanged on errors.
        let mut memory = [9u8; 20];
        assert_eq!(results.copy_to(0, &mut memory).expect("it fits"), [2, 2]);
        assert_eq!(floats(&memory[..16]), [1.0, 3.0, 5.0, 7.0]);
        assert_eq!(memory[16..], [9; 4]);
        let error = results.copy_to(0, &mut [9; 15]).expect_err("it does not fit");
        assert_eq!(error.message(), "result 0 has 16 bytes; the memory has only 15");
        let error = results.value(1).expect_err("there is one result");
        assert_eq!(error.message(), "result 1 is out of range; the method returned 1");

        // Each method has its own state, and returned results do not change.
        let kept = results.value(0).expect("a tensor");
        assert_eq!(method.execute(&[input(1)]).expect("it runs").len(), 1);
        let mut other = program.method("forward").expect("it has the method");
        let first = other.execute(&[input(2)]).expect("it runs");
        assert_eq!(first, [kept]);
        let third = method.execute(&[input(3)]).expect("it runs");
        let third = third[0].as_tensor().expect("a tensor");
        assert_eq!(third.to_floats().expect("floats"), [3.0, 5.0, 7.0, 9.0, 11.0, 13.0]);
        let error = third.to_integers().expect_err("the elements are floats");
        assert_eq!(error.message(), "the elements have type `Float`, not `Long`");
    }
}

#[test]
fn delegate_errors_name_method_and_backend() {
    let program = loaded(program("ScalingBackend", Placement::GivenAtRunTime));
    let mut method = program.method("forward").expect("it has the method");
    let error = method.execute(&[input(7)]).expect_err("the delegate rejects seven rows");
    assert_eq!(error.message(), "seven is too much");
    assert_eq!(error.method(), Some("forward"));
    assert_eq!(error.instruction(), Some((0, "ScalingBackend")));
    let error = method.execute(&[input(9)]).expect_err("the bound is eight rows");
    assert!(error.message().contains("must have sizes [8, 2]"), "{error}");
}

#[test]
fn unknown_backend_error_names_available_backends() {
    let program = loaded(program("OtherBackend", Placement::GivenAtRunTime));
    let error = program.method("forward").map(drop).expect_err("no backend is registered for it");
    assert!(error.message().contains("unknown backend `OtherBackend`"), "{error}");
    assert!(error.message().contains("`ScalingBackend`"), "{error}");
}
