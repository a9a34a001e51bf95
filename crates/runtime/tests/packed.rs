//! Only weights of the program are cached in rearranged form.

use coremill_pte::program::{
    Chain, ExecutionPlan, Instruction, Operator, Placement, ScalarType, Tensor as PlannedTensor,
    Value as PlannedValue, ValueId,
};
use coremill_pte::{ByteRope, Program as Source};
use coremill_runtime::{Limits, LoadOptions, Program, Tensor, Value};

/// A grouped convolution of `[1, 4, 3, 3]`. The weight is a constant of the program, or an input if `is_given`.
fn method(name: &str, groups: i64, is_given: bool) -> ExecutionPlan {
    let tensor = |sizes: &[i32], placement| {
        PlannedValue::Tensor(PlannedTensor::new(ScalarType::Float, sizes.to_vec(), placement))
    };
    let per_group = 4 / groups as i32;
    let values = vec![
        tensor(&[1, 4, 3, 3], Placement::GivenAtRunTime),
        tensor(&[4, per_group, 2, 2], Placement::Constant(0)),
        PlannedValue::Null,
        PlannedValue::Int(1),
        PlannedValue::Int(0),
        PlannedValue::IntList([3, 3].map(ValueId).to_vec()),
        PlannedValue::IntList([4, 4].map(ValueId).to_vec()),
        PlannedValue::Bool(false),
        PlannedValue::Int(groups),
        tensor(&[1, 4, 2, 2], Placement::GivenAtRunTime),
    ];
    let mut inputs = vec![ValueId(0)];
    if is_given {
        inputs.push(ValueId(1));
    }
    let arguments = [0, 1, 2, 5, 6, 5, 7, 6, 8, 9, 9].map(ValueId).to_vec();
    ExecutionPlan {
        name: name.to_owned(),
        values,
        inputs,
        outputs: vec![ValueId(9)],
        operators: vec![Operator { name: "aten::convolution".into(), overload: "out".into() }],
        chains: vec![Chain {
            instructions: vec![Instruction::KernelCall { operator: 0, arguments }],
            ..Chain::default()
        }],
        ..ExecutionPlan::default()
    }
}

fn floats(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|index| ((index * 7 + seed * 5) % 11) as f32 - 5.0).collect()
}

fn tensor(sizes: &[usize], elements: &[f32]) -> Value {
    Value::Tensor(
        Tensor::floats(sizes.to_vec(), elements).expect("the element count matches the sizes"),
    )
}

/// Reference implementation.
fn convolved(input: &[f32], weight: &[f32], groups: usize) -> Vec<f32> {
    let per_group = 4 / groups;
    let mut results = Vec::new();
    for filter in 0..4 {
        for (y, x) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let mut sum = 0.0;
            for channel in 0..per_group {
                for (dy, dx) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                    let from = filter / per_group * per_group + channel;
                    sum += input[(from * 3 + y + dy) * 3 + x + dx]
                        * weight[((filter * per_group + channel) * 2 + dy) * 2 + dx];
                }
            }
            results.push(sum);
        }
    }
    results
}

#[test]
fn weight_cache_never_mixes_up_convolution_weights() {
    let constant = floats(64, 1);
    let mut data = ByteRope::new();
    data.push(constant.iter().flat_map(|element| element.to_le_bytes()).collect::<Vec<u8>>());
    // The methods share the constant; `depthwise` uses a part of it as the weight of a different convolution.
    let plans =
        vec![method("dense", 1, false), method("depthwise", 4, false), method("given", 1, true)];
    let source = Source { plans, constants: vec![data], ..Source::default() };
    for packed in [0, 200, 1 << 20] {
        let limits = Limits { packed, ..Limits::default() };
        let options = LoadOptions { limits, threads: 1, ..LoadOptions::default() };
        let program = Program::new(source.clone(), options).expect("a sound program");
        for seed in 0..3 {
            let input = floats(36, seed);
            let given = floats(64, seed + 3);
            for (name, groups, weight) in [
                ("dense", 1, &constant),
                ("given", 1, &given),
                ("depthwise", 4, &constant),
                ("dense", 1, &constant),
            ] {
                let mut method = program.method(name).expect("it has the method");
                let mut values = vec![tensor(&[1, 4, 3, 3], &input)];
                if name == "given" {
                    values.push(tensor(&[4, 4, 2, 2], weight));
                }
                for _ in 0..2 {
                    let found = method.execute(&values).expect("it runs");
                    let wanted = convolved(&input, weight, groups);
                    assert_eq!(found, [tensor(&[1, 4, 2, 2], &wanted)], "{name}, {packed}, {seed}");
                }
            }
        }
    }
}
