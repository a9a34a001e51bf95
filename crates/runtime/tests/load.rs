//! Loading time is independent of the size of the weights, and weights are not copied.

use std::time::{Duration, Instant};

use coremill_pte::program::{
    Chain, ExecutionPlan, Instruction, Operator, Placement, ScalarType, Tensor as Planned,
    Value as PlannedValue, ValueId,
};
use coremill_pte::{ByteRope, Program as Source, WriteOptions};
use coremill_runtime::{Program, Tensor, Value};

const COUNT: usize = 25 << 20;

#[test]
fn loads_100_mb_program_within_5_ms() {
    let mut weights = vec![0u8; 4 * COUNT];
    weights[4 * COUNT - 4..].copy_from_slice(&2.5f32.to_le_bytes());
    let mut data = ByteRope::new();
    data.push(weights);
    let tensor = |sizes: &[i32], placement| {
        PlannedValue::Tensor(Planned::new(ScalarType::Float, sizes.to_vec(), placement))
    };
    let plan = ExecutionPlan {
        name: "forward".to_owned(),
        values: vec![
            tensor(&[COUNT as i32], Placement::Constant(0)),
            PlannedValue::Int(0),
            PlannedValue::Int(-1),
            tensor(&[], Placement::GivenAtRunTime),
        ],
        outputs: vec![ValueId(3)],
        operators: vec![Operator { name: "aten::select_copy".into(), overload: "int_out".into() }],
        chains: vec![Chain {
            instructions: vec![Instruction::KernelCall {
                operator: 0,
                arguments: [0, 1, 2, 3, 3].map(ValueId).to_vec(),
            }],
            ..Chain::default()
        }],
        ..ExecutionPlan::default()
    };
    let source = Source { plans: vec![plan], constants: vec![data], ..Source::default() };
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("large.pte");
    coremill_pte::write(&path, &source, &WriteOptions::default()).expect("it is written");

    let load = || {
        let start = Instant::now();
        let program = Program::load(&path).expect("it is a program");
        let method = program.method("forward").expect("it has the method");
        (start.elapsed(), method)
    };
    // The minimum, because other processes can only slow down loading.
    let fastest = (0..20).map(|_| load().0).min().expect("20 times");
    assert!(fastest < Duration::from_millis(5), "loading takes {fastest:?}");

    let last = load().1.execute(&[]).expect("it runs");
    assert_eq!(last, [Value::Tensor(Tensor::floats(vec![], &[2.5]).expect("a scalar"))]);
}
